// SPDX-License-Identifier: Apache-2.0
// RMSNorm of rows of n. Group set: a work-group takes a row, once for its sum and once, from the cache, for its values.
// Local memory: 4 bytes an item for the sum.
#include "lib/format.clh"
#include "lib/norm_rows.clh"
#include "lib/group.clh"

GROUP_KERNEL void rms_norm(uint count, TENSOR2(const ELEM(X_T), x), TENSOR1(const ELEM(GAMMA_T), gamma),
                           TENSOR2(ELEM(ROW_T), residual), TENSOR2(ELEM(X_T), output), int n, float epsilon,
                           float weight_offset)
{
    __local float scratch[GROUP_SCRATCH];
    const uint t = get_group_id(0);
    if (t >= count)
        return;
    __global const ELEM(X_T) *from = x + x_at + t * x_stride0;
    __global ELEM(ROW_T) *sums = residual + residual_at + t * residual_stride0;
    floatn sum = 0.0f;
    for (EACH_VECTOR(i, n)) {
        const floatn value = first_lanes(from, sums, i, min(LANES, n - i));
        sum = fma(value, value, sum);
    }
    const float r = inverse_rms(group_sum(lane_sum(sum), scratch), n, epsilon);
    __global ELEM(X_T) *to = output + output_at + t * output_stride0;
    for (EACH_VECTOR(i, n))
        last_lanes(NORM_ROW(from, sums), gamma + gamma_at, weight_offset, r, to, i, min(LANES, n - i));
}
