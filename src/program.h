// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ctx.h"

// The kernel of a launch: from memory, else from the disk cache, else compiled. Call with the lock held; it
// is let go of while a program is built.
// *checked: whether calls may use it; else it is fresh from the compiler.
clinfer_status clf_program_kernel(clinfer_ctx *ctx, const struct clf_launch *l, const char *op,
                                  cl_kernel *kernel, bool *checked);

// The program that this kernel of a launch is of has passed its self-check. Call with the lock held.
void clf_program_checked(clinfer_ctx *ctx, const struct clf_launch *l, cl_kernel kernel);

bool clf_same_spec(const struct clf_spec *a, const struct clf_spec *b);

// Stores what is unsaved. Call without the lock.
clinfer_status clf_programs_save(clinfer_ctx *ctx);
void clf_programs_free(clinfer_ctx *ctx);
