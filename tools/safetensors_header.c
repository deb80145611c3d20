// SPDX-License-Identifier: Apache-2.0
// From the text of a header to tensors: keys, types, sizes, and the layout of the data.
#define _POSIX_C_SOURCE 200809L
#include "safetensors_header.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include <cjson/cJSON.h>

enum { DTYPE, SHAPE, OFFSETS, NUM_FIELDS };
static const char *const field_names[NUM_FIELDS] = { "dtype", "shape", "data_offsets" };

static const struct {
    clinfer_dtype dtype;
    const char *name;
    uint64_t bytes;
} dtypes[] = {
#define CLINFER_X(name, value, text, bytes) { CLINFER_##name, text, bytes },
    CLINFER_DTYPE_LIST(CLINFER_X)
#undef CLINFER_X
};
enum { NUM_DTYPES = sizeof(dtypes) / sizeof(dtypes[0]) };

#define CLINFER_X(name, value, text, bytes) " " text
static const char dtype_texts[] = CLINFER_DTYPE_LIST(CLINFER_X);
#undef CLINFER_X

struct range {
    uint64_t begin, end;
    const char *name;
};

const char *st_dtype_name(clinfer_dtype dtype, uint64_t *bytes)
{
    for (int i = 0; i < NUM_DTYPES; i++) {
        if (dtypes[i].dtype == dtype) {
            *bytes = dtypes[i].bytes;
            return dtypes[i].name;
        }
    }
    return NULL;
}

static bool no_memory(char *error)
{
    return st_fail(error, "out of memory for the header");
}

static int compare_text(const void *a, const void *b)
{
    return strcmp(*(const char *const *) a, *(const char *const *) b);
}

static int compare_range(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return (x->begin > y->begin) - (x->begin < y->begin);
}

static size_t count(const cJSON *list)
{
    size_t n = 0;
    for (const cJSON *item = list->child; item; item = item->next)
        n++;
    return n;
}

// By sorting: a hostile header holds millions of keys.
static bool check_unique(const cJSON *object, const char *what, char *error)
{
    size_t n = 0;
    const char **keys = malloc((count(object) + 1) * sizeof(*keys));
    if (!keys)
        return no_memory(error);
    for (const cJSON *item = object->child; item; item = item->next)
        keys[n++] = item->string;
    qsort(keys, n, sizeof(*keys), compare_text);
    bool ok = true;
    for (size_t i = 1; ok && i < n; i++) {
        if (!strcmp(keys[i - 1], keys[i]))
            ok = st_fail(error, "%s: duplicate key \"%.80s\"", what, keys[i]);
    }
    free(keys);
    return ok;
}

static bool read_metadata(const cJSON *object, struct st_file *file, char *error)
{
    if (!cJSON_IsObject(object))
        return st_fail(error, ST_METADATA " is not an object");
    if (!check_unique(object, ST_METADATA, error))
        return false;
    file->meta = calloc(count(object) + 1, sizeof(*file->meta));
    if (!file->meta)
        return no_memory(error);
    for (const cJSON *item = object->child; item; item = item->next) {
        if (!cJSON_IsString(item))
            return st_fail(error, ST_METADATA ": the value of \"%.80s\" is not a string", item->string);
        struct st_meta *meta = &file->meta[file->num_meta++];
        meta->key = strdup(item->string);
        meta->value = strdup(item->valuestring);
        if (!meta->key || !meta->value)
            return no_memory(error);
    }
    return true;
}

// Copies an array of numbers, at most `max` of them; -1: it is not that. Exact, since the text was checked.
static int read_numbers(const cJSON *array, uint64_t *numbers, int max)
{
    int n = 0;
    if (!cJSON_IsArray(array))
        return -1;
    for (const cJSON *item = array->child; item; item = item->next) {
        if (n == max || !cJSON_IsNumber(item))
            return -1;
        numbers[n++] = (uint64_t) item->valuedouble;
    }
    return n;
}

static bool read_fields(const cJSON *item, const cJSON **fields, char *error)
{
    const char *name = item->string;
    if (!cJSON_IsObject(item))
        return st_fail(error, "tensor \"%.80s\" is not an object", name);
    for (const cJSON *child = item->child; child; child = child->next) {
        int i = 0;
        while (i < NUM_FIELDS && strcmp(child->string, field_names[i]))
            i++;
        if (i == NUM_FIELDS)
            return st_fail(error, "tensor \"%.80s\": unknown key \"%.80s\"", name, child->string);
        if (fields[i])
            return st_fail(error, "tensor \"%.80s\": duplicate key \"%s\"", name, field_names[i]);
        fields[i] = child;
    }
    for (int i = 0; i < NUM_FIELDS; i++) {
        if (!fields[i])
            return st_fail(error, "tensor \"%.80s\": no %s", name, field_names[i]);
    }
    return true;
}

static bool read_dtype(const cJSON *field, struct st_tensor *t, char *error)
{
    if (!cJSON_IsString(field))
        return st_fail(error, "tensor \"%.80s\": dtype is not a string", t->name);
    for (int i = 0; i < NUM_DTYPES; i++) {
        if (!strcmp(field->valuestring, dtypes[i].name)) {
            t->dtype = dtypes[i].dtype;
            return true;
        }
    }
    return st_fail(error, "tensor \"%.80s\": type \"%.40s\" is not one of%s", t->name, field->valuestring,
                   dtype_texts);
}

