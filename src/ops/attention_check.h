// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "plan.h"
#include <clinfer/attention_mask.h>

// Whether the mask takes local_window_size.
static inline bool clf_is_windowed(clinfer_mask mask)
{
    return mask != CLINFER_MASK_CAUSAL && mask != CLINFER_MASK_NULL;
}

// The scalars that the operations with a softmax have in common.
struct clf_attention_scalars {
    clinfer_mask mask;
    int64_t window;
    clinfer_score_mod score_mod;
    int num_splits;
    int64_t max_context;
    size_t workspace_offset;
};
clinfer_status clf_check_attention(struct clf_plan *plan, const struct clf_attention_scalars *s);
