// SPDX-License-Identifier: Apache-2.0
#include "pool_rig.h"

#include <stdlib.h>
#include <string.h>

struct clinfer_kv_pool_params pool_params(const char *op, int64_t pages)
{
    return (struct clinfer_kv_pool_params){ .mla = !strncmp(op, "mla", 3),
                                            .num_layers = POOL_LAYERS,
                                            .num_heads = 1,
                                            .head_size = POOL_ROW,
                                            .page_size = POOL_PAGE,
                                            .dtype = CLINFER_F32,
                                            .num_pages = pages };
}

static size_t size_of(cl_mem mem)
{
    size_t size = 0;
    return clGetMemObjectInfo(mem, CL_MEM_SIZE, sizeof size, &size, NULL) ? 0 : size;
}

cl_int pool_poison(clinfer_kv_pool *pool, cl_command_queue queue, int byte)
{
    struct clinfer_kv_pool_info info;
    cl_int err = CL_SUCCESS;
    clinfer_kv_pool_info(pool, &info);
    for (int64_t i = 0; !err && i < info.num_buffers; i++) {
        const cl_mem mem = clinfer_kv_pool_layer(pool, i).mem;
        const size_t size = size_of(mem);
        void *bytes = malloc(size);
        if (!bytes)
            abort();
        memset(bytes, byte, size);
        err = clEnqueueWriteBuffer(queue, mem, CL_TRUE, 0, size, bytes, 0, NULL, NULL);
        free(bytes);
    }
    return err ? err : clFinish(queue);
}

clinfer_status pool_rig_make(struct pool_rig *p, clinfer_kv_pool *pool, const char *op,
                             const struct rig_batch *batch)
{
    clinfer_status st = CLINFER_OK;
    int64_t most = 0;
    memset(p, 0, sizeof *p);
    rig_make(&p->r, op, batch);
    p->pool = pool;
    for (int b = 0; !st && b < RIG_REQUESTS; b++) {
        st = clinfer_kv_seq_create(pool, &p->seq[b]);
        most = p->r.batch.cached[b] > most ? p->r.batch.cached[b] : most;
    }
    for (int64_t i = 0; i < most; i++)
        for (int b = 0; !st && b < RIG_REQUESTS; b++)
            if (i < p->r.batch.cached[b])
                st = clinfer_kv_seq_extend(pool, p->seq[b], 1);
    return st;
}

clinfer_status pool_rig_open(struct pool_rig *p, cl_command_queue queue, int64_t layer)
{
    char *params = (char *) &p->r.params;
    clinfer_status st =
        clinfer_kv_batch_create(p->pool,
                                clinfer_kv_batch_params(.queue = queue, .num_seqs = RIG_REQUESTS,
                                                        .seqs = p->seq, .new_tokens = p->r.batch.fresh),
                                &p->batch);
    if (!st)
        st = clinfer_kv_batch_info(p->pool, p->batch, &p->info);
    *(clinfer_kv_cache *) (void *) (params + p->r.op->kv) =
        p->v ? clinfer_kv_pool_layer_v(p->pool, layer) : clinfer_kv_pool_layer(p->pool, layer);
    *(clinfer_kv_batch *) (void *) (params + p->r.op->batch) = p->info.tensors;
    *(int64_t *) (void *) (params + p->r.op->layer) = 0;
    memcpy(params, &queue, sizeof queue); // the first field of every op's params
    return st;
}

enum { COLUMNS = 8 };

// Pages of the rows: as the open batch's table on the device has them or, without one, the sequences.
static cl_int read_table(struct pool_rig *p, cl_command_queue queue, uint32_t table[RIG_REQUESTS][COLUMNS])
{
    const clinfer_tensor *t = &p->info.tensors.lookup_table;
    cl_int err = CL_SUCCESS;
    int64_t count;
    for (int b = 0; !err && b < RIG_REQUESTS; b++)
        if (!p->batch)
            err = (cl_int) clinfer_kv_seq_pages(p->pool, p->seq[b], table[b], COLUMNS, &count);
        else if (t->shape[1] > COLUMNS)
            err = CL_INVALID_VALUE;
        else
            err = clEnqueueReadBuffer(queue, t->mem, CL_TRUE, t->offset + (size_t) (b * t->shape[1]) * 4,
                                      (size_t) t->shape[1] * 4, table[b], 1, &p->info.ready, NULL);
    return err;
}

