// SPDX-License-Identifier: Apache-2.0
// The rig's call over the pages of a pool.
#ifndef CLINFER_TESTS_POOL_RIG_H_
#define CLINFER_TESTS_POOL_RIG_H_

#include "rig.h"

enum { POOL_LAYERS = 2, POOL_ROW = 48, POOL_PAGE = 4 };

struct pool_rig {
    struct rig r; // its params have the pool's view and tensors
    clinfer_kv_pool *pool;
    clinfer_kv_seq seq[RIG_REQUESTS];
    clinfer_kv_pool_batch batch; // 0: rows are found by the sequences' pages, not by a table
    struct clinfer_kv_batch_info info;
    bool v;        // V's view instead of K's
    bool new_rows; // pool_rig_put_rows writes those of new tokens alone
};

// Of the rig's shape for an op.
struct clinfer_kv_pool_params pool_params(const char *op, int64_t pages);
// Poison in every byte of the pool, blocking.
cl_int pool_poison(clinfer_kv_pool *pool, cl_command_queue queue, int byte);

// Sequences of what the rig's requests have cached, their pages interleaved. A status of the library's.
clinfer_status pool_rig_make(struct pool_rig *p, clinfer_kv_pool *pool, const char *op,
                             const struct rig_batch *batch);
// A batch of the rig's new tokens, opened on `queue`, and view `layer` into the params.
clinfer_status pool_rig_open(struct pool_rig *p, cl_command_queue queue, int64_t layer);
// The rig's rows into their pages and back. Block.
cl_int pool_rig_put_rows(struct pool_rig *p, cl_command_queue queue);
cl_int pool_rig_get_rows(struct pool_rig *p, cl_command_queue queue);
// Bytes of the pool that are not `byte`, but for the rows of the batch.
size_t pool_rig_strays(struct pool_rig *p, cl_command_queue queue, int byte);
void pool_rig_free(struct pool_rig *p); // the sequences too

#endif
