// SPDX-License-Identifier: Apache-2.0
// CLBlast's batched product, found when it is first asked for: a program that embeds this library starts
// without it. A build without its header never finds it.
#pragma once
#include "ctx.h"

// NULL where CLBlast can be called; else why it cannot.
const char *clf_clblast_missing(void);

// Enqueues y = x w^T. Call with the lock held; it allocates, and takes no wait list. Returns a code of
// CLBlast's.
int clf_clblast_sgemm(const struct clf_gemm *g, cl_mem workspace, cl_command_queue queue, cl_event *event);

// The first time in a context: makes CLBlast compile, by a product of one element on a queue of the engine's,
// and checks what comes out. Call with the lock held; it is let go of meanwhile.
clinfer_status clf_clblast_ready(clinfer_ctx *ctx, const char *op);

// Drops what CLBlast keeps in the process, the context's programs among it.
void clf_clblast_clear(void);

// A code of CLBlast's as a status: OpenCL's pass through. *text says what one of its own means; NULL where it
// is OpenCL's.
clinfer_status clf_clblast_status(int code, const char **text);
