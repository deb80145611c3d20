// SPDX-License-Identifier: Apache-2.0
// Numbers and weights against the types of ref/, which know nothing of this code.
#include "weights.h"
#include "gguf_writer.h"

#include "ref.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(weights, .timeout = 120);

static uint32_t seed = 1;
static uint32_t random_bits(void)
{
    seed = seed * 1664525 + 1013904223;
    return seed >> 8 ^ seed << 11;
}

static void one_number(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    if (isnan(x)) {
        cr_assert(isnan(ref_decode(weights_to_bf16(x), CLINFER_BF16)) &&
                      isnan(ref_decode(weights_to_f16(x), CLINFER_F16)) &&
                      isnan(ref_decode(weights_to_e4m3(x), CLINFER_F8_E4M3)),
                  "NaN 0x%08x", bits);
        return;
    }
    cr_assert_eq(weights_to_bf16(x), ref_encode(x, CLINFER_BF16), "bf16 of %a", x);
    cr_assert_eq(weights_to_f16(x), ref_encode(x, CLINFER_F16), "f16 of %a: %04x", x, weights_to_f16(x));
    cr_assert_eq(weights_to_e4m3(x), ref_encode(x, CLINFER_F8_E4M3), "e4m3 of %a: %02x", x,
                 weights_to_e4m3(x));
}

Test(weights, numbers)
{
    for (uint32_t code = 0; code < 0x10000; code++) {
        const float x = weights_from_f16((uint16_t) code);
        const double want = ref_decode(code, CLINFER_F16);
        cr_assert((isnan(x) && isnan(want)) || (double) x == want, "f16 code %04x: %a, want %a", code, x,
                  want);
        // Every bf16 value, the ones next to it, and the ties between.
        for (uint32_t low = 0; low < 3; low++) {
            one_number(code << 16 | low);
            one_number(code << 16 | (0x7fff + low));
        }
    }
    // Between each two numbers of f16 and e4m3 the tie, and what is just beside it.
    for (int i = -26; i < 17; i++)
        for (int step = 0; step < 4096; step++) {
            const float x = ldexpf(1 + (float) step / 4096, i);
            uint32_t bits;
            memcpy(&bits, &x, sizeof bits);
            one_number(bits - 1);
            one_number(bits);
            one_number(bits + 1);
        }
    for (int i = 0; i < 100000; i++)
        one_number(random_bits());
}

// A file of one tensor; the writer keeps its bytes.
static const struct gguf_tensor *tensor_of(struct writer *w, struct gguf_file *file, enum gguf_type type,
                                           int64_t a, int64_t b, int64_t c, const void *data)
{
    size_t size;
    struct error error;
    writer_tensor(w, "w", type, a, b, c, data);
    const unsigned char *bytes = writer_finish(w, &size);
    cr_assert(gguf_open_memory(bytes, size, "file", file, &error), "%s", error.text);
    return &file->tensors[0];
}

// The element of a row of blocks, by the format's definition.
static double element(enum gguf_type type, const unsigned char *row, int64_t i)
{
    const int64_t at = i % 32, bytes = type == GGUF_Q8_0 ? 34 : type == GGUF_Q4_0 ? 18 : 20;
    const unsigned char *block = row + i / 32 * bytes;
    const double d = ref_load(block, CLINFER_F16, 0);
    if (type == GGUF_Q8_0)
        return d * (signed char) block[2 + at];
    const unsigned char *codes = block + bytes - 16;
    const int code = at < 16 ? codes[at] & 15 : codes[at - 16] >> 4;
    return type == GGUF_Q4_0 ? d * (code - 8) : d * code + ref_load(block + 2, CLINFER_F16, 0);
}

// Blocks of random codes with a scale of about 0.01, and a smallest value like that.
static unsigned char *random_blocks(enum gguf_type type, int64_t blocks)
{
    const int64_t bytes = type == GGUF_Q8_0 ? 34 : type == GGUF_Q4_0 ? 18 : 20;
    unsigned char *data = malloc((size_t) (blocks * bytes));
    for (int64_t i = 0; i < blocks * bytes; i++)
        data[i] = (unsigned char) random_bits();
    for (int64_t i = 0; i < blocks; i++) {
        data[i * bytes + 1] =
            (unsigned char) (0x20 | (data[i * bytes + 1] & 0x83)); // f16 of 2^-7 to 2^-6, any sign
        data[i * bytes + 3] = type == GGUF_Q4_1 ? 0xa4 : data[i * bytes + 3];
    }
    return data;
}

