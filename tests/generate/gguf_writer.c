// SPDX-License-Identifier: Apache-2.0
#include "gguf_writer.h"

#include <stdlib.h>
#include <string.h>

static void put(struct writer_part *p, const void *bytes, size_t size)
{
    p->bytes = realloc(p->bytes, p->size + size + 1);
    if (!p->bytes)
        abort();
    if (bytes)
        memcpy(p->bytes + p->size, bytes, size);
    else
        memset(p->bytes + p->size, 0, size);
    p->size += size;
}

static void put_u32(struct writer_part *p, uint32_t x)
{
    put(p, &x, sizeof x);
}

static void put_u64(struct writer_part *p, uint64_t x)
{
    put(p, &x, sizeof x);
}

static void put_string(struct writer_part *p, const char *text)
{
    put_u64(p, strlen(text));
    put(p, text, strlen(text));
}

static void pad(struct writer_part *p, size_t alignment)
{
    put(p, NULL, (alignment - p->size % alignment) % alignment);
}

void writer_free(struct writer *w)
{
    free(w->values.bytes);
    free(w->tensors.bytes);
    free(w->data.bytes);
    free(w->file.bytes);
    *w = (struct writer){ 0 };
}

void writer_value(struct writer *w, const char *key, uint32_t kind, const void *bytes, size_t size)
{
    put_string(&w->values, key);
    put_u32(&w->values, kind);
    put(&w->values, bytes, size);
    w->num_values++;
}

void writer_u32(struct writer *w, const char *key, uint32_t x)
{
    writer_value(w, key, GGUF_U32, &x, sizeof x);
}

void writer_i32(struct writer *w, const char *key, int32_t x)
{
    writer_value(w, key, GGUF_I32, &x, sizeof x);
}

void writer_f32(struct writer *w, const char *key, float x)
{
    writer_value(w, key, GGUF_FLOAT32, &x, sizeof x);
}

void writer_bool(struct writer *w, const char *key, unsigned char x)
{
    writer_value(w, key, GGUF_BOOL, &x, sizeof x);
}

void writer_string(struct writer *w, const char *key, const char *text)
{
    writer_value(w, key, GGUF_STRING, "", 0);
    put_string(&w->values, text);
}

static void begin_array(struct writer *w, const char *key, uint32_t kind, size_t n)
{
    writer_value(w, key, GGUF_ARRAY, &kind, sizeof kind);
    put_u64(&w->values, n);
}

void writer_strings(struct writer *w, const char *key, const char *const *texts, size_t n)
{
    begin_array(w, key, GGUF_STRING, n);
    for (size_t i = 0; i < n; i++)
        put_string(&w->values, texts[i]);
}

void writer_i32s(struct writer *w, const char *key, const int32_t *x, size_t n)
{
    begin_array(w, key, GGUF_I32, n);
    put(&w->values, x, n * sizeof *x);
}

static size_t bytes_of(enum gguf_type type, size_t n)
{
    switch (type) {
    case GGUF_F32:
        return 4 * n;
    case GGUF_Q8_0:
        return n / 32 * 34;
    case GGUF_Q4_0:
        return n / 32 * 18;
    case GGUF_Q4_1:
        return n / 32 * 20;
    default:
        return 2 * n;
    }
}

void writer_tensor(struct writer *w, const char *name, enum gguf_type type, int64_t a, int64_t b, int64_t c,
                   const void *data)
{
    const uint64_t extents[] = { (uint64_t) c, (uint64_t) b, (uint64_t) a };
    const int skip = c ? 0 : b ? 1 : 2;
    size_t n = 1;
    put_string(&w->tensors, name);
    put_u32(&w->tensors, (uint32_t) (3 - skip));
    for (int i = skip; i < 3; i++) {
        put_u64(&w->tensors, extents[i]);
        n *= extents[i];
    }
    put_u32(&w->tensors, type);
    put_u64(&w->tensors, w->data.size);
    put(&w->data, data, bytes_of(type, n));
    pad(&w->data, w->alignment ? w->alignment : 32);
    w->num_tensors++;
}

const unsigned char *writer_finish(struct writer *w, size_t *size)
{
    w->file.size = 0;
    if (w->alignment)
        writer_u32(w, "general.alignment", w->alignment);
    put(&w->file, "GGUF\3\0\0", 8);
    put_u64(&w->file, w->num_tensors);
    put_u64(&w->file, w->num_values);
    put(&w->file, w->values.bytes, w->values.size);
    put(&w->file, w->tensors.bytes, w->tensors.size);
    pad(&w->file, w->alignment ? w->alignment : 32);
    put(&w->file, w->data.bytes, w->data.size);
    *size = w->file.size;
    return w->file.bytes;
}
