// SPDX-License-Identifier: Apache-2.0
// New K rows times a factor a head, in place. Group set: a work-group takes one token, a head at a time.
// Local memory: of a scaled cache 4 bytes an element of a head, and 8 a scale group.
#include "lib/paged.clh"
#include "lib/scaled_head_group.clh"

GROUP_KERNEL void scale_k(PAGED_ARGS, TENSOR1(const float, factors), float scale)
{
#if SCALE_GROUP
    __local float x[HEAD_SIZE];
    __local uint scales[2 * SCALE_GROUPS];
#endif
    const uint t = get_group_id(0);
    if (t >= count)
        return;
    PAGED_INIT(c);
    struct token tok;
    if (ITEM == 0)
        check_offsets(&c, t);
    if (!find_token(&c, t, &tok))
        return;
    for (int h = 0; h < KV_HEADS; h++) {
        __global ELEM(CACHE_T) *row = c.kv + tok.row + h * HEAD_SIZE;
        const float factor = factors[factors_at + h] * scale;
#if SCALE_GROUP
        __global float *row_scales = c.scales + tok.scales_row + h * SCALE_GROUPS;
        load_scaled_groups(row, row_scales, x, 0, HEAD_SIZE);
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        for (EACH_VECTOR(i, HEAD_SIZE))
            put_local_lanes(local_lanes(x, i, HEAD_SIZE) * factor, x, i, HEAD_SIZE);
        barrier(CLK_LOCAL_MEM_FENCE);
        store_scaled_groups(row, row_scales, x, scales, 0, HEAD_SIZE);
#else
        for (EACH_VECTOR(i, HEAD_SIZE)) {
            const int n = min(LANES, HEAD_SIZE - i);
            FORMAT(CACHE_T, store)(row + i, FORMAT(CACHE_T, load)(row + i, n) * factor, n);
        }
#endif
    }
}
