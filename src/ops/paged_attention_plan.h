// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ctx.h"
#include "tune.h"
#include <clinfer/paged_attention.h>

// What a plan's calls have in common: named numbers, for messages.
enum { CLF_PLAN_KEYS = 14 };
struct clf_attention_key {
    int64_t value[CLF_PLAN_KEYS];
};

// The schedule of one kernel set, in words of the plan's buffer: lib/attention_units.clh has the layout.
struct clf_attention_schedule {
    size_t offset;
    int64_t units, unit_heads, run, parts; // parts: of all tokens whose keys are split
};

struct clinfer_attention_plan {
    clinfer_ctx *ctx;
    cl_mem words;
    struct clf_attention_key key;
    struct clf_attention_schedule set[CLF_NUM_SETS];
};

// The tiles of a call that was validated.
struct clf_paged_tiles clf_paged_tiles_of(const struct clf_plan *plan,
                                          const struct clinfer_paged_attention_params *p);
// Whether the call is one that its plan is for.
clinfer_status clf_check_attention_plan(struct clf_plan *plan,
                                        const struct clinfer_paged_attention_params *p);
