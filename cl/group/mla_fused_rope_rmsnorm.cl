// SPDX-License-Identifier: Apache-2.0
// Whole new rows of an MLA cache, and RoPE of Q's rope part. Group set: the groups of a token share its heads, and the first
// of them takes the row, whose latent part is summed over all items. A head's rope part is a few vectors: teams of items
// take heads side by side.
// Local memory: 4 bytes an element of the row, since norm, rotation and scale groups are shared out differently; 8 a scale
// group and 4 an item for the reductions. Work-groups of GROUP_ITEMS: at 512 + 64 dims two or three steps of the row.
#include "lib/paged.clh"
#include "lib/mla_row_group.clh"

#if !defined(Q_T) || !defined(OUT_T) || !defined(KV_INPUT_T) || !defined(HEADS)
#error "mla_fused_rope_rmsnorm wants Q_T, OUT_T, KV_INPUT_T, HEADS"
#endif

// The input normalised and rotated in local memory, as the cache is to hold it.
static inline void stage_row(__global const ELEM(KV_INPUT_T) *from, __local float *row, __local float *scratch,
                             __global const ELEM(GAMMA_T) *gamma, float epsilon, __global const ELEM(FREQS_T) *angles)
{
    for (EACH_VECTOR(i, MLA_ROW_SIZE))
        put_local_lanes(FORMAT(KV_INPUT_T, load)(from + i, min(LANES, MLA_ROW_SIZE - i)), row, i, MLA_ROW_SIZE);
    group_norm_and_rotate(row, gamma, epsilon, angles, scratch);
    for (EACH_VECTOR(i, ROPE_DIM))
        put_local_lanes(FORMAT(KV_INPUT_T, round)(local_lanes(row, LATENT + i, MLA_ROW_SIZE)), row, LATENT + i, MLA_ROW_SIZE);
    barrier(CLK_LOCAL_MEM_FENCE);
}

static inline void rotate_query(__global const ELEM(Q_T) *from, __global ELEM(OUT_T) *to, int v, floatn cosine, floatn sine)
{
    floatn re, im;
    FORMAT(Q_T, load_pairs)(from + 2 * LANES * v, PAIRS_AT(v), &re, &im);
    rotate_lanes(cosine, sine, &re, &im);
    FORMAT(OUT_T, store_pairs)(to + 2 * LANES * v, PAIRS_AT(v), FORMAT(Q_T, round)(re), FORMAT(Q_T, round)(im));
}

GROUP_KERNEL void mla_fused_rope_rmsnorm(PAGED_ARGS, TENSOR3(const ELEM(Q_T), q), TENSOR3(ELEM(OUT_T), output),
                                         TENSOR2(const ELEM(KV_INPUT_T), kv_input), TENSOR1(const ELEM(GAMMA_T), gamma),
                                         TENSOR2(const ELEM(FREQS_T), freqs), uint freqs_rows, float epsilon)
{
    __local float row[MLA_ROW_SIZE], scratch[GROUP_SCRATCH];
#if SCALE_GROUP
    __local uint scales[MLA_ROW_SCALES];
#else
    __local uint *const scales = 0;
#endif
    const uint t = get_group_id(0);
    if (t >= count)
        return;
    PAGED_INIT(c);
    struct token tok;
    if (ITEM == 0 && get_group_id(1) == 0)
        check_offsets(&c, t);
    if (!find_token(&c, t, &tok) || !check_angles(&c, t, tok.position, freqs_rows))
        return;
    __global const ELEM(FREQS_T) *angles = freqs + freqs_at + tok.position * freqs_stride0;
    for (int v = ITEM % TEAM(PAIR_VECTORS); v < PAIR_VECTORS; v += TEAM(PAIR_VECTORS)) {
        floatn cosine, sine;
        FORMAT(FREQS_T, load_pairs)(angles + 2 * LANES * v, PAIRS_AT(v), &cosine, &sine);
        for (int h = TEAM_HEAD(PAIR_VECTORS); h < HEADS; h += TEAM_STEP(PAIR_VECTORS))
            rotate_query(q + q_at + t * q_stride0 + h * q_stride1, output + output_at + t * output_stride0 + h * output_stride1,
                         v, cosine, sine);
    }
    // The row last, after a return: of barriers in a branch PoCL 3.1 makes wrong code.
    if (get_group_id(1) != 0)
        return;
    stage_row(kv_input + kv_input_at + t * kv_input_stride0, row, scratch, gamma + gamma_at, epsilon, angles);
    group_store_cache_row(&c, &tok, row, scales);
}
