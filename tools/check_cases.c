// SPDX-License-Identifier: Apache-2.0
// The one table of what `clinfer check` calls. A row is one set of compiled programs; what costs no compile
// (page sizes, lengths, layers, strides) varies in its batches. New operations add rows.
#include "check.h"

#include <stdio.h>

#define COUNT(a) (int) (sizeof(a) / sizeof((a)[0]))

// A request that starts in the middle of a page and crosses two edges, an empty one, one that decodes, one
// without a past; padding rows. MLA: the contexts of `long` take several tiles of keys and several splits.
static const struct synth_batch ragged = {
    "ragged", 4, 2, 1, 2, 4, { { 3, 6 }, { 5, 0 }, { 9, 1 }, { 0, 5 } }, true
};
static const struct synth_batch one = { "one", 16, 1, 0, 0, 1, { { 17, 1 } }, false };
static const struct synth_batch two = { "two", 1, 3, 2, 0, 2, { { 1, 1 }, { 4, 1 } }, true };
static const struct synth_batch odd = { "pages3", 3, 1, 0, 0, 3, { { 2, 1 }, { 3, 4 }, { 0, 2 } }, false };
static const struct synth_batch far = { "long", 16, 1, 0, 1, 3, { { 130, 2 }, { 31, 1 }, { 64, 1 } }, true };

static const struct synth_batch *const rows[] = { &ragged, &one, &two, &odd, NULL };
static const struct synth_batch *const many[] = { &ragged, &far, NULL };
static const struct synth_batch *const few[] = { &ragged, &one, &two, &far, NULL };

// Of matmul only T counts: it chooses the tile.
static const struct synth_batch three = { "three", 1, 1, 0, 0, 1, { { 0, 3 } }, false };
static const struct synth_batch seventy = { "seventy", 1, 1, 0, 0, 1, { { 0, 70 } }, false };
static const struct synth_batch *const tiles[] = { &one, &two, &three, &seventy, NULL };
static const struct synth_batch *const ends[] = { &one, &seventy, NULL };

// Types of a cache. g: elements a scale, G: scales a head.
#define F32          "kv_blocks=F32 "
#define F16          "kv_blocks=F16 "
#define BF16         "kv_blocks=BF16 "
#define F8           "kv_blocks=F8_E4M3 "
#define SCALED(g, G) "kv_blocks=F8_E4M3 kv_scales=F32 kv_scale_granularity=" #g " G=" #G " "

// q and the table of angles.
#define ROPE(q, freqs)        "p=2 q_proj=" #q " freqs_cis=" #freqs " "
#define HEADS(h, k, q, d)     "H=" #h " K=" #k " Q=" #q " D=" #d " "
#define ROTATE(r, neighbours) "R=" #r " interleaved=" #neighbours " "

#define NORM(t, k, d, n) "p=2 gamma=" #t " K=" #k " D=" #d " g=" #n " "
#define FLAGS(heads, first, w, e)                                                                            \
    "per_head_norm=" #heads " multiply_before_cast=" #first " weight_offset=" #w " epsilon=" #e

#define STORE(q, out, in, gamma, freqs)                                                                      \
    "p=1 K=1 epsilon=1e-6 q_rope=" #q " out_rope_dtype=" #out " kv_input=" #in " gamma=" #gamma              \
    " freqs_cis=" #freqs " "
#define LATENT(h, c, r, d) "H=" #h " C=" #c " R=" #r " D=" #d " "

#define DECODE(q, gamma, freqs) "p=1 K=1 epsilon=1e-6 q=" #q " kv_norm_gamma=" #gamma " freqs_cis=" #freqs " "
// Few shapes, so that the projections share their programs. X is N + R.
#define SMALL(h)   "H=" #h " C=64 R=16 D=80 N=32 X=48 V=32 scale=0.15 "
#define WEIGHTS(t) "w_uk=" #t " w_uv=" #t " "
#define QUANTISED(i, j, k, l)                                                                                \
    "w_uk=F8_E4M3 w_uv=F8_E4M3 w_uk_scale=F32 w_uv_scale=F32 m_scale_granularity=1 i=" #i " j=" #j " k=" #k  \
    " l=" #l " "
