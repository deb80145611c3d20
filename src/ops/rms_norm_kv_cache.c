// SPDX-License-Identifier: Apache-2.0
#include "plan.h"
#include "tune.h"
#include <clinfer/rms_norm_kv_cache.h>
#include <inttypes.h>
#include "ref.h"

// G is n, the elements that gamma covers.
static const struct clf_tensor_rule tensors[] = {
    { "gamma", "G", offsetof(struct clinfer_rms_norm_kv_cache_params, gamma), CLF_FLOATS, CLF_IN, NULL,
      NULL },
};

static clinfer_status check(struct clf_plan *plan, const struct clinfer_rms_norm_kv_cache_params *p)
{
    const int64_t G = CLF_DIM(plan, 'G'), K = CLF_DIM(plan, 'K'), D = CLF_DIM(plan, 'D');
    const int64_t most = p->rows == CLINFER_WHOLE_ROW ? K * D : D;
    if (p->rows != CLINFER_PER_HEAD && p->rows != CLINFER_WHOLE_ROW)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "rows is %d, want CLINFER_PER_HEAD or CLINFER_WHOLE_ROW",
                        (int) p->rows);
    if (G < 1 || G > most)
        return clf_fail(plan, CLINFER_ERR_SHAPE, "gamma: axis 0 is %" PRId64 ", want 1 to %" PRId64, G, most);
    if (p->total_seq_len < 0 || p->total_seq_len > INT32_MAX)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "total_seq_len is %" PRId64 ", want 0 to %d",
                        p->total_seq_len, INT32_MAX);
    return clf_check_norm(plan, p->epsilon, p->cast);
}

static clinfer_status prepare(struct clf_plan *plan, const void *params)
{
    const struct clinfer_rms_norm_kv_cache_params *p = params;
    const bool whole = p->rows == CLINFER_WHOLE_ROW;
    const char *row = whole ? "num_heads * head_size" : "head_size";
    const int64_t heads = whole ? CLF_DIM(plan, 'K') : 1, size = heads * CLF_DIM(plan, 'D');
    clinfer_status st = check(plan, p);
    if (!st)
        st = clf_check_row(plan, row, size, CLF_MAX_ROW);
    if (!st) // of a scaled row whole groups, else what gamma covers
        st = clf_check_local(
            plan, "rms_norm_kv_cache",
            clf_staged_bytes(plan, p->kv.scale_group ? size : CLF_DIM(plan, 'G'), clf_scale_groups(&p->kv)));
    if (st)
        return st;
    CLF_DIM(plan, 'T') = p->total_seq_len;
    struct clf_launch *l = clf_launch_begin(plan, "rms_norm_kv_cache", "rms_norm_kv_cache", p->total_seq_len);
    clf_define_type(l, "GAMMA_T", p->gamma.dtype);
    clf_define(l, "NORM_SIZE", CLF_DIM(plan, 'G'));
    clf_define(l, "WHOLE_ROW", whole);
    clf_define(l, "CAST_FIRST", p->cast == CLINFER_CAST_THEN_MULTIPLY);
    clf_define_paged(l, plan, params);
    clf_push_paged(l, plan, params);
    clf_push_tensor(l, &p->gamma, 1);
    clf_push(l, p->epsilon);
    clf_push(l, p->weight_offset);
    clf_launch_grid(l, p->total_seq_len,
                    clf_tune_head_groups(plan->caps, p->total_seq_len, whole ? 1 : CLF_DIM(plan, 'K')), 1);
    return CLINFER_OK;
}

static void ref(const void *params)
{
    ref_rms_norm_kv_cache(params);
}

static void shrink(void *params, int64_t tokens)
{
    struct clinfer_rms_norm_kv_cache_params *p = params;
    p->total_seq_len = tokens;
    p->epsilon = 1e-5f;
    p->weight_offset = 0.25f;
}

const struct clf_op clf_op_rms_norm_kv_cache = { "rms_norm_kv_cache",
                                                 CLF_TENSORS(tensors),
                                                 CLF_CACHE_FIELDS(clinfer_rms_norm_kv_cache_params),
                                                 false,
                                                 prepare,
                                                 ref,
                                                 shrink };

clinfer_status clinfer_rms_norm_kv_cache(clinfer_ctx *ctx,
                                         const struct clinfer_rms_norm_kv_cache_params *params,
                                         cl_uint num_events_in_wait_list, const cl_event *event_wait_list,
                                         cl_event *event)
{
    return clf_run(ctx, &clf_op_rms_norm_kv_cache, params, num_events_in_wait_list, event_wait_list, event);
}

clinfer_status clinfer_rms_norm_kv_cache_compile(clinfer_ctx *ctx,
                                                 const struct clinfer_rms_norm_kv_cache_params *params)
{
    return clf_compile(ctx, &clf_op_rms_norm_kv_cache, params);
}
