// SPDX-License-Identifier: Apache-2.0
// The public functions of a pool, but those of its batches.
#include "kv_pool.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static clinfer_status fail(clinfer_ctx *ctx, clinfer_status status, const char *what)
{
    char text[CLF_ERROR_SIZE + 16];
    snprintf(text, sizeof text, "kv_pool: %s", what);
    return clf_error(ctx, status, text);
}

clinfer_status clf_pool_error(clinfer_kv_pool *pool, clinfer_status status, const char *what)
{
    return fail(pool->ctx, status, what);
}

clinfer_status clf_pool_leave(clinfer_kv_pool *pool, clinfer_status status)
{
    char what[CLF_ERROR_SIZE];
    if (status)
        memcpy(what, pool->pages.error, sizeof what);
    pthread_mutex_unlock(&pool->lock);
    return status ? fail(pool->ctx, status, what) : CLINFER_OK;
}

// Pools of a context have tags in a row, so that none takes another's ids; across contexts and time chance
// keeps them apart.
static uint64_t next_seed(clinfer_ctx *ctx)
{
    pthread_mutex_lock(&ctx->lock);
    if (!ctx->pool_seed) {
        struct timespec now = { 0, 0 };
        clock_gettime(CLOCK_REALTIME, &now);
        uint64_t x =
            (uint64_t) (uintptr_t) ctx ^ (uint64_t) now.tv_sec * 1000000007u ^ (uint64_t) now.tv_nsec;
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
        x = (x ^ x >> 27) * 0x94D049BB133111EBu;
        ctx->pool_seed = (x ^ x >> 31) | 1;
    }
    const uint64_t seed = ctx->pool_seed++;
    pthread_mutex_unlock(&ctx->lock);
    return seed;
}

static clinfer_status make_buffers(clinfer_kv_pool *pool, char *error)
{
    const struct clf_pool_layout *l = &pool->layout;
    cl_int err = CL_SUCCESS;
    pool->mem = calloc((size_t) l->num_buffers, sizeof *pool->mem);
    if (!pool->mem) {
        snprintf(error, CLF_ERROR_SIZE, "no host memory for %" PRId64 " buffers", l->num_buffers);
        return CLINFER_ERR_MEMORY;
    }
    for (int64_t i = 0; !err && i < l->num_buffers; i++) {
        pool->mem[i] = clCreateBuffer(pool->ctx->cl, CL_MEM_READ_WRITE, l->buffer_bytes, NULL, &err);
        if (err)
            snprintf(error, CLF_ERROR_SIZE, "buffer %" PRId64 " of %" PRId64 ", of %zu bytes: %s", i + 1,
                     l->num_buffers, l->buffer_bytes, clinfer_status_str((clinfer_status) err));
    }
    return (clinfer_status) err;
}

static clinfer_status set_up(clinfer_kv_pool *pool, const struct clinfer_kv_pool_params *params, char *error)
{
    clinfer_status st = clf_pool_layout(&pool->layout, params, pool->ctx->info.max_alloc, error);
    if (st)
        return st;
    const uint64_t seed = next_seed(pool->ctx);
    pool->batch_count = seed >> 16 & ((UINT64_C(1) << (CLF_ID_KIND - 1)) - 1);
    const struct clinfer_kv_pool_params *p = &pool->layout.p;
    // What makes the contents of pages, but their tokens.
    const uint64_t salt[] = { p->salt,
                              (uint64_t) p->mla,
                              (uint64_t) p->num_layers,
                              (uint64_t) p->num_heads,
                              (uint64_t) p->head_size,
                              (uint64_t) p->v_head_size,
                              (uint64_t) p->page_size,
                              (uint64_t) p->dtype,
                              (uint64_t) p->v_dtype,
                              (uint64_t) p->scale_group };
    st = clf_pages_init(&pool->pages, p->num_pages, p->page_size, seed, salt, sizeof salt);
    if (st) {
        snprintf(error, CLF_ERROR_SIZE, "%s", pool->pages.error);
        return st;
    }
    pool->wait = malloc(sizeof *pool->wait);
    if (!pool->wait) {
        snprintf(error, CLF_ERROR_SIZE, "no host memory");
        return CLINFER_ERR_MEMORY;
    }
    return make_buffers(pool, error);
}

clinfer_status clinfer_kv_pool_create(clinfer_kv_pool **out, clinfer_ctx *ctx,
                                      const struct clinfer_kv_pool_params *params)
{
    char error[CLF_ERROR_SIZE] = "";
    *out = NULL;
    if (!params)
        return fail(ctx, CLINFER_ERR_ARGUMENT, "no params");
    clinfer_kv_pool *pool = calloc(1, sizeof *pool);
    if (!pool)
        return fail(ctx, CLINFER_ERR_MEMORY, "no host memory");
    pool->ctx = ctx;
    pthread_mutex_init(&pool->lock, NULL);
    const clinfer_status st = set_up(pool, params, error);
    if (st) {
        clinfer_kv_pool_destroy(&pool);
        return fail(ctx, st, error);
    }
    *out = pool;
    return CLINFER_OK;
}

void clinfer_kv_pool_destroy(clinfer_kv_pool **ppool)
{
    clinfer_kv_pool *pool = ppool ? *ppool : NULL;
    if (!pool)
        return;
    clf_pool_batches_free(pool);
    for (int64_t i = 0; pool->mem && i < pool->layout.num_buffers; i++)
        if (pool->mem[i])
            clReleaseMemObject(pool->mem[i]);
    if (pool->copied)
        clReleaseEvent(pool->copied);
    clf_pages_close(&pool->pages);
    pthread_mutex_destroy(&pool->lock);
    free(pool->mem);
    free(pool->wait);
    free(pool);
    *ppool = NULL;
}

