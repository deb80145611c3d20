// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "op.h"

clinfer_status clf_validate_tensors(struct clf_plan *plan, const struct clf_tensor_rule *rules, int num_rules,
                                    const void *base);
// The axes that the rule names for a tensor of `rank`, and their number, which is another where the rank is
// wrong. *left_out: the letter of the axis in brackets that such a tensor does without, or 0.
struct clf_axis {
    const char *term; // such as "C+R"
    size_t length;
};
int clf_axes(const struct clf_tensor_rule *r, int rank, struct clf_axis axis[CLINFER_MAX_RANK],
             char *left_out);
// A contiguous view of `count` elements of `size` bytes, `offset` bytes into mem.
clinfer_status clf_add_view(struct clf_plan *plan, const char *name, cl_mem mem, size_t offset, int64_t count,
                            size_t size, bool out);
