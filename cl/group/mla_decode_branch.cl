// SPDX-License-Identifier: Apache-2.0
// MLA decode with absorbed weights, in order: mla_cache_rows, mla_queries, matmul with w_uk, mla_attention,
// mla_combine, matmul with w_uv. The workspace passes q_full, partial sums and raw between them, in f32.
#include "lib/paged.clh"
#include "lib/mla_row_group.clh"
#include "lib/mask.clh"

#if !defined(Q_T) || !defined(HEADS) || !defined(NOPE) || !defined(MASK) || !defined(ALIBI) || !defined(QUANT_BLOCK) || \
    !defined(HEAD_BLOCK) || !defined(TILE) || !defined(TILE_T)
#error "mla_decode_branch wants Q_T, HEADS, NOPE, MASK, ALIBI, QUANT_BLOCK (0: none) and the tiles"
#endif

#if LANES != 4 || HEAD_BLOCK % 4 || TILE % 4
#error "mla_decode_branch wants vectors of 4 lanes, and HEAD_BLOCK and TILE multiples of 4"
#endif
#include "lib/mla_inputs_group.clh"
#include "lib/mla_attention_group.clh"

// One head of one token: q_nope as the projection takes it, q_rope rotated, rounded and scaled into q_full. Asks for
// local memory for q_nope, whose fp8 groups any items may share.
GROUP_KERNEL void mla_queries(PAGED_ARGS, TENSOR3(const ELEM(Q_T), q), TENSOR2(const ELEM(FREQS_T), freqs),
                              TENSOR1(const uint, valid), TENSOR1(float, q_nope), TENSOR1(float, q_full), float score_scale)
{
#if NOPE
    __local float row[NOPE];
    __local uint scales[QUANT_SCALES(NOPE)];
#endif
    const uint t = get_group_id(0), h = get_group_id(1);
    if (t >= count || !valid[valid_at + t])
        return;
    PAGED_INIT(c);
    struct token tok;
    if (!find_token(&c, t, &tok))
        return;
    __global const ELEM(Q_T) *from = q + q_at + t * q_stride0 + h * q_stride1;
    __global float *to = q_full + q_full_at + ((ulong) t * HEADS + h) * MLA_ROW_SIZE;
#if NOPE
    for (EACH_VECTOR(i, NOPE))
        put_local_lanes(FORMAT(Q_T, load)(from + i, min(LANES, NOPE - i)), row, i, NOPE);
    store_quantised(row, NOPE, q_nope + q_nope_at + ((ulong) t * HEADS + h) * NOPE, scales);
#else
    for (int i = ITEM; i < LATENT; i += GROUP_ITEMS)
        to[i] = 0.0f;
#endif
    for (EACH_VECTOR(p, ROPE_PAIRS)) {
        const int n = min(LANES, ROPE_PAIRS - p);
        floatn re, im, cosine, sine;
        FORMAT(Q_T, load_pairs)(from + NOPE + 2 * p, n, &re, &im);
        FORMAT(FREQS_T, load_pairs)(freqs + freqs_at + tok.position * freqs_stride0 + 2 * p, n, &cosine, &sine);
        rotate_lanes(cosine, sine, &re, &im);
        f32_store_pairs(to + LATENT + 2 * p, n, FORMAT(Q_T, round)(re) * score_scale, FORMAT(Q_T, round)(im) * score_scale);
    }
}

