// SPDX-License-Identifier: Apache-2.0
#include "mla_decode_branch_check.h"
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
    if (!(p->epsilon >= 0))
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "epsilon is %g, want 0 or more", (double) p->epsilon);
    return clf_check_attention(plan, &(struct clf_attention_scalars){ p->mask, p->local_window_size,
                                                                      p->score_mod, p->num_splits,
                                                                      p->max_context, p->workspace_offset });
}

clinfer_status clf_check_mla_decode(struct clf_plan *plan, const struct clinfer_mla_decode_branch_params *p)
{
    clinfer_status st = check_shapes(plan);
    if (!st)
        st = check_weights(plan, p);
    return st ? st : check_scalars(plan, p);
}
