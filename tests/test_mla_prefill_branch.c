// SPDX-License-Identifier: Apache-2.0
// Shapes, types, masks; the rest is in the _chunks and _edges files.
#include "optest_mla.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>

// Prompts of many tokens beside short steps; chunks that end in, at and past a tile and the last key.
static void check_shape(const struct ot_device *d, const struct mla_shape *s, int64_t longest, int64_t tokens,
                        int variations, struct ot_random *r)
{
    static const int64_t chunks[] = { 0, 7, 16, 40, 64, 1000 };
    for (int v = 0; v < variations; v++) {
        struct ot_batch b = ot_random_batch(r, longest, tokens);
        while (ot_share() > 1 && ot_total(&b) <= 2 * b.requests) // these are another program
            b = ot_random_batch(r, longest, tokens);
        struct ot_call c;
        struct clinfer_mla_prefill_branch_params *p = mla_prefill_begin(&c, s, &b, r, OT_PICK(r, chunks));
        c.pairing = v % 2 ? OT_ONE_ROW : OT_SEPARATE;
        p->max_context = v % 3 ? 0 : ot_longest(&b);
        ot_place(&c);
        ot_check(&c, d);
        ot_free(&c);
    }
}

static struct mla_shape random_shape(struct ot_random *r, int n)
{
    static const int64_t heads[] = { 1, 3, 5, 7, 9, 20 }, latents[] = { 8, 31, 64, 100, 130, 192 };
    static const int64_t ropes[] = { 0, 2, 14, 16, 34, 64 }, nopes[] = { 0, 3, 16, 33, 64 },
                         values[] = { 7, 20, 16, 33, 64, 100 };
    static const int64_t groups[] = { 16, 20, 32, 128 }, blocks[] = { 1, 7, 16, 64, 128 };
    static const clinfer_dtype weights[] = { CLINFER_F32, CLINFER_F16, CLINFER_BF16, CLINFER_F8_E4M3,
                                             CLINFER_F8_E4M3 };
    struct mla_shape s = { .heads = heads[n % OT_COUNT(heads)],
                           .nope = OT_PICK(r, nopes),
                           .rope = OT_PICK(r, ropes),
                           .latent = OT_PICK(r, latents) };
    s.value = OT_PICK(r, values);
    s.group = OT_PICK(r, groups);
    s.cache = (int) ot_between(r, 0, OT_CACHES - 1);
    s.q = OT_PICK(r, ot_floats);
    s.gamma = OT_PICK(r, ot_floats);
    s.freqs = OT_PICK(r, ot_floats);
    s.weights = OT_PICK(r, weights);
    s.rows = OT_PICK(r, blocks);
    s.columns = OT_PICK(r, blocks);
    s.mask = (clinfer_mask) ot_between(r, 0, 4);
    s.window = ot_between(r, 1, 60);
    s.score_mod = (clinfer_score_mod) ot_between(r, 0, 1);
    return s;
}

static void random_shapes(const struct ot_device *d)
{
    for (int n = 0; n < 12; n++) {
        struct ot_random r = ot_seeded("mla prefill", n);
        const struct mla_shape s = random_shape(&r, n);
        check_shape(d, &s, 110, n % 3 ? 60 : 150, 3, &r);
    }
}

// Every type of q, gamma, table and weights with every type of the cache.
static void types(const struct ot_device *d)
{
    static const clinfer_dtype weights[] = { CLINFER_F32, CLINFER_F16, CLINFER_BF16, CLINFER_F8_E4M3 };
    for (int n = 0; n < 4 * OT_CACHES; n++) {
        const int cache = n / 4, i = n % 4;
        struct ot_random r = ot_seeded("mla prefill types", n);
        struct mla_shape s = mla_plain;
        s.cache = cache;
        s.group = 10;
        s.value = 16; // a row's RMS is not that of a few outputs that cancel
        s.latent = 40;
        s.weights = weights[i];
        s.q = ot_floats[(i + cache) % 3];
        s.gamma = ot_floats[(i + cache + 1) % 3];
        s.freqs = ot_floats[i % 3];
        check_shape(d, &s, 80, 40, 2, &r);
    }
}

// Below, at and past a chunk, a tile and a page.
static const int64_t windows[] = { 1, 2, 7, 31, 32, 64, 1000 };

