// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_MLA_FUSED_ROPE_RMSNORM_H_
#define CLINFER_MLA_FUSED_ROPE_RMSNORM_H_

#include <clinfer/context.h>
#include <clinfer/kv_cache.h>

CLINFER_API_BEGIN

// Writes whole new rows of an MLA cache, and rotates Q's rope part:
//
//   cache[0, C)   = t(t(x * r) * gamma),  r = 1 / sqrt(sum(x^2) / C + epsilon)
//   cache[C, C+R) = RoPE(kv_input[C, C+R)), rounded to kv_input's type
//   q_rope_output = RoPE(q_rope), rounded to q_rope's type
//
// with x = t(kv_input), t = gamma's type, each then stored in the cache's or output's type: a saturating cast
// at scale 1 for plain fp8, a scaled store where the cache has scales. Pairs are neighbours; T tokens, H
// query heads, F rows of the table. R may be 0. The input is kv_input, so a call can be repeated.
struct clinfer_mla_fused_rope_rmsnorm_params {
    cl_command_queue queue; // NULL: the context's
    clinfer_tensor q_rope;  // [T, H, R] f32 f16 bf16
    // [T, H, R] f32 f16 bf16 f8_e4m3; may be exactly q_rope where the types are equal
    clinfer_tensor q_rope_output;
    clinfer_tensor kv_input;  // [T, C + R] f32 f16 bf16: latent, then rope part
    clinfer_tensor gamma;     // [C] f32 f16 bf16
    clinfer_tensor freqs_cis; // [F, R] f32 f16 bf16: column 2p is cos, 2p + 1 is sin of pair p
    clinfer_kv_cache kv;      // planes 1, K 1, D == C + R
    clinfer_kv_batch batch;
    int64_t layer_idx; // within kv
    float epsilon;     // taken as given
};
#define clinfer_mla_fused_rope_rmsnorm_params(...)                                                           \
    (&(struct clinfer_mla_fused_rope_rmsnorm_params){ __VA_ARGS__ })

// Enqueues and returns at once, as clEnqueueNDRangeKernel does; `event` may be NULL, and is valid also
// when T is 0. Errors: ERR_SHAPE, ERR_TYPE, ERR_ARGUMENT, ERR_ALIAS, ERR_BOUNDS, ERR_BUILD, ERR_FILE (a
// kernel's file), ERR_MEMORY, ERR_UNSUPPORTED (rows of more than 2^17 elements; in the group set those past
// the device's local memory; no kernel set passed its self-check here) or OpenCL's; nothing is enqueued on
// error. Threads: any. Source: DeepSeek-V2 (2024), section 2.1. Elsewhere:
// mla_fused_rope_rmsnorm_quantization.
CLINFER_API clinfer_status clinfer_mla_fused_rope_rmsnorm(
    clinfer_ctx *ctx, const struct clinfer_mla_fused_rope_rmsnorm_params *params,
    cl_uint num_events_in_wait_list, const cl_event *event_wait_list, cl_event *event);

// Compiles what that call would need and enqueues nothing. Buffers may be NULL; T may be any number.
CLINFER_API clinfer_status clinfer_mla_fused_rope_rmsnorm_compile(
    clinfer_ctx *ctx, const struct clinfer_mla_fused_rope_rmsnorm_params *params);

CLINFER_API_END

#endif
