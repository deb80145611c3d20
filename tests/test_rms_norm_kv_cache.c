// SPDX-License-Identifier: Apache-2.0
// Shapes and types; values worked out by hand are in the _values file.
#include "optest_norm.h"

#include <criterion/criterion.h>

#include <math.h>

// What gamma does not cover may hold anything, and a row of zeros, or one with NaN, concerns itself only.
static void add_specials(struct ot_call *c, const struct norm_shape *s, struct ot_random *r)
{
    const struct clinfer_rms_norm_kv_cache_params *p = c->params;
    const struct ot_batch *b = &c->batch;
    for (int i = 0; i < b->requests; i++)
        for (int64_t t = 0; t < b->fresh[i]; t++)
            for (int64_t h = 0; h < s->heads; h++) {
                const int64_t kind = ot_between(r, 0, 9), at = ot_between(r, 0, s->head_size - 1);
                const int64_t tail =
                    s->rows == CLINFER_PER_HEAD ? s->gamma_size : s->gamma_size - h * s->head_size;
                for (int64_t d = 0; kind == 0 && d < s->head_size; d++)
                    ot_set_row(c, i, b->cached[i] + t, h, d, 0);
                if (kind == 1)
                    ot_set_row(c, i, b->cached[i] + t, h, at, NAN);
                for (int64_t d = tail < 0 ? 0 : tail; !p->kv.scale_group && d < s->head_size; d++)
                    ot_set_row(c, i, b->cached[i] + t, h, d, NAN);
            }
}

static void check_shape(const struct ot_device *d, const struct norm_shape *s, int variations,
                        struct ot_random *r)
{
    for (int v = 0; v < variations; v++) {
        const struct ot_batch b = ot_random_batch(r, 60, 40);
        struct ot_call c;
        norm_begin(&c, s, &b, r);
        ot_place(&c);
        if (v)
            add_specials(&c, s, r);
        ot_check(&c, d);
        ot_free(&c);
    }
}

static struct norm_shape random_shape(struct ot_random *r)
{
    static const int64_t heads[] = { 1, 2, 3, 5, 7, 8, 9 }, sizes[] = { 1, 3, 15, 16, 40, 64, 72, 100, 128 };
    static const int64_t groups[] = { 1, 16, 20, 32, 128 };
    static const float epsilons[] = { 0, 1e-6f, 1e-5f, 0.5f }, offsets[] = { 0, 1, -0.3f };
    struct norm_shape s = { .heads = OT_PICK(r, heads),
                            .head_size = OT_PICK(r, sizes),
                            .group = OT_PICK(r, groups) };
    s.cache = (int) ot_between(r, 0, OT_CACHES - 1);
    s.gamma = OT_PICK(r, ot_floats);
    s.cast = ot_between(r, 0, 1) ? CLINFER_CAST_THEN_MULTIPLY : CLINFER_MULTIPLY_THEN_CAST;
    s.rows = ot_between(r, 0, 2) ? CLINFER_PER_HEAD : CLINFER_WHOLE_ROW;
    const int64_t most = s.rows == CLINFER_PER_HEAD ? s.head_size : s.heads * s.head_size;
    s.gamma_size = ot_between(r, 0, 1) ? most : ot_between(r, 1, most);
    s.epsilon = OT_PICK(r, epsilons);
    s.offset = OT_PICK(r, offsets);
    return s;
}

static void random_shapes(int from, int to)
{
    struct ot_device d = ot_open(0);
    for (int n = from; n < to; n++) {
        if (n % ot_share())
            continue;
        struct ot_random r = ot_seeded("norm", n);
        const struct norm_shape s = random_shape(&r);
        check_shape(&d, &s, 4, &r);
    }
    ot_close(&d);
}

Test(rms_norm_kv_cache, random_shapes_a)
{
    random_shapes(0, 15);
}
Test(rms_norm_kv_cache, random_shapes_b)
{
    random_shapes(15, 30);
}

// Every type of gamma with every type of the cache.
Test(rms_norm_kv_cache, types)
{
    struct ot_device d = ot_open(0);
    for (int cache = 0; cache < OT_CACHES; cache++)
        for (int i = 0; i < 3; i++) {
            if (!ot_in_share(cache, i, 3))
                continue;
            struct ot_random r = ot_seeded("norm types", cache * 3 + i);
            struct norm_shape s = norm_plain;
            s.gamma_size = (cache + i) % 3 ? 56 : 50;
            s.cache = cache;
            s.gamma = ot_floats[i];
            s.cast = (cache + i) % 2 ? CLINFER_CAST_THEN_MULTIPLY : CLINFER_MULTIPLY_THEN_CAST;
            s.offset = (float) (cache % 2);
            check_shape(&d, &s, 3, &r);
        }
    ot_close(&d);
}

static void begin_plain(struct ot_call *c, const struct ot_batch *b, const struct ot_random *r)
{
    (void) norm_begin(c, &norm_plain, b, r);
}

Test(rms_norm_kv_cache, no_tokens)
{
    ot_check_no_tokens(begin_plain);
}

// Without what some devices lack, and with offsets past 2^32 elements: the same results.
Test(rms_norm_kv_cache, fewer_capabilities)
{
    struct ot_device d =
        ot_open(CLINFER_CAP_DENORMALS | CLINFER_CAP_ROUNDED_DIVIDE | CLINFER_CAP_FMA | CLINFER_CAP_SUBGROUPS);
    for (int cache = 3; cache < OT_CACHES; cache++) {
        struct ot_random r = ot_seeded("norm caps", cache);
        struct norm_shape s = norm_plain;
        s.gamma_size = 50;
        s.cache = cache;
        s.gamma = CLINFER_F16;
        check_shape(&d, &s, 3, &r);
    }
    ot_close(&d);
}

Test(rms_norm_kv_cache, pages_far_apart)
{
    struct ot_device d = ot_open(0);
    struct norm_shape s = norm_plain;
    s.cache = 3;
    const struct ot_batch b = ot_one_request(0, 5, 2);
    struct ot_random r = ot_seeded("norm far", 0);
    struct ot_call c;
    norm_begin(&c, &s, &b, &r);
    ot_check_far(&c, &d);
    ot_free(&c);
    ot_close(&d);
}
