// SPDX-License-Identifier: Apache-2.0
#include "attention_check.h"
#include "tune.h"
#include "validate.h"
#include <clinfer/paged_attention.h>
#include <inttypes.h>
#include <math.h>
#include "ref.h"

#define FIELD(name) offsetof(struct clinfer_paged_attention_params, name)
// V is a head's size in output.
static const struct clf_tensor_rule tensors[] = {
    { "q", "T,H,D", FIELD(q), CLF_FLOATS | CLF_F8, CLF_IN, NULL, NULL },
    { "sinks", "H", FIELD(sinks), CLF_F32, CLF_OPTIONAL, NULL, NULL },
    { "output", "T,H,V", FIELD(output), CLF_FLOATS, CLF_OUT, NULL, NULL },
    { "lse", "T,H", FIELD(lse), CLF_F32, CLF_OUT | CLF_OPTIONAL, NULL, NULL },
};

// What the launches share.
struct schedule {
    struct clf_paged_tiles tile;
    int64_t blocks;                         // of a KV head's query heads
    int64_t units, unit_heads, run, splits; // places of the grid; KV heads and at most tokens of an item
    size_t sums, tops;                      // offsets in the workspace
};

static clinfer_status check(struct clf_plan *plan, const struct clinfer_paged_attention_params *p)
{
    const bool own = clf_kv_given(&p->kv_v);
    const int64_t H = CLF_DIM(plan, 'H'), K = CLF_DIM(plan, 'K'), V = CLF_DIM(plan, 'V'),
                  v_size = own ? p->kv_v.head_size : p->kv.head_size;
    const clinfer_dtype want = p->q.dtype == CLINFER_F8_E4M3 ? CLINFER_BF16 : p->q.dtype;
    if (!own && p->kv.planes == 1)
        return clf_fail(plan, CLINFER_ERR_SHAPE, "kv: planes is 1, want 2, or a kv_v");
    if (H < 1 || H % K)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "q: axis 1 is %" PRId64 ", want a multiple of the %" PRId64 " KV heads", H, K);
    if (V != v_size)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "output: axis 2 is %" PRId64 ", but head_size of %s is %" PRId64, V,
                        own ? "kv_v" : "kv", v_size);
    if (p->output.dtype != want)
        return clf_fail(plan, CLINFER_ERR_TYPE, "output: type %s, want %s with q of type %s",
                        clinfer_dtype_str(p->output.dtype), clinfer_dtype_str(want),
                        clinfer_dtype_str(p->q.dtype));
    if (!(p->softcap >= 0) || isinf(p->softcap))
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "softcap is %g, want 0 or more", (double) p->softcap);
    clinfer_status st = clf_check_row(plan, "kv: head_size", p->kv.head_size, CLF_MAX_ATTENTION_ROW);
    if (!st)
        st = clf_check_row(plan, own ? "kv_v: head_size" : "kv: head_size", v_size, CLF_MAX_ATTENTION_ROW);
    return st ? st
              : clf_check_attention(plan, &(struct clf_attention_scalars){
                                              p->mask, p->local_window_size, p->score_mod, p->num_splits,
                                              p->max_context, p->workspace_offset });
}

// Parts of all tokens, one a split, none where keys are not split. Left to the engine, splits fall as T
// grows: what is reserved never does, so that a workspace for the largest T serves every smaller one.
static int64_t count_parts(const struct clf_plan *plan, const struct clinfer_paged_attention_params *p,
                           const struct schedule *s, int64_t keys)
{
    const int64_t T = CLF_DIM(plan, 'T'), heads = CLF_DIM(plan, 'K') * s->blocks;
    int64_t parts;
    if (!p->num_splits)
        return clf_tune_paged_parts(plan->caps, T, heads, keys);
    if (p->num_splits == 1)
        return 0;
    return __builtin_mul_overflow(T, p->num_splits, &parts) ? -1 : parts; // -1 as a size: more than there is
}

