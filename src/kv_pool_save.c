// SPDX-License-Identifier: Apache-2.0
#include "kv_pool_file.h"
#include <clinfer/kv_prefix.h>
#include <clinfer/kv_seq_file.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// What the rows of all that has been committed wait for, taken along so that the pool need not stay locked.
struct pending {
    cl_event *event;
    cl_uint n;
};

static clinfer_status take_pending(clinfer_kv_pool *pool, struct pending *p)
{
    const cl_uint n = clf_pool_waits(pool);
    cl_int err = CL_SUCCESS;
    p->event = malloc((n ? n : 1) * sizeof *p->event);
    if (!p->event)
        return clf_pages_fail(&pool->pages, CLINFER_ERR_MEMORY, "no host memory for %u events", (unsigned) n);
    for (; !err && p->n < n; p->n += !err) {
        p->event[p->n] = pool->wait[p->n];
        err = clRetainEvent(p->event[p->n]);
    }
    return err ? clf_pages_fail(&pool->pages, (clinfer_status) err, "the events of batches: %s",
                                clinfer_status_str((clinfer_status) err))
               : CLINFER_OK;
}

static void drop_pending(struct pending *p)
{
    for (cl_uint i = 0; i < p->n; i++)
        clReleaseEvent(p->event[i]);
    free(p->event);
}

// A fork, which holds the pages while the sequence itself goes on.
static clinfer_status begin(struct clf_pool_io *io, clinfer_kv_seq seq, clinfer_kv_seq *fork,
                            struct pending *pending)
{
    clinfer_kv_pool *pool = io->pool;
    struct clf_kv_seq *s;
    pthread_mutex_lock(&pool->lock);
    clinfer_status st = clf_seq_fork(&pool->pages, seq, fork);
    if (!st)
        st = clf_seq_find(&pool->pages, *fork, false, &s);
    if (!st) {
        io->file.head.length = s->length;
        io->file.head.known = s->known;
        io->file.head.seq_salt = s->salt;
        st = take_pending(pool, pending);
    }
    memcpy(io->error, pool->pages.error, sizeof io->error);
    pthread_mutex_unlock(&pool->lock);
    return st;
}

static clinfer_status put(struct clf_pool_io *io, size_t size)
{
    return clf_kv_file_put(&io->file, io->piece, size, io->error) ? CLINFER_OK : CLINFER_ERR_FILE;
}

static clinfer_status put_rows(struct clf_pool_io *io)
{
    const struct clf_kv_head *h = &io->file.head;
    clinfer_status st = CLINFER_OK;
    for (int64_t first = 0; first < h->length; first += CLF_KV_FILE_TOKENS) {
        const int64_t rest = h->length - first, n = rest < CLF_KV_FILE_TOKENS ? rest : CLF_KV_FILE_TOKENS;
        for (int64_t layer = 0; layer < h->num_layers; layer++)
            for (int part = 0; !st && part < clf_kv_parts(h); part++) {
                const struct clf_kv_rows r = clf_kv_rows_of(h, part);
                st = clf_pool_io_rows(io, &r, layer, part, first, n, io->piece, false);
                if (!st)
                    st = put(io, (r.bytes + r.scale_bytes) * (size_t) n);
            }
    }
    return st;
}

static clinfer_status save(struct clf_pool_io *io, clinfer_kv_seq fork, const struct pending *pending,
                           const char *path)
{
    const struct clf_kv_head head = io->file.head;
    int64_t pages, known;
    clinfer_status st = clf_pool_io_open(io, &head, &head);
    if (st)
        return st;
    const cl_int err = pending->n ? clWaitForEvents(pending->n, pending->event) : CL_SUCCESS;
    if (err)
        return clf_pool_io_fail(io, err, "the batches before");
    io->page = malloc((size_t) (head.length ? head.length : 1) * sizeof *io->page);
    if (!io->page) {
        snprintf(io->error, sizeof io->error, "no host memory");
        return CLINFER_ERR_MEMORY;
    }
    clinfer_kv_seq_pages(io->pool, fork, io->page, head.length, &pages);
    clinfer_kv_seq_tokens(io->pool, fork, (uint32_t *) (void *) io->piece, head.known, &known);
    if (!clf_kv_file_create(&io->file, path, &head, io->error))
        return CLINFER_ERR_FILE;
    st = put(io, (size_t) head.known * sizeof(uint32_t));
    if (!st)
        st = put_rows(io);
    if (!st && !clf_kv_file_finish(&io->file, io->error))
        st = CLINFER_ERR_FILE;
    return st;
}

clinfer_status clinfer_kv_seq_save(clinfer_kv_pool *pool, clinfer_kv_seq seq, const char *path)
{
    struct clf_pool_io io = {
        .pool = pool, .file = { .head = clf_kv_head_of(&pool->layout.p), .in = -1, .out = { .fd = -1 } }
    };
    struct pending pending = { NULL, 0 };
    clinfer_kv_seq fork = 0;
    if (!path)
        return clf_pool_error(pool, CLINFER_ERR_ARGUMENT, "no path");
    clinfer_status st = begin(&io, seq, &fork, &pending);
    if (!st)
        st = save(&io, fork, &pending, path);
    clf_pool_io_close(&io);
    drop_pending(&pending);
    if (fork)
        clinfer_kv_seq_free(pool, fork);
    return st ? clf_pool_error(pool, st, io.error) : CLINFER_OK;
}
