// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ctx.h"

// Hands each program of the plan to the context's `inspect`. Call without the lock.
clinfer_status clf_inspect(clinfer_ctx *ctx, const struct clf_plan *plan);