Test(weights, blocks)
{
    const enum gguf_type types[] = { GGUF_Q8_0, GGUF_Q4_0, GGUF_Q4_1 };
    for (int i = 0; i < 3; i++) {
        struct writer w = { 0 };
        struct gguf_file file;
        float x[96];
        unsigned char *data = random_blocks(types[i], 5 * 3);
        const struct gguf_tensor *t = tensor_of(&w, &file, types[i], 5, 96, 0, data);
        for (int row = 0; row < 5; row++) {
            weights_rows(t, row, 1, x);
            for (int c = 0; c < 96; c++) {
                const double want = element(types[i], data + row * 3 * (int64_t) (t->bytes / 15), c);
                cr_assert_float_eq(x[c], want, 1e-7 * (1 + fabs(want)), "%s [%d, %d]: %g, want %g",
                                   gguf_type_name(types[i]), row, c, x[c], want);
            }
        }
        gguf_close(&file);
        writer_free(&w);
        free(data);
    }
}

static float *random_floats(int64_t n, float size)
{
    float *x = malloc((size_t) n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = size * ((float) (random_bits() & 0xffff) / 32768 - 1);
    return x;
}

Test(weights, plain_types)
{
    enum { ROWS = 7, COLUMNS = 13, N = ROWS * COLUMNS };
    const enum gguf_type types[] = { GGUF_F32, GGUF_F16, GGUF_BF16 };
    const clinfer_dtype dtypes[] = { CLINFER_F32, CLINFER_F16, CLINFER_BF16 };
    float *x = random_floats(N, 2);
    for (int i = 0; i < 3; i++) {
        struct writer w = { 0 };
        struct gguf_file file;
        struct error error;
        float data[N], f32[N];
        uint16_t bf16[N];
        for (int k = 0; k < N; k++)
            ref_store(data, dtypes[i], k, (double) x[k]);
        const struct gguf_tensor *t = tensor_of(&w, &file, types[i], ROWS, COLUMNS, 0, data);
        cr_assert(weights_code_bytes(t, WEIGHTS_F32) == sizeof f32 &&
                  weights_code_bytes(t, WEIGHTS_BF16) == sizeof bf16);
        cr_assert(!weights_scale_bytes(t, WEIGHTS_F32) && !weights_scale_bytes(t, WEIGHTS_BF16));
        cr_assert(weights_convert(t, WEIGHTS_F32, f32, NULL, &error) &&
                  weights_convert(t, WEIGHTS_BF16, bf16, NULL, &error));
        for (int k = 0; k < N; k++) {
            const double want = ref_load(data, dtypes[i], k);
            cr_assert_eq((double) f32[k], want);
            cr_assert_eq(bf16[k], ref_encode(want, CLINFER_BF16));
        }
        gguf_close(&file);
        writer_free(&w);
    }
    free(x);
}

// Blocks of 128 by 128 within each of the matrices, the last ones short.
Test(weights, e4m3)
{
    enum { M = 3, ROWS = 130, COLUMNS = 300, N = M * ROWS * COLUMNS, DOWN = 2, ACROSS = 3 };
    struct writer w = { 0 };
    struct gguf_file file;
    struct error error;
    float *x = random_floats(N, 1);
    for (int i = 0; i < N; i++)
        x[i] *= (float) (1 + i / 1000 % 7); // scales that differ
    for (int r = 128; r < ROWS; r++)
        for (int c = 256; c < COLUMNS; c++)
            x[r * COLUMNS + c] = 0; // a block of zeros
    const struct gguf_tensor *t = tensor_of(&w, &file, GGUF_F32, M, ROWS, COLUMNS, x);
    uint8_t *codes = malloc(N);
    float scales[M * DOWN * ACROSS], amax[M * DOWN * ACROSS] = { 0 };
    cr_assert(weights_code_bytes(t, WEIGHTS_F8_E4M3) == N &&
              weights_scale_bytes(t, WEIGHTS_F8_E4M3) == sizeof scales);
    cr_assert(weights_convert(t, WEIGHTS_F8_E4M3, codes, scales, &error), "%s", error.text);
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < N; i++) {
            const int m = i / (ROWS * COLUMNS), r = i / COLUMNS % ROWS, c = i % COLUMNS;
            const int block = (m * DOWN + r / 128) * ACROSS + c / 128;
            if (!pass) {
                amax[block] = fmaxf(amax[block], fabsf(x[i]));
                continue;
            }
            const float scale = amax[block] / 448.0f;
            cr_assert_eq(scales[block], scale);
            const double want = scale > 0 ? ref_round((double) (x[i] * (1 / scale)), CLINFER_F8_E4M3) : 0;
            cr_assert_eq(ref_decode(codes[i], CLINFER_F8_E4M3), want, "[%d, %d, %d]", m, r, c);
        }
    cr_assert_eq(scales[(0 * DOWN + 1) * ACROSS + 2], 0);
    free(codes);
    free(x);
    gguf_close(&file);
    writer_free(&w);
}

