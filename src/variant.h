// SPDX-License-Identifier: Apache-2.0
// The kernel sets as variants of an op: which one its calls take, and which are disabled on this device.
#pragma once
#include "op.h"
#include <stdatomic.h>

enum { CLF_NUM_SETS = 2 };

struct clf_variant {
    atomic_bool disabled;
    bool known;            // the cache has been asked for a record
    clinfer_status status; // why it is disabled
    char reason[CLF_ERROR_SIZE / 2];
};

struct clf_call;

// The context's capabilities with the set that the op's next call takes. No lock needed.
struct clf_caps clf_variant_caps(const clinfer_ctx *ctx, const struct clf_op *op);

// The kernels of a planned call; programs fresh from the compiler are checked. *again: the plan's set has
// been disabled and another one takes over, so that the call is to be planned anew. Call with the lock held;
// it is let go of while a program is built or checked.
clinfer_status clf_variant_kernels(struct clf_call *c, const void *params, bool *again);
