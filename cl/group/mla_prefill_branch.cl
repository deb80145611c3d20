// SPDX-License-Identifier: Apache-2.0
// MLA with K and V computed from the latents: mla_cache_rows, then for each chunk of the keys mla_chunk_rows, matmul with
// w_k and with w_uv, mla_chunk_attention. The workspace holds the chunk's K and V, and the state of the softmax.
#include "lib/paged.clh"
#include "lib/mla_row_group.clh"
#include "lib/mla_inputs_group.clh"
#include "lib/mask.clh"
#include "lib/mla_chunk.clh"
#include "lib/mla_blocks.clh"

#if !defined(Q_T) || !defined(MASK) || !defined(ALIBI) || !defined(QUERIES) || !defined(TILE) || !defined(TILE_T)
#error "mla_prefill_branch wants Q_T, MASK, ALIBI and the tiles"
#endif

#if LANES != 4 || QUERIES % 4 || TILE % 4
#error "mla_prefill_branch wants vectors of 4 lanes, and QUERIES and TILE multiples of 4"
#endif

#define QUERY_BLOCK QUERIES
#define KEY_VECTORS VECTORS(KEY_SIZE)
#define KEY_STRIDE (KEY_VECTORS | 1) // odd, for the banks
#define VALUE_VECTORS VECTORS(VALUE_SIZE)
#include "lib/attention_group.clh"

// Sums: an item owns every GROUP_ITEMS-th of the vectors of the values, each for LANES neighbouring queries.
#define SUMS (QUERIES / LANES * VALUE_VECTORS)
#define ITEM_SUMS ((SUMS + GROUP_ITEMS - 1) / GROUP_ITEMS)

// One slot of the chunk: the latent part of a key as the products take it, its rope part, and whether there is such a
// key at all, one that some query sees. Asks for local memory for the row, whose fp8 groups any items may share.
GROUP_KERNEL void mla_chunk_rows(PAGED_ARGS, CHUNK_ARGS, TENSOR1(uint, there), TENSOR1(float, latents), TENSOR1(float, ropes),
                                 uint chunk)
{
    __local float x[MLA_ROW_SIZE];
    __local uint quant[QUANT_SCALES(LATENT)];
    const uint i = get_group_id(0), b = get_group_id(1);
    if (count == 0 || i >= chunk_tokens)
        return;
    PAGED_INIT(c);
    const ulong slot = (ulong) b * chunk_tokens + i, key = (ulong) chunk * chunk_tokens + i;
    ulong row, scales_row, first, last;
    const bool seen = request_range(&c, b, reach, window, &first, &last) && key >= first && key < last &&
                      find_row(&c, c.row_offsets[b], b, key, &row, &scales_row);
    if (ITEM == 0)
        there[there_at + slot] = seen;
    if (!seen)
        return;
    for (EACH_VECTOR(d, MLA_ROW_SIZE))
        put_local_lanes(load_cache_lanes(&c, row, scales_row, d), x, d, MLA_ROW_SIZE);
    barrier(CLK_LOCAL_MEM_FENCE);
    for (EACH_VECTOR(d, ROPE_DIM))
        f32_store(ropes + ropes_at + slot * ROPE_DIM + d, local_lanes(x + LATENT, d, ROPE_DIM), min(LANES, ROPE_DIM - d));
    store_quantised(x, LATENT, latents + latents_at + slot * LATENT, quant);
}

// Keys [k, k + TILE) of the chunk and their values, zeros where `seen` says that there is none.
static inline void load_tile(const struct source *s, int k, __local const uint *seen, __local tile_vec *keys,
                             __local tile_vec *values)
{
    for (int i = ITEM; i < TILE * KEY_VECTORS; i += GROUP_ITEMS) {
        const struct place p = { k + i / KEY_VECTORS };
        const int n = i / KEY_VECTORS, v = i % KEY_VECTORS;
        keys[n * KEY_STRIDE + v] = FORMAT(TILE_T, encode)(seen[n] ? key_lanes(s, &p, LANES * v) : (floatn) 0.0f);
    }
    for (int i = ITEM; i < TILE * VALUE_VECTORS; i += GROUP_ITEMS) {
        const struct place p = { k + i / VALUE_VECTORS };
        values[i] = FORMAT(TILE_T, encode)(seen[i / VALUE_VECTORS] ? value_lanes(s, &p, i % VALUE_VECTORS * LANES) : (floatn) 0.0f);
    }
}

// Keys [from, to) of the chunk are seen by some query of a block, [full_from, full_to) by all that see any.
struct span {
    int from, to, full_from, full_to;
};

static inline struct span find_span(const struct block *b, __global const uint *valid, uint window, ulong start,
                                    uint chunk_tokens)
{
    struct span span = { (int) chunk_tokens, 0, 0, (int) chunk_tokens };
    for (int i = 0; i < b->n; i++) {
        ulong first, last;
        if (!is_valid(b, i, valid))
            continue;
        query_range(b, i, window, start, chunk_tokens, &first, &last);
        if (first >= last)
            continue;
        span.from = min(span.from, (int) first);
        span.to = max(span.to, (int) last);
        span.full_from = max(span.full_from, (int) first);
        span.full_to = min(span.full_to, (int) last);
    }
    return span;
}

