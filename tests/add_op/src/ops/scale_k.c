// SPDX-License-Identifier: Apache-2.0
#include "plan.h"
#include <clinfer/scale_k.h>
#include <inttypes.h>
#include "ref.h"

static const struct clf_tensor_rule tensors[] = {
    { "factors", "K", offsetof(struct clinfer_scale_k_params, factors), CLF_F32, CLF_IN, NULL, NULL },
};

static clinfer_status prepare(struct clf_plan *plan, const void *params)
{
    const struct clinfer_scale_k_params *p = params;
    const int64_t T = p->total_seq_len;
    if (T < 0 || T > INT32_MAX)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "total_seq_len is %" PRId64 ", want 0 to %d", T,
                        INT32_MAX);
    clinfer_status st = clf_check_row(plan, "head_size", CLF_DIM(plan, 'D'), CLF_MAX_ROW);
    if (!st && p->kv.scale_group)
        st = clf_check_local(plan, "scale_k",
                             clf_staged_bytes(plan, CLF_DIM(plan, 'D'), clf_scale_groups(&p->kv)));
    if (st)
        return st;
    CLF_DIM(plan, 'T') = T;
    struct clf_launch *l = clf_launch_begin(plan, "scale_k", "scale_k", T);
    clf_define_paged(l, plan, params);
    clf_push_paged(l, plan, params);
    clf_push_tensor(l, &p->factors, 1);
    clf_push(l, p->scale);
    clf_launch_grid(l, T, 1, 1);
    return CLINFER_OK;
}

static void ref(const void *params)
{
    ref_scale_k(params);
}

static void shrink(void *params, int64_t tokens)
{
    struct clinfer_scale_k_params *p = params;
    p->total_seq_len = tokens;
    p->scale = 0.75f; // 0 would hide what a kernel gets wrong
}

const struct clf_op clf_op_scale_k = {
    "scale_k", CLF_TENSORS(tensors), CLF_CACHE_FIELDS(clinfer_scale_k_params), false, prepare, ref, shrink
};

clinfer_status clinfer_scale_k(clinfer_ctx *ctx, const struct clinfer_scale_k_params *params,
                               cl_uint num_events_in_wait_list, const cl_event *event_wait_list,
                               cl_event *event)
{
    return clf_run(ctx, &clf_op_scale_k, params, num_events_in_wait_list, event_wait_list, event);
}

clinfer_status clinfer_scale_k_compile(clinfer_ctx *ctx, const struct clinfer_scale_k_params *params)
{
    return clf_compile(ctx, &clf_op_scale_k, params);
}
