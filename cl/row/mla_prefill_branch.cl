// SPDX-License-Identifier: Apache-2.0
// MLA with K and V computed from the latents: mla_cache_rows, then for each chunk of the keys mla_chunk_rows, matmul with
// w_k and with w_uv, mla_chunk_attention. The workspace holds the chunk's K and V, and the state of the softmax.
#include "lib/paged.clh"
#include "lib/mla_row.clh"
#include "lib/mla_inputs.clh"
#include "lib/mla_chunk.clh"
#define HEAD_BLOCK 1 // a key of one head is no other head's
#include "lib/attention_row.clh"
#include "lib/mla_blocks.clh"

#ifndef Q_T
#error "Q_T, the type of q, must be defined"
#endif

// One slot of the chunk: the latent part of a key as the products take it, its rope part, and whether there is such a
// key at all, one that some query sees.
__kernel void mla_chunk_rows(PAGED_ARGS, CHUNK_ARGS, TENSOR1(uint, there), TENSOR1(float, latents), TENSOR1(float, ropes),
                             uint chunk)
{
    const uint i = get_global_id(0), b = get_global_id(1);
    if (count == 0 || i >= chunk_tokens)
        return;
    PAGED_INIT(c);
    const ulong slot = (ulong) b * chunk_tokens + i, key = (ulong) chunk * chunk_tokens + i;
    ulong row, scales_row, first, last;
    const bool seen = request_range(&c, b, reach, window, &first, &last) && key >= first && key < last &&
                      find_row(&c, c.row_offsets[b], b, key, &row, &scales_row);
    there[there_at + slot] = seen;
    if (!seen)
        return;
    float x[MLA_ROW_ROOM];
#if SCALE_GROUP
    load_groups(c.kv + row, c.scales + scales_row, x, 0, MLA_ROW_SIZE);
#else
    FORMAT(CACHE_T, load_row)(c.kv + row, x, MLA_ROW_SIZE);
#endif
    store_f32(x + LATENT, ropes + ropes_at + slot * ROPE_DIM, ROPE_DIM);
    quantise(x, LATENT);
    store_f32(x, latents + latents_at + slot * LATENT, LATENT);
}

// A row of q: rotated, rounded, with the scale of the scores.
static inline void load_query(__global const ELEM(Q_T) *from, __global const ELEM(FREQS_T) *angles, float scale, float *q)
{
    float x[LANES * KEY_VECTORS + LANES];
    struct rotation r;
    FORMAT(Q_T, load_row)(from, x, KEY_SIZE);
    if (ROPE_DIM) {
        load_rotation(angles, &r);
        rotate_private(x + NOPE, x + NOPE + 1, 2, &r);
    }
    for (int d = 0; d < KEY_SIZE; d += LANES)
        vstoren(FORMAT(Q_T, round)(lanes_of(x, d, KEY_SIZE)) * scale, 0, q + d);
}

// Which keys of the chunk, from its `start` on, the block's queries see, those without a place none. Keys [*from, *to)
// are seen by some.
static inline void find_ranges(const struct block *b, __global const uint *valid, uint window, ulong start, uint chunk_tokens,
                               struct attention *a, ulong *from, ulong *to)
{
    *from = chunk_tokens;
    *to = 0;
    a->kv_heads = a->heads = 1;
    a->tokens = b->n;
    a->cap = 0.0f;
    for (int i = 0; i < b->n; i++) {
        a->first[i] = a->last[i] = 0;
        a->position[i] = b->tok.position + i - start; // from the chunk's start: as a long, negative before it
        if (!is_valid(b, i, valid))
            continue;
        query_range(b, i, window, start, chunk_tokens, &a->first[i], &a->last[i]);
        *from = min(*from, a->first[i]);
        *to = max(*to, a->last[i]);
    }
}

static inline void load_state(__global const float *sum, __global const float *top, int i, struct attention *a)
{
    float total[LANES] = { top[1] };
    a->top[i] = top[0];
    a->total[i] = vloadn(0, total);
    for (int v = 0; v < VALUE_VECTORS; v++)
        a->sum[i * VALUE_VECTORS + v] = f32_load(sum + LANES * v, LANES);
}

static inline void store_state(const struct attention *a, int i, __global float *sum, __global float *top)
{
    top[0] = a->top[i];
    top[1] = lane_sum(a->total[i]);
    for (int v = 0; v < VALUE_VECTORS; v++)
        f32_store(sum + LANES * v, a->sum[i * VALUE_VECTORS + v], LANES);
}

static inline void store_output(const struct attention *a, int i, __global ELEM(Q_T) *to)
{
    const float total = lane_sum(a->total[i]);
    for (int v = 0; v < VALUE_VECTORS; v++)
        FORMAT(Q_T, store)(to + LANES * v, total == 0.0f ? (floatn) 0.0f : a->sum[i * VALUE_VECTORS + v] / total,
                           min(LANES, VALUE_SIZE - LANES * v));
}

// One head of a block of tokens, and a chunk of their request's keys. The first chunk begins the state, the last one
// divides it into the output.
ROW_KERNEL void mla_chunk_attention(PAGED_ARGS, CHUNK_ARGS, TENSOR1(const uint, valid), TENSOR1(const uint, there),
                                  TENSOR1(const float, keys), TENSOR1(const float, ropes), TENSOR1(const float, values),
                                  TENSOR3(const ELEM(Q_T), q), TENSOR2(const ELEM(FREQS_T), freqs), TENSOR1(float, sums),
                                  TENSOR1(float, tops), TENSOR3(ELEM(Q_T), output), float score_scale, uint chunks, uint chunk)
{
    const uint h = get_global_id(1);
    struct block b;
    struct attention a;
    ulong from, to;
    PAGED_INIT(c);
    if (count == 0 || !find_block(&c, get_global_id(0), TOKENS, reach, &b))
        return;
    __global const uint *ok = valid + valid_at + b.first;
    const ulong start = (ulong) chunk * chunk_tokens, state = (ulong) b.first * HEADS + h;
    find_ranges(&b, ok, window, start, chunk_tokens, &a, &from, &to);
    if (from >= to && chunk && chunk + 1 < chunks)
        return;
    SOURCE_INIT(s, b.tok.request, h);
#if ALIBI
    a.slope[0] = alibi_slope(h) * M_LOG2E_F;
#else
    a.slope[0] = 0.0f;
#endif
    begin_rows(&a);
    for (int i = 0; i < b.n; i++) {
        float *row = a.q + i * (LANES * KEY_VECTORS);
        if (!is_valid(&b, i, ok)) {
            for (int d = 0; d < LANES * KEY_VECTORS; d++)
                row[d] = 0.0f;
            continue;
        }
        load_query(q + q_at + (b.first + i) * q_stride0 + h * q_stride1,
                   freqs + freqs_at + (b.tok.position + i) * freqs_stride0, score_scale, row);
        if (chunk)
            load_state(sums + sums_at + (state + (ulong) i * HEADS) * (LANES * VALUE_VECTORS),
                       tops + tops_at + 2 * (state + (ulong) i * HEADS), i, &a);
    }
    attend(&s, &a, from / TILE, (to + TILE - 1) / TILE, from, to);
    for (int i = 0; i < b.n; i++) {
        if (!is_valid(&b, i, ok))
            continue;
        if (chunk + 1 == chunks)
            store_output(&a, i, output + output_at + (b.first + i) * output_stride0 + h * output_stride1);
        else
            store_state(&a, i, sums + sums_at + (state + (ulong) i * HEADS) * (LANES * VALUE_VECTORS),
                        tops + tops_at + 2 * (state + (ulong) i * HEADS));
    }
}
