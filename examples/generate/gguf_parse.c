// SPDX-License-Identifier: Apache-2.0
#include "gguf_parse.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// The bytes of the smallest entry of each table: what a count is checked against before memory is asked for.
enum { SMALLEST_VALUE = 8 + 1 + 4 + 1, SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8 };
enum { DEFAULT_ALIGNMENT = 32, MAX_KEY = 65535 };
#define MAX_ALIGNMENT (UINT64_C(1) << 30)

struct cursor {
    const unsigned char *at, *begin, *end;
    struct error *error;
};

static size_t left(const struct cursor *c)
{
    return (size_t) (c->end - c->at);
}

// Steps over `size` bytes and returns where they are, or NULL.
static const unsigned char *take(struct cursor *c, uint64_t size, const char *what)
{
    const unsigned char *at = c->at;
    if (size > left(c)) {
        fail(c->error, "%s at byte %zu takes %" PRIu64 " bytes, the file has %zu left", what,
             (size_t) (at - c->begin), size, left(c));
        return NULL;
    }
    c->at += size;
    return at;
}

static bool take_u32(struct cursor *c, const char *what, uint32_t *x)
{
    const unsigned char *at = take(c, sizeof *x, what);
    if (at)
        *x = gguf_u32(at);
    return at != NULL;
}

static bool take_u64(struct cursor *c, const char *what, uint64_t *x)
{
    const unsigned char *at = take(c, sizeof *x, what);
    if (at)
        *x = gguf_u64(at);
    return at != NULL;
}

static bool take_string(struct cursor *c, const char *what, struct gguf_string *s)
{
    uint64_t size;
    if (!take_u64(c, what, &size))
        return false;
    s->text = (const char *) take(c, size, what);
    s->size = (size_t) size;
    return s->text != NULL;
}

// A key or a tensor's name, which messages quote.
static bool take_name(struct cursor *c, const char *what, size_t max, struct gguf_string *s)
{
    const size_t at = (size_t) (c->at - c->begin);
    if (!take_string(c, what, s))
        return false;
    if (!s->size || s->size > max)
        return fail(c->error, "%s at byte %zu has %zu bytes, want 1 to %zu", what, at, s->size, max);
    for (size_t i = 0; i < s->size; i++)
        if (s->text[i] <= ' ' || s->text[i] > '~')
            return fail(c->error, "%s at byte %zu has the byte 0x%02x, want plain characters", what, at,
                        (unsigned char) s->text[i]);
    return true;
}

// Memory for the `count` entries of a table.
static void *table(struct cursor *c, const char *what, uint64_t count, size_t smallest, size_t entry)
{
    if (count > left(c) / smallest) {
        fail(c->error, "the file says %" PRIu64 " %s, and has bytes left for at most %zu", count, what,
             left(c) / smallest);
        return NULL;
    }
    void *memory = calloc(count ? (size_t) count : 1, entry);
    if (!memory)
        fail(c->error, "out of memory for %" PRIu64 " %s", count, what);
    return memory;
}

// Steps over the elements of a value.
static bool skip_elements(struct cursor *c, const struct gguf_value *v, const char *what)
{
    const size_t size = gguf_kind_size(v->kind), least = size ? size : 8;
    if (v->count > left(c) / least)
        return fail(c->error, "%s: %" PRIu64 " elements, and the file has bytes left for at most %zu", what,
                    v->count, left(c) / least);
    if (size) {
        (void) take(c, v->count * size, what);
        for (uint64_t i = 0; v->kind == GGUF_BOOL && i < v->count; i++)
            if (v->data[i] > 1)
                return fail(c->error, "%s: a bool is %d, want 0 or 1", what, v->data[i]);
        return true;
    }
    struct gguf_string s;
    for (uint64_t i = 0; i < v->count; i++)
        if (!take_string(c, what, &s))
            return false;
    return true;
}

