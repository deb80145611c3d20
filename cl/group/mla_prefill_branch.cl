// SPDX-License-Identifier: Apache-2.0
// MLA with K and V computed from the latents: mla_cache_rows, then for each chunk of the keys mla_chunk_rows, matmul with
// w_k and with w_uv, mla_chunk_attention. The workspace holds the chunk's K and V, and the state of the softmax.
#include "lib/paged.clh"
#include "lib/mla_row_group.clh"
#include "lib/mla_inputs_group.clh"
#include "lib/mla_chunk.clh"
#define HEAD_BLOCK 1 // a key of one head is no other head's
#include "lib/attention_group.clh"
#include "lib/mla_blocks.clh"

#ifndef Q_T
#error "Q_T, the type of q, must be defined"
#endif

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

// Which keys of the chunk, from its `start` on, the block's queries see, those without a place none. Some see [from, to),
// all that see any see [whole_from, whole_to).
struct ranges {
    ulong from, to, whole_from, whole_to;
};

// Every item, for the ranges of all.
static inline struct ranges find_ranges(const struct block *b, __global const uint *valid, uint window, ulong start,
                                        uint chunk_tokens, const struct tile *m)
{
    struct ranges r = { chunk_tokens, 0, 0, chunk_tokens };
    for (int i = 0; i < b->n; i++) {
        ulong first = 0, last = 0;
        if (is_valid(b, i, valid))
            query_range(b, i, window, start, chunk_tokens, &first, &last);
        if (ITEM == 0) {
            m->first[i] = first;
            m->last[i] = last;
        }
        if (first >= last)
            continue;
        r.from = min(r.from, first);
        r.to = max(r.to, last);
        r.whole_from = max(r.whole_from, first);
        r.whole_to = min(r.whole_to, last);
    }
    return r;
}

// Rows of q: rotated, rounded, with the scale of the scores; zeros without a query.
static inline void load_queries(const struct block *b, __global const uint *valid, __global const ELEM(Q_T) *from, ulong stride,
                                __global const ELEM(FREQS_T) *angles, ulong angles_stride, float scale, __local floatn *q)
{
    for (int i = ITEM; i < ROWS_ROOM * KEY_VECTORS; i += GROUP_ITEMS)
        q[i] = 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
#if NOPE
    for (int i = ITEM; i < TOKENS * VECTORS(NOPE); i += GROUP_ITEMS) {
        const int n = i / VECTORS(NOPE), d = i % VECTORS(NOPE) * LANES;
        if (is_valid(b, n, valid))
            put_local_lanes(FORMAT(Q_T, load)(from + n * stride + d, min(LANES, NOPE - d)) * scale,
                            (__local float *) (q + n * KEY_VECTORS), d, NOPE);
    }
#endif
#if ROPE_DIM
    for (int i = ITEM; i < TOKENS * PAIR_VECTORS; i += GROUP_ITEMS) {
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
        __local float *to = (__local float *) (q + n * KEY_VECTORS) + NOPE + 2 * p;
        for (int j = 0; j < pairs; j++) {
            to[2 * j] = a[j];
            to[2 * j + 1] = c[j];
        }
    }
#endif
}

