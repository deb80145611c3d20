// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "op.h"
#include "program_cache.h"
#include "variant.h"
#include <pthread.h>

struct clf_program;
struct clf_source;

// Scratch that calls without their own workspace share, one after another.
struct clf_arena {
    cl_mem mem;
    size_t size;
    cl_event last; // of the call that used it last
};

enum { CLF_ERROR_SLOTS = 64 };
struct clf_thread_error {
    pthread_t thread;
    uint64_t stamp; // 0: free
    char text[CLF_ERROR_SIZE];
};

struct clinfer_ctx {
    cl_context cl;
    cl_device_id device;
    cl_command_queue queue;
    struct clf_caps caps;
    clinfer_kernel_set order[2]; // the set that calls take, and the one that takes over (AUTO: none)
    struct clf_variant variant[CLF_NUM_OPS][CLF_NUM_SETS];
    bool no_self_check;
    struct clinfer_device_info info;

    // One lock over look-up, bind and enqueue; compiles run outside it and signal `compiled`.
    pthread_mutex_t lock;
    pthread_cond_t compiled;
    struct clf_program *programs;
    struct clf_source *sources;
    struct clf_arena arena;
    cl_mem fault;
    bool clblast_used, clblast_ready; // its programs may be there; and have been tried
    pthread_mutex_t fault_lock;       // reading and clearing the record is one step
    struct clinfer_ctx_stats stats;
    uint64_t pool_seed; // of the next page pool's ids; 0: none yet

    struct clf_cache cache;
    char *cl_dir;     // NULL: the kernels in the library
    char *device_key; // the part of a program's key that names device, driver, platform and CPU

    pthread_mutex_t error_lock;
    struct clf_thread_error *errors[CLF_ERROR_SLOTS];
    uint64_t error_stamp;

    void (*log)(void *priv, clinfer_log_level level, const char *message);
    void *log_priv;
    clinfer_log_level log_level;
    void (*profile)(void *priv, const char *op, const char *kernel, uint64_t nanoseconds);
    void *profile_priv;
    void (*inspect)(void *priv, const struct clinfer_program_text *program);
    void *inspect_priv;
};

// log.c
void clf_log(const clinfer_ctx *ctx, clinfer_log_level level, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
// Keeps the text as the calling thread's error and logs it; returns `status`.
clinfer_status clf_error(clinfer_ctx *ctx, clinfer_status status, const char *text);
void clf_errors_free(clinfer_ctx *ctx);

// device.c
clinfer_status clf_device_choose(const char *choice, cl_device_id *device, char *error, size_t error_size);
// Reads what the device reports; ERR_NO_DEVICE where it lacks what every kernel needs.
clinfer_status clf_device_query(cl_device_id device, struct clinfer_device_info *info, char *error,
                                size_t error_size);
// A text that the device reports, malloc'd; NULL where there is none.
char *clf_device_text(cl_device_id device, cl_device_info what);
bool clf_device_has(cl_device_id device, const char *extension);
// The OpenCL C, 20 or 30, in which the device has sub-group functions; 0: none.
int clf_device_subgroup_std(cl_device_id device);
// "row" or "group"
const char *clf_set_name(clinfer_kernel_set set);

// device_key.c
// Device, driver, platform, UUID, CPU features and code-generating environment as text; malloc'd.
char *clf_device_key(const struct clinfer_device_info *info);

// fault.c
enum { CLF_FAULT_WORDS = 5 }; // of the record
clinfer_status clf_fault_init(clinfer_ctx *ctx);
