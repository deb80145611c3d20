// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_KV_STORE_H_
#define CLINFER_KV_STORE_H_

#include <clinfer/context.h>
#include <clinfer/kv_cache.h>

CLINFER_API_BEGIN

// New rows into the cache, from whatever type they have to whatever type it has:
//
//   K cache[slot of token t] = k[t],   V cache[slot of token t] = v[t]
//
// T tokens, K KV heads, D and Dv the head sizes of K and V. Each value is rounded once, to nearest even;
// where the types are equal it moves bit for bit. A cache of plain fp8 takes a saturating cast at scale 1:
// what is past +-448, infinities included, becomes +-448, and NaN stays NaN. A cache with scales takes a
// scaled store: per group of scale_group elements of a head (the last may be short) scale = amax / 448, amax
// the largest finite magnitude, and code = f8(x * (1 / scale)), 0 where 1 / scale is not finite; infinities
// become +-448, NaN stays NaN.
//
// A decode loop calls it first: fused_qk_rope, rms_norm_kv_cache and mla_decode_branch find the rows in the
// cache. An MLA cache has one plane and takes only k.
struct clinfer_kv_store_params {
    cl_command_queue queue; // NULL: the context's
    clinfer_tensor k;       // [T, K, D] f32 f16 bf16
    clinfer_tensor v;       // [T, K, Dv] f32 f16 bf16, of its own type; absent: V stays as it is
    clinfer_kv_cache kv;    // K in plane 0; V in plane 1, of the same head size, where kv_v is zeroed
    // V's own view, where it lies elsewhere or has another head size, type or scales than K; zeroed: plane 1
    // of kv. planes is 1; page_size and num_heads are those of kv, num_pages is at least kv's: one lookup
    // table serves both. If kv has a second plane, that is then left alone.
    clinfer_kv_cache kv_v;
    clinfer_kv_batch batch;
    int64_t layer_idx; // within kv, and within kv_v
};
#define clinfer_kv_store_params(...) (&(struct clinfer_kv_store_params){ __VA_ARGS__ })

// Enqueues and returns at once, as clEnqueueNDRangeKernel does; `event` may be NULL, and is valid also
// when T is 0. A call can be repeated. A token with a fault is written to neither plane.
// Errors: ERR_SHAPE, ERR_TYPE, ERR_ARGUMENT, ERR_ALIAS (k and v may share memory, but not with the cache),
// ERR_BOUNDS, ERR_BUILD, ERR_FILE (a kernel's file), ERR_MEMORY, ERR_UNSUPPORTED (rows of more than 2^30
// elements; no kernel set passed its self-check here) or OpenCL's; nothing is enqueued on error. Threads:
// any. Source: PagedAttention (Kwon et al. 2023). Elsewhere: reshape_and_cache.
CLINFER_API clinfer_status clinfer_kv_store(clinfer_ctx *ctx, const struct clinfer_kv_store_params *params,
                                            cl_uint num_events_in_wait_list, const cl_event *event_wait_list,
                                            cl_event *event);

// Compiles what that call would need and enqueues nothing. Buffers may be NULL; T may be any number.
CLINFER_API clinfer_status clinfer_kv_store_compile(clinfer_ctx *ctx,
                                                    const struct clinfer_kv_store_params *params);

CLINFER_API_END

#endif
