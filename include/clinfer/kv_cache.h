// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_KV_CACHE_H_
#define CLINFER_KV_CACHE_H_

#include <clinfer/tensor.h>

CLINFER_API_BEGIN

// A view of a paged KV cache: kv_blocks [P, planes, L, S, K, D], where planes is 2 (K, then V), or 1: for
// MLA, with K == 1 and D == C + R, and where K and V, of different size or type, have a view each (kv_store).
// The S * K * D elements of one page of one layer are contiguous; every step above them may be strided. Plain
// data, owns nothing. A zero stride means dense: layer_stride S*K*D, kv_stride L*layer_stride, page_stride
// planes*kv_stride.
typedef struct clinfer_kv_cache {
    cl_mem mem;
    size_t offset;        // bytes from the start of `mem` to page 0; a multiple of the element size
    clinfer_dtype dtype;  // F32 F16 BF16 F8_E4M3
    int64_t num_pages;    // P: a page id at or past it is a device fault, never an access
    int planes;           // 1 or 2; 0: 2
    int64_t num_layers;   // L; 0: 1
    int64_t page_size;    // S >= 1 tokens
    int64_t num_heads;    // K
    int64_t head_size;    // D; rows that one kernel holds whole have a limit, see each operation's errors
    int64_t page_stride;  // elements; may pass 2^32
    int64_t kv_stride;    // elements from the K plane to the V plane
    int64_t layer_stride; // elements

    // Only with F8_E4M3 blocks, optional: kv_scales f32 [P, planes, L, S, K, ceil(D / scale_group)];
    // value = code * scale of its group. scale_group 0: no scales. Strides in floats, zero: dense.
    cl_mem scales;
    size_t scales_offset; // bytes
    int64_t scale_group;  // g: elements that share a scale; the last group of a head may be short
    int64_t scales_page_stride, scales_kv_stride, scales_layer_stride;
} clinfer_kv_cache;

// The ragged batch: B requests, T new tokens of all of them together.
// Token i of request b is at pos = cache_lengths[b] + i - input_row_offsets[b]; that is also its cache
// slot: page lookup_table[b][pos / S], slot pos % S. Rows past input_row_offsets[B] are padding, neither
// read nor written. What these tensors hold only the device sees: see clinfer_ctx_fault().
typedef struct clinfer_kv_batch {
    clinfer_tensor input_row_offsets; // u32 [B+1], ascending from 0, at most T
    clinfer_tensor cache_lengths;     // u32 [B], tokens cached before this step
    clinfer_tensor lookup_table;      // u32 [B, max_pages], logical page -> physical page
} clinfer_kv_batch;

CLINFER_API_END

#endif
