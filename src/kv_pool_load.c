// SPDX-License-Identifier: Apache-2.0
#include "kv_pool_file.h"
#include "ref.h"
#include <clinfer/kv_prefix.h>
#include <clinfer/kv_seq_file.h>
#include <clinfer/kv_store.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct load {
    struct clf_pool_io io;
    struct clf_kv_head here; // the pool's
    clinfer_kv_seq seq;
    clinfer_kv_pool_batch batch; // 0: none is open
    clinfer_kv_batch tensors;
    uint32_t *tokens; // the known ones
    float *decoded;   // rows of fp8
    cl_mem staging;   // rows that clinfer_kv_store takes
};

// What a call of the public functions said.
static clinfer_status call_failed(struct load *l, clinfer_status st)
{
    char text[CLF_ERROR_SIZE];
    clinfer_ctx_error(l->io.pool->ctx, text, sizeof text);
    const size_t skip = !strncmp(text, "kv_pool: ", 9) ? 9 : 0;
    if (st)
        memcpy(l->io.error, text + skip, sizeof text - skip);
    return st;
}

static bool alike(const struct clf_kv_rows *a, const struct clf_kv_rows *b)
{
    return a->dtype == b->dtype && a->group == b->group;
}

static clinfer_status get(struct load *l, void *data, size_t size)
{
    return clf_kv_file_get(&l->io.file, data, size, l->io.error) ? CLINFER_OK : CLINFER_ERR_FILE;
}

// Codes of fp8, scaled or not, to f32: exact, but for a product with a scale, which is rounded.
static void decode(const struct clf_kv_rows *r, int64_t tokens, const unsigned char *piece, float *to)
{
    const unsigned char *scales = piece + r->bytes * (size_t) tokens;
    double value[256];
    for (uint32_t code = 0; code < 256; code++)
        value[code] = ref_decode(code, r->dtype);
    for (int64_t head = 0; head < tokens * r->heads; head++)
        for (int64_t i = 0; i < r->head_size; i++) {
            const int64_t at = head * r->head_size + i;
            double x = value[piece[at]];
            if (r->group)
                x *= ref_load(scales, CLINFER_F32, head * r->groups + i / r->group);
            to[at] = (float) x;
        }
}

static clinfer_status make_staging(struct load *l)
{
    const size_t elements =
        (size_t) (l->here.num_heads * CLF_KV_FILE_TOKENS) *
        (size_t) (l->here.head_size[0] > l->here.head_size[1] ? l->here.head_size[0] : l->here.head_size[1]);
    cl_int err;
    if (l->staging)
        return CLINFER_OK;
    l->decoded = malloc(elements * sizeof *l->decoded);
    if (!l->decoded) {
        snprintf(l->io.error, sizeof l->io.error, "no host memory for %zu values", elements);
        return CLINFER_ERR_MEMORY;
    }
    l->staging =
        clCreateBuffer(l->io.pool->ctx->cl, CL_MEM_READ_ONLY, elements * sizeof *l->decoded, NULL, &err);
    return err ? clf_pool_io_fail(&l->io, err, "a buffer for rows") : CLINFER_OK;
}

// Rows whose type or group is not the pool's, as clinfer_kv_store stores them.
static clinfer_status convert(struct load *l, const struct clf_kv_rows *r, int64_t layer, int part,
                              int64_t tokens)
{
    const void *data = l->io.piece;
    clinfer_dtype dtype = r->dtype;
    clinfer_status st = make_staging(l);
    if (st)
        return st;
    if (dtype == CLINFER_F8_E4M3) {
        decode(r, tokens, l->io.piece, l->decoded);
        data = l->decoded;
        dtype = CLINFER_F32;
    }
    const size_t bytes = (size_t) (tokens * r->heads * r->head_size) * clinfer_dtype_size(dtype);
    const cl_int err = clEnqueueWriteBuffer(l->io.queue, l->staging, CL_TRUE, 0, bytes, data, 0, NULL, NULL);
    if (err)
        return clf_pool_io_fail(&l->io, err, "rows to the device");
    return call_failed(
        l,
        clinfer_kv_store(
            l->io.pool->ctx,
            clinfer_kv_store_params(.queue = l->io.queue,
                                    .k = clinfer_tensor_3d(l->staging, dtype, tokens, r->heads, r->head_size),
                                    .kv = clf_pool_io_view(&l->io, layer, part), .batch = l->tensors),
            0, NULL, NULL));
}

// The rows of the batch that is open, all layers.
static clinfer_status get_rows(struct load *l, int64_t first, int64_t tokens)
{
    const struct clf_kv_head *h = &l->io.file.head;
    clinfer_status st = CLINFER_OK;
    for (int64_t layer = 0; layer < h->num_layers; layer++)
        for (int part = 0; !st && part < clf_kv_parts(h); part++) {
            const struct clf_kv_rows r = clf_kv_rows_of(h, part), own = clf_kv_rows_of(&l->here, part);
            st = get(l, l->io.piece, (r.bytes + r.scale_bytes) * (size_t) tokens);
            if (!st)
                st = alike(&r, &own)
                         ? clf_pool_io_rows(&l->io, &r, layer, part, first, tokens, l->io.piece, true)
                         : convert(l, &r, layer, part, tokens);
        }
    return st;
}

