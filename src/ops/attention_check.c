// SPDX-License-Identifier: Apache-2.0
#include "attention_check.h"
#include <inttypes.h>

clinfer_status clf_check_attention(struct clf_plan *plan, const struct clf_attention_scalars *s)
{
    if ((unsigned) s->mask > CLINFER_MASK_SLIDING_WINDOW_CAUSAL)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "mask is %d, want 0 to %d", (int) s->mask,
                        CLINFER_MASK_SLIDING_WINDOW_CAUSAL);
    if (clf_is_windowed(s->mask) && (s->window < 1 || s->window > INT32_MAX))
        return clf_fail(plan, CLINFER_ERR_ARGUMENT,
                        "local_window_size is %" PRId64 ", but the mask wants 1 to %d", s->window, INT32_MAX);
    if ((unsigned) s->score_mod > CLINFER_ALIBI)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "score_mod is %d, want 0 to %d", (int) s->score_mod,
                        CLINFER_ALIBI);
    if (s->num_splits < 0 || s->num_splits > UINT16_MAX)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "num_splits is %d, want 0 to %d", s->num_splits,
                        UINT16_MAX);
    if (s->max_context < 0)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "max_context is %" PRId64 ", want 0 or more",
                        s->max_context);
    if (s->workspace_offset % 64)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "workspace_offset is %zu, want a multiple of 64",
                        s->workspace_offset);
    return CLINFER_OK;
}
