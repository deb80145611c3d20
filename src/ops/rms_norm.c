// SPDX-License-Identifier: Apache-2.0
#include "plan.h"
#include "tune.h"
#include <clinfer/rms_norm.h>
#include <inttypes.h>
#include "ref.h"

#define FIELD(name) offsetof(struct clinfer_rms_norm_params, name)
// G is n.
static const struct clf_tensor_rule tensors[] = {
    { "x", "T,G", FIELD(x), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "gamma", "G", FIELD(gamma), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "residual", "T,G", FIELD(residual), CLF_FLOATS, CLF_OPTIONAL | CLF_CHANGED, NULL, NULL },
    { "output", "T,G", FIELD(output), CLF_FLOATS, CLF_OUT, "x", "x" },
};

static clinfer_status prepare(struct clf_plan *plan, const void *params)
{
    enum { MAX_ROW = 1 << 30 }; // kernels count a row's elements in int
    const struct clinfer_rms_norm_params *p = params;
    const int64_t T = CLF_DIM(plan, 'T'), n = CLF_DIM(plan, 'G');
    if (n < 1)
        return clf_fail(plan, CLINFER_ERR_SHAPE, "x: axis 1 is %" PRId64 ", want 1 or more", n);
    clinfer_status st = clf_check_row(plan, "x: axis 1", n, MAX_ROW);
    if (!st)
        st = clf_check_norm(plan, p->epsilon, p->cast);
    if (st)
        return st;
    struct clf_launch *l = clf_launch_begin(plan, "rms_norm", "rms_norm", T);
    clf_launch_items(l, clf_tune_row_items(plan->caps, n));
    clf_define_type(l, "X_T", p->x.dtype);
    clf_define_type(l, "GAMMA_T", p->gamma.dtype);
    clf_define(l, "CAST_FIRST", p->cast == CLINFER_CAST_THEN_MULTIPLY);
    clf_define(l, "RESIDUAL", p->residual.rank != 0);
    if (p->residual.rank)
        clf_define_type(l, "RESIDUAL_T", p->residual.dtype);
    clf_push_tensor(l, &p->x, 2);
    clf_push_tensor(l, &p->gamma, 1);
    clf_push_tensor(l, &p->residual, 2);
    clf_push_tensor(l, &p->output, 2);
    clf_push(l, (cl_int) n);
    clf_push(l, p->epsilon);
    clf_push(l, p->weight_offset);
    clf_launch_grid(l, clf_blocks(T, clf_tune_row_run(plan->caps, T)), 1, 1);
    return CLINFER_OK;
}

static void ref(const void *params)
{
    ref_rms_norm(params);
}

static void shrink(void *params, int64_t tokens)
{
    struct clinfer_rms_norm_params *p = params;
    (void) tokens;
    p->epsilon = 1e-5f;
    p->weight_offset = 0.25f;
}

const struct clf_op clf_op_rms_norm = {
    "rms_norm", CLF_TENSORS(tensors), CLF_PLAIN_FIELDS(clinfer_rms_norm_params), false, prepare, ref, shrink
};

clinfer_status clinfer_rms_norm(clinfer_ctx *ctx, const struct clinfer_rms_norm_params *params,
                                cl_uint num_events_in_wait_list, const cl_event *event_wait_list,
                                cl_event *event)
{
    return clf_run(ctx, &clf_op_rms_norm, params, num_events_in_wait_list, event_wait_list, event);
}

clinfer_status clinfer_rms_norm_compile(clinfer_ctx *ctx, const struct clinfer_rms_norm_params *params)
{
    return clf_compile(ctx, &clf_op_rms_norm, params);
}
