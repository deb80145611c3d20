// SPDX-License-Identifier: Apache-2.0
// Shapes, types, masks; the rest is in the _schedule and _edges files.
#include "optest_attention.h"

#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

static void check_shape(const struct ot_device *d, const struct attention_shape *s, int64_t longest,
                        int64_t tokens, int variations, struct ot_random *r)
{
    static const int splits[] = { 0, 1, 2, 3, 7, 50 };
    for (int v = 0; v < variations; v++) {
        const struct ot_batch b = ot_random_batch(r, longest, tokens);
        struct ot_call c;
        struct clinfer_paged_attention_params *p = attention_begin(&c, s, &b, r);
        c.pairing = v % 2 ? OT_ONE_ROW : OT_SEPARATE;
        p->num_splits = OT_PICK(r, splits);
        p->max_context = v % 3 ? 0 : ot_longest(&b);
        ot_place(&c);
        ot_check(&c, d);
        ot_free(&c);
    }
}

static struct attention_shape random_shape(struct ot_random *r, int n)
{
    // Query heads and how many of them share a KV head.
    static const int64_t heads[][2] = { { 1, 1 },  { 3, 1 },  { 5, 5 },  { 7, 7 },  { 9, 3 },
                                        { 20, 5 }, { 24, 3 }, { 40, 8 }, { 16, 8 }, { 130, 130 } };
    static const int64_t sizes[] = { 8, 20, 31, 40, 64, 72, 96, 128, 200 }, groups[] = { 1, 5, 16, 32, 128 };
    struct attention_shape s = { .heads = heads[n % OT_COUNT(heads)][0], .head_size = OT_PICK(r, sizes) };
    s.kv_heads = s.heads / heads[n % OT_COUNT(heads)][1];
    s.group = OT_PICK(r, groups);
    s.cache = (int) ot_between(r, 0, OT_CACHES - 1);
    if (n % 2) {
        s.v_size = OT_PICK(r, sizes);
        s.v_group = OT_PICK(r, groups);
        s.v_cache = (int) ot_between(r, 0, OT_CACHES - 1);
    }
    s.q = n % 5 == 4 ? CLINFER_F8_E4M3 : OT_PICK(r, ot_floats);
    s.mask = (clinfer_mask) ot_between(r, 0, 4);
    s.window = ot_between(r, 1, 100);
    s.score_mod = (clinfer_score_mod) ot_between(r, 0, 1);
    s.softcap = ot_between(r, 0, 2) ? 0 : 0.5 + (double) ot_between(r, 0, 20);
    s.sinks = ot_between(r, 0, 1);
    s.no_lse = ot_between(r, 0, 3) == 0;
    return s;
}

static void random_shapes(int from, int to)
{
    struct ot_device d = ot_open(0);
    for (int n = from; n < to; n++) {
        if (n % ot_share())
            continue;
        struct ot_random r = ot_seeded("attention", n);
        const struct attention_shape s = random_shape(&r, n);
        check_shape(&d, &s, 200, s.heads > 100 ? 3 : 50, 4, &r);
    }
    ot_close(&d);
}

Test(paged_attention, random_shapes_a)
{
    random_shapes(0, 10);
}
Test(paged_attention, random_shapes_b)
{
    random_shapes(10, 20);
}

// Every type of q with every type of K, and every one of V with every one of K; a share has every type of
// each.
Test(paged_attention, types)
{
    static const clinfer_dtype q[] = { CLINFER_F32, CLINFER_F16, CLINFER_BF16, CLINFER_F8_E4M3 };
    struct ot_device d = ot_open(0);
    for (int n = 0; n < OT_CACHES * OT_CACHES; n++) {
        const int cache = n % OT_CACHES, v_cache = n / OT_CACHES;
        if ((cache + v_cache) % 2 || !ot_in_share(cache, v_cache, OT_CACHES))
            continue;
        struct ot_random r = ot_seeded("attention types", n);
        struct attention_shape s = attention_plain;
        s.cache = cache;
        s.v_size = 24;
        s.v_group = 10;
        s.v_cache = v_cache;
        s.q = q[(cache + 2 * v_cache) % 4];
        check_shape(&d, &s, 100, 20, 1, &r);
    }
    ot_close(&d);
}

// Every mask with windows below, at and past a tile and a page, with every other option; of a share, some.
static void masks(bool more)
{
    static const int64_t windows[] = { 1, 2, 7, 8, 31, 32, 33, 63, 64, 65, 1000 };
    struct ot_device d = ot_open(0);
    for (int mask = 0; mask < 5; mask++)
        for (int64_t w = 0; (ot_share() == 1 || mask % 2 == more) && w < OT_COUNT(windows); w++) {
            struct ot_random r = ot_seeded("attention masks", mask * 100 + w);
            struct attention_shape s = attention_plain;
            s.heads = 6; // no power of two: ALiBi's second series
            s.mask = (clinfer_mask) mask;
            s.window = mask < 2 ? -1 : windows[w];
            if (more) {
                s.score_mod = CLINFER_ALIBI;
                s.softcap = 3;
                s.sinks = true;
            }
            check_shape(&d, &s, 250, 60, mask < 2 ? 1 : 3, &r);
        }
    ot_close(&d);
}

Test(paged_attention, masks)
{
    masks(false);
}
Test(paged_attention, masks_and_more)
{
    masks(true);
}

// Scores from far below the cap to far past it, where it saturates, each checked through lse of one key.
Test(paged_attention, softcap)
{
    static const double scores[] = { 1e-6, 0.01, 0.7, 2.9, 3.1, 12, 100, 1e6, -1e-6, -0.7, -50, 0 };
    struct ot_device d = ot_open(0);
    struct attention_shape s = attention_plain;
    s.heads = s.kv_heads = 1;
    s.softcap = 12;
    for (int i = 0; i < OT_COUNT(scores); i++) {
        const struct ot_batch b = ot_one_request(0, 1, 4);
        struct ot_call c = attention_prepared(&s, &b, "attention cap");
        attention_params(&c)->scale = 1;
        for (int64_t k = 0; k < s.head_size; k++) {
            ot_set(&c, "q", 0, 0, k, k == 3 ? scores[i] : 0);
            ot_set_row(&c, 0, 0, 0, k, 1);
        }
        ot_check(&c, &d);
        const double want = 12 * tanh((double) (float) scores[i] / 12);
        cr_expect_float_eq(ot_get(&c, "lse", OT_GOT, 0, 0, 0), want, 1e-6 * (1e-3 + fabs(want)), "%g: %g",
                           scores[i], ot_get(&c, "lse", OT_GOT, 0, 0, 0));
        ot_free(&c);
    }
    ot_close(&d);
}

// Batches of as many tokens as a tile of them has, one fewer and one more, on all sides of a tile of keys.
Test(paged_attention, around_the_tiles)
{
    static const int64_t tokens[] = { 1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 64, 65 };
    struct ot_device d = ot_open(0);
    for (int i = 0; i < OT_COUNT(tokens); i++) {
        const struct ot_batch b = ot_one_request(64 - i % 3 - tokens[i] / 2 % 32, tokens[i], 16);
        struct ot_call c = attention_prepared(&attention_plain, &b, "attention tiles");
        ot_check(&c, &d);
        ot_free(&c);
    }
    ot_close(&d);
}
