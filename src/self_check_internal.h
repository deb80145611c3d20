// SPDX-License-Identifier: Apache-2.0
// Shared by self_check.c (the run), self_check_call.c (the small call) and self_check_compare.c.
#pragma once
#include "ref.h"
#include "self_check.h"

enum { CLF_CHECK_BUFFERS = 20, CLF_CHECK_TOKENS = 64 };

enum clf_check_role { CLF_CHECK_IN, CLF_CHECK_OUT, CLF_CHECK_CHANGED, CLF_CHECK_CACHE };

struct clf_check_buffer {
    const char *name;
    size_t field; // of its cl_mem in the params
    enum clf_check_role role;
    size_t cache; // of a cache's: its view in the params
    clinfer_dtype dtype;
    int64_t count, width;      // elements; of the last axis
    double low, high;          // what it is filled with lies between
    unsigned char *want, *got; // what it holds at first, then the reference's; the device's
    cl_mem mem;
};

// A small call of the programs of another one.
struct clf_check {
    clinfer_ctx *ctx;
    const struct clf_op *op;
    char *params;
    int64_t tokens, dim['z' - 'A' + 1];
    struct clf_check_buffer buffer[CLF_CHECK_BUFFERS];
    int num_buffers;
    uint64_t seed;
    cl_mem workspace, fault;
    struct clf_caps caps;
    struct clf_plan plan;
};

clinfer_kv_cache *clf_check_kv(const struct clf_check *k);

// Shapes params, buffers and a plan without memory after a call's. False: no small call takes its programs.
// Pure, like planning.
bool clf_check_shape(struct clf_check *k, const struct clf_plan *plan, const void *params);
// Values of all images that are there.
void clf_check_fill(struct clf_check *k);

// Whether what the device wrote is what the reference wrote; else says what is not. The params hold host
// addresses.
bool clf_check_compare(const struct clf_check *k, struct clf_verdict *verdict);
