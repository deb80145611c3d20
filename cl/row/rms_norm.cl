// SPDX-License-Identifier: Apache-2.0
// RMSNorm of rows of n. Row set: a work-item takes a run of rows, each once for its sum and once, from the cache, for its
// values. While one is stored the next is read, so that memory does both at a time.
#include "lib/format.clh"
#include "lib/norm_rows.clh"

// Sums side by side, so that they wait for memory and not for each other.
#define SUMS 4

struct row {
    __global const ELEM(X_T) *x;
    __global ELEM(ROW_T) *residual;
    __global ELEM(X_T) *to;
};

// The vector at i of each row: stored where `store`, taken into the sum where `load`.
static inline void step(const struct row *a, bool store, const struct row *b, bool load, __global const ELEM(GAMMA_T) *gamma,
                        float weight_offset, float r, int i, int n, floatn *sum)
{
    if (store)
        last_lanes(NORM_ROW(a->x, a->residual), gamma, weight_offset, r, a->to, i, n);
    if (load) {
        const floatn value = first_lanes(b->x, b->residual, i, n);
        *sum = fma(value, value, *sum);
    }
}

// Stores row a, whose 1 / rms is r, where `store`; returns the sum of squares of row b where `load`.
static inline float pass(const struct row *a, bool store, const struct row *b, bool load, __global const ELEM(GAMMA_T) *gamma,
                         float weight_offset, float r, int n)
{
    floatn sum[SUMS] = { 0.0f };
    int i = 0;
    for (; i + SUMS * LANES <= n; i += SUMS * LANES)
#pragma unroll SUMS
        for (int k = 0; k < SUMS; k++)
            step(a, store, b, load, gamma, weight_offset, r, i + k * LANES, LANES, &sum[k]);
    for (; i < n; i += LANES)
        step(a, store, b, load, gamma, weight_offset, r, i, min(LANES, n - i), &sum[0]);
    return lane_sum((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

__kernel void rms_norm(uint count, TENSOR2(const ELEM(X_T), x), TENSOR1(const ELEM(GAMMA_T), gamma),
                       TENSOR2(ELEM(ROW_T), residual), TENSOR2(ELEM(X_T), output), int n, float epsilon,
                       float weight_offset)
{
    const uint run = (count - 1) / get_global_size(0) + 1, first = get_global_id(0) * run;
    if (first >= count)
        return;
    const uint end = min(first + run, count);
    struct row a = { x + x_at + first * x_stride0, residual + residual_at + first * residual_stride0,
                     output + output_at + first * output_stride0 };
    float sum = pass(&a, false, &a, true, gamma + gamma_at, weight_offset, 0.0f, n);
    for (uint t = first + 1; t < end; t++) {
        const struct row b = { a.x + x_stride0, a.residual + residual_stride0, a.to + output_stride0 };
        sum = pass(&a, true, &b, true, gamma + gamma_at, weight_offset, inverse_rms(sum, n, epsilon), n);
        a = b;
    }
    (void) pass(&a, true, &a, false, gamma + gamma_at, weight_offset, inverse_rms(sum, n, epsilon), n);
}
