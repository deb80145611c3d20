// SPDX-License-Identifier: Apache-2.0
// Batches of a pool: their tensors on the device, and when that memory may be used again.
#include "kv_pool.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define FAIL(status, ...) clf_pages_fail(&pool->pages, (clinfer_status) (status), __VA_ARGS__)

enum { LEAST_WORDS = 1024 };

// Whether the command of an event has ended, *failed: with an error; forgets it then.
static bool ended(cl_event *event, bool *failed)
{
    cl_int state = CL_QUEUED;
    *failed = false;
    if (!*event)
        return true;
    if (clGetEventInfo(*event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL) ||
        state > CL_COMPLETE)
        return false;
    clReleaseEvent(*event);
    *event = NULL;
    *failed = state < 0;
    return true;
}

// Whether neither the program nor the device uses it. An end that failed may have come before the work that
// it stands for, which keeps the old buffer alive.
static bool idle(struct clf_pool_batch *b)
{
    bool failed;
    const bool unread = ended(&b->end, &failed);
    if (failed) {
        clReleaseMemObject(b->mem);
        b->mem = NULL;
        b->words = 0;
    }
    return unread && !b->id && ended(&b->upload, &failed);
}

static struct clf_pool_batch *new_batch(clinfer_kv_pool *pool)
{
    cl_event *wait = realloc(pool->wait, (pool->num_batches + 2) * sizeof *wait);
    if (wait)
        pool->wait = wait;
    struct clf_pool_batch *b = wait ? calloc(1, sizeof *b) : NULL;
    if (b) {
        b->next = pool->batches;
        pool->batches = b;
        pool->num_batches++;
    }
    return b;
}

// With room for num_seqs; NULL: no host memory.
static struct clf_pool_batch *idle_batch(clinfer_kv_pool *pool, int64_t num_seqs)
{
    struct clf_pool_batch *b = pool->batches;
    while (b && !idle(b))
        b = b->next;
    if (!b)
        b = new_batch(pool);
    if (b && b->slots < num_seqs) {
        uint32_t *slot = realloc(b->slot, (size_t) num_seqs * sizeof *slot);
        if (!slot)
            return NULL;
        b->slot = slot;
        b->slots = num_seqs;
    }
    return b;
}

static clinfer_status make_room(clinfer_kv_pool *pool, struct clf_pool_batch *b, size_t want)
{
    size_t words = LEAST_WORDS, bytes;
    cl_int err;
    if (want <= b->words)
        return CLINFER_OK;
    while (words < want)
        words *= 2;
    bytes = words * sizeof *b->host;
    cl_uint *host = malloc(bytes);
    if (!host)
        return FAIL(CLINFER_ERR_MEMORY, "no host memory for a batch of %zu bytes", bytes);
    cl_mem mem = clCreateBuffer(pool->ctx->cl, CL_MEM_READ_ONLY, bytes, NULL, &err);
    if (err) {
        free(host);
        return FAIL(err, "a batch's buffer of %zu bytes: %s", bytes,
                    clinfer_status_str((clinfer_status) err));
    }
    if (b->mem)
        clReleaseMemObject(b->mem);
    free(b->host);
    b->host = host;
    b->mem = mem;
    b->words = words;
    return CLINFER_OK;
}

static clinfer_tensor part(cl_mem mem, size_t first, int rank, int64_t n0, int64_t n1)
{
    clinfer_tensor t = clinfer_tensor_of(mem, CLINFER_U32, rank, n0, n1, 0);
    t.offset = first * sizeof(cl_uint);
    return t;
}

