// SPDX-License-Identifier: Apache-2.0
// Where a pool's blocks and scales lie in its buffers. Pure.
#pragma once
#include "op.h"
#include <clinfer/kv_pool.h>

// Sections stand one behind the other in each buffer: the blocks (K's, or K's and V's where they are alike),
// V's where they differ, then the scales of both. Each is [P, planes, layers of the buffer, row].
enum { CLF_POOL_BLOCKS, CLF_POOL_V_BLOCKS, CLF_POOL_SCALES, CLF_POOL_V_SCALES, CLF_POOL_SECTIONS };

struct clf_pool_section {
    int64_t row; // elements of a page of one plane and layer; 0: no such section
    size_t size; // of an element
    int planes;
    size_t offset; // bytes
};

struct clf_pool_layout {
    struct clinfer_kv_pool_params p; // defaults filled in
    struct clf_pool_section section[CLF_POOL_SECTIONS];
    int64_t num_buffers, layers_each; // layers in a buffer
    size_t buffer_bytes;
    uint64_t page_bytes; // of all layers
};

// max_alloc: the device's largest allocation, 0: unknown. On error the text is in `error`, of CLF_ERROR_SIZE.
clinfer_status clf_pool_layout(struct clf_pool_layout *l, const struct clinfer_kv_pool_params *params,
                               uint64_t max_alloc, char *error);

// The view of a layer, or of its V plane alone, without the buffer, which is number *buffer. Zeroed where
// there is none.
clinfer_kv_cache clf_pool_view(const struct clf_pool_layout *l, int64_t layer, bool v, int64_t *buffer);

// Bytes from the start of its buffer to a page of a section, in one layer and plane.
size_t clf_pool_at(const struct clf_pool_layout *l, int section, int64_t layer, int plane, int64_t page);
