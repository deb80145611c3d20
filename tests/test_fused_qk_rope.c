// SPDX-License-Identifier: Apache-2.0
#include "optest.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

struct shape {
    int64_t heads, kv_heads, q_size, head_size, rope, group;
    int cache, interleaved, ids, sections;
    clinfer_dtype q, freqs;
};

static const struct shape plain = {
    .heads = 2, .kv_heads = 1, .q_size = 8, .head_size = 8, .rope = 8, .q = CLINFER_F32, .freqs = CLINFER_F32
};
static const struct shape medium = {
    .heads = 4, .kv_heads = 2, .q_size = 56, .head_size = 56, .rope = 40, .group = 24
};

static void set_sections(struct clinfer_fused_qk_rope_params *p, int n, struct ot_random *r)
{
    int end = 0;
    p->num_mrope_sections = n;
    for (int i = 0; i < n;
         i++) // odd ends too: both columns of a pair take the even one's; the last may fall short
        p->mrope_section[i] = end += (int) ot_between(r, 1, 1 + 2 * p->freqs_cis.shape[1] / (2 * n));
}

static struct clinfer_fused_qk_rope_params *begin(struct ot_call *c, const struct shape *s,
                                                  const struct ot_batch *b, const struct ot_random *r)
{
    struct clinfer_fused_qk_rope_params *p = ot_begin(c, "fused_qk_rope", b, r);
    p->q_proj = clinfer_tensor_3d(NULL, s->q, ot_total(b), s->heads, s->q_size);
    p->output = p->q_proj;
    p->freqs_cis = clinfer_tensor_2d(NULL, s->freqs, ot_longest(b) + 1, s->rope);
    p->kv.num_heads = s->kv_heads;
    p->kv.head_size = s->head_size;
    p->interleaved = s->interleaved;
    ot_cache_type(&p->kv, s->cache, s->group);
    if (s->ids)
        p->position_ids =
            clinfer_tensor_2d(NULL, CLINFER_U32, s->sections ? s->sections : s->ids, ot_total(b));
    char text[100];
    ot_describe_cache(&p->kv, text, sizeof text);
    (void) snprintf(c->note, sizeof c->note, "H=%lld Q=%lld R=%lld %s q=%s freqs=%s ids=%d sections=%d, %s",
                    (long long) s->heads, (long long) s->q_size, (long long) s->rope,
                    s->interleaved ? "pairs" : "halves", clinfer_dtype_str(s->q), clinfer_dtype_str(s->freqs),
                    s->ids, s->sections, text);
    return p;
}

// Values that arithmetic may spoil, and bits that a copy must keep.
static void add_specials(struct ot_call *c, const struct shape *s, struct ot_random *r)
{
    static const double special[] = { 0.0, -0.0, 1e-40, HUGE_VAL, -HUGE_VAL, NAN, -3e-8 };
    const int64_t first = s->interleaved ? s->q_size - s->rope : 0, tokens = ot_used(&c->batch);
    for (int64_t n = 0; n < 20; n++) {
        const int64_t t = ot_between(r, 0, tokens - 1), h = ot_between(r, 0, s->heads - 1),
                      d = ot_between(r, 0, s->q_size - 1);
        if (d >= first && d < first + s->rope) {
            ot_set(c, "q_proj", t, h, d, OT_PICK(r, special));
        } else {
            const uint64_t bits = ot_bits(r);
            memcpy(ot_at(c, "q_proj", OT_INITIAL, t, h, d), &bits, clinfer_dtype_size(s->q));
        }
    }
}

// A scale is bounded relative to itself, so where a group is one or two elements, which can cancel in a
// rotation, the angles are quarter turns.
static void add_quarter_turns(struct ot_call *c, const struct shape *s, struct ot_random *r)
{
    static const double turn[] = { 1, 0, -1, 0, 1 };
    const struct clinfer_fused_qk_rope_params *p = c->params;
    const int64_t rest = p->kv.scale_group ? s->head_size % p->kv.scale_group : 0;
    if (!p->kv.scale_group || (p->kv.scale_group > 2 && (rest == 0 || rest > 2)))
        return;
    for (int64_t i = 0; i < p->freqs_cis.shape[0]; i++)
        for (int64_t d = 0; d < s->rope; d += 2) {
            const int64_t n = ot_between(r, 0, 3);
            ot_set(c, "freqs_cis", i, d, 0, turn[n]);
            ot_set(c, "freqs_cis", i, d + 1, 0, turn[n + 1]);
        }
}

