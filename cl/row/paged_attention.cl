// SPDX-License-Identifier: Apache-2.0
// Attention over the paged cache: paged_attention, and where keys are split paged_combine. Row set: a work-item takes a
// unit for one block of a KV head's query heads.
#include "lib/paged.clh"
#include "lib/quant.clh"
#include "lib/paged_values.clh"
#include "lib/attention_row.clh"
#include "lib/attention_units.clh"

#if !defined(Q_T) || !defined(OUT_T) || !defined(HEADS)
#error "paged_attention wants Q_T, OUT_T, HEADS"
#endif

#define GROUP_HEADS (HEADS / KV_HEADS)
#define BLOCKS ((GROUP_HEADS + HEAD_BLOCK - 1) / HEAD_BLOCK)

// One head of one token: its sums, whatever the splits were, to the output.
static inline void finish(floatn *sum, float top, float total, __global const float *sink, __global ELEM(OUT_T) *to,
                          __global float *lse)
{
    float fade = 1.0f;
    if (sink)
        fade = add_sink(*sink, &top, &total);
    for (int v = 0; v < VALUE_VECTORS; v++)
        FORMAT(OUT_T, store)(to + LANES * v, total == 0.0f ? (floatn) 0.0f : sum[v] * fade / total,
                             min(LANES, VALUE_SIZE - LANES * v));
    if (lse)
        *lse = lse_of(top, total);
}

static inline void load_query(__global const ELEM(Q_T) *from, float factor, float *to)
{
    for (int d = 0; d < LANES * KEY_VECTORS; d += LANES)
        vstoren(FORMAT(Q_T, load)(from + d, min(LANES, HEAD_SIZE - d)) * factor, 0, to + d);
}

// `run`: tokens of a unit at most; `unit_heads`: KV heads of an item, which read neighbouring rows. Together they are
// at most TOKENS.
ROW_KERNEL void paged_attention(PAGED_ARGS, VALUE_ARGS, TENSOR3(const ELEM(Q_T), q), TENSOR1(const float, sinks),
                              TENSOR3(ELEM(OUT_T), output), TENSOR2(float, lse), TENSOR1(float, sums), TENSOR1(float, tops),
                              TENSOR1(const uint, schedule), uint units, uint splits, uint run, uint unit_heads, uint window,
                              float q_scale, float cap)
{
    const uint x = get_global_id(0), y = get_global_id(1), z = get_global_id(2);
    if (count == 0)
        return;
    PAGED_INIT(c);
    if (y == 0 && z == 0) {
        if (units)
            check_plan(&c, schedule + schedule_at, units, x);
        else
            check_offsets(&c, x);
    }
    struct unit u;
    if (!find_unit(&c, schedule + schedule_at, units, x, run, z, splits, &u))
        return;
    const uint kv_head = y / BLOCKS * unit_heads, block = y % BLOCKS * HEAD_BLOCK;
    const uint head = kv_head * GROUP_HEADS + block; // the first; of a KV head's, the block's
    SOURCE_INIT(s, &c, u.token, u.at.request, kv_head);
    struct attention a;
    a.kv_heads = min(unit_heads, KV_HEADS - kv_head);
    a.heads = min(HEAD_BLOCK, (int) (GROUP_HEADS - block));
    a.tokens = u.tokens;
    a.cap = cap;
    ulong first = ~0ul, last = 0, from, to;
    bool found[TOKENS];
    for (int t = 0; t < a.tokens; t++) {
        ulong row, scales_row;
        a.position[t] = u.at.position + t;
        found[t] = find_row(&c, u.token + t, u.at.request, a.position[t], &row, &scales_row);
        a.first[t] = a.last[t] = 0;
        if (!found[t])
            continue;
        key_range(a.position[t], u.at.keys, window, &a.first[t], &a.last[t]);
        first = min(first, a.first[t]);
        last = max(last, a.last[t]);
    }
    for (int k = 0; k < a.kv_heads; k++)
        for (int h = 0; h < a.heads; h++) {
            const uint at = head + k * GROUP_HEADS + h;
#if ALIBI
            a.slope[k * a.heads + h] = alibi_slope(at) * M_LOG2E_F;
#else
            a.slope[k * a.heads + h] = 0.0f;
#endif
            for (int t = 0; t < a.tokens; t++)
                load_query(q + q_at + (u.token + t) * q_stride0 + at * q_stride1, q_scale,
                           a.q + ((k * a.tokens + t) * a.heads + h) * (LANES * KEY_VECTORS));
        }
    split_range(&c, &u, window, &from, &to);
    from = max(from, first / TILE);
    to = min(to, (last + TILE - 1) / TILE);
    begin_rows(&a);
    attend(&s, &a, from, to, first, last);
    for (int r = 0; r < a.kv_heads * a.tokens * a.heads; r++) {
        const int h = r % a.heads, t = r / a.heads % a.tokens;
        const uint at = head + r / a.heads / a.tokens * GROUP_HEADS + h, token = u.token + t;
        const float total = lane_sum(a.total[r]);
        if (!found[t])
            continue;
        if (u.splits == 1) {
            finish(a.sum + r * VALUE_VECTORS, a.top[r], total, sinks ? sinks + sinks_at + at : 0,
                   output + output_at + token * output_stride0 + at * output_stride1,
                   lse ? lse + lse_at + token * lse_stride0 + at : 0);
            continue;
        }
        const ulong part = (u.part + (ulong) t * u.splits) * HEADS + at;
        for (int v = 0; v < VALUE_VECTORS; v++)
            f32_store(sums + sums_at + (part * VALUE_VECTORS + v) * LANES, a.sum[r * VALUE_VECTORS + v], LANES);
        tops[tops_at + 2 * part] = a.top[r];
        tops[tops_at + 2 * part + 1] = total;
    }
}

// Merges the splits of one head of one token.
ROW_KERNEL void paged_combine(PAGED_ARGS, TENSOR1(const float, sinks), TENSOR3(ELEM(OUT_T), output), TENSOR2(float, lse),
                            TENSOR1(const float, sums), TENSOR1(const float, tops), TENSOR1(const uint, schedule), uint units,
                            uint splits)
{
    const uint t = get_global_id(0), h = get_global_id(1);
    if (t >= count)
        return;
    PAGED_INIT(c);
    struct token tok;
    ulong part;
    if (!find_token(&c, t, &tok) || !find_parts(&c, schedule + schedule_at, units, t, &tok, &splits, &part) || splits == 1)
        return;
    __global const float *top = tops + tops_at + 2 * (part * HEADS + h);
    __global const float *sum = sums + sums_at + (part * HEADS + h) * VALUE_VECTORS * LANES;
    float m = -INFINITY, total = 0.0f;
    for (uint s = 0; s < splits; s++)
        m = fmax(m, top[2ul * HEADS * s]);
    const float shift = shift_of(m);
    floatn x[VALUE_VECTORS];
    for (int v = 0; v < VALUE_VECTORS; v++)
        x[v] = 0.0f;
    for (uint s = 0; s < splits; s++) {
        const float weight = top[2ul * HEADS * s + 1], w = exp2_of(top[2ul * HEADS * s] - shift);
        total += w * weight;
        for (int v = 0; v < VALUE_VECTORS; v++)
            x[v] = fma(f32_load(sum + ((ulong) HEADS * s * VALUE_VECTORS + v) * LANES, LANES), (floatn) w, x[v]);
    }
    finish(x, m, total, sinks ? sinks + sinks_at + h : 0, output + output_at + t * output_stride0 + h * output_stride1,
           lse ? lse + lse_at + t * lse_stride0 + h : 0);
}
