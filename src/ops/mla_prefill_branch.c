// SPDX-License-Identifier: Apache-2.0
#include "mla_check.h"
#include "matmul.h"
#include "tune.h"
#include "validate.h"
#include "variant.h"
#include <clinfer/mla_prefill_branch.h>
#include <inttypes.h>
#include <math.h>
#include "ref.h"

#define FIELD(name) offsetof(struct clinfer_mla_prefill_branch_params, name)
#define WEIGHTS     (CLF_FLOATS | CLF_F8)
// V is v_head_dim, X N + R, Z H * N; a to d are the block counts of the weight scales.
static const struct clf_tensor_rule tensors[] = {
    { "kv_norm_gamma", "C", FIELD(kv_norm_gamma), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "freqs_cis", "F,R", FIELD(freqs_cis), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "q", "T,H,N+R", FIELD(q), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "w_k", "Z,C", FIELD(w_k), WEIGHTS, CLF_WEIGHT, NULL, NULL },
    { "w_uv", "H,V,C", FIELD(w_uv), WEIGHTS, CLF_WEIGHT, "w_k", NULL },
    { "w_k_scale", "a,b", FIELD(w_k_scale), CLF_F32, CLF_OPTIONAL, NULL, NULL },
    { "w_uv_scale", "H,c,d", FIELD(w_uv_scale), CLF_F32, CLF_OPTIONAL, NULL, NULL },
    { "output", "T,H,V", FIELD(output), CLF_FLOATS, CLF_OUT, "q", NULL },
};

// What the launches share: sizes, and where things lie in the workspace.
struct schedule {
    struct clf_paged_tiles tile;
    int64_t reach, chunk, slots; // keys; keys a request at a time, of all
    uint32_t chunks;
    size_t valid, there, latents, ropes, keys, values, sums, tops; // offsets
};

static clinfer_status check(struct clf_plan *plan, const struct clinfer_mla_prefill_branch_params *p)
{
    const int64_t H = CLF_DIM(plan, 'H'), N = CLF_DIM(plan, 'N'), R = CLF_DIM(plan, 'R'),
                  V = CLF_DIM(plan, 'V');
    const struct clf_mla_call call = { { { "w_k", "w_k_scale", &p->w_k, &p->w_k_scale },
                                         { "w_uv", "w_uv_scale", &p->w_uv, &p->w_uv_scale } },
                                       p->n_granularity,
                                       p->k_granularity,
                                       p->epsilon,
                                       { p->mask, p->local_window_size, p->score_mod, 0, p->max_context,
                                         p->workspace_offset } };
    const clinfer_status st = clf_check_mla(plan, &call);
    if (st)
        return st;
    if (p->w_k.shape[0] != H * N)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "w_k: axis 0 is %" PRId64 ", but H * N is %" PRId64 " * %" PRId64, p->w_k.shape[0], H,
                        N);
    if (p->chunk_tokens < 0)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "chunk_tokens is %" PRId64 ", want 0 or more",
                        p->chunk_tokens);
    return plan->caps->set == CLINFER_SET_ROW ? clf_check_row(plan, "N + R + V", N + R + V, CLF_MAX_MLA_ROW)
                                              : CLINFER_OK;
}

// Chunks of the longest request. A chunk as long as all keys is the only one, whatever the caller asks for.
static clinfer_status cut(struct clf_plan *plan, const struct clinfer_mla_prefill_branch_params *p,
                          struct schedule *s)
{
    const int64_t H = CLF_DIM(plan, 'H'), B = CLF_DIM(plan, 'B');
    const int64_t most = CLF_DIM(plan, 'M') * CLF_DIM(plan, 'S'); // that the table reaches
    s->reach = p->max_context && p->max_context < most ? p->max_context : most;
    const int64_t keys = s->reach ? s->reach : 1, head = CLF_DIM(plan, 'N') + CLF_DIM(plan, 'V');
    s->chunk = p->chunk_tokens ? p->chunk_tokens : clf_tune_chunk_tokens(B, 4 * H * head, keys);
    if (s->chunk > keys)
        s->chunk = keys;
    const int64_t chunks = clf_blocks(keys, s->chunk);
    if (s->chunk > INT32_MAX / (B ? B : 1) || chunks > UINT32_MAX)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "%" PRId64 " chunks of %" PRId64 " keys of %" PRId64
                        " requests, want fewer than 2^31 keys a chunk",
                        chunks, s->chunk, B);
    s->slots = s->chunk * B;
    s->chunks = (uint32_t) chunks;
    return CLINFER_OK;
}

