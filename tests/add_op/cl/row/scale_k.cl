// SPDX-License-Identifier: Apache-2.0
// New K rows times a factor a head, in place. Row set: a work-item takes one token.
#include "lib/paged.clh"
#include "lib/quant.clh"

static inline void scale_head(__global ELEM(CACHE_T) *row, __global float *scales, float factor)
{
#if SCALE_GROUP
    float x[HEAD_SIZE];
    load_groups(row, scales, x, 0, HEAD_SIZE);
    for (int i = 0; i < HEAD_SIZE; i += 16)
        put_lanes(lanes_of(x, i, HEAD_SIZE) * factor, x, i, HEAD_SIZE);
    store_groups(row, scales, x, 0, HEAD_SIZE);
#else
    for (int i = 0; i < HEAD_SIZE; i += 16) {
        const int n = min(16, HEAD_SIZE - i);
        FORMAT(CACHE_T, store)(row + i, FORMAT(CACHE_T, load)(row + i, n) * factor, n);
    }
#endif
}

__kernel void scale_k(PAGED_ARGS, TENSOR1(const float, factors), float scale)
{
    const uint t = get_global_id(0);
    if (t >= count)
        return;
    PAGED_INIT(c);
    struct token tok;
    check_offsets(&c, t);
    if (!find_token(&c, t, &tok))
        return;
    for (int h = 0; h < KV_HEADS; h++)
        scale_head(c.kv + tok.row + h * HEAD_SIZE, c.scales + tok.scales_row + h * SCALE_GROUPS, factors[factors_at + h] * scale);
}