// Z is H * N.
#define PREFILL_SMALL(h, z) "H=" #h " C=64 R=16 D=80 Z=" #z " X=48 V=32 scale=0.15 "
#define PREFILL_WEIGHTS(t)  "w_k=" #t " w_uv=" #t " "
#define PREFILL_QUANTISED(i, j, k, l)                                                                        \
    "w_k=F8_E4M3 w_uv=F8_E4M3 w_k_scale=F32 w_uv_scale=F32 m_scale_granularity=1 i=" #i " j=" #j " k=" #k    \
    " l=" #l " "
#define BLOCKS(n, k)    "n_scale_granularity=" #n " k_scale_granularity=" #k " "
#define WINDOW(mask, w) "mask=" #mask " local_window_size=" #w

// W is V's head size: D where V lies in the second plane. u, w: planes and scales a head of V's own cache.
#define K_ROWS(t, k, d)    "K=" #k " D=" #d " k=" #t " "
#define V_ROWS(t, d)       "v=" #t " W=" #d " "
#define BOTH(t, k, d)      "p=2 K=" #k " D=" #d " k=" #t " v=" #t " W=" #d " "
#define OWN_V(t)           "v_blocks=" #t " u=1 "
#define OWN_V_SCALED(g, w) "v_blocks=F8_E4M3 u=1 v_scales=F32 v_scale_granularity=" #g " w=" #w " "

// Of operations without a cache: a batch is then a number of rows.
#define ROWS(x, gamma, n)  "x=" #x " gamma=" #gamma " g=" #n " "
#define CAST_FIRST         "multiply_before_cast=0 epsilon=1e-6 "
#define STATES(a, b, h, v) "out_a=" #a " out_b=" #b " H=" #h " V=" #v
// N rows and Kd columns of w; h: products of a batch; i, j: blocks of scales.
#define MM(x_type, w_type, n, k) "x=" #x_type " w=" #w_type " U=" #n " E=" #k " "
// As above, V's beside a query of type q.
#define ATTEND(q, h, k, d) "q=" #q " H=" #h " K=" #k " D=" #d " scale=0.2 "
#define V_BESIDE(d)        "p=2 W=" #d " "
#define V_OWN(d)           "p=1 W=" #d " "