// The tensors on the host, from the books of its sequences, whose pages are reserved. *words: how many.
static clinfer_status fill(clinfer_kv_pool *pool, struct clf_pool_batch *b, int64_t num_seqs, size_t *words)
{
    const struct clf_kv_seq *seq = pool->pages.seq;
    const size_t n = (size_t) num_seqs, lengths = n + 1, table = lengths + n;
    size_t columns = 1;
    b->info = (struct clinfer_kv_batch_info){ .num_seqs = num_seqs };
    for (size_t i = 0; i < n; i++) {
        const struct clf_kv_seq *s = &seq[b->slot[i]];
        columns = s->num_pages > columns ? s->num_pages : columns;
        if (s->length + s->fresh > b->info.max_context)
            b->info.max_context = s->length + s->fresh;
    }
    if (__builtin_mul_overflow(n, columns, words) || __builtin_add_overflow(*words, table, words) ||
        *words > SIZE_MAX / (4 * sizeof(cl_uint)))
        return FAIL(CLINFER_ERR_MEMORY, "a table of %zu rows and %zu columns", n, columns);
    const clinfer_status st = make_room(pool, b, *words);
    if (st)
        return st;
    b->host[0] = 0;
    for (size_t i = 0; i < n; i++) {
        const struct clf_kv_seq *s = &seq[b->slot[i]];
        b->host[i + 1] = b->host[i] + (cl_uint) s->fresh;
        b->host[lengths + i] = (cl_uint) s->length;
        for (size_t c = 0; c < columns; c++)
            b->host[table + i * columns + c] = c < s->num_pages ? s->page[c] : UINT32_MAX;
    }
    b->info.total_tokens = b->host[n];
    b->info.tensors.input_row_offsets = part(b->mem, 0, 1, num_seqs + 1, 0);
    b->info.tensors.cache_lengths = part(b->mem, lengths, 1, num_seqs, 0);
    b->info.tensors.lookup_table = part(b->mem, table, 2, num_seqs, (int64_t) columns);
    return CLINFER_OK;
}

cl_uint clf_pool_waits(clinfer_kv_pool *pool)
{
    cl_uint n = 0;
    bool failed;
    for (struct clf_pool_batch *i = pool->batches; i; i = i->next)
        if (!idle(i) && i->end)
            pool->wait[n++] = i->end;
    if (!ended(&pool->copied, &failed))
        pool->wait[n++] = pool->copied;
    return n;
}

// Behind the ends of all batches before it.
static clinfer_status upload(clinfer_kv_pool *pool, struct clf_pool_batch *b, cl_command_queue queue,
                             size_t words)
{
    const cl_uint n = clf_pool_waits(pool);
    cl_int err = clRetainCommandQueue(queue);
    if (err)
        return FAIL(err, "a batch's queue: %s", clinfer_status_str((clinfer_status) err));
    err = clEnqueueWriteBuffer(queue, b->mem, CL_FALSE, 0, words * sizeof *b->host, b->host, n,
                               n ? pool->wait : NULL, &b->upload);
    if (!err)
        err = clFlush(queue); // another queue may wait for the event
    if (err) {
        clReleaseCommandQueue(queue);
        return FAIL(err, "a batch's upload: %s", clinfer_status_str((clinfer_status) err));
    }
    b->queue = queue;
    b->info.ready = b->upload;
    return CLINFER_OK;
}

static clinfer_status open_batch(clinfer_kv_pool *pool, const struct clinfer_kv_batch_params *p, uint64_t *id)
{
    size_t words = 0;
    if (!p || p->num_seqs < 0 || p->num_seqs >= INT32_MAX || (p->num_seqs && (!p->seqs || !p->new_tokens)))
        return FAIL(CLINFER_ERR_ARGUMENT, "a batch of %" PRId64 " sequences, want 0 to %d and their arrays",
                    p ? p->num_seqs : 0, INT32_MAX - 1);
    struct clf_pool_batch *b = idle_batch(pool, p->num_seqs);
    if (!b)
        return FAIL(CLINFER_ERR_MEMORY, "no host memory for a batch of %" PRId64 " sequences", p->num_seqs);
    const uint64_t next =
        (uint64_t) pool->pages.tag << CLF_ID_TAG | UINT64_C(1) << CLF_ID_KIND | (pool->batch_count + 1);
    clinfer_status st =
        clf_pages_reserve(&pool->pages, next, p->num_seqs, p->seqs, p->new_tokens, p->tokens, b->slot);
    if (st)
        return st;
    const cl_command_queue queue = p->queue ? p->queue : pool->ctx->queue;
    st = fill(pool, b, p->num_seqs, &words);
    if (!st)
        st = clf_pool_copy(pool, queue, p->num_seqs, b->slot);
    if (!st)
        st = upload(pool, b, queue, words);
    if (st) {
        clf_pages_settle(&pool->pages, p->num_seqs, b->slot, false);
        return st;
    }
    pool->batch_count++;
    *id = b->id = next;
    return CLINFER_OK;
}

clinfer_status clinfer_kv_batch_create(clinfer_kv_pool *pool, const struct clinfer_kv_batch_params *params,
                                       clinfer_kv_pool_batch *batch)
{
    *batch = 0;
    pthread_mutex_lock(&pool->lock);
    return clf_pool_leave(pool, open_batch(pool, params, batch));
}

