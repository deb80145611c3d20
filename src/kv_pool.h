// SPDX-License-Identifier: Apache-2.0
// A pool: its buffers, its books and its batches.
#pragma once
#include "ctx.h"
#include "kv_pages.h"
#include "kv_pool_layout.h"

// A batch, and after its end the buffer and the host memory that it leaves to the next one: those are used
// again only once both events have come.
struct clf_pool_batch {
    struct clf_pool_batch *next;
    uint64_t id;            // 0: ended
    cl_command_queue queue; // retained while open
    struct clinfer_kv_batch_info info;
    uint32_t *slot; // of its sequences
    int64_t slots;  // room
    cl_uint *host;  // offsets, lengths, table: what `mem` gets
    cl_mem mem;
    size_t words;         // room in both
    cl_event upload, end; // end: when the device no longer reads it
};

struct clinfer_kv_pool {
    clinfer_ctx *ctx;
    struct clf_pool_layout layout;
    cl_mem *mem; // layout.num_buffers

    pthread_mutex_t lock; // over all that follows
    struct clf_kv_pages pages;
    struct clf_pool_batch *batches; // open ones and those kept
    cl_event *wait;                 // room for an event of each, and `copied`
    cl_event copied;                // comes after all copies of rows so far
    cl_uint num_batches;
    uint64_t batch_count; // the number of the last one; begins anywhere
};

// Unlocks; on error keeps the text of pool->pages as the thread's.
clinfer_status clf_pool_leave(clinfer_kv_pool *pool, clinfer_status status);
// The same without the lock.
clinfer_status clf_pool_error(clinfer_kv_pool *pool, clinfer_status status, const char *what);

// kv_pool_copy.c
// Copies what those sequences have an `original` for, behind all that clf_pool_waits() names. What has been
// enqueued when it fails is behind `copied`.
clinfer_status clf_pool_copy(clinfer_kv_pool *pool, cl_command_queue queue, int64_t n, const uint32_t *slot);

// kv_pool_batch.c
// The ends of all batches so far, and all copies, into pool->wait, but for what the device has done.
cl_uint clf_pool_waits(clinfer_kv_pool *pool);
// Waits for uploads, then frees.
void clf_pool_batches_free(clinfer_kv_pool *pool);
bool clf_pool_batches_check(const clinfer_kv_pool *pool, char *error, size_t size);
