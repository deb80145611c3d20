// SPDX-License-Identifier: Apache-2.0
// RoPE of Q into output and of the new K rows in the cache. Group set: teams of items take heads side by side, an item both
// elements of its pairs, and its angles serve all its heads; the groups of a token share them, so that few tokens fill the
// device.
// Local memory: none, but in a scaled cache 4 bytes an element of a head and 8 a scale group, since a group is stored again
// whole. Work-groups of GROUP_ITEMS: four heads of 128 rotated dims a step.
#include "lib/paged.clh"
#include "lib/scaled_head_group.clh"
#include "lib/rotate.clh"
#include "lib/sections.clh"

#if !defined(Q_T) || !defined(FREQS_T) || !defined(HEADS) || !defined(Q_SIZE) || !defined(INTERLEAVED) || \
    !defined(POSITION_IDS) || !defined(MROPE_SECTIONS)
#error "fused_qk_rope wants Q_T, FREQS_T, HEADS, Q_SIZE, INTERLEAVED, POSITION_IDS, MROPE_SECTIONS"
#endif

// First rotated dim of a head, and the dims of q that are only copied.
#define Q_FIRST (INTERLEAVED ? Q_SIZE - ROPE_DIM : 0)
#define K_FIRST (INTERLEAVED ? HEAD_SIZE - ROPE_DIM : 0)
#define COPY_FIRST (INTERLEAVED ? 0 : ROPE_DIM)
#define COPIED (Q_SIZE - ROPE_DIM)
#define COPY_VECTORS VECTORS(COPIED)

#if INTERLEAVED
#define ROTATE(format) FORMAT(format, rotate_pairs)
#else
#define ROTATE(format) FORMAT(format, rotate_halves)
#endif

// A token's q, its place in output, and its K rows.
struct rows {
    __global const ELEM(Q_T) *q;
    __global ELEM(Q_T) *output;
    ulong q_stride, output_stride;
    __global ELEM(CACHE_T) *k;
    __global float *scales;
};

// Where a token's angles stand: in the row of its position, or in those that the sections name.
struct angles {
    __global const ELEM(FREQS_T) *table;
    ulong stride, position;
    __global const uint *ids; // of the token
    ulong ids_stride;
};

// All of them, in every item alike, before anything is written.
static inline bool check_all_angles(const struct paged *c, uint t, const struct angles *a, uint rows)
{
#if MROPE_SECTIONS && ROPE_DIM
    for (int s = 0; s < MROPE_SECTIONS; s++)
        if (section_in_use(s) && !check_position(c, t, a->ids[s * a->ids_stride], rows))
            return false;
    return true;
#else
    return check_angles(c, t, a->position, rows);
#endif
}

static inline void load_angles(const struct angles *a, int v, floatn *cosine, floatn *sine)
{
#if MROPE_SECTIONS
    float c[LANES] = { 0 }, s[LANES] = { 0 };
    for (int i = 0; i < PAIRS_AT(v); i++) {
        const int p = LANES * v + i;
        const floatn pair = FORMAT(FREQS_T, load)(a->table + a->ids[section_of(p) * a->ids_stride] * a->stride + 2 * p, 2);
        c[i] = pair.s0;
        s[i] = pair.s1;
    }
    *cosine = vloadn(0, c);
    *sine = vloadn(0, s);
#else
    FORMAT(FREQS_T, load_pairs)(a->table + a->position * a->stride + 2 * LANES * v, PAIRS_AT(v), cosine, sine);
#endif
}

static inline void copy_queries(const struct rows *r)
{
    if (r->q == r->output)
        return;
    for (int v = ITEM % TEAM(COPY_VECTORS); v < COPY_VECTORS; v += TEAM(COPY_VECTORS))
        for (int h = TEAM_HEAD(COPY_VECTORS); h < HEADS; h += TEAM_STEP(COPY_VECTORS))
            FORMAT(Q_T, copy)(r->q + h * r->q_stride + COPY_FIRST + LANES * v,
                              r->output + h * r->output_stride + COPY_FIRST + LANES * v, LANES_IN(COPIED, v));
}

#if !SCALE_GROUP
static inline void rotate_key(__global ELEM(CACHE_T) *k, int v, floatn cosine, floatn sine)
{
    ROTATE(CACHE_T)(k, k, v, cosine, sine);
}
#endif

