// SPDX-License-Identifier: Apache-2.0
#include "ref.h"

#include <math.h>
#include <stdlib.h>

void ref_rms_norm_row(const double *x, int64_t n, const clinfer_tensor *gamma, double epsilon,
                      double weight_offset, clinfer_norm_cast cast, double *y)
{
    const clinfer_dtype t = gamma->dtype;
    const double w = ref_round(weight_offset, t);
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += ref_round(x[i], t) * ref_round(x[i], t);
    const double mean = sum / (double) n + epsilon;
    const double r = mean == 0 ? 0 : 1 / sqrt(mean); // epsilon 0 and a row of zeros
    for (int64_t i = 0; i < n; i++) {
        const double unit = ref_round(x[i], t) * r, weight = ref_get(gamma, i, 0, 0) + w;
        y[i] = cast == CLINFER_MULTIPLY_THEN_CAST ? ref_round(unit * weight, t)
                                                  : ref_round(ref_round(unit, t) * ref_round(weight, t), t);
    }
}

static int64_t clamp(int64_t x, int64_t low, int64_t high)
{
    return x < low ? low : x > high ? high : x;
}

static void norm_token(const struct clinfer_rms_norm_kv_cache_params *p, const struct ref_token *at,
                       double *row)
{
    const struct ref_plane k = ref_plane_of(&p->kv, p->layer_idx, 0);
    const int64_t n = p->gamma.shape[0], size = k.head_size;
    for (int64_t h = 0; h < k.num_heads; h++)
        ref_read_head(&k, at->page, at->slot, h, row + h * size);
    if (p->rows == CLINFER_WHOLE_ROW)
        ref_rms_norm_row(row, n, &p->gamma, p->epsilon, p->weight_offset, p->cast, row);
    for (int64_t h = 0; h < k.num_heads; h++) {
        double *x = row + h * size;
        if (p->rows == CLINFER_PER_HEAD)
            ref_rms_norm_row(x, n, &p->gamma, p->epsilon, p->weight_offset, p->cast, x);
        const int64_t changed = p->rows == CLINFER_PER_HEAD ? n : clamp(n - h * size, 0, size);
        ref_write_head(&k, at->page, at->slot, h, x, 0, changed);
    }
}

void ref_rms_norm_kv_cache(const struct clinfer_rms_norm_kv_cache_params *p)
{
    double *row = ref_alloc(p->kv.num_heads * p->kv.head_size);
    for (int64_t i = 0; i < p->total_seq_len; i++) {
        struct ref_token at;
        if (ref_token_at(&p->batch, &p->kv, p->total_seq_len, i, &at))
            norm_token(p, &at, row);
    }
    free(row);
}
