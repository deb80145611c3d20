// SPDX-License-Identifier: Apache-2.0
// The batched GEMM behind every projection: y[t,h,n] = alpha * round(sum_k x[t,h,k] * w[h,n,k]).
#pragma once
#include "plan.h"

struct clf_matmul {
    int64_t tokens, heads, rows, columns; // T, H, N, K
    size_t x;                             // workspace offset of x, f32 [T, H, K] dense
    const clinfer_tensor *w, *w_scale;    // [H, N, K], [H, ceil(N / row_block), ceil(K / column_block)]
    int64_t row_block, column_block;      // with fp8 weights
    const clinfer_tensor *y;              // [T, H, N], or NULL: f32 in the workspace
    size_t y_workspace, y_stride[2];      // where y is NULL: offset, strides in elements
    clinfer_dtype round;                  // each sum is rounded to this type, then multiplied by alpha
    float alpha;
    size_t valid; // workspace offset of u32 [T]: outputs of tokens with 0 stay as they are
};

clinfer_status clf_push_matmul(struct clf_plan *plan, const struct clf_matmul *m);
