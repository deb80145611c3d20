// SPDX-License-Identifier: Apache-2.0
// Weights [H, N, K] of any format in f32, for CLBlast. Row set: a work-item takes one row; `count` is H.
#include "lib/weights.clh"

__kernel void weights_f32(uint count, TENSOR3(const ELEM(W_T), w), TENSOR3(const scale_elem, w_scale), TENSOR1(float, y),
                          ulong y_row_stride, ulong y_stride, uint columns)
{
    const uint h = get_global_id(0), row = get_global_id(1);
    if (h >= count)
        return;
    const struct weights m = WEIGHTS_AT(h);
    __global float *to = y + y_at + h * y_stride + row * y_row_stride;
    for (int k = 0; k < (int) columns; k += LANES) {
        const int n = min(LANES, (int) columns - k);
        f32_store(to + k, load_weights(&m, row, k, n), n);
    }
}
