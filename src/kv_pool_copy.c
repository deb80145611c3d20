// SPDX-License-Identifier: Apache-2.0
// Rows that a sequence gets of its own before it appends to a page that others have too.
#include "kv_pool.h"

// One row of pages of a layer and plane, `tokens` of each, from page to page.
static cl_int copy_section(clinfer_kv_pool *pool, cl_command_queue queue, int section, int64_t layer,
                           int plane, uint32_t from, uint32_t to, int64_t tokens, bool first)
{
    const struct clf_pool_layout *l = &pool->layout;
    const struct clf_pool_section *s = &l->section[section];
    const cl_mem mem = pool->mem[layer / l->layers_each];
    const size_t bytes = (size_t) (s->row / l->p.page_size * tokens) * s->size;
    cl_event done;
    cl_uint n = 1;
    if (first)
        n = clf_pool_waits(pool);
    else
        pool->wait[0] = pool->copied;
    const cl_int err = clEnqueueCopyBuffer(queue, mem, mem, clf_pool_at(l, section, layer, plane, from),
                                           clf_pool_at(l, section, layer, plane, to), bytes, n,
                                           n ? pool->wait : NULL, &done);
    if (err)
        return err;
    if (pool->copied) // `done` comes after it
        clReleaseEvent(pool->copied);
    pool->copied = done;
    return CL_SUCCESS;
}

static cl_int copy_tail(clinfer_kv_pool *pool, cl_command_queue queue, const struct clf_kv_seq *s,
                        bool *first)
{
    const struct clf_pool_layout *l = &pool->layout;
    const uint32_t to = s->page[s->length / l->p.page_size];
    cl_int err = CL_SUCCESS;
    for (int64_t layer = 0; layer < l->p.num_layers; layer++)
        for (int i = 0; i < CLF_POOL_SECTIONS; i++)
            for (int plane = 0; !err && l->section[i].row && plane < l->section[i].planes; plane++) {
                err = copy_section(pool, queue, i, layer, plane, s->original - 1, to,
                                   s->length % l->p.page_size, *first);
                *first = false;
            }
    return err;
}

clinfer_status clf_pool_copy(clinfer_kv_pool *pool, cl_command_queue queue, int64_t n, const uint32_t *slot)
{
    bool first = true;
    cl_int err = CL_SUCCESS;
    for (int64_t i = 0; !err && i < n; i++)
        if (pool->pages.seq[slot[i]].original)
            err = copy_tail(pool, queue, &pool->pages.seq[slot[i]], &first);
    if (!err && !first)
        err = clFlush(queue); // the next batch, on another queue perhaps, waits for it
    return err ? clf_pages_fail(&pool->pages, (clinfer_status) err, "the copy of a page: %s",
                                clinfer_status_str((clinfer_status) err))
               : CLINFER_OK;
}
