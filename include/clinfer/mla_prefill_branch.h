// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_MLA_PREFILL_BRANCH_H_
#define CLINFER_MLA_PREFILL_BRANCH_H_

#include <clinfer/attention_mask.h>
#include <clinfer/context.h>
#include <clinfer/kv_cache.h>

CLINFER_API_BEGIN

// One layer's MLA attention with K and V computed from the latents, for requests of many new tokens. The new
// rows, raw, are in the cache at their slots. What mla_decode_branch computes in another order: cheaper where
// many queries share a key, see clinfer_mla_prefill_cheaper().
//
//   cache row    = [ RMSNorm of [0, C) | RoPE of [C, C+R) ], in place, for all new rows, before any attention
//   K[k,h]       = [ row[0, C) w_k[h]^T | row[C, C+R) ],  V[k,h] = row[0, C) w_uv[h]^T; products rounded to
//                  q's type
//   output[t,h]  = softmax over the keys that the mask lets through (scale * [q_nope | RoPE(q_rope)] . K) V
//
// T new tokens, H heads, N = qk_nope_head_dim, R rope dims (even), C = kv_lora_rank, V = v_head_dim, F rows
// of the table. N and R may be 0. A query that sees no key gives 0. q is not changed. With fp8 weights, rows
// are quantised per token and k_granularity columns, scale = min(amax, 1200) / 448.
struct clinfer_mla_prefill_branch_params {
    cl_command_queue queue;       // NULL: the context's
    clinfer_tensor q;             // [T, H, N + R] f32 f16 bf16
    clinfer_tensor kv_norm_gamma; // [C] f32 f16 bf16
    clinfer_tensor freqs_cis;     // [F, R] f32 f16 bf16: column 2p is cos, 2p + 1 is sin of pair p
    clinfer_tensor w_k;           // [H * N, C] f32 f16 bf16 f8_e4m3
    clinfer_tensor w_uv;          // [H, V, C] of w_k's type
    clinfer_tensor w_k_scale;     // f32 [ceil(H * N / n_granularity), ceil(C / k_granularity)], with fp8 only
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
    // Keys of the longest request; 0: columns * S. The chunks are as many as these fill, so a bound that is
    // far too high costs launches that do nothing. A new token past it is a device fault, as one past the
    // table: nothing is written for it, and none of its request sees it.
    int64_t max_context;
    // Keys of each request whose K and V are in memory at a time: the workspace grows with it, not with
    // max_context. 0: chosen from B, the shapes and max_context. A fixed number gives the same bits for a
    // request in any batch, as long as CLBlast takes no part (clinfer_gemm).
    int64_t chunk_tokens;
    // Scratch of at least clinfer_mla_prefill_branch_workspace() bytes. NULL: the context's arena.
    cl_mem workspace;
    size_t workspace_offset; // bytes, a multiple of 64
};
#define clinfer_mla_prefill_branch_params(...) (&(struct clinfer_mla_prefill_branch_params){ __VA_ARGS__ })

// Enqueues and returns at once, as clEnqueueNDRangeKernel does; `event` may be NULL, and is valid also
// when T is 0. Errors: ERR_SHAPE, ERR_TYPE, ERR_ARGUMENT, ERR_ALIAS, ERR_BOUNDS, ERR_BUILD, ERR_FILE (a
// kernel's file), ERR_MEMORY, ERR_UNSUPPORTED (C + R or N + R + V of more than 2^14; in the group set what
// passes the device's local memory; no kernel set passed its self-check here; CLBlast does not work here) or
// OpenCL's; nothing is enqueued on error. Should the driver refuse a launch after the first, its code comes
// back and output and new cache rows are undefined. Threads: any; calls that share the arena run one after
// another. Source: DeepSeek-V2 (2024), section 2.1. Elsewhere: mla_prefill_branch_fp8.
CLINFER_API clinfer_status clinfer_mla_prefill_branch(clinfer_ctx *ctx,
                                                      const struct clinfer_mla_prefill_branch_params *params,
                                                      cl_uint num_events_in_wait_list,
                                                      const cl_event *event_wait_list, cl_event *event);

// Compiles what that call would need and enqueues nothing. Buffers may be NULL. The products' tiles go by
// keys in memory at a time, of all requests: a call with the B, chunk and T of those to come.
CLINFER_API clinfer_status
clinfer_mla_prefill_branch_compile(clinfer_ctx *ctx, const struct clinfer_mla_prefill_branch_params *params);

// *bytes: the scratch that the call needs. Buffers may be NULL. With a fixed chunk_tokens it grows with T:
// what the largest T needs is enough for every smaller one.
CLINFER_API clinfer_status clinfer_mla_prefill_branch_workspace(
    clinfer_ctx *ctx, const struct clinfer_mla_prefill_branch_params *params, size_t *bytes);

// Whether this is expected to take less time on the context's device than mla_decode_branch for a step of
// `new_tokens` queries in all, each of which sees about `context` keys, of `requests` requests: K and V of
// all keys cost more than the absorbed form saves until many queries share them. A cost model over the tuning
// table, no measurement. 1 or 0.
struct clinfer_mla_shape {
    int64_t heads, nope, rope, latent, value; // H N R C V
    int64_t requests, new_tokens, context;
};
CLINFER_API int clinfer_mla_prefill_cheaper(clinfer_ctx *ctx, const struct clinfer_mla_shape *shape);

CLINFER_API_END

#endif
