// SPDX-License-Identifier: Apache-2.0
#include "kv_file.h"
#include "plan.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <xxhash.h>

static const unsigned char magic[8] = { 0x89, 'C', 'L', 'F', 'S', 'E', 'Q', '\n' };
enum { VERSION = 1 };

// The head of a file, as it is written.
struct start {
    unsigned char magic[sizeof magic];
    uint64_t version;
    struct clf_kv_head head;
};
_Static_assert(sizeof(struct start) == 16 + 12 * 8, "no padding in what is written");

#define SAY(result, ...) (snprintf(error, CLF_ERROR_SIZE, __VA_ARGS__), (result))
#define FAIL(...)        SAY(false, __VA_ARGS__)
#define PATH             "%.300s"

struct clf_kv_head clf_kv_head_of(const struct clinfer_kv_pool_params *p)
{
    return (struct clf_kv_head){ .mla = p->mla != 0,
                                 .num_layers = p->num_layers,
                                 .num_heads = p->num_heads,
                                 .head_size = { p->head_size, p->v_head_size },
                                 .dtype = { p->dtype, p->v_dtype },
                                 .scale_group = p->scale_group,
                                 .salt = p->salt };
}

int clf_kv_parts(const struct clf_kv_head *h)
{
    return h->mla ? 1 : 2;
}

struct clf_kv_rows clf_kv_rows_of(const struct clf_kv_head *h, int part)
{
    struct clf_kv_rows r = { .dtype = (clinfer_dtype) h->dtype[part],
                             .heads = h->num_heads,
                             .head_size = h->head_size[part] };
    if (r.dtype == CLINFER_F8_E4M3 && h->scale_group) {
        r.group = h->scale_group;
        r.groups = clf_blocks(r.head_size, r.group);
    }
    r.bytes = (size_t) (r.heads * r.head_size) * clinfer_dtype_size(r.dtype);
    r.scale_bytes = (size_t) (r.heads * r.groups) * sizeof(cl_float);
    return r;
}

static void hash_of(unsigned char hash[CLF_KV_HASH], const void *data, size_t size)
{
    uint64_t seed;
    XXH128_canonical_t canonical;
    memcpy(&seed, hash, sizeof seed);
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_withSeed(data, size, seed));
    memcpy(hash, canonical.digest, CLF_KV_HASH);
}

static bool system_error(const struct clf_kv_file *f, char *error)
{
    return FAIL(PATH ": %s", f->path, strerror(errno));
}

bool clf_kv_file_create(struct clf_kv_file *f, const char *path, const struct clf_kv_head *head, char *error)
{
    struct start start = { .version = VERSION, .head = *head };
    memcpy(start.magic, magic, sizeof magic);
    *f = (struct clf_kv_file){ .path = path, .head = *head, .in = -1 };
    if (!clf_file_create(&f->out, path))
        return system_error(f, error);
    return clf_kv_file_put(f, &start, sizeof start, error);
}

bool clf_kv_file_put(struct clf_kv_file *f, const void *data, size_t size, char *error)
{
    hash_of(f->hash, data, size);
    return (clf_file_write(f->out.fd, data, size) && clf_file_write(f->out.fd, f->hash, CLF_KV_HASH)) ||
           system_error(f, error);
}

bool clf_kv_file_finish(struct clf_kv_file *f, char *error)
{
    return clf_file_finish(&f->out) || system_error(f, error);
}

bool clf_kv_file_get(struct clf_kv_file *f, void *data, size_t size, char *error)
{
    unsigned char hash[CLF_KV_HASH];
    size_t done, hash_done;
    if (!clf_file_read(f->in, data, size, &done) || !clf_file_read(f->in, hash, CLF_KV_HASH, &hash_done))
        return system_error(f, error);
    if (done != size || hash_done != CLF_KV_HASH)
        return FAIL(PATH ": damaged: ends too soon", f->path);
    hash_of(f->hash, data, size);
    return !memcmp(f->hash, hash, CLF_KV_HASH) || FAIL(PATH ": damaged: its hash is another", f->path);
}