static void check_shape(const struct ot_device *d, const struct shape *s, int variations, struct ot_random *r)
{
    static const enum ot_pairing pairings[] = { OT_SEPARATE, OT_IN_PLACE, OT_ONE_ROW };
    int sections[CLINFER_MAX_MROPE_SECTIONS];
    for (int v = 0; v < variations; v++) {
        const struct ot_batch b = ot_random_batch(r, 60, 40);
        struct ot_call c;
        struct clinfer_fused_qk_rope_params *p = begin(&c, s, &b, r);
        c.pairing = pairings[(v + s->heads) % 3];
        if (v == 0) {
            set_sections(p, s->sections, r);
            memcpy(sections, p->mrope_section, sizeof sections);
        }
        p->num_mrope_sections = s->sections;
        memcpy(p->mrope_section, sections, sizeof sections);
        ot_place(&c);
        add_specials(&c, s, r);
        add_quarter_turns(&c, s, r);
        ot_check(&c, d);
        ot_free(&c);
    }
}

static struct shape random_shape(struct ot_random *r)
{
    static const int64_t heads[][2] = { { 1, 1 }, { 3, 1 },  { 3, 3 },  { 5, 1 }, { 7, 7 },
                                        { 9, 3 }, { 20, 4 }, { 24, 8 }, { 40, 8 } };
    static const int64_t sizes[] = { 2, 6, 20, 40, 64, 72, 80, 96, 128, 130 };
    static const int64_t groups[] = { 1, 16, 20, 32, 128 };
    const int64_t pick = ot_between(r, 0, OT_COUNT(heads) - 1);
    struct shape s = { .heads = heads[pick][0],
                       .kv_heads = heads[pick][1],
                       .head_size = OT_PICK(r, sizes),
                       .group = OT_PICK(r, groups) };
    s.cache = (int) ot_between(r, 0, OT_CACHES - 1);
    s.q = OT_PICK(r, ot_floats);
    s.freqs = OT_PICK(r, ot_floats);
    s.interleaved = (int) ot_between(r, 0, 1);
    s.q_size = s.interleaved ? OT_PICK(r, sizes) : s.head_size;
    const int64_t most = s.q_size < s.head_size ? s.q_size : s.head_size;
    s.rope = ot_between(r, 0, 5) == 0 ? 0
             : ot_between(r, 0, 1)    ? most / 2 * 2
                                      : ot_between(r, 1, most / 2) * 2;
    s.ids = (int) ot_between(r, 0, 2);
    s.sections = s.ids == 2 && s.rope ? (int) ot_between(r, 1, 8) : 0;
    return s;
}

static void random_shapes(int from, int to)
{
    struct ot_device d = ot_open(0);
    for (int n = from; n < to; n++) {
        if (n % ot_share())
            continue;
        struct ot_random r = ot_seeded("rope", n);
        const struct shape s = random_shape(&r);
        check_shape(&d, &s, 4, &r);
    }
    ot_close(&d);
}

Test(fused_qk_rope, random_shapes_a)
{
    random_shapes(0, 10);
}
Test(fused_qk_rope, random_shapes_b)
{
    random_shapes(10, 20);
}
Test(fused_qk_rope, random_shapes_c)
{
    random_shapes(20, 30);
}

// Every type of q, and of the table, with every type of the cache.
Test(fused_qk_rope, types)
{
    struct ot_device d = ot_open(0);
    for (int cache = 0; cache < OT_CACHES; cache++)
        for (int i = 0; i < 3; i++) {
            if (!ot_in_share(cache, i, 3))
                continue;
            struct ot_random r = ot_seeded("rope types", cache * 3 + i);
            struct shape s = medium;
            s.cache = cache;
            s.interleaved = (cache + i) % 2;
            s.q = ot_floats[i];
            s.freqs = ot_floats[(i + cache) % 3];
            check_shape(&d, &s, 2, &r);
        }
    ot_close(&d);
}

