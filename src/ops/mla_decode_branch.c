// SPDX-License-Identifier: Apache-2.0
#include "mla_check.h"
#include "matmul.h"
#include "tune.h"
#include "validate.h"
#include <inttypes.h>
#include <math.h>
#include "ref.h"

#define FIELD(name) offsetof(struct clinfer_mla_decode_branch_params, name)
#define WEIGHTS     (CLF_FLOATS | CLF_F8)
// N is qk_nope_head_dim, V v_head_dim; a to d are the block counts of the weight scales.
static const struct clf_tensor_rule tensors[] = {
    { "kv_norm_gamma", "C", FIELD(kv_norm_gamma), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "freqs_cis", "F,R", FIELD(freqs_cis), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "q", "T,H,N+R", FIELD(q), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "w_uk", "H,C,N", FIELD(w_uk), WEIGHTS, CLF_WEIGHT, NULL, NULL },
    { "w_uv", "H,V,C", FIELD(w_uv), WEIGHTS, CLF_WEIGHT, "w_uk", NULL },
    { "w_uk_scale", "H,a,b", FIELD(w_uk_scale), CLF_F32, CLF_OPTIONAL, NULL, NULL },
    { "w_uv_scale", "H,c,d", FIELD(w_uv_scale), CLF_F32, CLF_OPTIONAL, NULL, NULL },
    { "output", "T,H,V", FIELD(output), CLF_FLOATS, CLF_OUT, "q", NULL },
};

// What the launches share: sizes, and where things lie in the workspace.
struct schedule {
    struct clf_attention_tiles tile;
    int64_t head_blocks, splits;
    size_t valid, q_nope, q_full, sums, tops, raw; // offsets
};

static struct schedule lay_out(struct clf_plan *plan, const struct clinfer_mla_decode_branch_params *p)
{
    const int64_t T = CLF_DIM(plan, 'T'), H = CLF_DIM(plan, 'H'), C = CLF_DIM(plan, 'C'),
                  row = CLF_DIM(plan, 'D');
    const int64_t keys = p->max_context ? p->max_context : CLF_DIM(plan, 'M') * CLF_DIM(plan, 'S');
    struct schedule s = { .tile = clf_tune_attention(plan->caps, &p->kv, H, C) };
    s.head_blocks = clf_blocks(H, s.tile.head_block);
    s.splits = p->num_splits ? p->num_splits : clf_tune_splits(plan->caps, T * s.head_blocks, keys);
    const int64_t head_rows = clf_blocks(s.tile.head_block, s.tile.pv_heads) * s.tile.pv_heads;
    // Left to the engine, splits fall as T grows: what is reserved never does, so that a workspace for the
    // largest T serves every smaller one.
    int64_t parts = clf_tune_parts(plan->caps, T * s.head_blocks, keys);
    if (p->num_splits && __builtin_mul_overflow(T * s.splits, s.head_blocks, &parts))
        parts = -1; // as a size, more than any workspace has
    s.valid = clf_reserve(plan, T, 4);
    s.q_nope = clf_reserve(plan, T * H, 4 * CLF_DIM(plan, 'N'));
    s.q_full = clf_reserve(plan, T * H, 4 * row);
    s.sums = clf_reserve(plan, parts, head_rows * clf_blocks(C, s.tile.lanes) * s.tile.lanes * 4);
    s.tops = clf_reserve(plan, parts, clf_blocks(s.tile.head_block, s.tile.lanes) * s.tile.lanes * 8);
    s.raw = clf_reserve(plan, T * H, 4 * C);
    return s;
}

// mla_attention keeps more of cache rows in local memory than the other kernels; mla_queries keeps a row of
// q.
static clinfer_status check_local(struct clf_plan *plan, const struct clinfer_mla_decode_branch_params *p,
                                  const struct schedule *s)
{
    const int64_t N = CLF_DIM(plan, 'N');
    const int64_t groups = p->w_uk.dtype == CLINFER_F8_E4M3 ? clf_blocks(N, p->k_granularity) : 0;
    const clinfer_status st = clf_check_local(plan, "mla_attention", s->tile.local_bytes);
    return st ? st : clf_check_local(plan, "mla_queries", (uint64_t) (4 * N + 8 * groups));
}

