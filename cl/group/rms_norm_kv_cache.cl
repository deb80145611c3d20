// SPDX-License-Identifier: Apache-2.0
// RMSNorm of the new K rows, in place. Group set: a row at a time, its sum over all items; the groups of a token share its
// heads, so that few tokens fill the device and many find their rows once.
// Local memory: 4 bytes an element that the norm reaches, read once from the cache and needed twice (of a scaled cache the
// whole row), 8 a scale group and 4 an item for the reductions. Work-groups of GROUP_ITEMS: 256 elements a step.
#include "lib/paged.clh"
#include "lib/scaled_head_group.clh"
#include "lib/norm_cast.clh"

#if !defined(NORM_SIZE) || !defined(WHOLE_ROW)
#error "rms_norm_kv_cache wants NORM_SIZE, WHOLE_ROW"
#endif

#define ROWS (WHOLE_ROW ? 1 : KV_HEADS)
#define LANES_AT(i) (NORM_SIZE % LANES ? min(LANES, NORM_SIZE - (i)) : LANES)

// A vector in gamma's type: of the cache, or of a scaled row that was staged in x.
static inline floatn load_value(__global const ELEM(CACHE_T) *row, __local const float *x, int i)
{
#if SCALE_GROUP
    return FORMAT(GAMMA_T, round)(local_lanes(x, i, NORM_SIZE));
#else
    return NORM_IN(CACHE_T, FORMAT(CACHE_T, load)(row + i, LANES_AT(i)));
#endif
}

// To the cache, or back to the scaled row.
static inline void store_value(__global ELEM(CACHE_T) *row, __local float *x, int i, floatn y)
{
#if SCALE_GROUP
    put_local_lanes(FORMAT(GAMMA_T, round)(y), x, i, NORM_SIZE);
#else
    FORMAT(CACHE_T, store)(row + i, NORM_OUT(CACHE_T, y), LANES_AT(i));
#endif
}

// An item keeps to its own vectors.
static inline void norm_row(__global ELEM(CACHE_T) *row, __local float *x, __local float *scratch,
                            __global const ELEM(GAMMA_T) *gamma, float epsilon, float weight_offset)
{
    floatn sum = 0.0f;
    for (EACH_VECTOR(i, NORM_SIZE)) {
        const floatn value = load_value(row, x, i);
        put_local_lanes(value, x, i, NORM_SIZE);
        sum = fma(value, value, sum);
    }
    const float r = inverse_rms(group_sum(lane_sum(sum), scratch), NORM_SIZE, epsilon);
    for (EACH_VECTOR(i, NORM_SIZE)) {
        const floatn weight = norm_weight(gamma + i, weight_offset, LANES_AT(i));
        store_value(row, x, i, norm_lanes(local_lanes(x, i, NORM_SIZE), r, weight));
    }
}

#if SCALE_GROUP
// Dims of head h that the norm reaches, where a row is ROW_HEADS heads.
#define ROW_HEADS (WHOLE_ROW ? KV_HEADS : 1)
#define REACH(h) min(NORM_SIZE - (h) * HEAD_SIZE, HEAD_SIZE)

static inline void stage_row(__global const uchar *row, __global const float *scale, __local float *x)
{
    for (int h = 0; h < ROW_HEADS && REACH(h) > 0; h++)
        load_scaled_groups(row + h * HEAD_SIZE, scale + h * SCALE_GROUPS, x + h * HEAD_SIZE, 0, REACH(h));
    barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
}

static inline void store_row(__global uchar *row, __global float *scale, __local const float *x, __local uint *scales)
{
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int h = 0; h < ROW_HEADS && REACH(h) > 0; h++)
        store_scaled_groups(row + h * HEAD_SIZE, scale + h * SCALE_GROUPS, x + h * HEAD_SIZE, scales, 0, REACH(h));
}
#endif

GROUP_KERNEL void rms_norm_kv_cache(PAGED_ARGS, TENSOR1(const ELEM(GAMMA_T), gamma), float epsilon, float weight_offset)
{
    __local float scratch[GROUP_SCRATCH];
#if SCALE_GROUP
    __local float x[ROW_HEADS * HEAD_SIZE];
    __local uint scales[2 * SCALE_GROUPS];
#else
    __local float x[NORM_SIZE];
#endif
    const uint t = get_group_id(0);
    if (t >= count)
        return;
    PAGED_INIT(c);
    struct token tok;
    if (ITEM == 0 && get_group_id(1) == 0)
        check_offsets(&c, t);
    if (!find_token(&c, t, &tok))
        return;
    for (int i = get_group_id(1); i < ROWS; i += get_num_groups(1)) {
        __global ELEM(CACHE_T) *row = c.kv + tok.row + (ulong) i * HEAD_SIZE;
#if SCALE_GROUP
        __global float *scale = c.scales + tok.scales_row + (ulong) i * SCALE_GROUPS;
        stage_row(row, scale, x);
#endif
        norm_row(row, x, scratch, gamma + gamma_at, epsilon, weight_offset);
#if SCALE_GROUP
        store_row(row, scale, x, scales);
#endif
    }
}
