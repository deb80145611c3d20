// SPDX-License-Identifier: Apache-2.0
// New rows into the cache. Row set: a work-item takes one token of one plane.
#include "lib/paged.clh"
#include "lib/quant.clh"

#if !defined(SOURCE_T)
#error "kv_store wants SOURCE_T"
#endif

#define LANES_AT(i, n) min(16, (n) - (i))

#if SCALE_GROUP
// A group of n elements with its scale, read twice, so that no row is held.
static inline void store_scaled(__global const ELEM(SOURCE_T) *from, __global uchar *code, __global float *scale, int n)
{
    float16 top = 0.0f;
    for (int i = 0; i < n; i += 16)
        top = fmax(top, finite_magnitude(FORMAT(SOURCE_T, load)(from + i, LANES_AT(i, n))));
    *scale = divide(lane_max(top), 448.0f);
    const float inverse = inverse_scale(*scale);
    for (int i = 0; i < n; i += 16)
        f8_e4m3_store(code + i, scaled(FORMAT(SOURCE_T, load)(from + i, LANES_AT(i, n)), inverse), LANES_AT(i, n));
}
#endif

static inline void store_head(__global const ELEM(SOURCE_T) *from, __global ELEM(CACHE_T) *to, __global float *scales)
{
#if SCALE_GROUP
    for (int g = 0; g < SCALE_GROUPS; g++)
        store_scaled(from + g * SCALE_GROUP, to + g * SCALE_GROUP, scales + g, min(SCALE_GROUP, HEAD_SIZE - g * SCALE_GROUP));
#elif FORMAT_ID(SOURCE_T) == FORMAT_ID(CACHE_T)
    FORMAT(CACHE_T, copy)(from, to, HEAD_SIZE);
#else
#pragma unroll 16
    for (int i = 0; i < HEAD_SIZE; i += 16)
        FORMAT(CACHE_T, store)(to + i, FORMAT(SOURCE_T, load)(from + i, LANES_AT(i, HEAD_SIZE)), LANES_AT(i, HEAD_SIZE));
#endif
}

__kernel void kv_store(PAGED_ARGS, TENSOR3(const ELEM(SOURCE_T), k), TENSOR3(const ELEM(SOURCE_T), v), ulong plane_stride,
                       ulong scales_plane_stride)
{
    const uint t = get_global_id(0), plane = get_global_id(1);
    if (t >= count)
        return;
    PAGED_INIT(c);
    struct token tok;
    check_offsets(&c, t);
    if (!find_token(&c, t, &tok))
        return;
    __global const ELEM(SOURCE_T) *from = plane ? v + v_at + t * v_stride0 : k + k_at + t * k_stride0;
    const ulong head_stride = plane ? v_stride1 : k_stride1;
    __global ELEM(CACHE_T) *to = c.kv + tok.row + plane * plane_stride;
    __global float *scales = c.scales + tok.scales_row + plane * scales_plane_stride;
    for (int h = 0; h < KV_HEADS; h++)
        store_head(from + h * head_stride, to + h * HEAD_SIZE, scales + h * SCALE_GROUPS);
}
