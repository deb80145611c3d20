// SPDX-License-Identifier: Apache-2.0
// Known answers: a small call of the same programs against the reference. See self_check.c.
#pragma once
#include "call.h"

struct clf_verdict {
    bool good;
    char reason[CLF_ERROR_SIZE / 2]; // why not, as what a set did: "failed its self-check (...)"
};

// Runs the programs of a planned call, whose kernels are there, on a call of the engine's own, and waits for
// it. An error says that there is no verdict. Call without the lock.
clinfer_status clf_self_check(const struct clf_call *call, const void *params, struct clf_verdict *verdict);