// Keys and values are rounded to q's type, and stand beside the rope part as the cache has it.
static bool exact_in_bf16(const struct clinfer_mla_prefill_branch_params *p)
{
    const bool cache = p->kv.dtype == CLINFER_BF16 || (p->kv.dtype == CLINFER_F8_E4M3 && !p->kv.scale_group);
    return p->q.dtype == CLINFER_BF16 && (cache || !p->freqs_cis.shape[1]);
}

static void lay_out(struct clf_plan *plan, const struct clinfer_mla_prefill_branch_params *p,
                    struct schedule *s)
{
    const int64_t T = CLF_DIM(plan, 'T'), H = CLF_DIM(plan, 'H'), N = CLF_DIM(plan, 'N'),
                  R = CLF_DIM(plan, 'R'), V = CLF_DIM(plan, 'V');
    // A head that shares its keys with no other.
    const struct clf_paged_shape shape = { .tokens = T,
                                           .requests = CLF_DIM(plan, 'B'),
                                           .group = 1,
                                           .key_size = N + R,
                                           .value_size = V,
                                           .as_bf16 = exact_in_bf16(p) };
    s->tile = clf_tune_paged(plan->caps, &shape);
    const int64_t state = s->chunks > 1 ? T * H : 0; // one chunk needs none between launches
    s->there = clf_reserve(plan, s->slots, 4);
    s->latents = clf_reserve(plan, s->slots, 4 * CLF_DIM(plan, 'C'));
    s->ropes = clf_reserve(plan, s->slots, 4 * R);
    s->keys = clf_reserve(plan, s->slots, 4 * H * N);
    s->values = clf_reserve(plan, s->slots, 4 * H * V);
    s->valid = clf_reserve(plan, T, 4);
    s->sums = clf_reserve(plan, state, clf_blocks(V, s->tile.lanes) * s->tile.lanes * 4);
    s->tops = clf_reserve(plan, state, 8);
}

// All kernels of cl/SET/mla_prefill_branch.cl are one program.
static struct clf_launch *begin(struct clf_plan *plan, const struct clinfer_mla_prefill_branch_params *p,
                                const struct schedule *s, const char *kernel)
{
    struct clf_launch *l = clf_launch_begin(plan, "mla_prefill_branch", kernel, CLF_DIM(plan, 'T'));
    clf_define_type(l, "Q_T", p->q.dtype);
    clf_define_type(l, "GAMMA_T", p->kv_norm_gamma.dtype);
    clf_define_type(l, "FREQS_T", p->freqs_cis.dtype);
    clf_define(l, "HEADS", CLF_DIM(plan, 'H'));
    clf_define(l, "LATENT", CLF_DIM(plan, 'C'));
    clf_define(l, "ROPE_DIM", CLF_DIM(plan, 'R'));
    clf_define(l, "NOPE", CLF_DIM(plan, 'N'));
    clf_define(l, "VALUE_SIZE", CLF_DIM(plan, 'V'));
    clf_define(l, "QUANT_BLOCK", p->w_k.dtype == CLINFER_F8_E4M3 ? p->k_granularity : 0);
    clf_define(l, "MASK", p->mask);
    clf_define(l, "ALIBI", p->score_mod == CLINFER_ALIBI);
    clf_define(l, "SOFTCAP", 0);
    clf_define(l, "TOKENS", s->tile.tokens);
    clf_define(l, "TILE", s->tile.tile);
    if (plan->caps->set == CLINFER_SET_GROUP) {
        clf_define_type(l, "TILE_T", s->tile.tile_type);
    } else {
        clf_define(l, "ROW_TILE", s->tile.row_tile);
        clf_define(l, "VALUE_TILE", s->tile.value_tile);
    }
    clf_define_paged(l, plan, p);
    return l;
}

static void push_cache_rows(struct clf_plan *plan, const struct clinfer_mla_prefill_branch_params *p,
                            const struct schedule *s)
{
    struct clf_launch *l = begin(plan, p, s, "mla_cache_rows");
    clf_push_paged(l, plan, p);
    clf_push_tensor(l, &p->kv_norm_gamma, 1);
    clf_push_tensor(l, &p->freqs_cis, 2);
    clf_push(l, (cl_uint) CLF_DIM(plan, 'F'));
    clf_push(l, p->epsilon);
    clf_push(l, (cl_ulong) s->reach);
    clf_push_workspace(l, plan, s->valid);
    clf_launch_grid(l, CLF_DIM(plan, 'T'), 1, 1);
}

