// SPDX-License-Identifier: Apache-2.0
// A store is exact: what the library leaves is what the reference leaves, element by element.
#include "optest.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum v_place { K_ONLY, V_PLANE, OWN_V };

struct shape {
    int64_t heads, head_size, group;
    int cache;
    clinfer_dtype k, v;
    enum v_place place;
    int64_t v_size, v_group; // of a V in a view of its own
    int v_cache;
};
static const struct shape plain = { .heads = 2,
                                    .head_size = 56,
                                    .group = 24,
                                    .k = CLINFER_F32,
                                    .v = CLINFER_F32,
                                    .place = V_PLANE,
                                    .v_size = 40,
                                    .v_group = 16 };

static struct clinfer_kv_store_params *begin(struct ot_call *c, const struct shape *s,
                                             const struct ot_batch *b, const struct ot_random *r)
{
    struct clinfer_kv_store_params *p = ot_begin(c, "kv_store", b, r);
    char text[100], own[100] = "none";
    p->k = clinfer_tensor_3d(NULL, s->k, ot_total(b), s->heads, s->head_size);
    if (s->place != K_ONLY)
        p->v = clinfer_tensor_3d(NULL, s->v, ot_total(b), s->heads,
                                 s->place == OWN_V ? s->v_size : s->head_size);
    p->kv.planes = s->place == V_PLANE ? 2 : 1 + (int) (r->state >> 7 & 1); // a second plane may stay unused
    p->kv.num_heads = s->heads;
    p->kv.head_size = s->head_size;
    ot_cache_type(&p->kv, s->cache, s->group);
    ot_describe_cache(&p->kv, text, sizeof text);
    if (s->place == OWN_V) {
        p->kv_v.head_size = s->v_size;
        ot_cache_type(&p->kv_v, s->v_cache, s->v_group);
        ot_describe_cache(&p->kv_v, own, sizeof own);
    }
    (void) snprintf(c->note, sizeof c->note, "k=%s v=%s, %s, own v: %s", clinfer_dtype_str(s->k),
                    p->v.rank ? clinfer_dtype_str(s->v) : "none", text, own);
    return p;
}

// Rows of any bits at all: every kind of NaN, infinities, subnormals, magnitudes past every type's end.
static void fill_with_bits(struct ot_call *c, const char *tensor, const clinfer_tensor *t,
                           struct ot_random *r)
{
    for (int64_t i = 0; t->rank && i < ot_used(&c->batch); i++)
        for (int64_t j = 0; j < t->shape[1]; j++)
            for (int64_t k = 0; k < t->shape[2]; k++) {
                const uint64_t bits = ot_bits(r);
                memcpy(ot_at(c, tensor, OT_INITIAL, i, j, k), &bits, clinfer_dtype_size(t->dtype));
            }
}

// A cache or its scales, the whole memory: NaN is any NaN, unless rows were only moved.
static void expect_equal(const struct ot_call *c, int tensor, clinfer_dtype type, bool moved)
{
    if (c->of[tensor] < 0)
        return;
    const struct ot_memory *m = &c->memory[c->of[tensor]];
    const size_t size = clinfer_dtype_size(type);
    for (size_t at = 0; at + size <= m->size; at += size)
        if (memcmp(m->got + at, m->ref + at, size)) {
            const double got = ref_load(m->got + at, type, 0), want = ref_load(m->ref + at, type, 0);
            cr_assert(!moved && isnan(got) && isnan(want), "%s: %s: byte %zu: %g, not %g", c->note,
                      c->op->tensors[tensor].name, at, got, want);
        }
}

static void expect_exact(const struct ot_call *c)
{
    const struct clinfer_kv_store_params *p = c->params;
    for (int i = 0; i < c->op->num_tensors; i++) {
        const struct op_tensor *t = &c->op->tensors[i];
        const clinfer_kv_cache *view = (const void *) ((const char *) p + t->offset);
        if (t->place == OP_SCALES)
            expect_equal(c, i, CLINFER_F32, false);
        else if (t->place == OP_BLOCKS)
            expect_equal(c, i, view->dtype,
                         p->k.dtype == view->dtype && (!p->v.rank || p->v.dtype == view->dtype));
    }
}