static clinfer_kv_cache view_of(clinfer_kv_pool *pool, int64_t layer, bool v)
{
    char what[128];
    int64_t buffer;
    clinfer_kv_cache kv = clf_pool_view(&pool->layout, layer, v, &buffer);
    if (kv.page_size) {
        kv.mem = pool->mem[buffer];
        kv.scales = kv.scale_group ? kv.mem : NULL;
        return kv;
    }
    if (v && pool->layout.p.mla)
        snprintf(what, sizeof what, "an MLA cache has no V plane");
    else
        snprintf(what, sizeof what, "layer is %" PRId64 ", but the pool has %" PRId64 " layers", layer,
                 pool->layout.p.num_layers);
    fail(pool->ctx, CLINFER_ERR_ARGUMENT, what);
    return kv;
}

clinfer_kv_cache clinfer_kv_pool_layer(clinfer_kv_pool *pool, int64_t l)
{
    return view_of(pool, l, false);
}

clinfer_kv_cache clinfer_kv_pool_layer_v(clinfer_kv_pool *pool, int64_t l)
{
    return view_of(pool, l, true);
}

void clinfer_kv_pool_info(clinfer_kv_pool *pool, struct clinfer_kv_pool_info *info)
{
    const struct clf_pool_layout *l = &pool->layout;
    const struct clf_kv_pages *p = &pool->pages;
    pthread_mutex_lock(&pool->lock);
    *info = (struct clinfer_kv_pool_info){ .num_pages = p->num_pages,
                                           .free_pages = p->num_free,
                                           .used_pages = p->num_pages - clf_pages_available(p),
                                           .cached_pages = p->prefix.num_cached,
                                           .num_seqs = p->num_seqs,
                                           .lookups = p->lookups,
                                           .lookup_tokens = p->lookup_tokens,
                                           .hit_tokens = p->hit_tokens,
                                           .evictions = p->prefix.evictions,
                                           .copies = p->copies,
                                           .num_buffers = l->num_buffers,
                                           .page_bytes = l->page_bytes,
                                           .bytes = (uint64_t) l->num_buffers * l->buffer_bytes };
    for (const struct clf_pool_batch *b = pool->batches; b; b = b->next)
        info->num_batches += b->id != 0;
    pthread_mutex_unlock(&pool->lock);
}

int clinfer_kv_pool_check(clinfer_kv_pool *pool, char *error, size_t error_size)
{
    pthread_mutex_lock(&pool->lock);
    const bool right =
        clf_pages_check(&pool->pages, error, error_size) && clf_pool_batches_check(pool, error, error_size);
    pthread_mutex_unlock(&pool->lock);
    return right;
}

clinfer_status clinfer_kv_seq_create(clinfer_kv_pool *pool, clinfer_kv_seq *seq)
{
    *seq = 0;
    pthread_mutex_lock(&pool->lock);
    return clf_pool_leave(pool, clf_seq_create(&pool->pages, seq));
}

clinfer_status clinfer_kv_seq_free(clinfer_kv_pool *pool, clinfer_kv_seq seq)
{
    pthread_mutex_lock(&pool->lock);
    return clf_pool_leave(pool, clf_seq_free(&pool->pages, seq));
}

static clinfer_status extend(clinfer_kv_pool *pool, uint64_t id, int64_t tokens)
{
    uint32_t slot;
    clinfer_status st = clf_pages_reserve(&pool->pages, 1, 1, &id, &tokens, NULL, &slot);
    if (st)
        return st;
    st = clf_pool_copy(pool, pool->ctx->queue, 1, &slot);
    clf_pages_settle(&pool->pages, 1, &slot, !st);
    return st;
}

clinfer_status clinfer_kv_seq_extend(clinfer_kv_pool *pool, clinfer_kv_seq seq, int64_t tokens)
{
    pthread_mutex_lock(&pool->lock);
    return clf_pool_leave(pool, extend(pool, seq, tokens));
}

clinfer_status clinfer_kv_seq_truncate(clinfer_kv_pool *pool, clinfer_kv_seq seq, int64_t length)
{
    pthread_mutex_lock(&pool->lock);
    return clf_pool_leave(pool, clf_seq_truncate(&pool->pages, seq, length));
}

clinfer_status clinfer_kv_seq_length(clinfer_kv_pool *pool, clinfer_kv_seq seq, int64_t *length)
{
    struct clf_kv_seq *s;
    pthread_mutex_lock(&pool->lock);
    const clinfer_status st = clf_seq_find(&pool->pages, seq, false, &s);
    *length = st ? 0 : s->length;
    return clf_pool_leave(pool, st);
}

clinfer_status clinfer_kv_seq_pages(clinfer_kv_pool *pool, clinfer_kv_seq seq, uint32_t *pages,
                                    int64_t capacity, int64_t *count)
{
    struct clf_kv_seq *s;
    pthread_mutex_lock(&pool->lock);
    const clinfer_status st = clf_seq_find(&pool->pages, seq, false, &s);
    *count = st ? 0 : clf_pages_of(&pool->pages, s->length);
    for (int64_t i = 0; i < *count && i < capacity; i++)
        pages[i] = s->page[i];
    return clf_pool_leave(pool, st);
}
