// SPDX-License-Identifier: Apache-2.0
// Attention over the paged cache: paged_attention, and where keys are split paged_combine. Group set: a work-group takes
// a unit for one block of a KV head's query heads.
#include "lib/paged.clh"
#include "lib/group.clh"
#include "lib/paged_values.clh"
#include "lib/attention_group.clh"
#include "lib/attention_units.clh"

#if !defined(Q_T) || !defined(OUT_T) || !defined(HEADS)
#error "paged_attention wants Q_T, OUT_T, HEADS"
#endif

#define GROUP_HEADS (HEADS / KV_HEADS)
#define BLOCKS ((GROUP_HEADS + HEAD_BLOCK - 1) / HEAD_BLOCK)

// `run`: tokens of a unit at most; an item of the grid has one KV head. Asks for local memory for the queries, and for a
// tile of keys and then of values, read once for all heads of the block.
GROUP_KERNEL void paged_attention(PAGED_ARGS, VALUE_ARGS, TENSOR3(const ELEM(Q_T), q), TENSOR1(const float, sinks),
                                  TENSOR3(ELEM(OUT_T), output), TENSOR2(float, lse), TENSOR1(float, sums), TENSOR1(float, tops),
                                  TENSOR1(const uint, schedule), uint units, uint splits, uint run, uint unit_heads, uint window,
                                  float q_scale, float cap)
{
    TILE_LOCAL(m);
    const uint x = get_group_id(0), y = get_group_id(1), z = get_group_id(2);
    if (count == 0)
        return;
    PAGED_INIT(c);
    if (units == 0 && y == 0 && z == 0 && ITEM == 0)
        check_offsets(&c, x);
    struct unit u;
    if (!find_unit(&c, schedule + schedule_at, units, x, run, z, splits, &u))
        return;
    const uint kv_head = y / BLOCKS * unit_heads, block = y % BLOCKS * HEAD_BLOCK, head = kv_head * GROUP_HEADS + block;
    const int heads = min(HEAD_BLOCK, (int) (GROUP_HEADS - block)), tokens = (int) u.tokens;
    SOURCE_INIT(s, &c, u.token, u.at.request, kv_head);
    TILE_INIT(m);
    floatn sum[ITEM_SUMS][VALUE_ROWS];
    ulong first = ~0ul, last = 0, whole_first = 0, whole_last = ~0ul, from, to;
    for (int t = 0; t < tokens; t++) { // every item, for the ranges of all
        ulong row, scales_row, token_first = 0, token_last = 0;
        if (find_row(&c, u.token + t, u.at.request, u.at.position + t, &row, &scales_row)) {
            key_range(u.at.position + t, u.at.keys, window, &token_first, &token_last);
            first = min(first, token_first);
            last = max(last, token_last);
        }
        whole_first = max(whole_first, token_first);
        whole_last = min(whole_last, token_last);
        if (ITEM == 0) {
            m.first[t] = token_first;
            m.last[t] = token_last;
        }
    }
    for (int i = ITEM; i < ROWS_ROOM * KEY_VECTORS; i += GROUP_ITEMS) {
        const int r = i / KEY_VECTORS, d = i % KEY_VECTORS * LANES, t = r / heads;
        m.q[i] = t < tokens ? FORMAT(Q_T, load)(q + q_at + (u.token + t) * q_stride0 + (head + r % heads) * q_stride1 + d,
                                                min(LANES, HEAD_SIZE - d)) * q_scale
                            : (floatn) 0.0f;
    }
#if ALIBI
    for (int h = ITEM; h < heads; h += GROUP_ITEMS)
        m.slope[h] = alibi_slope(head + h) * M_LOG2E_F;
#endif
    begin_rows(&m, sum);
    split_range(&c, &u, window, &from, &to);
    from = max(from, first / TILE);
    to = min(to, (last + TILE - 1) / TILE);
    for (ulong n = from; n < to; n++) {
        const ulong base = n * TILE;
        find_keys(&s, &m, base, first, last);
        barrier(CLK_LOCAL_MEM_FENCE); // which the sums of the last tile also need, before it is overwritten
        load_keys(&s, &m);
        barrier(CLK_LOCAL_MEM_FENCE);
        score_tile(&m);
        barrier(CLK_LOCAL_MEM_FENCE);
        load_values(&s, &m);
        finish_scores(&m, heads, tokens, base, u.at.position, cap);
        barrier(CLK_LOCAL_MEM_FENCE);
        weigh_scores(&m, heads, tokens, base);
        barrier(CLK_LOCAL_MEM_FENCE);
        add_values(&m, base < whole_first || base + TILE > whole_last, sum);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int n = 0; n < ITEM_SUMS; n++)
        for (int i = 0; i < VALUE_ROWS; i++) {
            const int at = ITEM + n * GROUP_ITEMS, r = at / VALUE_VECTORS * VALUE_ROWS + i, v = at % VALUE_VECTORS, t = r / heads;
            if (at >= SUMS || t >= tokens || m.last[t] == 0) // nothing is written for a token with a fault
                continue;
            const uint h = head + r % heads, token = u.token + t;
            const ulong part = (u.part + (ulong) t * u.splits) * HEADS + h;
            float top = m.top[4 * r], total = m.total[4 * r] + m.total[4 * r + 1] + m.total[4 * r + 2] + m.total[4 * r + 3];
            if (u.splits > 1) {
                f32_store(sums + sums_at + (part * VALUE_VECTORS + v) * LANES, sum[n][i], LANES);
                if (v == 0) {
                    tops[tops_at + 2 * part] = top;
                    tops[tops_at + 2 * part + 1] = total;
                }
                continue;
            }
            const float fade = sinks ? add_sink(sinks[sinks_at + h], &top, &total) : 1.0f;
            FORMAT(OUT_T, store)(output + output_at + token * output_stride0 + h * output_stride1 + LANES * v,
                                 total == 0.0f ? (floatn) 0.0f : sum[n][i] * fade / total, min(LANES, VALUE_SIZE - LANES * v));
            if (lse && v == 0)
                lse[lse_at + token * lse_stride0 + h] = lse_of(top, total);
        }
}