static clinfer_status check_shape(const struct clf_kv_file *f, const struct clf_kv_head *want, char *error)
{
    const struct clf_kv_head *h = &f->head;
    const struct {
        const char *name;
        int64_t got, want;
    } field[] = { { "mla", h->mla, want->mla },
                  { "num_layers", h->num_layers, want->num_layers },
                  { "num_heads", h->num_heads, want->num_heads },
                  { "head_size", h->head_size[0], want->head_size[0] },
                  { "v_head_size", h->head_size[1], want->head_size[1] } };
    for (size_t i = 0; i < sizeof field / sizeof field[0]; i++)
        if (field[i].got != field[i].want)
            return SAY(CLINFER_ERR_SHAPE, PATH ": %s is %" PRId64 ", but the pool has %" PRId64, f->path,
                       field[i].name, field[i].got, field[i].want);
    if (h->salt != want->salt)
        return SAY(CLINFER_ERR_ARGUMENT, PATH ": salt is 0x%" PRIx64 ", but the pool has 0x%" PRIx64, f->path,
                   h->salt, want->salt);
    return CLINFER_OK;
}

// Of a file with this head, whose heads and sizes are a pool's; 0: past 2^63, or a head that makes no sense.
static uint64_t bytes_of(const struct clf_kv_head *h)
{
    uint64_t token = 0, rows, hashes;
    const uint64_t pieces =
        (uint64_t) (clf_blocks(h->length, CLF_KV_FILE_TOKENS) * h->num_layers * clf_kv_parts(h)) + 2;
    for (int i = 0; i < clf_kv_parts(h); i++) {
        if (h->dtype[i] == CLINFER_U32 || !clinfer_dtype_size((clinfer_dtype) h->dtype[i]))
            return 0;
        const struct clf_kv_rows r = clf_kv_rows_of(h, i);
        token += r.bytes + r.scale_bytes;
    }
    if (__builtin_mul_overflow(token, (uint64_t) (h->length * h->num_layers), &rows) ||
        __builtin_mul_overflow(pieces, (uint64_t) CLF_KV_HASH, &hashes) ||
        __builtin_add_overflow(rows, hashes, &rows))
        return 0;
    return rows + (uint64_t) h->known * 4 + sizeof(struct start);
}

static clinfer_status check_start(struct clf_kv_file *f, uint64_t size, const struct clf_kv_head *want,
                                  char *error)
{
    struct start start;
    memset(&start, 0, sizeof start);
    const bool whole = size >= sizeof start + CLF_KV_HASH && clf_kv_file_get(f, &start, sizeof start, error);
    if (size < sizeof start + CLF_KV_HASH)
        return SAY(CLINFER_ERR_FILE, PATH ": damaged: has %" PRIu64 " bytes, want at least %zu", f->path,
                   size, sizeof start + CLF_KV_HASH);
    if (memcmp(start.magic, magic, sizeof magic))
        return SAY(CLINFER_ERR_FILE, PATH ": no saved sequence", f->path);
    if (start.version != VERSION)
        return SAY(CLINFER_ERR_FILE, PATH ": has version %" PRIu64 ", want %d", f->path, start.version,
                   VERSION);
    if (!whole)
        return CLINFER_ERR_FILE;
    f->head = start.head;
    const clinfer_status st = check_shape(f, want, error);
    if (st)
        return st;
    const struct clf_kv_head *h = &f->head;
    const bool sane = h->length >= 0 && h->length <= UINT32_MAX && h->known >= 0 && h->known <= h->length &&
                      h->scale_group >= 0 && h->scale_group <= INT32_MAX;
    const uint64_t bytes = sane ? bytes_of(h) : 0;
    if (bytes != size)
        return SAY(CLINFER_ERR_FILE, PATH ": damaged: has %" PRIu64 " bytes, want %" PRIu64, f->path, size,
                   bytes);
    return CLINFER_OK;
}

clinfer_status clf_kv_file_open(struct clf_kv_file *f, const char *path, const struct clf_kv_head *want,
                                char *error)
{
    uint64_t size;
    *f = (struct clf_kv_file){ .path = path, .out = { .fd = -1 } };
    f->in = clf_file_open(path, &size);
    if (f->in < 0)
        return system_error(f, error), CLINFER_ERR_FILE;
    return check_start(f, size, want, error);
}

void clf_kv_file_close(struct clf_kv_file *f)
{
    clf_file_abandon(&f->out);
    clf_file_close(f->in);
    f->in = -1;
}
