// SPDX-License-Identifier: Apache-2.0
// The GGUF reader on damaged files: a message, or a file that can be used, and nothing else.
#include "default_model.h"
#include "gguf_fixture.h"

#include <stdio.h>

TestSuite(gguf_damaged, .timeout = 120);

// Touches everything that an open file offers.
static unsigned use(const struct gguf_file *file)
{
    unsigned sum = 0;
    struct error e;
    for (size_t i = 0; i < file->num_values; i++) {
        char key[200];
        void *elements = NULL;
        size_t n;
        uint64_t x;
        double d;
        struct gguf_string s;
        snprintf(key, sizeof key, "%.*s", (int) file->values[i].key.size, file->values[i].key.text);
        sum += gguf_get_uint(file, key, 0, UINT64_MAX, &x, &e) && x;
        sum += gguf_get_float(file, key, &d, &e) && d > 0;
        sum += gguf_get_string(file, key, &s, &e) && s.size && s.text[s.size - 1];
        if (gguf_get_array(file, key, GGUF_STRING, &elements, &n, &e))
            for (size_t k = 0; k < n; k++)
                sum += ((struct gguf_string *) elements)[k].size > 3;
        free(elements);
        elements = NULL;
        if (gguf_get_array(file, key, GGUF_I32, &elements, &n, &e) && n)
            sum += (unsigned) ((int32_t *) elements)[n - 1];
        free(elements);
    }
    for (size_t i = 0; i < file->num_tensors; i++)
        sum += file->tensors[i].data[file->tensors[i].bytes - 1];
    return sum;
}

// Of the last tensor every byte counts, so every shorter file is refused; a longer one too, but for padding.
Test(gguf_damaged, truncated)
{
    struct writer w = { 0 };
    struct gguf_file file;
    size_t size;
    const unsigned char *bytes = small_file(&w, &size);
    const size_t padding = 12; // of the last tensor's 20 bytes
    for (size_t n = 0; n < size - padding; n++)
        cr_assert(!open_exact(bytes, n, &file), "%zu of %zu bytes were read", n, size);
    for (size_t n = size - padding; n <= size; n++) {
        cr_assert(open_exact(bytes, n, &file), "%zu of %zu bytes: %s", n, size, error.text);
        close_exact(&file);
    }
    unsigned char *longer = calloc(1, size + 1);
    memcpy(longer, bytes, size);
    cr_assert(!open_exact(longer, size + 1, &file));
    cr_assert(strstr(error.text, "end the last tensor"), "%s", error.text);
    free(longer);
    writer_free(&w);
    const size_t whole = (size_t) (default_model_end - default_model);
    for (size_t n = 0; n < whole; n += n < 40000 ? 397 : 499979)
        cr_assert(!open_exact(default_model, n, &file), "%zu bytes were read", n);
}

// Any byte of the header may have any value: an error or a file that can be used, and nothing else.
Test(gguf_damaged, flipped)
{
    struct writer w = { 0 };
    struct gguf_file file;
    size_t size;
    unsigned sum = 0, opened = 0, refused = 0;
    const unsigned char *bytes = small_file(&w, &size);
    unsigned char *copy = malloc(size);
    for (size_t at = 0; at < size; at++)
        for (int bit = 0; bit < 9; bit++) {
            memcpy(copy, bytes, size);
            copy[at] = bit == 8 ? 0xff : (unsigned char) (copy[at] ^ 1 << bit);
            if (!open_exact(copy, size, &file)) {
                refused++;
                continue;
            }
            opened++;
            sum += use(&file);
            close_exact(&file);
        }
    cr_assert(sum && opened > 1000 && refused > 1000, "%u opened, %u refused", opened, refused);
    free(copy);
    writer_free(&w);
}

// A header written word by word.
struct absurd {
    const char *name, *want;
    const unsigned char *bytes;
    size_t size;
};
#define U32(x)                (x) & 0xff, (x) >> 8 & 0xff, (x) >> 16 & 0xff, (x) >> 24 & 0xff
#define U64(x)                U32((uint64_t) (x)), U32((uint64_t) (x) >> 32)
#define HEAD(tensors, values) 'G', 'G', 'U', 'F', U32(3), U64(tensors), U64(values)
#define TENSOR(rank, ...)     U64(1), 't', U32(rank), __VA_ARGS__
#define ABSURD(name, want, ...)                                                                              \
    {                                                                                                        \
        name, want, (const unsigned char[]){ __VA_ARGS__ }, sizeof(const unsigned char[])                    \
        {                                                                                                    \
            __VA_ARGS__                                                                                      \
        }                                                                                                    \
    }
