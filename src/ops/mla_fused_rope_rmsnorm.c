// SPDX-License-Identifier: Apache-2.0
#include "plan.h"
#include "tune.h"
#include <clinfer/mla_fused_rope_rmsnorm.h>
#include <inttypes.h>
#include "ref.h"

#define FIELD(name) offsetof(struct clinfer_mla_fused_rope_rmsnorm_params, name)
static const struct clf_tensor_rule tensors[] = {
    { "q_rope", "T,H,R", FIELD(q_rope), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "q_rope_output", "T,H,R", FIELD(q_rope_output), CLF_FLOATS | CLF_F8, CLF_OUT, NULL, "q_rope" },
    { "gamma", "C", FIELD(gamma), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "kv_input", "T,C+R", FIELD(kv_input), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "freqs_cis", "F,R", FIELD(freqs_cis), CLF_FLOATS, CLF_IN, NULL, NULL },
};

static clinfer_status check(struct clf_plan *plan, const struct clinfer_mla_fused_rope_rmsnorm_params *p)
{
    const int64_t C = CLF_DIM(plan, 'C'), R = CLF_DIM(plan, 'R'), D = CLF_DIM(plan, 'D');
    if (R % 2)
        return clf_fail(plan, CLINFER_ERR_SHAPE, "freqs_cis: axis 1 is %" PRId64 ", want an even number", R);
    if (C < 1)
        return clf_fail(plan, CLINFER_ERR_SHAPE, "gamma: axis 0 is %" PRId64 ", want at least 1", C);
    if (C + R != D)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "kv: head_size is %" PRId64 ", but C + R is %" PRId64 " + %" PRId64, D, C, R);
    if (!(p->epsilon >= 0))
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "epsilon is %g, want 0 or more", (double) p->epsilon);
    return CLINFER_OK;
}

static clinfer_status prepare(struct clf_plan *plan, const void *params)
{
    const struct clinfer_mla_fused_rope_rmsnorm_params *p = params;
    clinfer_status st = check(plan, p);
    if (!st)
        st = clf_check_row(plan, "head_size", CLF_DIM(plan, 'D'), CLF_MAX_ROW);
    if (!st)
        st = clf_check_local(plan, "mla_fused_rope_rmsnorm",
                             clf_staged_bytes(plan, CLF_DIM(plan, 'D'), clf_scale_groups(&p->kv)));
    if (st)
        return st;
    const int64_t T = CLF_DIM(plan, 'T'), H = CLF_DIM(plan, 'H');
    struct clf_launch *l = clf_launch_begin(plan, "mla_fused_rope_rmsnorm", "mla_fused_rope_rmsnorm", T);
    clf_define_type(l, "Q_T", p->q_rope.dtype);
    clf_define_type(l, "OUT_T", p->q_rope_output.dtype);
    clf_define_type(l, "KV_INPUT_T", p->kv_input.dtype);
    clf_define_type(l, "GAMMA_T", p->gamma.dtype);
    clf_define_type(l, "FREQS_T", p->freqs_cis.dtype);
    clf_define(l, "HEADS", H);
    clf_define(l, "LATENT", CLF_DIM(plan, 'C'));
    clf_define(l, "ROPE_DIM", CLF_DIM(plan, 'R'));
    clf_define_paged(l, plan, params);
    clf_push_paged(l, plan, params);
    clf_push_tensor(l, &p->q_rope, 3);
    clf_push_tensor(l, &p->q_rope_output, 3);
    clf_push_tensor(l, &p->kv_input, 2);
    clf_push_tensor(l, &p->gamma, 1);
    clf_push_tensor(l, &p->freqs_cis, 2);
    clf_push(l, (cl_uint) CLF_DIM(plan, 'F'));
    clf_push(l, p->epsilon);
    clf_launch_grid(l, T, clf_tune_head_groups(plan->caps, T, H), 1);
    return CLINFER_OK;
}

static void ref(const void *params)
{
    ref_mla_fused_rope_rmsnorm(params);
}

static void shrink(void *params, int64_t tokens)
{
    struct clinfer_mla_fused_rope_rmsnorm_params *p = params;
    (void) tokens;
    p->epsilon = 1e-5f;
}

const struct clf_op clf_op_mla_fused_rope_rmsnorm = { "mla_fused_rope_rmsnorm",
                                                      CLF_TENSORS(tensors),
                                                      CLF_CACHE_FIELDS(clinfer_mla_fused_rope_rmsnorm_params),
                                                      true,
                                                      prepare,
                                                      ref,
                                                      shrink };

clinfer_status clinfer_mla_fused_rope_rmsnorm(clinfer_ctx *ctx,
                                              const struct clinfer_mla_fused_rope_rmsnorm_params *params,
                                              cl_uint num_events_in_wait_list,
                                              const cl_event *event_wait_list, cl_event *event)
{
    return clf_run(ctx, &clf_op_mla_fused_rope_rmsnorm, params, num_events_in_wait_list, event_wait_list,
                   event);
}

clinfer_status
clinfer_mla_fused_rope_rmsnorm_compile(clinfer_ctx *ctx,
                                       const struct clinfer_mla_fused_rope_rmsnorm_params *params)
{
    return clf_compile(ctx, &clf_op_mla_fused_rope_rmsnorm, params);
}
