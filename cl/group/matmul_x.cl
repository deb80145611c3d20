// SPDX-License-Identifier: Apache-2.0
// x [T, H, K] of any format in f32, for a product that reads it often or as f32; where weights are fp8, as code * scale
// of its fp8 groups of COLUMN_BLOCK columns, scale = min(amax, bound) / 448. Group set: a work-group takes a run of
// columns of one head of one token.
#include "lib/format.clh"
#include "lib/group.clh"
#include "lib/quant.clh"

#if !defined(X_T) || !defined(COLUMN_BLOCK)
#error "matmul_x wants X_T, COLUMN_BLOCK (0: not quantised)"
#endif

// for (EACH(k, first, stop)): the first columns of an item's vectors.
#define EACH(k, first, stop) uint k = (first) + LANES * ITEM; k < (stop); k += LANES * GROUP_ITEMS

// `run`, the columns of a work-group, holds whole groups.
GROUP_KERNEL void matmul_x(uint count, TENSOR3(const ELEM(X_T), x), TENSOR1(float, y), float bound, uint columns, uint run)
{
#if COLUMN_BLOCK
    __local float scratch[GROUP_SCRATCH];
#endif
    const uint t = get_group_id(0), h = get_group_id(1), first = get_group_id(2) * run, stop = first + min(run, columns - first);
    if (t >= count)
        return;
    __global const ELEM(X_T) *from = x + x_at + t * x_stride0 + h * x_stride1;
    __global float *to = y + y_at + ((ulong) t * get_num_groups(1) + h) * columns;
#if COLUMN_BLOCK
    for (uint g = first; g < stop; g += COLUMN_BLOCK) {
        const uint end = g + min((uint) COLUMN_BLOCK, stop - g);
        floatn top = 0.0f;
        for (EACH(k, g, end))
            top = fmax(top, finite_magnitude(FORMAT(X_T, load)(from + k, min((uint) LANES, end - k))));
        const float scale = divide(min(group_max(lane_max(top), scratch), bound), 448.0f), inverse = inverse_scale(scale);
        for (EACH(k, g, end)) {
            const int n = min((uint) LANES, end - k);
            f32_store(to + k, f8_e4m3_round(scaled(FORMAT(X_T, load)(from + k, n), inverse)) * scale, n);
        }
    }
#else
    for (EACH(k, first, stop)) {
        const int n = min((uint) LANES, stop - k);
        f32_store(to + k, FORMAT(X_T, load)(from + k, n), n);
    }
#endif
}
