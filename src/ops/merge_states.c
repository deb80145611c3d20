// SPDX-License-Identifier: Apache-2.0
#include "plan.h"
#include "tune.h"
#include <clinfer/merge_states.h>
#include <inttypes.h>
#include "ref.h"

#define FIELD(name) offsetof(struct clinfer_merge_states_params, name)
static const struct clf_tensor_rule tensors[] = {
    { "out_a", "T,H,V", FIELD(out_a), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "lse_a", "T,H", FIELD(lse_a), CLF_F32, CLF_IN, NULL, NULL },
    { "out_b", "T,H,V", FIELD(out_b), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "lse_b", "T,H", FIELD(lse_b), CLF_F32, CLF_IN, NULL, NULL },
    { "output", "T,H,V", FIELD(output), CLF_FLOATS, CLF_OUT, "out_a", "out_a" },
    { "lse", "T,H", FIELD(lse), CLF_F32, CLF_OUT, NULL, "lse_a" },
};

static clinfer_status check(struct clf_plan *plan)
{
    enum { MAX_ROW = 1 << 30 }; // kernels count a row's elements in int
    const int64_t H = CLF_DIM(plan, 'H'), V = CLF_DIM(plan, 'V');
    if (H < 1 || V < 1)
        return clf_fail(plan, CLINFER_ERR_SHAPE, "out_a: axis %d is 0, want 1 or more", H < 1 ? 1 : 2);
    return clf_check_row(plan, "out_a: axis 1 * axis 2", H * V, MAX_ROW);
}

// Work-items, in the group set work-groups, that share the heads of a token. A group's items take a head's
// shares each.
static int64_t runs_of(const struct clf_plan *plan)
{
    const int64_t T = CLF_DIM(plan, 'T'), H = CLF_DIM(plan, 'H'), V = CLF_DIM(plan, 'V');
    if (plan->caps->set == CLINFER_SET_GROUP) {
        const int64_t fewest = clf_blocks(H, clf_tune_group(plan->caps).items);
        const int64_t n = clf_tune_head_groups(plan->caps, T, H);
        return n < fewest ? fewest : n;
    }
    const int64_t n = clf_tune_runs(plan->caps, T, H * V);
    return n < H ? n : H;
}

static clinfer_status prepare(struct clf_plan *plan, const void *params)
{
    const struct clinfer_merge_states_params *p = params;
    const clinfer_status st = check(plan);
    if (st)
        return st;
    struct clf_launch *l = clf_launch_begin(plan, "merge_states", "merge_states", CLF_DIM(plan, 'T'));
    clf_define_type(l, "A_T", p->out_a.dtype);
    clf_define_type(l, "B_T", p->out_b.dtype);
    clf_define(l, "VALUE_SIZE", CLF_DIM(plan, 'V'));
    clf_push_tensor(l, &p->out_a, 3);
    clf_push_tensor(l, &p->lse_a, 2);
    clf_push_tensor(l, &p->out_b, 3);
    clf_push_tensor(l, &p->lse_b, 2);
    clf_push_tensor(l, &p->output, 3);
    clf_push_tensor(l, &p->lse, 2);
    clf_push(l, (cl_uint) CLF_DIM(plan, 'H'));
    clf_launch_grid(l, CLF_DIM(plan, 'T'), runs_of(plan), 1);
    return CLINFER_OK;
}

static void ref(const void *params)
{
    ref_merge_states(params);
}

const struct clf_op clf_op_merge_states = { "merge_states",
                                            CLF_TENSORS(tensors),
                                            CLF_PLAIN_FIELDS(clinfer_merge_states_params),
                                            false,
                                            prepare,
                                            ref,
                                            NULL };

clinfer_status clinfer_merge_states(clinfer_ctx *ctx, const struct clinfer_merge_states_params *params,
                                    cl_uint num_events_in_wait_list, const cl_event *event_wait_list,
                                    cl_event *event)
{
    return clf_run(ctx, &clf_op_merge_states, params, num_events_in_wait_list, event_wait_list, event);
}

clinfer_status clinfer_merge_states_compile(clinfer_ctx *ctx,
                                            const struct clinfer_merge_states_params *params)
{
    return clf_compile(ctx, &clf_op_merge_states, params);
}
