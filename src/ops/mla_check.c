// SPDX-License-Identifier: Apache-2.0
#include "mla_check.h"
#include <inttypes.h>

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

static clinfer_status check_scale(struct clf_plan *plan, const struct clf_mla_call *c, int which)
{
    const char *name = c->weights[which].scale_name;
    const clinfer_tensor *w = c->weights[which].w, *scale = c->weights[which].scale;
    if (!scale->rank)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "fp8 weights, but no %s", name);
    const int64_t rows = clf_blocks(w->shape[w->rank - 2], c->n_granularity),
                  columns = clf_blocks(w->shape[w->rank - 1], c->k_granularity),
                  *have = scale->shape + scale->rank - 2;
    if (have[0] != rows || have[1] != columns)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "%s: [%" PRId64 ", %" PRId64 "], want [%" PRId64 ", %" PRId64 "]", name, have[0],
                        have[1], rows, columns);
    return CLINFER_OK;
}

static clinfer_status check_weights(struct clf_plan *plan, const struct clf_mla_call *c)
{
    const clinfer_dtype type = c->weights[0].w->dtype;
    if (type != CLINFER_F8_E4M3) {
        if (c->weights[0].scale->rank || c->weights[1].scale->rank)
            return clf_fail(plan, CLINFER_ERR_ARGUMENT,
                            "weight scales with weights of type %s, which has none", clinfer_dtype_str(type));
        return CLINFER_OK;
    }
    if (c->n_granularity < 1 || c->k_granularity < 1 || c->n_granularity > INT32_MAX ||
        c->k_granularity > INT32_MAX)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT,
                        "n_granularity is %" PRId64 ", k_granularity %" PRId64 ", want at least 1",
                        c->n_granularity, c->k_granularity);
    clinfer_status st = check_scale(plan, c, 0);
    return st ? st : check_scale(plan, c, 1);
}

clinfer_status clf_check_mla(struct clf_plan *plan, const struct clf_mla_call *c)
{
    clinfer_status st = check_shapes(plan);
    if (!st)
        st = check_weights(plan, c);
    if (!st && !(c->epsilon >= 0))
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "epsilon is %g, want 0 or more", (double) c->epsilon);
    return st ? st : clf_check_attention(plan, &c->attention);
}
