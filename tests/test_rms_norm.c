// SPDX-License-Identifier: Apache-2.0
#include "optest.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

TestSuite(rms_norm, .timeout = 120);

struct shape {
    int64_t tokens, n;
    clinfer_dtype x, gamma, residual; // residual 0: none
    clinfer_norm_cast cast;
    float epsilon, offset;
    enum ot_pairing pairing;
};
static const struct shape plain = {
    3, 100, CLINFER_BF16, CLINFER_BF16, CLINFER_BF16, 0, 1e-5f, 0, OT_SEPARATE
};

static void shape(struct ot_call *c, const struct shape *s, int64_t number)
{
    const struct ot_batch b = { .requests = 1, .fresh = { s->tokens }, .page_size = 1, .layers = 1 };
    const struct ot_random r = ot_seeded("rms_norm", number);
    struct clinfer_rms_norm_params *p = ot_begin(c, "rms_norm", &b, &r);
    p->x = clinfer_tensor_2d(NULL, s->x, s->tokens, s->n);
    p->gamma = clinfer_tensor_1d(NULL, s->gamma, s->n);
    if (s->residual)
        p->residual = clinfer_tensor_2d(NULL, s->residual, s->tokens, s->n);
    p->output = clinfer_tensor_2d(NULL, s->x, s->tokens, s->n);
    p->epsilon = s->epsilon;
    p->weight_offset = s->offset;
    p->cast = s->cast;
    c->pairing = s->pairing;
    (void) snprintf(c->note, sizeof c->note, "T=%lld n=%lld x=%s gamma=%s residual=%s cast=%d place=%d",
                    (long long) s->tokens, (long long) s->n, clinfer_dtype_str(s->x),
                    clinfer_dtype_str(s->gamma), s->residual ? clinfer_dtype_str(s->residual) : "none",
                    (int) s->cast, (int) s->pairing);
}

static void begin(struct ot_call *c, const struct shape *s, int64_t number)
{
    shape(c, s, number);
    ot_place(c);
}

// Every type of x with every type of gamma; each of them with and without a residual of each type, and in
// place.
Test(rms_norm, types)
{
    static const clinfer_dtype residuals[] = { CLINFER_BF16, 0, CLINFER_F32, CLINFER_F16 };
    struct ot_device d = ot_open(0);
    for (int i = 0; i < 9; i++) {
        struct ot_call c;
        const struct shape s = { .tokens = 5,
                                 .n = 90 + 6 * i,
                                 .x = ot_floats[i % 3],
                                 .gamma = ot_floats[i / 3],
                                 .residual = residuals[i % 4],
                                 .cast = i % 2 ? CLINFER_CAST_THEN_MULTIPLY : CLINFER_MULTIPLY_THEN_CAST,
                                 .epsilon = i ? 1e-6f : 0,
                                 .offset = (float) (i % 3) / 2,
                                 .pairing = i % 2 ? OT_SEPARATE : OT_IN_PLACE };
        if (ot_share() > 1 && i % 3 != i / 3)
            continue;
        begin(&c, &s, i);
        ot_check(&c, &d);
        ot_free(&c);
    }
    ot_close(&d);
}

// Widths around vectors, sums side by side, and the sizes of work-groups.
Test(rms_norm, widths)
{
    static const int64_t widths[] = { 1, 15, 16, 17, 63, 64, 1000, 65, 1024, 1025, 2049, 129, 5000 };
    static const int64_t tokens[] = { 1, 2, 7, 150 }; // the last so many that an item has several
    struct ot_device d = ot_open(0);
    for (int64_t k = 0; k < OT_COUNT(widths); k++) {
        struct ot_call c;
        struct shape s = plain;
        s.n = widths[k];
        s.tokens = tokens[k % 4];
        s.pairing = k % 2 ? OT_IN_PLACE : OT_SEPARATE;
        begin(&c, &s, k);
        ot_check(&c, &d);
        ot_free(&c);
    }
    ot_close(&d);
}