// q[query][dim]: rotated, rounded, with the scale of the scores; zeros without a query.
static inline void load_queries(const struct block *b, __global const uint *valid, __global const ELEM(Q_T) *from, ulong stride,
                                __global const ELEM(FREQS_T) *angles, ulong angles_stride, float scale, __local floatn *q)
{
    for (int i = ITEM; i < QUERIES * KEY_STRIDE; i += GROUP_ITEMS)
        q[i] = 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
#if NOPE
    for (int i = ITEM; i < QUERIES * VECTORS(NOPE); i += GROUP_ITEMS) {
        const int n = i / VECTORS(NOPE), d = i % VECTORS(NOPE) * LANES;
        if (is_valid(b, n, valid))
            put_local_lanes(FORMAT(Q_T, load)(from + n * stride + d, min(LANES, NOPE - d)) * scale,
                            (__local float *) (q + n * KEY_STRIDE), d, NOPE);
    }
#endif
#if ROPE_DIM
    for (int i = ITEM; i < QUERIES * PAIR_VECTORS; i += GROUP_ITEMS) {
        const int n = i / PAIR_VECTORS, p = i % PAIR_VECTORS * LANES, pairs = min(LANES, ROPE_PAIRS - p);
        if (!is_valid(b, n, valid))
            continue;
        floatn re, im, cosine, sine;
        float a[LANES], c[LANES];
        FORMAT(Q_T, load_pairs)(from + n * stride + NOPE + 2 * p, pairs, &re, &im);
        FORMAT(FREQS_T, load_pairs)(angles + n * angles_stride + 2 * p, pairs, &cosine, &sine);
        rotate_lanes(cosine, sine, &re, &im);
        vstoren(FORMAT(Q_T, round)(re) * scale, 0, a);
        vstoren(FORMAT(Q_T, round)(im) * scale, 0, c);
        __local float *to = (__local float *) (q + n * KEY_STRIDE) + NOPE + 2 * p;
        for (int j = 0; j < pairs; j++) {
            to[2 * j] = a[j];
            to[2 * j + 1] = c[j];
        }
    }
#endif
}

// Scores of keys that a query does not see are -inf; `before`: keys from the tile's first to the first query.
static inline void mask_scores(__local float *parts, int k, __local const uint *seen, __local const int *first,
                               __local const int *last, long before, float slope)
{
    for (int i = ITEM; i < SCORES; i += GROUP_ITEMS) {
        const int n = i / TILE, j = i % TILE;
        float s = join_score(parts, i);
#if ALIBI
        s -= slope * (float) max(before + n - j, 0L);
#endif
        parts[i] = seen[j] && k + j >= first[n] && k + j < last[n] ? s : -INFINITY;
    }
}

// sums = sums * fade + weights . tile. A query takes nothing of a key that it does not see, whose value may be NaN;
// where all see the whole tile, it is not asked.
static inline void add_values(__local const float *weights, __local const tile_vec *tile, __local const float *fade, bool whole,
                              int k, __local const int *first, __local const int *last, floatn sums[ITEM_SUMS][LANES])
{
#pragma unroll
    for (int m = 0; m < ITEM_SUMS; m++) {
        const int n = min(ITEM + m * GROUP_ITEMS, SUMS - 1), v = n % VALUE_VECTORS, q = n / VALUE_VECTORS * LANES;
#pragma unroll
        for (int j = 0; j < LANES; j++)
            sums[m][j] *= fade[q + j];
        for (int i = 0; i < TILE; i++) {
            const floatn x = FORMAT(TILE_T, decode)(tile[i * VALUE_VECTORS + v]);
#pragma unroll
            for (int j = 0; j < LANES; j++)
                if (whole || (k + i >= first[q + j] && k + i < last[q + j]))
                    sums[m][j] = fma(x, (floatn) weights[i * QUERIES + q + j], sums[m][j]);
        }
    }
}

