// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "attention_check.h"

// What both branches of MLA have, as far as it is checked.
struct clf_mla_call {
    struct {
        const char *name, *scale_name;
        const clinfer_tensor *w, *scale; // rows and columns are the last two axes
    } weights[2];
    int64_t n_granularity, k_granularity;
    float epsilon;
    struct clf_attention_scalars attention;
};

// What the tensor table cannot say: extents against each other, scales of weights, scalars.
clinfer_status clf_check_mla(struct clf_plan *plan, const struct clf_mla_call *c);