// Merges the splits of one head of one token.
GROUP_KERNEL void paged_combine(PAGED_ARGS, TENSOR1(const float, sinks), TENSOR3(ELEM(OUT_T), output), TENSOR2(float, lse),
                                TENSOR1(const float, sums), TENSOR1(const float, tops), TENSOR1(const uint, schedule), uint units,
                                uint splits)
{
    const uint t = get_group_id(0), h = get_group_id(1);
    if (t >= count)
        return;
    PAGED_INIT(c);
    struct token tok;
    ulong part;
    if (!find_token(&c, t, &tok) || !find_parts(&c, schedule + schedule_at, units, t, &tok, &splits, &part) || splits == 1)
        return;
    __global const float *top = tops + tops_at + 2 * (part * HEADS + h);
    __global const float *sum = sums + sums_at + (part * HEADS + h) * VALUE_VECTORS * LANES;
    float m = -INFINITY;
    for (uint s = 0; s < splits; s++)
        m = fmax(m, top[2ul * HEADS * s]);
    const float shift = shift_of(m);
    for (int v = ITEM; v < VALUE_VECTORS; v += GROUP_ITEMS) {
        floatn x = 0.0f;
        float total = 0.0f, most = m;
        for (uint s = 0; s < splits; s++) {
            const float weight = top[2ul * HEADS * s + 1], w = exp2(top[2ul * HEADS * s] - shift);
            if (weight == 0.0f) // a split without keys
                continue;
            total += w * weight;
            x = fma(f32_load(sum + ((ulong) HEADS * s * VALUE_VECTORS + v) * LANES, LANES), (floatn) w, x);
        }
        const float fade = sinks ? add_sink(sinks[sinks_at + h], &most, &total) : 1.0f;
        FORMAT(OUT_T, store)(output + output_at + t * output_stride0 + h * output_stride1 + LANES * v,
                             total == 0.0f ? (floatn) 0.0f : x * fade / total, min(LANES, VALUE_SIZE - LANES * v));
        if (lse && v == 0)
            lse[lse_at + t * lse_stride0 + h] = lse_of(most, total);
    }
}