// Whether bf16 has every value of a cache.
static bool is_bf16(const clinfer_kv_cache *kv)
{
    return kv->dtype == CLINFER_BF16 || (kv->dtype == CLINFER_F8_E4M3 && !kv->scale_group);
}

static struct schedule lay_out(struct clf_plan *plan, const struct clinfer_paged_attention_params *p)
{
    const int64_t T = CLF_DIM(plan, 'T'), H = CLF_DIM(plan, 'H'), K = CLF_DIM(plan, 'K'),
                  V = CLF_DIM(plan, 'V');
    const int64_t keys = p->max_context ? p->max_context : CLF_DIM(plan, 'M') * CLF_DIM(plan, 'S');
    const clinfer_kv_cache *v = clf_kv_given(&p->kv_v) ? &p->kv_v : &p->kv;
    const struct clf_paged_shape shape = { .tokens = T,
                                           .requests = CLF_DIM(plan, 'B'),
                                           .group = H / K,
                                           .key_size = CLF_DIM(plan, 'D'),
                                           .value_size = V,
                                           .as_bf16 = is_bf16(&p->kv) && is_bf16(v) };
    struct schedule s = { .tile = clf_tune_paged(plan->caps, &shape) };
    s.blocks = clf_blocks(H / K, s.tile.head_block);
    s.units = T;
    const struct clf_paged_grid grid =
        clf_tune_paged_grid(plan->caps, &s.tile, T, CLF_DIM(plan, 'B'), K, s.blocks, p->num_splits, keys);
    s.unit_heads = grid.unit_heads;
    s.run = grid.run;
    s.splits = grid.splits;
    const int64_t parts = count_parts(plan, p, &s, keys);
    s.sums = clf_reserve(plan, parts, H * clf_blocks(V, s.tile.lanes) * s.tile.lanes * 4);
    s.tops = clf_reserve(plan, parts, H * 8);
    return s;
}

// Both kernels of cl/SET/paged_attention.cl are one program.
static struct clf_launch *begin(struct clf_plan *plan, const struct clinfer_paged_attention_params *p,
                                const struct schedule *s, const char *kernel, int64_t count)
{
    struct clf_launch *l = clf_launch_begin(plan, "paged_attention", kernel, count);
    clf_define_type(l, "Q_T", p->q.dtype);
    clf_define_type(l, "OUT_T", p->output.dtype);
    clf_define(l, "HEADS", CLF_DIM(plan, 'H'));
    clf_define(l, "MASK", p->mask);
    clf_define(l, "ALIBI", p->score_mod == CLINFER_ALIBI);
    clf_define(l, "SOFTCAP", p->softcap > 0);
    clf_define(l, "HEAD_BLOCK", s->tile.head_block);
    clf_define(l, "TOKENS", s->tile.tokens);
    clf_define(l, "TILE", s->tile.tile);
    if (plan->caps->set == CLINFER_SET_GROUP) {
        clf_define_type(l, "TILE_T", s->tile.tile_type);
    } else {
        clf_define(l, "ROW_TILE", s->tile.row_tile);
        clf_define(l, "VALUE_TILE", s->tile.value_tile);
    }
    clf_define_values(l, plan, p);
    clf_define_paged(l, plan, p);
    clf_push_paged(l, plan, p);
    return l;
}

static void push_results(struct clf_launch *l, const struct clf_plan *plan,
                         const struct clinfer_paged_attention_params *p, const struct schedule *s)
{
    clf_push_tensor(l, &p->sinks, 1);
    clf_push_tensor(l, &p->output, 3);
    clf_push_tensor(l, &p->lse, 2);
    clf_push_workspace(l, plan, s->sums);
    clf_push_workspace(l, plan, s->tops);
    clf_push_mem(l, NULL);
    clf_push(l, (cl_ulong) 0);
    clf_push(l, (cl_uint) 0);
    clf_push(l, (cl_uint) s->splits);
}

