// SPDX-License-Identifier: Apache-2.0
// The parts of `clinfer check`: the cases, and one case on a device against the reference.
#ifndef CLINFER_TOOLS_CHECK_H_
#define CLINFER_TOOLS_CHECK_H_

#include "synth.h"

enum { CHECK_NAME_SIZE = 64, CHECK_WHY_SIZE = 1024 };

// check_cases.c
struct check_case {
    const struct synth *call;
    const struct synth_batch *batch;
    bool in_place; // the output is the input that has its shape and type
};

// The index-th case; false past the last. Cases of an op follow each other.
bool check_case_at(int index, struct check_case *c);
// "call/batch"
void check_case_name(const struct check_case *c, char name[CHECK_NAME_SIZE]);

// check_run.c
struct check_result {
    bool ok;
    bool failed;              // the call, or OpenCL, returned an error: nothing was compared
    double max_err;           // of the tensor that uses most of its tolerance; NaN where nothing was compared
    char why[CHECK_WHY_SIZE]; // "" where ok
};

// Makes the case up, runs it on the context and on the reference, and compares every byte of every buffer.
void check_run(const struct check_case *c, clinfer_ctx *ctx, struct check_result *r);

#endif
