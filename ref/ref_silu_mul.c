// SPDX-License-Identifier: Apache-2.0
#include "ref.h"

#include <math.h>

void ref_silu_mul(const struct clinfer_silu_mul_params *p)
{
    const int64_t n = p->output.shape[1];
    for (int64_t t = 0; t < p->output.shape[0]; t++)
        for (int64_t i = 0; i < n; i++) {
            const double gate = ref_get(&p->x, t, i, 0), up = ref_get(&p->x, t, n + i, 0);
            ref_store(ref_at(&p->output, t, i, 0), p->output.dtype, 0, gate / (1 + exp(-gate)) * up);
        }
}
