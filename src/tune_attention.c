// SPDX-License-Identifier: Apache-2.0
// The attentions' part of the tuning table: tiles, splits and chunks of keys, and which branch of MLA is
// cheaper.
#include "plan.h"
#include "tune.h"
#include <math.h>

// The largest of 4, 3, 2, 1 that divides n.
static int tile_of(int64_t n)
{
    return n % 4 == 0 ? 4 : n % 3 == 0 ? 3 : n % 2 == 0 ? 2 : 1;
}

static struct clf_attention_tiles attention_row_set(int64_t heads, int64_t latent, int64_t row)
{
    // q of a block and the decoded keys are to stay in the second-level cache.
    enum { MAX_HEADS = 128, MAX_QUERY_BYTES = 400 << 10 };
    // Keys of a score tile by its vectors of heads: 16 accumulators and what feeds them fit 32 registers.
    static const int keys[] = { 0, 16, 8, 4, 4 };
    int64_t most = MAX_QUERY_BYTES / (4 * row);
    most = most < 16 ? 16 : most > MAX_HEADS ? MAX_HEADS : most;
    const int64_t blocks = (heads + most - 1) / most;
    struct clf_attention_tiles t = {
        .lanes = 16, .head_block = (int) ((heads + blocks - 1) / blocks), .tile = 32, .pv_heads = 4
    };
    t.qk_heads = tile_of((t.head_block + 15) / 16);
    t.qk_keys = keys[t.qk_heads];
    t.pv_vectors = tile_of((latent + 15) / 16);
    return t;
}

// The __local variables of mla_attention in cl/group/mla_decode_branch.cl.
static uint64_t attention_local_bytes(const struct clf_attention_tiles *t, uint64_t items, uint64_t row)
{
    const uint64_t heads = (uint64_t) t->head_block, keys = (uint64_t) t->tile, lanes = (uint64_t) t->lanes;
    const uint64_t padded = (row + lanes - 1) / lanes * lanes, scores = heads * keys;
    const uint64_t tiles = scores / (lanes * lanes), slices = items > tiles ? items / tiles : 1;
    return 4 * heads * padded + clinfer_dtype_size(t->tile_type) * keys * padded +
           4 * (slices * (scores + lanes) + scores) + 16 * keys + 20 * heads;
}

static struct clf_attention_tiles attention_group_set(const struct clf_caps *caps, const clinfer_kv_cache *kv,
                                                      int64_t heads)
{
    // What GPUs let one group have, and what leaves the larger of them room for another.
    enum { MAX_LOCAL_BYTES = 48 << 10 };
    // Heads first: each block of them reads all keys again. More than 8 would not fit an item's registers.
    static const struct {
        int heads, keys;
    } tiles[] = { { 8, 16 }, { 8, 8 }, { 4, 16 }, { 4, 8 }, { 4, 4 } };
    enum { NUM = sizeof tiles / sizeof tiles[0] };
    const struct clf_group_shape shape = clf_tune_group(caps);
    const uint64_t most = caps->local_bytes < MAX_LOCAL_BYTES ? caps->local_bytes : MAX_LOCAL_BYTES;
    // bf16 has every value of fp8, and is decoded by a shift.
    const bool as_bf16 = kv->dtype == CLINFER_BF16 || (kv->dtype == CLINFER_F8_E4M3 && !kv->scale_group);
    struct clf_attention_tiles t = { .lanes = shape.lanes,
                                     .pv_heads = 1,
                                     .tile_type = as_bf16 ? CLINFER_BF16 : CLINFER_F32 };
    for (int i = heads > 4 ? 0 : 2; i < NUM; i++) {
        t.head_block = tiles[i].heads;
        t.tile = tiles[i].keys;
        t.local_bytes = attention_local_bytes(&t, (uint64_t) shape.items, (uint64_t) kv->head_size);
        if (t.local_bytes <= most)
            break;
    }
    return t;
}

struct clf_attention_tiles clf_tune_attention(const struct clf_caps *caps, const clinfer_kv_cache *kv,
                                              int64_t heads, int64_t latent)
{
    return caps->set == CLINFER_SET_ROW ? attention_row_set(heads, latent, kv->head_size)
                                        : attention_group_set(caps, kv, heads);
}

