// SPDX-License-Identifier: Apache-2.0
// RMSNorm of the new K rows, in place. Row set: a work-item takes one token; each row is read twice, the second
// time from the nearest cache.
#include "lib/paged.clh"
#include "lib/quant.clh"
#include "lib/norm.clh"

#if !defined(GAMMA_T) || !defined(NORM_SIZE) || !defined(WHOLE_ROW) || !defined(CAST_FIRST)
#error "rms_norm_kv_cache wants GAMMA_T, NORM_SIZE, WHOLE_ROW, CAST_FIRST"
#endif

#define ROWS (WHOLE_ROW ? 1 : KV_HEADS)
#define LANES_AT(i) min(16, NORM_SIZE - (i))

static inline float16 normalised(float16 x, float16 gamma, float r, float offset)
{
#if CAST_FIRST
    return FORMAT(GAMMA_T, round)(FORMAT(GAMMA_T, round)(x * r) * FORMAT(GAMMA_T, round)(gamma + offset));
#else
    return FORMAT(GAMMA_T, round)(x * r * (gamma + offset));
#endif
}

#if !SCALE_GROUP
static inline void norm_row(__global ELEM(CACHE_T) *row, __global const ELEM(GAMMA_T) *gamma, float epsilon, float offset)
{
    float16 sum[2] = { 0.0f, 0.0f };
#pragma unroll 8
    for (int i = 0; i < NORM_SIZE; i += 16) {
        const float16 x = FORMAT(GAMMA_T, round)(FORMAT(CACHE_T, load)(row + i, LANES_AT(i)));
        sum[i / 16 % 2] = fma(x, x, sum[i / 16 % 2]);
    }
    const float r = inverse_rms(sum16(sum[0] + sum[1]), NORM_SIZE, epsilon);
#pragma unroll 8
    for (int i = 0; i < NORM_SIZE; i += 16) {
        const float16 x = FORMAT(GAMMA_T, round)(FORMAT(CACHE_T, load)(row + i, LANES_AT(i)));
        FORMAT(CACHE_T, store)(row + i, normalised(x, FORMAT(GAMMA_T, load)(gamma + i, LANES_AT(i)), r, offset), LANES_AT(i));
    }
}
#else
// Dims of head h that the norm reaches, where a row is `heads` heads.
#define REACH(h) clamp(NORM_SIZE - (h) * HEAD_SIZE, 0, HEAD_SIZE)

static inline void norm_scaled_row(__global uchar *row, __global float *scales, __global const ELEM(GAMMA_T) *gamma,
                                   int heads, float epsilon, float offset)
{
    float x[(WHOLE_ROW ? KV_HEADS : 1) * HEAD_SIZE];
    for (int h = 0; h < heads; h++)
        load_groups(row + h * HEAD_SIZE, scales + h * SCALE_GROUPS, x + h * HEAD_SIZE, 0, REACH(h));
    float16 sum = 0.0f;
    for (int i = 0; i < NORM_SIZE; i += 16) {
        const float16 v = FORMAT(GAMMA_T, round)(lanes_of(x, i, NORM_SIZE));
        sum = fma(v, v, sum);
    }
    const float r = inverse_rms(sum16(sum), NORM_SIZE, epsilon);
    for (int i = 0; i < NORM_SIZE; i += 16) {
        float lane[16];
        const float16 v = FORMAT(GAMMA_T, round)(lanes_of(x, i, NORM_SIZE));
        vstore16(normalised(v, FORMAT(GAMMA_T, load)(gamma + i, LANES_AT(i)), r, offset), 0, lane);
        for (int j = 0; j < LANES_AT(i); j++)
            x[i + j] = lane[j];
    }
    for (int h = 0; h < heads; h++)
        store_groups(row + h * HEAD_SIZE, scales + h * SCALE_GROUPS, x + h * HEAD_SIZE, 0, REACH(h));
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
    const float offset = FORMAT(GAMMA_T, round)((float16) weight_offset).s0;
    for (int i = 0; i < ROWS; i++) {
        __global ELEM(CACHE_T) *row = c.kv + tok.row + (ulong) i * HEAD_SIZE;
#if SCALE_GROUP
        norm_scaled_row(row, c.scales + tok.scales_row + (ulong) i * SCALE_GROUPS, gamma + gamma_at,
                        WHOLE_ROW ? KV_HEADS : 1, epsilon, offset);
#else
        norm_row(row, gamma + gamma_at, epsilon, offset);
#endif
    }
}