static void check_shape(const struct ot_device *d, const struct shape *s, int variations, struct ot_random *r)
{
    for (int v = 0; v < variations; v++) {
        const struct ot_batch b = ot_random_batch(r, 60, 40);
        struct ot_call c;
        struct clinfer_kv_store_params *p = begin(&c, s, &b, r);
        ot_place(&c);
        if (v % 2) {
            fill_with_bits(&c, "k", &p->k, r);
            fill_with_bits(&c, "v", &p->v, r);
        }
        ot_check(&c, d);
        expect_exact(&c);
        ot_free(&c);
    }
}

Test(kv_store, random_shapes)
{
    static const int64_t heads[] = { 1, 2, 3, 5, 8, 9, 40 },
                         sizes[] = { 1, 3, 15, 16, 40, 64, 72, 128, 200, 576 },
                         groups[] = { 1, 5, 16, 32, 128, 1000 };
    struct ot_device d = ot_open(0);
    for (int n = 0; n < 10; n++) {
        struct ot_random r = ot_seeded("kv store", n);
        struct shape s = { OT_PICK(&r, heads), OT_PICK(&r, sizes), OT_PICK(&r, groups) };
        s.cache = (int) ot_between(&r, 0, OT_CACHES - 1);
        s.k = OT_PICK(&r, ot_floats);
        s.v = ot_between(&r, 0, 1) ? s.k : OT_PICK(&r, ot_floats);
        s.place = (enum v_place) ot_between(&r, K_ONLY, OWN_V);
        s.v_size = OT_PICK(&r, sizes);
        s.v_group = OT_PICK(&r, groups);
        s.v_cache = (int) ot_between(&r, 0, OT_CACHES - 1);
        check_shape(&d, &s, 4, &r);
    }
    ot_close(&d);
}

// Every type of k and v with every type of the cache: one launch, two, and K alone are the same programs.
Test(kv_store, types)
{
    struct ot_device d = ot_open(0);
    for (int cache = 0; cache < OT_CACHES; cache++)
        for (int i = 0; i < 3; i++) {
            struct ot_random r = ot_seeded("kv store types", cache * 3 + i);
            struct shape s = plain;
            s.cache = cache;
            s.k = s.v = ot_floats[i];
            check_shape(&d, &s, 2, &r);
            s.v = ot_floats[(i + 1) % 3];
            check_shape(&d, &s, 2, &r);
            s.place = K_ONLY;
            check_shape(&d, &s, 1, &r);
        }
    ot_close(&d);
}

// V elsewhere, of another size, type and scales than K; and of K's, which is the same program launched twice.
Test(kv_store, v_of_its_own)
{
    struct ot_device d = ot_open(0);
    for (int cache = 0; cache < OT_CACHES; cache++) {
        struct ot_random r = ot_seeded("kv store own", cache);
        struct shape s = plain;
        s.place = OWN_V;
        s.v_cache = cache;
        check_shape(&d, &s, 2, &r);
    }
    struct ot_random r = ot_seeded("kv store twins", 0);
    struct shape s = plain;
    s.place = OWN_V;
    s.v_size = s.head_size;
    check_shape(&d, &s, 2, &r);
    ot_close(&d);
}

static void begin_row(struct ot_call *c, int cache, int64_t size, int64_t group)
{
    const struct ot_batch b = ot_one_request(3, 1, 2);
    struct ot_random r = ot_seeded("kv store row", 0);
    struct shape s = plain;
    s.heads = 1;
    s.head_size = size;
    s.group = group;
    s.cache = cache;
    begin(c, &s, &b, &r);
    ot_place(c);
}

