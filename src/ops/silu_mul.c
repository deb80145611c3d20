// SPDX-License-Identifier: Apache-2.0
#include "plan.h"
#include "tune.h"
#include <clinfer/silu_mul.h>
#include <inttypes.h>
#include "ref.h"

#define FIELD(name) offsetof(struct clinfer_silu_mul_params, name)
static const struct clf_tensor_rule tensors[] = {
    { "output", "T,N", FIELD(output), CLF_FLOATS, CLF_OUT, NULL, NULL },
    { "x", "T,N+N", FIELD(x), CLF_FLOATS, CLF_IN, "output", NULL },
};

static clinfer_status prepare(struct clf_plan *plan, const void *params)
{
    const struct clinfer_silu_mul_params *p = params;
    const int64_t T = CLF_DIM(plan, 'T'), N = CLF_DIM(plan, 'N');
    const int64_t runs = clf_tune_runs(plan->caps, T, N);
    struct clf_launch *l = clf_launch_begin(plan, "silu_mul", "silu_mul", N ? T : 0);
    clf_define_type(l, "X_T", p->x.dtype);
    clf_push_tensor(l, &p->x, 2);
    clf_push_tensor(l, &p->output, 2);
    clf_push(l, (cl_uint) N);
    clf_launch_grid(l, T, runs, 1);
    return CLINFER_OK;
}

static void ref(const void *params)
{
    ref_silu_mul(params);
}

const struct clf_op clf_op_silu_mul = {
    "silu_mul", CLF_TENSORS(tensors), CLF_PLAIN_FIELDS(clinfer_silu_mul_params), false, prepare, ref, NULL
};

clinfer_status clinfer_silu_mul(clinfer_ctx *ctx, const struct clinfer_silu_mul_params *params,
                                cl_uint num_events_in_wait_list, const cl_event *event_wait_list,
                                cl_event *event)
{
    return clf_run(ctx, &clf_op_silu_mul, params, num_events_in_wait_list, event_wait_list, event);
}

clinfer_status clinfer_silu_mul_compile(clinfer_ctx *ctx, const struct clinfer_silu_mul_params *params)
{
    return clf_compile(ctx, &clf_op_silu_mul, params);
}
