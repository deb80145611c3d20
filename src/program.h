// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ctx.h"

// The kernel of a launch: from memory, else from the disk cache, else compiled. Call with the lock held; it
// is let go of while a program is built.
clinfer_status clf_program_kernel(clinfer_ctx *ctx, const struct clf_launch *l, const char *op,
                                  cl_kernel *kernel);

// Stores what is unsaved. Call without the lock.
clinfer_status clf_programs_save(clinfer_ctx *ctx);
void clf_programs_free(clinfer_ctx *ctx);
