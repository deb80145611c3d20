// SPDX-License-Identifier: Apache-2.0
// y[t,h,n] = alpha * round(sum_k x[t,h,k] * w[h,n,k] + bias[n]), batched over h: x and w in any format, fp8 and Q8_0
// with their scales read directly. Row set: a work-item takes some rows of one head and a block of tokens; lanes run
// along k, so that weights stream in the order they lie in. An output is summed in the same order whatever the tiles.
#include "lib/weights.clh"

#if !defined(X_T) || !defined(Y_T) || !defined(ROUND_T) || !defined(BIAS_T) || !defined(TOKEN_TILE) || !defined(ROW_TILE) || \
    !defined(ITEM_TOKENS) || !defined(STEP)
#error "matmul wants X_T, Y_T, ROUND_T, BIAS_T, STEP (columns decoded at a time, 0: where they are used) and the tiles"
#endif

// Whole vectors, whose loads have no branches, are inlined; what a row ends with, and what is no inner loop, stays apart:
// compilers take long over it.
#define INLINE static inline __attribute__((always_inline))
#define APART static __attribute__((noinline))

#define TILE (TOKEN_TILE * ROW_TILE)
#if TILE > 32
#error "a matmul tile has at most 32 outputs"
#endif

#if STEP % 16 || (STEP == 0 && ITEM_TOKENS != TOKEN_TILE)
#error "matmul wants whole vectors as STEP, and one tile of tokens where it is 0"
#endif

// An item's part of the product: one head, and of its tokens those up to `tokens`. bias and valid may be NULL.
struct part {
    struct weights weights;
    __global const ELEM(X_T) *x;
    __global ELEM(Y_T) *y;
    ulong x_stride, y_stride;
    __global const ELEM(BIAS_T) *bias;
    __global const uint *valid; // which tokens have an output; the rest stay as they are
    float alpha;
    uint rows, columns, tokens;
};

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

static inline void store_tile(const struct part *p, uint row, uint t, const float16 sum[TILE])
{
    const int n = min((uint) ROW_TILE, p->rows - row);
    const float16 bias = p->bias ? FORMAT(BIAS_T, load)(p->bias + row, n) : (float16) 0.0f;
    float out[32 + 16]; // a token's lanes may start late
#pragma unroll
    for (int first = 0; first < TILE; first += 16) {
        float16 v[16];
#pragma unroll
        for (int i = 0; i < 16; i++)
            v[i] = first + i < TILE ? sum[first + i] : (float16) 0.0f;
        vstore16(sum_lanes(v), 0, out + first);
    }
    for (int i = 0; i < TOKEN_TILE && t + i < p->tokens; i++)
        if (!p->valid || p->valid[t + i])
            FORMAT(Y_T, store)(p->y + (t + i) * p->y_stride + row,
                               FORMAT(ROUND_T, round)(vload16(0, out + i * ROW_TILE) + bias) * p->alpha, n);
}

// Rows and tokens past the end repeat the last one.
#define ROW_AT(j) min(row + j, p->rows - 1)
#define X_AT(i) p->x + min(t + i, p->tokens - 1) * p->x_stride + k

// Scales of a run of columns of ROW_TILE rows.
static inline void load_scales(const struct part *p, uint row, uint k, uint end, float scales[ROW_TILE][RUN_SCALES + 1])
{
#pragma unroll
    for (int j = 0; j < ROW_TILE; j++)
        load_run_scales(&p->weights, ROW_AT(j), k, end, scales[j]);
}

// A vector of each of ROW_TILE rows.
INLINE void load_rows(const struct part *p, uint row, uint k, float scales[ROW_TILE][RUN_SCALES + 1], float16 w[ROW_TILE])
{
#pragma unroll
    for (int j = 0; j < ROW_TILE; j++)
        w[j] = load_run_weights(&p->weights, ROW_AT(j), k, 16, scales[j]);
}

// One step of a tile of outputs, [token][row]: a vector of columns.
INLINE void add_columns(const struct part *p, uint t, uint k, const float16 w[ROW_TILE], float16 sum[TILE])
{
#pragma unroll
    for (int i = 0; i < TOKEN_TILE; i++) {
        const float16 x = FORMAT(X_T, load)(X_AT(i), 16);
#pragma unroll
        for (int j = 0; j < ROW_TILE; j++)
            sum[i * ROW_TILE + j] = fma(x, w[j], sum[i * ROW_TILE + j]);
    }
}

// The same of the n < 16 columns that a row, or a run, ends with.
APART float16 end_of_row(const struct weights *m, uint row, uint k, int n, const float *scales)
{
    return load_run_weights(m, row, k, n, scales);
}

INLINE void load_end_of_rows(const struct part *p, uint row, uint k, int n, float scales[ROW_TILE][RUN_SCALES + 1],
                             float16 w[ROW_TILE])
{
#pragma unroll
    for (int j = 0; j < ROW_TILE; j++)
        w[j] = end_of_row(&p->weights, ROW_AT(j), k, n, scales[j]);
}

INLINE void copy_tile(const float16 from[TILE], float16 to[TILE])
{
#pragma unroll
    for (int i = 0; i < TILE; i++)
        to[i] = from[i];
}

