// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_FUSED_QK_ROPE_H_
#define CLINFER_FUSED_QK_ROPE_H_

#include <clinfer/context.h>
#include <clinfer/kv_cache.h>

CLINFER_API_BEGIN

enum { CLINFER_MAX_MROPE_SECTIONS = 8 };

// RoPE of Q into `output`, and of the new K rows inside the cache, in place:
//
//   re' = re * cos - im * sin,   im' = re * sin + im * cos      for each pair (re, im) of a head
//
// T new tokens, H query heads of size Q, K KV heads of size D (H % K == 0), R rotated dims (even,
// at most Q and D), F rows of the table. Arithmetic is f32; a result is rounded once, when stored.
// Dims outside the pairs are copied (Q) or left alone (K), bit for bit; V and old tokens are untouched.
// In a cache with scales, groups that hold a rotated dim are stored again with new scales.
struct clinfer_fused_qk_rope_params {
    cl_command_queue queue;   // NULL: the context's
    clinfer_tensor q_proj;    // [T, H, Q] f32 f16 bf16
    clinfer_tensor freqs_cis; // [F, R] f32 f16 bf16: column 2p is cos, 2p + 1 is sin of pair p
    clinfer_tensor output;    // [T, H, Q] of q_proj's type; may be exactly q_proj
    clinfer_kv_cache kv;      // the K plane is rotated
    clinfer_kv_batch batch;
    int64_t layer_idx; // within kv
    // Which elements form pair p. 1: neighbours, in the last R dims (GPT-J, GGUF llama).
    // 0: p and p + R/2, in the first R dims (GPT-NeoX, Hugging Face); then Q == D.
    int interleaved;
    clinfer_tensor position_ids; // u32 [n, T], optional: rows of freqs_cis; absent: the cache position
    // Multimodal RoPE: ascending ends in elements of the table (32, 80, 128 for pair sections 16, 24, 24).
    // Column d takes position_ids[s], s the first section whose end is > d, else 0. 0 sections: none.
    int num_mrope_sections; // 0, or n of position_ids
    int mrope_section[CLINFER_MAX_MROPE_SECTIONS];
};
#define clinfer_fused_qk_rope_params(...) (&(struct clinfer_fused_qk_rope_params){ __VA_ARGS__ })

// Enqueues and returns at once, as clEnqueueNDRangeKernel does; `event` may be NULL, and is valid also
// when T is 0. Errors: ERR_SHAPE, ERR_TYPE, ERR_ARGUMENT, ERR_ALIAS, ERR_BOUNDS, ERR_BUILD, ERR_FILE (a
// kernel's file), ERR_MEMORY, ERR_UNSUPPORTED (heads of more than 2^17 elements; in the group set and a cache
// with scales those past the device's local memory; no kernel set passed its self-check here) or OpenCL's;
// nothing is enqueued on error. Threads: any. Source: RoFormer (Su et al. 2021); M-RoPE of Qwen2-VL.
// Elsewhere: generic_fused_qk_rope_bshd_paged_ragged.
CLINFER_API clinfer_status clinfer_fused_qk_rope(clinfer_ctx *ctx,
                                                 const struct clinfer_fused_qk_rope_params *params,
                                                 cl_uint num_events_in_wait_list,
                                                 const cl_event *event_wait_list, cl_event *event);

// Compiles what that call would need and enqueues nothing. Buffers may be NULL; T may be any number.
CLINFER_API clinfer_status clinfer_fused_qk_rope_compile(clinfer_ctx *ctx,
                                                         const struct clinfer_fused_qk_rope_params *params);

CLINFER_API_END

#endif
