// SPDX-License-Identifier: Apache-2.0
#include "gguf.h"
#include "gguf_parse.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

bool gguf_open_memory(const void *bytes, size_t size, const char *name, struct gguf_file *file,
                      struct error *error)
{
    struct error why;
    *file = (struct gguf_file){ .bytes = bytes, .size = size };
    if (gguf_parse(file, &why))
        return true;
    gguf_close(file);
    const size_t n = strlen(name), cut = n > 100 ? n - 100 : 0; // a long path must not push the reason out
    return fail(error, "%s%s: %.400s", cut ? "..." : "", name + cut, why.text);
}

// The mapping, or NULL. Non-blocking, since a FIFO without a writer would wait for ever in open.
static void *map_file(const char *path, size_t *size, struct error *error)
{
    struct stat st;
    void *bytes = NULL;
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        fail(error, "%.300s: cannot open: %s", path, strerror(errno));
        return NULL;
    }
    if (fstat(fd, &st))
        fail(error, "%.300s: cannot stat: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        fail(error, "%.300s: not a regular file (mode 0%o)", path, (unsigned) st.st_mode);
    else if (!st.st_size || (uint64_t) st.st_size > SIZE_MAX / 4)
        fail(error, "%.300s: %" PRId64 " bytes, want 1 to %zu", path, (int64_t) st.st_size, SIZE_MAX / 4);
    else {
        *size = (size_t) st.st_size;
        bytes = mmap(NULL, *size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (bytes == MAP_FAILED) {
            fail(error, "%.300s: cannot map %zu bytes: %s", path, *size, strerror(errno));
            bytes = NULL;
        }
    }
    close(fd);
    return bytes;
}

bool gguf_open(const char *path, struct gguf_file *file, struct error *error)
{
    size_t size;
    *file = (struct gguf_file){ 0 };
    void *bytes = map_file(path, &size, error);
    if (!bytes)
        return false;
    if (!gguf_open_memory(bytes, size, path, file, error)) {
        munmap(bytes, size);
        return false;
    }
    file->mapped = true;
    return true;
}

void gguf_close(struct gguf_file *file)
{
    free(file->values);
    free(file->tensors);
    if (file->mapped)
        munmap((void *) (uintptr_t) file->bytes, file->size);
    *file = (struct gguf_file){ 0 };
}

bool gguf_string_is(struct gguf_string string, const char *text)
{
    return strlen(text) == string.size && !memcmp(string.text, text, string.size);
}

static int compare_key(const void *wanted, const void *entry)
{
    const char *key = wanted;
    const struct gguf_string *have = &((const struct gguf_value *) entry)->key;
    const size_t n = strlen(key);
    const int order = memcmp(key, have->text, n < have->size ? n : have->size);
    return order ? order : (n > have->size) - (n < have->size);
}

static int compare_name(const void *wanted, const void *entry)
{
    return strcmp(wanted, ((const struct gguf_tensor *) entry)->name);
}

const struct gguf_value *gguf_find(const struct gguf_file *file, const char *key)
{
    return bsearch(key, file->values, file->num_values, sizeof *file->values, compare_key);
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf_file *file, const char *name)
{
    return bsearch(name, file->tensors, file->num_tensors, sizeof *file->tensors, compare_name);
}

// The value of a key that is no array; NULL, with the error, where there is none.
static const struct gguf_value *find_one(const struct gguf_file *file, const char *key, struct error *error)
{
    const struct gguf_value *v = gguf_find(file, key);
    if (!v)
        fail(error, "%s is missing", key);
    else if (v->is_array)
        fail(error, "%s is an array of %" PRIu64 ", want one value", key, v->count);
    return v && !v->is_array ? v : NULL;
}

static bool wrong_kind(const char *key, const struct gguf_value *v, const char *want, struct error *error)
{
    return fail(error, "%s is of type %s, want %s", key, gguf_kind_name(v->kind), want);
}

// A whole number of any width, sign-extended. False for other kinds.
static bool whole(const struct gguf_value *v, uint64_t *x, bool *negative)
{
    const size_t size = gguf_kind_size(v->kind);
    const bool is_signed =
        v->kind == GGUF_I8 || v->kind == GGUF_I16 || v->kind == GGUF_I32 || v->kind == GGUF_I64;
    if (!size || v->kind == GGUF_BOOL || v->kind == GGUF_FLOAT32 || v->kind == GGUF_FLOAT64)
        return false;
    *x = 0;
    memcpy(x, v->data, size);
    *negative = is_signed && *x >> (8 * size - 1);
    if (*negative && size < sizeof *x)
        *x |= ~UINT64_C(0) << (8 * size);
    return true;
}

bool gguf_get_uint(const struct gguf_file *file, const char *key, uint64_t low, uint64_t high,
                   uint64_t *value, struct error *error)
{
    uint64_t x;
    bool negative;
    const struct gguf_value *v = find_one(file, key, error);
    if (!v)
        return false;
    if (!whole(v, &x, &negative))
        return wrong_kind(key, v, "a whole number", error);
    if (negative)
        return fail(error, "%s is %" PRId64 ", want %" PRIu64 " to %" PRIu64, key, (int64_t) x, low, high);
    if (x < low || x > high)
        return fail(error, "%s is %" PRIu64 ", want %" PRIu64 " to %" PRIu64, key, x, low, high);
    *value = x;
    return true;
}

bool gguf_get_float(const struct gguf_file *file, const char *key, double *value, struct error *error)
{
    const struct gguf_value *v = find_one(file, key, error);
    float single;
    if (!v)
        return false;
    if (v->kind == GGUF_FLOAT64) {
        memcpy(value, v->data, sizeof *value);
        return true;
    }
    if (v->kind != GGUF_FLOAT32)
        return wrong_kind(key, v, "f32 or f64", error);
    memcpy(&single, v->data, sizeof single);
    *value = (double) single;
    return true;
}

bool gguf_get_bool(const struct gguf_file *file, const char *key, bool *value, struct error *error)
{
    const struct gguf_value *v = find_one(file, key, error);
    if (v && v->kind != GGUF_BOOL)
        return wrong_kind(key, v, "bool", error);
    if (v)
        *value = v->data[0];
    return v != NULL;
}

// A string that gguf_parse has checked; returns where it ends.
static const unsigned char *string_at(const unsigned char *at, struct gguf_string *s)
{
    s->size = (size_t) gguf_u64(at);
    s->text = (const char *) at + 8;
    return at + 8 + s->size;
}

bool gguf_get_string(const struct gguf_file *file, const char *key, struct gguf_string *value,
                     struct error *error)
{
    const struct gguf_value *v = find_one(file, key, error);
    if (v && v->kind != GGUF_STRING)
        return wrong_kind(key, v, "string", error);
    if (v)
        (void) string_at(v->data, value);
    return v != NULL;
}

bool gguf_get_array(const struct gguf_file *file, const char *key, enum gguf_kind kind, void **elements,
                    size_t *count, struct error *error)
{
    const struct gguf_value *v = gguf_find(file, key);
    if (!v)
        return fail(error, "%s is missing", key);
    if (!v->is_array || v->kind != kind)
        return fail(error, "%s is %s%s, want an array of %s", key, v->is_array ? "an array of " : "of type ",
                    gguf_kind_name(v->kind), gguf_kind_name(kind));
    const size_t n = (size_t) v->count, entry = kind == GGUF_STRING ? sizeof(struct gguf_string) : 4;
    *elements = calloc(n ? n : 1, entry);
    if (!*elements)
        return fail(error, "out of memory for the %zu elements of %s", n, key);
    const unsigned char *at = v->data;
    for (size_t i = 0; kind == GGUF_STRING && i < n; i++)
        at = string_at(at, (struct gguf_string *) *elements + i);
    if (kind != GGUF_STRING)
        memcpy(*elements, at, n * entry);
    *count = n;
    return true;
}
