// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_PAGED_ATTENTION_H_
#define CLINFER_PAGED_ATTENTION_H_

#include <clinfer/attention_mask.h>
#include <clinfer/context.h>
#include <clinfer/kv_cache.h>

CLINFER_API_BEGIN

// Attention of a ragged batch over its paged cache, any mix of prefill and decode rows in one call. The new
// rows of K and V are in the cache already (kv_store).
//
//   s[k]        = scale * q[t,h] . K[k, h / (H / K)];  softcap c > 0: s = c * tanh(s / c);  then score_mod
//   output[t,h] = sum_k exp(s[k]) * V[k, h / (H / K)] / z,   z = sum_k exp(s[k]) + exp(sinks[h])
//   lse[t,h]    = ln(z)
//
// over the keys k that the mask lets through, of those cached and new. T tokens, H query heads, K KV heads
// (H % K == 0), D the head size of q and K, Dv that of V. Sums are f32; output is rounded once. A query that
// sees no key gives output 0, and lse = the sink, or -inf without sinks. What a query does not see does not
// reach it, NaN and infinities included.
typedef struct clinfer_attention_plan clinfer_attention_plan;

struct clinfer_paged_attention_params {
    cl_command_queue queue; // NULL: the context's
    clinfer_tensor q;       // [T, H, D] f32 f16 bf16 f8_e4m3
    clinfer_tensor sinks;   // f32 [H], a logit a head that has no value; absent: none
    clinfer_tensor output;  // [T, H, Dv] of q's type, bf16 where that is f8_e4m3
    clinfer_tensor lse;     // f32 [T, H]; absent: not wanted
    clinfer_kv_cache kv;    // K in plane 0; V in plane 1, of the same head size, where kv_v is zeroed
    // V's own view, where it lies elsewhere or has another head size, type or scales than K: as in kv_store.
    clinfer_kv_cache kv_v;
    clinfer_kv_batch batch;
    int64_t layer_idx; // within kv, and within kv_v
    float scale;       // taken as given
    float softcap;     // c; 0: off
    clinfer_mask mask;
    int64_t local_window_size; // W >= 1 for the masks that name it, else ignored
    clinfer_score_mod score_mod;
    int64_t max_context; // keys of the longest request, for the schedule only; 0: columns * S
    // Splits of a request's keys, at most 65535, merged afterwards; 0: chosen from device and shapes. A fixed
    // number gives the same bits for a request in any batch, with or without a plan, and 1 also for a prompt
    // whole or in steps: in launches too few for a small batch, or with merges that a large one does not
    // need.
    int num_splits;
    // A schedule from clinfer_attention_plan_create(), for calls of the same shapes and types; NULL: made by
    // the call, from shapes alone. With a plan max_context and num_splits are ignored.
    const clinfer_attention_plan *plan;
    // Scratch of at least clinfer_paged_attention_workspace() bytes. NULL: the context's arena.
    cl_mem workspace;
    size_t workspace_offset; // bytes, a multiple of 64
};
#define clinfer_paged_attention_params(...) (&(struct clinfer_paged_attention_params){ __VA_ARGS__ })

// Enqueues and returns at once, as clEnqueueNDRangeKernel does; `event` may be NULL, and is valid also
// when T is 0. Errors: ERR_SHAPE, ERR_TYPE, ERR_ARGUMENT, ERR_ALIAS, ERR_BOUNDS, ERR_BUILD, ERR_FILE (a
// kernel's file), ERR_MEMORY, ERR_UNSUPPORTED (heads of more than 2^14 elements; in the group set what passes
// the device's local memory; no kernel set passed its self-check here) or OpenCL's; nothing is enqueued on
// error. Threads: any; calls that share the arena run one after another. Source: FlashAttention-2 (Dao 2023),
// Flash-Decoding (Dao et al. 2023), PagedAttention (Kwon et al. 2023).
CLINFER_API clinfer_status clinfer_paged_attention(clinfer_ctx *ctx,
                                                   const struct clinfer_paged_attention_params *params,
                                                   cl_uint num_events_in_wait_list,
                                                   const cl_event *event_wait_list, cl_event *event);

// Compiles what that call would need and enqueues nothing. Buffers may be NULL; T chooses among tiles.
CLINFER_API clinfer_status
clinfer_paged_attention_compile(clinfer_ctx *ctx, const struct clinfer_paged_attention_params *params);

// *bytes: the scratch that the call needs. Buffers may be NULL. It grows with T: what the largest T needs is
// enough for every smaller one.
CLINFER_API clinfer_status clinfer_paged_attention_workspace(
    clinfer_ctx *ctx, const struct clinfer_paged_attention_params *params, size_t *bytes);

// A plan is a schedule for one step, which all layers share: work is cut where the host knows the lengths to
// be uneven. It takes bounds from the host; kernels read the true lengths, so it serves further steps of the
// same new tokens for as long as no request outgrows its bound.
struct clinfer_attention_plan_params {
    // A call like those to come: shapes, types, mask, queue. Buffers may be NULL.
    const struct clinfer_paged_attention_params *call;
    const int64_t *new_tokens; // [B], of each request, exactly: other offsets are a device fault (OFFSETS)
    // [B], at least a request's keys, new ones included: a longer one is a device fault (LENGTH), and nothing
    // is written for its tokens.
    const int64_t *max_context;
    int num_splits; // of each request; 0: chosen from device and lengths
};
#define clinfer_attention_plan_params(...) (&(struct clinfer_attention_plan_params){ __VA_ARGS__ })

// Copies the schedule to a buffer of the plan's own; nothing is enqueued. A call whose T, B, H, K, D, Dv,
// types, scale groups, mask, window or score_mod differ from the plan's, or of another context, is refused:
// ERR_ARGUMENT. Errors: those of the call, and ERR_ARGUMENT for lengths that do not fit it. On error *plan is
// NULL. Threads: a plan is read by any number of calls; destroy comes after the last was enqueued.
CLINFER_API clinfer_status clinfer_attention_plan_create(clinfer_attention_plan **plan, clinfer_ctx *ctx,
                                                         const struct clinfer_attention_plan_params *params);
// Frees, sets *plan to NULL; enqueued work keeps what it needs. *plan may be NULL.
CLINFER_API void clinfer_attention_plan_destroy(clinfer_attention_plan **plan);

CLINFER_API_END

#endif
