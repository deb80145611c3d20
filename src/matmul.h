// SPDX-License-Identifier: Apache-2.0
// The batched product behind matmul and every projection: y[t,h,n] = alpha * round(sum_k x[t,h,k] * w[h,n,k]
// + bias[n]), by own kernels or by CLBlast.
#pragma once
#include "plan.h"

// Tensors have the axis of heads, of one where there is no batch.
struct clf_matmul {
    int64_t tokens, heads, rows, columns; // T, H, N, K
    const clinfer_tensor *x_tensor;       // [T, H, K], or NULL: f32 in the workspace
    size_t x;                             // workspace offset of x in f32, [T, H, K] dense
    bool shared_x;                        // x, in the workspace, is [T, K], the same for all heads
    const clinfer_tensor *w, *w_scale,
        *bias;                       // [H, N, K], [H, ceil(N / row_block), ceil(K / column_block)], [N]
    int64_t row_block, column_block; // with fp8 weights
    float x_scale_bound;             // with those and x_tensor; infinity: none
    const clinfer_tensor *y;         // [T, H, N], or NULL: f32 in the workspace
    size_t y_workspace, y_stride[2]; // where y is NULL: offset, strides in elements
    clinfer_dtype round;             // each sum is rounded to this type, then multiplied by alpha
    float alpha;
    bool all_valid; // else `valid` says which tokens have an output
    size_t valid;   // workspace offset of u32 [T]: outputs of tokens with 0 stay as they are
    size_t scratch; // workspace offset, from clf_reserve_matmul()
};

// Reserves the scratch in which `count` products take turns, and the x of each that has a tensor. It does not
// shrink as T grows.
void clf_reserve_matmul(struct clf_plan *plan, struct clf_matmul *m, int count);

clinfer_status clf_push_matmul(struct clf_plan *plan, const struct clf_matmul *m);

// What the kernels around a product share.

// The format of w and the blocks of its scales.
void clf_define_weights(struct clf_launch *l, const struct clf_matmul *m);
// Whether the product reads x in f32 from the workspace, where the tensor is something else.
bool clf_matmul_converts(const struct clf_plan *plan, const struct clf_matmul *m, bool by_clblast);
// What comes after the sums: types; bias, y as TENSOR3 takes it, valid, alpha.
void clf_define_outputs(struct clf_launch *l, const struct clf_matmul *m);
void clf_push_outputs(struct clf_launch *l, const struct clf_plan *plan, const struct clf_matmul *m);

// matmul_clblast.c
// Whether CLBlast serves this product, and the launches where it does.
bool clf_matmul_by_clblast(const struct clf_plan *plan, const struct clf_matmul *m);
void clf_push_matmul_clblast(struct clf_plan *plan, const struct clf_matmul *m);
