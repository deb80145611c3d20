// SPDX-License-Identifier: Apache-2.0
// GGUF files made in memory, for tests: right ones, and what no writer would make.
#ifndef CLINFER_TESTS_GGUF_WRITER_H_
#define CLINFER_TESTS_GGUF_WRITER_H_

#include "gguf.h"

// Values and tensors are written as they are added; all zero is a file of none.
struct writer {
    struct writer_part {
        unsigned char *bytes;
        size_t size;
    } values, tensors, data, file;
    uint64_t num_values, num_tensors;
    uint32_t alignment; // 0: 32, and not said in the file
};

void writer_free(struct writer *w);

// A value whose bytes are those given, and the common kinds of it.
void writer_value(struct writer *w, const char *key, uint32_t kind, const void *bytes, size_t size);
void writer_u32(struct writer *w, const char *key, uint32_t x);
void writer_i32(struct writer *w, const char *key, int32_t x);
void writer_f32(struct writer *w, const char *key, float x);
void writer_bool(struct writer *w, const char *key, unsigned char x);
void writer_string(struct writer *w, const char *key, const char *text);
void writer_strings(struct writer *w, const char *key, const char *const *texts, size_t n);
void writer_i32s(struct writer *w, const char *key, const int32_t *x, size_t n);

// A tensor of up to three extents, outermost first; an extent of 0 is left out. `data` NULL: zeros.
void writer_tensor(struct writer *w, const char *name, enum gguf_type type, int64_t a, int64_t b, int64_t c,
                   const void *data);

// The file's bytes, which stay the writer's.
const unsigned char *writer_finish(struct writer *w, size_t *size);

#endif
