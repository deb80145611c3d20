// SPDX-License-Identifier: Apache-2.0
#include "optest_attention.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

const struct attention_shape attention_plain = {
    .heads = 4, .kv_heads = 2, .head_size = 20, .group = 8, .q = CLINFER_F32
};

const struct ot_batch attention_mixed = { .requests = 5,
                                          .cached = { 300, 0, 17, 1000, 95 },
                                          .fresh = { 1, 3, 0, 2, 40 },
                                          .padding = 1,
                                          .page_size = 8,
                                          .layers = 2,
                                          .layer = 1 };

static void note(struct ot_call *c, const struct attention_shape *s,
                 const struct clinfer_paged_attention_params *p)
{
    char text[100], own[100] = "none";
    ot_describe_cache(&p->kv, text, sizeof text);
    if (s->v_size)
        ot_describe_cache(&p->kv_v, own, sizeof own);
    (void) snprintf(c->note, sizeof c->note,
                    "H=%lld q=%s mask=%d W=%lld mod=%d cap=%g sinks=%d T=%lld, %s, own v: %s",
                    (long long) s->heads, clinfer_dtype_str(s->q), (int) s->mask, (long long) s->window,
                    (int) s->score_mod, s->softcap, s->sinks, (long long) ot_total(&c->batch), text, own);
}

struct clinfer_paged_attention_params *attention_begin(struct ot_call *c, const struct attention_shape *s,
                                                       const struct ot_batch *b, const struct ot_random *r)
{
    struct clinfer_paged_attention_params *p = ot_begin(c, "paged_attention", b, r);
    const bool fp8 = s->q == CLINFER_F8_E4M3;
    p->q = clinfer_tensor_3d(NULL, s->q, ot_total(b), s->heads, s->head_size);
    p->output = clinfer_tensor_3d(NULL, fp8 ? CLINFER_BF16 : s->q, ot_total(b), s->heads,
                                  s->v_size ? s->v_size : s->head_size);
    if (s->sinks)
        p->sinks = clinfer_tensor_1d(NULL, CLINFER_F32, s->heads);
    if (!s->no_lse)
        p->lse = clinfer_tensor_2d(NULL, CLINFER_F32, ot_total(b), s->heads);
    p->kv.planes = s->v_size ? 1 : 2;
    p->kv.num_heads = s->kv_heads;
    p->kv.head_size = s->head_size;
    ot_cache_type(&p->kv, s->cache, s->group);
    if (s->v_size) {
        p->kv_v.head_size = s->v_size;
        ot_cache_type(&p->kv_v, s->v_cache, s->v_group);
    }
    p->scale = (float) (1 / sqrt((double) s->head_size)) / (fp8 ? 60 : 1); // q is filled with codes
    p->mask = s->mask;
    p->local_window_size = s->window;
    p->score_mod = s->score_mod;
    p->softcap = (float) s->softcap;
    note(c, s, p);
    return p;
}

struct ot_call attention_prepared(const struct attention_shape *s, const struct ot_batch *b, const char *name)
{
    struct ot_random r = ot_seeded(name, 0);
    struct ot_call c;
    attention_begin(&c, s, b, &r);
    ot_place(&c);
    return c;
}

static void copy_plane(const struct ot_call *from, const struct ot_call *to, enum ot_plane which, int request)
{
    const struct clinfer_paged_attention_params *p = attention_params(from);
    const clinfer_kv_cache *kv = which == OT_V && p->kv_v.dtype ? &p->kv_v : &p->kv;
    const size_t row = (size_t) kv->head_size * clinfer_dtype_size(kv->dtype);
    for (int64_t pos = 0; pos < to->batch.cached[0] + to->batch.fresh[0]; pos++)
        for (int64_t h = 0; h < kv->num_heads; h++)
            memcpy(ot_plane_row(to, which, OT_INITIAL, 0, pos, h),
                   ot_plane_row(from, which, OT_INITIAL, request, pos, h), row);
}

void attention_copy_request(const struct ot_call *from, const struct ot_call *to, int request, int64_t first)
{
    const clinfer_tensor *q = &attention_params(from)->q;
    cr_assert(!attention_params(from)->kv.scale_group);
    copy_plane(from, to, OT_K, request);
    copy_plane(from, to, OT_V, request);
    for (int64_t h = 0; h < q->shape[1]; h++)
        for (int64_t t = 0; t < to->batch.fresh[0]; t++)
            memcpy(ot_at(to, "q", OT_INITIAL, t, h, 0), ot_at(from, "q", OT_INITIAL, first + t, h, 0),
                   (size_t) q->shape[2] * clinfer_dtype_size(q->dtype));
}

void attention_same_rows(const struct ot_call *a, int64_t at, const struct ot_call *b, int64_t b_at,
                         int64_t count)
{
    const clinfer_tensor *out = &attention_params(b)->output;
    const size_t row = (size_t) out->shape[2] * clinfer_dtype_size(out->dtype);
    for (int64_t t = 0; t < count; t++)
        for (int64_t h = 0; h < out->shape[1]; h++)
            cr_expect(!memcmp(ot_at(a, "output", OT_GOT, at + t, h, 0),
                              ot_at(b, "output", OT_GOT, b_at + t, h, 0), row) &&
                          !memcmp(ot_at(a, "lse", OT_GOT, at + t, h, 0),
                                  ot_at(b, "lse", OT_GOT, b_at + t, h, 0), sizeof(float)),
                      "%s: token %lld, head %lld has other bits", b->note, (long long) t, (long long) h);
}
