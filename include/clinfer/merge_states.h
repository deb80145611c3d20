// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_MERGE_STATES_H_
#define CLINFER_MERGE_STATES_H_

#include <clinfer/context.h>
#include <clinfer/tensor.h>

CLINFER_API_BEGIN

// Joins the attention of the same queries over two disjoint sets of keys:
//
//   m = max(lse_a, lse_b),  a = exp(lse_a - m),  b = exp(lse_b - m)
//   output[t,h] = (a * out_a[t,h] + b * out_b[t,h]) / (a + b),   lse[t,h] = m + log(a + b)
//
// T tokens, H heads, V the head size of values; log-sum-exps are natural. A state of no key has lse -inf and
// weighs nothing, whatever its row holds; two of them give 0 and -inf.
struct clinfer_merge_states_params {
    cl_command_queue queue; // NULL: the context's
    clinfer_tensor out_a;   // [T, H, V] f32 f16 bf16
    clinfer_tensor lse_a;   // f32 [T, H]
    clinfer_tensor out_b;   // [T, H, V] f32 f16 bf16, of its own type
    clinfer_tensor lse_b;   // f32 [T, H]
    clinfer_tensor output;  // [T, H, V] of out_a's type; it may be out_a itself
    clinfer_tensor lse;     // f32 [T, H]; it may be lse_a itself
};
#define clinfer_merge_states_params(...) (&(struct clinfer_merge_states_params){ __VA_ARGS__ })

// Enqueues and returns at once, as clEnqueueNDRangeKernel does; `event` may be NULL, and is valid also
// when T is 0. Errors: ERR_SHAPE, ERR_TYPE, ERR_ARGUMENT, ERR_ALIAS, ERR_BOUNDS, ERR_BUILD, ERR_FILE (a
// kernel's file), ERR_MEMORY, ERR_UNSUPPORTED (H * V past 2^30; no kernel set passed its self-check here) or
// OpenCL's; nothing is enqueued on error. Threads: any. Source: FlashInfer (Ye et al. 2025). Elsewhere:
// merge_attn_states.
CLINFER_API clinfer_status clinfer_merge_states(clinfer_ctx *ctx,
                                                const struct clinfer_merge_states_params *params,
                                                cl_uint num_events_in_wait_list,
                                                const cl_event *event_wait_list, cl_event *event);

// Compiles what that call would need and enqueues nothing. Buffers may be NULL; T may be any number.
CLINFER_API clinfer_status clinfer_merge_states_compile(clinfer_ctx *ctx,
                                                        const struct clinfer_merge_states_params *params);

CLINFER_API_END

#endif