// One row, its first value `first` among so many of 1 that they alone make the mean square; y of the first.
static double first_value(const struct ot_device *d, clinfer_norm_cast cast, double rest, double first,
                          double gamma, float offset)
{
    enum { N = 4096 };
    const struct shape s = { 1, N, CLINFER_BF16, CLINFER_BF16, 0, cast, 0, offset, OT_SEPARATE };
    struct ot_call c;
    begin(&c, &s, 0);
    for (int64_t i = 0; i < N; i++) {
        ot_set(&c, "x", 0, i, 0, i ? (i % 2 ? rest : -rest) : first);
        ot_set(&c, "gamma", i, 0, 0, gamma);
    }
    ot_check(&c, d);
    const double y = ot_get(&c, "output", OT_GOT, 0, 0, 0);
    ot_free(&c);
    return y;
}

// Units of 1/128, the step of bf16 here: gamma + w = 133.5 is a tie, to even 134: 168 * 133.5 / 128 = 175.2,
// 168 * 134 / 128 = 175.9. And 1 / 1.5 rounds to 85.5 / 128: times 224 that is 149.6; unrounded 149.3.
Test(rms_norm, cast_orders)
{
    struct ot_device d = ot_open(0);
    const float w = 1.0f / 256;
    double y = first_value(&d, CLINFER_MULTIPLY_THEN_CAST, 1, 168.0 / 128, 133.0 / 128, w);
    cr_expect_eq(y, 175.0 / 128, "multiply, then cast: %.8g", y);
    y = first_value(&d, CLINFER_CAST_THEN_MULTIPLY, 1, 168.0 / 128, 133.0 / 128, w);
    cr_expect_eq(y, 176.0 / 128, "cast, then multiply: %.8g", y);
    y = first_value(&d, CLINFER_MULTIPLY_THEN_CAST, 1.5, 1, 224.0 / 128, 0);
    cr_expect_eq(y, 149.0 / 128, "multiply, then cast: %.8g", y);
    y = first_value(&d, CLINFER_CAST_THEN_MULTIPLY, 1.5, 1, 224.0 / 128, 0);
    cr_expect_eq(y, 150.0 / 128, "cast, then multiply: %.8g", y);
    ot_close(&d);
}

// Sums that are ties of bf16's step of 2 go to even, and the norm is taken of what was stored: 1e-5 of f32
// tells it from that of the sums.
Test(rms_norm, residual_is_rounded)
{
    static const double residual[] = { 256, 258, 256, 512 }, x[] = { 1, 1, 1.5, -1 },
                        want[] = { 256, 260, 258, 512 };
    struct ot_device d = ot_open(0);
    const struct shape s = { 1, 4, CLINFER_F32, CLINFER_F32, CLINFER_BF16, 0, 0, 0, OT_IN_PLACE };
    struct ot_call c;
    begin(&c, &s, 0);
    for (int64_t i = 0; i < 4; i++) {
        ot_set(&c, "residual", 0, i, 0, residual[i]);
        ot_set(&c, "x", 0, i, 0, x[i]);
        ot_set(&c, "gamma", i, 0, 0, 1);
    }
    ot_check(&c, &d);
    const double r = 2 / sqrt(256.0 * 256 + 260.0 * 260 + 258.0 * 258 + 512.0 * 512);
    for (int64_t i = 0; i < 4; i++) {
        cr_expect_eq(ot_get(&c, "residual", OT_GOT, 0, i, 0), want[i], "residual %g",
                     ot_get(&c, "residual", OT_GOT, 0, i, 0));
        cr_expect(fabs(ot_get(&c, "output", OT_GOT, 0, i, 0) - want[i] * r) < 1e-6);
    }
    ot_free(&c);
    ot_close(&d);
}

