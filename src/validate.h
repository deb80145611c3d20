// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "op.h"

clinfer_status clf_validate_tensors(struct clf_plan *plan, const struct clf_tensor_rule *rules, int num_rules,
                                    const void *base);
// A contiguous view of `count` elements of `size` bytes, `offset` bytes into mem.
clinfer_status clf_add_view(struct clf_plan *plan, const char *name, cl_mem mem, size_t offset, int64_t count,
                            size_t size, bool out);
