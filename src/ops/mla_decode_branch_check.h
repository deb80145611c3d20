// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "plan.h"
#include <clinfer/mla_decode_branch.h>

// What the tensor table cannot say of a call: extents against each other, scales of weights, scalars.
clinfer_status clf_check_mla_decode(struct clf_plan *plan, const struct clinfer_mla_decode_branch_params *p);

// Whether the mask takes local_window_size.
static inline bool clf_is_windowed(clinfer_mask mask)
{
    return mask != CLINFER_MASK_CAUSAL && mask != CLINFER_MASK_NULL;
}
