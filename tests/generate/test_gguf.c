// SPDX-License-Identifier: Apache-2.0
// The GGUF reader on the model of this repository, on files made here, and on damaged ones.
#include "default_model.h"
#include "gguf.h"
#include "gguf_writer.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(gguf, .timeout = 120);

static struct error error;

static void open_model(struct gguf_file *file)
{
    cr_assert(gguf_open_memory(default_model, (size_t) (default_model_end - default_model), "psalter", file,
                               &error),
              "%s", error.text);
}

// Opens a copy that has not a byte more, so that a sanitizer sees what is read past it.
static bool open_exact(const unsigned char *bytes, size_t size, struct gguf_file *file)
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

static void close_exact(struct gguf_file *file)
{
    void *copy = (void *) (uintptr_t) file->bytes;
    gguf_close(file);
    free(copy);
}

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

Test(gguf, model)
{
    struct gguf_file file;
    struct gguf_string text;
    uint64_t x;
    double d;
    bool b;
    void *tokens;
    size_t n;
    open_model(&file);
    cr_assert(file.num_values == 35 && file.num_tensors == 68);
    cr_assert(gguf_get_uint(&file, "deepseek2.block_count", 1, 9, &x, &error) && x == 5);
    cr_assert(gguf_get_float(&file, "deepseek2.rope.freq_base", &d, &error) && d == 10000);
    cr_assert(gguf_get_bool(&file, "tokenizer.ggml.add_bos_token", &b, &error) && b);
    cr_assert(gguf_get_string(&file, "general.name", &text, &error) && gguf_string_is(text, "psalter-2m"));
    cr_assert(gguf_get_array(&file, "tokenizer.ggml.tokens", GGUF_STRING, &tokens, &n, &error) && n == 1024);
    cr_assert(gguf_string_is(((struct gguf_string *) tokens)[0], "<|endoftext|>"));
    free(tokens);
    const struct gguf_tensor *t = gguf_find_tensor(&file, "blk.4.attn_v_b.weight");
    cr_assert(t && t->type == GGUF_BF16 && t->rank == 3);
    cr_assert(t->shape[0] == 6 && t->shape[1] == 32 && t->shape[2] == 64);
    cr_assert(t->rows == 192 && t->columns == 64 && t->bytes == 2 * 192 * 64);
    // Tensors lie one after the other; the first one where the header, 32438 bytes, ends and is padded.
    const struct gguf_tensor *before = gguf_find_tensor(&file, "blk.4.attn_k_b.weight");
    cr_assert(before && before->data + before->bytes == t->data);
    cr_assert_eq(gguf_find_tensor(&file, "token_embd.weight")->data, default_model + 32448);
    cr_assert(!gguf_find(&file, "general") && !gguf_find_tensor(&file, "blk.5.attn_v_b.weight"));
    gguf_close(&file);
}

static const char *const texts[] = { "a", "", "longer" };
static const int32_t ints[] = { -1, 7, 1 << 30 };

static const unsigned char *small_file(struct writer *w, size_t *size)
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

Test(gguf, kinds)
{
    struct writer w = { .alignment = 64 };
    struct gguf_file file;
    size_t size, n;
    uint64_t x;
    double d;
    void *elements;
    const unsigned char *bytes = small_file(&w, &size);
    cr_assert(open_exact(bytes, size, &file), "%s", error.text);
    cr_assert(gguf_get_uint(&file, "u", 0, UINT64_MAX, &x, &error) && x == 4000000000u);
    cr_assert(gguf_get_uint(&file, "U", 0, UINT64_MAX, &x, &error) && x == UINT64_C(1) << 60);
    cr_assert(gguf_get_float(&file, "f", &d, &error) && d == 0.5);
    cr_assert(gguf_get_float(&file, "F", &d, &error) && d == 3.25);
    cr_assert(gguf_get_array(&file, "ints", GGUF_I32, &elements, &n, &error) && n == 3);
    cr_assert(!memcmp(elements, ints, sizeof ints));
    free(elements);
    cr_assert(gguf_get_array(&file, "texts", GGUF_STRING, &elements, &n, &error) && n == 3);
    for (int i = 0; i < 3; i++)
        cr_assert(gguf_string_is(((struct gguf_string *) elements)[i], texts[i]));
    free(elements);
    const struct gguf_tensor *t = gguf_find_tensor(&file, "three");
    cr_assert(t && t->shape[0] == 2 && t->shape[1] == 1 && t->shape[2] == 5 && t->bytes == 20);
    cr_assert_eq((size_t) (t->data - file.bytes) % 64, 0);
    close_exact(&file);
    writer_free(&w);
}

