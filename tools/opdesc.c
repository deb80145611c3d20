// SPDX-License-Identifier: Apache-2.0
#include "opcase.h"

#include <string.h>

#include "../ref/ref.h"
#include "ops_list.h"

enum {
    U32 = 1u << CLINFER_U32,
    F32 = 1u << CLINFER_F32,
    FLOATS = F32 | 1u << CLINFER_F16 | 1u << CLINFER_BF16,
    STORED = FLOATS | 1u << CLINFER_F8_E4M3
};

#define COUNT(a)         (int) (sizeof(a) / sizeof((a)[0]))
#define FIELD(op, field) offsetof(struct clinfer_##op##_params, field)

// What all ops on a cache have. O is B + 1, M the table's columns, p the planes, G the groups of a head.
#define CACHE_TENSORS(op)                                                                                    \
    { "input_row_offsets", FIELD(op, batch.input_row_offsets), OP_IN, OP_TENSOR, false, U32, "O", NULL },    \
        { "cache_lengths", FIELD(op, batch.cache_lengths), OP_IN, OP_TENSOR, false, U32, "B", NULL },        \
        { "lookup_table", FIELD(op, batch.lookup_table), OP_IN, OP_TENSOR, false, U32, "BM", NULL },         \
        { "kv_blocks", FIELD(op, kv), OP_INOUT, OP_BLOCKS, false, STORED, "PpLSKD", NULL },                  \
    {                                                                                                        \
        "kv_scales", FIELD(op, kv), OP_INOUT, OP_SCALES, true, F32, "PpLSKG", NULL                           \
    }

#define INPUT(op, field, types, axes)                                                                        \
    {                                                                                                        \
#field, FIELD(op, field), OP_IN, OP_TENSOR, false, types, axes, NULL                                 \
    }
#define OPTIONAL(op, field, types, axes)                                                                     \
    {                                                                                                        \
#field, FIELD(op, field), OP_IN, OP_TENSOR, true, types, axes, NULL                                  \
    }
#define CHANGED(op, field, types, axes)                                                                      \
    {                                                                                                        \
#field, FIELD(op, field), OP_INOUT, OP_TENSOR, true, types, axes, NULL                               \
    }
#define OUTPUT(op, field, types, axes, like)                                                                 \
    {                                                                                                        \
#field, FIELD(op, field), OP_OUT, OP_TENSOR, false, types, axes, like                                \
    }

// In the order of the enums; where a flag's default is true, its enum counts the other way.
static const char *const flags[] = { "0", "1", NULL };
static const char *const inverted_flags[] = { "1", "0", NULL };
static const char *const masks[] = { "causal", "null", "chunked", "chunked_causal", "sliding_window_causal",
                                     NULL };
static const char *const score_mods[] = { "no_pos", "alibi", NULL };

// Ends a list of scalars.
#define END                                                                                                  \
    {                                                                                                        \
        NULL, 0, OP_INT64, NULL, NULL                                                                        \
    }

static const struct op_tensor fused_qk_rope_tensors[] = {
    CACHE_TENSORS(fused_qk_rope),
    INPUT(fused_qk_rope, q_proj, FLOATS, "THQ"),
    INPUT(fused_qk_rope, freqs_cis, FLOATS, "FR"),
    OPTIONAL(fused_qk_rope, position_ids, U32, "nT"),
    OUTPUT(fused_qk_rope, output, FLOATS, "THQ", "q_proj"),
};
static const struct op_scalar fused_qk_rope_scalars[] = {
    { "layer_idx", FIELD(fused_qk_rope, layer_idx), OP_INT64, NULL, NULL },
    { "interleaved", FIELD(fused_qk_rope, interleaved), OP_CHOICE, NULL, flags },
    END,
};

