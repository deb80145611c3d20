// SPDX-License-Identifier: Apache-2.0
#include "ref.h"

#include <math.h>
#include <stdlib.h>

enum { Q8_0_BLOCK = 32 };

// Element [h][i][j] of a tensor whose axis h may be absent.
static unsigned char *at(const clinfer_tensor *t, int64_t h, int64_t i, int64_t j)
{
    return t->rank == 3 ? ref_at(t, h, i, j) : ref_at(t, i, j, 0);
}

// Row [t][h] of x or of the output.
static unsigned char *token_row(const clinfer_tensor *t, int64_t token, int64_t h)
{
    return ref_at(t, token, t->rank == 3 ? h : 0, 0);
}

static double scale_at(const clinfer_tensor *t, int64_t h, int64_t i, int64_t j)
{
    return ref_load(at(t, h, i, j), t->dtype, 0);
}

// x as the product takes it: with fp8 weights code * scale of each k_granularity columns.
static void read_row(const struct clinfer_matmul_params *p, int64_t token, int64_t h, int64_t k, double *x)
{
    const unsigned char *row = token_row(&p->x, token, h);
    for (int64_t i = 0; i < k; i++)
        x[i] = ref_load(row, p->x.dtype, i);
    if (p->w.dtype != CLINFER_F8_E4M3)
        return;
    float *values = (float *) ref_alloc(k);
    for (int64_t i = 0; i < k; i++)
        values[i] = (float) x[i];
    for (int64_t i = 0; i < k; i += p->k_granularity) {
        const int64_t n = k - i < p->k_granularity ? k - i : p->k_granularity;
        const double scale =
            ref_quantize_group(values + i, n, p->x_scale_bound > 0 ? p->x_scale_bound : HUGE_VALF, x + i);
        for (int64_t j = i; j < i + n; j++)
            x[j] *= scale;
    }
    free(values);
}

static double weight(const struct clinfer_matmul_params *p, int64_t h, int64_t n, int64_t k)
{
    const double w = ref_load(at(&p->w, h, n, k), p->w.dtype, 0);
    if (p->w.dtype == CLINFER_F8_E4M3)
        return w * scale_at(&p->w_scale, h, n / p->n_granularity, k / p->k_granularity);
    return p->w.dtype == CLINFER_I8 ? w * scale_at(&p->w_scale, h, n, k / Q8_0_BLOCK) : w;
}

void ref_matmul(const struct clinfer_matmul_params *p)
{
    const int64_t heads = p->x.rank == 3 ? p->x.shape[1] : 1, columns = p->x.shape[p->x.rank - 1],
                  rows = p->w.shape[p->w.rank - 2];
    double *x = ref_alloc(columns);
    for (int64_t t = 0; t < p->x.shape[0]; t++)
        for (int64_t h = 0; h < heads; h++) {
            read_row(p, t, h, columns, x);
            for (int64_t n = 0; n < rows; n++) {
                double sum = 0;
                for (int64_t k = 0; k < columns; k++)
                    sum += x[k] * weight(p, h, n, k);
                if (p->bias.rank)
                    sum += ref_get(&p->bias, n, 0, 0);
                ref_store(token_row(&p->output, t, h), p->output.dtype, n, sum);
            }
        }
    free(x);
}
