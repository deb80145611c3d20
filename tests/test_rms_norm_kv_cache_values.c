// SPDX-License-Identifier: Apache-2.0
// Roundings, zeros and groups of rms_norm_kv_cache, with values worked out by hand.
#include "optest_norm.h"

#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

// Numbers of size `rest`, so many that x at the front hardly moves their mean square.
static void set_row(struct ot_call *c, int64_t n, double rest, double x, double gamma)
{
    for (int64_t d = 0; d < n; d++) {
        ot_set_row(c, 0, 0, 0, d, d ? (d % 2 ? rest : -rest) : x);
        ot_set(c, "gamma", d, 0, 0, gamma);
    }
}

// y of the first of N values, r = 1 / rest.
static double first_value(const struct ot_device *d, clinfer_norm_cast cast, double rest, double x,
                          double gamma, float offset)
{
    enum { N = 4096 };
    const struct ot_batch b = ot_one_request(0, 1, 1);
    const struct norm_shape s = { 1, N, N, 0, 0, CLINFER_BF16, cast, CLINFER_PER_HEAD, 0, offset };
    struct ot_random r = ot_seeded("norm cast", 0);
    struct ot_call c;
    norm_begin(&c, &s, &b, &r);
    ot_place(&c);
    set_row(&c, N, rest, x, gamma);
    ot_check(&c, d);
    const double y = ot_get_row(&c, OT_GOT, 0, 0, 0, 0);
    ot_free(&c);
    return y;
}

// Values for which each rounding counts, in units of 1/128, the step of bf16 here. gamma + w = 128 + 5.5 is a
// tie, to even 134: 168 * 133.5 / 128 = 175.2, 168 * 134 / 128 = 175.9. And 1 / 1.5 rounds to 85.5 / 128:
// times 224 that is 149.6; unrounded 149.3.
Test(rms_norm_kv_cache, cast_orders)
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

// w is rounded to gamma's type before it is added: 1/512 of a bf16 w of 1 is lost.
Test(rms_norm_kv_cache, offset_is_rounded)
{
    enum { N = 32 };
    struct ot_device d = ot_open(0);
    const struct ot_batch b = ot_one_request(0, 1, 1);
    struct norm_shape s = norm_plain;
    s.heads = 1;
    s.head_size = s.gamma_size = N;
    s.gamma = CLINFER_BF16;
    s.epsilon = 0;
    s.offset = 1 + 3.0f / 512;
    struct ot_random r = ot_seeded("norm offset", 0);
    struct ot_call c;
    norm_begin(&c, &s, &b, &r);
    ot_place(&c);
    set_row(&c, N, 1, 1, 1.0 / 256 + 1.0 / 1024);
    ot_check(&c, &d);
    // 1 + 1/128 + 1/256 + 1/1024 rounds to 1 + 2/128; with w as it was given it would be 1 + 1/128.
    cr_expect_eq(ot_get_row(&c, OT_GOT, 0, 0, 0, 0), 1 + 2.0 / 128, "%.8g",
                 ot_get_row(&c, OT_GOT, 0, 0, 0, 0));
    ot_free(&c);
    ot_close(&d);
}

// Squares past the range of f16, and enough of them that a sum in 16 bits would stand still.
Test(rms_norm_kv_cache, sum_is_f32)
{
    struct ot_device d = ot_open(0);
    for (int i = 0; i < 3; i++) {
        const struct ot_batch b = ot_one_request(2, 3, 4);
        struct norm_shape s = norm_plain;
        s.heads = 1;
        s.head_size = s.gamma_size = 4096;
        s.cache = i;
        s.gamma = ot_floats[i];
        struct ot_random r = ot_seeded("norm sum", i);
        struct ot_call c;
        norm_begin(&c, &s, &b, &r);
        ot_place(&c);
        for (int64_t k = 0; k < 4096; k++) {
            ot_set(&c, "gamma", k, 0, 0, 1);
            ot_set_row(&c, 0, 2, 0, k, 30000 + 1000 * ot_gauss(&r));
        }
        ot_check(&c, &d);
        for (int64_t k = 0; k < 4096; k++)
            cr_expect(fabs(ot_get_row(&c, OT_GOT, 0, 2, 0, k) - 1) < 0.2);
        ot_free(&c);
    }
    ot_close(&d);
}

