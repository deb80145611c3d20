// SPDX-License-Identifier: Apache-2.0
// y[t,h,n] = sum_k x[t,h,k] * w[h,n,k], batched over h: x in f32, w in any format, fp8 with block scales read
// directly. Row set: a work-item takes ITEM_ROWS output rows of one head and a block of tokens; lanes run along
// k, so that weights stream in the order they lie in, and each is decoded once for all tokens of the item.
// An output is summed in the same order whatever the tiles.
#include "lib/weights.clh"

#if !defined(W_T) || !defined(Y_T) || !defined(ROUND_T) || !defined(ROWS) || !defined(COLUMNS) || !defined(ROW_BLOCK) || \
    !defined(COLUMN_BLOCK) || !defined(TOKEN_TILE) || !defined(ROW_TILE) || !defined(ITEM_ROWS) || !defined(ITEM_TOKENS)
#error "matmul wants W_T, Y_T, ROUND_T, ROWS, COLUMNS, ROW_BLOCK, COLUMN_BLOCK (0: no scales) and the tiles"
#endif

#if TOKEN_TILE * ROW_TILE > 16
#error "a matmul tile has at most 16 outputs"
#endif

#define LANES_AT(k) min(16, COLUMNS - (k))

// ROW_TILE rows decoded to f32, once for all tokens of the item; rows past the end repeat the last one.
static inline void load_tile(const struct weights *m, int row, float16 w[ROW_TILE][VECTORS(COLUMNS)])
{
    for (int j = 0; j < ROW_TILE; j++)
        for (int v = 0; v < VECTORS(COLUMNS); v++)
            w[j][v] = load_weights(m, min(row + j, ROWS - 1), 16 * v, COLUMNS);
}

// The sums of 16 vectors' lanes, one a lane: neighbours first, whatever the shape of the tile.
static inline float16 sum_lanes(float16 v[16])
{
#pragma unroll
    for (int n = 8; n > 0; n /= 2)
#pragma unroll
        for (int i = 0; i < n; i++)
            v[i] = (float16) (v[2 * i].even, v[2 * i + 1].even) + (float16) (v[2 * i].odd, v[2 * i + 1].odd);
    return v[0];
}

// A register tile of outputs, [token][row]; tokens past the end repeat the last one and are not stored.
static inline float16 sum_tile(float16 w[ROW_TILE][VECTORS(COLUMNS)], __global const float *x, ulong x_stride, int t, int tokens)
{
    float16 sum[16];
#pragma unroll
    for (int i = 0; i < 16; i++)
        sum[i] = 0.0f;
    for (int v = 0; v < VECTORS(COLUMNS); v++)
#pragma unroll
        for (int i = 0; i < TOKEN_TILE; i++) {
            const float16 a = f32_load(x + min(t + i, tokens - 1) * x_stride + 16 * v, LANES_AT(16 * v));
#pragma unroll
            for (int j = 0; j < ROW_TILE; j++)
                sum[i * ROW_TILE + j] = fma(a, w[j][v], sum[i * ROW_TILE + j]);
        }
    return sum_lanes(sum);
}

// `valid` says which tokens have an output; the rest stay as they are.
__kernel void matmul(uint count, TENSOR3(const float, x), TENSOR3(const ELEM(W_T), w), TENSOR3(const float, w_scale),
                     TENSOR3(ELEM(Y_T), y), TENSOR1(const uint, valid), float alpha)
{
    const int first = get_global_id(0) * ITEM_ROWS, h = get_global_id(1), t0 = get_global_id(2) * ITEM_TOKENS;
    const int tokens = min((int) count, t0 + ITEM_TOKENS);
    if (t0 >= tokens)
        return;
    uint any = 0;
    for (int t = t0; t < tokens; t++)
        any |= valid[valid_at + t];
    if (!any)
        return;
    const struct weights m = { w + w_at + h * w_stride0, w_stride1, w_scale + w_scale_at + h * w_scale_stride0, w_scale_stride1 };
    __global const float *xh = x + x_at + h * x_stride1;
    float16 tile[ROW_TILE][VECTORS(COLUMNS)];
    for (int row = first; row < min(first + ITEM_ROWS, ROWS); row += ROW_TILE) {
        load_tile(&m, row, tile);
        for (int t = t0; t < tokens; t += TOKEN_TILE) {
            float out[16 + 16]; // a token's lanes may start late
            vstore16(FORMAT(ROUND_T, round)(sum_tile(tile, xh, x_stride0, t, tokens)) * alpha, 0, out);
            for (int i = 0; i < TOKEN_TILE && t + i < tokens; i++)
                if (valid[valid_at + t + i])
                    FORMAT(Y_T, store)(y + y_at + (t + i) * y_stride0 + h * y_stride1 + row, vload16(0, out + i * ROW_TILE),
                                       min(ROW_TILE, ROWS - row));
        }
    }
}
