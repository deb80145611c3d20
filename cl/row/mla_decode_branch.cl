// SPDX-License-Identifier: Apache-2.0
// MLA decode with absorbed weights, in order: mla_cache_rows, mla_queries, matmul with w_uk, mla_attention,
// mla_combine, matmul with w_uv. The workspace passes q_full, partial sums and raw between them, in f32.
#include "lib/paged.clh"
#include "lib/mla_row.clh"
#include "lib/mla_inputs.clh"
#include "lib/mask.clh"
#include "lib/exp2.clh"

#if !defined(Q_T) || !defined(HEADS) || !defined(NOPE) || !defined(MASK) || !defined(ALIBI) || !defined(QUANT_BLOCK) || \
    !defined(HEAD_BLOCK) || !defined(TILE) || !defined(QK_HEADS) || !defined(QK_KEYS) || !defined(PV_HEADS) || \
    !defined(PV_VECTORS)
#error "mla_decode_branch wants Q_T, HEADS, NOPE, MASK, ALIBI, QUANT_BLOCK (0: none) and the tiles"
#endif

#define ROW_VECTORS VECTORS(MLA_ROW_SIZE)
#define LATENT_VECTORS VECTORS(LATENT)
#define HEAD_VECTORS VECTORS(HEAD_BLOCK)                                          // scores: lanes are heads
#define HEAD_ROWS ((HEAD_BLOCK + PV_HEADS - 1) / PV_HEADS * PV_HEADS)             // partial sums of a block
#define BLOCKS ((HEADS + HEAD_BLOCK - 1) / HEAD_BLOCK)

// One head of one token: q_nope as the projection takes it, q_rope rotated, rounded and scaled into q_full.
__kernel void mla_queries(PAGED_ARGS, TENSOR3(const ELEM(Q_T), q), TENSOR2(const ELEM(FREQS_T), freqs),
                          TENSOR1(const uint, valid), TENSOR1(float, q_nope), TENSOR1(float, q_full), float score_scale)
{
    const uint t = get_global_id(0), h = get_global_id(1);
    if (t >= count || !valid[valid_at + t])
        return;
    PAGED_INIT(c);
    struct token tok;
    struct rotation r;
    if (!find_token(&c, t, &tok))
        return;
    __global const ELEM(Q_T) *from = q + q_at + t * q_stride0 + h * q_stride1;
    __global float *to = q_full + q_full_at + ((ulong) t * HEADS + h) * MLA_ROW_SIZE;
#if NOPE
    float x[16 * VECTORS(NOPE)];
    FORMAT(Q_T, load_row)(from, x, NOPE);
    quantise(x, NOPE);
    store_f32(x, q_nope + q_nope_at + ((ulong) t * HEADS + h) * NOPE, NOPE);
#else
    for (int i = 0; i < LATENT; i++)
        to[i] = 0.0f;
#endif
    if (ROPE_DIM)
        load_rotation(freqs + freqs_at + tok.position * freqs_stride0, &r);
#pragma unroll 16
    for (int v = 0; v < VECTORS(ROPE_PAIRS); v++) {
        float16 re, im;
        FORMAT(Q_T, load_pairs)(from + NOPE + 32 * v, PAIRS_AT(v), &re, &im);
        rotate_lanes(r.cosine[v], r.sine[v], &re, &im);
        f32_store_pairs(to + LATENT + 32 * v, PAIRS_AT(v), FORMAT(Q_T, round)(re) * score_scale,
                        FORMAT(Q_T, round)(im) * score_scale);
    }
}

// Decodes keys [key, key + TILE) to f32. Keys past `last` and keys on a bad page are zeros and not in the mask
// that is returned.
static inline uint load_tile(const struct paged *c, uint t, const struct token *tok, ulong key, ulong last, float16 *tile)
{
    uint seen = 0;
    for (int i = 0; i < TILE; i++) {
        ulong row, scales_row;
        float16 *to = tile + i * ROW_VECTORS;
        if (key + i < last && find_row(c, t, tok->request, key + i, &row, &scales_row)) {
            seen |= 1u << i;
#if SCALE_GROUP && SCALE_GROUP % 16 == 0
            for (int v = 0; v < ROW_VECTORS; v++)
                to[v] = f8_e4m3_load(c->kv + row + 16 * v, min(16, MLA_ROW_SIZE - 16 * v)) *
                        c->scales[scales_row + 16 * v / SCALE_GROUP];
#elif SCALE_GROUP
            load_groups(c->kv + row, c->scales + scales_row, (float *) to, 0, MLA_ROW_SIZE);
            for (int j = MLA_ROW_SIZE; j < 16 * ROW_VECTORS; j++)
                ((float *) to)[j] = 0.0f;
#else
            for (int v = 0; v < ROW_VECTORS; v++)
                to[v] = FORMAT(CACHE_T, load)(c->kv + row + 16 * v, min(16, MLA_ROW_SIZE - 16 * v));
#endif
        } else {
            for (int v = 0; v < ROW_VECTORS; v++)
                to[v] = 0.0f;
        }
    }
    return seen;
}