// A unit vector in each pair of one token at a known position; the table holds angles of its own for each
// pair.
static double angle(int64_t pos, int64_t pair)
{
    return (double) pos * pow(500, -(double) pair / 6) + 0.25;
}

static void set_unit_vectors(struct ot_call *c, const struct shape *s, int64_t pos, int part)
{
    const int64_t pairs = s->rope / 2, first = s->interleaved ? s->q_size - s->rope : 0;
    for (int64_t d = 0; d < s->q_size; d++) {
        const bool rotated = d >= first && d < first + s->rope;
        const int64_t i = d - first;
        const double x = !rotated ? 7 : (s->interleaved ? i % 2 : i / pairs) == part;
        ot_set(c, "q_proj", 0, 0, d, x);
        ot_set_row(c, 0, pos, 0, d, x);
    }
    for (int64_t p = 0; p < pairs; p++) {
        ot_set(c, "freqs_cis", pos, 2 * p, 0, cos(angle(pos, p)));
        ot_set(c, "freqs_cis", pos, 2 * p + 1, 0, sin(angle(pos, p)));
    }
}

static void expect_rotated(const struct ot_call *c, const struct shape *s, int64_t pos, int part)
{
    const int64_t pairs = s->rope / 2, first = s->interleaved ? s->q_size - s->rope : 0;
    for (int64_t p = 0; p < pairs; p++) {
        const double a = angle(pos, p), want[2] = { part ? -sin(a) : cos(a), part ? cos(a) : sin(a) };
        for (int half = 0; half < 2; half++) {
            const int64_t d = first + (s->interleaved ? 2 * p + half : p + half * pairs);
            cr_expect_float_eq(ot_get(c, "output", OT_GOT, 0, 0, d), want[half], 2e-7,
                               "%s: q, position %lld, dim %lld", c->note, (long long) pos, (long long) d);
            cr_expect_float_eq(ot_get_row(c, OT_GOT, 0, pos, 0, d), want[half], 2e-7,
                               "%s: k, position %lld, dim %lld", c->note, (long long) pos, (long long) d);
        }
    }
    cr_expect_eq(ot_get(c, "output", OT_GOT, 0, 0, s->interleaved ? 0 : s->q_size - 1), 7);
}

Test(fused_qk_rope, closed_form)
{
    static const int64_t positions[] = { 0, 1, 16, 17, 4095 }; // 16: the first slot of the second page
    struct ot_device d = ot_open(0);
    for (int interleaved = 0; interleaved < 2; interleaved++)
        for (int n = 0; n < OT_COUNT(positions) * 2; n++) {
            const int64_t pos = positions[n / 2];
            const struct ot_batch b = ot_one_request(pos, 1, 16);
            struct shape s = plain;
            s.heads = 1;
            s.q_size = s.head_size = 18;
            s.rope = 12;
            s.interleaved = interleaved;
            struct ot_random r = ot_seeded("rope closed form", n);
            struct ot_call c;
            begin(&c, &s, &b, &r);
            ot_place(&c);
            set_unit_vectors(&c, &s, pos, n % 2);
            ot_check(&c, &d);
            expect_rotated(&c, &s, pos, n % 2);
            ot_free(&c);
        }
    ot_close(&d);
}

// Ties go to even, what is past one goes up, and fp8 saturates: pairs of q and K at chosen cosines and sines.
Test(fused_qk_rope, rounds_and_saturates)
{
    static const double cosine[4] = { 1.0625, 1.1875, 1 + 0x1p-8 + 0x1p-12, 1 };
    struct ot_device d = ot_open(0);
    const struct ot_batch b = ot_one_request(2, 1, 2);
    struct shape s = plain;
    s.interleaved = 1;
    s.cache = 3;
    s.q = CLINFER_BF16;
    struct ot_random r = ot_seeded("rope rounds", 0);
    struct ot_call c;
    begin(&c, &s, &b, &r);
    ot_place(&c);
    for (int64_t k = 0; k < 8; k++) {
        const double x = k >= 6 ? 448 : 1 - k % 2;
        ot_set(&c, "q_proj", 0, 0, k, x);
        ot_set_row(&c, 0, 2, 0, k, x);
        ot_set(&c, "freqs_cis", 2, k, 0, k % 2 ? k == 7 : cosine[k / 2]);
    }
    ot_check(&c, &d);
    cr_expect_eq(ot_get(&c, "output", OT_GOT, 0, 0, 4), 1 + 0x1p-7);
    cr_expect_eq(ot_get_row(&c, OT_GOT, 0, 2, 0, 0), 1);
    cr_expect_eq(ot_get_row(&c, OT_GOT, 0, 2, 0, 2), 1.25);
    cr_expect_eq(ot_get_row(&c, OT_GOT, 0, 2, 0, 7), 448);
    ot_free(&c);
    ot_close(&d);
}