static bool parse_value(struct cursor *c, struct gguf_value *v)
{
    uint32_t kind;
    char what[128];
    if (!take_name(c, "a key", MAX_KEY, &v->key))
        return false;
    (void) snprintf(what, sizeof what, "%.*s", v->key.size < 100 ? (int) v->key.size : 100, v->key.text);
    if (!take_u32(c, what, &kind))
        return false;
    v->count = 1;
    v->is_array = kind == GGUF_ARRAY;
    if (v->is_array && (!take_u32(c, what, &kind) || !take_u64(c, what, &v->count)))
        return false;
    if (kind >= GGUF_NUM_KINDS || kind == GGUF_ARRAY)
        return fail(c->error, "%s: %s type %" PRIu32 ", want 0 to %d%s", what,
                    v->is_array ? "elements of" : "a value of", kind, GGUF_NUM_KINDS - 1,
                    v->is_array ? " but no arrays" : "");
    v->kind = (enum gguf_kind) kind;
    v->data = c->at;
    return skip_elements(c, v, what);
}

// The type and *bytes of a tensor whose shape is known.
static bool measure(struct cursor *c, struct gguf_tensor *t, uint32_t type)
{
    int64_t block;
    const size_t bytes = gguf_block_bytes(type, &block);
    if (!bytes)
        return fail(c->error,
                    "tensor %s: type %" PRIu32 ", want F32 F16 BF16 Q8_0 Q4_0 or Q4_1 (0 1 30 8 2 3)",
                    t->name, type);
    t->type = (enum gguf_type) type;
    if (t->columns % block)
        return fail(c->error,
                    "tensor %s: rows of %" PRId64 " elements, want a multiple of %" PRId64 " for %s", t->name,
                    t->columns, block, gguf_type_name(t->type));
    t->bytes = (size_t) (t->rows * (t->columns / block)) * bytes;
    return true;
}

static bool parse_shape(struct cursor *c, struct gguf_tensor *t)
{
    uint32_t rank;
    if (!take_u32(c, t->name, &rank))
        return false;
    if (rank < 1 || rank > GGUF_MAX_RANK)
        return fail(c->error, "tensor %s: rank %" PRIu32 ", want 1 to %d", t->name, rank, GGUF_MAX_RANK);
    t->rank = (int) rank;
    // No element takes less than half a byte.
    const uint64_t max = 2 * (uint64_t) (c->end - c->begin);
    uint64_t elements = 1;
    for (int axis = t->rank; axis-- > 0;) {
        uint64_t extent;
        if (!take_u64(c, t->name, &extent))
            return false;
        if (!extent || extent > max / elements)
            return fail(c->error,
                        "tensor %s: extent %" PRIu64 " after %" PRIu64 " elements, want 1 to %" PRIu64
                        " for a file of %" PRIu64 " bytes",
                        t->name, extent, elements, max / elements, max / 2);
        elements *= extent;
        t->shape[axis] = (int64_t) extent;
    }
    t->columns = t->shape[t->rank - 1];
    t->rows = (int64_t) elements / t->columns;
    return true;
}

// Tensors lie in the order of their entries, each at the first aligned place after the one before. *offset is
// that place; until the data's begin is known `data` points as if it were the file's.
static bool parse_tensor(struct cursor *c, struct gguf_tensor *t, uint64_t alignment, uint64_t *offset)
{
    struct gguf_string name;
    uint32_t type;
    uint64_t at;
    if (!take_name(c, "a tensor's name", GGUF_MAX_NAME, &name))
        return false;
    memcpy(t->name, name.text, name.size);
    if (!parse_shape(c, t) || !take_u32(c, t->name, &type) || !measure(c, t, type) ||
        !take_u64(c, t->name, &at))
        return false;
    if (at != *offset)
        return fail(c->error,
                    "tensor %s: at byte %" PRIu64 " of the data, want %" PRIu64
                    ", where the one before ends, aligned to %" PRIu64,
                    t->name, at, *offset, alignment);
    if (at > (uint64_t) (c->end - c->begin) || t->bytes > (uint64_t) (c->end - c->begin) - at)
        return fail(c->error, "tensor %s: %zu bytes at byte %" PRIu64 " of the data, the file has %zu",
                    t->name, t->bytes, at, (size_t) (c->end - c->begin));
    t->data = c->begin + at;
    *offset = (at + t->bytes + alignment - 1) / alignment * alignment;
    return true;
}

