// SPDX-License-Identifier: Apache-2.0
#include "optest_matmul.h"

#include <criterion/criterion.h>

#include <stdio.h>

const clinfer_dtype mm_weights[MM_WEIGHTS] = { CLINFER_F32, CLINFER_F16, CLINFER_BF16, CLINFER_F8_E4M3,
                                               CLINFER_I8 };

struct clinfer_matmul_params *mm_params(const struct ot_call *c)
{
    return c->params;
}

// [n0, heads, n1] or [heads, n0, n1], without heads where there are none.
static clinfer_tensor tensor_of(clinfer_dtype dtype, int64_t heads, int axis, int64_t n0, int64_t n1)
{
    if (!heads)
        return clinfer_tensor_2d(NULL, dtype, n0, n1);
    return axis ? clinfer_tensor_3d(NULL, dtype, n0, heads, n1)
                : clinfer_tensor_3d(NULL, dtype, heads, n0, n1);
}

// Values that do not depend on how many tokens there are: each row from numbers of its own.
static void refill_x(struct ot_call *c, const struct mm_shape *s, const char *seed)
{
    for (int64_t t = 0; t < s->tokens; t++) {
        struct ot_random r = ot_seeded(seed, t);
        for (int64_t h = 0; h < (s->heads ? s->heads : 1); h++)
            for (int64_t k = 0; k < s->columns; k++)
                ot_set(c, "x", t, s->heads ? h : k, s->heads ? k : 0, 1.5 * ot_gauss(&r));
    }
}

static void refill_weights(struct ot_call *c, const char *seed)
{
    static const char *const names[] = { "w", "w_scale", "bias" };
    const clinfer_tensor *t[] = { &mm_params(c)->w, &mm_params(c)->w_scale, &mm_params(c)->bias };
    for (int n = 0; n < 3; n++) {
        struct ot_random r = ot_seeded(seed, -1 - n);
        const bool codes = t[n]->dtype == CLINFER_F8_E4M3 || t[n]->dtype == CLINFER_I8;
        for (int64_t i = 0; t[n]->rank && i < t[n]->shape[0]; i++)
            for (int64_t j = 0; j < (t[n]->rank > 1 ? t[n]->shape[1] : 1); j++)
                for (int64_t k = 0; k < (t[n]->rank > 2 ? t[n]->shape[2] : 1); k++)
                    ot_set(c, names[n], i, j, k,
                           n == 1 ? 0.002 + 0.0004 * ot_gauss(&r)
                                  : (codes ? 60
                                     : n   ? 1
                                           : 0.1) *
                                        ot_gauss(&r));
    }
}

void mm_begin(struct ot_call *c, const struct mm_shape *s, const char *seed)
{
    const struct ot_batch b = { .requests = 1, .fresh = { s->tokens }, .page_size = 1, .layers = 1 };
    const struct ot_random r = ot_seeded(seed, s->tokens + 1000 * s->rows + 1000000 * s->columns);
    struct clinfer_matmul_params *p = ot_begin(c, "matmul", &b, &r);
    p->x = tensor_of(s->x, s->heads, 1, s->tokens, s->columns);
    p->w = tensor_of(s->w, s->heads, 0, s->rows, s->columns);
    p->output = tensor_of(s->x, s->heads, 1, s->tokens, s->rows);
    if (s->w == CLINFER_F8_E4M3) {
        p->n_granularity = s->gn;
        p->k_granularity = s->gk;
        p->x_scale_bound = s->bound;
        p->w_scale =
            tensor_of(CLINFER_F32, s->heads, 0, op_groups(s->rows, s->gn), op_groups(s->columns, s->gk));
    }
    if (s->w == CLINFER_I8)
        p->w_scale = tensor_of(CLINFER_F16, s->heads, 0, s->rows, op_groups(s->columns, 32));
    if (s->bias)
        p->bias = clinfer_tensor_1d(NULL, s->bias, s->rows);
    (void) snprintf(c->note, sizeof c->note,
                    "%s x %s T=%lld Hb=%lld N=%lld Kd=%lld bias=%s gn=%lld gk=%lld bound=%g",
                    clinfer_dtype_str(s->x), clinfer_dtype_str(s->w), (long long) s->tokens,
                    (long long) s->heads, (long long) s->rows, (long long) s->columns,
                    clinfer_dtype_str(s->bias), (long long) s->gn, (long long) s->gk, (double) s->bound);
    ot_place(c);
    refill_x(c, s, seed);
    refill_weights(c, seed);
}

void mm_check(const struct mm_shape *s, const char *seed, const struct ot_device *d)
{
    struct ot_call c;
    mm_begin(&c, s, seed);
    ot_check(&c, d);
    ot_free(&c);
}
