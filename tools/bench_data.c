// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>

#include "../ref/ref.h"
#include "bench.h"

// A buffer repeats a block of elements. Even, so that pairs stay pairs; no power of two, so that rows differ.
enum { BLOCK = 10006, MAX_ELEMENT = 4 };

static double value_at(enum bench_content content, double amplitude, int i, uint32_t *random)
{
    static const double turns[] = { 1, 0, 0, 1, -1, 0, 0, -1 }; // pairs of cos and sin
    switch (content) {
    case BENCH_TURNS:
        return turns[i % 8];
    case BENCH_SIGNS:
        return i % 3 ? 1 : -1;
    case BENCH_LEVEL:
        return amplitude;
    default:
        *random = *random * 1664525u + 1013904223u;
        return amplitude * ((double) (*random >> 8) / (1 << 23) - 1);
    }
}

static void fill(unsigned char *to, size_t bytes, clinfer_dtype dtype, enum bench_content content,
                 double amplitude)
{
    unsigned char block[BLOCK * MAX_ELEMENT];
    uint32_t random = 1;
    const size_t size = BLOCK * clinfer_dtype_size(dtype);
    for (int i = 0; i < BLOCK; i++)
        ref_store(block, dtype, i, value_at(content, amplitude, i, &random));
    for (size_t at = 0; at < bytes; at += size)
        memcpy(to + at, block, bytes - at < size ? bytes - at : size);
}

// A new buffer, mapped for writing; NULL after an error, or where it has no bytes.
static void *new_buffer(struct bench_maker *m, size_t bytes, cl_mem *mem)
{
    struct bench_call *call = m->call;
    *mem = NULL;
    if (m->status || !bytes)
        return NULL;
    if (call->num_mems == BENCH_MAX_BUFFERS) {
        m->status = CL_OUT_OF_RESOURCES;
        return NULL;
    }
    *mem = clCreateBuffer(clinfer_ctx_cl_context(m->ctx), CL_MEM_READ_WRITE, bytes, NULL, &m->status);
    if (m->status)
        return NULL;
    call->mems[call->num_mems++] = *mem;
    return clEnqueueMapBuffer(clinfer_ctx_queue(m->ctx), *mem, CL_TRUE, CL_MAP_WRITE, 0, bytes, 0, NULL, NULL,
                              &m->status);
}

static void unmap(struct bench_maker *m, cl_mem mem, void *at)
{
    m->status = clEnqueueUnmapMemObject(clinfer_ctx_queue(m->ctx), mem, at, 0, NULL, NULL);
}

static cl_mem new_filled(struct bench_maker *m, size_t count, clinfer_dtype dtype, enum bench_content content,
                         double amplitude)
{
    const size_t bytes = count * clinfer_dtype_size(dtype);
    cl_mem mem;
    unsigned char *to = new_buffer(m, bytes, &mem);
    if (to) {
        fill(to, bytes, dtype, content, amplitude);
        unmap(m, mem, to);
    }
    return mem;
}

clinfer_tensor bench_tensor(struct bench_maker *m, enum bench_content content, double amplitude,
                            clinfer_dtype dtype, int64_t n0, int64_t n1, int64_t n2)
{
    const int rank = n2 ? 3 : n1 ? 2 : 1;
    const int64_t count = n0 * (n1 ? n1 : 1) * (n2 ? n2 : 1);
    return clinfer_tensor_of(new_filled(m, (size_t) count, dtype, content, amplitude), dtype, rank, n0, n1,
                             n2);
}

static int64_t columns_of(const struct bench_batch *b)
{
    return (b->cached + b->tokens + BENCH_PAGE - 1) / BENCH_PAGE;
}

clinfer_kv_cache bench_cache(struct bench_maker *m, const struct bench_case *c, int planes, int heads,
                             int size)
{
    clinfer_kv_cache kv = { 0 };
    const int group = c->types->scale_group;
    kv.dtype = c->types->cache;
    kv.num_pages = c->batch->requests * columns_of(c->batch);
    kv.planes = planes;
    kv.page_size = BENCH_PAGE;
    kv.num_heads = heads;
    kv.head_size = size;
    const size_t rows = (size_t) (kv.num_pages * planes * BENCH_PAGE * heads);
    kv.mem = new_filled(m, rows * (size_t) size, kv.dtype, BENCH_NOISE, 1);
    if (group) {
        kv.scale_group = group;
        kv.scales = new_filled(m, rows * (size_t) op_groups(size, group), CLINFER_F32, BENCH_LEVEL, 1);
    }
    return kv;
}

static clinfer_tensor new_u32(struct bench_maker *m, int64_t n0, int64_t n1, uint32_t **to)
{
    clinfer_tensor t = clinfer_tensor_of(NULL, CLINFER_U32, n1 ? 2 : 1, n0, n1, 0);
    *to = new_buffer(m, (size_t) (n0 * (n1 ? n1 : 1)) * sizeof **to, &t.mem);
    return t;
}

// Pages in no order: page p is at a stride that has no factor in common with their number.
clinfer_kv_batch bench_batch_of(struct bench_maker *m, const struct bench_batch *b)
{
    clinfer_kv_batch batch;
    const uint32_t columns = (uint32_t) columns_of(b), requests = (uint32_t) b->requests;
    const uint32_t pages = requests * columns, prime = 31607;
    uint32_t *to;
    batch.input_row_offsets = new_u32(m, requests + 1, 0, &to);
    for (uint32_t i = 0; to && i <= requests; i++)
        to[i] = i * (uint32_t) b->tokens;
    if (to)
        unmap(m, batch.input_row_offsets.mem, to);
    batch.cache_lengths = new_u32(m, requests, 0, &to);
    for (uint32_t i = 0; to && i < requests; i++)
        to[i] = (uint32_t) b->cached - (b->spread ? i * 37 % BENCH_PAGE : 0);
    if (to)
        unmap(m, batch.cache_lengths.mem, to);
    batch.lookup_table = new_u32(m, requests, columns, &to);
    for (uint32_t i = 0; to && i < pages; i++)
        to[i] = i * prime % pages;
    if (to)
        unmap(m, batch.lookup_table.mem, to);
    return batch;
}
