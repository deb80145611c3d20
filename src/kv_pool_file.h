// SPDX-License-Identifier: Apache-2.0
// Rows of a sequence between its pages and the host, for kv_pool_save.c and kv_pool_load.c.
#pragma once
#include "kv_file.h"
#include "kv_pool.h"

struct clf_pool_io {
    clinfer_kv_pool *pool;
    cl_command_queue queue; // in order, its own
    uint32_t *page;         // of the sequence
    struct clf_kv_file file;
    unsigned char *piece; // room for the largest
    char error[CLF_ERROR_SIZE];
};

// A queue of its own, which nothing of the program's is before, and room for pieces of both heads.
clinfer_status clf_pool_io_open(struct clf_pool_io *io, const struct clf_kv_head *here,
                                const struct clf_kv_head *file);
void clf_pool_io_close(struct clf_pool_io *io);
clinfer_status clf_pool_io_fail(struct clf_pool_io *io, cl_int err, const char *what);

// Rows of `tokens` tokens from `first` on, of a layer's K or V, into data or from there: blocks.
clinfer_status clf_pool_io_rows(struct clf_pool_io *io, const struct clf_kv_rows *rows, int64_t layer,
                                int part, int64_t first, int64_t tokens, unsigned char *data, bool write);
// The view that those rows are in.
clinfer_kv_cache clf_pool_io_view(struct clf_pool_io *io, int64_t layer, int part);