static void push_launches(struct clf_plan *plan, const struct clinfer_paged_attention_params *p,
                          const struct schedule *s)
{
    const int64_t T = CLF_DIM(plan, 'T'), H = CLF_DIM(plan, 'H');
    const float log2_e = 1.44269504088896340736f;
    struct clf_launch *l = begin(plan, p, s, "paged_attention", T);
    clf_push_values(l, plan, p);
    clf_push_tensor(l, &p->q, 3);
    push_results(l, plan, p, s);
    clf_push(l, (cl_uint) s->run);
    clf_push(l, (cl_uint) s->unit_heads);
    clf_push(l, (cl_uint) (clf_is_windowed(p->mask) ? p->local_window_size : 0));
    // The softmax runs in base 2.
    clf_push(l, p->softcap > 0 ? p->scale / p->softcap : p->scale * log2_e);
    clf_push(l, p->softcap * log2_e);
    clf_launch_grid(l, s->units, clf_blocks(CLF_DIM(plan, 'K'), s->unit_heads) * s->blocks, s->splits);

    // Without splits it returns at once, and is there so that each call takes the same programs.
    const bool merge = s->splits > 1;
    l = begin(plan, p, s, "paged_combine", merge ? T : 0);
    push_results(l, plan, p, s);
    clf_launch_grid(l, merge ? T : 1, merge ? H : 1, 1);
}

static clinfer_status prepare(struct clf_plan *plan, const void *params)
{
    const struct clinfer_paged_attention_params *p = params;
    clinfer_status st = check(plan, p);
    if (st)
        return st;
    plan->workspace_mem = p->workspace;
    plan->workspace_offset = p->workspace ? p->workspace_offset : 0;
    const struct schedule s = lay_out(plan, p);
    if (plan->workspace == SIZE_MAX)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "the workspace of %" PRId64 " tokens and %" PRId64 " splits passes 2^64 bytes",
                        CLF_DIM(plan, 'T'), s.splits);
    if ((st = clf_check_local(plan, "paged_attention", s.tile.local_bytes)))
        return st;
    if (p->workspace && (st = clf_add_view(plan, "workspace", p->workspace, p->workspace_offset,
                                           (int64_t) plan->workspace, 1, true)))
        return st;
    push_launches(plan, p, &s);
    return CLINFER_OK;
}

static void ref(const void *params)
{
    ref_paged_attention(params);
}

// Scores of about 1, two splits to merge, and windows that end inside a tile.
static void shrink(void *params, int64_t tokens)
{
    struct clinfer_paged_attention_params *p = params;
    (void) tokens;
    p->scale = 1 / sqrtf((float) p->kv.head_size);
    p->softcap = p->softcap > 0 ? 2 : 0;
    p->local_window_size = 9;
    p->max_context = 0;
    p->num_splits = 2;
    p->plan = NULL;
    p->workspace = NULL;
    p->workspace_offset = 0;
}

const struct clf_op clf_op_paged_attention = { "paged_attention",
                                               CLF_TENSORS(tensors),
                                               CLF_CACHE_FIELDS(clinfer_paged_attention_params),
                                               false,
                                               prepare,
                                               ref,
                                               shrink,
                                               FIELD(kv_v) };

clinfer_status clinfer_paged_attention(clinfer_ctx *ctx, const struct clinfer_paged_attention_params *params,
                                       cl_uint num_events_in_wait_list, const cl_event *event_wait_list,
                                       cl_event *event)
{
    return clf_run(ctx, &clf_op_paged_attention, params, num_events_in_wait_list, event_wait_list, event);
}

clinfer_status clinfer_paged_attention_compile(clinfer_ctx *ctx,
                                               const struct clinfer_paged_attention_params *params)
{
    return clf_compile(ctx, &clf_op_paged_attention, params);
}

clinfer_status clinfer_paged_attention_workspace(clinfer_ctx *ctx,
                                                 const struct clinfer_paged_attention_params *params,
                                                 size_t *bytes)
{
    return clf_measure(ctx, &clf_op_paged_attention, params, bytes);
}
