// SPDX-License-Identifier: Apache-2.0
// The GGUF reader on the model of this repository and on files made here.
#include "default_model.h"
#include "gguf.h"
#include "gguf_fixture.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

TestSuite(gguf, .timeout = 120);

static void open_model(struct gguf_file *file)
{
    cr_assert(gguf_open_memory(default_model, (size_t) (default_model_end - default_model), "psalter", file,
                               &error),
              "%s", error.text);
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