// s[key][head] = q . key for a tile: lanes are heads, a key's element is broadcast, nothing is summed across lanes.
static inline void score_tile(const float16 *q, const float16 *tile, float16 *s)
{
    const float *k = (const float *) tile;
    for (int i0 = 0; i0 < TILE; i0 += QK_KEYS)
        for (int v0 = 0; v0 < HEAD_VECTORS; v0 += QK_HEADS) {
            float16 a[QK_KEYS][QK_HEADS];
#pragma unroll
            for (int i = 0; i < QK_KEYS; i++)
#pragma unroll
                for (int v = 0; v < QK_HEADS; v++)
                    a[i][v] = 0.0f;
            for (int d = 0; d < MLA_ROW_SIZE; d++) {
                float16 x[QK_HEADS];
#pragma unroll
                for (int v = 0; v < QK_HEADS; v++)
                    x[v] = q[d * HEAD_VECTORS + v0 + v];
#pragma unroll
                for (int i = 0; i < QK_KEYS; i++)
#pragma unroll
                    for (int v = 0; v < QK_HEADS; v++)
                        a[i][v] = fma(x[v], (float16) k[(i0 + i) * (16 * ROW_VECTORS) + d], a[i][v]);
            }
#pragma unroll
            for (int i = 0; i < QK_KEYS; i++)
#pragma unroll
                for (int v = 0; v < QK_HEADS; v++)
                    s[(i0 + i) * HEAD_VECTORS + v0 + v] = a[i][v];
        }
}

// Online softmax of a tile in base 2: scores become weights; old sums are to be multiplied by `fade`.
static inline void softmax_tile(float16 *s, uint seen, float16 *top, float16 *total, float16 *fade)
{
    for (int v = 0; v < HEAD_VECTORS; v++) {
        float16 m = top[v];
        for (int i = 0; i < TILE; i++) {
            if (!(seen >> i & 1u))
                s[i * HEAD_VECTORS + v] = -INFINITY;
            m = fmax(m, s[i * HEAD_VECTORS + v]);
        }
        // Where no key was seen yet the top is -inf; 0 in its place keeps -inf - -inf out.
        const float16 shift = select(m, (float16) 0.0f, m == -INFINITY);
        fade[v] = exp2_lanes(top[v] - shift);
        float16 l = total[v] * fade[v];
        for (int i = 0; i < TILE; i++) {
            const float16 p = exp2_lanes(s[i * HEAD_VECTORS + v] - shift);
            s[i * HEAD_VECTORS + v] = p;
            l += p;
        }
        top[v] = m;
        total[v] = l;
    }
}

// sum[head][dim] = sum * fade + weights . tile: lanes are dims.
static inline void weigh_tile(const float16 *weights, const float16 *tile, const float16 *fade, bool first, __global float16 *sum)
{
    const float *p = (const float *) weights, *f = (const float *) fade;
    for (int v0 = 0; v0 < LATENT_VECTORS; v0 += PV_VECTORS)
        for (int h0 = 0; h0 < HEAD_ROWS; h0 += PV_HEADS) {
            float16 a[PV_HEADS][PV_VECTORS];
#pragma unroll
            for (int h = 0; h < PV_HEADS; h++)
#pragma unroll
                for (int v = 0; v < PV_VECTORS; v++)
                    a[h][v] = first ? (float16) 0.0f : sum[(h0 + h) * LATENT_VECTORS + v0 + v] * f[h0 + h];
            for (int i = 0; i < TILE; i++) {
                float16 x[PV_VECTORS];
#pragma unroll
                for (int v = 0; v < PV_VECTORS; v++)
                    x[v] = tile[i * ROW_VECTORS + v0 + v];
#pragma unroll
                for (int h = 0; h < PV_HEADS; h++)
#pragma unroll
                    for (int v = 0; v < PV_VECTORS; v++)
                        a[h][v] = fma(x[v], (float16) p[i * (16 * HEAD_VECTORS) + h0 + h], a[h][v]);
            }
#pragma unroll
            for (int h = 0; h < PV_HEADS; h++)
#pragma unroll
                for (int v = 0; v < PV_VECTORS; v++)
                    sum[(h0 + h) * LATENT_VECTORS + v0 + v] = a[h][v];
        }
}

#if ALIBI
static inline void add_alibi(float16 *s, const float16 *slopes, ulong position, ulong key)
{
    for (int i = 0; i < TILE; i++) {
        const float distance = position > key + i ? (float) (position - key - i) : 0.0f;
        for (int v = 0; v < HEAD_VECTORS; v++)
            s[i * HEAD_VECTORS + v] -= slopes[v] * distance;
    }
}
#endif