// All kernels of cl/SET/mla_decode_branch.cl are one program.
static struct clf_launch *begin(struct clf_plan *plan, const struct clinfer_mla_decode_branch_params *p,
                                const struct schedule *s, const char *kernel)
{
    struct clf_launch *l = clf_launch_begin(plan, "mla_decode_branch", kernel, CLF_DIM(plan, 'T'));
    clf_define_type(l, "Q_T", p->q.dtype);
    clf_define_type(l, "GAMMA_T", p->kv_norm_gamma.dtype);
    clf_define_type(l, "FREQS_T", p->freqs_cis.dtype);
    clf_define(l, "HEADS", CLF_DIM(plan, 'H'));
    clf_define(l, "LATENT", CLF_DIM(plan, 'C'));
    clf_define(l, "ROPE_DIM", CLF_DIM(plan, 'R'));
    clf_define(l, "NOPE", CLF_DIM(plan, 'N'));
    clf_define(l, "QUANT_BLOCK", p->w_uk.dtype == CLINFER_F8_E4M3 ? p->k_granularity : 0);
    clf_define(l, "MASK", p->mask);
    clf_define(l, "ALIBI", p->score_mod == CLINFER_ALIBI);
    clf_define(l, "HEAD_BLOCK", s->tile.head_block);
    clf_define(l, "TILE", s->tile.tile);
    if (plan->caps->set == CLINFER_SET_GROUP) {
        clf_define_type(l, "TILE_T", s->tile.tile_type);
    } else {
        clf_define(l, "QK_HEADS", s->tile.qk_heads);
        clf_define(l, "QK_KEYS", s->tile.qk_keys);
        clf_define(l, "PV_HEADS", s->tile.pv_heads);
        clf_define(l, "PV_VECTORS", s->tile.pv_vectors);
    }
    clf_define_paged(l, plan, p);
    return l;
}

static void push_inputs(struct clf_plan *plan, const struct clinfer_mla_decode_branch_params *p,
                        const struct schedule *s, float score_scale)
{
    struct clf_launch *l = begin(plan, p, s, "mla_cache_rows");
    clf_push_paged(l, plan, p);
    clf_push_tensor(l, &p->kv_norm_gamma, 1);
    clf_push_tensor(l, &p->freqs_cis, 2);
    clf_push(l, (cl_uint) CLF_DIM(plan, 'F'));
    clf_push(l, p->epsilon);
    clf_push(l, (cl_ulong) UINT64_MAX); // the table alone says where a request ends
    clf_push_workspace(l, plan, s->valid);
    clf_launch_grid(l, CLF_DIM(plan, 'T'), 1, 1);

    l = begin(plan, p, s, "mla_queries");
    clf_push_paged(l, plan, p);
    clf_push_tensor(l, &p->q, 3);
    clf_push_tensor(l, &p->freqs_cis, 2);
    clf_push_workspace(l, plan, s->valid);
    clf_push_workspace(l, plan, s->q_nope);
    clf_push_workspace(l, plan, s->q_full);
    clf_push(l, score_scale);
    clf_launch_grid(l, CLF_DIM(plan, 'T'), CLF_DIM(plan, 'H'), 1);
}

static struct clf_matmul projection(const struct clf_plan *plan,
                                    const struct clinfer_mla_decode_branch_params *p,
                                    const struct schedule *s, bool up, float score_scale)
{
    const int64_t H = CLF_DIM(plan, 'H'), C = CLF_DIM(plan, 'C'), row = CLF_DIM(plan, 'D');
    struct clf_matmul m = { .tokens = CLF_DIM(plan, 'T'),
                            .heads = H,
                            .row_block = p->n_granularity,
                            .column_block = p->k_granularity,
                            .round = p->q.dtype,
                            .valid = s->valid };
    if (up) {
        m.rows = CLF_DIM(plan, 'V');
        m.columns = C;
        m.x = s->raw;
        m.w = &p->w_uv;
        m.w_scale = &p->w_uv_scale;
        m.y = &p->output;
        m.alpha = 1.0f;
    } else {
        m.rows = C;
        m.columns = CLF_DIM(plan, 'N');
        m.x = s->q_nope;
        m.w = &p->w_uk;
        m.w_scale = &p->w_uk_scale;
        m.y_workspace = s->q_full;
        m.y_stride[0] = (size_t) (H * row);
        m.y_stride[1] = (size_t) row;
        m.alpha = score_scale;
    }
    return m;
}

