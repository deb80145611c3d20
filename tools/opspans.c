// SPDX-License-Identifier: Apache-2.0
// Which elements of a new token's row each op writes, and what their values were rounded to on the way.
#include "compare.h"

#include <string.h>

static int span(struct op_span *s, int64_t first, int64_t count, clinfer_dtype inner, int units)
{
    *s = (struct op_span){ first, count, inner, units, OP_NO_SUM };
    return count > 0;
}

// A rounding to `inner` counts as one of its own where the store goes to another type.
static int units_of(clinfer_dtype inner, clinfer_dtype stored)
{
    return inner == stored ? 1 : 2;
}

int op_spans_fused_qk_rope(const struct op_case *c, const char *tensor, int64_t head, struct op_span *spans)
{
    const struct clinfer_fused_qk_rope_params *p = c->params;
    const int64_t size = strcmp(tensor, "output") ? p->kv.head_size : p->output.shape[2];
    const int64_t r = p->freqs_cis.shape[1];
    (void) head;
    return span(spans, p->interleaved ? size - r : 0, r, CLINFER_F32, 1);
}

int op_spans_rms_norm_kv_cache(const struct op_case *c, const char *tensor, int64_t head,
                               struct op_span *spans)
{
    const struct clinfer_rms_norm_kv_cache_params *p = c->params;
    const int64_t before = p->rows == CLINFER_WHOLE_ROW ? head * p->kv.head_size : 0;
    const int64_t left = p->gamma.shape[0] - before;
    const int units = p->cast == CLINFER_CAST_THEN_MULTIPLY ? 2 : units_of(p->gamma.dtype, p->kv.dtype);
    (void) tensor;
    return span(spans, 0, left < p->kv.head_size ? left : p->kv.head_size, p->gamma.dtype, units);
}

int op_spans_mla_fused_rope_rmsnorm(const struct op_case *c, const char *tensor, int64_t head,
                                    struct op_span *spans)
{
    const struct clinfer_mla_fused_rope_rmsnorm_params *p = c->params;
    const clinfer_dtype q = p->q_rope.dtype, in = p->kv_input.dtype;
    const int64_t latent = p->gamma.shape[0];
    (void) head;
    if (!strcmp(tensor, "q_rope_output"))
        return span(spans, 0, p->q_rope.shape[2], q, units_of(q, p->q_rope_output.dtype));
    int n = span(spans, 0, latent, p->gamma.dtype, 2); // t(t(x * r) * gamma)
    n += span(spans + n, latent, p->kv.head_size - latent, in, units_of(in, p->kv.dtype));
    return n;
}

// Heads past those of K are V's. Its own blocks are another tensor.
int op_spans_kv_store(const struct op_case *c, const char *tensor, int64_t head, struct op_span *spans)
{
    const struct clinfer_kv_store_params *p = c->params;
    const bool own = tensor[0] == 'v', v = own || head >= p->kv.num_heads;
    if (v && (!p->v.rank || own != (p->kv_v.head_size != 0)))
        return 0;
    return span(spans, 0, own ? p->kv_v.head_size : p->kv.head_size, CLINFER_F32, 1);
}

int op_spans_silu_mul(const struct op_case *c, const char *tensor, int64_t head, struct op_span *spans)
{
    (void) tensor;
    (void) head;
    return span(spans, 0, ((const struct clinfer_silu_mul_params *) c->params)->output.shape[1], CLINFER_F32,
                1);
}

int op_spans_rms_norm(const struct op_case *c, const char *tensor, int64_t head, struct op_span *spans)
{
    const struct clinfer_rms_norm_params *p = c->params;
    const int64_t n = p->gamma.shape[0];
    (void) head;
    if (!strcmp(tensor, "residual"))
        return span(spans, 0, n, CLINFER_F32, 1);
    return span(spans, 0, n, p->gamma.dtype,
                p->cast == CLINFER_CAST_THEN_MULTIPLY ? 2 : units_of(p->gamma.dtype, p->x.dtype));
}

int op_spans_merge_states(const struct op_case *c, const char *tensor, int64_t head, struct op_span *spans)
{
    const struct clinfer_merge_states_params *p = c->params;
    (void) head;
    if (!strcmp(tensor, "lse"))
        return span(spans, 0, p->lse.shape[1], CLINFER_F32, 1);
    const int n = span(spans, 0, p->output.shape[2], p->output.dtype, 1);
    spans->sum = OP_SUM_ROUNDED;
    return n;
}

// Sums over rows of K and V and q, which were rounded to their types. lse is a row of all heads, rounded
// once.
int op_spans_paged_attention(const struct op_case *c, const char *tensor, int64_t head, struct op_span *spans)
{
    const struct clinfer_paged_attention_params *p = c->params;
    const bool own = p->kv_v.head_size != 0;
    (void) head;
    if (!strcmp(tensor, "lse"))
        return span(spans, 0, p->q.shape[1], CLINFER_F32, 1);
    if (strcmp(tensor, "output"))
        return 0;
    const clinfer_dtype inner = cmp_narrower(p->q.dtype, p->kv.dtype);
    const int n = span(spans, 0, p->output.shape[2], own ? cmp_narrower(inner, p->kv_v.dtype) : inner, 1);
    spans->sum = OP_SUM_ROUNDED;
    return n;
}

int op_spans_matmul(const struct op_case *c, const char *tensor, int64_t head, struct op_span *spans)
{
    const struct clinfer_matmul_params *p = c->params;
    (void) tensor;
    (void) head;
    const int n = span(spans, 0, p->output.shape[p->output.rank - 1], p->x.dtype, 1);
    spans->sum = p->w.dtype == CLINFER_F8_E4M3 ? OP_SUM_QUANTISED : OP_SUM_ROUNDED;
    return n;
}

// Sums over cache rows and q, which were rounded to their types, and over new rows, to gamma's.
static int output_span(const clinfer_tensor *output, clinfer_dtype cache, clinfer_dtype gamma,
                       clinfer_dtype weights, struct op_span *spans)
{
    const clinfer_dtype inner = cmp_narrower(cmp_narrower(output->dtype, cache), gamma);
    const int n = span(spans, 0, output->shape[2], inner, 1);
    spans->sum = weights == CLINFER_F8_E4M3 ? OP_SUM_QUANTISED : OP_SUM_ROUNDED;
    return n;
}

static int cache_spans(const clinfer_tensor *gamma, const clinfer_kv_cache *kv, struct op_span *spans)
{
    const int64_t latent = gamma->shape[0];
    int n = span(spans, 0, latent, gamma->dtype, 2); // t(t(x * r) * gamma)
    n += span(spans + n, latent, kv->head_size - latent, CLINFER_F32, 1);
    return n;
}

int op_spans_mla_decode_branch(const struct op_case *c, const char *tensor, int64_t head,
                               struct op_span *spans)
{
    const struct clinfer_mla_decode_branch_params *p = c->params;
    (void) head;
    return strcmp(tensor, "output")
               ? cache_spans(&p->kv_norm_gamma, &p->kv, spans)
               : output_span(&p->output, p->kv.dtype, p->kv_norm_gamma.dtype, p->w_uk.dtype, spans);
}

int op_spans_mla_prefill_branch(const struct op_case *c, const char *tensor, int64_t head,
                                struct op_span *spans)
{
    const struct clinfer_mla_prefill_branch_params *p = c->params;
    (void) head;
    return strcmp(tensor, "output")
               ? cache_spans(&p->kv_norm_gamma, &p->kv, spans)
               : output_span(&p->output, p->kv.dtype, p->kv_norm_gamma.dtype, p->w_k.dtype, spans);
}
