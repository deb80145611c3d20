// SPDX-License-Identifier: Apache-2.0
// Schedules of paged_attention made on the host: units of work from the exact number of new tokens and bounds
// of the keys.
#include "paged_attention_plan.h"
#include "plan.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const key_names[CLF_PLAN_KEYS] = { "T",
                                                      "B",
                                                      "H",
                                                      "K",
                                                      "D",
                                                      "Dv",
                                                      "q's type",
                                                      "kv's type",
                                                      "kv's scale_group",
                                                      "V's type",
                                                      "V's scale_group",
                                                      "mask",
                                                      "local_window_size",
                                                      "score_mod" };

static struct clf_attention_key key_of(const struct clf_plan *plan,
                                       const struct clinfer_paged_attention_params *p)
{
    const clinfer_kv_cache *v = clf_kv_given(&p->kv_v) ? &p->kv_v : &p->kv;
    const bool windowed = p->mask != CLINFER_MASK_CAUSAL && p->mask != CLINFER_MASK_NULL;
    return (struct clf_attention_key){ { CLF_DIM(plan, 'T'), CLF_DIM(plan, 'B'), CLF_DIM(plan, 'H'),
                                         CLF_DIM(plan, 'K'), CLF_DIM(plan, 'D'), CLF_DIM(plan, 'V'),
                                         p->q.dtype, p->kv.dtype, p->kv.scale_group, v->dtype, v->scale_group,
                                         p->mask, windowed ? p->local_window_size : 0, p->score_mod } };
}

clinfer_status clf_check_attention_plan(struct clf_plan *plan, const struct clinfer_paged_attention_params *p)
{
    const struct clf_attention_key key = key_of(plan, p);
    for (int i = 0; i < CLF_PLAN_KEYS; i++)
        if (key.value[i] != p->plan->key.value[i])
            return clf_fail(plan, CLINFER_ERR_ARGUMENT,
                            "plan: it is for %s %" PRId64 ", but the call's is %" PRId64, key_names[i],
                            p->plan->key.value[i], key.value[i]);
    return CLINFER_OK;
}

// Schedules under way. `word` NULL: only counted.
struct maker {
    const struct clinfer_attention_plan_params *p;
    struct clf_plan *plan; // its caps are those here
    struct clf_caps caps;  // of one set after the other
    uint32_t *word;
    size_t num_words;
};

static void put(struct maker *m, int64_t value)
{
    if (m->word)
        m->word[m->num_words] = (uint32_t) value;
    m->num_words++;
}

static clinfer_status check(struct maker *m)
{
    const int64_t T = CLF_DIM(m->plan, 'T'), B = CLF_DIM(m->plan, 'B');
    int64_t sum = 0;
    for (int64_t b = 0; b < B; b++) {
        const int64_t n = m->p->new_tokens[b], keys = m->p->max_context[b];
        if (n < 0 || n > T - sum)
            return clf_fail(m->plan, CLINFER_ERR_ARGUMENT,
                            "new_tokens: entry %" PRId64 " is %" PRId64 ", want 0 to the %" PRId64
                            " of q that are left",
                            b, n, T - sum);
        if (keys < n || keys > UINT32_MAX)
            return clf_fail(m->plan, CLINFER_ERR_ARGUMENT,
                            "max_context: entry %" PRId64 " is %" PRId64 ", want %" PRId64
                            " new tokens to %u",
                            b, keys, n, UINT32_MAX);
        sum += n;
    }
    if (m->p->num_splits < 0 || m->p->num_splits > UINT16_MAX)
        return clf_fail(m->plan, CLINFER_ERR_ARGUMENT, "num_splits is %d, want 0 to %d", m->p->num_splits,
                        UINT16_MAX);
    return CLINFER_OK;
}

// Keys that the tokens of a request see of all.
static int64_t seen_keys(const struct maker *m, int64_t b)
{
    const struct clinfer_paged_attention_params *call = m->p->call;
    const int64_t keys = m->p->max_context[b], reach = call->local_window_size + m->p->new_tokens[b];
    const bool windowed = call->mask != CLINFER_MASK_CAUSAL && call->mask != CLINFER_MASK_NULL;
    return windowed && reach < keys ? reach : keys;
}

static int64_t runs_of(const struct maker *m, int64_t b, int64_t run)
{
    return clf_blocks(m->p->new_tokens[b], run);
}

// Keys of an item such that each unit of the device has several, and each enough that merging costs less.
static int64_t keys_an_item(const struct maker *m, const struct clf_attention_schedule *s, int64_t heads)
{
    int64_t work = 0;
    for (int64_t b = 0; b < CLF_DIM(m->plan, 'B'); b++)
        work += runs_of(m, b, s->run) * seen_keys(m, b);
    return clf_tune_item_keys(m->plan->caps, work, heads);
}

