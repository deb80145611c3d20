// SPDX-License-Identifier: Apache-2.0
// y[t,h,n] = sum_k x[t,h,k] * w[h,n,k], batched over h: x in f32, w in any format, fp8 with block scales read
// directly. Row set: a work-item takes ROWS_TILE output rows of one head and a block of tokens; lanes run along
// k, so that weights stream in the order they lie in, and each is decoded once for TOKEN_TILE tokens.
// An output is summed in the same order whatever the tiles.
#include "lib/format.clh"

#if !defined(W_T) || !defined(Y_T) || !defined(ROUND_T) || !defined(ROWS) || !defined(COLUMNS) || !defined(ROW_BLOCK) || \
    !defined(COLUMN_BLOCK) || !defined(TOKEN_TILE) || !defined(ROW_TILE) || !defined(ITEM_ROWS) || !defined(ITEM_TOKENS)
#error "matmul wants W_T, Y_T, ROUND_T, ROWS, COLUMNS, ROW_BLOCK, COLUMN_BLOCK (0: no scales) and the tiles"
#endif

#define LANES_AT(k) min(16, COLUMNS - (k))
#define SCALE_BLOCK (COLUMN_BLOCK ? COLUMN_BLOCK : 1)

struct weights {
    __global const ELEM(W_T) *w;
    ulong row_stride;
    __global const float *scales;
    ulong scales_stride;
};

static inline float16 load_weights(const struct weights *m, int row, int k)
{
    const float16 w = FORMAT(W_T, load)(m->w + row * m->row_stride + k, LANES_AT(k));
#if COLUMN_BLOCK == 0
    return w;
#else
    __global const float *s = m->scales + row / ROW_BLOCK * m->scales_stride;
#if COLUMN_BLOCK % 16 == 0
    return w * s[k / SCALE_BLOCK];
#else
    float lane[16] = { 0 };
    for (int i = 0; i < LANES_AT(k); i++)
        lane[i] = s[(k + i) / SCALE_BLOCK];
    return w * vload16(0, lane);
#endif
#endif
}

// A tile of outputs; rows and tokens past the end repeat the last one and are not stored.
static inline void sum_tile(const struct weights *m, __global const float *x, ulong x_stride, int row, int t, int tokens,
                            float16 sum[TOKEN_TILE][ROW_TILE])
{
#pragma unroll
    for (int i = 0; i < TOKEN_TILE; i++)
#pragma unroll
        for (int j = 0; j < ROW_TILE; j++)
            sum[i][j] = 0.0f;
    for (int k = 0; k < COLUMNS; k += 16) {
        float16 w[ROW_TILE];
#pragma unroll
        for (int j = 0; j < ROW_TILE; j++)
            w[j] = load_weights(m, min(row + j, ROWS - 1), k);
#pragma unroll
        for (int i = 0; i < TOKEN_TILE; i++) {
            const float16 v = f32_load(x + min(t + i, tokens - 1) * x_stride + k, LANES_AT(k));
#pragma unroll
            for (int j = 0; j < ROW_TILE; j++)
                sum[i][j] = fma(v, w[j], sum[i][j]);
        }
    }
}

// `valid` says which tokens have an output; the rest stay as they are.
__kernel void matmul(uint count, TENSOR3(const float, x), TENSOR3(const ELEM(W_T), w), TENSOR3(const float, w_scale),
                     TENSOR3(ELEM(Y_T), y), TENSOR1(const uint, valid), float alpha)
{
    const int first = get_global_id(0) * ITEM_ROWS, h = get_global_id(1), t0 = get_global_id(2) * ITEM_TOKENS;
    const int tokens = min((int) count, t0 + ITEM_TOKENS);
    if (t0 >= tokens)
        return;
    const struct weights m = { w + w_at + h * w_stride0, w_stride1, w_scale + w_scale_at + h * w_scale_stride0, w_scale_stride1 };
    __global const float *xh = x + x_at + h * x_stride1;
    for (int row = first; row < min(first + ITEM_ROWS, ROWS); row += ROW_TILE)
        for (int t = t0; t < tokens; t += TOKEN_TILE) {
            float16 sum[TOKEN_TILE][ROW_TILE];
            sum_tile(&m, xh, x_stride0, row, t, tokens, sum);
#pragma unroll
            for (int i = 0; i < TOKEN_TILE; i++) {
                if (t + i >= tokens || !valid[valid_at + t + i])
                    continue;
                float lane[16] = { 0 };
#pragma unroll
                for (int j = 0; j < ROW_TILE; j++)
                    lane[j] = sum16(sum[i][j]);
                FORMAT(Y_T, store)(y + y_at + (t + i) * y_stride0 + h * y_stride1 + row,
                                   FORMAT(ROUND_T, round)(vload16(0, lane)) * alpha, min(ROW_TILE, ROWS - row));
            }
        }
}
