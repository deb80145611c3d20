// SPDX-License-Identifier: Apache-2.0
// Two states of attention into one. Row set: a work-item takes a run of heads of one token; a head is one item's, so
// results may stand in the place of a.
#include "lib/format.clh"
#include "lib/merge.clh"

#if !defined(A_T) || !defined(B_T) || !defined(VALUE_SIZE)
#error "merge_states wants A_T, B_T, VALUE_SIZE"
#endif

static inline void merge_head(__global const ELEM(A_T) *a, __global const ELEM(B_T) *b, __global ELEM(A_T) *to, struct shares s)
{
#pragma unroll 16
    for (int v = 0; v < VECTORS(VALUE_SIZE); v++) {
        const int n = LANES_IN(VALUE_SIZE, v);
        FORMAT(A_T, store)(to + LANES * v, merged(FORMAT(A_T, load)(a + LANES * v, n), FORMAT(B_T, load)(b + LANES * v, n), s), n);
    }
}

__kernel void merge_states(uint count, TENSOR3(const ELEM(A_T), out_a), TENSOR2(const float, lse_a),
                           TENSOR3(const ELEM(B_T), out_b), TENSOR2(const float, lse_b), TENSOR3(ELEM(A_T), output),
                           TENSOR2(float, lse), uint heads)
{
    const uint t = get_global_id(0), run = (heads - 1) / get_global_size(1) + 1;
    if (t >= count)
        return;
    const uint first = get_global_id(1) * run, end = min(first + run, heads);
    for (uint h = first; h < end; h++) {
        const struct shares s = shares_of(lse_a[lse_a_at + t * lse_a_stride0 + h], lse_b[lse_b_at + t * lse_b_stride0 + h]);
        lse[lse_at + t * lse_stride0 + h] = s.lse;
        merge_head(out_a + out_a_at + t * out_a_stride0 + h * out_a_stride1, out_b + out_b_at + t * out_b_stride0 + h * out_b_stride1,
                   output + output_at + t * output_stride0 + h * output_stride1, s);
    }
}
