// SPDX-License-Identifier: Apache-2.0
#include "weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HALF = GGUF_BLOCK / 2 };

static uint16_t u16_at(const unsigned char *at)
{
    return (uint16_t) (at[0] | at[1] << 8);
}

static float f16_at(const unsigned char *at)
{
    return weights_from_f16(u16_at(at));
}

// Blocks of Q8_0: scale f16, 32 codes i8. Q4_0: scale f16, 16 bytes, of which byte i holds element i in its
// low half and element 16 + i in its high half; value = (code - 8) * scale. Q4_1: scale and smallest value
// f16 before the 16 bytes; value = code * scale + smallest.
static const unsigned char *decode_block(enum gguf_type type, const unsigned char *at, float *x)
{
    const float scale = f16_at(at);
    at += 2;
    if (type == GGUF_Q8_0) {
        for (int i = 0; i < GGUF_BLOCK; i++)
            x[i] = scale * (float) (int8_t) at[i];
        return at + GGUF_BLOCK;
    }
    float low = -8 * scale;
    if (type == GGUF_Q4_1) {
        low = f16_at(at);
        at += 2;
    }
    for (int i = 0; i < HALF; i++) {
        x[i] = scale * (float) (at[i] & 15) + low;
        x[HALF + i] = scale * (float) (at[i] >> 4) + low;
    }
    return at + HALF;
}

static void decode_plain(enum gguf_type type, const unsigned char *at, int64_t n, float *x)
{
    if (type == GGUF_F32)
        memcpy(x, at, (size_t) n * sizeof *x);
    else if (type == GGUF_F16)
        for (int64_t i = 0; i < n; i++)
            x[i] = f16_at(at + 2 * i);
    else
        for (int64_t i = 0; i < n; i++) {
            const uint32_t bits = (uint32_t) u16_at(at + 2 * i) << 16;
            memcpy(&x[i], &bits, sizeof bits);
        }
}

void weights_rows(const struct gguf_tensor *tensor, int64_t first, int64_t count, float *x)
{
    const size_t row_bytes = tensor->bytes / (size_t) tensor->rows;
    const unsigned char *at = tensor->data + (size_t) first * row_bytes;
    const int64_t n = count * tensor->columns;
    if (tensor->type == GGUF_F32 || tensor->type == GGUF_F16 || tensor->type == GGUF_BF16)
        decode_plain(tensor->type, at, n, x);
    else
        for (int64_t i = 0; i < n; i += GGUF_BLOCK)
            at = decode_block(tensor->type, at, x + i);
}

// Rows of one matrix: what a block of fp8 scales does not cross.
static int64_t matrix_rows(const struct gguf_tensor *t)
{
    return t->rank > 1 ? t->shape[t->rank - 2] : 1;
}

static int64_t blocks(int64_t n, int64_t block)
{
    return (n + block - 1) / block;
}

size_t weights_code_bytes(const struct gguf_tensor *tensor, enum weights_type type)
{
    const size_t n = (size_t) (tensor->rows * tensor->columns);
    return type == WEIGHTS_F32 ? 4 * n : type == WEIGHTS_BF16 ? 2 * n : n;
}

size_t weights_scale_bytes(const struct gguf_tensor *tensor, enum weights_type type)
{
    const int64_t rows = matrix_rows(tensor), matrices = tensor->rows / rows;
    if (type == WEIGHTS_Q8_0)
        return (size_t) (tensor->rows * blocks(tensor->columns, GGUF_BLOCK)) * sizeof(uint16_t);
    if (type != WEIGHTS_F8_E4M3)
        return 0;
    return (size_t) (matrices * blocks(rows, WEIGHTS_F8_BLOCK) * blocks(tensor->columns, WEIGHTS_F8_BLOCK)) *
           sizeof(float);
}

static float largest(const float *x, int64_t rows, int64_t columns, int64_t stride)
{
    float amax = 0;
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c++)
            amax = fmaxf(amax, fabsf(x[r * stride + c]));
    return amax;
}

static bool finite_rows(const struct gguf_tensor *t, const float *x, int64_t first, int64_t count,
                        struct error *error)
{
    for (int64_t i = 0; i < count * t->columns; i++)
        if (!isfinite(x[i]))
            return fail(error, "tensor %s: row %" PRId64 ", column %" PRId64 " is %g, want finite weights",
                        t->name, first + i / t->columns, i % t->columns, (double) x[i]);
    return true;
}

