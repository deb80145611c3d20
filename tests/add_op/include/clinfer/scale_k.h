// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_SCALE_K_H_
#define CLINFER_SCALE_K_H_

#include <clinfer/context.h>
#include <clinfer/kv_cache.h>

CLINFER_API_BEGIN

// New K rows times a factor a head, in place:
//
//   K cache[slot of token t][h] = K cache[slot of token t][h] * (factors[h] * scale)
//
// K KV heads. Both products are f32, and the second is rounded once to the cache's type; a cache with scales
// gets new ones.
struct clinfer_scale_k_params {
    cl_command_queue queue; // NULL: the context's
    clinfer_tensor factors; // [K] f32
    clinfer_kv_cache kv;
    clinfer_kv_batch batch;
    int64_t layer_idx;
    int64_t total_seq_len; // T
    float scale;
};
#define clinfer_scale_k_params(...) (&(struct clinfer_scale_k_params){ __VA_ARGS__ })

// Enqueues and returns at once; `event` may be NULL, and is valid also when T is 0. A token with a fault is
// left as it is. Errors: ERR_SHAPE, ERR_TYPE, ERR_ARGUMENT, ERR_ALIAS, ERR_BOUNDS, ERR_BUILD, ERR_FILE (a
// kernel's file), ERR_MEMORY, ERR_UNSUPPORTED or OpenCL's; nothing is enqueued on error. Threads: any.
CLINFER_API clinfer_status clinfer_scale_k(clinfer_ctx *ctx, const struct clinfer_scale_k_params *params,
                                           cl_uint num_events_in_wait_list, const cl_event *event_wait_list,
                                           cl_event *event);

// Compiles what that call would need and enqueues nothing. Buffers may be NULL; T may be any number.
CLINFER_API clinfer_status clinfer_scale_k_compile(clinfer_ctx *ctx,
                                                   const struct clinfer_scale_k_params *params);

CLINFER_API_END

#endif
