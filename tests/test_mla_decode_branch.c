// SPDX-License-Identifier: Apache-2.0
// Shapes, types, masks; the rest is in the _schedule and _edges files.
#include "optest_mla.h"

#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

// A batch of at most `longest` keys whose number of tokens takes one of the matmul's tiles, so that a shape
// is compiled once: 1, 2 to 3, or more.
static struct ot_batch batch_of_size(struct ot_random *r, int64_t longest, int size)
{
    static const int64_t least[] = { 1, 2, 4 }, most[] = { 1, 3, 20 };
    for (;;) {
        struct ot_batch b = ot_random_batch(r, longest, most[size]);
        if (ot_total(&b) > most[size])
            b.padding = 0;
        if (ot_total(&b) >= least[size])
            return b;
    }
}

static void check_shape(const struct ot_device *d, const struct mla_shape *s, int64_t longest, int size,
                        int variations, struct ot_random *r)
{
    static const int splits[] = { 0, 1, 2, 3, 7, 50 };
    for (int v = 0; v < variations; v++) {
        const struct ot_batch b = batch_of_size(r, longest, size);
        struct ot_call c;
        struct clinfer_mla_decode_branch_params *p = mla_begin(&c, s, &b, r);
        c.pairing = v % 2 ? OT_ONE_ROW : OT_SEPARATE;
        p->num_splits = OT_PICK(r, splits);
        p->max_context = v % 3 ? 0 : ot_longest(&b);
        ot_place(&c);
        mla_check(&c, d);
        ot_free(&c);
    }
}

static struct mla_shape random_shape(struct ot_random *r, int n)
{
    // V is not so small that a row's RMS may be that of a few outputs that cancel.
    static const int64_t heads[] = { 1, 3, 5, 7, 9, 20, 24, 40, 130 },
                         latents[] = { 1, 8, 31, 64, 100, 130, 192, 256, 512 };
    static const int64_t ropes[] = { 0, 2, 14, 16, 34, 64 }, nopes[] = { 0, 3, 16, 33, 64 },
                         values[] = { 7, 20, 16, 33, 64 };
    static const int64_t groups[] = { 1, 16, 20, 32, 128 }, blocks[] = { 1, 7, 16, 64, 128 };
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
    if (s.weights == CLINFER_F8_E4M3 && s.cache == 4) // codes of codes: ties everywhere; types() has them
        s.cache = 3;
    s.rows = OT_PICK(r, blocks);
    s.columns = OT_PICK(r, blocks);
    s.mask = (clinfer_mask) ot_between(r, 0, 4);
    s.window = ot_between(r, 1, 40);
    s.score_mod = (clinfer_score_mod) ot_between(r, 0, 1);
    return s;
}

static void random_shapes(int from, int to)
{
    struct ot_device d = ot_open(0);
    for (int n = from; n < to; n++) {
        if (n % ot_share())
            continue;
        struct ot_random r = ot_seeded("mla decode", n);
        const struct mla_shape s = random_shape(&r, n);
        check_shape(&d, &s, 120, n % 5 == 0 ? 0 : n % 5 == 1 || s.heads > 100 ? 1 : 2, 4, &r);
    }
    ot_close(&d);
}

Test(mla_decode_branch, random_shapes_a)
{
    random_shapes(0, 7);
}
Test(mla_decode_branch, random_shapes_b)
{
    random_shapes(7, 14);
}
Test(mla_decode_branch, random_shapes_c)
{
    random_shapes(14, 20);
}

// Every type of q, gamma, table and weights with every type of the cache, and every one of q with every one
// of weights. A share of them still has every type of each.
static void types(int from, int step)
{
    static const clinfer_dtype weights[] = { CLINFER_F32, CLINFER_F16, CLINFER_BF16, CLINFER_F8_E4M3 };
    struct ot_device d = ot_open(0);
    for (int n = from; n < 4 * OT_CACHES; n += step) {
        const int cache = n / 4, i = n % 4, share = ot_share() < 4 ? ot_share() : 4;
        if ((cache + (share - 1) * i) % share != 0)
            continue;
        struct ot_random r = ot_seeded("mla decode types", n);
        struct mla_shape s = mla_plain;
        s.cache = cache;
        s.group = 10;
        s.weights = weights[i];
        s.q = ot_floats[(i + cache) % 3];
        s.gamma = ot_floats[(i + cache + 1) % 3];
        s.freqs = ot_floats[i % 3];
        check_shape(&d, &s, 80, 2, 2, &r);
    }
    ot_close(&d);
}