static const struct op_tensor rms_norm_kv_cache_tensors[] = {
    CACHE_TENSORS(rms_norm_kv_cache),
    INPUT(rms_norm_kv_cache, gamma, FLOATS, "g"),
};
static const struct op_scalar rms_norm_kv_cache_scalars[] = {
    { "layer_idx", FIELD(rms_norm_kv_cache, layer_idx), OP_INT64, NULL, NULL },
    { "epsilon", FIELD(rms_norm_kv_cache, epsilon), OP_FLOAT, NULL, NULL },
    { "weight_offset", FIELD(rms_norm_kv_cache, weight_offset), OP_FLOAT, "0", NULL },
    { "multiply_before_cast", FIELD(rms_norm_kv_cache, cast), OP_CHOICE, "1", inverted_flags },
    { "per_head_norm", FIELD(rms_norm_kv_cache, rows), OP_CHOICE, "1", inverted_flags },
    END,
};

static const struct op_tensor mla_fused_rope_rmsnorm_tensors[] = {
    CACHE_TENSORS(mla_fused_rope_rmsnorm),
    INPUT(mla_fused_rope_rmsnorm, q_rope, FLOATS, "THR"),
    INPUT(mla_fused_rope_rmsnorm, kv_input, FLOATS, "TD"),
    INPUT(mla_fused_rope_rmsnorm, gamma, FLOATS, "C"),
    INPUT(mla_fused_rope_rmsnorm, freqs_cis, FLOATS, "FR"),
    OUTPUT(mla_fused_rope_rmsnorm, q_rope_output, STORED, "THR", NULL),
};
static const struct op_scalar mla_fused_rope_rmsnorm_scalars[] = {
    { "layer_idx", FIELD(mla_fused_rope_rmsnorm, layer_idx), OP_INT64, NULL, NULL },
    { "epsilon", FIELD(mla_fused_rope_rmsnorm, epsilon), OP_FLOAT, NULL, NULL },
    { "out_rope_dtype", FIELD(mla_fused_rope_rmsnorm, q_rope_output.dtype), OP_DTYPE, NULL, NULL },
    END,
};

static const struct op_tensor mla_decode_branch_tensors[] = {
    CACHE_TENSORS(mla_decode_branch),
    INPUT(mla_decode_branch, q, FLOATS, "THX"),
    INPUT(mla_decode_branch, kv_norm_gamma, FLOATS, "C"),
    INPUT(mla_decode_branch, freqs_cis, FLOATS, "FR"),
    INPUT(mla_decode_branch, w_uk, STORED, "HCN"),
    INPUT(mla_decode_branch, w_uv, STORED, "HVC"),
    OPTIONAL(mla_decode_branch, w_uk_scale, F32, "Hij"),
    OPTIONAL(mla_decode_branch, w_uv_scale, F32, "Hkl"),
    OUTPUT(mla_decode_branch, output, FLOATS, "THV", "q"),
};
static const struct op_scalar mla_decode_branch_scalars[] = {
    { "layer_idx", FIELD(mla_decode_branch, layer_idx), OP_INT64, NULL, NULL },
    { "epsilon", FIELD(mla_decode_branch, epsilon), OP_FLOAT, NULL, NULL },
    { "scale", FIELD(mla_decode_branch, scale), OP_FLOAT, NULL, NULL },
    { "mask", FIELD(mla_decode_branch, mask), OP_CHOICE, "causal", masks },
    { "local_window_size", FIELD(mla_decode_branch, local_window_size), OP_INT64, "-1", NULL },
    { "score_mod", FIELD(mla_decode_branch, score_mod), OP_CHOICE, "no_pos", score_mods },
    END,
};

// Z is H * N.
static const struct op_tensor mla_prefill_branch_tensors[] = {
    CACHE_TENSORS(mla_prefill_branch),
    INPUT(mla_prefill_branch, q, FLOATS, "THX"),
    INPUT(mla_prefill_branch, kv_norm_gamma, FLOATS, "C"),
    INPUT(mla_prefill_branch, freqs_cis, FLOATS, "FR"),
    INPUT(mla_prefill_branch, w_k, STORED, "ZC"),
    INPUT(mla_prefill_branch, w_uv, STORED, "HVC"),
    OPTIONAL(mla_prefill_branch, w_k_scale, F32, "ij"),
    OPTIONAL(mla_prefill_branch, w_uv_scale, F32, "Hkl"),
    OUTPUT(mla_prefill_branch, output, FLOATS, "THV", "q"),
};
static const struct op_scalar mla_prefill_branch_scalars[] = {
    { "layer_idx", FIELD(mla_prefill_branch, layer_idx), OP_INT64, NULL, NULL },
    { "epsilon", FIELD(mla_prefill_branch, epsilon), OP_FLOAT, NULL, NULL },
    { "scale", FIELD(mla_prefill_branch, scale), OP_FLOAT, NULL, NULL },
    { "mask", FIELD(mla_prefill_branch, mask), OP_CHOICE, "causal", masks },
    { "local_window_size", FIELD(mla_prefill_branch, local_window_size), OP_INT64, "-1", NULL },
    { "score_mod", FIELD(mla_prefill_branch, score_mod), OP_CHOICE, "no_pos", score_mods },
    { "chunk_tokens", FIELD(mla_prefill_branch, chunk_tokens), OP_INT64, "0", NULL },
    END,
};