// What a step costs, in flop: what it computes, and what it moves at the price of the flop that the device
// does meanwhile. Weights are read once by either branch.
bool clf_tune_mla_prefill(const struct clf_caps *caps, const struct clinfer_mla_shape *shape)
{
    // Flop to a byte of memory: of what the device could do, 235 GFLOP/s and 35 GB/s of two CPU cores; 20 to
    // 40 TFLOP/s and 1 to 2 TB/s of large GPUs.
    static const double flop_a_byte[] = { [CLINFER_SET_ROW] = 7, [CLINFER_SET_GROUP] = 20 };
    const double H = (double) shape->heads, N = (double) shape->nope, R = (double) shape->rope,
                 C = (double) shape->latent, V = (double) shape->value, T = (double) shape->new_tokens,
                 context = (double) shape->context, keys = (double) shape->requests * context;
    const double project = 2 * H * C * (N + V); // a query's two projections, or a key's
    const double decode = T * project + 2 * H * T * context * (2 * C + R);
    const double moved = 2 * 4 * keys * H * (N + V); // K and V, in f32, to memory and back
    const double prefill =
        keys * project + 2 * H * T * context * (N + R + V) + flop_a_byte[caps->set] * moved;
    return prefill < decode;
}

// A split writes its sums, and the combining kernel reads them: enough keys that this is less than reading
// them.
enum { KEYS_A_SPLIT = 64 };

static int64_t most_splits(int64_t max_keys)
{
    const int64_t n = max_keys / KEYS_A_SPLIT;
    return n < 1 ? 1 : n;
}

int64_t clf_tune_splits(const struct clf_caps *caps, int64_t items, int64_t max_keys)
{
    const int64_t want = ((int64_t) caps->compute_units * CLF_ITEMS_A_UNIT + items - 1) / (items ? items : 1);
    const int64_t most = most_splits(max_keys), n = want < most ? want : most;
    return n < 1 ? 1 : n;
}

int64_t clf_tune_parts(const struct clf_caps *caps, int64_t items, int64_t max_keys)
{
    // Splits round up to at most one part an item more than the units want.
    const int64_t want = (int64_t) caps->compute_units * CLF_ITEMS_A_UNIT + items;
    int64_t most;
    return __builtin_mul_overflow(items, most_splits(max_keys), &most) || want < most ? want : most;
}

// Rows of paged_attention that share a tile of keys.
enum { MAX_PAGED_ROWS = 128 };

// The largest power of two that is at most n, which is 1 or more.
static int power_of_two(int64_t n)
{
    int p = 1;
    while (2 * p <= n)
        p *= 2;
    return p;
}

static struct clf_paged_tiles paged_row_set(int64_t group, int64_t key_size, int64_t value_size)
{
    // Queries and sums of all rows, and a tile of keys, are to stay in the second-level cache.
    enum { MAX_ROW_BYTES = 256 << 10, MAX_TILE_BYTES = 64 << 10, MAX_TILE = 64, MIN_TILE = 16 };
    const int64_t widest = key_size > value_size ? key_size : value_size;
    int64_t rows = MAX_ROW_BYTES / (4 * (key_size + value_size));
    rows = rows > MAX_PAGED_ROWS ? MAX_PAGED_ROWS : rows < 1 ? 1 : rows;
    const int64_t blocks = (group + rows - 1) / rows;
    struct clf_paged_tiles t = { .lanes = 16,
                                 .head_block = (int) ((group + blocks - 1) / blocks),
                                 .tile = MAX_TILE };
    while (t.tile > MIN_TILE && 4 * widest * t.tile > MAX_TILE_BYTES)
        t.tile /= 2;
    t.tokens = power_of_two(rows / t.head_block);
    t.row_tile = t.head_block % 4 && t.head_block % 3 == 0 ? 3 : 4;
    t.value_tile = tile_of((value_size + 15) / 16);
    return t;
}

// The __local variables of paged_attention in cl/group/paged_attention.cl, for `rows` rows.
static uint64_t paged_local_bytes(const struct clf_paged_tiles *t, uint64_t rows, int64_t key_size,
                                  int64_t value_size)
{
    const uint64_t lanes = (uint64_t) t->lanes, keys = (uint64_t) clf_blocks(key_size, t->lanes),
                   values = (uint64_t) clf_blocks(value_size, t->lanes), tile = (uint64_t) t->tile;
    const uint64_t widest = (keys | 1) > values ? keys | 1 : values;
    enum { PLACE = 4 * 8 + 4 }; // of a key
    return 4 * rows * lanes * keys + clinfer_dtype_size(t->tile_type) * tile * widest * lanes +
           4 * rows * tile + (3 * 16 + 4 + 4 + 16) * rows + PLACE * tile;
}