Test(mla_decode_branch, types_a)
{
    types(0, 2);
}
Test(mla_decode_branch, types_b)
{
    types(1, 2);
}

// Every mask with windows below, at and past a tile and a page, with and without ALiBi; of a share, with one.
static void masks(clinfer_score_mod mod)
{
    static const int64_t windows[] = { 1, 2, 7, 8, 31, 32, 33, 64, 1000 };
    struct ot_device d = ot_open(0);
    for (int mask = 0; mask < 5; mask++)
        for (int64_t w = 0; (ot_share() == 1 || mask % 2 == (int) mod) && w < OT_COUNT(windows); w++) {
            struct ot_random r = ot_seeded("mla decode masks", mask * 100 + w);
            struct mla_shape s = mla_plain;
            s.heads = 3; // no power of two: ALiBi's second series
            s.mask = (clinfer_mask) mask;
            s.window = mask < 2 ? -1 : windows[w];
            s.score_mod = mod;
            check_shape(&d, &s, 150, 2, mask < 2 ? 1 : 3, &r);
        }
    ot_close(&d);
}

Test(mla_decode_branch, masks)
{
    masks(CLINFER_NO_POS);
}
Test(mla_decode_branch, masks_alibi)
{
    masks(CLINFER_ALIBI);
}

// A group of q past 1200 saturates; one of zeros stays zero. The reference has the bound; here the values are
// checked by hand: N = 1, so that q_lat is code * scale * weight.
Test(mla_decode_branch, quantised_query)
{
    static const double q[] = { 0, 1, 1200, 1500, -6e4, 1e-40 };
    struct ot_device d = ot_open(0);
    struct mla_shape s = mla_plain;
    s.nope = 1;
    s.weights = CLINFER_F8_E4M3;
    const struct ot_batch b = ot_one_request(20, OT_COUNT(q), 8);
    struct ot_random r = ot_seeded("mla decode bound", 0);
    struct ot_call c;
    struct clinfer_mla_decode_branch_params *p = mla_begin(&c, &s, &b, &r);
    p->scale = 1e-3f;
    ot_place(&c);
    for (int64_t t = 0; t < OT_COUNT(q); t++)
        for (int64_t h = 0; h < s.heads; h++)
            ot_set(&c, "q", t, h, 0, q[t]);
    mla_check(&c, &d);
    ot_free(&c);

    // Past the bound q counts as 1200: the same output, bit for bit.
    double out[2];
    for (int i = 0; i < 2; i++) {
        mla_begin(&c, &s, &b, &r)->scale = 1e-3f;
        ot_place(&c);
        for (int64_t t = 0; t < OT_COUNT(q); t++)
            ot_set(&c, "q", t, 0, 0, i ? 1200 : 5000);
        mla_check(&c, &d);
        out[i] = ot_get(&c, "output", OT_GOT, 2, 0, 0);
        ot_free(&c);
    }
    cr_expect(out[0] == out[1] && out[0] != 0, "%g, %g", out[0], out[1]);
    ot_close(&d);
}

// raw of one token that sees itself alone: its row, whose gamma is `g`, but for dim 0 `first`; w_uv takes dim
// 0.
static double raw_of(const struct ot_device *d, double first, double g)
{
    struct mla_shape s = mla_plain;
    s.q = CLINFER_BF16;
    s.weights = CLINFER_F8_E4M3;
    const struct ot_batch b = ot_one_request(0, 1, 2);
    struct ot_random r = ot_seeded("mla decode raw", 0);
    struct ot_call c;
    mla_begin(&c, &s, &b, &r)->epsilon = 0;
    ot_place(&c);
    for (int64_t k = 0; k < s.latent; k++) {
        ot_set_row(&c, 0, 0, 0, k, 1);
        ot_set(&c, "kv_norm_gamma", k, 0, 0, k ? g : first);
        ot_set(&c, "w_uv", 0, 0, k, k == 0);
    }
    ot_set(&c, "w_uv_scale", 0, 0, 0, 1);
    ot_check(&c, d);
    const double raw = ot_get(&c, "output", OT_GOT, 0, 0, 0);
    ot_free(&c);
    return raw;
}

// raw is rounded to q's type, which makes a little past a tie of fp8 the tie, then quantised with q_nope's
// bound.
Test(mla_decode_branch, quantised_raw)
{
    struct ot_device d = ot_open(0);
    cr_expect_eq(raw_of(&d, 1.0625 + 0x1p-12, 448), 1);
    cr_expect_eq(raw_of(&d, 5000, 5000), 1200);
    ot_close(&d);
}