// One split of the keys for one token and block of heads. Asks for local memory for a tile of keys, read once for all
// heads of the block, and for their queries; the sums of all heads stay in the items' registers.
GROUP_KERNEL void mla_attention(PAGED_ARGS, TENSOR1(const uint, valid), TENSOR1(const float, q_full), TENSOR1(float, sums),
                                TENSOR1(float, tops), uint window)
{
    __local floatn q[HEAD_BLOCK * ROW_VECTORS], parts[SLICES * SLICE_STRIDE / LANES], weights[SCORES / LANES];
    __local tile_vec tile[TILE * ROW_VECTORS];
    __local ulong rows[TILE], scales_rows[TILE];
    __local float top[HEAD_BLOCK], next[HEAD_BLOCK], total[HEAD_BLOCK], fade[HEAD_BLOCK], slopes[ALIBI ? HEAD_BLOCK : 1];
    const uint t = get_group_id(0), block = get_group_id(1), split = get_group_id(2), splits = get_num_groups(2);
    if (t >= count || !valid[valid_at + t])
        return;
    PAGED_INIT(c);
    struct token tok;
    if (!find_token(&c, t, &tok))
        return;
    ulong first, last;
    key_range(tok.position, tok.keys, window, &first, &last);
    const ulong tiles = (last - first + TILE - 1) / TILE, from = tiles * split / splits, to = tiles * (split + 1) / splits;
    const ulong part = ((ulong) t * splits + split) * BLOCKS + block;
    const struct softmax m = { top, next, total, fade };
    __local float *scores = (__local float *) parts, *w = (__local float *) weights;
    floatn sum[HEAD_BLOCK][ITEM_VECTORS];
    for (int h = 0; h < HEAD_BLOCK; h++)
        for (int v = 0; v < ITEM_VECTORS; v++)
            sum[h][v] = 0.0f;
    for (int h = ITEM; h < HEAD_BLOCK; h += GROUP_ITEMS) {
        top[h] = -INFINITY;
        total[h] = 0.0f;
#if ALIBI
        slopes[h] = alibi_slope(block * HEAD_BLOCK + h) * M_LOG2E_F;
#endif
    }
    load_queries(q_full + q_full_at + (ulong) t * HEADS * MLA_ROW_SIZE, block * HEAD_BLOCK, q);
    for (ulong n = from; n < to; n++) {
        const ulong key = first + n * TILE;
        find_keys(&c, t, &tok, key, last, rows, scales_rows);
        barrier(CLK_LOCAL_MEM_FENCE); // which the sums of the last tile also need, before it is overwritten
        load_tile(&c, rows, scales_rows, tile);
        barrier(CLK_LOCAL_MEM_FENCE);
        score_tile(q, tile, scores);
        barrier(CLK_LOCAL_MEM_FENCE);
        join_slices(scores, rows, slopes, (long) tok.position - (long) key);
        barrier(CLK_LOCAL_MEM_FENCE);
        weigh_scores(&m, scores, w);
        barrier(CLK_LOCAL_MEM_FENCE);
        add_weights(&m, w);
        add_values(w, tile, fade, sum);
    }
    store_sums(sum, (__global floatn *) (sums + sums_at) + part * (HEAD_BLOCK * LATENT_VECTORS)); // zeros without keys
    __global float *pair = tops + tops_at + part * (2 * HEAD_BLOCK);
    for (int h = ITEM; h < HEAD_BLOCK; h += GROUP_ITEMS) { // the item's own, as add_weights left them
        pair[h] = top[h];
        pair[HEAD_BLOCK + h] = total[h];
    }
}

// Merges the splits of one head of one token: raw, rounded to q's type, as the second projection takes it. Asks for
// local memory for the splits' factors, which an item each works out, and for raw, as mla_queries does.
GROUP_KERNEL void mla_combine(uint count, TENSOR1(const uint, valid), TENSOR1(const float, sums), TENSOR1(const float, tops),
                              TENSOR1(float, raw), uint splits)
{
    __local float row[LATENT], factors[GROUP_ITEMS], totals[GROUP_ITEMS];
    __local uint scales[QUANT_SCALES(LATENT)];
    const uint t = get_group_id(0), h = get_group_id(1), block = h / HEAD_BLOCK, lane = h % HEAD_BLOCK;
    if (t >= count || !valid[valid_at + t])
        return;
    const ulong first = (ulong) t * splits * BLOCKS + block; // part of split s: first + s * BLOCKS
    __global const float *top = tops + tops_at + lane, *total = top + HEAD_BLOCK;
    float m = -INFINITY, l = 0.0f;
    for (uint s = ITEM; s < splits; s += GROUP_ITEMS)
        m = fmax(m, top[(first + (ulong) s * BLOCKS) * (2 * HEAD_BLOCK)]);
    m = group_max(m, factors);
    const float shift = m == -INFINITY ? 0.0f : m;
    floatn x[ITEM_VECTORS];
    for (int v = 0; v < ITEM_VECTORS; v++)
        x[v] = 0.0f;
    for (uint s0 = 0; s0 < splits; s0 += GROUP_ITEMS) {
        if (s0 + ITEM < splits) {
            const ulong at = (first + (ulong) (s0 + ITEM) * BLOCKS) * (2 * HEAD_BLOCK);
            factors[ITEM] = exp2(top[at] - shift);
            totals[ITEM] = total[at];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (uint i = 0; i < min(splits - s0, (uint) GROUP_ITEMS); i++) {
            if (totals[i] == 0.0f) // a split without keys
                continue;
            __global const floatn *sum = (__global const floatn *) (sums + sums_at) +
                                         ((first + (ulong) (s0 + i) * BLOCKS) * HEAD_BLOCK + lane) * LATENT_VECTORS;
            l += factors[i] * totals[i];
            for (int v = 0; v < ITEM_VECTORS; v++)
                if (vector_of_item(v) < LATENT_VECTORS)
                    x[v] = fma(sum[vector_of_item(v)], (floatn) factors[i], x[v]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int v = 0; v < ITEM_VECTORS; v++)
        if (vector_of_item(v) < LATENT_VECTORS)
            put_local_lanes(FORMAT(Q_T, round)(l == 0.0f ? (floatn) 0.0f : x[v] / l), row, LANES * vector_of_item(v), LATENT);
    store_quantised(row, LATENT, raw + raw_at + ((ulong) t * HEADS + h) * LATENT, scales);
}
