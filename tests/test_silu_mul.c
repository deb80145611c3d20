// SPDX-License-Identifier: Apache-2.0
#include "optest.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>

TestSuite(silu_mul, .timeout = 120);

static void shape(struct ot_call *c, int64_t tokens, int64_t n, clinfer_dtype dtype)
{
    const struct ot_batch b = { .requests = 1, .fresh = { tokens }, .page_size = 1, .layers = 1 };
    const struct ot_random r = ot_seeded("silu_mul", tokens * 100000 + n);
    struct clinfer_silu_mul_params *p = ot_begin(c, "silu_mul", &b, &r);
    p->x = clinfer_tensor_2d(NULL, dtype, tokens, 2 * n);
    p->output = clinfer_tensor_2d(NULL, dtype, tokens, n);
    (void) snprintf(c->note, sizeof c->note, "%s T=%lld n=%lld", clinfer_dtype_str(dtype), (long long) tokens,
                    (long long) n);
}

static void begin(struct ot_call *c, int64_t tokens, int64_t n, clinfer_dtype dtype)
{
    shape(c, tokens, n, dtype);
    ot_place(c);
}

// Widths around vectors, work-groups and runs of vectors.
Test(silu_mul, shapes)
{
    static const int64_t widths[] = { 1, 3, 15, 16, 17, 64, 255, 256, 257, 1536, 4099 },
                         tokens[] = { 1, 2, 7, 33 };
    struct ot_device d = ot_open(0);
    for (int64_t k = 0; k < OT_COUNT(widths); k++)
        for (int64_t i = 0; i < OT_COUNT(tokens); i++) {
            struct ot_call c;
            begin(&c, tokens[i], widths[k], ot_floats[(k + i) % 3]);
            ot_check(&c, &d);
            ot_free(&c);
        }
    ot_close(&d);
}

Test(silu_mul, no_tokens_and_no_width)
{
    struct ot_device d = ot_open(0);
    for (int i = 0; i < 2; i++) {
        struct ot_call c;
        begin(&c, i ? 3 : 0, i ? 0 : 5, CLINFER_BF16);
        ot_check(&c, &d);
        ot_unchanged(&c);
        ot_free(&c);
    }
    ot_close(&d);
}

// Gates where exp overflows or vanishes, and what is no number: results are the equation's, of the first
// column element by element.
Test(silu_mul, extreme_gates)
{
    static const double gates[] = { 0,   -0.0, 1e-30, -1e-30, 20,       -20,       88.5, -88.5,
                                    200, -200, 3e38,  -3e38,  INFINITY, -INFINITY, NAN };
    struct ot_device d = ot_open(0);
    struct ot_call c;
    begin(&c, OT_COUNT(gates), 19, CLINFER_F32);
    for (int64_t i = 0; i < OT_COUNT(gates); i++) {
        ot_set(&c, "x", i, i % 19, 0, gates[i]);
        ot_set(&c, "x", i, 19 + i % 19, 0, 0.75);
    }
    ot_check(&c, &d);
    for (int64_t i = 0; i < OT_COUNT(gates); i++) {
        const double got = ot_get(&c, "output", OT_GOT, i, i % 19, 0), x = gates[i];
        if (isnan(x) || (isinf(x) && x < 0)) // -inf over infinity
            cr_expect(isnan(got), "gate %g gives %g", x, got);
        else if (isinf(x))
            cr_expect_eq(got, x);
        else
            cr_expect(fabs(got - 0.75 * x / (1 + exp(-x))) <= 1e-6 * fabs(x), "gate %g gives %g", x, got);
    }
    ot_free(&c);
    ot_close(&d);
}

// Of a gate of 65 silu is 65 in f32: halves of bf16's step of 0.5 there go to even.
Test(silu_mul, rounds_to_even)
{
    static const double up[] = { 1.25, 1.75, 1.390625, 1.0546875 }, want[] = { 81, 114, 90.5, 68.5 };
    struct ot_device d = ot_open(0);
    struct ot_call c;
    begin(&c, 1, 4, CLINFER_BF16);
    for (int64_t i = 0; i < 4; i++) {
        ot_set(&c, "x", 0, i, 0, 65);
        ot_set(&c, "x", 0, 4 + i, 0, up[i]);
    }
    ot_check(&c, &d);
    for (int64_t i = 0; i < 4; i++)
        cr_expect_eq(ot_get(&c, "output", OT_GOT, 0, i, 0), want[i], "65 * %g is %g", up[i],
                     ot_get(&c, "output", OT_GOT, 0, i, 0));
    ot_free(&c);
    ot_close(&d);
}

Test(silu_mul, rows_far_apart)
{
    struct ot_device d = ot_open(0);
    struct ot_call c;
    shape(&c, 2, 50, CLINFER_BF16);
    ot_check_far_rows(&c, &d);
    ot_free(&c);
    ot_close(&d);
}

// A gate of NaN or infinity stays in its own column.
Test(silu_mul, neighbours_are_untouched)
{
    struct ot_device d = ot_open(0);
    struct ot_call c;
    begin(&c, 1, 40, CLINFER_F16);
    ot_set(&c, "x", 0, 5, 0, NAN);
    ot_set(&c, "x", 0, 40 + 17, 0, INFINITY);
    ot_check(&c, &d);
    for (int64_t i = 0; i < 40; i++)
        cr_expect_eq(isfinite(ot_get(&c, "output", OT_GOT, 0, i, 0)), i != 5 && i != 17);
    ot_free(&c);
    ot_close(&d);
}
