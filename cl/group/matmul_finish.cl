// SPDX-License-Identifier: Apache-2.0
// y[t,h,n] = alpha * round(x[t,h,n] + bias[n]) of the f32 sums that CLBlast left, for the tokens that `valid` names; the
// rest stay as they are. bias and valid may be NULL. Group set: a work-group takes one head of one token.
#include "lib/format.clh"
#include "lib/group.clh"

#if !defined(Y_T) || !defined(ROUND_T) || !defined(BIAS_T)
#error "matmul_finish wants Y_T, ROUND_T, BIAS_T"
#endif

GROUP_KERNEL void matmul_finish(uint count, TENSOR1(const float, x), ulong x_row_stride, ulong x_stride,
                                TENSOR1(const ELEM(BIAS_T), bias), TENSOR3(ELEM(Y_T), y), TENSOR1(const uint, valid), float alpha,
                                uint rows)
{
    const uint t = get_group_id(0), h = get_group_id(1);
    if (t >= count || (valid && !valid[valid_at + t]))
        return;
    __global const float *from = x + x_at + t * x_row_stride + h * x_stride;
    __global ELEM(Y_T) *to = y + y_at + t * y_stride0 + h * y_stride1;
    for (int i = ITEM * LANES; i < (int) rows; i += GROUP_ITEMS * LANES) {
        const int n = min(LANES, (int) rows - i);
        const floatn add = bias ? FORMAT(BIAS_T, load)(bias + bias_at + i, n) : (floatn) 0.0f;
        FORMAT(Y_T, store)(to + i, FORMAT(ROUND_T, round)(f32_load(from + i, n) + add) * alpha, n);
    }
}