Test(weights, q8_0)
{
    enum { ROWS = 9, COLUMNS = 70, ACROSS = 3, N = ROWS * COLUMNS };
    struct writer w = { 0 };
    struct gguf_file file;
    struct error error;
    int8_t codes[N];
    uint16_t scales[ROWS * ACROSS];
    float *x = random_floats(N, 0.3f);
    for (int c = 0; c < 32; c++)
        x[c] = 0;
    const struct gguf_tensor *t = tensor_of(&w, &file, GGUF_F32, ROWS, COLUMNS, 0, x);
    cr_assert(weights_code_bytes(t, WEIGHTS_Q8_0) == sizeof codes &&
              weights_scale_bytes(t, WEIGHTS_Q8_0) == sizeof scales);
    cr_assert(weights_convert(t, WEIGHTS_Q8_0, codes, scales, &error), "%s", error.text);
    for (int i = 0; i < N; i++) {
        float amax = 0;
        const int first = i % COLUMNS / 32 * 32, last = first + 32 < COLUMNS ? first + 32 : COLUMNS;
        for (int c = first; c < last; c++)
            amax = fmaxf(amax, fabsf(x[i / COLUMNS * COLUMNS + c]));
        const uint16_t code = scales[i / COLUMNS * ACROSS + first / 32];
        cr_assert_eq(code, ref_encode((double) (amax / 127), CLINFER_F16));
        const double scale = ref_decode(code, CLINFER_F16);
        // Half a step, or what lies past code 127 where the scale was rounded down.
        cr_assert_float_eq(codes[i] * scale, x[i], scale * 0.5001 + 0.0005 * (double) amax, "element %d", i);
    }
    gguf_close(&file);
    writer_free(&w);
    free(x);
}

Test(weights, q8_0_keeps_its_bits)
{
    enum { ROWS = 5, COLUMNS = 64, BLOCKS = ROWS * COLUMNS / 32 };
    struct writer w = { 0 };
    struct gguf_file file;
    struct error error;
    int8_t codes[ROWS * COLUMNS];
    uint16_t scales[BLOCKS];
    unsigned char *data = random_blocks(GGUF_Q8_0, BLOCKS);
    const struct gguf_tensor *t = tensor_of(&w, &file, GGUF_Q8_0, ROWS, COLUMNS, 0, data);
    cr_assert(weights_convert(t, WEIGHTS_Q8_0, codes, scales, &error), "%s", error.text);
    for (int b = 0; b < BLOCKS; b++)
        cr_assert(!memcmp(&scales[b], data + 34 * b, 2) && !memcmp(codes + 32 * b, data + 34 * b + 2, 32),
                  "block %d", b);
    gguf_close(&file);
    writer_free(&w);
    free(data);
}

Test(weights, refused)
{
    struct writer w = { 0 };
    struct gguf_file file;
    struct error error;
    float x[4 * 33] = { 0 };
    float codes[4 * 33], scales[16];
    x[2 * 33 + 32] = NAN;
    const struct gguf_tensor *t = tensor_of(&w, &file, GGUF_F32, 4, 33, 0, x);
    for (int type = WEIGHTS_F32; type <= WEIGHTS_F8_E4M3; type++) {
        cr_assert(!weights_convert(t, (enum weights_type) type, codes, scales, &error));
        cr_assert(strstr(error.text, "tensor w: row 2, column 32 is") && strstr(error.text, "want finite"),
                  "%s", error.text);
    }
    gguf_close(&file);
    writer_free(&w);
    x[2 * 33 + 32] = 1e8f;
    t = tensor_of(&w, &file, GGUF_F32, 4, 33, 0, x);
    cr_assert(!weights_convert(t, WEIGHTS_Q8_0, codes, scales, &error));
    cr_assert_str_eq(error.text, "tensor w: row 2 has a weight of 1e+08, Q8_0 has scales up to 65504");
    cr_assert(weights_convert(t, WEIGHTS_F8_E4M3, codes, scales, &error));
    gguf_close(&file);
    writer_free(&w);
}