// CHUNK_ARGS of cl/lib/mla_chunk.clh.
static void push_chunk(struct clf_launch *l, const struct clinfer_mla_prefill_branch_params *p,
                       const struct schedule *s)
{
    clf_push(l, (cl_ulong) s->reach);
    clf_push(l, (cl_uint) (clf_is_windowed(p->mask) ? p->local_window_size : 0));
    clf_push(l, (cl_uint) s->chunk);
}

static void push_rows(struct clf_plan *plan, const struct clinfer_mla_prefill_branch_params *p,
                      const struct schedule *s)
{
    struct clf_launch *l = begin(plan, p, s, "mla_chunk_rows");
    clf_push_paged(l, plan, p);
    push_chunk(l, p, s);
    clf_push_workspace(l, plan, s->there);
    clf_push_workspace(l, plan, s->latents);
    clf_push_workspace(l, plan, s->ropes);
    clf_push_index(l);
    clf_launch_grid(l, s->chunk, CLF_DIM(plan, 'B'), 1);
}

static void push_attention(struct clf_plan *plan, const struct clinfer_mla_prefill_branch_params *p,
                           const struct schedule *s)
{
    struct clf_launch *l = begin(plan, p, s, "mla_chunk_attention");
    clf_push_paged(l, plan, p);
    push_chunk(l, p, s);
    clf_push_workspace(l, plan, s->valid);
    clf_push_workspace(l, plan, s->there);
    clf_push_workspace(l, plan, s->keys);
    clf_push_workspace(l, plan, s->ropes);
    clf_push_workspace(l, plan, s->values);
    clf_push_tensor(l, &p->q, 3);
    clf_push_tensor(l, &p->freqs_cis, 2);
    clf_push_workspace(l, plan, s->sums);
    clf_push_workspace(l, plan, s->tops);
    clf_push_tensor(l, &p->output, 3);
    clf_push(l, p->scale * 1.44269504088896340736f); // the softmax runs in base 2
    clf_push(l, (cl_uint) s->chunks);
    clf_push_index(l);
    // Blocks of queries begin anew with each request.
    clf_launch_grid(l, CLF_DIM(plan, 'T') / s->tile.tokens + CLF_DIM(plan, 'B'), CLF_DIM(plan, 'H'), 1);
}

// w_k, and its scales, as one matrix of a batch of one.
static clinfer_tensor as_batch(const clinfer_tensor *t)
{
    clinfer_tensor w = *t;
    if (!t->rank)
        return w;
    w.rank = 3;
    w.shape[0] = 1;
    for (int i = 0; i < 2; i++) {
        w.shape[i + 1] = t->shape[i];
        w.stride[i + 1] = clf_stride(t, i);
    }
    w.stride[0] = t->shape[0] * w.stride[1];
    return w;
}

static struct clf_matmul projection(const struct clinfer_mla_prefill_branch_params *p,
                                    const struct schedule *s, const clinfer_tensor *w,
                                    const clinfer_tensor *scale, size_t y)
{
    struct clf_matmul m = { .tokens = s->slots,
                            .heads = w->shape[0],
                            .rows = w->shape[1],
                            .columns = w->shape[2],
                            .x = s->latents,
                            .shared_x = true,
                            .w = w,
                            .w_scale = scale,
                            .row_block = p->n_granularity,
                            .column_block = p->k_granularity,
                            .y_workspace = y,
                            .round = p->q.dtype,
                            .alpha = 1.0f,
                            .valid = s->there };
    m.y_stride[0] = (size_t) (m.heads * m.rows);
    m.y_stride[1] = (size_t) m.rows;
    return m;
}

static clinfer_status push_all(struct clf_plan *plan, const struct clinfer_mla_prefill_branch_params *p,
                               const struct schedule *s, const struct clf_matmul product[2])
{
    clinfer_status st = CLINFER_OK;
    push_cache_rows(plan, p, s);
    clf_loop_begin(plan, s->chunks);
    push_rows(plan, p, s);
    for (int i = 0; !st && i < 2; i++)
        if (product[i].rows)
            st = clf_push_matmul(plan, &product[i]);
    push_attention(plan, p, s);
    clf_loop_end(plan);
    return st;
}

