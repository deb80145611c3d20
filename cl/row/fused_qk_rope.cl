// SPDX-License-Identifier: Apache-2.0
// RoPE of Q into output and of the new K rows in the cache. Row set: a work-item takes one token with all its
// heads, so that the table row is read and taken apart once.
#include "lib/paged.clh"
#include "lib/quant.clh"
#include "lib/rope.clh"
#include "lib/sections.clh"

#if !defined(Q_T) || !defined(FREQS_T) || !defined(HEADS) || !defined(Q_SIZE) || !defined(INTERLEAVED) || \
    !defined(POSITION_IDS) || !defined(MROPE_SECTIONS)
#error "fused_qk_rope wants Q_T, FREQS_T, HEADS, Q_SIZE, INTERLEAVED, POSITION_IDS, MROPE_SECTIONS"
#endif

// First rotated dim of a head.
#define Q_FIRST (INTERLEAVED ? Q_SIZE - ROPE_DIM : 0)
#define K_FIRST (INTERLEAVED ? HEAD_SIZE - ROPE_DIM : 0)

#if INTERLEAVED
#define ROTATE(format) FORMAT(format, rotate_pairs)
#else
#define ROTATE(format) FORMAT(format, rotate_halves)
#endif

static inline void rotate_query(__global const ELEM(Q_T) *from, __global ELEM(Q_T) *to, const struct rotation *r)
{
#pragma unroll 16
    for (int v = 0; v < VECTORS(ROPE_PAIRS); v++)
        ROTATE(Q_T)(from, to, v, r->cosine[v], r->sine[v]);
}

#if MROPE_SECTIONS && ROPE_DIM
// A row of the table put together from the rows that the sections name.
static inline bool load_sections(const struct paged *c, uint t, __global const uint *ids, ulong ids_stride,
                                 __global const ELEM(FREQS_T) *freqs, ulong freqs_stride, uint rows, struct rotation *r)
{
    float cosine[16 * ROPE_VECTORS], sine[16 * ROPE_VECTORS];
    for (int p = 0; p < ROPE_PAIRS; p++) {
        const uint id = ids[section_of(p) * ids_stride + t];
        if (!check_position(c, t, id, rows))
            return false;
        const float16 pair = FORMAT(FREQS_T, load)(freqs + id * freqs_stride + 2 * p, 2);
        cosine[p] = pair.s0;
        sine[p] = pair.s1;
    }
    for (int v = 0; v < VECTORS(ROPE_PAIRS); v++) {
        r->cosine[v] = vload16(v, cosine);
        r->sine[v] = vload16(v, sine);
    }
    return true;
}
#endif

static inline void rotate_key(const struct paged *c, const struct token *tok, int head, const struct rotation *r)
{
    __global ELEM(CACHE_T) *k = c->kv + tok->row + (ulong) head * HEAD_SIZE;
#if SCALE_GROUP
    __global float *scales = c->scales + tok->scales_row + (ulong) head * SCALE_GROUPS;
    float x[HEAD_SIZE];
    load_groups(k, scales, x, K_FIRST, K_FIRST + ROPE_DIM);
    if (INTERLEAVED)
        rotate_private(x + K_FIRST, x + K_FIRST + 1, 2, r);
    else
        rotate_private(x, x + ROPE_PAIRS, 1, r);
    store_groups(k, scales, x, K_FIRST, K_FIRST + ROPE_DIM);
#else
#pragma unroll 16
    for (int v = 0; v < VECTORS(ROPE_PAIRS); v++)
        ROTATE(CACHE_T)(k + K_FIRST, k + K_FIRST, v, r->cosine[v], r->sine[v]);
#endif
}

__kernel void fused_qk_rope(PAGED_ARGS, TENSOR3(const ELEM(Q_T), q), TENSOR3(ELEM(Q_T), output),
                            TENSOR2(const ELEM(FREQS_T), freqs), uint freqs_rows, TENSOR2(const uint, position_ids))
{
    const uint t = get_global_id(0);
    if (t >= count)
        return;
    PAGED_INIT(c);
    struct token tok;
    struct rotation r;
    check_offsets(&c, t);
    if (!find_token(&c, t, &tok))
        return;
    __global const uint *ids = position_ids + position_ids_at;
#if MROPE_SECTIONS && ROPE_DIM
    if (!load_sections(&c, t, ids, position_ids_stride0, freqs + freqs_at, freqs_stride0, freqs_rows, &r))
        return;
#else
    if (!find_rotation(&c, t, POSITION_IDS ? ids[t] : tok.position, freqs + freqs_at, freqs_stride0, freqs_rows, &r))
        return;
#endif
    for (int h = 0; h < HEADS; h++) {
        __global const ELEM(Q_T) *from = q + q_at + t * q_stride0 + h * q_stride1;
        __global ELEM(Q_T) *to = output + output_at + t * output_stride0 + h * output_stride1;
        FORMAT(Q_T, copy)(from, to, Q_FIRST);
        rotate_query(from + Q_FIRST, to + Q_FIRST, &r);
        FORMAT(Q_T, copy)(from + Q_FIRST + ROPE_DIM, to + Q_FIRST + ROPE_DIM, Q_SIZE - Q_FIRST - ROPE_DIM);
    }
    for (int h = 0; ROPE_DIM && h < KV_HEADS; h++)
        rotate_key(&c, &tok, h, &r);
}