// Calls `visit` with the place of each row.
static cl_int each_row(struct pool_rig *p, cl_command_queue queue,
                       cl_int (*visit)(struct pool_rig *p, cl_command_queue queue, cl_mem mem, size_t at,
                                       int64_t request, int64_t position, void *priv),
                       void *priv)
{
    const clinfer_kv_cache *kv =
        (const clinfer_kv_cache *) (const void *) ((char *) &p->r.params + p->r.op->kv);
    uint32_t table[RIG_REQUESTS][COLUMNS];
    cl_int err = read_table(p, queue, table);
    for (int64_t b = 0; b < RIG_REQUESTS; b++)
        for (int64_t i = 0; !err && i < p->r.batch.cached[b] + p->r.batch.fresh[b]; i++) {
            const uint32_t page = table[b][i / POOL_PAGE];
            if (page >= kv->num_pages)
                return CL_INVALID_VALUE;
            err = visit(p, queue, kv->mem,
                        kv->offset + (size_t) (page * kv->page_stride + i % POOL_PAGE * POOL_ROW) * 4, b, i,
                        priv);
        }
    return err;
}

static cl_int put(struct pool_rig *p, cl_command_queue queue, cl_mem mem, size_t at, int64_t request,
                  int64_t position, void *priv)
{
    (void) priv;
    unsigned char *row = rig_row(&p->r, rig_buffer(&p->r, "kv_blocks")->initial, request, position);
    if (p->new_rows && position < p->r.batch.cached[request])
        return CL_SUCCESS;
    return clEnqueueWriteBuffer(queue, mem, CL_TRUE, at, RIG_ROW_BYTES, row, 0, NULL, NULL);
}

static cl_int get(struct pool_rig *p, cl_command_queue queue, cl_mem mem, size_t at, int64_t request,
                  int64_t position, void *priv)
{
    (void) priv;
    unsigned char *row = rig_row(&p->r, rig_buffer(&p->r, "kv_blocks")->got, request, position);
    return clEnqueueReadBuffer(queue, mem, CL_TRUE, at, RIG_ROW_BYTES, row, 0, NULL, NULL);
}

cl_int pool_rig_put_rows(struct pool_rig *p, cl_command_queue queue)
{
    const cl_int err = each_row(p, queue, put, NULL);
    return err ? err : clFinish(queue); // a blocking write returns before other queues see it
}

cl_int pool_rig_get_rows(struct pool_rig *p, cl_command_queue queue)
{
    return each_row(p, queue, get, NULL);
}

struct image {
    unsigned char *bytes;
    cl_mem mem;
    int byte;
};

static cl_int blank(struct pool_rig *p, cl_command_queue queue, cl_mem mem, size_t at, int64_t request,
                    int64_t position, void *priv)
{
    (void) p, (void) queue, (void) request, (void) position;
    struct image *image = priv;
    if (mem == image->mem)
        memset(image->bytes + at, image->byte, RIG_ROW_BYTES);
    return CL_SUCCESS;
}

size_t pool_rig_strays(struct pool_rig *p, cl_command_queue queue, int byte)
{
    struct clinfer_kv_pool_info info;
    size_t strays = 0;
    clinfer_kv_pool_info(p->pool, &info);
    for (int64_t i = 0; i < info.num_buffers; i++) {
        struct image image = { NULL, clinfer_kv_pool_layer(p->pool, i).mem, byte };
        const size_t size = size_of(image.mem);
        image.bytes = malloc(size);
        if (!image.bytes ||
            clEnqueueReadBuffer(queue, image.mem, CL_TRUE, 0, size, image.bytes, 0, NULL, NULL) ||
            each_row(p, queue, blank, &image))
            abort();
        for (size_t at = 0; at < size; at++)
            strays += image.bytes[at] != byte;
        free(image.bytes);
    }
    return strays;
}

void pool_rig_free(struct pool_rig *p)
{
    for (int b = 0; b < RIG_REQUESTS; b++)
        clinfer_kv_seq_free(p->pool, p->seq[b]);
    rig_free(&p->r);
}