static inline void rotate_heads(const struct rows *r, const struct angles *a)
{
    for (int v = ITEM % TEAM(PAIR_VECTORS); v < PAIR_VECTORS; v += TEAM(PAIR_VECTORS)) {
        floatn cosine, sine;
        load_angles(a, v, &cosine, &sine);
        for (int h = TEAM_HEAD(PAIR_VECTORS); h < HEADS; h += TEAM_STEP(PAIR_VECTORS))
            ROTATE(Q_T)(r->q + h * r->q_stride + Q_FIRST, r->output + h * r->output_stride + Q_FIRST, v, cosine, sine);
#if !SCALE_GROUP
        for (int h = TEAM_HEAD(PAIR_VECTORS); h < KV_HEADS; h += TEAM_STEP(PAIR_VECTORS))
            rotate_key(r->k + (ulong) h * HEAD_SIZE + K_FIRST, v, cosine, sine);
#endif
    }
}

#if SCALE_GROUP
// Vector v of the pairs of a head whose rotated dims stand at x.
static inline void rotate_local(__local float *x, int v, floatn cosine, floatn sine)
{
    const int step = INTERLEAVED ? 2 : 1, apart = INTERLEAVED ? 1 : ROPE_PAIRS;
    __local float *first = x + step * LANES * v;
    float a[LANES] = { 0 }, b[LANES] = { 0 };
    for (int i = 0; i < PAIRS_AT(v); i++) {
        a[i] = first[step * i];
        b[i] = first[step * i + apart];
    }
    floatn re = vloadn(0, a), im = vloadn(0, b);
    rotate_lanes(cosine, sine, &re, &im);
    vstoren(re, 0, a);
    vstoren(im, 0, b);
    for (int i = 0; i < PAIRS_AT(v); i++) {
        first[step * i] = a[i];
        first[step * i + apart] = b[i];
    }
}

// A head of a scaled cache at a time, by all items: x holds its groups that have a rotated dim.
static inline void rotate_scaled_keys(const struct rows *r, const struct angles *a, __local float *x, __local uint *scales)
{
    for (int h = get_group_id(1); h < KV_HEADS; h += get_num_groups(1)) {
        __global uchar *k = r->k + (ulong) h * HEAD_SIZE;
        __global float *scale = r->scales + (ulong) h * SCALE_GROUPS;
        load_scaled_groups(k, scale, x, K_FIRST, K_FIRST + ROPE_DIM);
        barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
        for (int v = ITEM; v < PAIR_VECTORS; v += GROUP_ITEMS) {
            floatn cosine, sine;
            load_angles(a, v, &cosine, &sine);
            rotate_local(x + K_FIRST, v, cosine, sine);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        store_scaled_groups(k, scale, x, scales, K_FIRST, K_FIRST + ROPE_DIM);
    }
}
#endif

GROUP_KERNEL void fused_qk_rope(PAGED_ARGS, TENSOR3(const ELEM(Q_T), q), TENSOR3(ELEM(Q_T), output),
                                TENSOR2(const ELEM(FREQS_T), freqs), uint freqs_rows, TENSOR2(const uint, position_ids))
{
#if SCALE_GROUP && ROPE_DIM
    __local float x[HEAD_SIZE];
    __local uint scales[2 * SCALE_GROUPS];
#endif
    const uint t = get_group_id(0);
    if (t >= count)
        return;
    PAGED_INIT(c);
    struct token tok;
    if (ITEM == 0 && get_group_id(1) == 0)
        check_offsets(&c, t);
    if (!find_token(&c, t, &tok))
        return;
    __global const uint *ids = position_ids + position_ids_at + t;
    const struct angles a = { freqs + freqs_at, freqs_stride0, POSITION_IDS ? *ids : tok.position, ids, position_ids_stride0 };
    if (!check_all_angles(&c, t, &a, freqs_rows))
        return;
    const struct rows r = { q + q_at + t * q_stride0, output + output_at + t * output_stride0, q_stride1, output_stride1,
                            c.kv + tok.row, c.scales + tok.scales_row };
    copy_queries(&r);
    rotate_heads(&r, &a);
#if SCALE_GROUP && ROPE_DIM
    rotate_scaled_keys(&r, &a, x, scales);
#endif
}
