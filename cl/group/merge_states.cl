// SPDX-License-Identifier: Apache-2.0
// Two states of attention into one. Group set: the groups of a token share its heads, at most as many a group as it has
// items; an item works out a head's shares, then all take vectors of all its heads. Each log-sum-exp is read and written
// by one item, each vector too, so results may stand in the place of a.
// Local memory: 20 bytes an item.
#include "lib/format.clh"
#include "lib/merge.clh"
#include "lib/group.clh"

#if !defined(A_T) || !defined(B_T) || !defined(VALUE_SIZE)
#error "merge_states wants A_T, B_T, VALUE_SIZE"
#endif

GROUP_KERNEL void merge_states(uint count, TENSOR3(const ELEM(A_T), out_a), TENSOR2(const float, lse_a),
                               TENSOR3(const ELEM(B_T), out_b), TENSOR2(const float, lse_b), TENSOR3(ELEM(A_T), output),
                               TENSOR2(float, lse), uint heads)
{
    __local struct shares shares[GROUP_ITEMS];
    const uint t = get_group_id(0), run = (heads - 1) / get_num_groups(1) + 1, first = get_group_id(1) * run;
    if (t >= count)
        return;
    const int own = (int) min(first + run, heads) - (int) first;
    if (ITEM < own) {
        const uint h = first + ITEM;
        const struct shares s = shares_of(lse_a[lse_a_at + t * lse_a_stride0 + h], lse_b[lse_b_at + t * lse_b_stride0 + h]);
        lse[lse_at + t * lse_stride0 + h] = s.lse;
        shares[ITEM] = s;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = ITEM; i < own * VECTORS(VALUE_SIZE); i += GROUP_ITEMS) {
        const uint h = first + i / VECTORS(VALUE_SIZE);
        const int v = i % VECTORS(VALUE_SIZE), n = LANES_IN(VALUE_SIZE, v);
        const floatn a = FORMAT(A_T, load)(out_a + out_a_at + t * out_a_stride0 + h * out_a_stride1 + LANES * v, n);
        const floatn b = FORMAT(B_T, load)(out_b + out_b_at + t * out_b_stride0 + h * out_b_stride1 + LANES * v, n);
        FORMAT(A_T, store)(output + output_at + t * output_stride0 + h * output_stride1 + LANES * v, merged(a, b, shares[h - first]), n);
    }
}
