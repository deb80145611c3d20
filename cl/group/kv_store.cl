// SPDX-License-Identifier: Apache-2.0
// New rows into the cache. Group set: a work-group takes one token of one plane, its items neighbouring vectors.
#include "lib/paged.clh"
#include "lib/quant.clh"
#include "lib/group.clh"

#if !defined(SOURCE_T)
#error "kv_store wants SOURCE_T"
#endif

#if SCALE_GROUP
// A team of items shares one scale: as many, a power of two, as its elements have vectors.
#define SHARE VECTORS(SCALE_GROUP < HEAD_SIZE ? SCALE_GROUP : HEAD_SIZE)
#define POWER (SHARE > 32 ? 64 : SHARE > 16 ? 32 : SHARE > 8 ? 16 : SHARE > 4 ? 8 : SHARE > 2 ? 4 : SHARE)
#define SCALE_TEAM (POWER < GROUP_ITEMS ? POWER : GROUP_ITEMS)
#define SCALE_TEAMS (GROUP_ITEMS / SCALE_TEAM)

// The maximum over a team. Every item of the group has to reach it.
static inline float team_max(float x, __local float *scratch)
{
#if SCALE_TEAM > 1 // a loop of barriers that never runs makes PoCL 3.1 emit a kernel that crashes
    scratch[ITEM] = x;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int n = SCALE_TEAM / 2; n > 0; n /= 2) {
        if (ITEM % SCALE_TEAM < n)
            scratch[ITEM] = fmax(scratch[ITEM], scratch[ITEM + n]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    x = scratch[ITEM / SCALE_TEAM * SCALE_TEAM];
    barrier(CLK_LOCAL_MEM_FENCE);
#endif
    return x;
}

static inline void store_row(__global const ELEM(SOURCE_T) *row, ulong head_stride, __global uchar *codes,
                             __global float *scales, __local float *scratch)
{
    for (int first = 0; first < KV_HEADS * SCALE_GROUPS; first += SCALE_TEAMS) {
        const int g = first + ITEM / SCALE_TEAM, at = g % SCALE_GROUPS * SCALE_GROUP, head = g / SCALE_GROUPS;
        const int n = g < KV_HEADS * SCALE_GROUPS ? min(SCALE_GROUP, HEAD_SIZE - at) : 0;
        __global const ELEM(SOURCE_T) *from = row + head * head_stride + at;
        __global uchar *code = codes + head * HEAD_SIZE + at;
        floatn top = 0.0f;
        for (int i = LANES * (ITEM % SCALE_TEAM); i < n; i += LANES * SCALE_TEAM)
            top = fmax(top, finite_magnitude(FORMAT(SOURCE_T, load)(from + i, min(LANES, n - i))));
        const float scale = divide(team_max(lane_max(top), scratch), 448.0f), inverse = inverse_scale(scale);
        if (n > 0 && ITEM % SCALE_TEAM == 0)
            scales[g] = scale;
        for (int i = LANES * (ITEM % SCALE_TEAM); i < n; i += LANES * SCALE_TEAM)
            f8_e4m3_store(code + i, scaled(FORMAT(SOURCE_T, load)(from + i, min(LANES, n - i)), inverse), min(LANES, n - i));
    }
}
#else
static inline void store_row(__global const ELEM(SOURCE_T) *row, ulong head_stride, __global ELEM(CACHE_T) *to,
                             __global float *scales, __local float *scratch)
{
    for (int v = ITEM; v < KV_HEADS * VECTORS(HEAD_SIZE); v += GROUP_ITEMS) {
        const int head = v / VECTORS(HEAD_SIZE), d = v % VECTORS(HEAD_SIZE) * LANES, n = min(LANES, HEAD_SIZE - d);
        __global const ELEM(SOURCE_T) *from = row + head * head_stride + d;
#if FORMAT_ID(SOURCE_T) == FORMAT_ID(CACHE_T)
        FORMAT(CACHE_T, copy)(from, to + head * HEAD_SIZE + d, n);
#else
        FORMAT(CACHE_T, store)(to + head * HEAD_SIZE + d, FORMAT(SOURCE_T, load)(from, n), n);
#endif
    }
}
#endif

GROUP_KERNEL void kv_store(PAGED_ARGS, TENSOR3(const ELEM(SOURCE_T), k), TENSOR3(const ELEM(SOURCE_T), v),
                           ulong plane_stride, ulong scales_plane_stride)
{
    const uint t = get_group_id(0), plane = get_group_id(1);
    __local float scratch[GROUP_SCRATCH];
    if (t >= count)
        return;
    PAGED_INIT(c);
    struct token tok;
    if (ITEM == 0)
        check_offsets(&c, t);
    if (!find_token(&c, t, &tok))
        return;
    __global const ELEM(SOURCE_T) *row = plane ? v + v_at + t * v_stride0 : k + k_at + t * k_stride0;
    store_row(row, plane ? v_stride1 : k_stride1, c.kv + tok.row + plane * plane_stride,
              c.scales + tok.scales_row + plane * scales_plane_stride, scratch);
}
