// SPDX-License-Identifier: Apache-2.0
#include "plan.h"
#include "tune.h"
#include <clinfer/fused_qk_rope.h>
#include <inttypes.h>
#include "ref.h"

#define FIELD(name) offsetof(struct clinfer_fused_qk_rope_params, name)
// Q is a query head's size; I the rows of position_ids.
static const struct clf_tensor_rule tensors[] = {
    { "q_proj", "T,H,Q", FIELD(q_proj), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "freqs_cis", "F,R", FIELD(freqs_cis), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "output", "T,H,Q", FIELD(output), CLF_FLOATS, CLF_OUT, "q_proj", "q_proj" },
    { "position_ids", "I,T", FIELD(position_ids), CLF_U32, CLF_OPTIONAL, NULL, NULL },
};

static clinfer_status check(struct clf_plan *plan, const struct clinfer_fused_qk_rope_params *p)
{
    const int64_t H = CLF_DIM(plan, 'H'), K = CLF_DIM(plan, 'K'), Q = CLF_DIM(plan, 'Q'),
                  D = CLF_DIM(plan, 'D'), R = CLF_DIM(plan, 'R');
    if (H % K)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "%" PRId64 " query heads are no multiple of %" PRId64 " KV heads", H, K);
    if (R % 2)
        return clf_fail(plan, CLINFER_ERR_SHAPE, "freqs_cis: axis 1 is %" PRId64 ", want an even number", R);
    if (R > Q || R > D)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "freqs_cis: %" PRId64 " rotated dims, but heads are %" PRId64 " (q) and %" PRId64
                        " (cache)",
                        R, Q, D);
    if (!p->interleaved && Q != D)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "split halves want equal head sizes, got %" PRId64 " (q) and %" PRId64 " (cache)", Q,
                        D);
    return CLINFER_OK;
}

static clinfer_status check_sections(struct clf_plan *plan, const struct clinfer_fused_qk_rope_params *p)
{
    const int n = p->num_mrope_sections;
    const int64_t rows = p->position_ids.rank ? CLF_DIM(plan, 'I') : 0;
    if (n < 0 || n > CLINFER_MAX_MROPE_SECTIONS)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "num_mrope_sections is %d, want 0 to %d", n,
                        CLINFER_MAX_MROPE_SECTIONS);
    if (n && !p->position_ids.rank)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "%d mrope sections, but no position_ids", n);
    if (p->position_ids.rank && (rows < 1 || (n && rows != n)))
        return clf_fail(plan, CLINFER_ERR_SHAPE, "position_ids: axis 0 is %" PRId64 ", want %d", rows,
                        n ? n : 1);
    for (int i = 0; i < n; i++)
        if (p->mrope_section[i] <= (i ? p->mrope_section[i - 1] : 0))
            return clf_fail(plan, CLINFER_ERR_ARGUMENT, "mrope_section: end %d is %d, want more than %d", i,
                            p->mrope_section[i], i ? p->mrope_section[i - 1] : 0);
    return CLINFER_OK;
}

static clinfer_status prepare(struct clf_plan *plan, const void *params)
{
    static const char *const end_name[CLINFER_MAX_MROPE_SECTIONS] = { "MROPE_END0", "MROPE_END1",
                                                                      "MROPE_END2", "MROPE_END3",
                                                                      "MROPE_END4", "MROPE_END5",
                                                                      "MROPE_END6", "MROPE_END7" };
    const struct clinfer_fused_qk_rope_params *p = params;
    clinfer_status st = check(plan, p);
    if (!st)
        st = check_sections(plan, p);
    if (st)
        return st;
    const int64_t T = CLF_DIM(plan, 'T'), H = CLF_DIM(plan, 'H'), D = CLF_DIM(plan, 'D');
    st = clf_check_row(plan, "head_size", D, CLF_MAX_ROW);
    if (!st && p->kv.scale_group) // other rows are rotated where they lie
        st = clf_check_local(plan, "fused_qk_rope", clf_staged_bytes(plan, D, clf_scale_groups(&p->kv)));
    if (st)
        return st;
    struct clf_launch *l = clf_launch_begin(plan, "fused_qk_rope", "fused_qk_rope", T);
    clf_define_type(l, "Q_T", p->q_proj.dtype);
    clf_define_type(l, "FREQS_T", p->freqs_cis.dtype);
    clf_define(l, "HEADS", H);
    clf_define(l, "Q_SIZE", CLF_DIM(plan, 'Q'));
    clf_define(l, "ROPE_DIM", CLF_DIM(plan, 'R'));
    clf_define(l, "INTERLEAVED", p->interleaved != 0);
    clf_define(l, "POSITION_IDS", p->position_ids.rank != 0);
    clf_define(l, "MROPE_SECTIONS", p->num_mrope_sections);
    for (int i = 0; i < p->num_mrope_sections; i++)
        clf_define(l, end_name[i], p->mrope_section[i]);
    clf_define_paged(l, plan, params);
    clf_push_paged(l, plan, params);
    clf_push_tensor(l, &p->q_proj, 3);
    clf_push_tensor(l, &p->output, 3);
    clf_push_tensor(l, &p->freqs_cis, 2);
    clf_push(l, (cl_uint) CLF_DIM(plan, 'F'));
    clf_push_tensor(l, &p->position_ids, 2);
    clf_launch_grid(l, T, clf_tune_head_groups(plan->caps, T, H), 1);
    return CLINFER_OK;
}

static void ref(const void *params)
{
    ref_fused_qk_rope(params);
}

const struct clf_op clf_op_fused_qk_rope = { "fused_qk_rope",
                                             CLF_TENSORS(tensors),
                                             CLF_CACHE_FIELDS(clinfer_fused_qk_rope_params),
                                             false,
                                             prepare,
                                             ref,
                                             NULL };

clinfer_status clinfer_fused_qk_rope(clinfer_ctx *ctx, const struct clinfer_fused_qk_rope_params *params,
                                     cl_uint num_events_in_wait_list, const cl_event *event_wait_list,
                                     cl_event *event)
{
    return clf_run(ctx, &clf_op_fused_qk_rope, params, num_events_in_wait_list, event_wait_list, event);
}

clinfer_status clinfer_fused_qk_rope_compile(clinfer_ctx *ctx,
                                             const struct clinfer_fused_qk_rope_params *params)
{
    return clf_compile(ctx, &clf_op_fused_qk_rope, params);
}
