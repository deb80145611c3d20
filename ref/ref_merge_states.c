// SPDX-License-Identifier: Apache-2.0
#include "ref.h"

#include <math.h>

static void merge_head(const struct clinfer_merge_states_params *p, int64_t t, int64_t h)
{
    const double lse_a = ref_get(&p->lse_a, t, h, 0), lse_b = ref_get(&p->lse_b, t, h, 0);
    const double top = fmax(lse_a, lse_b), shift = top == -HUGE_VAL ? 0 : top;
    const double a = exp(lse_a - shift), b = exp(lse_b - shift);
    for (int64_t d = 0; d < p->output.shape[2]; d++) { // a state of no key may hold anything
        const double of_a = lse_a == -HUGE_VAL ? 0 : a / (a + b) * ref_get(&p->out_a, t, h, d);
        const double of_b = lse_b == -HUGE_VAL ? 0 : b / (a + b) * ref_get(&p->out_b, t, h, d);
        ref_store(ref_at(&p->output, t, h, d), p->output.dtype, 0, of_a + of_b);
    }
    ref_store(ref_at(&p->lse, t, h, 0), CLINFER_F32, 0, shift + log(a + b));
}

void ref_merge_states(const struct clinfer_merge_states_params *p)
{
    for (int64_t t = 0; t < p->output.shape[0]; t++)
        for (int64_t h = 0; h < p->output.shape[1]; h++)
            merge_head(p, t, h);
}
