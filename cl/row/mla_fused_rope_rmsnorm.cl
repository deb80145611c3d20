// SPDX-License-Identifier: Apache-2.0
// Whole new rows of an MLA cache, and RoPE of Q's rope part. Row set: a work-item takes one token.
#include "lib/paged.clh"
#include "lib/mla_row.clh"

#if !defined(Q_T) || !defined(OUT_T) || !defined(KV_INPUT_T) || !defined(HEADS)
#error "mla_fused_rope_rmsnorm wants Q_T, OUT_T, KV_INPUT_T, HEADS"
#endif

static inline void rotate_query(__global const ELEM(Q_T) *from, __global ELEM(OUT_T) *to, const struct rotation *r)
{
#pragma unroll 16
    for (int v = 0; v < VECTORS(ROPE_PAIRS); v++) {
        float16 re, im;
        FORMAT(Q_T, load_pairs)(from + 32 * v, PAIRS_AT(v), &re, &im);
        rotate_lanes(r->cosine[v], r->sine[v], &re, &im);
        FORMAT(OUT_T, store_pairs)(to + 32 * v, PAIRS_AT(v), FORMAT(Q_T, round)(re), FORMAT(Q_T, round)(im));
    }
}

__kernel void mla_fused_rope_rmsnorm(PAGED_ARGS, TENSOR3(const ELEM(Q_T), q), TENSOR3(ELEM(OUT_T), output),
                                     TENSOR2(const ELEM(KV_INPUT_T), kv_input), TENSOR1(const ELEM(GAMMA_T), gamma),
                                     TENSOR2(const ELEM(FREQS_T), freqs), uint freqs_rows, float epsilon)
{
    const uint t = get_global_id(0);
    if (t >= count)
        return;
    PAGED_INIT(c);
    struct token tok;
    struct rotation r;
    check_offsets(&c, t);
    if (!find_token(&c, t, &tok) || !find_rotation(&c, t, tok.position, freqs + freqs_at, freqs_stride0, freqs_rows, &r))
        return;

    float x[MLA_ROW_ROOM];
    FORMAT(KV_INPUT_T, load_row)(kv_input + kv_input_at + t * kv_input_stride0, x, MLA_ROW_SIZE);
    norm_and_rotate(x, gamma + gamma_at, epsilon, &r);
    for (int i = LATENT; i < MLA_ROW_SIZE; i += 16)
        vstore16(FORMAT(KV_INPUT_T, round)(lanes_of(x, i, MLA_ROW_SIZE)), 0, x + i);
    store_cache_row(&c, &tok, x);

    for (int h = 0; ROPE_DIM && h < HEADS; h++)
        rotate_query(q + q_at + t * q_stride0 + h * q_stride1, output + output_at + t * output_stride0 + h * output_stride1, &r);
}