// Squares past the range of f16, and so many that a sum in 16 bits would stand still.
Test(rms_norm, sum_is_f32)
{
    struct ot_device d = ot_open(0);
    const struct shape s = { 2, 4096, CLINFER_F16, CLINFER_F16, 0, 0, 1e-5f, 0, OT_SEPARATE };
    struct ot_call c;
    begin(&c, &s, 0);
    for (int64_t i = 0; i < s.n; i++) {
        ot_set(&c, "gamma", i, 0, 0, 1);
        ot_set(&c, "x", 1, i, 0, 30000 + 1000 * ot_gauss(&c.random));
    }
    ot_check(&c, &d);
    for (int64_t i = 0; i < s.n; i++)
        cr_expect(fabs(ot_get(&c, "output", OT_GOT, 1, i, 0) - 1) < 0.2);
    ot_free(&c);
    ot_close(&d);
}

// epsilon 0: a row of zeros stays one; a NaN takes its row and no other.
Test(rms_norm, zeros_and_nan)
{
    struct ot_device d = ot_open(0);
    struct shape s = plain;
    s.tokens = 4;
    s.residual = 0;
    s.epsilon = 0;
    struct ot_call c;
    begin(&c, &s, 0);
    for (int64_t i = 0; i < s.n; i++)
        ot_set(&c, "x", 1, i, 0, 0);
    ot_set(&c, "x", 2, 77, 0, NAN);
    ot_check(&c, &d);
    for (int64_t i = 0; i < s.n; i++) {
        cr_expect_eq(ot_get(&c, "output", OT_GOT, 1, i, 0), 0);
        cr_expect(isnan(ot_get(&c, "output", OT_GOT, 2, i, 0)));
        cr_expect(isfinite(ot_get(&c, "output", OT_GOT, 3, i, 0)));
    }
    ot_free(&c);
    ot_close(&d);
}

Test(rms_norm, no_tokens)
{
    struct ot_device d = ot_open(0);
    struct shape s = plain;
    s.tokens = 0;
    struct ot_call c;
    begin(&c, &s, 0);
    ot_check(&c, &d);
    ot_unchanged(&c);
    ot_free(&c);
    ot_close(&d);
}

// A row has the same bits alone and among others.
Test(rms_norm, bits_of_a_row)
{
    enum { N = 1100, TOKENS = 300, ROW = 133 };
    struct ot_device d = ot_open(0);
    struct shape s = { TOKENS, N, CLINFER_F32, CLINFER_F32, 0, 0, 1e-5f, 0, OT_SEPARATE };
    struct ot_call many, one;
    begin(&many, &s, 0);
    s.tokens = 1;
    begin(&one, &s, 0);
    for (int64_t i = 0; i < N; i++) {
        ot_set(&one, "x", 0, i, 0, ot_get(&many, "x", OT_INITIAL, ROW, i, 0));
        ot_set(&one, "gamma", i, 0, 0, ot_get(&many, "gamma", OT_INITIAL, i, 0, 0));
    }
    ot_run(&many, &d);
    ot_run(&one, &d);
    cr_expect(
        !memcmp(ot_at(&many, "output", OT_GOT, ROW, 0, 0), ot_at(&one, "output", OT_GOT, 0, 0, 0), 4 * N));
    ot_free(&many);
    ot_free(&one);
    ot_close(&d);
}

// Without what some devices lack: the same results.
Test(rms_norm, fewer_capabilities)
{
    struct ot_device d =
        ot_open(CLINFER_CAP_DENORMALS | CLINFER_CAP_ROUNDED_DIVIDE | CLINFER_CAP_FMA | CLINFER_CAP_SUBGROUPS);
    struct ot_call c;
    begin(&c, &plain, 0);
    ot_check(&c, &d);
    ot_free(&c);
    ot_close(&d);
}

Test(rms_norm, rows_far_apart)
{
    struct ot_device d = ot_open(0);
    struct shape s = plain;
    s.tokens = 2;
    struct ot_call c;
    shape(&c, &s, 0);
    ot_check_far_rows(&c, &d);
    ot_free(&c);
    ot_close(&d);
}
