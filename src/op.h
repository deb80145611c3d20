// SPDX-License-Identifier: Apache-2.0
// The path of every call: validate -> prepare -> program -> bind -> enqueue. See ARCHITECTURE.md.
#pragma once
#include <clinfer/context.h>
#include <clinfer/kv_cache.h>
#include <clinfer/tensor.h>
#include <stdbool.h>
#include "ops_list.h"

enum {
    CLF_MAX_DEFS = 40,
    CLF_MAX_ARGS = 64,
    CLF_MAX_LAUNCHES = 10,
    CLF_MAX_VIEWS = 16,
    CLF_ERROR_SIZE = 512,
};

enum {
    CLF_F32 = 1 << CLINFER_F32,
    CLF_F16 = 1 << CLINFER_F16,
    CLF_BF16 = 1 << CLINFER_BF16,
    CLF_F8 = 1 << CLINFER_F8_E4M3,
    CLF_U32 = 1 << CLINFER_U32,
    CLF_I8 = 1 << CLINFER_I8,
    CLF_FLOATS = CLF_F32 | CLF_F16 | CLF_BF16,
};

// CLF_WEIGHT: sums run over its last axis. CLF_CHANGED: written, and read before.
enum clf_rule_flags { CLF_IN = 0, CLF_OUT = 1, CLF_OPTIONAL = 2, CLF_WEIGHT = 4, CLF_CHANGED = 8 | CLF_OUT };

// What one tensor argument must look like. `dims` names its axes: "T,H,N+R". The first tensor that shows a
// letter sets it; after that extents must agree. An axis in brackets, "T,[H],K", may be left out, and then
// is 1. This row is the shape check and its error text.
struct clf_tensor_rule {
    const char *name, *dims;
    size_t field;          // offset in the params struct
    unsigned types;        // CLF_F32 | ...
    unsigned flags;        // clf_rule_flags
    const char *same_type; // name of an earlier tensor whose type it shares, or NULL
    const char *in_place;  // name of an earlier tensor that it may be, exactly, or NULL
};

// A -D of a program.
struct clf_def {
    const char *name, *text; // -DNAME=text, or -DNAME=value where text is NULL; both are literals
    int64_t value;
};

// CLF_ARG_INDEX: which repetition of the plan's loop it is, a u32 from 0.
enum clf_arg_kind { CLF_ARG_MEM, CLF_ARG_WORKSPACE, CLF_ARG_FAULT, CLF_ARG_SCALAR, CLF_ARG_INDEX };
struct clf_arg {
    enum clf_arg_kind kind;
    size_t size;
    union {
        cl_mem mem;
        cl_int i32;
        cl_uint u32;
        cl_float f32;
        cl_ulong u64;
    } v;
};

// What makes a program: structural and tunable values, and the slots every variant is named by.
struct clf_spec {
    const char *source; // stem of cl/SET/SOURCE.cl
    clinfer_kernel_set set;
    clinfer_arith arith;
    struct clf_def def[CLF_MAX_DEFS];
    int num_defs;
};

// One matrix of a product: elements of f32, rows dense.
struct clf_matrix {
    cl_mem mem;                    // NULL: the workspace
    size_t at, row_stride, stride; // of rows, and of the products of a batch
};

// y = x w^T for each product of a batch: x [m, k], w [n, k], y [m, n].
struct clf_gemm {
    size_t m, n, k, batch;
    struct clf_matrix x, w, y;
};

enum clf_launch_kind { CLF_KERNEL, CLF_GEMM };

// Everything a launch is, decided before OpenCL is touched: a kernel, or a product by CLBlast.
struct clf_launch {
    enum clf_launch_kind kind;
    struct clf_gemm gemm;
    struct clf_spec spec;
    const char *kernel;
    struct clf_arg arg[CLF_MAX_ARGS];
    int num_args;
    size_t global[3], local[3]; // in work-items
};

// The bytes of a buffer that an argument covers, for the bounds and aliasing checks.
struct clf_view {
    const char *name;
    cl_mem mem;
    size_t begin, end;           // bytes
    size_t row_stride, row_size; // bytes of the outermost axis; 0 where the view is one piece
    bool out;
    const char *in_place;
};

