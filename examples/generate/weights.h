// SPDX-License-Identifier: Apache-2.0
// Weights from a file's type to one that the engine's products take. Tensors keep their shape, rows dense.
#ifndef GENERATE_WEIGHTS_H_
#define GENERATE_WEIGHTS_H_

#include "gguf.h"

enum weights_type {
    WEIGHTS_F32,
    WEIGHTS_BF16, // rounded to nearest even
    // Blocks of 32 columns (the last may be short): code i8, scale f16 = largest |x| / 127, value = code *
    // scale. From Q8_0 every bit as it is.
    WEIGHTS_Q8_0,
    // OCP e4m3: a scale f32 = largest |x| / 448 for each block of 128 rows by 128 columns (the last may be
    // short) of the last two axes; value = code * scale.
    WEIGHTS_F8_E4M3,
};
enum { WEIGHTS_F8_BLOCK = 128 };

// Bytes of the codes and of the scales, which are f16 [..., rows, ceil(columns / 32)] with Q8_0, f32
// [..., ceil(rows / 128), ceil(columns / 128)] with F8_E4M3, and none otherwise.
size_t weights_code_bytes(const struct gguf_tensor *tensor, enum weights_type type);
size_t weights_scale_bytes(const struct gguf_tensor *tensor, enum weights_type type);

// Converts all of it. `scales` may be NULL where it has no bytes. False where there is no memory, or a weight
// is infinite or NaN, or too large for a scale; the error names the tensor and the row.
bool weights_convert(const struct gguf_tensor *tensor, enum weights_type type, void *codes, void *scales,
                     struct error *error);

// Rows [first, first + count) as f32, of all axes but the last counted together.
void weights_rows(const struct gguf_tensor *tensor, int64_t first, int64_t count, float *x);

// One number, to nearest even; past the largest: infinity, in e4m3 +-448. NaN stays NaN.
uint16_t weights_to_bf16(float x);
uint16_t weights_to_f16(float x);
uint8_t weights_to_e4m3(float x);
float weights_from_f16(uint16_t code);

#endif
