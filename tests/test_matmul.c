// SPDX-License-Identifier: Apache-2.0
#include "optest_matmul.h"

#include <criterion/criterion.h>

#include <string.h>

TestSuite(matmul, .timeout = 300);

// Around the tiles of tokens and of rows, vectors, and the columns that are decoded at a time.
static const int64_t some_tokens[] = { 1, 2, 3, 4, 5, 15, 16, 17, 33 };
static const int64_t some_rows[] = { 1, 3, 6, 7, 8, 15, 16, 17, 49, 97 };
static const int64_t some_columns[] = { 1, 5, 15, 16, 17, 31, 32, 33, 127, 144, 511, 512, 513, 1100 };

// Every type of x with every one of weights, each with some bias, or none, and some tiles; a share has each
// of both.
Test(matmul, types)
{
    static const clinfer_dtype bias[] = { 0, CLINFER_F32, CLINFER_F16, CLINFER_BF16 };
    static const int64_t blocks[] = { 1, 5, 16, 20, 32, 128 };
    struct ot_device d = ot_open(0);
    for (int64_t i = 0; i < 3 * MM_WEIGHTS; i++) {
        struct ot_random r = ot_seeded("matmul types", i);
        struct mm_shape s = { .x = ot_floats[i % 3], .w = mm_weights[i / 3], .bias = bias[i % 4] };
        s.tokens = OT_PICK(&r, some_tokens);
        s.heads = s.bias ? 0 : ot_between(&r, 0, 4);
        s.rows = OT_PICK(&r, some_rows);
        s.columns = OT_PICK(&r, some_columns);
        s.gn = OT_PICK(&r, blocks);
        s.gk = OT_PICK(&r, blocks);
        s.bound = ot_between(&r, 0, 1) ? 1.0f : 0.0f;
        if (ot_share() == 1 || i / 3 % 3 == i % 3)
            mm_check(&s, "matmul types", &d);
    }
    ot_close(&d);
}

// Shapes do not make programs: many of them for each tile.
static void check_shapes(clinfer_dtype x, clinfer_dtype w)
{
    struct ot_device d = ot_open(0);
    for (int64_t t = 0; t < OT_COUNT(some_tokens); t += ot_share() == 1 ? 1 : 4)
        for (int64_t i = 0; i < OT_COUNT(some_columns); i += ot_share() == 1 ? 1 : 3) {
            struct mm_shape s = { .tokens = some_tokens[t], .x = x, .w = w, .gn = 48, .gk = 64 };
            s.columns = some_columns[(i + t) % OT_COUNT(some_columns)];
            s.rows = some_rows[(i + 3 * t) % OT_COUNT(some_rows)];
            s.heads = (i + t) % 4 ? 0 : 1 + i % 3;
            s.bias = s.heads ? 0 : CLINFER_F32;
            mm_check(&s, "matmul shapes", &d);
        }
    ot_close(&d);
}

Test(matmul, shapes_f32)
{
    check_shapes(CLINFER_F32, CLINFER_F32);
}

Test(matmul, shapes_fp8)
{
    check_shapes(CLINFER_BF16, CLINFER_F8_E4M3);
}

Test(matmul, shapes_q8)
{
    check_shapes(CLINFER_F16, CLINFER_I8);
}

// Blocks of any size, wider than the matrix too, and bounds that cut most groups or none.
Test(matmul, fp8_blocks)
{
    static const int64_t sizes[] = { 1, 7, 16, 48, 1000 };
    static const float bounds[] = { 0, 1200, 0.5f };
    struct ot_device d = ot_open(0);
    for (int64_t i = 0; i < OT_COUNT(sizes); i++) {
        struct mm_shape s = { .tokens = i % 2 ? 1 : 6, .rows = 21, .columns = 101, .x = CLINFER_F32 };
        s.w = CLINFER_F8_E4M3;
        s.gk = sizes[i];
        s.gn = sizes[(i + 2) % OT_COUNT(sizes)];
        s.bound = bounds[i % 3];
        if (ot_share() == 1 || i % 2 == 0)
            mm_check(&s, "matmul blocks", &d);
    }
    ot_close(&d);
}

// A bound below what is in x cuts: a value past it saturates at code 448.
Test(matmul, fp8_bound)
{
    const struct mm_shape s = { 1, 0, 1, 4, CLINFER_F32, CLINFER_F8_E4M3, 0, 1, 4, 2 };
    struct ot_device d = ot_open(0);
    struct ot_call c;
    mm_begin(&c, &s, "matmul bound");
    static const double x[] = { 10, -1, 0.5, 0 };
    for (int k = 0; k < 4; k++) {
        ot_set(&c, "x", 0, k, 0, x[k]);
        ot_set(&c, "w", 0, k, 0, k == 0);
    }
    ot_set(&c, "w_scale", 0, 0, 0, 1);
    ot_check(&c, &d);
    cr_expect_float_eq(ot_get(&c, "output", OT_GOT, 0, 0, 0), 2, 1e-6);
    ot_free(&c);
    ot_close(&d);
}

static void expect_same_row(const struct ot_call *a, int64_t at, const struct ot_call *b, int64_t row)
{
    const clinfer_tensor *out = &mm_params(b)->output;
    cr_expect(!memcmp(ot_at(a, "output", OT_GOT, at, 0, 0), ot_at(b, "output", OT_GOT, row, 0, 0),
                      (size_t) out->shape[1] * clinfer_dtype_size(out->dtype)),
              "%s: token %lld has other bits than among %lld", b->note, (long long) row,
              (long long) mm_params(a)->x.shape[0]);
}

// A token has the same bits in any batch.
Test(matmul, same_bits)
{
    static const int64_t tokens[] = { 1, 2, 3, 4, 5, 16 };
    struct ot_device d = ot_open(0);
    for (int64_t i = 0; i < MM_WEIGHTS; i++) {
        struct mm_shape s = { 33, 0, 50, 1077, CLINFER_F32, mm_weights[i], CLINFER_F32, 16, 32, 0 };
        if (ot_share() > 1 && i != 0 && i != MM_WEIGHTS - 1)
            continue;
        struct ot_call all;
        mm_begin(&all, &s, "matmul bits");
        ot_run(&all, &d);
        for (int64_t k = 0; k < OT_COUNT(tokens); k++) {
            struct ot_call c;
            s.tokens = tokens[k];
            mm_begin(&c, &s, "matmul bits");
            ot_run(&c, &d);
            for (int64_t t = 0; t < s.tokens; t++)
                expect_same_row(&all, t, &c, t);
            ot_free(&c);
        }
        ot_free(&all);
    }
    ot_close(&d);
}