static clinfer_status find(clinfer_kv_pool *pool, uint64_t id, struct clf_pool_batch **batch)
{
    struct clf_pool_batch *b = pool->batches;
    if (id >> CLF_ID_TAG != pool->pages.tag || !(id >> CLF_ID_KIND & 1))
        return FAIL(CLINFER_ERR_ARGUMENT, "batch 0x%" PRIx64 " is none of this pool's", id);
    while (b && b->id != id)
        b = b->next;
    *batch = b;
    return b ? CLINFER_OK : FAIL(CLINFER_ERR_ARGUMENT, "batch 0x%" PRIx64 " is not there, or has ended", id);
}

clinfer_status clinfer_kv_batch_info(clinfer_kv_pool *pool, clinfer_kv_pool_batch batch,
                                     struct clinfer_kv_batch_info *info)
{
    struct clf_pool_batch *b;
    pthread_mutex_lock(&pool->lock);
    const clinfer_status st = find(pool, batch, &b);
    *info = st ? (struct clinfer_kv_batch_info){ 0 } : b->info;
    return clf_pool_leave(pool, st);
}

static clinfer_status end_batch(clinfer_kv_pool *pool, uint64_t id, cl_uint num_events,
                                const cl_event *events, bool commit)
{
    struct clf_pool_batch *b;
    cl_event end = NULL;
    clinfer_status st = find(pool, id, &b);
    if (st)
        return st;
    cl_int err = clEnqueueMarkerWithWaitList(b->queue, num_events, events, &end);
    if (!err)
        err = clFlush(b->queue); // the next batch, on another queue perhaps, waits for it
    if (err) {
        if (end)
            clReleaseEvent(end);
        return FAIL(err, "the end of batch 0x%" PRIx64 ": %s", id, clinfer_status_str((clinfer_status) err));
    }
    clf_pages_settle(&pool->pages, b->info.num_seqs, b->slot, commit);
    clReleaseCommandQueue(b->queue);
    b->end = end;
    b->queue = NULL;
    b->id = 0;
    return CLINFER_OK;
}

clinfer_status clinfer_kv_batch_commit(clinfer_kv_pool *pool, clinfer_kv_pool_batch batch,
                                       cl_uint num_events_in_wait_list, const cl_event *event_wait_list)
{
    pthread_mutex_lock(&pool->lock);
    return clf_pool_leave(pool, end_batch(pool, batch, num_events_in_wait_list, event_wait_list, true));
}

clinfer_status clinfer_kv_batch_drop(clinfer_kv_pool *pool, clinfer_kv_pool_batch batch,
                                     cl_uint num_events_in_wait_list, const cl_event *event_wait_list)
{
    pthread_mutex_lock(&pool->lock);
    return clf_pool_leave(pool, end_batch(pool, batch, num_events_in_wait_list, event_wait_list, false));
}

void clf_pool_batches_free(clinfer_kv_pool *pool)
{
    for (struct clf_pool_batch *b = pool->batches, *next; b; b = next) {
        next = b->next;
        if (b->upload) { // the driver may still read `host`
            clWaitForEvents(1, &b->upload);
            clReleaseEvent(b->upload);
        }
        if (b->end)
            clReleaseEvent(b->end);
        if (b->mem)
            clReleaseMemObject(b->mem);
        if (b->queue)
            clReleaseCommandQueue(b->queue);
        free(b->host);
        free(b->slot);
        free(b);
    }
    pool->batches = NULL;
}

bool clf_pool_batches_check(const clinfer_kv_pool *pool, char *error, size_t size)
{
    const struct clf_kv_pages *p = &pool->pages;
    int64_t listed = 0, marked = 0;
    for (uint32_t i = 0; i < p->num_slots; i++)
        marked += p->seq[i].batch != 0;
    for (const struct clf_pool_batch *b = pool->batches; b; b = b->next)
        for (int64_t i = 0; b->id && i < b->info.num_seqs; i++, listed++)
            if (p->seq[b->slot[i]].batch != b->id) {
                if (error && size)
                    snprintf(error, size, "row %" PRId64 " of batch 0x%" PRIx64 " is in batch 0x%" PRIx64, i,
                             b->id, p->seq[b->slot[i]].batch);
                return false;
            }
    if (listed != marked && error && size)
        snprintf(error, size, "%" PRId64 " sequences are in batches of %" PRId64, marked, listed);
    return listed == marked;
}