// After the last entry: where the data begins, and that the last tensor ends with the file.
static bool place_data(struct cursor *c, struct gguf_file *file, uint64_t alignment)
{
    const uint64_t header = (uint64_t) (c->at - c->begin);
    const uint64_t begin = (header + alignment - 1) / alignment * alignment;
    uint64_t end = header;
    for (size_t i = 0; i < file->num_tensors; i++) {
        struct gguf_tensor *t = &file->tensors[i];
        end = begin + (uint64_t) (t->data - c->begin) + t->bytes;
        if (end > file->size)
            return fail(c->error, "tensor %s: ends at byte %" PRIu64 ", the file has %zu", t->name, end,
                        file->size);
        t->data += begin;
    }
    const uint64_t padded = (end + alignment - 1) / alignment * alignment;
    if (file->size > padded)
        return fail(c->error, "the file has %zu bytes, %" PRIu64 " end the last tensor", file->size, padded);
    return true;
}

static int compare_values(const void *a, const void *b)
{
    const struct gguf_string *x = &((const struct gguf_value *) a)->key,
                             *y = &((const struct gguf_value *) b)->key;
    const int order = memcmp(x->text, y->text, x->size < y->size ? x->size : y->size);
    return order ? order : (x->size > y->size) - (x->size < y->size);
}

static int compare_tensors(const void *a, const void *b)
{
    return strcmp(((const struct gguf_tensor *) a)->name, ((const struct gguf_tensor *) b)->name);
}

static bool parse_values(struct cursor *c, struct gguf_file *file, uint64_t count)
{
    file->values = table(c, "metadata values", count, SMALLEST_VALUE, sizeof *file->values);
    if (!file->values)
        return false;
    for (; file->num_values < count; file->num_values++)
        if (!parse_value(c, &file->values[file->num_values]))
            return false;
    qsort(file->values, file->num_values, sizeof *file->values, compare_values);
    for (size_t i = 1; i < file->num_values; i++)
        if (!compare_values(&file->values[i - 1], &file->values[i]))
            return fail(c->error, "the key %.*s is there twice", (int) file->values[i].key.size,
                        file->values[i].key.text);
    return true;
}

static bool parse_tensors(struct cursor *c, struct gguf_file *file, uint64_t count)
{
    uint64_t alignment = DEFAULT_ALIGNMENT, offset = 0;
    if (gguf_find(file, "general.alignment") &&
        !gguf_get_uint(file, "general.alignment", 1, MAX_ALIGNMENT, &alignment, c->error))
        return false;
    if (alignment & (alignment - 1))
        return fail(c->error, "general.alignment is %" PRIu64 ", want a power of two", alignment);
    file->tensors = table(c, "tensors", count, SMALLEST_TENSOR, sizeof *file->tensors);
    if (!file->tensors)
        return false;
    for (; file->num_tensors < count; file->num_tensors++)
        if (!parse_tensor(c, &file->tensors[file->num_tensors], alignment, &offset))
            return false;
    if (!place_data(c, file, alignment))
        return false;
    qsort(file->tensors, file->num_tensors, sizeof *file->tensors, compare_tensors);
    for (size_t i = 1; i < file->num_tensors; i++)
        if (!compare_tensors(&file->tensors[i - 1], &file->tensors[i]))
            return fail(c->error, "tensor %s is there twice", file->tensors[i].name);
    return true;
}

bool gguf_parse(struct gguf_file *file, struct error *error)
{
    struct cursor c = { file->bytes, file->bytes, file->bytes + file->size, error };
    uint32_t version;
    uint64_t num_tensors, num_values;
    const unsigned char *magic = take(&c, 4, "the magic");
    if (!magic)
        return false;
    if (memcmp(magic, "GGUF", 4))
        return fail(error, "no GGUF file: begins with the bytes %02x %02x %02x %02x", magic[0], magic[1],
                    magic[2], magic[3]);
    if (!take_u32(&c, "the version", &version))
        return false;
    if (version != 2 && version != 3)
        return fail(error, "version %" PRIu32 "%s, want 2 or 3", version,
                    version && !(version & 0xffff) ? " (a big-endian file)" : "");
    return take_u64(&c, "the number of tensors", &num_tensors) &&
           take_u64(&c, "the number of metadata values", &num_values) && parse_values(&c, file, num_values) &&
           parse_tensors(&c, file, num_tensors);
}
