// SPDX-License-Identifier: Apache-2.0
#include "matmul.h"
#include "plan.h"
#include "tune.h"
#include "validate.h"
#include <clinfer/mla_decode_branch.h>
#include <inttypes.h>

#define FIELD(name) offsetof(struct clinfer_mla_decode_branch_params, name)
#define WEIGHTS     (CLF_FLOATS | CLF_F8)
// N is qk_nope_head_dim, V v_head_dim; a to d are the block counts of the weight scales.
static const struct clf_tensor_rule tensors[] = {
    { "kv_norm_gamma", "C", FIELD(kv_norm_gamma), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "freqs_cis", "F,R", FIELD(freqs_cis), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "q", "T,H,N+R", FIELD(q), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "w_uk", "H,C,N", FIELD(w_uk), WEIGHTS, CLF_IN, NULL, NULL },
    { "w_uv", "H,V,C", FIELD(w_uv), WEIGHTS, CLF_IN, "w_uk", NULL },
    { "w_uk_scale", "H,a,b", FIELD(w_uk_scale), CLF_F32, CLF_OPTIONAL, NULL, NULL },
    { "w_uv_scale", "H,c,d", FIELD(w_uv_scale), CLF_F32, CLF_OPTIONAL, NULL, NULL },
    { "output", "T,H,V", FIELD(output), CLF_FLOATS, CLF_OUT, "q", NULL },
};

static bool is_windowed(clinfer_mask mask)
{
    return mask != CLINFER_MASK_CAUSAL && mask != CLINFER_MASK_NULL;
}

static clinfer_status check_shapes(struct clf_plan *plan)
{
    const int64_t C = CLF_DIM(plan, 'C'), R = CLF_DIM(plan, 'R'), D = CLF_DIM(plan, 'D'),
                  H = CLF_DIM(plan, 'H'), V = CLF_DIM(plan, 'V');
    if (R % 2)
        return clf_fail(plan, CLINFER_ERR_SHAPE, "freqs_cis: axis 1 is %" PRId64 ", want an even number", R);
    if (C < 1 || H < 1 || V < 1)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "C is %" PRId64 ", H %" PRId64 ", V %" PRId64 ", want at least 1 each", C, H, V);
    if (C + R != D)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "kv: head_size is %" PRId64 ", but C + R is %" PRId64 " + %" PRId64, D, C, R);
    return plan->caps->set == CLINFER_SET_ROW ? clf_check_row(plan, "head_size", D, CLF_MAX_MLA_ROW)
                                              : CLINFER_OK;
}

static clinfer_status check_scale(struct clf_plan *plan, const char *name, const clinfer_tensor *t,
                                  int64_t rows, int64_t columns,
                                  const struct clinfer_mla_decode_branch_params *p)
{
    if (!t->rank)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "fp8 weights, but no %s", name);
    const int64_t r = clf_blocks(rows, p->n_granularity), c = clf_blocks(columns, p->k_granularity);
    if (t->shape[1] != r || t->shape[2] != c)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "%s: [%" PRId64 ", %" PRId64 "], want [%" PRId64 ", %" PRId64 "]", name, t->shape[1],
                        t->shape[2], r, c);
    return CLINFER_OK;
}

static clinfer_status check_weights(struct clf_plan *plan, const struct clinfer_mla_decode_branch_params *p)
{
    const int64_t C = CLF_DIM(plan, 'C');
    if (p->w_uk.dtype != CLINFER_F8_E4M3) {
        if (p->w_uk_scale.rank || p->w_uv_scale.rank)
            return clf_fail(plan, CLINFER_ERR_ARGUMENT,
                            "weight scales with weights of type %s, which has none",
                            clinfer_dtype_str(p->w_uk.dtype));
        return CLINFER_OK;
    }
    if (p->n_granularity < 1 || p->k_granularity < 1 || p->n_granularity > INT32_MAX ||
        p->k_granularity > INT32_MAX)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT,
                        "n_granularity is %" PRId64 ", k_granularity %" PRId64 ", want at least 1",
                        p->n_granularity, p->k_granularity);
    clinfer_status st = check_scale(plan, "w_uk_scale", &p->w_uk_scale, C, CLF_DIM(plan, 'N'), p);
    return st ? st : check_scale(plan, "w_uv_scale", &p->w_uv_scale, CLF_DIM(plan, 'V'), C, p);
}

