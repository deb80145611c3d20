// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_RMS_NORM_H_
#define CLINFER_RMS_NORM_H_

#include <clinfer/context.h>
#include <clinfer/norm_cast.h>
#include <clinfer/tensor.h>

CLINFER_API_BEGIN

// RMSNorm of rows, with the residual added before where there is one:
//
//   residual[t] = round(residual[t] + x[t])   in place, to residual's type; then x is that below
//   output[t]   = y of clinfer_norm_cast, with the values of a row cast to gamma's type first
//
// T tokens, n the width. The sum of squares is f32; weight_offset is rounded to gamma's type first; y is
// rounded to x's type last. epsilon 0 with an all-zero row gives 0.
struct clinfer_rms_norm_params {
    cl_command_queue queue;  // NULL: the context's
    clinfer_tensor x;        // [T, n] f32 f16 bf16
    clinfer_tensor gamma;    // [n] f32 f16 bf16
    clinfer_tensor residual; // [T, n] f32 f16 bf16, of its own type; absent: x alone
    clinfer_tensor output;   // [T, n] of x's type; it may be x itself
    float epsilon;           // added to the mean square; taken as given
    float weight_offset;     // w, added to gamma (1 for Gemma); taken as given
    clinfer_norm_cast cast;
};
#define clinfer_rms_norm_params(...) (&(struct clinfer_rms_norm_params){ __VA_ARGS__ })

// Enqueues and returns at once, as clEnqueueNDRangeKernel does; `event` may be NULL, and is valid also
// when T is 0. Errors: ERR_SHAPE, ERR_TYPE, ERR_ARGUMENT, ERR_ALIAS, ERR_BOUNDS, ERR_BUILD, ERR_FILE (a
// kernel's file), ERR_MEMORY, ERR_UNSUPPORTED (rows of more than 2^30 elements; no kernel set passed its
// self-check here) or OpenCL's; nothing is enqueued on error. Threads: any. Source: RMSNorm (Zhang and
// Sennrich 2019). Elsewhere: fused_add_rmsnorm.
CLINFER_API clinfer_status clinfer_rms_norm(clinfer_ctx *ctx, const struct clinfer_rms_norm_params *params,
                                            cl_uint num_events_in_wait_list, const cl_event *event_wait_list,
                                            cl_event *event);

// Compiles what that call would need and enqueues nothing. Buffers may be NULL; T may be any number.
CLINFER_API clinfer_status clinfer_rms_norm_compile(clinfer_ctx *ctx,
                                                    const struct clinfer_rms_norm_params *params);

CLINFER_API_END

#endif