// One head of a block of tokens, and a chunk of their request's keys. The first chunk begins the state, the last one
// divides it into the output. Asks for local memory for the queries, and for a tile of keys and then of values, read
// once for all.
GROUP_KERNEL void mla_chunk_attention(PAGED_ARGS, CHUNK_ARGS, TENSOR1(const uint, valid), TENSOR1(const uint, there),
                                      TENSOR1(const float, keys), TENSOR1(const float, ropes), TENSOR1(const float, values),
                                      TENSOR3(const ELEM(Q_T), q), TENSOR2(const ELEM(FREQS_T), freqs), TENSOR1(float, sums),
                                      TENSOR1(float, tops), TENSOR3(ELEM(Q_T), output), float score_scale, uint chunks,
                                      uint chunk)
{
    TILE_LOCAL(m);
    const uint h = get_group_id(1);
    struct block b;
    PAGED_INIT(c);
    if (count == 0 || !find_block(&c, get_group_id(0), TOKENS, reach, &b))
        return;
    TILE_INIT(m);
    __global const uint *ok = valid + valid_at + b.first;
    const ulong start = (ulong) chunk * chunk_tokens, state = (ulong) b.first * HEADS + h;
    const struct ranges r = find_ranges(&b, ok, window, start, chunk_tokens, &m);
    if (r.from >= r.to && chunk && chunk + 1 < chunks)
        return;
    SOURCE_INIT(s, b.tok.request, h);
    __global floatn *old = (__global floatn *) (sums + sums_at);
    __global float *pair = tops + tops_at;
    floatn sum[ITEM_SUMS][VALUE_ROWS];
#if ALIBI
    if (ITEM == 0)
        m.slope[0] = alibi_slope(h) * M_LOG2E_F;
#endif
    begin_rows(&m, sum);
    for (int i = ITEM; chunk && i < 4 * ROWS_ROOM; i += GROUP_ITEMS) // all quarters have the top, one the total
        if (is_valid(&b, i / 4, ok)) {
            m.top[i] = pair[2 * (state + (ulong) (i / 4) * HEADS)];
            m.total[i] = i % 4 ? 0.0f : pair[2 * (state + (ulong) (i / 4) * HEADS) + 1];
        }
    for (int n = 0; chunk && n < ITEM_SUMS; n++)
        for (int i = 0; i < VALUE_ROWS; i++) {
            const int at = ITEM + n * GROUP_ITEMS, row = at / VALUE_VECTORS * VALUE_ROWS + i;
            if (is_valid(&b, row, ok))
                sum[n][i] = old[(state + (ulong) row * HEADS) * VALUE_VECTORS + at % VALUE_VECTORS];
        }
    load_queries(&b, ok, q + q_at + b.first * q_stride0 + h * q_stride1, q_stride0,
                 freqs + freqs_at + b.tok.position * freqs_stride0, freqs_stride0, score_scale, m.q);
    for (ulong base = r.from / TILE * TILE; base < r.to; base += TILE) {
        find_keys(&s, &m, base, r.from, r.to);
        barrier(CLK_LOCAL_MEM_FENCE); // which the sums of the last tile also need, before it is overwritten
        load_keys(&s, &m);
        barrier(CLK_LOCAL_MEM_FENCE);
        score_tile(&m);
        barrier(CLK_LOCAL_MEM_FENCE);
        load_values(&s, &m);
        finish_scores(&m, 1, b.n, base, b.tok.position - start, 0.0f); // a position from the chunk's start
        barrier(CLK_LOCAL_MEM_FENCE);
        weigh_scores(&m, 1, b.n, base);
        barrier(CLK_LOCAL_MEM_FENCE);
        add_values(&m, base < r.whole_from || base + TILE > r.whole_to, sum);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int n = 0; n < ITEM_SUMS; n++)
        for (int i = 0; i < VALUE_ROWS; i++) {
            const int at = ITEM + n * GROUP_ITEMS, row = at / VALUE_VECTORS * VALUE_ROWS + i, v = at % VALUE_VECTORS;
            if (!is_valid(&b, row, ok))
                continue;
            const ulong place = state + (ulong) row * HEADS;
            const float total = m.total[4 * row] + m.total[4 * row + 1] + m.total[4 * row + 2] + m.total[4 * row + 3];
            if (chunk + 1 == chunks) {
                FORMAT(Q_T, store)(output + output_at + (b.first + row) * output_stride0 + h * output_stride1 + LANES * v,
                                   total == 0.0f ? (floatn) 0.0f : sum[n][i] / total, min(LANES, VALUE_SIZE - LANES * v));
                continue;
            }
            old[place * VALUE_VECTORS + v] = sum[n][i];
            if (v == 0) {
                pair[2 * place] = m.top[4 * row];
                pair[2 * place + 1] = total;
            }
        }
}
