// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_RMS_NORM_KV_CACHE_H_
#define CLINFER_RMS_NORM_KV_CACHE_H_

#include <clinfer/context.h>
#include <clinfer/kv_cache.h>
#include <clinfer/norm_cast.h>

CLINFER_API_BEGIN

typedef enum clinfer_norm_rows {
    CLINFER_PER_HEAD, // each head's dims [0, n), n <= D
    CLINFER_WHOLE_ROW // the row of K * D elements, its first n of them
} clinfer_norm_rows;

// RMSNorm of the new K rows, in place. The sum of squares is f32; w is rounded to t first.
// What lies past n stays as it is, bit for bit; in a cache with scales the group that n cuts is stored
// again whole. epsilon 0 with an all-zero row gives 0.
struct clinfer_rms_norm_kv_cache_params {
    cl_command_queue queue; // NULL: the context's
    clinfer_tensor gamma;   // [n] f32 f16 bf16
    clinfer_kv_cache kv;    // the K plane is normalised
    clinfer_kv_batch batch;
    int64_t layer_idx;     // within kv
    int64_t total_seq_len; // T, at least input_row_offsets[B]
    float epsilon;         // added to the mean square; taken as given
    float weight_offset;   // w, added to gamma (1 for Gemma); taken as given
    clinfer_norm_cast cast;
    clinfer_norm_rows rows;
};
#define clinfer_rms_norm_kv_cache_params(...) (&(struct clinfer_rms_norm_kv_cache_params){ __VA_ARGS__ })

// Enqueues and returns at once, as clEnqueueNDRangeKernel does; `event` may be NULL, and is valid also
// when T is 0. Errors: ERR_SHAPE, ERR_TYPE, ERR_ARGUMENT, ERR_ALIAS, ERR_BOUNDS, ERR_BUILD, ERR_FILE (a
// kernel's file), ERR_MEMORY, ERR_UNSUPPORTED (rows of more than 2^17 elements; in the group set those past
// the device's local memory; no kernel set passed its self-check here) or OpenCL's; nothing is enqueued on
// error. Threads: any. Source: RMSNorm (Zhang and Sennrich 2019). Elsewhere:
// rms_norm_kv_cache_ragged_paged.
CLINFER_API clinfer_status clinfer_rms_norm_kv_cache(clinfer_ctx *ctx,
                                                     const struct clinfer_rms_norm_kv_cache_params *params,
                                                     cl_uint num_events_in_wait_list,
                                                     const cl_event *event_wait_list, cl_event *event);

// Compiles what that call would need and enqueues nothing. Buffers may be NULL; T may be any number.
CLINFER_API clinfer_status
clinfer_rms_norm_kv_cache_compile(clinfer_ctx *ctx, const struct clinfer_rms_norm_kv_cache_params *params);

CLINFER_API_END

#endif
