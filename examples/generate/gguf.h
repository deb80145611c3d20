// SPDX-License-Identifier: Apache-2.0
// A strict reader of GGUF files, versions 2 and 3, little-endian: metadata and tensors of the types below.
// Nothing in the file is believed before it is checked, and what this reader does not know is refused.
// Threads: any number may read an open file. Source: the GGUF specification (ggml, docs/gguf.md).
#ifndef GENERATE_GGUF_H_
#define GENERATE_GGUF_H_

#include "error.h"

#include <stddef.h>
#include <stdint.h>

enum { GGUF_MAX_RANK = 4, GGUF_MAX_NAME = 64 };

// Types of tensors, by the format's numbers. In the last three a block of 32 elements shares a scale.
enum gguf_type { GGUF_F32 = 0, GGUF_F16 = 1, GGUF_BF16 = 30, GGUF_Q4_0 = 2, GGUF_Q4_1 = 3, GGUF_Q8_0 = 8 };
enum { GGUF_BLOCK = 32 };

// Types of metadata values, by the format's numbers.
enum gguf_kind {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_FLOAT32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_FLOAT64,
    GGUF_NUM_KINDS
};

// Bytes of the file, not ended by a NUL.
struct gguf_string {
    const char *text;
    size_t size;
};

struct gguf_value {
    struct gguf_string key;
    enum gguf_kind kind; // of the elements, where it is an array
    bool is_array;
    uint64_t count;            // elements; 1 where it is no array
    const unsigned char *data; // the first element, as it stands in the file: no alignment
};

struct gguf_tensor {
    char name[GGUF_MAX_NAME + 1];
    enum gguf_type type;
    int rank;                     // 1 to 4
    int64_t shape[GGUF_MAX_RANK]; // outermost first, the other way round than in the file; each at least 1
    int64_t rows, columns;        // all but the last extent multiplied; the last
    size_t bytes;
    const unsigned char *data; // no alignment
};

struct gguf_file {
    const unsigned char *bytes;
    size_t size;
    bool mapped;               // `bytes` is a mapping of its own
    struct gguf_value *values; // sorted by key
    size_t num_values;
    struct gguf_tensor *tensors; // sorted by name
    size_t num_tensors;
};

// Maps and checks a file, which must not shrink while it is open. False: *file is empty, and the error begins
// with the path. gguf_open_memory does the same with bytes that the caller keeps; `name` stands for the path.
bool gguf_open(const char *path, struct gguf_file *file, struct error *error);
bool gguf_open_memory(const void *bytes, size_t size, const char *name, struct gguf_file *file,
                      struct error *error);
void gguf_close(struct gguf_file *file);

// NULL where there is none.
const struct gguf_value *gguf_find(const struct gguf_file *file, const char *key);
const struct gguf_tensor *gguf_find_tensor(const struct gguf_file *file, const char *name);

// The value of a key. An error where it is not there, is of another type, or is out of [low, high].
bool gguf_get_uint(const struct gguf_file *file, const char *key, uint64_t low, uint64_t high,
                   uint64_t *value, struct error *error);
bool gguf_get_float(const struct gguf_file *file, const char *key, double *value, struct error *error);
bool gguf_get_bool(const struct gguf_file *file, const char *key, bool *value, struct error *error);
bool gguf_get_string(const struct gguf_file *file, const char *key, struct gguf_string *value,
                     struct error *error);
// An array with elements of this kind, which is GGUF_I32 or GGUF_STRING; the caller frees *elements (int32_t
// or struct gguf_string).
bool gguf_get_array(const struct gguf_file *file, const char *key, enum gguf_kind kind, void **elements,
                    size_t *count, struct error *error);

const char *gguf_type_name(enum gguf_type type);
bool gguf_string_is(struct gguf_string string, const char *text);

#endif