static void masks(const struct ot_device *d, clinfer_score_mod mod)
{
    for (int mask = 0; mask < 5; mask++)
        for (int64_t w = 0; w < OT_COUNT(windows); w++) {
            struct ot_random r = ot_seeded("mla prefill masks", mask * 100 + w);
            struct mla_shape s = mla_plain;
            s.heads = 3; // no power of two: ALiBi's second series
            s.mask = (clinfer_mask) mask;
            s.window = mask < 2 ? -1 : windows[w];
            s.score_mod = mod;
            check_shape(d, &s, 150, 80, 2, &r);
        }
}

// Of the scales of rows, with N = 0.
static struct mla_shape quantised_shape(void)
{
    struct mla_shape s = mla_plain;
    s.q = CLINFER_BF16;
    s.nope = 0;
    s.weights = CLINFER_F8_E4M3;
    return s;
}

// Few programs, which between them have every type of each tensor, every mask, and N and R of 0 and odd ones;
// the first is that of quantised_rows.
static void one_of_each(const struct ot_device *d)
{
    static const struct {
        int64_t heads, latent, rope, nope, value;
        clinfer_dtype q, gamma, freqs, weights;
    } shapes[] = { { 0 },
                   { 5, 40, 16, 7, 16, CLINFER_F32, CLINFER_F16, CLINFER_BF16, CLINFER_BF16 },
                   { 1, 64, 0, 33, 33, CLINFER_F16, CLINFER_BF16, CLINFER_F32, CLINFER_F32 },
                   { 7, 31, 34, 3, 16, CLINFER_BF16, CLINFER_F32, CLINFER_F16, CLINFER_F16 },
                   { 3, 50, 14, 16, 17, CLINFER_F32, CLINFER_F16, CLINFER_F32, CLINFER_F8_E4M3 } };
    for (int n = 0; n < OT_CACHES; n++) {
        struct ot_random r = ot_seeded("mla prefill each", n);
        struct mla_shape s = quantised_shape();
        if (n)
            s = (struct mla_shape){ .heads = shapes[n].heads,
                                    .latent = shapes[n].latent,
                                    .rope = shapes[n].rope,
                                    .nope = shapes[n].nope,
                                    .value = shapes[n].value,
                                    .q = shapes[n].q,
                                    .gamma = shapes[n].gamma,
                                    .freqs = shapes[n].freqs,
                                    .weights = shapes[n].weights,
                                    .rows = 7,
                                    .columns = 16,
                                    .cache = n,
                                    .group = 10,
                                    .mask = (clinfer_mask) ((mla_plain.mask + n) % 5),
                                    .score_mod = (clinfer_score_mod) (n % 2) };
        for (int64_t w = 0; w < (s.mask < 2 ? 2 : OT_COUNT(windows)); w++) {
            s.window = s.mask < 2 ? -1 : windows[w];
            check_shape(d, &s, 150, 80, 1, &r);
        }
    }
}

// The programs of a share are few, for they take long to compile.
Test(mla_prefill_branch, random_shapes)
{
    struct ot_device d = ot_open(0);
    one_of_each(&d);
    if (ot_share() == 1) {
        random_shapes(&d);
        types(&d);
        masks(&d, CLINFER_NO_POS);
        masks(&d, CLINFER_ALIBI);
    }
    ot_close(&d);
}

// Rows are quantised as the cache has them, ties and what is past them; past 1200 they saturate. N = 0, and
// V has an element that takes dim 0.
Test(mla_prefill_branch, quantised_rows)
{
    static const struct {
        double first, want;
    } rows[] = { { 1.0625, 1 }, { 1.0625 + 0x1p-12, 1.125 }, { 5000, 1200 } };
    struct ot_device d = ot_open(0);
    for (int i = 0; i < OT_COUNT(rows); i++) {
        const struct mla_shape s = quantised_shape();
        const struct ot_batch b = ot_one_request(0, 3, 2); // of few tokens the group set has another program
        struct ot_call c;
        struct ot_random r = ot_seeded("mla prefill bound", 0);
        mla_prefill_begin(&c, &s, &b, &r, 0)->epsilon = 0;
        ot_place(&c);
        for (int64_t k = 0; k < s.latent; k++) {
            for (int64_t pos = 0; pos < 3; pos++)
                ot_set_row(&c, 0, pos, 0, k, 1);
            ot_set(&c, "kv_norm_gamma", k, 0, 0, k ? (i == 2 ? 5000 : 448) : rows[i].first);
            ot_set(&c, "w_uv", 0, 0, k, k == 0);
        }
        ot_set(&c, "w_uv_scale", 0, 0, 0, 1);
        ot_check(&c, &d);
        cr_expect_eq(ot_get(&c, "output", OT_GOT, 0, 0, 0), rows[i].want);
        ot_free(&c);
    }
    ot_close(&d);
}
