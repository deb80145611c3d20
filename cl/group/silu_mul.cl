// SPDX-License-Identifier: Apache-2.0
// output = silu(first half of x) * second half. Group set: the groups of a token share its vectors, neighbouring items
// on neighbouring ones, which is all that memory asks of it.
#include "lib/format.clh"
#include "lib/silu.clh"
#include "lib/group.clh"

#if !defined(X_T)
#error "silu_mul wants X_T"
#endif

GROUP_KERNEL void silu_mul(uint count, TENSOR2(const ELEM(X_T), x), TENSOR2(ELEM(X_T), output), uint n)
{
    const uint t = get_group_id(0);
    if (t >= count)
        return;
    __global const ELEM(X_T) *gate = x + x_at + t * x_stride0;
    __global const ELEM(X_T) *up = gate + n;
    __global ELEM(X_T) *to = output + output_at + t * output_stride0;
    for (uint v = get_group_id(1) * GROUP_ITEMS + ITEM; v < VECTORS(n); v += get_num_groups(1) * GROUP_ITEMS) {
        const int lanes = min(LANES, (int) (n - LANES * v));
        const floatn a = FORMAT(X_T, load)(gate + LANES * v, lanes), b = FORMAT(X_T, load)(up + LANES * v, lanes);
        FORMAT(X_T, store)(to + LANES * v, silu(a) * b, lanes);
    }
}