// One head of a block of tokens, and a chunk of their request's keys. The first chunk begins the state, the last one
// divides it into the output. Asks for local memory for the queries and a tile of keys and values, which all share; the
// sums stay in the items' registers.
GROUP_KERNEL void mla_chunk_attention(PAGED_ARGS, CHUNK_ARGS, TENSOR1(const uint, valid), TENSOR1(const uint, there),
                                      TENSOR1(const float, keys), TENSOR1(const float, ropes), TENSOR1(const float, values),
                                      TENSOR3(const ELEM(Q_T), q), TENSOR2(const ELEM(FREQS_T), freqs), TENSOR1(float, sums),
                                      TENSOR1(float, tops), TENSOR3(ELEM(Q_T), output), float score_scale, uint chunks,
                                      uint chunk)
{
    __local floatn query[QUERIES * KEY_STRIDE], parts[SLICES * SLICE_STRIDE / LANES], weights[SCORES / LANES];
    __local tile_vec key_tile[TILE * KEY_STRIDE], value_tile[TILE * VALUE_VECTORS];
    __local uint seen[TILE];
    __local int first[QUERIES], last[QUERIES];
    __local float top[QUERIES], next[QUERIES], total[QUERIES], fade[QUERIES];
    const uint h = get_group_id(1);
    struct block b;
    PAGED_INIT(c);
    if (count == 0 || !find_block(&c, get_group_id(0), QUERIES, reach, &b))
        return;
    __global const uint *ok = valid + valid_at + b.first;
    const ulong start = (ulong) chunk * chunk_tokens;
    const struct span span = find_span(&b, ok, window, start, chunk_tokens);
    if (span.from >= span.to && chunk && chunk + 1 < chunks)
        return;
    SOURCE_INIT(s, b.tok.request, h);
    const struct softmax m = { top, next, total, fade };
    const ulong head = (ulong) b.first * HEADS + h;
    __global floatn *old = (__global floatn *) (sums + sums_at);
    __global float *pair = tops + tops_at;
    __local float *scores = (__local float *) parts, *w = (__local float *) weights;
#if ALIBI
    const float slope = alibi_slope(h) * M_LOG2E_F;
#else
    const float slope = 0.0f;
#endif
    for (int i = ITEM; i < QUERIES; i += GROUP_ITEMS) {
        ulong begin = 0, end = 0;
        const bool resumed = chunk && is_valid(&b, i, ok);
        if (is_valid(&b, i, ok))
            query_range(&b, i, window, start, chunk_tokens, &begin, &end);
        first[i] = (int) begin;
        last[i] = (int) end;
        top[i] = resumed ? pair[2 * (head + (ulong) i * HEADS)] : -INFINITY;
        total[i] = resumed ? pair[2 * (head + (ulong) i * HEADS) + 1] : 0.0f;
    }
    floatn sum[ITEM_SUMS][LANES];
#pragma unroll
    for (int n = 0; n < ITEM_SUMS; n++)
#pragma unroll
        for (int j = 0; j < LANES; j++) {
            const int at = ITEM + n * GROUP_ITEMS, v = at % VALUE_VECTORS, i = at / VALUE_VECTORS * LANES + j;
            sum[n][j] = chunk && is_valid(&b, i, ok) ? old[(head + (ulong) i * HEADS) * VALUE_VECTORS + v] : (floatn) 0.0f;
        }
    load_queries(&b, ok, q + q_at + b.first * q_stride0 + h * q_stride1, q_stride0,
                 freqs + freqs_at + b.tok.position * freqs_stride0, freqs_stride0, score_scale, query);
    for (int k = span.from / TILE * TILE; k < span.to; k += TILE) {
        for (int i = ITEM; i < TILE; i += GROUP_ITEMS)
            seen[i] = k + i < span.to && s.there[k + i];
        barrier(CLK_LOCAL_MEM_FENCE); // which the sums of the last tile also need, before it is overwritten
        load_tile(&s, k, seen, key_tile, value_tile);
        barrier(CLK_LOCAL_MEM_FENCE);
        score_tile(query, key_tile, scores);
        barrier(CLK_LOCAL_MEM_FENCE);
        mask_scores(scores, k, seen, first, last, (long) b.tok.position - (long) (start + k), slope);
        barrier(CLK_LOCAL_MEM_FENCE);
        weigh_scores(&m, scores, w);
        barrier(CLK_LOCAL_MEM_FENCE);
        add_weights(&m, w);
        add_values(w, value_tile, fade, k >= span.full_from && k + TILE <= span.full_to, k, first, last, sum);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const bool done = chunk + 1 == chunks;
#pragma unroll
    for (int n = 0; n < ITEM_SUMS; n++)
#pragma unroll
        for (int j = 0; j < LANES; j++) {
            const int at = ITEM + n * GROUP_ITEMS, v = at % VALUE_VECTORS, i = at / VALUE_VECTORS * LANES + j;
            if (!is_valid(&b, i, ok))
                continue;
            if (done)
                FORMAT(Q_T, store)(output + output_at + (b.first + i) * output_stride0 + h * output_stride1 + LANES * v,
                                   total[i] == 0.0f ? (floatn) 0.0f : sum[n][j] / total[i], min(LANES, VALUE_SIZE - LANES * v));
            else
                old[(head + (ulong) i * HEADS) * VALUE_VECTORS + v] = sum[n][j];
        }
    for (int i = ITEM; i < QUERIES; i += GROUP_ITEMS)
        if (!done && is_valid(&b, i, ok)) { // the item's own, as add_weights left them
            pair[2 * (head + (ulong) i * HEADS)] = top[i];
            pair[2 * (head + (ulong) i * HEADS) + 1] = total[i];
        }
}