// Plain fp8: ties to even, saturation at scale 1, NaN stays.
Test(kv_store, saturates)
{
    static const double x[] = { 1.0625,     1.1875, -448,    463,      464,  1e30,
                                -HUGE_VALF, NAN,    0x1p-10, 0x1.8p-9, -0.0, 0x1p-9 };
    static const unsigned char want[] = { 0x38, 0x3a, 0xfe, 0x7e, 0x7e, 0x7e, 0xfe, 0x7f, 0, 2, 0x80, 1 };
    struct ot_device d = ot_open(0);
    struct ot_call c;
    begin_row(&c, 3, OT_COUNT(x), 1);
    for (int i = 0; i < OT_COUNT(x); i++)
        ot_set(&c, "k", 0, 0, i, x[i]);
    ot_check(&c, &d);
    const unsigned char *row = ot_row(&c, OT_GOT, 0, 3, 0);
    for (int i = 0; i < OT_COUNT(x); i++)
        cr_expect((row[i] & (isnan(x[i]) ? 0x7f : 0xff)) == want[i], "%g became %#x, not %#x", x[i], row[i],
                  want[i]);
    ot_free(&c);
    ot_close(&d);
}

// Groups of 4 and a short last one: zeros, one element, too small to invert, an outlier, no finite one, and a
// neighbour that none of them touches.
Test(kv_store, groups)
{
    static const double x[] = { 0,     0, 0,   -0.0, 0, 0,   -7,        0,          1e-40, -1e-40, 0,
                                5e-41, 1, 3e5, 1,    1, NAN, HUGE_VALF, -HUGE_VALF, NAN,   896,    448 };
    static const float scales[] = { 0, 7.0f / 448, 1e-40f / 448, 3e5f / 448, 0, 2 };
    static const unsigned char want[] = { 0, 0, 0,    0, 0, 0,    0xfe, 0,    0,    0,    0,
                                          0, 1, 0x7e, 1, 1, 0x7f, 0x7e, 0xfe, 0x7f, 0x7e, 0x76 };
    struct ot_device d = ot_open(0);
    struct ot_call c;
    begin_row(&c, 4, OT_COUNT(x), 4);
    for (int i = 0; i < OT_COUNT(x); i++)
        ot_set(&c, "k", 0, 0, i, x[i]);
    ot_check(&c, &d);
    expect_exact(&c);
    const unsigned char *row = ot_row(&c, OT_GOT, 0, 3, 0);
    const float *scale = ot_row_scales(&c, OT_GOT, 0, 3, 0);
    for (int i = 0; i < OT_COUNT(x); i++)
        cr_expect((row[i] & (isnan(x[i]) ? 0x7f : 0xff)) == want[i], "%g became %#x, not %#x", x[i], row[i],
                  want[i]);
    for (int g = 0; g < OT_COUNT(scales); g++)
        cr_expect(scale[g] == scales[g], "scale %d is %g, not %g", g, (double) scale[g], (double) scales[g]);
    ot_free(&c);
    ot_close(&d);
}

static void begin_plain(struct ot_call *c, const struct ot_batch *b, const struct ot_random *r)
{
    begin(c, &plain, b, r);
}

Test(kv_store, no_tokens)
{
    ot_check_no_tokens(begin_plain);
}

// Without what some devices lack, and with offsets past 2^32 elements: the same results.
Test(kv_store, fewer_capabilities)
{
    struct ot_device d = ot_open(CLINFER_CAP_DENORMALS | CLINFER_CAP_ROUNDED_DIVIDE | CLINFER_CAP_FMA);
    for (int cache = 3; cache < OT_CACHES; cache++) {
        struct ot_random r = ot_seeded("kv store caps", cache);
        struct shape s = plain;
        s.cache = cache;
        s.k = s.v = CLINFER_BF16;
        check_shape(&d, &s, 1,
                    &r); // of ordinary values: the division falls back on the device's own at the ends
    }
    ot_close(&d);
}

Test(kv_store, pages_far_apart)
{
    struct ot_device d = ot_open(0);
    struct shape s = plain;
    s.cache = 3;
    const struct ot_batch b = ot_one_request(0, 5, 2);
    struct ot_random r = ot_seeded("kv store far", 0);
    struct ot_call c;
    begin(&c, &s, &b, &r);
    ot_check_far(&c, &d);
    ot_free(&c);
    ot_close(&d);
}