static const struct {
    struct synth call;
    const struct synth_batch *const *batches;
    bool in_place;
} table[] = {
#define ROW(name, text)                                                                                      \
    {                                                                                                        \
        { "fused_qk_rope", name, text }, rows, false                                                         \
    }
#define IN_PLACE(name, text)                                                                                 \
    {                                                                                                        \
        { "fused_qk_rope", name, text }, rows, true                                                          \
    }
    ROW("pairs-f32", HEADS(4, 2, 64, 64) ROPE(F32, F32) F32 ROTATE(64, 1)),
    ROW("halves-bf16", HEADS(9, 3, 64, 64) ROPE(BF16, F32) BF16 ROTATE(64, 0)),
    ROW("pairs-f16", HEADS(5, 1, 64, 64) ROPE(F16, F16) F16 ROTATE(64, 1)),
    ROW("halves-f16-bf16freqs-f32", HEADS(16, 4, 64, 64) ROPE(F16, BF16) F32 ROTATE(64, 0)),
    ROW("pairs-f32-f16freqs-bf16", HEADS(3, 1, 96, 96) ROPE(F32, F16) BF16 ROTATE(96, 1)),
    ROW("halves-f32-f16", HEADS(1, 1, 64, 64) ROPE(F32, F32) F16 ROTATE(64, 0)),
    ROW("pairs-bf16-f8", HEADS(16, 4, 128, 128) ROPE(BF16, BF16) F8 ROTATE(128, 1)),
    ROW("halves-f32-f8", HEADS(3, 3, 64, 64) ROPE(F32, F32) F8 ROTATE(64, 0)),
    ROW("halves-bf16-scaled", HEADS(6, 2, 64, 64) ROPE(BF16, F32) SCALED(32, 2) ROTATE(64, 0)),
    ROW("pairs-f32-scaled-tail", HEADS(5, 5, 80, 80) ROPE(F32, F32) SCALED(24, 4) ROTATE(32, 1)),
    ROW("halves-f16-scaled-tail", HEADS(2, 2, 80, 80) ROPE(F16, F16) SCALED(24, 4) ROTATE(32, 0)),
    ROW("pairs-bf16-scaled-whole", HEADS(4, 1, 64, 64) ROPE(BF16, F32) SCALED(64, 1) ROTATE(64, 1)),
    ROW("halves-partial", HEADS(4, 2, 128, 128) ROPE(F16, F32) F16 ROTATE(64, 0)),
    ROW("pairs-partial", HEADS(4, 2, 128, 128) ROPE(BF16, F32) BF16 ROTATE(32, 1)),
    ROW("pairs-mla-widths", HEADS(16, 1, 192, 576) ROPE(BF16, F32) BF16 ROTATE(64, 1)),
    ROW("halves-odd", HEADS(3, 1, 20, 20) ROPE(F32, F32) F32 ROTATE(6, 0)),
    ROW("pairs-odd", HEADS(3, 1, 13, 27) ROPE(BF16, BF16) BF16 ROTATE(10, 1)),
    ROW("halves-ids", HEADS(4, 2, 64, 64) ROPE(BF16, F32) BF16 ROTATE(64, 0) "position_ids=U32 n=1"),
    ROW("pairs-ids", HEADS(4, 2, 64, 64) ROPE(F32, F32) F8 ROTATE(64, 1) "position_ids=U32 n=1"),
    ROW("halves-mrope", HEADS(8, 2, 128, 128) ROPE(BF16, F32)
                            BF16 ROTATE(128, 0) "position_ids=U32 n=3 mrope_section=32,80,128"),
    ROW("pairs-mrope", HEADS(2, 2, 64, 64) ROPE(F32, F16) SCALED(16, 4)
                           ROTATE(64, 1) "position_ids=U32 n=2 mrope_section=20,40"),
    ROW("halves-40-heads", HEADS(40, 8, 128, 128) ROPE(BF16, F32) BF16 ROTATE(128, 0)),
    ROW("pairs-128-heads", HEADS(128, 1, 64, 64) ROPE(F16, F32) F16 ROTATE(64, 1)),
    IN_PLACE("pairs-in-place", HEADS(9, 3, 64, 64) ROPE(BF16, F32) BF16 ROTATE(64, 1)),
    IN_PLACE("halves-in-place", HEADS(4, 2, 256, 256) ROPE(F32, F32) F32 ROTATE(256, 0)),
#undef ROW
#undef IN_PLACE

#define ROW(name, text)                                                                                      \
    {                                                                                                        \
        { "rms_norm_kv_cache", name, text }, rows, false                                                     \
    }
    ROW("f32", NORM(F32, 2, 64, 64) F32 FLAGS(1, 1, 0, 1e-6)),
    ROW("bf16", NORM(BF16, 8, 128, 128) BF16 FLAGS(1, 1, 0, 1e-6)),
    ROW("f16", NORM(F16, 3, 64, 64) F16 FLAGS(1, 1, 0, 1e-5)),
    ROW("bf16-f32", NORM(BF16, 5, 64, 64) F32 FLAGS(1, 1, 0, 1e-6)),
    ROW("f32-bf16", NORM(F32, 1, 64, 64) BF16 FLAGS(1, 1, 1, 1e-6)),
    ROW("f32-f16", NORM(F32, 9, 32, 32) F16 FLAGS(1, 1, 0, 1e-6)),
    ROW("f16-f8", NORM(F16, 2, 64, 64) F8 FLAGS(1, 1, 0, 1e-6)),
    ROW("bf16-f8", NORM(BF16, 2, 128, 128) F8 FLAGS(1, 1, 0, 1e-6)),
    ROW("bf16-scaled", NORM(BF16, 2, 64, 64) SCALED(32, 2) FLAGS(1, 1, 0, 1e-6)),
    ROW("f32-scaled-tail", NORM(F32, 3, 80, 80) SCALED(24, 4) FLAGS(1, 1, 0, 1e-6)),
    ROW("short", NORM(BF16, 2, 64, 40) BF16 FLAGS(1, 1, 0, 1e-6)),
    ROW("short-scaled", NORM(F32, 2, 80, 40) SCALED(24, 4) FLAGS(1, 1, 0, 1e-6)),
    ROW("cast-first-bf16", NORM(BF16, 2, 64, 64) BF16 FLAGS(1, 0, 1, 1e-6)),
    ROW("cast-first-f16-f32", NORM(F16, 4, 64, 64) F32 FLAGS(1, 0, 0.5, 1e-6)),
    ROW("cast-first-scaled", NORM(BF16, 1, 64, 64) SCALED(16, 4) FLAGS(1, 0, 1, 1e-6)),
    ROW("odd", NORM(F32, 3, 13, 13) F32 FLAGS(1, 1, 0, 0)),
    ROW("odd-bf16", NORM(BF16, 1, 27, 26) BF16 FLAGS(1, 1, 0, 1e-6)),
    ROW("wide", NORM(BF16, 1, 576, 576) BF16 FLAGS(1, 1, 0, 1e-6)),
    ROW("row-f32", NORM(F32, 4, 64, 256) F32 FLAGS(0, 1, 0, 1e-6)),
    ROW("row-bf16", NORM(BF16, 8, 128, 1024) BF16 FLAGS(0, 1, 0, 1e-6)),
    ROW("row-prefix-f16", NORM(F16, 5, 40, 130) F16 FLAGS(0, 1, 0, 1e-6)),
    ROW("row-f8", NORM(BF16, 16, 64, 1024) F8 FLAGS(0, 1, 0, 1e-6)),
    ROW("row-scaled-tail", NORM(F32, 3, 80, 170) SCALED(24, 4) FLAGS(0, 1, 0, 1e-6)),
    ROW("row-cast-first", NORM(BF16, 9, 32, 288) F32 FLAGS(0, 0, 1, 1e-6)),
    ROW("row-40-heads", NORM(BF16, 40, 64, 2560) BF16 FLAGS(0, 1, 0, 1e-6)),
#undef ROW

#define ROW(name, text)                                                                                      \
    {                                                                                                        \
        { "mla_fused_rope_rmsnorm", name, text }, rows, false                                                \
    }
#define IN_PLACE(name, text)                                                                                 \
    {                                                                                                        \
        { "mla_fused_rope_rmsnorm", name, text }, rows, true                                                 \
    }
    ROW("f32", LATENT(4, 64, 16, 80) STORE(F32, F32, F32, F32, F32) F32),
    ROW("bf16", LATENT(16, 512, 64, 576) STORE(BF16, BF16, BF16, BF16, F32) BF16),
    ROW("f16", LATENT(5, 64, 16, 80) STORE(F16, F16, F16, F16, F16) F16),
    ROW("bf16-f8", LATENT(3, 64, 16, 80) STORE(BF16, F8_E4M3, BF16, BF16, BF16) F8),
    ROW("f32-f8", LATENT(9, 64, 16, 80) STORE(F32, F8_E4M3, F32, F32, F32) F8),
    ROW("bf16-scaled", LATENT(16, 512, 64, 576) STORE(BF16, BF16, BF16, BF16, F32) SCALED(64, 9)),
    ROW("f32-scaled-tail", LATENT(1, 64, 16, 80) STORE(F32, F32, F32, F32, F32) SCALED(24, 4)),
    ROW("f16-scaled-whole", LATENT(2, 48, 16, 64) STORE(F16, F16, F16, F32, F32) SCALED(64, 1)),
    ROW("f32-to-bf16", LATENT(4, 64, 16, 80) STORE(F32, BF16, F32, BF16, F32) BF16),
    ROW("bf16-to-f32", LATENT(4, 64, 16, 80) STORE(BF16, F32, BF16, F32, F32) F32),
    ROW("f16-to-bf16", LATENT(4, 64, 16, 80) STORE(F16, BF16, F16, BF16, F32) BF16),
    ROW("bf16-to-f16", LATENT(4, 64, 16, 80) STORE(BF16, F16, BF16, F16, BF16) F16),
    ROW("f16-q-f32-rows", LATENT(4, 64, 16, 80) STORE(F16, F8_E4M3, F32, F16, F32) F16),
    ROW("no-rope", LATENT(2, 64, 0, 64) STORE(BF16, BF16, BF16, BF16, F32) BF16),
    ROW("odd", LATENT(3, 13, 6, 19) STORE(F32, F32, F32, F32, F32) F32),
    ROW("odd-scaled", LATENT(3, 33, 10, 43) STORE(BF16, BF16, BF16, BF16, F32) SCALED(8, 6)),
    ROW("40-heads", LATENT(40, 128, 32, 160) STORE(BF16, BF16, BF16, BF16, F32) BF16),
    ROW("128-heads", LATENT(128, 64, 64, 128) STORE(BF16, F8_E4M3, BF16, BF16, F32) F8),
    IN_PLACE("in-place", LATENT(9, 64, 16, 80) STORE(BF16, BF16, BF16, BF16, F32) BF16),
#undef ROW
#undef IN_PLACE

#define ROW(name, batches, text)                                                                             \
    {                                                                                                        \
        { "mla_decode_branch", name, text }, batches, false                                                  \
    }
    ROW("f32", few, SMALL(4) DECODE(F32, F32, F32) F32 WEIGHTS(F32)),
    ROW("bf16", few, SMALL(16) DECODE(BF16, BF16, F32) BF16 WEIGHTS(BF16)),
    ROW("f16", many, SMALL(5) DECODE(F16, F16, F16) F16 WEIGHTS(F16)),
    ROW("bf16-f8", many, SMALL(3) DECODE(BF16, BF16, BF16) F8 WEIGHTS(BF16)),
    ROW("bf16-scaled", many, SMALL(9) DECODE(BF16, BF16, F32) SCALED(16, 5) WEIGHTS(BF16)),
    ROW("bf16-scaled-tail", many, SMALL(1) DECODE(BF16, F32, F32) SCALED(24, 4) WEIGHTS(BF16)),
    ROW("f8-weights", few, SMALL(16) DECODE(BF16, BF16, F32) F8 QUANTISED(4, 2, 2, 4) BLOCKS(16, 16)),
    ROW("f8-weights-tail", many, SMALL(3) DECODE(F32, F32, F32) F32 QUANTISED(3, 2, 2, 3) BLOCKS(24, 24)),
    ROW("f32-f16-weights", many, SMALL(4) DECODE(F32, BF16, F32) BF16 WEIGHTS(F16)),
    ROW("causal-40", many, SMALL(40) DECODE(BF16, BF16, F32) BF16 WEIGHTS(BF16)),
    ROW("causal-128", many, SMALL(128) DECODE(BF16, BF16, F32) BF16 WEIGHTS(BF16)),
    ROW("all-keys", many, SMALL(9) DECODE(F32, F32, F32) F32 WEIGHTS(F32) "mask=null"),
    ROW("chunked", many, SMALL(9) DECODE(F32, F32, F32) F32 WEIGHTS(F32) WINDOW(chunked, 7)),
    ROW("chunked-causal", many,
        SMALL(9) DECODE(BF16, BF16, F32) BF16 WEIGHTS(BF16) WINDOW(chunked_causal, 33)),
    ROW("window", many, SMALL(9) DECODE(F32, F32, F32) F32 WEIGHTS(F32) WINDOW(sliding_window_causal, 40)),
    ROW("alibi", many, SMALL(9) DECODE(F32, F32, F32) F32 WEIGHTS(F32) "score_mod=alibi"),
    ROW("no-rope", many,
        "H=4 C=64 R=0 D=64 N=32 X=32 V=32 scale=0.15 " DECODE(F32, F32, F32) F32 WEIGHTS(F32)),
    ROW("no-nope", many,
        "H=4 C=64 R=16 D=80 N=0 X=16 V=32 scale=0.15 " DECODE(F32, F32, F32) F32 WEIGHTS(F32)),
    ROW("odd", many, "H=3 C=27 R=6 D=33 N=13 X=19 V=11 scale=0.2 " DECODE(F32, F32, F32) F32 WEIGHTS(F32)),
    ROW("deepseek", many,
        "H=16 C=512 R=64 D=576 N=128 X=192 V=128 scale=0.07 " DECODE(BF16, BF16, F32)
            BF16 QUANTISED(4, 1, 1, 4) BLOCKS(128, 128)),
#undef ROW

#define ROW(name, text)                                                                                      \
    {                                                                                                        \
        { "kv_store", name, text }, rows, false                                                              \
    }
    ROW("f32", BOTH(F32, 2, 64) F32),
    ROW("bf16", BOTH(BF16, 8, 128) BF16),
    ROW("f32-f16", BOTH(F32, 9, 32) F16),
    ROW("f32-bf16", BOTH(F32, 1, 64) BF16),
    ROW("bf16-f16", BOTH(BF16, 3, 64) F16),
    ROW("f16-bf16", BOTH(F16, 5, 40) BF16),
    ROW("f16-f32-odd", BOTH(F16, 3, 13) F32),
    ROW("bf16-odd", BOTH(BF16, 2, 27) BF16),
    ROW("bf16-f8", BOTH(BF16, 2, 128) F8),
    ROW("f32-f8-odd", BOTH(F32, 3, 19) F8),
    ROW("bf16-scaled", BOTH(BF16, 2, 64) SCALED(32, 2)),
    ROW("f32-scaled-tail", BOTH(F32, 3, 80) SCALED(24, 4)),
    ROW("f16-scaled-whole", BOTH(F16, 40, 48) SCALED(64, 1)),
    ROW("k-only", "p=2 " K_ROWS(F16, 4, 64) F16),
    ROW("mla-bf16", "p=1 " K_ROWS(BF16, 1, 576) BF16),
    ROW("mla-scaled", "p=1 " K_ROWS(BF16, 1, 576) SCALED(64, 9)),
    ROW("two-types", "p=2 " K_ROWS(BF16, 2, 64) V_ROWS(F32, 64) BF16),
    ROW("own-v", "p=1 " K_ROWS(BF16, 4, 128) V_ROWS(BF16, 72) BF16 OWN_V(F16)),
    ROW("own-v-second-plane-stays", "p=2 " K_ROWS(F32, 3, 20) V_ROWS(F32, 20) F32 OWN_V(F8_E4M3)),
    ROW("own-v-scaled-tail", "p=1 " K_ROWS(BF16, 2, 40) V_ROWS(F16, 56) BF16 OWN_V_SCALED(24, 3)),
    ROW("both-scaled", "p=1 " K_ROWS(F32, 5, 27) V_ROWS(F32, 64) SCALED(8, 4) OWN_V_SCALED(32, 2)),
#undef ROW

#define ROW(name, text)                                                                                      \
    {                                                                                                        \
        { "silu_mul", name, text }, rows, false                                                              \
    }
    ROW("f32", "x=F32 Y=256"),
    ROW("f16", "x=F16 Y=128"),
    ROW("bf16", "x=BF16 Y=3072"),
    ROW("f32-odd", "x=F32 Y=38"),
    ROW("f16-one", "x=F16 Y=2"),
    ROW("bf16-odd", "x=BF16 Y=1090"),
#undef ROW

#define ROW(name, text)                                                                                      \
    {                                                                                                        \
        { "rms_norm", name, text }, rows, false                                                              \
    }
#define IN_PLACE(name, text)                                                                                 \
    {                                                                                                        \
        { "rms_norm", name, text }, rows, true                                                               \
    }
    ROW("f32", ROWS(F32, F32, 256) "epsilon=1e-6"),
    ROW("bf16", ROWS(BF16, BF16, 4096) "epsilon=1e-6"),
    ROW("f16", ROWS(F16, F16, 1500) "epsilon=1e-5 weight_offset=1"),
    ROW("bf16-f32", ROWS(BF16, F32, 576) "epsilon=1e-6"),
    ROW("f32-bf16", ROWS(F32, BF16, 100) "epsilon=1e-6"),
    ROW("f16-f32-odd", ROWS(F16, F32, 37) "epsilon=0"),
    ROW("f32-f16-one", ROWS(F32, F16, 1) "epsilon=1e-6"),
    ROW("cast-first-bf16", ROWS(BF16, BF16, 576) CAST_FIRST "weight_offset=1"),
    ROW("cast-first-f16-bf16", ROWS(F16, BF16, 130) CAST_FIRST),
    ROW("residual-bf16", ROWS(BF16, BF16, 2049) "residual=BF16 epsilon=1e-6"),
    ROW("residual-f32", ROWS(F32, F32, 64) "residual=F32 epsilon=1e-6"),
    ROW("residual-bf16-in-f32", ROWS(BF16, BF16, 1025) "residual=F32 epsilon=1e-6"),
    ROW("residual-f32-in-f16", ROWS(F32, F32, 99) "residual=F16 epsilon=1e-6"),
    ROW("residual-cast-first", ROWS(F16, F16, 576) "residual=F16 " CAST_FIRST),
    IN_PLACE("in-place", ROWS(F32, BF16, 300) "epsilon=1e-6"),
    IN_PLACE("residual-in-place", ROWS(BF16, F32, 300) "residual=BF16 epsilon=1e-6"),
#undef ROW
#undef IN_PLACE

#define ROW(name, text)                                                                                      \
    {                                                                                                        \
        { "merge_states", name, text }, rows, false                                                          \
    }
#define IN_PLACE(name, text)                                                                                 \
    {                                                                                                        \
        { "merge_states", name, text }, rows, true                                                           \
    }
    ROW("f32", STATES(F32, F32, 4, 64)),
    ROW("f16", STATES(F16, F16, 8, 128)),
    ROW("bf16", STATES(BF16, BF16, 32, 128)),
    ROW("f32-bf16", STATES(F32, BF16, 9, 64)),
    ROW("bf16-f32", STATES(BF16, F32, 5, 80)),
    ROW("f16-bf16-odd", STATES(F16, BF16, 3, 13)),
    ROW("bf16-one", STATES(BF16, BF16, 1, 1)),
    ROW("130-heads", STATES(BF16, BF16, 130, 16)),
    ROW("wide", STATES(BF16, F16, 16, 512)),
    IN_PLACE("in-place-f32", STATES(F32, F32, 3, 27)),
    IN_PLACE("in-place-bf16", STATES(BF16, F32, 70, 64)),
#undef ROW
#undef IN_PLACE
#define ROW(name, batches, text)                                                                             \
    {                                                                                                        \
        { "matmul", name, text }, batches, false                                                             \
    }
    ROW("f32", tiles, MM(F32, F32, 33, 40)),
    ROW("bf16", tiles, MM(BF16, BF16, 130, 96) "bias=BF16"),
    ROW("f16", ends, MM(F16, F16, 64, 1100) "bias=F32"),
    ROW("f32-bf16", ends, MM(F32, BF16, 17, 65) "bias=F16"),
    ROW("bf16-f16", ends, MM(BF16, F16, 48, 128)),
    ROW("bf16-f32", ends, MM(BF16, F32, 31, 77)),
    ROW("batch-bf16", ends, "h=3 " MM(BF16, BF16, 40, 56)),
    ROW("f8", tiles, MM(BF16, F8_E4M3, 256, 384) "w_scale=F32 i=2 j=3 " BLOCKS(128, 128)),
    ROW("f8-odd", ends, MM(F32, F8_E4M3, 21, 101) "w_scale=F32 i=5 j=6 x_scale_bound=1200 " BLOCKS(5, 20)),
    ROW("batch-f8", ends,
        "h=4 " MM(F16, F8_E4M3, 64, 96) "w_scale=F32 i=2 j=3 x_scale_bound=1200 " BLOCKS(32, 32)),
    ROW("q8", tiles, MM(BF16, I8, 96, 576) "w_scale=F16 i=96 j=18"),
    ROW("q8-odd", ends, MM(F32, I8, 19, 45) "w_scale=F16 i=19 j=2 bias=F32"),
#undef ROW

#define ROW(name, batches, text)                                                                             \
    {                                                                                                        \
        { "paged_attention", name, text }, batches, false                                                    \
    }
    ROW("f32", few, ATTEND(F32, 4, 4, 64) V_BESIDE(64) F32),
    ROW("bf16-gqa", few, ATTEND(BF16, 32, 8, 128) V_BESIDE(128) BF16),
    ROW("f16", many, ATTEND(F16, 5, 1, 64) V_BESIDE(64) F16),
    ROW("smollm", few, ATTEND(BF16, 9, 3, 64) V_BESIDE(64) BF16),
    ROW("bf16-f8", many, ATTEND(BF16, 16, 4, 128) V_BESIDE(128) F8),
    ROW("f8-f8", many, "scale=0.2 p=2 W=64 q=F8_E4M3 H=6 K=2 D=64 " F8),
    ROW("bf16-scaled", many, ATTEND(BF16, 6, 2, 64) V_BESIDE(64) SCALED(32, 2)),
    ROW("f32-scaled-tail", many, ATTEND(F32, 3, 3, 80) V_BESIDE(80) SCALED(24, 4)),
    ROW("f32-bf16", many, ATTEND(F32, 8, 2, 40) V_BESIDE(40) BF16),
    ROW("bf16-f32", many, ATTEND(BF16, 7, 1, 96) V_BESIDE(96) F32),
    ROW("40-heads", many, ATTEND(BF16, 40, 8, 128) V_BESIDE(128) BF16),
    ROW("128-heads", many, ATTEND(BF16, 128, 1, 64) V_BESIDE(64) BF16),
    ROW("all-keys", many, ATTEND(F32, 6, 2, 64) V_BESIDE(64) F32 "mask=null"),
    ROW("chunked", many, ATTEND(F32, 6, 2, 64) V_BESIDE(64) F32 WINDOW(chunked, 7)),
    ROW("chunked-causal", many, ATTEND(BF16, 6, 2, 64) V_BESIDE(64) BF16 WINDOW(chunked_causal, 33)),
    ROW("window-sinks", many,
        ATTEND(F32, 6, 2, 64) V_BESIDE(64) F32 WINDOW(sliding_window_causal, 40) " sinks=F32"),
    ROW("alibi-softcap", many, ATTEND(F32, 6, 2, 64) V_BESIDE(64) F32 "score_mod=alibi softcap=5"),
    ROW("odd", many, ATTEND(F32, 3, 1, 13) V_BESIDE(13) F32),
    ROW("own-v", many, ATTEND(BF16, 4, 2, 192) V_OWN(128) BF16 OWN_V(BF16)),
    ROW("own-v-f8", many, ATTEND(F32, 4, 4, 40) V_OWN(27) F32 OWN_V(F8_E4M3)),
    ROW("own-v-scaled", many, ATTEND(BF16, 4, 2, 64) V_OWN(72) SCALED(32, 2) OWN_V_SCALED(24, 3)),
    ROW("256", many, ATTEND(BF16, 8, 4, 256) V_BESIDE(256) BF16),
#undef ROW

#define ROW(name, text)                                                                                      \
    {                                                                                                        \
        { "mla_prefill_branch", name, text }, many, false                                                    \
    }
    ROW("f32", PREFILL_SMALL(4, 128) DECODE(F32, F32, F32) F32 PREFILL_WEIGHTS(F32)),
    ROW("bf16", PREFILL_SMALL(16, 512) DECODE(BF16, BF16, F32) BF16 PREFILL_WEIGHTS(BF16)),
    ROW("f16-chunks", PREFILL_SMALL(5, 160) DECODE(F16, F16, F16) F16 PREFILL_WEIGHTS(F16) "chunk_tokens=24"),
    ROW("bf16-f8", PREFILL_SMALL(3, 96) DECODE(BF16, BF16, BF16) F8 PREFILL_WEIGHTS(BF16)),
    ROW("bf16-scaled", PREFILL_SMALL(9, 288) DECODE(BF16, BF16, F32) SCALED(16, 5) PREFILL_WEIGHTS(BF16)),
    ROW("f8-weights", PREFILL_SMALL(16, 512) DECODE(BF16, BF16, F32) F8 PREFILL_QUANTISED(32, 4, 2, 4)
                          BLOCKS(16, 16) "chunk_tokens=40"),
    ROW("f8-weights-tail",
        PREFILL_SMALL(3, 96) DECODE(F32, F32, F32) F32 PREFILL_QUANTISED(4, 3, 2, 3) BLOCKS(24, 24)),
    ROW("all-keys", PREFILL_SMALL(9, 288) DECODE(F32, F32, F32) F32 PREFILL_WEIGHTS(F32) "mask=null"),
    ROW("chunked-causal",
        PREFILL_SMALL(9, 288) DECODE(BF16, BF16, F32) BF16 PREFILL_WEIGHTS(BF16) WINDOW(chunked_causal, 33)),
    ROW("window", PREFILL_SMALL(9, 288) DECODE(F32, F32, F32) F32 PREFILL_WEIGHTS(F32)
                      WINDOW(sliding_window_causal, 40) " chunk_tokens=33"),
    ROW("alibi", PREFILL_SMALL(9, 288) DECODE(F32, F32, F32) F32 PREFILL_WEIGHTS(F32) "score_mod=alibi"),
    ROW("no-rope",
        "H=4 C=64 R=0 D=64 Z=128 X=32 V=32 scale=0.15 " DECODE(F32, F32, F32) F32 PREFILL_WEIGHTS(F32)),
    ROW("no-nope",
        "H=4 C=64 R=16 D=80 Z=0 X=16 V=32 scale=0.15 " DECODE(F32, F32, F32) F32 PREFILL_WEIGHTS(F32)),
    ROW("odd", "H=3 C=27 R=6 D=33 Z=39 X=19 V=11 scale=0.2 " DECODE(F32, F32, F32) F32 PREFILL_WEIGHTS(F32)),
    ROW("deepseek", "H=16 C=512 R=64 D=576 Z=2048 X=192 V=128 scale=0.07 " DECODE(BF16, BF16, F32)
                        BF16 PREFILL_QUANTISED(16, 4, 1, 4) BLOCKS(128, 128)),
#undef ROW
};

bool check_case_at(int index, struct check_case *c)
{
    for (int i = 0; i < COUNT(table); i++)
        for (int k = 0; table[i].batches[k]; k++)
            if (!index--) {
                *c = (struct check_case){ &table[i].call, table[i].batches[k], table[i].in_place };
                return true;
            }
    return false;
}

void check_case_name(const struct check_case *c, char name[CHECK_NAME_SIZE])
{
    (void) snprintf(name, CHECK_NAME_SIZE, "%s/%s", c->call->name, c->batch->name);
}
