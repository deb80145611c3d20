// SPDX-License-Identifier: Apache-2.0
// y[t,h,n] = alpha * round(sum_k x[t,h,k] * w[h,n,k] + bias[n]), batched over h: x and w in any format, fp8 and Q8_0
// with their scales read directly. Group set: a work-group takes GROUP_ROWS outputs of one head for GROUP_TOKENS tokens,
// an item a register tile of ROW_TILE x TOKEN_TILE of them. An output is summed by one item in the order of k, whatever
// the tiles.
#include "lib/weights.clh"
#include "lib/group.clh"

#if !defined(X_T) || !defined(Y_T) || !defined(ROUND_T) || !defined(BIAS_T) || !defined(TOKEN_TILE) || !defined(ROW_TILE) || \
    !defined(GROUP_ROWS) || !defined(GROUP_TOKENS)
#error "matmul wants X_T, Y_T, ROUND_T, BIAS_T and the tiles"
#endif

#if GROUP_ROWS / ROW_TILE * (GROUP_TOKENS / TOKEN_TILE) != GROUP_ITEMS
#error "matmul wants a register tile of GROUP_ROWS x GROUP_TOKENS for each of the GROUP_ITEMS"
#endif

#if (ROW_TILE != 1 && ROW_TILE != LANES) || (TOKEN_TILE != 1 && TOKEN_TILE != LANES)
#error "matmul wants 1 or LANES as ROW_TILE and TOKEN_TILE"
#endif

#define ROW_ITEMS (GROUP_ROWS / ROW_TILE)
// Columns in local memory at a time: MATMUL_STEP of src/tune.c.
#define STEP 32
#define STEP_VECTORS (STEP / LANES)

// A tile in local memory is [STEP][size], size a power of two. Columns that one vector brought are turned by LANES
// against those of the next: items that store the vectors of a row meet in no bank, nor do those that read neighbours.
#define COLUMN(k, at, size) ((k) * (size) + (((at) + (k) / LANES * LANES) & ((size) - 1)))

static inline void put_vector(floatn x, __local float *tile, int k, int at, int size)
{
    float lane[LANES];
    vstoren(x, 0, lane);
#pragma unroll
    for (int j = 0; j < LANES; j++)
        tile[COLUMN(k + j, at, size)] = lane[j];
}

// n neighbours in column k: 1, or LANES that start at a multiple of it.
static inline void read_column(__local const float *tile, int k, int at, int size, int n, float *x)
{
    if (n == 1)
        *x = tile[COLUMN(k, at, size)];
    else
        vstoren(*(__local const floatn *) (tile + COLUMN(k, at, size)), 0, x);
}

// Asks for local memory, where a step of weights is decoded once for all tokens, and x read once for all rows. Global
// memory is read along k, STEP neighbours at a time; `valid` says which tokens have an output, the rest stay as they are.
// bias and valid may be NULL.
GROUP_KERNEL void matmul(uint count, TENSOR3(const ELEM(X_T), x), TENSOR3(const ELEM(W_T), w),
                         TENSOR3(const scale_elem, w_scale), TENSOR1(const ELEM(BIAS_T), bias), TENSOR3(ELEM(Y_T), y),
                         TENSOR1(const uint, valid), float alpha, uint rows, uint columns)
{
    __local floatn w_tile[(STEP * GROUP_ROWS + LANES - 1) / LANES], x_tile[(STEP * GROUP_TOKENS + LANES - 1) / LANES];
    const uint first = get_group_id(0) * GROUP_ROWS, h = get_group_id(1), t0 = get_group_id(2) * GROUP_TOKENS;
    if (t0 >= count)
        return;
    uint any = !valid;
    for (uint t = t0; !any && t < count && t < t0 + GROUP_TOKENS; t++)
        any = valid[valid_at + t];
    if (!any)
        return;
    __local float *ws = (__local float *) w_tile, *xs = (__local float *) x_tile;
    const struct weights m = WEIGHTS_AT(h);
    const uint row = ITEM % ROW_ITEMS * ROW_TILE, token = ITEM / ROW_ITEMS * TOKEN_TILE;
    float sum[TOKEN_TILE][LANES] = { { 0.0f } };
    for (uint k0 = 0; k0 < columns; k0 += STEP) {
        for (uint i = ITEM; i < GROUP_ROWS * STEP_VECTORS; i += GROUP_ITEMS) {
            const uint r = i / STEP_VECTORS, k = i % STEP_VECTORS * LANES;
            floatn v = 0.0f;
            if (first + r < rows && k0 + k < columns)
                v = load_weights(&m, first + r, k0 + k, min((uint) LANES, columns - k0 - k));
            put_vector(v, ws, k, r, GROUP_ROWS);
        }
        for (uint i = ITEM; i < GROUP_TOKENS * STEP_VECTORS; i += GROUP_ITEMS) {
            const uint t = t0 + i / STEP_VECTORS, k = i % STEP_VECTORS * LANES;
            floatn v = 0.0f;
            if (t < count && k0 + k < columns && (!valid || valid[valid_at + t]))
                v = FORMAT(X_T, load)(x + x_at + t * x_stride0 + h * x_stride1 + k0 + k, min((uint) LANES, columns - k0 - k));
            put_vector(v, xs, k, t - t0, GROUP_TOKENS);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll 8
        for (int k = 0; k < STEP; k++) {
            float a[LANES], b[LANES];
            read_column(ws, k, row, GROUP_ROWS, ROW_TILE, a);
            read_column(xs, k, token, GROUP_TOKENS, TOKEN_TILE, b);
#pragma unroll
            for (int i = 0; i < TOKEN_TILE; i++)
#pragma unroll
                for (int j = 0; j < ROW_TILE; j++)
                    sum[i][j] = fma(b[i], a[j], sum[i][j]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (first + row >= rows)
        return;
    const int n = min((uint) ROW_TILE, rows - first - row);
    const floatn add = bias ? FORMAT(BIAS_T, load)(bias + bias_at + first + row, n) : (floatn) 0.0f;
    for (int i = 0; i < TOKEN_TILE; i++) {
        const uint t = t0 + token + i;
        if (t < count && (!valid || valid[valid_at + t]))
            FORMAT(Y_T, store)(y + y_at + t * y_stride0 + h * y_stride1 + first + row,
                               FORMAT(ROUND_T, round)(vloadn(0, sum[i]) + add) * alpha, n);
    }
}