static clinfer_status check_scalars(struct clf_plan *plan, const struct clinfer_mla_decode_branch_params *p)
{
    const bool windowed = is_windowed(p->mask);
    if (!(p->epsilon >= 0))
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "epsilon is %g, want 0 or more", (double) p->epsilon);
    if ((unsigned) p->mask > CLINFER_MASK_SLIDING_WINDOW_CAUSAL)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "mask is %d, want 0 to %d", (int) p->mask,
                        CLINFER_MASK_SLIDING_WINDOW_CAUSAL);
    if (windowed && (p->local_window_size < 1 || p->local_window_size > INT32_MAX))
        return clf_fail(plan, CLINFER_ERR_ARGUMENT,
                        "local_window_size is %" PRId64 ", but the mask wants 1 to %d", p->local_window_size,
                        INT32_MAX);
    if ((unsigned) p->score_mod > CLINFER_ALIBI)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "score_mod is %d, want 0 to %d", (int) p->score_mod,
                        CLINFER_ALIBI);
    if (p->num_splits < 0 || p->num_splits > UINT16_MAX)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "num_splits is %d, want 0 to %d", p->num_splits,
                        UINT16_MAX);
    if (p->max_context < 0)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "max_context is %" PRId64 ", want 0 or more",
                        p->max_context);
    if (p->workspace_offset % 64)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "workspace_offset is %zu, want a multiple of 64",
                        p->workspace_offset);
    return CLINFER_OK;
}

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

static clinfer_status push_projection(struct clf_plan *plan, const struct clinfer_mla_decode_branch_params *p,
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
    return clf_push_matmul(plan, &m);
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
    clf_push(l, (cl_uint) (is_windowed(p->mask) ? p->local_window_size : 0));
    clf_launch_grid(l, CLF_DIM(plan, 'T'), s->head_blocks, s->splits);

    l = begin(plan, p, s, "mla_combine");
    clf_push_workspace(l, plan, s->valid);
    clf_push_workspace(l, plan, s->sums);
    clf_push_workspace(l, plan, s->tops);
    clf_push_workspace(l, plan, s->raw);
    clf_push(l, (cl_uint) s->splits);
    clf_launch_grid(l, CLF_DIM(plan, 'T'), CLF_DIM(plan, 'H'), 1);
}

static clinfer_status prepare(struct clf_plan *plan, const void *params)
{
    const struct clinfer_mla_decode_branch_params *p = params;
    clinfer_status st = check_shapes(plan);
    if (!st)
        st = check_weights(plan, p);
    if (!st)
        st = check_scalars(plan, p);
    if (st)
        return st;
    plan->workspace_mem = p->workspace;
    plan->workspace_offset = p->workspace ? p->workspace_offset : 0;
    const struct schedule s = lay_out(plan, p);
    if (plan->workspace == SIZE_MAX)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "the workspace of %" PRId64 " tokens and %" PRId64 " splits passes 2^64 bytes",
                        CLF_DIM(plan, 'T'), s.splits);
    if ((st = check_local(plan, p, &s)))
        return st;
    if (p->workspace && (st = clf_add_view(plan, "workspace", p->workspace, p->workspace_offset,
                                           (int64_t) plan->workspace, 1, true)))
        return st;
    // The softmax runs in base 2: log2(e) and the scale are folded into q.
    const float score_scale = p->scale * 1.44269504088896340736f;
    push_inputs(plan, p, &s, score_scale);
    if (CLF_DIM(plan, 'N') && (st = push_projection(plan, p, &s, false, score_scale)))
        return st;
    push_attention(plan, p, &s);
    return push_projection(plan, p, &s, true, score_scale);
}

const struct clf_op clf_op_mla_decode_branch = { "mla_decode_branch", CLF_TENSORS(tensors),
                                                 CLF_CACHE_FIELDS(clinfer_mla_decode_branch_params), true,
                                                 prepare };

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
