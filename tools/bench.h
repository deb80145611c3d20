// SPDX-License-Identifier: Apache-2.0
// The parts of `clinfer bench`: what a device can do, the cases, a case's call, and timing it.
#ifndef CLINFER_TOOLS_BENCH_H_
#define CLINFER_TOOLS_BENCH_H_

#include <stdatomic.h>

#include "cli.h"
#include "opcase.h"

// bench_device.c
struct bench_limits {
    struct clinfer_device_info info;
    double copy, read;      // bytes a second, those written counted too
    double f32;             // flop a second
    double launch;          // seconds, one of a batch of empty launches
    double clock;           // cycles a second
    bool clock_is_measured; // else it is what the device reports
};

// Measures the device of the context. False: a message has been printed.
bool bench_measure(clinfer_ctx *ctx, struct bench_limits *limits);
// Prints "WHAT: STATUS" where the status is an error.
bool bench_failed(cl_int status, const char *what);
double bench_seconds(void);

// bench_cases.c
struct bench_shape {
    const char *name;
    int heads, kv_heads, head_size, rope;
    bool halves;             // rope on split halves, else on neighbours
    int latent, nope, value; // MLA
    bool residual;           // rms_norm
    int rows, columns;       // of a matrix of weights
};

struct bench_types {
    const char *name;
    clinfer_dtype act, cache, weight;
    int scale_group; // of the cache
};

struct bench_batch {
    const char *name;
    int requests, tokens; // new tokens of each request
    int cached;
    bool spread; // requests have cached fewer tokens, each another number
};

struct bench_case {
    const char *op, *part; // part: the only kernel whose time counts, NULL: the whole call
    const char *label;     // op, and the part's name
    const struct bench_shape *shape;
    const struct bench_types *types;
    const struct bench_batch *batch;
};

enum { BENCH_NAME_SIZE = 128 };

// The index-th case; false past the last.
bool bench_case_at(int index, struct bench_case *c);
// "label/shape/types/batch"
void bench_case_name(const struct bench_case *c, char name[BENCH_NAME_SIZE]);

// bench_ops.c
enum { BENCH_MAX_BUFFERS = 16, BENCH_PAGE = 128 };

// What a call must move and compute at the least.
struct bench_work {
    double read, written, in_place; // bytes; those in place are read and written
    double flop;
};

// A case in device memory, ready to be called.
struct bench_call {
    const struct op_desc *op;
    union {
        struct clinfer_fused_qk_rope_params rope;
        struct clinfer_rms_norm_kv_cache_params norm;
        struct clinfer_mla_fused_rope_rmsnorm_params store;
        struct clinfer_mla_decode_branch_params decode;
        struct clinfer_kv_store_params kv_store;
        struct clinfer_silu_mul_params silu_mul;
        struct clinfer_rms_norm_params rms_norm;
        struct clinfer_merge_states_params merge_states;
        struct clinfer_paged_attention_params attention;
        struct clinfer_matmul_params matmul;
        struct clinfer_mla_prefill_branch_params prefill;
    } params;
    struct bench_work work;
    cl_mem mems[BENCH_MAX_BUFFERS];
    int num_mems;
};

// False: a message has been printed, and the call is empty.
bool bench_open(const struct bench_case *c, clinfer_ctx *ctx, struct bench_call *call);
void bench_close(struct bench_call *call);

// bench_data.c: buffers and what they hold.
struct bench_maker {
    clinfer_ctx *ctx;
    struct bench_call *call;
    cl_int status; // the first error; nothing is made after it
};

// Calls that change a buffer in place run thousands of times, and values must neither grow nor vanish. So
// tables of angles hold quarter turns and the gammas are 1 and -1: both exact in every type.
enum bench_content { BENCH_NOISE, BENCH_TURNS, BENCH_SIGNS, BENCH_LEVEL };

// A dense tensor; amplitude is that of the noise, or the level.
clinfer_tensor bench_tensor(struct bench_maker *m, enum bench_content content, double amplitude,
                            clinfer_dtype dtype, int64_t n0, int64_t n1, int64_t n2);
clinfer_kv_cache bench_cache(struct bench_maker *m, const struct bench_case *c, int planes, int heads,
                             int size);
clinfer_kv_batch bench_batch_of(struct bench_maker *m, const struct bench_batch *b);

// bench_time.c
struct bench_time {
    double median, best; // seconds a call
};

// Launches of the only kernel that counts, as the profile callback reports them.
struct bench_profile {
    const char *part;
    atomic_ullong launches, nanoseconds; // of all kernels; of the last launch of `part`
};
void bench_on_profile(void *profile, const char *op, const char *kernel, uint64_t nanoseconds);

// profile NULL: wall clock over batches of calls; else the device's own times. False: a message has been
// printed.
bool bench_run(clinfer_ctx *ctx, const struct bench_call *call, struct bench_profile *profile,
               struct bench_time *t);

#endif
