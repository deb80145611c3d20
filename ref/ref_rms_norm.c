// SPDX-License-Identifier: Apache-2.0
#include "ref.h"

#include <stdlib.h>

void ref_rms_norm(const struct clinfer_rms_norm_params *p)
{
    const int64_t n = p->gamma.shape[0];
    double *row = ref_alloc(n);
    for (int64_t t = 0; t < p->x.shape[0]; t++) {
        for (int64_t i = 0; i < n; i++) {
            row[i] = ref_get(&p->x, t, i, 0);
            if (!p->residual.rank)
                continue;
            row[i] = ref_round(ref_get(&p->residual, t, i, 0) + row[i], p->residual.dtype);
            ref_store(ref_at(&p->residual, t, i, 0), p->residual.dtype, 0, row[i]);
        }
        ref_rms_norm_row(row, n, &p->gamma, p->epsilon, p->weight_offset, p->cast, row);
        for (int64_t i = 0; i < n; i++)
            ref_store(ref_at(&p->output, t, i, 0), p->output.dtype, 0, row[i]);
    }
    free(row);
}