// Capabilities of a device, already masked by the context.
struct clf_caps {
    unsigned bits; // clinfer_cap
    unsigned compute_units;
    unsigned max_work_group;
    uint64_t local_bytes;
    int subgroup_std; // the OpenCL C, 20 or 30, that has sub-group functions here; 0: none
    clinfer_kernel_set set;
    clinfer_arith arith;
    clinfer_gemm gemm; // OWN where CLBlast is not there
};

enum clf_mode { CLF_CALL, CLF_COMPILE, CLF_MEASURE };

// A run of a plan's launches that is enqueued `times` times over, one repetition after another.
struct clf_loop {
    int first, count; // launches; count 0: there is none
    uint32_t times;
};

// Host half of a call. Lives on the caller's stack; pure data.
struct clf_plan {
    const struct clf_op *op;
    const struct clf_caps *caps;
    enum clf_mode mode;         // other than CLF_CALL, buffers may be NULL
    int64_t dim['z' - 'A' + 1]; // by axis letter, filled by validation; -1 unknown
    struct clf_launch launch[CLF_MAX_LAUNCHES];
    int num_launches;
    struct clf_loop loop;
    struct clf_view view[CLF_MAX_VIEWS];
    int num_views;
    size_t workspace;     // bytes of scratch that the launches share
    cl_mem workspace_mem; // the caller's, or NULL for the arena
    size_t workspace_offset;
    bool empty; // nothing to do: T or B is 0
    char error[CLF_ERROR_SIZE];
};
#define CLF_DIM(plan, letter) ((plan)->dim[(letter) - 'A'])

struct clf_op {
    const char *name;
    const struct clf_tensor_rule *tensors;
    int num_tensors;
    // The params struct's size, and offsets in it. kv 0: the op works on no cache, and has no batch.
    size_t params_size, queue, kv, batch, layer_idx;
    bool mla; // one plane, one head
    // Pure, like validation: no OpenCL, no allocation. Checks what the table cannot say, fills the launches.
    clinfer_status (*prepare)(struct clf_plan *plan, const void *params);
    // What the op means (ref/): the same params, with host addresses in place of each cl_mem.
    void (*ref)(const void *params);
    // Makes of params those of a small call, for the self-check: sets what is neither structural nor a
    // tensor. NULL: there is nothing such.
    void (*shrink)(void *params, int64_t tokens);
    size_t kv_v; // offset of V's own view of the cache, which may be zeroed; 0: the op has none
    // Makes extents (by letter - 'A') that no program depends on those of a small call. NULL: there are none.
    void (*shrink_dims)(int64_t *dim, const void *params);
};
#define CLF_TENSORS(t) (t), (int) (sizeof(t) / sizeof((t)[0]))
#define CLF_CACHE_FIELDS(p)                                                                                  \
    sizeof(struct p), offsetof(struct p, queue), offsetof(struct p, kv), offsetof(struct p, batch),          \
        offsetof(struct p, layer_idx)

// For ops without a cache.
#define CLF_PLAIN_FIELDS(p) sizeof(struct p), offsetof(struct p, queue), 0, 0, 0

enum clf_op_id {
#define CLF_X(name) CLF_OP_##name,
    CLF_OPS(CLF_X)
#undef CLF_X
        CLF_NUM_OPS
};
#define CLF_X(name) extern const struct clf_op clf_op_##name;
CLF_OPS(CLF_X)
#undef CLF_X
extern const struct clf_op *const clf_ops[CLF_NUM_OPS];

// Writes the plan's error text and returns `status`.
clinfer_status clf_fail(struct clf_plan *plan, clinfer_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

// The host half, no OpenCL: validate -> prepare.
clinfer_status clf_plan(struct clf_plan *plan, const struct clf_op *op, const void *params,
                        const struct clf_caps *caps, enum clf_mode mode);

// Bounds and aliasing of the plan's views; sizes and parents of buffers come from OpenCL.
clinfer_status clf_check_views(struct clf_plan *plan);
// The same rule on views whose `mem` is a root buffer: pure.
clinfer_status clf_check_aliases(struct clf_plan *plan, const struct clf_view *views);

// The whole path.
clinfer_status clf_run(clinfer_ctx *ctx, const struct clf_op *op, const void *params, cl_uint num_events,
                       const cl_event *events, cl_event *event);
// The path cut after `program`.
clinfer_status clf_compile(clinfer_ctx *ctx, const struct clf_op *op, const void *params);
// The path cut after `prepare`.
clinfer_status clf_measure(clinfer_ctx *ctx, const struct clf_op *op, const void *params, size_t *bytes);
