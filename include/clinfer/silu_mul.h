// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_SILU_MUL_H_
#define CLINFER_SILU_MUL_H_

#include <clinfer/context.h>
#include <clinfer/tensor.h>

CLINFER_API_BEGIN

// The gate of a SwiGLU feed-forward layer, whose two halves one matmul made side by side:
//
//   output[t, i] = silu(x[t, i]) * x[t, n + i],   silu(a) = a / (1 + exp(-a))
//
// T tokens, n the width. Arithmetic is f32, rounded once. Large negative a gives -0, infinities and NaN
// follow from the equation.
struct clinfer_silu_mul_params {
    cl_command_queue queue; // NULL: the context's
    clinfer_tensor x;       // [T, 2n] f32 f16 bf16
    clinfer_tensor output;  // [T, n] of x's type; not x itself
};
#define clinfer_silu_mul_params(...) (&(struct clinfer_silu_mul_params){ __VA_ARGS__ })

// Enqueues and returns at once, as clEnqueueNDRangeKernel does; `event` may be NULL, and is valid also
// when T is 0. Errors: ERR_SHAPE, ERR_TYPE, ERR_ARGUMENT, ERR_ALIAS, ERR_BOUNDS, ERR_BUILD, ERR_FILE (a
// kernel's file), ERR_MEMORY, ERR_UNSUPPORTED (no kernel set passed its self-check here) or OpenCL's; nothing
// is enqueued on error. Threads: any. Source: GLU Variants Improve Transformer (Shazeer 2020). Elsewhere:
// silu_and_mul.
CLINFER_API clinfer_status clinfer_silu_mul(clinfer_ctx *ctx, const struct clinfer_silu_mul_params *params,
                                            cl_uint num_events_in_wait_list, const cl_event *event_wait_list,
                                            cl_event *event);

// Compiles what that call would need and enqueues nothing. Buffers may be NULL; T may be any number.
CLINFER_API clinfer_status clinfer_silu_mul_compile(clinfer_ctx *ctx,
                                                    const struct clinfer_silu_mul_params *params);

CLINFER_API_END

#endif