APART void add_end(const struct part *p, uint t, uint k, int n, const float16 w[ROW_TILE], float16 sum[TILE])
{
    for (int i = 0; i < TOKEN_TILE; i++) {
        const float16 x = FORMAT(X_T, load)(X_AT(i), n);
        for (int j = 0; j < ROW_TILE; j++)
            sum[i * ROW_TILE + j] = fma(x, w[j], sum[i * ROW_TILE + j]);
    }
}

// On a copy: a tile whose address is taken would be kept out of registers everywhere.
INLINE void add_end_of_columns(const struct part *p, uint t, uint k, int n, const float16 w[ROW_TILE], float16 sum[TILE])
{
    float16 copy[TILE];
    copy_tile(sum, copy);
    add_end(p, t, k, n, w, copy);
    copy_tile(copy, sum);
}

INLINE void clear_tile(float16 sum[TILE])
{
#pragma unroll
    for (int i = 0; i < TILE; i++)
        sum[i] = 0.0f;
}

#if STEP
#define STEP_COLUMNS(p, k) min((uint) STEP, (p)->columns - (k))

// A step of ROW_TILE rows in f32.
APART void decode_rows(const struct part *whole, uint row, uint k0, float16 w[STEP / 16][ROW_TILE])
{
    const struct part copy = *whole, *const p = &copy; // which no store to w can change
    float scales[ROW_TILE][RUN_SCALES + 1];
    const uint stop = k0 + STEP_COLUMNS(p, k0);
    uint k = k0;
    while (k < stop) {
        const uint end = RUN_END(k, stop);
        load_scales(p, row, k, end, scales);
        for (; k + 16 <= end; k += 16)
            load_rows(p, row, k, scales, w[(k - k0) / 16]);
        if (k < end) {
            load_end_of_rows(p, row, k, end - k, scales, w[(k - k0) / 16]);
            k = end;
        }
    }
}

static inline void add_step(const struct part *p, uint t, uint k0, float16 w[STEP / 16][ROW_TILE], float16 sum[TILE])
{
    const uint n = STEP_COLUMNS(p, k0);
    uint k = 0;
    for (; k + 16 <= n; k += 16)
        add_columns(p, t, k0 + k, w[k / 16], sum);
    if (k < n)
        add_end_of_columns(p, t, k0 + k, n - k, w[k / 16], sum);
}

// ROW_TILE rows for all tokens of the item: a step of them is decoded once, sums wait for the next one in memory.
static inline void take_rows(const struct part *p, uint row, uint t0)
{
    float16 w[STEP / 16][ROW_TILE], kept[(ITEM_TOKENS + TOKEN_TILE - 1) / TOKEN_TILE][TILE];
    for (uint k = 0; k < p->columns; k += STEP) {
        decode_rows(p, row, k, w);
        for (uint t = t0; t < p->tokens; t += TOKEN_TILE) {
            float16 sum[TILE];
            if (k == 0)
                clear_tile(sum);
            else
                copy_tile(kept[(t - t0) / TOKEN_TILE], sum);
            add_step(p, t, k, w, sum);
            if (p->columns - k > STEP)
                copy_tile(sum, kept[(t - t0) / TOKEN_TILE]);
            else
                store_tile(p, row, t, sum);
        }
    }
}
#else
static inline void take_rows(const struct part *p, uint row, uint t)
{
    float16 w[ROW_TILE], sum[TILE];
    float scales[ROW_TILE][RUN_SCALES + 1];
    uint k = 0;
    clear_tile(sum);
    while (k < p->columns) {
        const uint end = RUN_END(k, p->columns);
        load_scales(p, row, k, end, scales);
        for (; k + 16 <= end; k += 16) {
            load_rows(p, row, k, scales, w);
            add_columns(p, t, k, w, sum);
        }
        if (k < end) {
            load_end_of_rows(p, row, k, end - k, scales, w);
            add_end_of_columns(p, t, k, end - k, w, sum);
            k = end;
        }
    }
    store_tile(p, row, t, sum);
}
#endif

__kernel void matmul(uint count, TENSOR3(const ELEM(X_T), x), TENSOR3(const ELEM(W_T), w), TENSOR3(const scale_elem, w_scale),
                     TENSOR1(const ELEM(BIAS_T), bias), TENSOR3(ELEM(Y_T), y), TENSOR1(const uint, valid), float alpha,
                     uint rows, uint columns, uint item_rows)
{
    const uint first = get_global_id(0) * item_rows, h = get_global_id(1), t0 = get_global_id(2) * ITEM_TOKENS;
    if (t0 >= count)
        return;
    const struct part p = { WEIGHTS_AT(h),
                            x + x_at + h * x_stride1,
                            y + y_at + h * y_stride1,
                            x_stride0,
                            y_stride0,
                            bias ? bias + bias_at : 0,
                            valid ? valid + valid_at : 0,
                            alpha,
                            rows,
                            columns,
                            min(count, t0 + ITEM_TOKENS) };
    uint any = !p.valid;
    for (uint t = t0; !any && t < p.tokens; t++)
        any = p.valid[t];
    if (!any)
        return;
    for (uint row = first; row < first + min(item_rows, rows - first); row += ROW_TILE)
        take_rows(&p, row, t0);
}
