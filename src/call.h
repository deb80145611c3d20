// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ctx.h"

// One call under way: what enqueueing needs beside the plan.
struct clf_call {
    clinfer_ctx *ctx;
    struct clf_plan *plan;
    cl_command_queue queue;
    bool out_of_order;
    const cl_event *wait;
    cl_uint num_wait;
    cl_kernel kernel[CLF_MAX_LAUNCHES];
    cl_mem workspace;
    cl_mem fault; // the record that its kernels write to
    bool quiet;   // the engine's own: neither counted nor reported
};

// Keeps "op: what: OpenCL's name of err" as the thread's error; returns err.
clinfer_status clf_call_error(struct clf_call *c, cl_int err, const char *what);

// Binds all arguments, then enqueues all launches of a call whose kernels and workspace are there. Lock held.
clinfer_status clf_enqueue(struct clf_call *c, cl_event *event);