// A step of the sequence, as a program's own: its pages are behind whoever had them before.
static clinfer_status load_step(struct load *l, int64_t first, int64_t tokens)
{
    clinfer_kv_pool *pool = l->io.pool;
    struct clinfer_kv_batch_info info;
    struct clf_kv_seq *s;
    clinfer_status st = call_failed(
        l, clinfer_kv_batch_create(pool,
                                   clinfer_kv_batch_params(.queue = l->io.queue, .num_seqs = 1,
                                                           .seqs = &l->seq, .new_tokens = &tokens),
                                   &l->batch));
    if (!st)
        st = call_failed(l, clinfer_kv_batch_info(pool, l->batch, &info));
    if (st)
        return st;
    l->tensors = info.tensors;
    pthread_mutex_lock(&pool->lock); // new pages are no part of clinfer_kv_seq_pages yet
    if (!clf_seq_find(&pool->pages, l->seq, false, &s))
        memcpy(l->io.page, s->page, s->num_pages * sizeof *l->io.page);
    pthread_mutex_unlock(&pool->lock);
    cl_int err = clWaitForEvents(1, &info.ready);
    if (!err)
        st = get_rows(l, first, tokens);
    if (!err && !st)
        err = clFinish(l->io.queue);
    if (err)
        return clf_pool_io_fail(&l->io, err, "the loading of rows");
    if (!st)
        st = call_failed(l, clinfer_kv_batch_commit(pool, l->batch, 0, NULL));
    l->batch = st ? l->batch : 0;
    return st;
}

static clinfer_status make_seq(struct load *l)
{
    clinfer_kv_pool *pool = l->io.pool;
    const struct clf_kv_head *h = &l->io.file.head;
    int64_t none, available;
    pthread_mutex_lock(&pool->lock);
    const int64_t want = clf_pages_of(&pool->pages, h->length);
    available = clf_pages_available(&pool->pages);
    pthread_mutex_unlock(&pool->lock);
    if (want > available) {
        snprintf(l->io.error, sizeof l->io.error,
                 "%.300s: %" PRId64 " tokens want %" PRId64 " pages, %" PRId64 " are free", l->io.file.path,
                 h->length, want, available);
        return CLINFER_ERR_PAGES;
    }
    l->io.page = malloc((size_t) (want ? want : 1) * sizeof *l->io.page);
    l->tokens = malloc((size_t) (h->known ? h->known : 1) * sizeof *l->tokens);
    if (!l->io.page || !l->tokens) {
        snprintf(l->io.error, sizeof l->io.error, "no host memory for %" PRId64 " tokens", h->length);
        return CLINFER_ERR_MEMORY;
    }
    return call_failed(
        l, clinfer_kv_seq_match(pool, clinfer_kv_match_params(.salt = h->seq_salt), &l->seq, &none));
}

static clinfer_status load(struct load *l, const char *path)
{
    clinfer_status st = clf_kv_file_open(&l->io.file, path, &l->here, l->io.error);
    const struct clf_kv_head *h = &l->io.file.head;
    if (!st)
        st = clf_pool_io_open(&l->io, &l->here, h);
    if (!st)
        st = make_seq(l);
    if (!st)
        st = get(l, l->tokens, (size_t) h->known * sizeof *l->tokens);
    for (int64_t first = 0; !st && first < h->length; first += CLF_KV_FILE_TOKENS)
        st = load_step(l, first,
                       h->length - first < CLF_KV_FILE_TOKENS ? h->length - first : CLF_KV_FILE_TOKENS);
    if (!st && h->known)
        st = call_failed(l, clinfer_kv_seq_set_tokens(l->io.pool, l->seq, l->tokens, h->known));
    return st;
}

clinfer_status clinfer_kv_seq_load(clinfer_kv_pool *pool, const char *path, clinfer_kv_seq *seq)
{
    struct load l = { .io = { .pool = pool, .file = { .in = -1, .out = { .fd = -1 } } },
                      .here = clf_kv_head_of(&pool->layout.p) };
    *seq = 0;
    if (!path)
        return clf_pool_error(pool, CLINFER_ERR_ARGUMENT, "no path");
    const clinfer_status st = load(&l, path);
    // A failure may have left the batch open; one that cannot be dropped at once is dropped the second time.
    if (l.batch && clinfer_kv_batch_drop(pool, l.batch, 0, NULL))
        clinfer_kv_batch_drop(pool, l.batch, 0, NULL);
    if (st && l.seq)
        clinfer_kv_seq_free(pool, l.seq);
    if (!st)
        *seq = l.seq;
    if (l.staging)
        clReleaseMemObject(l.staging);
    clf_pool_io_close(&l.io);
    free(l.decoded);
    free(l.tokens);
    return st ? clf_pool_error(pool, st, l.io.error) : CLINFER_OK;
}