// W is Dv; V's own blocks have the pages, slots and heads of K's, in one plane (u), with w groups of a head.
static const struct op_tensor kv_store_tensors[] = {
    CACHE_TENSORS(kv_store),
    { "v_blocks", FIELD(kv_store, kv_v), OP_INOUT, OP_BLOCKS, true, STORED, "PuLSKW", NULL },
    { "v_scales", FIELD(kv_store, kv_v), OP_INOUT, OP_SCALES, true, F32, "PuLSKw", NULL },
    INPUT(kv_store, k, FLOATS, "TKD"),
    OPTIONAL(kv_store, v, FLOATS, "TKW"),
};
static const struct op_scalar kv_store_scalars[] = {
    { "layer_idx", FIELD(kv_store, layer_idx), OP_INT64, NULL, NULL },
    END,
};

static const struct op_tensor silu_mul_tensors[] = {
    INPUT(silu_mul, x, FLOATS, "TY"), OUTPUT(silu_mul, output, FLOATS, "Ty", "x"), // half of Y
};
static const struct op_scalar silu_mul_scalars[] = { END };

static const struct op_tensor rms_norm_tensors[] = {
    INPUT(rms_norm, x, FLOATS, "Tg"),
    INPUT(rms_norm, gamma, FLOATS, "g"),
    CHANGED(rms_norm, residual, FLOATS, "Tg"),
    OUTPUT(rms_norm, output, FLOATS, "Tg", "x"),
};
static const struct op_scalar rms_norm_scalars[] = {
    { "epsilon", FIELD(rms_norm, epsilon), OP_FLOAT, NULL, NULL },
    { "weight_offset", FIELD(rms_norm, weight_offset), OP_FLOAT, "0", NULL },
    { "multiply_before_cast", FIELD(rms_norm, cast), OP_CHOICE, "1", inverted_flags },
    END,
};

static const struct op_tensor merge_states_tensors[] = {
    INPUT(merge_states, out_a, FLOATS, "THV"),
    INPUT(merge_states, lse_a, F32, "TH"),
    INPUT(merge_states, out_b, FLOATS, "THV"),
    INPUT(merge_states, lse_b, F32, "TH"),
    OUTPUT(merge_states, output, FLOATS, "THV", "out_a"),
    OUTPUT(merge_states, lse, F32, "TH", "lse_a"),
};
static const struct op_scalar merge_states_scalars[] = { END };

// W, V's blocks and their groups as in kv_store; without blocks W is D. output is bf16 where q is fp8.
static const struct op_tensor paged_attention_tensors[] = {
    CACHE_TENSORS(paged_attention),
    { "v_blocks", FIELD(paged_attention, kv_v), OP_INOUT, OP_BLOCKS, true, STORED, "PuLSKW", NULL },
    { "v_scales", FIELD(paged_attention, kv_v), OP_INOUT, OP_SCALES, true, F32, "PuLSKw", NULL },
    INPUT(paged_attention, q, STORED, "THD"),
    OPTIONAL(paged_attention, sinks, F32, "H"),
    OUTPUT(paged_attention, output, FLOATS, "THW", "q"),
    OUTPUT(paged_attention, lse, F32, "TH", NULL),
};
static const struct op_scalar paged_attention_scalars[] = {
    { "layer_idx", FIELD(paged_attention, layer_idx), OP_INT64, NULL, NULL },
    { "scale", FIELD(paged_attention, scale), OP_FLOAT, NULL, NULL },
    { "softcap", FIELD(paged_attention, softcap), OP_FLOAT, "0", NULL },
    { "mask", FIELD(paged_attention, mask), OP_CHOICE, "causal", masks },
    { "local_window_size", FIELD(paged_attention, local_window_size), OP_INT64, "-1", NULL },
    { "score_mod", FIELD(paged_attention, score_mod), OP_CHOICE, "no_pos", score_mods },
    END,
};