static struct clf_paged_tiles paged_group_set(const struct clf_caps *caps, const struct clf_paged_shape *s)
{
    // What GPUs let one group have, and what leaves the larger of them room for another.
    enum { MAX_LOCAL_BYTES = 48 << 10 };
    static const struct {
        int rows, keys;
    } tiles[] = { { 16, 32 }, { 16, 16 }, { 8, 16 }, { 8, 8 }, { 4, 16 }, { 4, 8 }, { 4, 4 } };
    enum { NUM = sizeof tiles / sizeof tiles[0] };
    const uint64_t most = caps->local_bytes < MAX_LOCAL_BYTES ? caps->local_bytes : MAX_LOCAL_BYTES;
    struct clf_paged_tiles t = { .lanes = clf_tune_group(caps).lanes,
                                 .tile_type = s->as_bf16 ? CLINFER_BF16 : CLINFER_F32 };
    for (int i = 0; i < NUM; i++) {
        const int64_t blocks = (s->group + tiles[i].rows - 1) / tiles[i].rows;
        t.head_block = (int) ((s->group + blocks - 1) / blocks);
        t.tile = tiles[i].keys;
        // A decode step has one token a request: no rows for more. A request of two is two units.
        t.tokens = s->tokens > 2 * s->requests ? power_of_two(tiles[i].rows / t.head_block) : 1;
        t.local_bytes = paged_local_bytes(&t, (uint64_t) tiles[i].rows, s->key_size, s->value_size);
        if (t.local_bytes <= most)
            break;
    }
    return t;
}

struct clf_paged_tiles clf_tune_paged(const struct clf_caps *caps, const struct clf_paged_shape *s)
{
    return caps->set == CLINFER_SET_ROW ? paged_row_set(s->group, s->key_size, s->value_size)
                                        : paged_group_set(caps, s);
}

struct clf_paged_grid clf_tune_paged_grid(const struct clf_caps *caps, const struct clf_paged_tiles *tile,
                                          int64_t tokens, int64_t requests, int64_t kv_heads, int64_t blocks,
                                          int64_t num_splits, int64_t max_keys)
{
    struct clf_paged_grid g = { .unit_heads = 1, .run = tile->tokens };
    const int64_t want = (int64_t) caps->compute_units * CLF_ITEMS_A_UNIT,
                  most = num_splits ? num_splits : most_splits(max_keys);
    int64_t units = tokens / g.run + requests;
    units = units < tokens ? units : tokens;
    // Rows of all KV heads of a key lie side by side: with few tokens, whose keys are read but once, an item
    // takes several heads, as long as there are items for all units of the device.
    while (caps->set == CLINFER_SET_ROW && blocks == 1 && g.unit_heads < kv_heads &&
           g.run / 2 * requests >= tokens && g.run > 1 &&
           units * clf_blocks(kv_heads, 2 * g.unit_heads) * most >= want) {
        g.unit_heads *= 2;
        g.run /= 2;
        units = tokens / g.run + requests;
        units = units < tokens ? units : tokens;
    }
    g.splits = num_splits
                   ? num_splits
                   : clf_tune_splits(caps, units * clf_blocks(kv_heads, g.unit_heads) * blocks, max_keys);
    return g;
}

int64_t clf_tune_item_keys(const struct clf_caps *caps, int64_t keys, int64_t heads)
{
    const int64_t want = (int64_t) caps->compute_units * CLF_ITEMS_A_UNIT;
    const int64_t n = (keys * heads + want - 1) / want;
    return n < KEYS_A_SPLIT ? KEYS_A_SPLIT : n;
}

int64_t clf_tune_chunk_tokens(int64_t requests, int64_t bytes, int64_t max_keys)
{
    // Whole tiles of every kernel: as many as fit, or one where that fits the larger bound.
    enum { TILE = 32, FIT_BYTES = 64 << 20, MOST_BYTES = 256 << 20 };
    const double all = (double) (requests ? requests : 1) * (double) (bytes ? bytes : 1);
    double n = floor(FIT_BYTES / all / TILE) * TILE;
    if (n < TILE)
        n = fmax(1, fmin(TILE, floor(MOST_BYTES / all)));
    return n < (double) max_keys ? (int64_t) n : max_keys;
}

int64_t clf_tune_paged_parts(const struct clf_caps *caps, int64_t tokens, int64_t heads, int64_t max_keys)
{
    // There is more than one split only where the units, each of at most MAX_PAGED_ROWS tokens, are fewer
    // than wanted, and splits round up to at most one a unit more.
    const int64_t units = (int64_t) caps->compute_units * CLF_ITEMS_A_UNIT / heads + 1;
    const int64_t want = 2 * units * MAX_PAGED_ROWS;
    int64_t most;
    return __builtin_mul_overflow(tokens, most_splits(max_keys), &most) || want < most ? want : most;
}
