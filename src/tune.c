// SPDX-License-Identifier: Apache-2.0
#include "tune.h"

// Two or more sub-groups on every GPU, and 16 bytes of f32 an item: a row of 512 is two steps of a group.
struct clf_group_shape clf_tune_group(const struct clf_caps *caps)
{
    struct clf_group_shape shape = { .items = 64, .lanes = 4 };
    while (shape.items > 1 && (unsigned) shape.items > caps->max_work_group)
        shape.items /= 2;
    return shape;
}

// The first row whose limits hold is taken.
static const struct {
    int64_t max_tokens;
    struct clf_matmul_tiles tile;
} matmul_row_set[] = {
    { 1, { 1, 8, 32, 1 } },
    { 2, { 2, 8, 32, 2 } },
    { INT64_MAX, { 4, 4, 32, 64 } },
};

struct clf_matmul_tiles clf_tune_matmul(int64_t tokens)
{
    int i = 0;
    while (tokens > matmul_row_set[i].max_tokens)
        i++;
    return matmul_row_set[i].tile;
}

// The largest of 4, 3, 2, 1 that divides n.
static int tile_of(int64_t n)
{
    return n % 4 == 0 ? 4 : n % 3 == 0 ? 3 : n % 2 == 0 ? 2 : 1;
}

struct clf_attention_tiles clf_tune_attention(int64_t heads, int64_t latent, int64_t row)
{
    // q of a block and the decoded keys are to stay in the second-level cache.
    enum { MAX_HEADS = 128, MAX_QUERY_BYTES = 400 << 10 };
    // Keys of a score tile by its vectors of heads: 16 accumulators and what feeds them fit 32 registers.
    static const int keys[] = { 0, 16, 8, 4, 4 };
    int64_t most = MAX_QUERY_BYTES / (4 * row);
    most = most < 16 ? 16 : most > MAX_HEADS ? MAX_HEADS : most;
    const int64_t blocks = (heads + most - 1) / most;
    struct clf_attention_tiles t = { .head_block = (int) ((heads + blocks - 1) / blocks),
                                     .tile = 32,
                                     .pv_heads = 4 };
    t.qk_heads = tile_of((t.head_block + 15) / 16);
    t.qk_keys = keys[t.qk_heads];
    t.pv_vectors = tile_of((latent + 15) / 16);
    return t;
}

enum { ITEMS_A_UNIT = 4, TILES_A_SPLIT = 2 };

static int64_t most_splits(int64_t max_keys, int tile)
{
    const int64_t n = max_keys / ((int64_t) tile * TILES_A_SPLIT);
    return n < 1 ? 1 : n;
}

int64_t clf_tune_splits(const struct clf_caps *caps, int64_t items, int64_t max_keys, int tile)
{
    const int64_t want = ((int64_t) caps->compute_units * ITEMS_A_UNIT + items - 1) / (items ? items : 1);
    const int64_t most = most_splits(max_keys, tile), n = want < most ? want : most;
    return n < 1 ? 1 : n;
}

int64_t clf_tune_parts(const struct clf_caps *caps, int64_t items, int64_t max_keys, int tile)
{
    // Splits round up to at most one part an item more than the units want.
    const int64_t want = (int64_t) caps->compute_units * ITEMS_A_UNIT + items;
    int64_t most;
    return __builtin_mul_overflow(items, most_splits(max_keys, tile), &most) || want < most ? want : most;
}

int64_t clf_tune_head_groups(const struct clf_caps *caps, int64_t tokens, int64_t most)
{
    // Groups of 64 that hide each other's wait for memory.
    enum { GROUPS_A_UNIT = 16 };
    if (caps->set != CLINFER_SET_GROUP || tokens < 1)
        return 1;
    const int64_t want = ((int64_t) caps->compute_units * GROUPS_A_UNIT + tokens - 1) / tokens;
    const int64_t n = want < most ? want : most;
    return n < 1 ? 1 : n;
}