static const struct absurd absurd[] = {
    ABSURD("another magic", "no GGUF file: begins with the bytes 47 47 4d 4c", 'G', 'G', 'M', 'L'),
    ABSURD("version 1", "version 1, want 2 or 3", 'G', 'G', 'U', 'F', U32(1)),
    ABSURD("big-endian", "version 50331648 (a big-endian file), want 2 or 3", 'G', 'G', 'U', 'F', 0, 0, 0, 3),
    ABSURD("2^64 - 1 values",
           "the file says 18446744073709551615 metadata values, and has bytes left for at most 0",
           HEAD(0, UINT64_MAX)),
    ABSURD("2^63 tensors", "the file says 9223372036854775808 tensors, and has bytes left for at most 0",
           HEAD(UINT64_C(1) << 63, 0)),
    ABSURD("a key of 2^64 - 1 bytes",
           "a key at byte 32 takes 18446744073709551615 bytes, the file has 6 left", HEAD(0, 1),
           U64(UINT64_MAX), 1, 2, 3, 4, 5, 6),
    ABSURD("an empty key", "a key at byte 24 has 0 bytes, want 1 to 65535", HEAD(0, 1), U64(0), U32(0),
           U32(0)),
    ABSURD("a key with a blank", "a key at byte 24 has the byte 0x20, want plain characters", HEAD(0, 1),
           U64(1), ' ', U32(0), 0, 0),
    ABSURD("kind 13", "k: a value of type 13, want 0 to 12", HEAD(0, 1), U64(1), 'k', U32(13), 0),
    ABSURD("an array of arrays", "k: elements of type 9, want 0 to 12 but no arrays", HEAD(0, 1), U64(1), 'k',
           U32(9), U32(9), U64(1)),
    ABSURD("an array of 2^62", "k: 4611686018427387904 elements, and the file has bytes left for at most 0",
           HEAD(0, 1), U64(1), 'k', U32(9), U32(4), U64(UINT64_C(1) << 62)),
    ABSURD("2^61 strings", "k: 2305843009213693952 elements, and the file has bytes left for at most 1",
           HEAD(0, 1), U64(1), 'k', U32(9), U32(8), U64(UINT64_C(1) << 61), U64(0)),
    ABSURD("a bool of 2", "k: a bool is 2, want 0 or 1", HEAD(0, 1), U64(1), 'k', U32(7), 2),
    ABSURD("a string past the end", "k at byte 45 takes 1 bytes, the file has 0 left", HEAD(0, 1), U64(1),
           'k', U32(8), U64(1)),
    ABSURD("a key twice", "the key k is there twice", HEAD(0, 2), U64(1), 'k', U32(0), 1, U64(1), 'k', U32(1),
           1),
    ABSURD("rank 0", "tensor t: rank 0, want 1 to 4", HEAD(1, 0), TENSOR(0, U64(1), U32(0), U64(0)), U64(0)),
    ABSURD("rank 5", "tensor t: rank 5, want 1 to 4", HEAD(1, 0), TENSOR(5, U64(1), U32(0), U64(0)), U64(0)),
    ABSURD("an extent of 0", "tensor t: extent 0 after 1 elements, want 1 to 114 for a file of 57 bytes",
           HEAD(1, 0), TENSOR(1, U64(0), U32(0), U64(0))),
    ABSURD("extents of 2^32 each", "tensor t: extent 4294967296 after 1 elements, want 1 to 130", HEAD(1, 0),
           TENSOR(2, U64(UINT64_C(1) << 32), U64(UINT64_C(1) << 32), U32(0), U64(0))),
    ABSURD("a product past the file", "tensor t: extent 100 after 100 elements, want 1 to 1 for", HEAD(1, 0),
           TENSOR(2, U64(100), U64(100), U32(0), U64(0))),
    ABSURD("an unknown type", "tensor t: type 14, want F32 F16 BF16 Q8_0 Q4_0 or Q4_1", HEAD(1, 0),
           TENSOR(1, U64(4), U32(14), U64(0))),
    ABSURD("half a block", "tensor t: rows of 48 elements, want a multiple of 32 for Q8_0", HEAD(1, 0),
           TENSOR(1, U64(48), U32(8), U64(0))),
    ABSURD("at another place", "tensor t: at byte 18446744073709551584 of the data, want 0", HEAD(1, 0),
           TENSOR(1, U64(4), U32(0), U64(UINT64_MAX - 31))),
    ABSURD("past the end", "tensor t: ends at byte 80, the file has 57", HEAD(1, 0),
           TENSOR(1, U64(4), U32(0), U64(0))),
    ABSURD("larger than the file", "tensor t: 400 bytes at byte 0 of the data, the file has 57", HEAD(1, 0),
           TENSOR(1, U64(100), U32(0), U64(0))),
    ABSURD("a name of 65 bytes", "a tensor's name at byte 24 has 65 bytes, want 1 to 64", HEAD(1, 0), U64(65),
           U64(0x6161616161616161), U64(0x6161616161616161), U64(0x6161616161616161), U64(0x6161616161616161),
           U64(0x6161616161616161), U64(0x6161616161616161), U64(0x6161616161616161), U64(0x6161616161616161),
           'a'),
    ABSURD("alignment 24", "general.alignment is 24, want a power of two", HEAD(0, 1), U64(17), 'g', 'e', 'n',
           'e', 'r', 'a', 'l', '.', 'a', 'l', 'i', 'g', 'n', 'm', 'e', 'n', 't', U32(4), U32(24)),
    ABSURD("alignment 0", "general.alignment is 0, want 1 to 1073741824", HEAD(0, 1), U64(17), 'g', 'e', 'n',
           'e', 'r', 'a', 'l', '.', 'a', 'l', 'i', 'g', 'n', 'm', 'e', 'n', 't', U32(4), U32(0)),
};

Test(gguf_damaged, absurd)
{
    struct gguf_file file;
    for (size_t i = 0; i < sizeof absurd / sizeof absurd[0]; i++) {
        cr_assert(!open_exact(absurd[i].bytes, absurd[i].size, &file), "%s: was read", absurd[i].name);
        cr_assert(strstr(error.text, absurd[i].want), "%s: \"%s\" does not say \"%s\"", absurd[i].name,
                  error.text, absurd[i].want);
    }
}
