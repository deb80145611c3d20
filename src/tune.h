// SPDX-License-Identifier: Apache-2.0
// Tunable values by device class and problem class: look-ups in tables, never a measurement. Results do not
// depend on them but for rounding.
#pragma once
#include "op.h"
#include <clinfer/mla_prefill_branch.h>

// The work-group of the group set: its items, a power of two, and the lanes of an item's vectors.
struct clf_group_shape {
    int items, lanes;
};
struct clf_group_shape clf_tune_group(const struct clf_caps *caps);

// Items of a work-group that has a row of n elements to itself.
int clf_tune_row_items(const struct clf_caps *caps, int64_t n);

struct clf_matmul_tiles {
    int token_tile, row_tile;     // outputs of one register tile
    int block_rows, block_tokens; // outputs of one work-item, at the most; of one work-group in the group set
    int step;                     // row set: columns decoded at a time; 0: where they are used
    bool x_is_f32;                // x is read so often that it is to be decoded before
    uint64_t local_bytes;         // of a work-group
};
struct clf_matmul_tiles clf_tune_matmul(const struct clf_caps *caps, int64_t tokens);
// Rows of one work-item, so that every compute unit has several of `blocks` times as many; of one work-group
// in the group set.
int64_t clf_tune_rows(const struct clf_caps *caps, const struct clf_matmul_tiles *tile, int64_t rows,
                      int64_t blocks);

// Work-items a compute unit: several, so that one that is slow holds up nobody.
enum { CLF_ITEMS_A_UNIT = 4 };

// Whether CLBlast takes a projection of that many tokens, as far as sizes let it.
bool clf_tune_clblast(const struct clf_caps *caps, int64_t tokens);

struct clf_attention_tiles {
    int lanes;                // of a vector
    int head_block;           // heads of one work-item, of one work-group in the group set
    int tile;                 // keys decoded at a time
    int qk_heads, qk_keys;    // row set: register tile of the scores: vectors of heads, keys
    int pv_heads, pv_vectors; // row set: register tile of the values: heads, vectors of dims
    clinfer_dtype tile_type;  // group set: of the keys in local memory
    uint64_t local_bytes;     // of a work-group; the smallest tiles may want more than the device has
};
struct clf_attention_tiles clf_tune_attention(const struct clf_caps *caps, const clinfer_kv_cache *kv,
                                              int64_t heads, int64_t latent);

struct clf_paged_tiles {
    int lanes;              // of a vector
    int head_block, tokens; // rows of a unit: query heads of one KV head, and the most tokens, a power of two
    int tile;               // keys at a time: by head sizes and device alone, for results depend on it
    int row_tile, value_tile; // row set: register tiles: rows, and vectors of a value's dims
    clinfer_dtype tile_type;  // group set: of the keys in local memory
    uint64_t local_bytes;     // of a work-group
};
struct clf_paged_shape {
    int64_t tokens, requests, group, key_size, value_size; // group: query heads of a KV head
    bool as_bf16;                                          // bf16 has every value of K and V
};
struct clf_paged_tiles clf_tune_paged(const struct clf_caps *caps, const struct clf_paged_shape *shape);
// How a call is cut into work-items: results do not depend on the first two.
struct clf_paged_grid {
    int64_t unit_heads, run; // KV heads of an item and its tokens at most, a power of two
    int64_t splits;          // of a request's keys
};
// `blocks`: of a KV head's query heads; num_splits 0: chosen here.
struct clf_paged_grid clf_tune_paged_grid(const struct clf_caps *caps, const struct clf_paged_tiles *tile,
                                          int64_t tokens, int64_t requests, int64_t kv_heads, int64_t blocks,
                                          int64_t num_splits, int64_t max_keys);
// Keys of a work-item, where that many keys in all are each read for `heads` blocks of heads.
int64_t clf_tune_item_keys(const struct clf_caps *caps, int64_t keys, int64_t heads);
// The most parts, splits times tokens, of any call with at most that many tokens, on `heads` blocks of heads.
int64_t clf_tune_paged_parts(const struct clf_caps *caps, int64_t tokens, int64_t heads, int64_t max_keys);
// Keys of each request whose K and V, `bytes` a key, are in memory at a time.
int64_t clf_tune_chunk_tokens(int64_t requests, int64_t bytes, int64_t max_keys);

// Whether a step takes less time by mla_prefill_branch than by mla_decode_branch.
bool clf_tune_mla_prefill(const struct clf_caps *caps, const struct clinfer_mla_shape *shape);

// Splits of the key range, so that every compute unit has several work-items, in the group set work-groups:
// "items" of either.
int64_t clf_tune_splits(const struct clf_caps *caps, int64_t items, int64_t max_keys);
// The most parts, splits times items, of any call with at most that many items.
int64_t clf_tune_parts(const struct clf_caps *caps, int64_t items, int64_t max_keys);

// Work-items, in the group set work-groups, that share the n elements of a token's row, each one run of
// vectors.
int64_t clf_tune_runs(const struct clf_caps *caps, int64_t tokens, int64_t n);

// Rows that a work-item takes one after another; 1 in the group set.
int64_t clf_tune_row_run(const struct clf_caps *caps, int64_t rows);

// Work-groups that share the heads of a token, at most `most`; 1 in the row set.
int64_t clf_tune_head_groups(const struct clf_caps *caps, int64_t tokens, int64_t most);
