// SPDX-License-Identifier: Apache-2.0
#include "tune.h"
#include "plan.h"

// Two or more sub-groups on every GPU, and 16 bytes of f32 an item: a row of 512 is two steps of a group.
struct clf_group_shape clf_tune_group(const struct clf_caps *caps)
{
    struct clf_group_shape shape = { .items = 64, .lanes = 4 };
    while (shape.items > 1 && (unsigned) shape.items > caps->max_work_group)
        shape.items /= 2;
    return shape;
}

int clf_tune_row_items(const struct clf_caps *caps, int64_t n)
{
    // Each has this many vectors, and with few rows the device has more of one on the way from memory.
    enum { MOST_ITEMS = 256, VECTORS_AN_ITEM = 4 };
    const struct clf_group_shape shape = clf_tune_group(caps);
    int items = shape.items;
    while (items < MOST_ITEMS && (unsigned) items * 2 <= caps->max_work_group &&
           (int64_t) items * shape.lanes * VECTORS_AN_ITEM < n)
        items *= 2;
    return items;
}

// The first row whose limits hold is taken. With one tile of tokens a weight is decoded where it is used.
static const struct {
    int64_t max_tokens;
    struct clf_matmul_tiles tile;
} matmul_row_set[] = {
    { 1, { 1, 8, 32, 1, 0, false, 0 } },
    { 2, { 2, 8, 32, 2, 0, false, 0 } },
    { 4, { 4, 6, 24, 4, 0, false, 0 } },
    { INT64_MAX, { 4, 6, 48, 64, 512, true, 0 } },
};

// Few tokens are bound by the weights: a row an item, so that there are many groups. With more of them an
// item has 16 sums for 8 values that it reads, and a group 16 tokens for each weight that it decodes.
static const struct {
    int64_t max_tokens;
    int token_tile, row_tile, token_items;
} matmul_group_set[] = {
    { 1, 1, 1, 1 },
    { 4, 4, 1, 1 },
    { INT64_MAX, 4, 4, 4 },
};
enum { MATMUL_STEP = 32 }; // STEP of cl/group/matmul.cl

struct clf_matmul_tiles clf_tune_matmul(const struct clf_caps *caps, int64_t tokens)
{
    int i = 0;
    if (caps->set == CLINFER_SET_ROW) {
        while (tokens > matmul_row_set[i].max_tokens)
            i++;
        return matmul_row_set[i].tile;
    }
    while (tokens > matmul_group_set[i].max_tokens)
        i++;
    const int items = clf_tune_group(caps).items, most = matmul_group_set[i].token_items;
    const int token_items = most < items ? most : items;
    struct clf_matmul_tiles t = { .token_tile = matmul_group_set[i].token_tile,
                                  .row_tile = matmul_group_set[i].row_tile };
    t.block_tokens = t.token_tile * token_items;
    t.block_rows = t.row_tile * (items / token_items);
    t.local_bytes = 4 * MATMUL_STEP * ((uint64_t) t.block_rows + (uint64_t) t.block_tokens);
    return t;
}

bool clf_tune_clblast(const struct clf_caps *caps, int64_t tokens)
{
    // Below, a product is bound by the weights, which own kernels read as they are stored.
    enum { FEWEST_TOKENS = 64 };
    return caps->gemm == CLINFER_GEMM_CLBLAST ||
           (caps->gemm == CLINFER_GEMM_AUTO && caps->set == CLINFER_SET_GROUP && tokens >= FEWEST_TOKENS);
}

int64_t clf_tune_rows(const struct clf_caps *caps, const struct clf_matmul_tiles *tile, int64_t rows,
                      int64_t blocks)
{
    if (caps->set == CLINFER_SET_GROUP)
        return tile->block_rows;
    const int64_t want = clf_blocks((int64_t) caps->compute_units * CLF_ITEMS_A_UNIT, blocks ? blocks : 1);
    const int64_t even = clf_blocks(clf_blocks(rows, want), tile->row_tile) * tile->row_tile;
    return even < tile->block_rows ? even : tile->block_rows;
}

int64_t clf_tune_runs(const struct clf_caps *caps, int64_t tokens, int64_t n)
{
    // Fewer elements than these cost less than an item of their own.
    enum { ELEMENTS_A_RUN = 512 };
    const int64_t want =
        ((int64_t) caps->compute_units * CLF_ITEMS_A_UNIT + tokens - 1) / (tokens ? tokens : 1);
    const int64_t most = n / ELEMENTS_A_RUN, runs = want < most ? want : most;
    return runs < 1 ? 1 : runs;
}

int64_t clf_tune_row_run(const struct clf_caps *caps, int64_t rows)
{
    // More would hide no more of a row's wait for memory behind the last one's work.
    enum { MOST_ROWS = 8, RUNS_A_UNIT = 16 };
    const int64_t n = rows / ((int64_t) caps->compute_units * RUNS_A_UNIT);
    return n < 1 || caps->set == CLINFER_SET_GROUP ? 1 : n < MOST_ROWS ? n : MOST_ROWS;
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
