// SPDX-License-Identifier: Apache-2.0
// The batched GEMM behind every projection: y[t,h,n] = alpha * round(sum_k x[t,h,k] * w[h,n,k]), by own
// kernels or by CLBlast.
#pragma once
#include "plan.h"

struct clf_matmul {
    int64_t tokens, heads, rows, columns; // T, H, N, K
    size_t x;                             // workspace offset of x, f32 [T, H, K] dense
    bool shared_x;                        // x is [T, K], the same for all heads
    const clinfer_tensor *w, *w_scale;    // [H, N, K], [H, ceil(N / row_block), ceil(K / column_block)]
    int64_t row_block, column_block;      // with fp8 weights
    const clinfer_tensor *y;              // [T, H, N], or NULL: f32 in the workspace
    size_t y_workspace, y_stride[2];      // where y is NULL: offset, strides in elements
    clinfer_dtype round;                  // each sum is rounded to this type, then multiplied by alpha
    float alpha;
    size_t valid;   // workspace offset of u32 [T]: outputs of tokens with 0 stay as they are
    size_t scratch; // workspace offset, from clf_reserve_matmul()
};

// Reserves the scratch in which `count` projections take turns. It does not shrink as T grows.
void clf_reserve_matmul(struct clf_plan *plan, struct clf_matmul *m, int count);

clinfer_status clf_push_matmul(struct clf_plan *plan, const struct clf_matmul *m);

// y as TENSOR3 takes it.
void clf_push_matmul_y(struct clf_launch *l, const struct clf_plan *plan, const struct clf_matmul *m);

// matmul_clblast.c
// Whether CLBlast serves this projection, and the launches where it does.
bool clf_matmul_by_clblast(const struct clf_plan *plan, const struct clf_matmul *m);
void clf_push_matmul_clblast(struct clf_plan *plan, const struct clf_matmul *m);
