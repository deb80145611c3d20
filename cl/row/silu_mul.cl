// SPDX-License-Identifier: Apache-2.0
// output = silu(first half of x) * second half. Row set: a work-item takes a run of vectors of one token.
#include "lib/format.clh"
#include "lib/silu.clh"

#if !defined(X_T)
#error "silu_mul wants X_T"
#endif

__kernel void silu_mul(uint count, TENSOR2(const ELEM(X_T), x), TENSOR2(ELEM(X_T), output), uint n)
{
    const uint t = get_global_id(0), run = (VECTORS(n) - 1) / get_global_size(1) + 1;
    if (t >= count)
        return;
    __global const ELEM(X_T) *gate = x + x_at + t * x_stride0;
    __global const ELEM(X_T) *up = gate + n;
    __global ELEM(X_T) *to = output + output_at + t * output_stride0;
    const uint first = get_global_id(1) * run, end = min(first + run, (uint) VECTORS(n));
    for (uint v = first; v < end; v++) {
        const int lanes = min(LANES, (int) (n - LANES * v));
        const floatn a = FORMAT(X_T, load)(gate + LANES * v, lanes), b = FORMAT(X_T, load)(up + LANES * v, lanes);
        FORMAT(X_T, store)(to + LANES * v, silu(a) * b, lanes);
    }
}