// The type's size times the shape.
static bool read_shape(const cJSON *field, struct st_tensor *t, uint64_t *bytes, char *error)
{
    uint64_t shape[ST_MAX_RANK];
    t->rank = read_numbers(field, shape, ST_MAX_RANK);
    if (t->rank < 0)
        return st_fail(error, "tensor \"%.80s\": shape is not an array of 0 to %d numbers", t->name,
                       ST_MAX_RANK);
    st_dtype_name(t->dtype, bytes);
    for (int i = 0; i < t->rank; i++) {
        if (shape[i] && *bytes > ST_MAX_NUMBER / shape[i])
            return st_fail(error,
                           "tensor \"%.80s\": shape overflows: %" PRIu64 " bytes times axis %d, %" PRIu64,
                           t->name, *bytes, i, shape[i]);
        *bytes *= shape[i];
        t->shape[i] = (int64_t) shape[i];
    }
    return true;
}

static bool read_tensor(const cJSON *item, struct st_tensor *t, uint64_t *begin, uint64_t data_size,
                        char *error)
{
    const cJSON *fields[NUM_FIELDS] = { NULL };
    uint64_t bytes = 0, at[2];
    t->name = strdup(item->string);
    if (!t->name)
        return no_memory(error);
    if (!read_fields(item, fields, error) || !read_dtype(fields[DTYPE], t, error) ||
        !read_shape(fields[SHAPE], t, &bytes, error))
        return false;
    if (read_numbers(fields[OFFSETS], at, 2) != 2)
        return st_fail(error, "tensor \"%.80s\": data_offsets is not an array of 2 numbers", t->name);
    if (at[0] > at[1])
        return st_fail(error, "tensor \"%.80s\": data_offsets begin at %" PRIu64 ", past their end %" PRIu64,
                       t->name, at[0], at[1]);
    if (at[1] > data_size)
        return st_fail(
            error, "tensor \"%.80s\": data_offsets end at %" PRIu64 ", but the data has %" PRIu64 " bytes",
            t->name, at[1], data_size);
    if (at[1] - at[0] != bytes)
        return st_fail(error,
                       "tensor \"%.80s\": shape and type need %" PRIu64 " bytes, data_offsets span %" PRIu64,
                       t->name, bytes, at[1] - at[0]);
    t->bytes = (size_t) bytes;
    *begin = at[0];
    return true;
}

// The tensors that have bytes tile the data: no overlap, no gap, nothing left over.
static bool check_ranges(struct range *ranges, size_t n, uint64_t data_size, char *error)
{
    uint64_t end = 0;
    qsort(ranges, n, sizeof(*ranges), compare_range);
    for (size_t i = 0; i < n; i++) {
        if (ranges[i].begin < end)
            return st_fail(error,
                           "tensors \"%.80s\" and \"%.80s\" overlap: one ends at %" PRIu64
                           ", the other begins at %" PRIu64,
                           ranges[i - 1].name, ranges[i].name, end, ranges[i].begin);
        if (ranges[i].begin > end)
            return st_fail(error,
                           "a gap before tensor \"%.80s\": it begins at %" PRIu64
                           ", the data so far ends at %" PRIu64,
                           ranges[i].name, ranges[i].begin, end);
        end = ranges[i].end;
    }
    return end == data_size ||
           st_fail(error, "the tensors end at %" PRIu64 ", but the data has %" PRIu64 " bytes", end,
                   data_size);
}

static bool check_layout(const struct st_file *file, const uint64_t *begin, uint64_t data_size, char *error)
{
    size_t n = 0;
    struct range *ranges = malloc(((size_t) file->num_tensors + 1) * sizeof(*ranges));
    if (!ranges)
        return no_memory(error);
    for (int i = 0; i < file->num_tensors; i++) {
        const struct st_tensor *t = &file->tensors[i];
        if (t->bytes)
            ranges[n++] = (struct range){ begin[i], begin[i] + t->bytes, t->name };
    }
    bool ok = check_ranges(ranges, n, data_size, error);
    free(ranges);
    return ok;
}

static bool read_root(const cJSON *root, uint64_t data_size, struct st_file *file, uint64_t **begin,
                      char *error)
{
    if (!check_unique(root, "header", error))
        return false;
    size_t n = count(root) + 1;
    file->tensors = calloc(n, sizeof(*file->tensors));
    *begin = calloc(n, sizeof(**begin));
    if (!file->tensors || !*begin)
        return no_memory(error);
    for (const cJSON *item = root->child; item; item = item->next) {
        bool ok;
        if (!strcmp(item->string, ST_METADATA)) {
            ok = read_metadata(item, file, error);
        } else {
            int i = file->num_tensors++;
            ok = read_tensor(item, &file->tensors[i], &(*begin)[i], data_size, error);
        }
        if (!ok)
            return false;
    }
    return check_layout(file, *begin, data_size, error);
}

bool st_header_parse(const char *text, size_t size, uint64_t data_size, struct st_file *file,
                     uint64_t **begin, char *error)
{
    size_t end;
    if (!st_text_check(text, size, &end, error))
        return false;
    cJSON *root = cJSON_ParseWithLength(text, end);
    if (!root)
        return no_memory(error); // the grammar was checked
    bool ok = read_root(root, data_size, file, begin, error);
    cJSON_Delete(root);
    return ok;
}
