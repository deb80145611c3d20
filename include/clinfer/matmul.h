// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_MATMUL_H_
#define CLINFER_MATMUL_H_

#include <clinfer/context.h>
#include <clinfer/tensor.h>

CLINFER_API_BEGIN

// A linear layer, alone or one a head:
//
//   output[t, n]    = sum_k x[t, k] * w[n, k] + bias[n]
//   output[t, h, n] = sum_k x[t, h, k] * w[h, n, k]
//
// T tokens, N outputs, Kd inputs, Hb products of a batch; all but T at least 1. Sums are f32, rounded once,
// and their order depends on Kd only: a token has the same bits in any batch. Weights are one of
//
//   F32 F16 BF16  as they are; w_scale absent
//   F8_E4M3       value = w * w_scale[n / n_granularity, k / k_granularity]; x is quantised too, per token
//   and
//                 k_granularity columns: code * scale, scale = min(amax, x_scale_bound) / 448, where amax is
//                 the largest finite |x| and code = f8_e4m3(x * (1 / scale)) saturates, 0 where 1 / scale is
//                 infinite
//   I8            GGUF's Q8_0 with its blocks taken apart: value = w * w_scale[n, k / 32], scales f16
struct clinfer_matmul_params {
    cl_command_queue queue; // NULL: the context's
    clinfer_tensor x;       // [T, Kd] or [T, Hb, Kd] f32 f16 bf16
    clinfer_tensor w;       // [N, Kd] or [Hb, N, Kd] f32 f16 bf16 f8_e4m3 i8
    // f32 [ceil(N / n_granularity), ceil(Kd / k_granularity)] with F8_E4M3, f16 [N, ceil(Kd / 32)] with I8;
    // [Hb, ...] in front where w has it
    clinfer_tensor w_scale;
    clinfer_tensor bias;                  // [N] f32 f16 bf16; absent: none. Not with Hb
    clinfer_tensor output;                // [T, N] or [T, Hb, N] f32 f16 bf16; x's type
    int64_t n_granularity, k_granularity; // with F8_E4M3, 1 or more; else ignored
    float x_scale_bound;                  // with F8_E4M3: the largest amax; 0: none
    // Scratch of at least clinfer_matmul_workspace() bytes. NULL: the context's arena.
    cl_mem workspace;
    size_t workspace_offset; // bytes, a multiple of 64
};
#define clinfer_matmul_params(...) (&(struct clinfer_matmul_params){ __VA_ARGS__ })

// Enqueues and returns at once, as clEnqueueNDRangeKernel does; `event` may be NULL, and is valid also
// when T is 0. Errors: ERR_SHAPE, ERR_TYPE, ERR_ARGUMENT, ERR_ALIAS, ERR_BOUNDS, ERR_BUILD, ERR_FILE (a
// kernel's file), ERR_MEMORY, ERR_UNSUPPORTED (in the group set what passes the device's local memory; no
// kernel set passed its self-check here; CLBlast does not work here) or OpenCL's; nothing is enqueued on
// error. Threads: any; calls that share the arena run one after another. Source: for the block scales
// DeepSeek-V3 (2024), section 3.3. Elsewhere: linear, gemm, mul_mat.
CLINFER_API clinfer_status clinfer_matmul(clinfer_ctx *ctx, const struct clinfer_matmul_params *params,
                                          cl_uint num_events_in_wait_list, const cl_event *event_wait_list,
                                          cl_event *event);

// Compiles what that call would need and enqueues nothing. Buffers may be NULL. T chooses among tiles: one
// call each with T of 1, 2, 3 and 5 compiles all that any T needs; where CLBlast takes part, also one of 64.
CLINFER_API clinfer_status clinfer_matmul_compile(clinfer_ctx *ctx,
                                                  const struct clinfer_matmul_params *params);

// *bytes: the scratch that the call needs. Buffers may be NULL. It grows with T: what the largest T needs is
// enough for every smaller one.
CLINFER_API clinfer_status clinfer_matmul_workspace(clinfer_ctx *ctx,
                                                    const struct clinfer_matmul_params *params,
                                                    size_t *bytes);

CLINFER_API_END

#endif
