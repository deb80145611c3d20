// SPDX-License-Identifier: Apache-2.0
// RMSNorm of rows of n. Row set: a work-item takes a row, once for its sum and once, from the cache, for its values; a row
// is too short work to be worth a second launch, which items that share one would need.
#include "lib/format.clh"
#include "lib/norm_rows.clh"

// Sums side by side, so that they wait for memory and not for each other.
#define SUMS 4

__kernel void rms_norm(uint count, TENSOR2(const ELEM(X_T), x), TENSOR1(const ELEM(GAMMA_T), gamma),
                       TENSOR2(ELEM(ROW_T), residual), TENSOR2(ELEM(X_T), output), int n, float epsilon,
                       float weight_offset)
{
    const uint t = get_global_id(0);
    if (t >= count)
        return;
    __global const ELEM(X_T) *from = x + x_at + t * x_stride0;
    __global ELEM(ROW_T) *sums = residual + residual_at + t * residual_stride0;
    floatn sum[SUMS] = { 0.0f };
    int i = 0;
    for (; i + SUMS * LANES <= n; i += SUMS * LANES)
#pragma unroll SUMS
        for (int k = 0; k < SUMS; k++) {
            const floatn value = first_lanes(from, sums, i + k * LANES, LANES);
            sum[k] = fma(value, value, sum[k]);
        }
    for (; i < n; i += LANES) {
        const floatn value = first_lanes(from, sums, i, min(LANES, n - i));
        sum[0] = fma(value, value, sum[0]);
    }
    const float r = inverse_rms(lane_sum((sum[0] + sum[1]) + (sum[2] + sum[3])), n, epsilon);
#if RESIDUAL
    __global const ELEM(ROW_T) *row = sums;
#else
    __global const ELEM(ROW_T) *row = from;
#endif
    __global ELEM(X_T) *to = output + output_at + t * output_stride0;
    for (i = 0; i < n; i += LANES)
        last_lanes(row, gamma + gamma_at, weight_offset, r, to, i, min(LANES, n - i));
}