// epsilon 0: a row of zeros stays one, and keeps its neighbours out of it.
Test(rms_norm_kv_cache, zero_rows)
{
    struct ot_device d = ot_open(0);
    for (int cache = 0; cache < OT_CACHES; cache++) {
        const struct ot_batch b = ot_one_request(1, 2, 2);
        struct norm_shape s = norm_plain;
        s.head_size = s.gamma_size = 20;
        s.group = 8;
        s.cache = cache;
        s.epsilon = 0;
        struct ot_random r = ot_seeded("norm zero", cache);
        struct ot_call c;
        norm_begin(&c, &s, &b, &r);
        ot_place(&c);
        for (int64_t k = 0; k < 20; k++)
            ot_set_row(&c, 0, 1, 1, k, 0);
        ot_check(&c, &d);
        for (int64_t k = 0; k < 20; k++)
            cr_expect_eq(ot_get_row(&c, OT_GOT, 0, 1, 1, k), 0);
        ot_free(&c);
    }
    ot_close(&d);
}

// A head of eight groups of four, one of them spoilt in four ways: the others keep their codes and scales.
static void spoil_group(struct ot_call *c, int way)
{
    static const double gammas[4][4] = {
        { 1, 1, 1, 1 }, { 1e-40, 1e-40, 1e-40, 1e-40 }, { 1, 1000, 1, 1 }, { 1, HUGE_VAL, NAN, 1 }
    };
    float *scales = ot_row_scales(c, OT_INITIAL, 0, 0, 0);
    for (int64_t k = 0; k < 32; k++) {
        const int64_t g = k / 4;
        ot_set(c, "gamma", k, 0, 0, g == 3 ? gammas[way][k % 4] : 1);
        ot_set_row(c, 0, 0, 0, k, g == 0 ? 0 : g == 1 ? (k % 4 == 2 ? 3 : 0) : (double) (k % 5 + 1));
        scales[g] = 1;
    }
}

Test(rms_norm_kv_cache, groups)
{
    struct ot_device d = ot_open(0);
    const struct norm_shape s = {
        .heads = 1,
        .head_size = 32,
        .gamma_size = 32,
        .group = 4,
        .cache = 4,
        .gamma = CLINFER_F32,
        .epsilon = 1,
    };
    unsigned char first[32];
    for (int way = 0; way < 4; way++) {
        const struct ot_batch b = ot_one_request(0, 1, 2);
        struct ot_random r = ot_seeded("norm groups", way);
        struct ot_call c;
        norm_begin(&c, &s, &b, &r);
        ot_place(&c);
        spoil_group(&c, way);
        ot_check(&c, &d);
        const unsigned char *row = ot_row(&c, OT_GOT, 0, 0, 0);
        const float *scale = ot_row_scales(&c, OT_GOT, 0, 0, 0);
        cr_expect(scale[0] == 0 && !memcmp(row, "\0\0\0\0", 4), "a group of zeros has scale 0");
        cr_expect(!memcmp(row + 4, "\0\0\x7e\0", 4), "one element takes the largest code");
        cr_expect(way != 1 || (scale[3] > 0 && !memcmp(row + 12, "\0\0\0\0", 4)),
                  "1 / scale overflows: codes are 0");
        cr_expect(way != 2 || (row[13] == 0x7e && row[12] < 0x30), "an outlier takes the largest code");
        cr_expect(way != 3 || (row[13] == 0x7e && row[14] == 0x7f && row[12] >= 0x70),
                  "infinity saturates, NaN stays");
        if (way == 0)
            memcpy(first, row, sizeof first);
        cr_expect(!memcmp(row, first, 12) && !memcmp(row + 16, first + 16, 16),
                  "other groups' codes changed");
        ot_free(&c);
    }
    ot_close(&d);
}