// The requests, then the units, the later ones of a request, which see more keys, first.
static void make_schedule(struct maker *m, struct clf_attention_schedule *s, int64_t heads)
{
    const int64_t B = CLF_DIM(m->plan, 'B'), item = keys_an_item(m, s, heads);
    int64_t first = 0, *splits = malloc((size_t) (B + 1) * sizeof *splits);
    s->offset = m->num_words;
    s->units = splits ? 0 : -1;
    s->parts = 0;
    for (int64_t b = 0; splits && b < B; b++) {
        splits[b] = m->p->num_splits ? m->p->num_splits : clf_blocks(seen_keys(m, b), item);
        splits[b] = splits[b] < 1 ? 1 : splits[b] > UINT16_MAX ? UINT16_MAX : splits[b];
        put(m, first);
        put(m, m->p->max_context[b]);
        put(m, splits[b]);
        put(m, s->parts);
        s->parts += splits[b] > 1 ? m->p->new_tokens[b] * splits[b] : 0;
        first += m->p->new_tokens[b];
    }
    put(m, first);
    for (int i = 0; i < 3; i++)
        put(m, 0);
    first = 0;
    for (int64_t b = 0; splits && b < B; b++) {
        for (int64_t i = runs_of(m, b, s->run) - 1; i >= 0; i--)
            for (int64_t split = 0; split < splits[b]; split++) {
                const int64_t left = m->p->new_tokens[b] - i * s->run;
                put(m, b);
                put(m, first + i * s->run);
                put(m, left < s->run ? left : s->run);
                put(m, split);
                s->units++;
            }
        first += m->p->new_tokens[b];
    }
    if (s->units == 0) { // one without tokens, so that the offsets are looked at
        for (int i = 0; i < 4; i++)
            put(m, 0);
        s->units = 1;
    }
    free(splits);
}

// All schedules of the context's sets, counted, or written where there is memory.
static clinfer_status make_all(struct maker *m, struct clinfer_attention_plan *out)
{
    const int64_t K = CLF_DIM(m->plan, 'K'), T = CLF_DIM(m->plan, 'T'), B = CLF_DIM(m->plan, 'B');
    m->num_words = 0;
    for (int i = 0; i < CLF_NUM_SETS && out->ctx->order[i]; i++) {
        struct clf_attention_schedule *s = &out->set[out->ctx->order[i] - CLINFER_SET_ROW];
        m->caps.set = out->ctx->order[i];
        const struct clf_paged_tiles tile = clf_paged_tiles_of(m->plan, m->p->call);
        const int64_t blocks = clf_blocks(CLF_DIM(m->plan, 'H') / K, tile.head_block);
        const struct clf_paged_grid grid =
            clf_tune_paged_grid(&m->caps, &tile, T, B, K, blocks, m->p->num_splits,
                                CLF_DIM(m->plan, 'M') * CLF_DIM(m->plan, 'S'));
        s->run = grid.run;
        s->unit_heads = grid.unit_heads;
        make_schedule(m, s, clf_blocks(K, grid.unit_heads) * blocks);
        if (s->units < 0)
            return clf_fail(m->plan, CLINFER_ERR_MEMORY, "plan: out of host memory");
        if (s->parts > UINT32_MAX || s->units > UINT32_MAX)
            return clf_fail(m->plan, CLINFER_ERR_SHAPE,
                            "plan: %" PRId64 " units and %" PRId64 " parts, want at most %u", s->units,
                            s->parts, UINT32_MAX);
    }
    return CLINFER_OK;
}

static clinfer_status upload(struct clf_plan *plan, struct clinfer_attention_plan *out, const uint32_t *words,
                             size_t count)
{
    cl_int err;
    out->words = clCreateBuffer(out->ctx->cl, CL_MEM_READ_ONLY | CL_MEM_COPY_HOST_PTR, count * sizeof *words,
                                (void *) (uintptr_t) words, &err);
    return err ? clf_fail(plan, (clinfer_status) err, "plan: a buffer of %zu bytes", count * sizeof *words)
               : CLINFER_OK;
}

static clinfer_status make(struct clf_plan *plan, const struct clinfer_attention_plan_params *p,
                           struct clinfer_attention_plan *out)
{
    struct maker m = { .p = p, .plan = plan, .caps = *plan->caps };
    plan->caps = &m.caps;
    clinfer_status st = check(&m);
    if (!st)
        st = make_all(&m, out);
    if (st)
        return st;
    out->key = key_of(plan, p->call);
    m.word = malloc(m.num_words * sizeof *m.word);
    if (!m.word)
        return clf_fail(plan, CLINFER_ERR_MEMORY, "plan: out of host memory");
    st = make_all(&m, out);
    if (!st)
        st = upload(plan, out, m.word, m.num_words);
    free(m.word);
    return st;
}

clinfer_status clinfer_attention_plan_create(clinfer_attention_plan **plan, clinfer_ctx *ctx,
                                             const struct clinfer_attention_plan_params *params)
{
    struct clf_plan host;
    struct clf_caps caps = clf_variant_caps(ctx, &clf_op_paged_attention);
    struct clinfer_paged_attention_params call = *params->call;
    const struct clinfer_attention_plan_params p = { &call, params->new_tokens, params->max_context,
                                                     params->num_splits };
    *plan = NULL;
    call.plan = NULL;
    clinfer_status st = clf_plan(&host, &clf_op_paged_attention, &call, &caps, CLF_COMPILE);
    if (st)
        return clf_error(ctx, st, host.error);
    struct clinfer_attention_plan *out = calloc(1, sizeof *out);
    if (!out)
        return clf_error(ctx, CLINFER_ERR_MEMORY, "paged_attention: plan: out of host memory");
    out->ctx = ctx;
    if ((st = make(&host, &p, out))) {
        free(out);
        return clf_error(ctx, st, host.error);
    }
    *plan = out;
    return CLINFER_OK;
}

void clinfer_attention_plan_destroy(clinfer_attention_plan **plan)
{
    if (*plan) {
        clReleaseMemObject((*plan)->words);
        free(*plan);
    }
    *plan = NULL;
}