// A row of codes and its scales.
static bool to_q8_0(const struct gguf_tensor *t, int64_t row, const float *x, int8_t *codes, uint16_t *scales,
                    struct error *error)
{
    for (int64_t c = 0; c < t->columns; c += GGUF_BLOCK) {
        const int64_t n = t->columns - c < GGUF_BLOCK ? t->columns - c : GGUF_BLOCK;
        scales[c / GGUF_BLOCK] = weights_to_f16(largest(x + c, 1, n, n) / 127);
        const float scale = weights_from_f16(scales[c / GGUF_BLOCK]); // which is not quite what was asked for
        if (isinf(scale))
            return fail(error, "tensor %s: row %" PRId64 " has a weight of %g, Q8_0 has scales up to 65504",
                        t->name, row, (double) largest(x + c, 1, n, n));
        for (int64_t i = c; i < c + n; i++)
            codes[i] = (int8_t) (scale > 0 ? fminf(fmaxf(roundf(x[i] / scale), -127), 127) : 0);
    }
    return true;
}

static void split_q8_0(const struct gguf_tensor *t, int8_t *codes, uint16_t *scales)
{
    const int64_t n = t->rows * t->columns / GGUF_BLOCK;
    for (int64_t i = 0; i < n; i++) {
        const unsigned char *block = t->data + i * (2 + GGUF_BLOCK);
        scales[i] = u16_at(block);
        memcpy(codes + i * GGUF_BLOCK, block + 2, GGUF_BLOCK);
    }
}

// Up to 128 rows of one matrix.
static void to_e4m3(const float *x, int64_t rows, int64_t columns, uint8_t *codes, float *scales)
{
    for (int64_t c = 0; c < columns; c += WEIGHTS_F8_BLOCK) {
        const int64_t n = columns - c < WEIGHTS_F8_BLOCK ? columns - c : WEIGHTS_F8_BLOCK;
        const float scale = largest(x + c, rows, n, columns) / 448, inverse = scale > 0 ? 1 / scale : 0;
        scales[c / WEIGHTS_F8_BLOCK] = scale;
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = r * columns + c; i < r * columns + c + n; i++)
                codes[i] = weights_to_e4m3(isfinite(inverse) ? x[i] * inverse : 0);
    }
}

// Rows [first, first + count) of the tensor, which lie in one matrix, from the begin of a block of scales.
static bool convert_rows(const struct gguf_tensor *t, enum weights_type type, int64_t first, int64_t count,
                         const float *x, void *codes, void *scales, struct error *error)
{
    const int64_t n = count * t->columns, at = first * t->columns, rows = matrix_rows(t);
    if (type == WEIGHTS_F32) {
        memcpy((float *) codes + at, x, (size_t) n * sizeof *x);
    } else if (type == WEIGHTS_BF16) {
        for (int64_t i = 0; i < n; i++)
            ((uint16_t *) codes)[at + i] = weights_to_bf16(x[i]);
    } else if (type == WEIGHTS_F8_E4M3) {
        const int64_t block = first / rows * blocks(rows, WEIGHTS_F8_BLOCK) + first % rows / WEIGHTS_F8_BLOCK;
        to_e4m3(x, count, t->columns, (uint8_t *) codes + at,
                (float *) scales + block * blocks(t->columns, WEIGHTS_F8_BLOCK));
    } else {
        for (int64_t r = 0; r < count; r++)
            if (!to_q8_0(t, first + r, x + r * t->columns, (int8_t *) codes + at + r * t->columns,
                         (uint16_t *) scales + (first + r) * blocks(t->columns, GGUF_BLOCK), error))
                return false;
    }
    return true;
}

bool weights_convert(const struct gguf_tensor *tensor, enum weights_type type, void *codes, void *scales,
                     struct error *error)
{
    const int64_t rows = matrix_rows(tensor), most = rows < WEIGHTS_F8_BLOCK ? rows : WEIGHTS_F8_BLOCK;
    float *x = malloc((size_t) (most * tensor->columns) * sizeof *x);
    bool ok = x || fail(error, "out of memory for %" PRId64 " rows of tensor %s", most, tensor->name);
    for (int64_t first = 0, count; ok && first < tensor->rows; first += count) {
        count = rows - first % rows < most ? rows - first % rows : most;
        weights_rows(tensor, first, count, x);
        ok = finite_rows(tensor, x, first, count, error) &&
             ((type == WEIGHTS_Q8_0 && tensor->type == GGUF_Q8_0) ||
              convert_rows(tensor, type, first, count, x, codes, scales, error));
    }
    free(x);
    if (ok && type == WEIGHTS_Q8_0 && tensor->type == GGUF_Q8_0)
        split_q8_0(tensor, codes, scales);
    return ok;
}