Test(gguf, getters_refuse)
{
    struct writer w = { 0 };
    struct gguf_file file;
    struct gguf_string s;
    size_t size, n;
    uint64_t x = 9;
    double d;
    bool b;
    void *p;
    const unsigned char *bytes = small_file(&w, &size);
    cr_assert(open_exact(bytes, size, &file), "%s", error.text);
#define REFUSES(call, message)                                                                               \
    cr_assert(!(call), "was taken");                                                                         \
    cr_assert_str_eq(error.text, message)
    REFUSES(gguf_get_uint(&file, "none", 0, 1, &x, &error), "none is missing");
    REFUSES(gguf_get_uint(&file, "i", 1, 8, &x, &error), "i is -3, want 1 to 8");
    REFUSES(gguf_get_uint(&file, "c", 0, 8, &x, &error), "c is -5, want 0 to 8");
    REFUSES(gguf_get_uint(&file, "u", 1, 8, &x, &error), "u is 4000000000, want 1 to 8");
    REFUSES(gguf_get_uint(&file, "f", 1, 8, &x, &error), "f is of type f32, want a whole number");
    REFUSES(gguf_get_uint(&file, "ints", 1, 8, &x, &error), "ints is an array of 3, want one value");
    REFUSES(gguf_get_float(&file, "u", &d, &error), "u is of type u32, want f32 or f64");
    REFUSES(gguf_get_bool(&file, "u", &b, &error), "u is of type u32, want bool");
    REFUSES(gguf_get_string(&file, "u", &s, &error), "u is of type u32, want string");
    REFUSES(gguf_get_array(&file, "u", GGUF_I32, &p, &n, &error), "u is of type u32, want an array of i32");
    REFUSES(gguf_get_array(&file, "ints", GGUF_STRING, &p, &n, &error),
            "ints is an array of i32, want an array of string");
    cr_assert_eq(x, 9);
    close_exact(&file);
    writer_free(&w);
}

// Of the last tensor every byte counts, so every shorter file is refused; a longer one too, but for padding.
Test(gguf, truncated)
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
Test(gguf, flipped)
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

Test(gguf, absurd)
{
    struct gguf_file file;
    for (size_t i = 0; i < sizeof absurd / sizeof absurd[0]; i++) {
        cr_assert(!open_exact(absurd[i].bytes, absurd[i].size, &file), "%s: was read", absurd[i].name);
        cr_assert(strstr(error.text, absurd[i].want), "%s: \"%s\" does not say \"%s\"", absurd[i].name,
                  error.text, absurd[i].want);
    }
}

Test(gguf, twice)
{
    struct writer w = { 0 };
    struct gguf_file file;
    size_t size;
    writer_tensor(&w, "same", GGUF_F32, 8, 0, 0, NULL);
    writer_tensor(&w, "other", GGUF_F32, 8, 0, 0, NULL);
    writer_tensor(&w, "same", GGUF_F16, 8, 0, 0, NULL);
    const unsigned char *bytes = writer_finish(&w, &size);
    cr_assert(!open_exact(bytes, size, &file));
    cr_assert_str_eq(error.text, "file: tensor same is there twice");
    writer_free(&w);
}

// From a path: the same file, and what is none.
Test(gguf, paths)
{
    struct gguf_file file;
    char folder[] = "/tmp/clinfer-gguf-XXXXXX", path[64];
    cr_assert(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/a.gguf", folder);
    cr_assert(!gguf_open(path, &file, &error) && strstr(error.text, "cannot open: No such file"), "%s",
              error.text);
    cr_assert(!gguf_open(folder, &file, &error) && strstr(error.text, "not a regular file"), "%s",
              error.text);
    cr_assert_eq(mkfifo(path, 0600), 0);
    cr_assert(!gguf_open(path, &file, &error) && strstr(error.text, "not a regular file"), "%s", error.text);
    unlink(path);
    FILE *f = fopen(path, "wb");
    cr_assert(f && !fflush(f));
    cr_assert(!gguf_open(path, &file, &error) && strstr(error.text, ": 0 bytes, want 1"), "%s", error.text);
    const size_t size = (size_t) (default_model_end - default_model);
    cr_assert(fwrite(default_model, 1, size, f) == size && !fflush(f));
    cr_assert(gguf_open(path, &file, &error), "%s", error.text);
    cr_assert(file.num_tensors == 68 && file.size == size && !memcmp(file.bytes, default_model, size));
    gguf_close(&file);
    cr_assert(!ftruncate(fileno(f), 100) && !gguf_open(path, &file, &error));
    cr_assert(!strncmp(error.text, path, strlen(path)), "%s", error.text);
    fclose(f);
    unlink(path);
    rmdir(folder);
}
