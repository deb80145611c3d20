// SPDX-License-Identifier: Apache-2.0
#include "optest.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

struct shape {
    int64_t heads, latent, rope, group;
    int cache;
    clinfer_dtype q, out, input, gamma, freqs;
};

static const struct shape plain = {
    .heads = 2,
    .latent = 40,
    .rope = 12,
    .group = 24,
    .q = CLINFER_F32,
    .out = CLINFER_F32,
    .input = CLINFER_F32,
    .gamma = CLINFER_F32,
    .freqs = CLINFER_F32,
};

static struct clinfer_mla_fused_rope_rmsnorm_params *
begin(struct ot_call *c, const struct shape *s, const struct ot_batch *b, const struct ot_random *r)
{
    struct clinfer_mla_fused_rope_rmsnorm_params *p = ot_begin(c, "mla_fused_rope_rmsnorm", b, r);
    p->q_rope = clinfer_tensor_3d(NULL, s->q, ot_total(b), s->heads, s->rope);
    p->q_rope_output = clinfer_tensor_3d(NULL, s->out, ot_total(b), s->heads, s->rope);
    p->kv_input = clinfer_tensor_2d(NULL, s->input, ot_total(b), s->latent + s->rope);
    p->gamma = clinfer_tensor_1d(NULL, s->gamma, s->latent);
    p->freqs_cis = clinfer_tensor_2d(NULL, s->freqs, ot_longest(b), s->rope);
    p->kv.planes = 1;
    p->kv.num_heads = 1;
    p->kv.head_size = s->latent + s->rope;
    p->epsilon = 1e-6f;
    ot_cache_type(&p->kv, s->cache, s->group);
    char text[100];
    ot_describe_cache(&p->kv, text, sizeof text);
    (void) snprintf(c->note, sizeof c->note,
                    "H=%lld C=%lld R=%lld q=%s out=%s input=%s gamma=%s freqs=%s, %s", (long long) s->heads,
                    (long long) s->latent, (long long) s->rope, clinfer_dtype_str(s->q),
                    clinfer_dtype_str(s->out), clinfer_dtype_str(s->input), clinfer_dtype_str(s->gamma),
                    clinfer_dtype_str(s->freqs), text);
    return p;
}

// NaN in one token's row spoils that row only; infinities in the rope part and large values saturate in fp8.
static void add_specials(struct ot_call *c, const struct shape *s, struct ot_random *r)
{
    static const double special[] = { NAN, HUGE_VAL, -HUGE_VAL, 0.0, -0.0, 600, -2000, 1e-40 };
    const int64_t used = ot_used(&c->batch);
    for (int i = 0; i < 8; i++) {
        if (s->rope) {
            ot_set(c, "q_rope", ot_between(r, 0, used - 1), ot_between(r, 0, s->heads - 1),
                   ot_between(r, 0, s->rope - 1), OT_PICK(r, special));
            ot_set(c, "kv_input", ot_between(r, 0, used - 1), s->latent + ot_between(r, 0, s->rope - 1), 0,
                   OT_PICK(r, special));
        }
        ot_set(c, "kv_input", ot_between(r, 0, used - 1), ot_between(r, 0, s->latent - 1), 0, i ? 1000 : NAN);
    }
}

static void check_shape(const struct ot_device *d, const struct shape *s, int variations, struct ot_random *r)
{
    static const enum ot_pairing pairings[] = { OT_SEPARATE, OT_ONE_ROW, OT_IN_PLACE };
    for (int v = 0; v < variations; v++) {
        const struct ot_batch b = ot_random_batch(r, 60, 40);
        struct ot_call c;
        begin(&c, s, &b, r);
        c.pairing = pairings[v % 3];
        ot_place(&c);
        if (v)
            add_specials(&c, s, r);
        ot_check(&c, d);
        ot_free(&c);
    }
}

static clinfer_dtype out_type(int i)
{
    return i < 3 ? ot_floats[i] : CLINFER_F8_E4M3;
}

static struct shape random_shape(struct ot_random *r)
{
    static const int64_t heads[] = { 1, 3, 5, 7, 9, 20, 24, 40 },
                         latents[] = { 1, 8, 16, 31, 64, 100, 130, 512 };
    static const int64_t ropes[] = { 0, 2, 14, 16, 30, 34, 64 }, groups[] = { 16, 20, 32, 128, 1000 };
    struct shape s = { .heads = OT_PICK(r, heads),
                       .latent = OT_PICK(r, latents),
                       .rope = OT_PICK(r, ropes),
                       .group = OT_PICK(r, groups) };
    s.cache = (int) ot_between(r, 0, OT_CACHES - 1);
    s.q = OT_PICK(r, ot_floats);
    s.out = ot_between(r, 0, 1) ? s.q : out_type((int) ot_between(r, 0, 3));
    s.input = OT_PICK(r, ot_floats);
    s.gamma = OT_PICK(r, ot_floats);
    s.freqs = OT_PICK(r, ot_floats);
    return s;
}

