// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "attention_check.h"
#include <clinfer/mla_decode_branch.h>

// What the tensor table cannot say of a call: extents against each other, scales of weights, scalars.
clinfer_status clf_check_mla_decode(struct clf_plan *plan, const struct clinfer_mla_decode_branch_params *p);
