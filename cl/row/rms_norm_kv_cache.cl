// SPDX-License-Identifier: Apache-2.0
// RMSNorm of the new K rows, in place. Row set: a work-item takes one token, so that gamma is decoded once for all its
// heads; a row is read once and kept in vectors.
#include "lib/paged.clh"
#include "lib/quant.clh"
#include "lib/norm_cast.clh"

#if !defined(NORM_SIZE) || !defined(WHOLE_ROW)
#error "rms_norm_kv_cache wants NORM_SIZE, WHOLE_ROW"
#endif

#define ROWS (WHOLE_ROW ? 1 : KV_HEADS)
#define NORM_VECTORS VECTORS(NORM_SIZE)
#define LANES_AT(v) min(16, NORM_SIZE - 16 * (v))

static inline void load_weights(__global const ELEM(GAMMA_T) *gamma, float weight_offset, float16 *weight)
{
#pragma unroll 16
    for (int v = 0; v < NORM_VECTORS; v++)
        weight[v] = norm_weight(gamma + 16 * v, weight_offset, LANES_AT(v));
}

// A row whose values are in gamma's type; the store that follows rounds.
static inline void normalise(float16 *x, const float16 *weight, float epsilon)
{
    float16 sum[2] = { (float16) 0.0f, (float16) 0.0f };
#pragma unroll 16
    for (int v = 0; v < NORM_VECTORS; v++)
        sum[v % 2] = fma(x[v], x[v], sum[v % 2]);
    const float r = inverse_rms(lane_sum(sum[0] + sum[1]), NORM_SIZE, epsilon);
#pragma unroll 16
    for (int v = 0; v < NORM_VECTORS; v++)
        x[v] = norm_lanes(x[v], r, weight[v]);
}

#if !SCALE_GROUP
static inline void norm_row(__global ELEM(CACHE_T) *row, const float16 *weight, float epsilon)
{
    float16 x[NORM_VECTORS];
#pragma unroll 16
    for (int v = 0; v < NORM_VECTORS; v++)
        x[v] = NORM_IN(CACHE_T, FORMAT(CACHE_T, load)(row + 16 * v, LANES_AT(v)));
    normalise(x, weight, epsilon);
#pragma unroll 16
    for (int v = 0; v < NORM_VECTORS; v++)
        FORMAT(CACHE_T, store)(row + 16 * v, NORM_OUT(CACHE_T, x[v]), LANES_AT(v));
}
#else
// Dims of head h that the norm reaches, where a row is `heads` heads.
#define REACH(h) clamp(NORM_SIZE - (h) * HEAD_SIZE, 0, HEAD_SIZE)

static inline void norm_scaled_row(__global uchar *row, __global float *scales, const float16 *weight, int heads, float epsilon)
{
    float values[(WHOLE_ROW ? KV_HEADS : 1) * HEAD_SIZE];
    float16 x[NORM_VECTORS];
    for (int h = 0; h < heads; h++)
        load_groups(row + h * HEAD_SIZE, scales + h * SCALE_GROUPS, values + h * HEAD_SIZE, 0, REACH(h));
    for (int v = 0; v < NORM_VECTORS; v++)
        x[v] = FORMAT(GAMMA_T, round)(lanes_of(values, 16 * v, NORM_SIZE));
    normalise(x, weight, epsilon);
    for (int v = 0; v < NORM_VECTORS; v++)
        put_lanes(FORMAT(GAMMA_T, round)(x[v]), values, 16 * v, NORM_SIZE);
    for (int h = 0; h < heads; h++)
        store_groups(row + h * HEAD_SIZE, scales + h * SCALE_GROUPS, values + h * HEAD_SIZE, 0, REACH(h));
}
#endif

__kernel void rms_norm_kv_cache(PAGED_ARGS, TENSOR1(const ELEM(GAMMA_T), gamma), float epsilon, float weight_offset)
{
    const uint t = get_global_id(0);
    if (t >= count)
        return;
    PAGED_INIT(c);
    struct token tok;
    check_offsets(&c, t);
    if (!find_token(&c, t, &tok))
        return;
    float16 weight[NORM_VECTORS];
    load_weights(gamma + gamma_at, weight_offset, weight);
    for (int i = 0; i < ROWS; i++) {
        __global ELEM(CACHE_T) *row = c.kv + tok.row + (ulong) i * HEAD_SIZE;
#if SCALE_GROUP
        norm_scaled_row(row, c.scales + tok.scales_row + (ulong) i * SCALE_GROUPS, weight, WHOLE_ROW ? KV_HEADS : 1, epsilon);
#else
        norm_row(row, weight, epsilon);
#endif
    }
}