static void random_shapes(int from, int to)
{
    struct ot_device d = ot_open(0);
    for (int n = from; n < to; n++) {
        if (n % ot_share())
            continue;
        struct ot_random r = ot_seeded("mla store", n);
        const struct shape s = random_shape(&r);
        check_shape(&d, &s, 4, &r);
    }
    ot_close(&d);
}

Test(mla_fused_rope_rmsnorm, random_shapes_a)
{
    random_shapes(0, 10);
}
Test(mla_fused_rope_rmsnorm, random_shapes_b)
{
    random_shapes(10, 20);
}

// Every type of each tensor with every type of the cache.
static void types(int first)
{
    struct ot_device d = ot_open(0);
    for (int cache = first; cache < OT_CACHES; cache += 2)
        for (int i = 0; i < 4; i++) {
            if (!ot_in_share(cache, i, 4))
                continue;
            struct ot_random r = ot_seeded("mla store types", cache * 4 + i);
            struct shape s = plain;
            s.cache = cache;
            s.q = ot_floats[(i + cache) % 3];
            s.out = out_type(i);
            s.input = ot_floats[(i + 2 * cache) % 3];
            s.gamma = ot_floats[(i + cache + 1) % 3];
            s.freqs = ot_floats[i % 3];
            check_shape(&d, &s, 3, &r);
        }
    ot_close(&d);
}

Test(mla_fused_rope_rmsnorm, types_a)
{
    types(0);
}
Test(mla_fused_rope_rmsnorm, types_b)
{
    types(1);
}

// The input stands outside the cache, so a second call on the first one's result changes nothing.
Test(mla_fused_rope_rmsnorm, idempotent)
{
    struct ot_device d = ot_open(0);
    for (int cache = 2; cache < OT_CACHES; cache++) {
        const struct ot_batch b = ot_one_request(5, 9, 4);
        struct shape s = plain;
        s.cache = cache;
        s.q = s.input = s.gamma = CLINFER_BF16;
        s.out = CLINFER_F8_E4M3;
        struct ot_random r = ot_seeded("mla store twice", cache);
        struct ot_call c;
        begin(&c, &s, &b, &r);
        ot_place(&c);
        ot_check(&c, &d);
        for (int i = 0; i < c.num_memories; i++)
            memcpy(c.memory[i].initial, c.memory[i].got, c.memory[i].size);
        ot_run(&c, &d);
        ot_unchanged(&c);
        ot_free(&c);
    }
    ot_close(&d);
}

// Groups of the rope part, which no norm ties together: four ways to spoil one, all others bit-equal.
static void set_groups(struct ot_call *c, int64_t latent, int way)
{
    static const double spoilt[4][4] = {
        { 1, 2, 3, 4 }, { 1e-40, -1e-40, 0, 5e-41 }, { 1, 3e5, 1, 1 }, { 1, -HUGE_VAL, NAN, 2 }
    };
    for (int64_t k = 0; k < 16; k++) {
        const int64_t g = k / 4;
        const double x = g == 0   ? 0
                         : g == 1 ? (k % 4 == 2 ? -7 : 0)
                         : g == 2 ? spoilt[way][k % 4]
                                  : (double) k * 1.37;
        ot_set(c, "kv_input", 0, latent + k, 0, x);
    }
    for (int64_t k = 0; k < 16; k++) // no rotation
        ot_set(c, "freqs_cis", c->batch.cached[0], k, 0, k % 2 == 0);
}