static void check_end(const struct ot_device *d, const struct shape *s, int64_t rows)
{
    const struct ot_batch b = ot_one_request(6, 2, 4);
    struct ot_random r = ot_seeded("rope end", rows);
    struct ot_call c;
    struct clinfer_fused_qk_rope_params *p = begin(&c, s, &b, &r);
    p->freqs_cis.shape[0] = rows;
    p->num_mrope_sections = s->sections;
    for (int i = 0; i < s->sections; i++)
        p->mrope_section[i] = 3 * i + 5;
    ot_place(&c);
    for (int64_t i = 0; s->ids && i < 2; i++) {
        ot_set(&c, "position_ids", 0, i, 0, 1);
        ot_set(&c, "position_ids", s->sections ? 1 : 0, i, 0, (double) (6 + i));
    }
    ot_run(&c, d);
    ot_reference(&c);
    ot_compare(&c);
    cr_expect_eq(c.fault.code, rows == 8 ? CLINFER_FAULT_NONE : CLINFER_FAULT_POSITION);
    if (rows == 7) {
        cr_expect(c.fault.token == 1 && c.fault.value == 7 && !strcmp(c.fault.op, "fused_qk_rope"));
        cr_expect(
            !memcmp(ot_at(&c, "output", OT_GOT, 1, 0, 0), ot_at(&c, "output", OT_INITIAL, 1, 0, 0), 32));
        cr_expect(!memcmp(ot_row(&c, OT_GOT, 0, 7, 0), ot_row(&c, OT_INITIAL, 0, 7, 0), 32));
    }
    ot_free(&c);
}

// The last row of the table serves; the position after it is a fault, and its token stays as it was.
Test(fused_qk_rope, end_of_the_table)
{
    struct ot_device d = ot_open(0);
    for (int n = 0; n < 5; n++) {
        struct shape s = plain;
        s.interleaved = n % 2;
        s.ids = n >= 2;
        s.sections = n == 4 ? 2 : 0; // the last pair takes the row that ends
        check_end(&d, &s, 8);
        check_end(&d, &s, 7);
    }
    ot_close(&d);
}

static void begin_plain(struct ot_call *c, const struct ot_batch *b, const struct ot_random *r)
{
    (void) begin(c, &plain, b, r);
}

Test(fused_qk_rope, no_tokens)
{
    ot_check_no_tokens(begin_plain);
}

// Without what some devices lack, and with offsets past 2^32 elements: the same results.
Test(fused_qk_rope, fewer_capabilities)
{
    struct ot_device d =
        ot_open(CLINFER_CAP_DENORMALS | CLINFER_CAP_ROUNDED_DIVIDE | CLINFER_CAP_FMA | CLINFER_CAP_SUBGROUPS);
    for (int cache = 3; cache < OT_CACHES; cache++) {
        struct ot_random r = ot_seeded("rope caps", cache);
        struct shape s = medium;
        s.cache = cache;
        s.interleaved = cache % 2;
        s.q = CLINFER_F16;
        s.freqs = CLINFER_F32;
        check_shape(&d, &s, 2, &r);
    }
    ot_close(&d);
}

Test(fused_qk_rope, pages_far_apart)
{
    struct ot_device d = ot_open(0);
    struct shape s = plain;
    s.cache = 3;
    const struct ot_batch b = ot_one_request(0, 5, 2);
    struct ot_random r = ot_seeded("rope far", 0);
    struct ot_call c;
    begin(&c, &s, &b, &r);
    ot_check_far(&c, &d);
    ot_free(&c);
    ot_close(&d);
}