static void push_attention(struct clf_plan *plan, const struct clinfer_mla_decode_branch_params *p,
                           const struct schedule *s)
{
    struct clf_launch *l = begin(plan, p, s, "mla_attention");
    clf_push_paged(l, plan, p);
    clf_push_workspace(l, plan, s->valid);
    clf_push_workspace(l, plan, s->q_full);
    clf_push_workspace(l, plan, s->sums);
    clf_push_workspace(l, plan, s->tops);
    clf_push(l, (cl_uint) (clf_is_windowed(p->mask) ? p->local_window_size : 0));
    clf_launch_grid(l, CLF_DIM(plan, 'T'), s->head_blocks, s->splits);

    l = begin(plan, p, s, "mla_combine");
    clf_push_workspace(l, plan, s->valid);
    clf_push_workspace(l, plan, s->sums);
    clf_push_workspace(l, plan, s->tops);
    clf_push_workspace(l, plan, s->raw);
    clf_push(l, (cl_uint) s->splits);
    clf_launch_grid(l, CLF_DIM(plan, 'T'), CLF_DIM(plan, 'H'), 1);
}

static clinfer_status check(struct clf_plan *plan, const struct clinfer_mla_decode_branch_params *p)
{
    const struct clf_mla_call call = { { { "w_uk", "w_uk_scale", &p->w_uk, &p->w_uk_scale },
                                         { "w_uv", "w_uv_scale", &p->w_uv, &p->w_uv_scale } },
                                       p->n_granularity,
                                       p->k_granularity,
                                       p->epsilon,
                                       { p->mask, p->local_window_size, p->score_mod, p->num_splits,
                                         p->max_context, p->workspace_offset } };
    return clf_check_mla(plan, &call);
}

static clinfer_status prepare(struct clf_plan *plan, const void *params)
{
    const struct clinfer_mla_decode_branch_params *p = params;
    clinfer_status st = check(plan, p);
    if (st)
        return st;
    plan->workspace_mem = p->workspace;
    plan->workspace_offset = p->workspace ? p->workspace_offset : 0;
    const struct schedule s = lay_out(plan, p);
    // The softmax runs in base 2: log2(e) and the scale are folded into q.
    const float score_scale = p->scale * 1.44269504088896340736f;
    struct clf_matmul product[] = { projection(plan, p, &s, false, score_scale),
                                    projection(plan, p, &s, true, score_scale) };
    clf_reserve_matmul(plan, product, 2);
    if (plan->workspace == SIZE_MAX)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "the workspace of %" PRId64 " tokens and %" PRId64 " splits passes 2^64 bytes",
                        CLF_DIM(plan, 'T'), s.splits);
    if ((st = check_local(plan, p, &s)))
        return st;
    if (p->workspace && (st = clf_add_view(plan, "workspace", p->workspace, p->workspace_offset,
                                           (int64_t) plan->workspace, 1, true)))
        return st;
    push_inputs(plan, p, &s, score_scale);
    if (CLF_DIM(plan, 'N') && (st = clf_push_matmul(plan, &product[0])))
        return st;
    push_attention(plan, p, &s);
    return clf_push_matmul(plan, &product[1]);
}

static void ref(const void *params)
{
    ref_mla_decode_branch(params);
}

// Scores of about 1, two splits to merge, and windows that end inside a tile.
static void shrink(void *params, int64_t tokens)
{
    struct clinfer_mla_decode_branch_params *p = params;
    (void) tokens;
    p->epsilon = 1e-5f;
    p->scale = 1 / sqrtf((float) p->kv.head_size);
    p->local_window_size = 9;
    p->max_context = 0;
    p->num_splits = 2;
    p->workspace = NULL;
    p->workspace_offset = 0;
}

const struct clf_op clf_op_mla_decode_branch = { "mla_decode_branch",
                                                 CLF_TENSORS(tensors),
                                                 CLF_CACHE_FIELDS(clinfer_mla_decode_branch_params),
                                                 true,
                                                 prepare,
                                                 ref,
                                                 shrink };

clinfer_status clinfer_mla_decode_branch(clinfer_ctx *ctx,
                                         const struct clinfer_mla_decode_branch_params *params,
                                         cl_uint num_events_in_wait_list, const cl_event *event_wait_list,
                                         cl_event *event)
{
    return clf_run(ctx, &clf_op_mla_decode_branch, params, num_events_in_wait_list, event_wait_list, event);
}

clinfer_status clinfer_mla_decode_branch_compile(clinfer_ctx *ctx,
                                                 const struct clinfer_mla_decode_branch_params *params)
{
    return clf_compile(ctx, &clf_op_mla_decode_branch, params);
}

clinfer_status clinfer_mla_decode_branch_workspace(clinfer_ctx *ctx,
                                                   const struct clinfer_mla_decode_branch_params *params,
                                                   size_t *bytes)
{
    return clf_measure(ctx, &clf_op_mla_decode_branch, params, bytes);
}