// mla_chunk_attention keeps most in local memory; mla_chunk_rows keeps a row of the cache.
static clinfer_status check_local(struct clf_plan *plan, const struct clinfer_mla_prefill_branch_params *p,
                                  const struct schedule *s)
{
    const int64_t C = CLF_DIM(plan, 'C'), D = CLF_DIM(plan, 'D');
    const int64_t groups = p->w_k.dtype == CLINFER_F8_E4M3 ? clf_blocks(C, p->k_granularity) : 0;
    clinfer_status st =
        clf_check_local(plan, "mla_cache_rows", clf_staged_bytes(plan, D, clf_scale_groups(&p->kv)));
    if (!st)
        st = clf_check_local(plan, "mla_chunk_rows", (uint64_t) (4 * D + 8 * groups));
    return st ? st : clf_check_local(plan, "mla_chunk_attention", s->tile.local_bytes);
}

static clinfer_status prepare(struct clf_plan *plan, const void *params)
{
    const struct clinfer_mla_prefill_branch_params *p = params;
    struct schedule s = { 0 };
    clinfer_status st = check(plan, p);
    if (!st)
        st = cut(plan, p, &s);
    if (st)
        return st;
    plan->workspace_mem = p->workspace;
    plan->workspace_offset = p->workspace ? p->workspace_offset : 0;
    lay_out(plan, p, &s);
    const clinfer_tensor w_k = as_batch(&p->w_k), w_k_scale = as_batch(&p->w_k_scale);
    struct clf_matmul product[] = { projection(p, &s, &w_k, &w_k_scale, s.keys),
                                    projection(p, &s, &p->w_uv, &p->w_uv_scale, s.values) };
    clf_reserve_matmul(plan, product, 2);
    if (plan->workspace == SIZE_MAX)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "the workspace of %" PRId64 " tokens and %" PRId64 " keys a chunk passes 2^64 bytes",
                        CLF_DIM(plan, 'T'), s.slots);
    if ((st = check_local(plan, p, &s)))
        return st;
    if (p->workspace && (st = clf_add_view(plan, "workspace", p->workspace, p->workspace_offset,
                                           (int64_t) plan->workspace, 1, true)))
        return st;
    return push_all(plan, p, &s, product);
}

static void ref(const void *params)
{
    ref_mla_prefill_branch(params);
}

// Scores of about 1, several chunks to join, and windows that end inside a tile.
static void shrink(void *params, int64_t tokens)
{
    struct clinfer_mla_prefill_branch_params *p = params;
    (void) tokens;
    p->epsilon = 1e-5f;
    p->scale = 1 / sqrtf((float) (p->q.shape[2] ? p->q.shape[2] : 1));
    p->local_window_size = 9;
    p->max_context = 0;
    p->chunk_tokens = 20;
    p->workspace = NULL;
    p->workspace_offset = 0;
}

const struct clf_op clf_op_mla_prefill_branch = { "mla_prefill_branch",
                                                  CLF_TENSORS(tensors),
                                                  CLF_CACHE_FIELDS(clinfer_mla_prefill_branch_params),
                                                  true,
                                                  prepare,
                                                  ref,
                                                  shrink };

clinfer_status clinfer_mla_prefill_branch(clinfer_ctx *ctx,
                                          const struct clinfer_mla_prefill_branch_params *params,
                                          cl_uint num_events_in_wait_list, const cl_event *event_wait_list,
                                          cl_event *event)
{
    return clf_run(ctx, &clf_op_mla_prefill_branch, params, num_events_in_wait_list, event_wait_list, event);
}

clinfer_status clinfer_mla_prefill_branch_compile(clinfer_ctx *ctx,
                                                  const struct clinfer_mla_prefill_branch_params *params)
{
    return clf_compile(ctx, &clf_op_mla_prefill_branch, params);
}

clinfer_status clinfer_mla_prefill_branch_workspace(clinfer_ctx *ctx,
                                                    const struct clinfer_mla_prefill_branch_params *params,
                                                    size_t *bytes)
{
    return clf_measure(ctx, &clf_op_mla_prefill_branch, params, bytes);
}

int clinfer_mla_prefill_cheaper(clinfer_ctx *ctx, const struct clinfer_mla_shape *shape)
{
    const struct clf_caps caps = clf_variant_caps(ctx, &clf_op_mla_prefill_branch);
    return clf_tune_mla_prefill(&caps, shape);
}