static const struct op_tensor matmul_tensors[] = {
    INPUT(matmul, x, FLOATS, "ThE"),
    INPUT(matmul, w, STORED | 1u << CLINFER_I8, "hUE"),
    OPTIONAL(matmul, w_scale, F32 | 1u << CLINFER_F16, "hij"),
    OPTIONAL(matmul, bias, FLOATS, "U"),
    OUTPUT(matmul, output, FLOATS, "ThU", "x"),
};
static const struct op_scalar matmul_scalars[] = {
    { "n_scale_granularity", FIELD(matmul, n_granularity), OP_INT64, "0", NULL },
    { "k_scale_granularity", FIELD(matmul, k_granularity), OP_INT64, "0", NULL },
    { "x_scale_bound", FIELD(matmul, x_scale_bound), OP_FLOAT, "0", NULL },
    END,
};

#define WRAPPERS(op)                                                                                         \
    static clinfer_status run_##op(clinfer_ctx *ctx, const void *params, cl_uint num_events,                 \
                                   const cl_event *events, cl_event *event)                                  \
    {                                                                                                        \
        return clinfer_##op(ctx, params, num_events, events, event);                                         \
    }                                                                                                        \
    static clinfer_status compile_##op(clinfer_ctx *ctx, const void *params)                                 \
    {                                                                                                        \
        return clinfer_##op##_compile(ctx, params);                                                          \
    }                                                                                                        \
    static void reference_##op(const void *params)                                                           \
    {                                                                                                        \
        ref_##op(params);                                                                                    \
    }
CLF_OPS(WRAPPERS)

// The offsets of what an op on a cache has, or none.
#define ON_CACHE(op) FIELD(op, kv), FIELD(op, batch), FIELD(op, layer_idx)
#define NO_CACHE(op) 0, 0, 0
#define DESC_FIELDS(op, cache, reads_context)                                                                \
#op, sizeof(struct clinfer_##op##_params), cache(op), reads_context, op##_tensors, COUNT(op##_tensors),  \
        op##_scalars, run_##op, compile_##op, reference_##op, op_check_##op, op_spans_##op
#define DESC(op, cache, reads_context)                                                                       \
    {                                                                                                        \
        DESC_FIELDS(op, cache, reads_context)                                                                \
    }
const struct op_desc op_descs[] = {
    DESC(fused_qk_rope, ON_CACHE, false),
    DESC(rms_norm_kv_cache, ON_CACHE, false),
    DESC(mla_fused_rope_rmsnorm, ON_CACHE, false),
    DESC(mla_decode_branch, ON_CACHE, true),
    { DESC_FIELDS(kv_store, ON_CACHE, false), FIELD(kv_store, kv_v) },
    { DESC_FIELDS(paged_attention, ON_CACHE, true), FIELD(paged_attention, kv_v) },
    DESC(silu_mul, NO_CACHE, false),
    DESC(rms_norm, NO_CACHE, false),
    DESC(merge_states, NO_CACHE, false),
    DESC(matmul, NO_CACHE, false),
    DESC(mla_prefill_branch, ON_CACHE, true),
};
const int op_num_descs = COUNT(op_descs);
#define AND_ONE(op) +1
_Static_assert(COUNT(op_descs) == 0 CLF_OPS(AND_ONE), "each of meson.build's ops wants a DESC");

const struct op_desc *op_find(const char *name)
{
    for (int i = 0; i < op_num_descs; i++)
        if (!strcmp(op_descs[i].name, name))
            return &op_descs[i];
    return NULL;
}
