// SPDX-License-Identifier: Apache-2.0
// What the tests of the GGUF reader share.
#ifndef CLINFER_TESTS_GGUF_FIXTURE_H_
#define CLINFER_TESTS_GGUF_FIXTURE_H_

#include "gguf_writer.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

static struct error error;

// Opens a copy that has not a byte more, so that a sanitizer sees what is read past it.
static inline bool open_exact(const unsigned char *bytes, size_t size, struct gguf_file *file)
{
    unsigned char *copy = malloc(size ? size : 1);
    cr_assert(copy);
    if (size)
        memcpy(copy, bytes, size);
    memset(&error, 0, sizeof error);
    if (gguf_open_memory(copy, size, "file", file, &error))
        return true; // the copy lives as long as the file: close_exact
    cr_assert(!file->values && !file->tensors && !file->bytes, "not empty after: %s", error.text);
    cr_assert(!strncmp(error.text, "file: ", 6) && strlen(error.text) > 12, "no message: \"%s\"", error.text);
    free(copy);
    return false;
}

static inline void close_exact(struct gguf_file *file)
{
    void *copy = (void *) (uintptr_t) file->bytes;
    gguf_close(file);
    free(copy);
}

static const char *const texts[] = { "a", "", "longer" };
static const int32_t ints[] = { -1, 7, 1 << 30 };

static inline const unsigned char *small_file(struct writer *w, size_t *size)
{
    const uint64_t big = UINT64_C(1) << 60;
    const double pi = 3.25;
    const signed char minus = -5;
    writer_string(w, "general.architecture", "none");
    writer_u32(w, "u", 4000000000u);
    writer_i32(w, "i", -3);
    writer_f32(w, "f", 0.5f);
    writer_bool(w, "b", 1);
    writer_value(w, "U", GGUF_U64, &big, sizeof big);
    writer_value(w, "F", GGUF_FLOAT64, &pi, sizeof pi);
    writer_value(w, "c", GGUF_I8, &minus, sizeof minus);
    writer_strings(w, "texts", texts, 3);
    writer_i32s(w, "ints", ints, 3);
    writer_tensor(w, "one", GGUF_F32, 3, 0, 0, NULL);
    writer_tensor(w, "two", GGUF_Q4_1, 2, 64, 0, NULL);
    writer_tensor(w, "three", GGUF_F16, 2, 1, 5, NULL);
    return writer_finish(w, size);
}

#endif