static void expect_groups(const struct ot_call *c, int64_t latent, int way, unsigned char *first)
{
    const unsigned char *row = ot_row(c, OT_GOT, 0, c->batch.cached[0], 0) + latent;
    const float *scale = ot_row_scales(c, OT_GOT, 0, c->batch.cached[0], 0) + latent / 4;
    cr_expect(scale[0] == 0 && !memcmp(row, "\0\0\0\0", 4), "a group of zeros has scale 0");
    cr_expect(scale[1] == 7.0f / 448 && !memcmp(row + 4, "\0\0\xfe\0", 4),
              "one element takes the largest code");
    cr_expect(way != 1 || (scale[2] == 1e-40f / 448 && !memcmp(row + 8, "\0\0\0\0", 4)),
              "1 / scale overflows: codes are 0");
    cr_expect(way != 2 || (scale[2] == 3e5f / 448 && row[9] == 0x7e && row[8] == 1),
              "an outlier takes the largest code");
    // Infinity times a sine of 0 is NaN for the other half of its pair: nothing finite is left.
    cr_expect(way != 3 ||
                  (scale[2] == 0 && row[9] == 0xfe && (row[8] & 0x7f) == 0x7f && (row[10] & 0x7f) == 0x7f),
              "infinity saturates, NaN stays: %02x %02x %02x, scale %g", row[8], row[9], row[10],
              (double) scale[2]);
    if (way == 0)
        memcpy(first, row - latent, 24);
    cr_expect(!memcmp(row - latent, first, (size_t) latent + 8) && !memcmp(row + 12, first + latent + 12, 4),
              "other groups' codes changed");
}

Test(mla_fused_rope_rmsnorm, groups)
{
    struct ot_device d = ot_open(0);
    unsigned char first[24];
    for (int way = 0; way < 4; way++) {
        const struct ot_batch b = ot_one_request(3, 1, 2);
        struct shape s = plain;
        s.latent = 8;
        s.rope = 16;
        s.group = 4;
        s.cache = 4;
        struct ot_random r = ot_seeded("mla store groups", 0);
        struct ot_call c;
        begin(&c, &s, &b, &r);
        ot_place(&c);
        set_groups(&c, s.latent, way);
        ot_check(&c, &d);
        expect_groups(&c, s.latent, way, first);
        ot_free(&c);
    }
    ot_close(&d);
}

// A rotated value a little past a tie of fp8: rounded to bf16 first it is the tie, and goes to the even
// side, 1.
Test(mla_fused_rope_rmsnorm, rounded_to_the_input_first)
{
    struct ot_device d = ot_open(0);
    const struct ot_batch b = ot_one_request(3, 1, 2);
    struct shape s = plain;
    s.latent = 8;
    s.rope = 4;
    s.cache = 3;
    s.q = s.input = CLINFER_BF16;
    s.out = CLINFER_F8_E4M3;
    struct ot_random r = ot_seeded("mla store tie", 0);
    struct ot_call c;
    begin(&c, &s, &b, &r);
    ot_place(&c);
    for (int64_t k = 0; k < 4; k++) {
        ot_set(&c, "q_rope", 0, 0, k, 1 - k % 2);
        ot_set(&c, "kv_input", 0, 8 + k, 0, 1 - k % 2);
        ot_set(&c, "freqs_cis", 3, k, 0, k % 2 ? 0 : 1.0625 + 0x1p-12);
    }
    ot_check(&c, &d);
    cr_expect_eq(ot_get(&c, "q_rope_output", OT_GOT, 0, 0, 0), 1);
    cr_expect_eq(ot_get_row(&c, OT_GOT, 0, 3, 0, 8), 1);
    ot_free(&c);
    ot_close(&d);
}

static void begin_plain(struct ot_call *c, const struct ot_batch *b, const struct ot_random *r)
{
    (void) begin(c, &plain, b, r);
}

Test(mla_fused_rope_rmsnorm, no_tokens)
{
    ot_check_no_tokens(begin_plain);
}

// Without what some devices lack, and with offsets past 2^32 elements: the same results.
Test(mla_fused_rope_rmsnorm, fewer_capabilities)
{
    struct ot_device d =
        ot_open(CLINFER_CAP_DENORMALS | CLINFER_CAP_ROUNDED_DIVIDE | CLINFER_CAP_FMA | CLINFER_CAP_SUBGROUPS);
    for (int cache = 3; cache < OT_CACHES; cache++) {
        struct ot_random r = ot_seeded("mla store caps", cache);
        struct shape s = plain;
        s.cache = cache;
        s.q = s.input = s.gamma = CLINFER_F16;
        s.out = CLINFER_F8_E4M3;
        check_shape(&d, &s, 3, &r);
    }
    ot_close(&d);
}

Test(mla_fused_rope_rmsnorm, pages_far_apart)
{
    struct ot_device d = ot_open(0);
    struct shape s = plain;
    s.cache = 3;
    const struct ot_batch b = ot_one_request(0, 5, 2);
    struct ot_random r = ot_seeded("mla store far", 0);
    struct ot_call c;
    begin(&c, &s, &b, &r);
    ot_check_far(&c, &d);
    ot_free(&c);
    ot_close(&d);
}
