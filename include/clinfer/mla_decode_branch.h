// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_MLA_DECODE_BRANCH_H_
#define CLINFER_MLA_DECODE_BRANCH_H_

#include <clinfer/attention_mask.h>
#include <clinfer/context.h>
#include <clinfer/kv_cache.h>

CLINFER_API_BEGIN

// One layer's MLA attention with absorbed weights. The new rows, raw, are in the cache at their slots.
//
//   cache row    = [ RMSNorm of [0, C) | RoPE of [C, C+R) ], in place, for all new rows, before any attention
//   q_full[t,h]  = [ sum_n q_nope[n] * w_uk[h,:,n] | RoPE(q_rope) ], rounded to q's type
//   raw[t,h]     = softmax over the keys that the mask lets through (scale * q_full . row) * row[0, C)
//   output[t,h,v]= sum_c raw[c] * w_uv[h,v,c],  raw rounded to q's type
//
// T new tokens, H heads, N = qk_nope_head_dim, R rope dims (even), C = kv_lora_rank, V = v_head_dim, F rows
// of the table. N and R may be 0. A query that sees no key gives 0. q is not changed. With fp8 weights,
// q_nope and raw are quantised per token, head and k_granularity columns, scale = min(amax, 1200) / 448.
struct clinfer_mla_decode_branch_params {
    cl_command_queue queue;       // NULL: the context's
    clinfer_tensor q;             // [T, H, N + R] f32 f16 bf16
    clinfer_tensor kv_norm_gamma; // [C] f32 f16 bf16
    clinfer_tensor freqs_cis;     // [F, R] f32 f16 bf16: column 2p is cos, 2p + 1 is sin of pair p
    clinfer_tensor w_uk;          // [H, C, N] f32 f16 bf16 f8_e4m3
    clinfer_tensor w_uv;          // [H, V, C] of w_uk's type
    clinfer_tensor w_uk_scale;    // f32 [H, ceil(C / n_granularity), ceil(N / k_granularity)], with fp8 only
    clinfer_tensor w_uv_scale;    // f32 [H, ceil(V / n_granularity), ceil(C / k_granularity)]
    clinfer_tensor output;        // [T, H, V] of q's type
    clinfer_kv_cache kv;          // planes 1, K 1, D == C + R
    clinfer_kv_batch batch;
    int64_t layer_idx;                    // within kv
    float epsilon, scale;                 // taken as given
    int64_t n_granularity, k_granularity; // rows and columns that share a weight scale; with fp8 only
    clinfer_mask mask;
    int64_t local_window_size; // W >= 1 for the masks that name it, else ignored
    clinfer_score_mod score_mod;
    int64_t max_context; // keys of the longest request, for the schedule only; 0: columns * S
    // Splits of the key range, merged afterwards; 0: chosen from device and shapes. A fixed number gives the
    // same bits for a request in any batch, as long as CLBlast takes no part (clinfer_gemm).
    int num_splits;
    // Scratch of at least clinfer_mla_decode_branch_workspace() bytes. NULL: the context's arena.
    cl_mem workspace;
    size_t workspace_offset; // bytes, a multiple of 64
};
#define clinfer_mla_decode_branch_params(...) (&(struct clinfer_mla_decode_branch_params){ __VA_ARGS__ })

// Enqueues and returns at once, as clEnqueueNDRangeKernel does; `event` may be NULL, and is valid also
// when T is 0. Errors: ERR_SHAPE, ERR_TYPE, ERR_ARGUMENT, ERR_ALIAS, ERR_BOUNDS, ERR_BUILD, ERR_FILE (a
// kernel's file), ERR_MEMORY, ERR_UNSUPPORTED (rows of more than 2^14 elements; in the group set what
// passes the device's local memory; no kernel set passed its self-check here; CLBlast does not work here) or
// OpenCL's; nothing is enqueued on error. Should the driver refuse a launch after the first, its code comes
// back and output and new cache rows are undefined. Threads: any; calls that share the arena run one after
// another. Source: DeepSeek-V2 (2024), section 2.1 and appendix C. Elsewhere: mla_decode_branch_fp8.
CLINFER_API clinfer_status clinfer_mla_decode_branch(clinfer_ctx *ctx,
                                                     const struct clinfer_mla_decode_branch_params *params,
                                                     cl_uint num_events_in_wait_list,
                                                     const cl_event *event_wait_list, cl_event *event);

// Compiles what that call would need and enqueues nothing. Buffers may be NULL. T chooses among the
// projections' tiles: one call each with T of 1, 2 and more compiles all that any T needs; where CLBlast
// takes part, also one of 64.
CLINFER_API clinfer_status
clinfer_mla_decode_branch_compile(clinfer_ctx *ctx, const struct clinfer_mla_decode_branch_params *params);

// *bytes: the scratch that the call needs. Buffers may be NULL. It grows with T: what the largest T needs is
// enough for every smaller one.
CLINFER_API clinfer_status clinfer_mla_decode_branch_workspace(
    clinfer_ctx *ctx, const struct clinfer_mla_decode_branch_params *params, size_t *bytes);

CLINFER_API_END

#endif
