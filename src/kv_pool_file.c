// SPDX-License-Identifier: Apache-2.0
#include "kv_pool_file.h"
#include <stdio.h>
#include <stdlib.h>

clinfer_status clf_pool_io_fail(struct clf_pool_io *io, cl_int err, const char *what)
{
    snprintf(io->error, sizeof io->error, "%s: %s", what, clinfer_status_str((clinfer_status) err));
    return (clinfer_status) err;
}

static size_t largest(const struct clf_kv_head *h)
{
    size_t most = (size_t) h->known * sizeof(uint32_t);
    for (int i = 0; i < clf_kv_parts(h); i++) {
        const struct clf_kv_rows r = clf_kv_rows_of(h, i);
        const size_t n = (r.bytes + r.scale_bytes) * CLF_KV_FILE_TOKENS;
        most = n > most ? n : most;
    }
    return most ? most : 1;
}

clinfer_status clf_pool_io_open(struct clf_pool_io *io, const struct clf_kv_head *here,
                                const struct clf_kv_head *file)
{
    clinfer_ctx *ctx = io->pool->ctx;
    const size_t a = largest(here), b = largest(file), bytes = a > b ? a : b;
    cl_int err;
    io->piece = malloc(bytes);
    if (!io->piece) {
        snprintf(io->error, sizeof io->error, "no host memory for %zu bytes of rows", bytes);
        return CLINFER_ERR_MEMORY;
    }
    io->queue = clCreateCommandQueue(ctx->cl, ctx->device, 0, &err);
    return err ? clf_pool_io_fail(io, err, "a queue for rows") : CLINFER_OK;
}

void clf_pool_io_close(struct clf_pool_io *io)
{
    clf_kv_file_close(&io->file);
    if (io->queue)
        clReleaseCommandQueue(io->queue);
    free(io->page);
    free(io->piece);
}

clinfer_kv_cache clf_pool_io_view(struct clf_pool_io *io, int64_t layer, int part)
{
    return part ? clinfer_kv_pool_layer_v(io->pool, layer) : clinfer_kv_pool_layer(io->pool, layer);
}

struct rows {
    cl_mem mem;
    size_t at, page_bytes, bytes; // of page 0; to the next; of a token
    unsigned char *data;
};

// Without waiting: the pages that hold them one by one.
static cl_int enqueue(struct clf_pool_io *io, const struct rows *r, int64_t first, int64_t tokens, bool write)
{
    const int64_t S = io->pool->layout.p.page_size;
    cl_int err = CL_SUCCESS;
    for (int64_t i = first, n; !err && i < first + tokens; i += n) {
        n = S - i % S < first + tokens - i ? S - i % S : first + tokens - i;
        const size_t at = r->at + io->page[i / S] * r->page_bytes + (size_t) (i % S) * r->bytes;
        unsigned char *data = r->data + (size_t) (i - first) * r->bytes;
        err = write ? clEnqueueWriteBuffer(io->queue, r->mem, CL_FALSE, at, (size_t) n * r->bytes, data, 0,
                                           NULL, NULL)
                    : clEnqueueReadBuffer(io->queue, r->mem, CL_FALSE, at, (size_t) n * r->bytes, data, 0,
                                          NULL, NULL);
    }
    return err;
}

clinfer_status clf_pool_io_rows(struct clf_pool_io *io, const struct clf_kv_rows *rows, int64_t layer,
                                int part, int64_t first, int64_t tokens, unsigned char *data, bool write)
{
    const clinfer_kv_cache kv = clf_pool_io_view(io, layer, part);
    const struct rows blocks = { kv.mem, kv.offset, (size_t) kv.page_stride * clinfer_dtype_size(kv.dtype),
                                 rows->bytes, data };
    const struct rows scales = { kv.scales, kv.scales_offset,
                                 (size_t) kv.scales_page_stride * sizeof(cl_float), rows->scale_bytes,
                                 data + rows->bytes * (size_t) tokens };
    cl_int err = enqueue(io, &blocks, first, tokens, write);
    if (!err && rows->scale_bytes)
        err = enqueue(io, &scales, first, tokens, write);
    const cl_int finish = clFinish(io->queue); // `data` is the caller's again, after an error too
    if (finish)
        clFinish(io->queue);
    err = err ? err : finish;
    return err ? clf_pool_io_fail(io, err, write ? "rows to the device" : "rows from the device")
               : CLINFER_OK;
}