static inline void load_queries(__global const float *q_full, int head, float16 *q)
{
    float *lane = (float *) q;
    for (int h = 0; h < 16 * HEAD_VECTORS; h++)
        for (int d = 0; d < MLA_ROW_SIZE; d++)
            lane[d * 16 * HEAD_VECTORS + h] =
                h < HEAD_BLOCK && head + h < HEADS ? q_full[(ulong) (head + h) * MLA_ROW_SIZE + d] : 0.0f;
}

// One split of the keys for one token and block of heads. Row set: the keys of a tile are decoded once to private
// f32 for all heads; the tiles of scores and sums stay in registers.
__kernel void mla_attention(PAGED_ARGS, TENSOR1(const uint, valid), TENSOR1(const float, q_full), TENSOR1(float, sums),
                            TENSOR1(float, tops), uint window)
{
    const uint t = get_global_id(0), block = get_global_id(1), split = get_global_id(2), splits = get_global_size(2);
    if (t >= count || !valid[valid_at + t])
        return;
    PAGED_INIT(c);
    struct token tok;
    if (!find_token(&c, t, &tok))
        return;
    ulong first, last;
    key_range(tok.position, tok.keys, window, &first, &last);
    const ulong tiles = (last - first + TILE - 1) / TILE, from = tiles * split / splits, to = tiles * (split + 1) / splits;

    float16 q[MLA_ROW_SIZE * HEAD_VECTORS], tile[TILE * ROW_VECTORS], s[TILE * HEAD_VECTORS];
    float16 top[HEAD_VECTORS], total[HEAD_VECTORS], fade[HEAD_VECTORS];
    load_queries(q_full + q_full_at + (ulong) t * HEADS * MLA_ROW_SIZE, block * HEAD_BLOCK, q);
#if ALIBI
    float16 slopes[HEAD_VECTORS];
    for (int h = 0; h < 16 * HEAD_VECTORS; h++)
        ((float *) slopes)[h] = alibi_slope(block * HEAD_BLOCK + h) * M_LOG2E_F;
#endif
    for (int v = 0; v < HEAD_VECTORS; v++) {
        top[v] = -INFINITY;
        total[v] = 0.0f;
    }
    const ulong part = ((ulong) t * splits + split) * BLOCKS + block;
    __global float16 *sum = (__global float16 *) (sums + sums_at) + part * (HEAD_ROWS * LATENT_VECTORS);
    for (ulong n = from; n < to; n++) {
        const uint seen = load_tile(&c, t, &tok, first + n * TILE, last, tile);
        score_tile(q, tile, s);
#if ALIBI
        add_alibi(s, slopes, tok.position, first + n * TILE);
#endif
        softmax_tile(s, seen, top, total, fade);
        weigh_tile(s, tile, fade, n == from, sum);
    }
    __global float16 *pair = (__global float16 *) (tops + tops_at) + part * (2 * HEAD_VECTORS);
    for (int v = 0; v < HEAD_VECTORS; v++) {
        pair[v] = top[v];
        pair[HEAD_VECTORS + v] = total[v];
    }
}

// Merges the splits of one head of one token: raw, rounded to q's type, as the second projection takes it.
__kernel void mla_combine(uint count, TENSOR1(const uint, valid), TENSOR1(const float, sums), TENSOR1(const float, tops),
                          TENSOR1(float, raw), uint splits)
{
    const uint t = get_global_id(0), h = get_global_id(1), block = h / HEAD_BLOCK, lane = h % HEAD_BLOCK;
    if (t >= count || !valid[valid_at + t])
        return;
    __global const float *top = tops + tops_at + lane, *total = top + 16 * HEAD_VECTORS;
    float m = -INFINITY, l = 0.0f;
    for (uint s = 0; s < splits; s++)
        m = fmax(m, top[(((ulong) t * splits + s) * BLOCKS + block) * (32 * HEAD_VECTORS)]);
    float16 x[LATENT_VECTORS];
    for (int v = 0; v < LATENT_VECTORS; v++)
        x[v] = 0.0f;
    for (uint s = 0; s < splits; s++) {
        const ulong part = ((ulong) t * splits + s) * BLOCKS + block;
        const float weight = total[part * (32 * HEAD_VECTORS)];
        if (weight == 0.0f) // a split without keys has written no sums
            continue;
        const float w = exp2(top[part * (32 * HEAD_VECTORS)] - (m == -INFINITY ? 0.0f : m));
        __global const float16 *sum = (__global const float16 *) (sums + sums_at) +
                                      (part * HEAD_ROWS + lane) * LATENT_VECTORS;
        l += w * weight;
        for (int v = 0; v < LATENT_VECTORS; v++)
            x[v] = fma(sum[v], w, x[v]);
    }
    for (int v = 0; v < LATENT_VECTORS; v++)
        x[v] = FORMAT(Q_T, round)(l == 0.0f ? (float16) 0.0f : x[v] / l);
    quantise((float *) x, LATENT);
    store_f32((const float *) x, raw + raw_at + ((ulong) t * HEADS + h) * LATENT, LATENT);
}
