// SPDX-License-Identifier: Apache-2.0
// One builder an op: its params, its buffers, and the work that a call cannot avoid.
#include <math.h>
#include <string.h>

#include "bench.h"

enum { GRANULARITY = 128 };
static const float epsilon = 1e-6f;

static double size_of(clinfer_dtype dtype)
{
    return (double) clinfer_dtype_size(dtype);
}

static int64_t tokens_of(const struct bench_batch *b)
{
    return (int64_t) b->requests * b->tokens;
}

static double cache_row_bytes(const struct bench_case *c)
{
    const struct bench_types *t = c->types;
    const double scales = t->scale_group ? 4.0 * (double) op_groups(c->shape->head_size, t->scale_group) : 0;
    return c->shape->kv_heads * (c->shape->head_size * size_of(t->cache) + scales);
}

// Offsets, lengths and the part of the table that the new tokens use.
static double batch_bytes(const struct bench_batch *b)
{
    return 4.0 * (2 * b->requests + 1 + b->requests * ceil((double) b->tokens / BENCH_PAGE));
}

static clinfer_tensor freqs_of(struct bench_maker *m, const struct bench_case *c)
{
    return bench_tensor(m, BENCH_TURNS, 0, c->types->act, c->batch->cached + c->batch->tokens, c->shape->rope,
                        0);
}

static void make_rope(struct bench_maker *m, const struct bench_case *c)
{
    struct clinfer_fused_qk_rope_params *p = &m->call->params.rope;
    const struct bench_shape *s = c->shape;
    const clinfer_dtype act = c->types->act;
    const int64_t T = tokens_of(c->batch);
    p->q_proj = bench_tensor(m, BENCH_NOISE, 1, act, T, s->heads, s->head_size);
    p->output = bench_tensor(m, BENCH_LEVEL, 0, act, T, s->heads, s->head_size);
    p->freqs_cis = freqs_of(m, c);
    p->kv = bench_cache(m, c, 2, s->kv_heads, s->head_size);
    p->batch = bench_batch_of(m, c->batch);
    p->interleaved = !s->halves;
    const double q = (double) T * s->heads * s->head_size * size_of(act);
    m->call->work = (struct bench_work){ q + (double) T * s->rope * size_of(act) + batch_bytes(c->batch), q,
                                         (double) T * cache_row_bytes(c),
                                         3.0 * (double) T * s->rope * (s->heads + s->kv_heads) };
}

static void make_norm(struct bench_maker *m, const struct bench_case *c)
{
    struct clinfer_rms_norm_kv_cache_params *p = &m->call->params.norm;
    const struct bench_shape *s = c->shape;
    const int64_t T = tokens_of(c->batch);
    p->gamma = bench_tensor(m, BENCH_SIGNS, 0, c->types->act, s->head_size, 0, 0);
    p->kv = bench_cache(m, c, 2, s->kv_heads, s->head_size);
    p->batch = bench_batch_of(m, c->batch);
    p->total_seq_len = T;
    p->epsilon = epsilon;
    m->call->work =
        (struct bench_work){ s->head_size * size_of(c->types->act) + batch_bytes(c->batch), 0,
                             (double) T * cache_row_bytes(c), 4.0 * (double) T * s->kv_heads * s->head_size };
}

static void make_store(struct bench_maker *m, const struct bench_case *c)
{
    struct clinfer_mla_fused_rope_rmsnorm_params *p = &m->call->params.store;
    const struct bench_shape *s = c->shape;
    const clinfer_dtype act = c->types->act;
    const int64_t T = tokens_of(c->batch);
    p->q_rope = bench_tensor(m, BENCH_NOISE, 1, act, T, s->heads, s->rope);
    p->q_rope_output = bench_tensor(m, BENCH_LEVEL, 0, act, T, s->heads, s->rope);
    p->kv_input = bench_tensor(m, BENCH_NOISE, 1, act, T, s->head_size, 0);
    p->gamma = bench_tensor(m, BENCH_SIGNS, 0, act, s->latent, 0, 0);
    p->freqs_cis = freqs_of(m, c);
    p->kv = bench_cache(m, c, 1, 1, s->head_size);
    p->batch = bench_batch_of(m, c->batch);
    p->epsilon = epsilon;
    const double q = (double) T * s->heads * s->rope * size_of(act);
    const double rows = (double) T * (s->head_size + s->rope) * size_of(act); // kv_input and the table
    m->call->work = (struct bench_work){ q + rows + s->latent * size_of(act) + batch_bytes(c->batch),
                                         q + (double) T * cache_row_bytes(c), 0,
                                         (double) T * (3.0 * s->rope * (s->heads + 1) + 4.0 * s->latent) };
}

static void make_weights(struct bench_maker *m, const struct bench_case *c)
{
    struct clinfer_mla_decode_branch_params *p = &m->call->params.decode;
    const struct bench_shape *s = c->shape;
    const bool fp8 = c->types->weight == CLINFER_F8_E4M3;
    const double amplitude = 1.0 / 16; // scores stay where a softmax has many keys
    const int64_t latents = op_groups(s->latent, GRANULARITY);
    p->w_uk =
        bench_tensor(m, BENCH_NOISE, fp8 ? 1 : amplitude, c->types->weight, s->heads, s->latent, s->nope);
    p->w_uv =
        bench_tensor(m, BENCH_NOISE, fp8 ? 1 : amplitude, c->types->weight, s->heads, s->value, s->latent);
    if (!fp8)
        return;
    p->n_granularity = p->k_granularity = GRANULARITY;
    p->w_uk_scale = bench_tensor(m, BENCH_LEVEL, amplitude, CLINFER_F32, s->heads, latents,
                                 op_groups(s->nope, GRANULARITY));
    p->w_uv_scale = bench_tensor(m, BENCH_LEVEL, amplitude, CLINFER_F32, s->heads,
                                 op_groups(s->value, GRANULARITY), latents);
}

// The attention launch alone: q_full and its sums are f32.
static struct bench_work attention_work(const struct bench_case *c)
{
    const struct bench_shape *s = c->shape;
    const double rows = (double) tokens_of(c->batch) * s->heads, keys = c->batch->cached + c->batch->tokens;
    return (struct bench_work){ c->batch->requests * keys * cache_row_bytes(c) + 4 * rows * s->head_size,
                                4 * rows * s->latent, 0, 2 * rows * keys * (s->head_size + s->latent) };
}

static struct bench_work decode_work(const struct bench_case *c)
{
    const struct bench_shape *s = c->shape;
    const double T = (double) tokens_of(c->batch), keys = c->batch->cached + c->batch->tokens;
    const double rows = T * s->heads, act = size_of(c->types->act);
    const double weights = (double) s->heads * s->latent * (s->nope + s->value);
    const double old_rows = c->batch->requests * keys - T;
    struct bench_work w = attention_work(c);
    w.read = old_rows * cache_row_bytes(c) + weights * size_of(c->types->weight) +
             (rows * (s->nope + s->rope) + T * s->rope + s->latent) * act + batch_bytes(c->batch);
    w.written = rows * s->value * act;
    w.in_place = T * cache_row_bytes(c);
    w.flop += 2 * T * weights;
    return w;
}

static void make_decode(struct bench_maker *m, const struct bench_case *c)
{
    struct clinfer_mla_decode_branch_params *p = &m->call->params.decode;
    const struct bench_shape *s = c->shape;
    const clinfer_dtype act = c->types->act;
    const int64_t T = tokens_of(c->batch);
    p->q = bench_tensor(m, BENCH_NOISE, 1, act, T, s->heads, s->nope + s->rope);
    p->output = bench_tensor(m, BENCH_LEVEL, 0, act, T, s->heads, s->value);
    p->kv_norm_gamma = bench_tensor(m, BENCH_SIGNS, 0, act, s->latent, 0, 0);
    p->freqs_cis = freqs_of(m, c);
    make_weights(m, c);
    p->kv = bench_cache(m, c, 1, 1, s->head_size);
    p->batch = bench_batch_of(m, c->batch);
    p->epsilon = epsilon;
    p->scale = 1.0f / sqrtf((float) (s->nope + s->rope));
    m->call->work = c->part ? attention_work(c) : decode_work(c);
}

static void make_kv_store(struct bench_maker *m, const struct bench_case *c)
{
    struct clinfer_kv_store_params *p = &m->call->params.kv_store;
    const struct bench_shape *s = c->shape;
    const clinfer_dtype act = c->types->act;
    const int64_t T = tokens_of(c->batch);
    p->k = bench_tensor(m, BENCH_NOISE, 1, act, T, s->kv_heads, s->head_size);
    p->v = bench_tensor(m, BENCH_NOISE, 1, act, T, s->kv_heads, s->head_size);
    p->kv = bench_cache(m, c, 2, s->kv_heads, s->head_size);
    p->batch = bench_batch_of(m, c->batch);
    const double rows = 2 * (double) T; // of K and V
    m->call->work =
        (struct bench_work){ rows * s->kv_heads * s->head_size * size_of(act) + batch_bytes(c->batch),
                             rows * cache_row_bytes(c), 0, 0 };
}

// Rows of head_size.
static void make_silu_mul(struct bench_maker *m, const struct bench_case *c)
{
    struct clinfer_silu_mul_params *p = &m->call->params.silu_mul;
    const clinfer_dtype act = c->types->act;
    const int64_t T = tokens_of(c->batch), n = c->shape->head_size;
    p->x = bench_tensor(m, BENCH_NOISE, 4, act, T, 2 * n, 0);
    p->output = bench_tensor(m, BENCH_LEVEL, 0, act, T, n, 0);
    const double bytes = (double) (T * n) * size_of(act);
    m->call->work = (struct bench_work){ 2 * bytes, bytes, 0, 4.0 * (double) (T * n) };
}

static void make_rms_norm(struct bench_maker *m, const struct bench_case *c)
{
    struct clinfer_rms_norm_params *p = &m->call->params.rms_norm;
    const clinfer_dtype act = c->types->act;
    const int64_t T = tokens_of(c->batch), n = c->shape->head_size;
    const bool residual = c->shape->residual;
    p->x = bench_tensor(m, residual ? BENCH_LEVEL : BENCH_NOISE, !residual, act, T, n, 0); // 0 adds up to 0
    p->gamma = bench_tensor(m, BENCH_SIGNS, 0, act, n, 0, 0);
    if (residual)
        p->residual = bench_tensor(m, BENCH_NOISE, 1, act, T, n, 0);
    p->output = bench_tensor(m, BENCH_LEVEL, 0, act, T, n, 0);
    p->epsilon = epsilon;
    const double bytes = (double) (T * n) * size_of(act);
    m->call->work = (struct bench_work){ bytes + (double) n * size_of(act), bytes, residual ? bytes : 0,
                                         4.0 * (double) (T * n) };
}

static void make_merge_states(struct bench_maker *m, const struct bench_case *c)
{
    struct clinfer_merge_states_params *p = &m->call->params.merge_states;
    const clinfer_dtype act = c->types->act;
    const int64_t T = tokens_of(c->batch), heads = c->shape->heads, size = c->shape->head_size;
    p->out_a = bench_tensor(m, BENCH_NOISE, 1, act, T, heads, size);
    p->out_b = bench_tensor(m, BENCH_NOISE, 1, act, T, heads, size);
    p->lse_a = bench_tensor(m, BENCH_NOISE, 1, CLINFER_F32, T, heads, 0);
    p->lse_b = bench_tensor(m, BENCH_NOISE, 1, CLINFER_F32, T, heads, 0);
    p->output = bench_tensor(m, BENCH_LEVEL, 0, act, T, heads, size);
    p->lse = bench_tensor(m, BENCH_LEVEL, 0, CLINFER_F32, T, heads, 0);
    const double one = (double) (T * heads) * ((double) size * size_of(act) + 4);
    m->call->work = (struct bench_work){ 2 * one, one, 0, 3.0 * (double) (T * heads * size) };
}

static void make_attention(struct bench_maker *m, const struct bench_case *c)
{
    struct clinfer_paged_attention_params *p = &m->call->params.attention;
    const struct bench_shape *s = c->shape;
    const clinfer_dtype act = c->types->act;
    const int64_t T = tokens_of(c->batch);
    p->q = bench_tensor(m, BENCH_NOISE, 1, act, T, s->heads, s->head_size);
    p->output = bench_tensor(m, BENCH_LEVEL, 0, act, T, s->heads, s->head_size);
    p->kv = bench_cache(m, c, 2, s->kv_heads, s->head_size);
    p->batch = bench_batch_of(m, c->batch);
    p->scale = 1.0f / sqrtf((float) s->head_size);
    p->max_context = c->batch->cached + c->batch->tokens;
    const double q = (double) T * s->heads * s->head_size * size_of(act);
    // Causal: a token sees half of the new ones.
    const double keys = c->batch->cached + (c->batch->tokens + 1) / 2.0;
    m->call->work = (struct bench_work){ q + 2.0 * c->batch->requests *
                                                 (c->batch->cached + c->batch->tokens) * cache_row_bytes(c),
                                         q, 0, 4.0 * (double) T * s->heads * s->head_size * keys };
}

static void make_matmul(struct bench_maker *m, const struct bench_case *c)
{
    struct clinfer_matmul_params *p = &m->call->params.matmul;
    const int64_t T = tokens_of(c->batch), N = c->shape->rows, K = c->shape->columns;
    const clinfer_dtype act = c->types->act, weight = c->types->weight;
    const bool fp8 = weight == CLINFER_F8_E4M3, q8 = weight == CLINFER_I8;
    const int64_t gn = fp8 ? GRANULARITY : 1, gk = fp8 ? GRANULARITY : 32;
    double scales = 0;
    p->x = bench_tensor(m, BENCH_NOISE, 1, act, T, K, 0);
    p->w = bench_tensor(m, BENCH_NOISE, q8 ? 127 : 1, weight, N, K, 0);
    p->output = bench_tensor(m, BENCH_LEVEL, 0, act, T, N, 0);
    if (fp8 || q8) {
        const clinfer_dtype type = fp8 ? CLINFER_F32 : CLINFER_F16;
        p->w_scale = bench_tensor(m, BENCH_LEVEL, 1.0 / 128, type, op_groups(N, gn), op_groups(K, gk), 0);
        scales = (double) op_groups(N, gn) * (double) op_groups(K, gk) * size_of(type);
    }
    if (fp8)
        p->n_granularity = p->k_granularity = GRANULARITY;
    m->call->work = (struct bench_work){ (double) N * (double) K * size_of(weight) + scales +
                                             (double) T * (double) K * size_of(act),
                                         (double) T * (double) N * size_of(act), 0,
                                         2.0 * (double) T * (double) N * (double) K };
}

static void make_prefill_weights(struct bench_maker *m, const struct bench_case *c)
{
    struct clinfer_mla_prefill_branch_params *p = &m->call->params.prefill;
    const struct bench_shape *s = c->shape;
    const bool fp8 = c->types->weight == CLINFER_F8_E4M3;
    const double amplitude = 1.0 / 16; // scores stay where a softmax has many keys
    const int64_t rows = (int64_t) s->heads * s->nope, latents = op_groups(s->latent, GRANULARITY);
    p->w_k = bench_tensor(m, BENCH_NOISE, fp8 ? 1 : amplitude, c->types->weight, rows, s->latent, 0);
    p->w_uv =
        bench_tensor(m, BENCH_NOISE, fp8 ? 1 : amplitude, c->types->weight, s->heads, s->value, s->latent);
    if (!fp8)
        return;
    p->n_granularity = p->k_granularity = GRANULARITY;
    p->w_k_scale =
        bench_tensor(m, BENCH_LEVEL, amplitude, CLINFER_F32, op_groups(rows, GRANULARITY), latents, 0);
    p->w_uv_scale = bench_tensor(m, BENCH_LEVEL, amplitude, CLINFER_F32, s->heads,
                                 op_groups(s->value, GRANULARITY), latents);
}

// K and V of every key, and of every query the keys before it.
static struct bench_work prefill_work(const struct bench_case *c)
{
    const struct bench_shape *s = c->shape;
    const double T = (double) tokens_of(c->batch),
                 all = c->batch->requests * (double) (c->batch->cached + c->batch->tokens);
    const double seen = c->batch->cached + (c->batch->tokens + 1) / 2.0, rows = T * s->heads,
                 act = size_of(c->types->act);
    const double weights = (double) s->heads * s->latent * (s->nope + s->value);
    return (struct bench_work){ (all - T) * cache_row_bytes(c) + weights * size_of(c->types->weight) +
                                    (rows * (s->nope + s->rope) + T * s->rope + s->latent) * act +
                                    batch_bytes(c->batch),
                                rows * s->value * act, T * cache_row_bytes(c),
                                2 * all * weights + 2 * rows * seen * (s->nope + s->rope + s->value) };
}

static void make_prefill(struct bench_maker *m, const struct bench_case *c)
{
    struct clinfer_mla_prefill_branch_params *p = &m->call->params.prefill;
    const struct bench_shape *s = c->shape;
    const clinfer_dtype act = c->types->act;
    const int64_t T = tokens_of(c->batch);
    p->q = bench_tensor(m, BENCH_NOISE, 1, act, T, s->heads, s->nope + s->rope);
    p->output = bench_tensor(m, BENCH_LEVEL, 0, act, T, s->heads, s->value);
    p->kv_norm_gamma = bench_tensor(m, BENCH_SIGNS, 0, act, s->latent, 0, 0);
    p->freqs_cis = freqs_of(m, c);
    make_prefill_weights(m, c);
    p->kv = bench_cache(m, c, 1, 1, s->head_size);
    p->batch = bench_batch_of(m, c->batch);
    p->epsilon = epsilon;
    p->scale = 1.0f / sqrtf((float) (s->nope + s->rope));
    p->max_context = c->batch->cached + c->batch->tokens;
    m->call->work = prefill_work(c);
}

static const struct {
    const char *op;
    void (*make)(struct bench_maker *m, const struct bench_case *c);
} builders[] = {
    { "fused_qk_rope", make_rope },
    { "rms_norm_kv_cache", make_norm },
    { "mla_fused_rope_rmsnorm", make_store },
    { "mla_decode_branch", make_decode },
    { "kv_store", make_kv_store },
    { "silu_mul", make_silu_mul },
    { "rms_norm", make_rms_norm },
    { "merge_states", make_merge_states },
    { "paged_attention", make_attention },
    { "matmul", make_matmul },
    { "mla_prefill_branch", make_prefill },
};

bool bench_open(const struct bench_case *c, clinfer_ctx *ctx, struct bench_call *call)
{
    struct bench_maker m = { ctx, call, CL_SUCCESS };
    memset(call, 0, sizeof *call);
    call->op = op_find(c->op);
    for (size_t i = 0; i < sizeof builders / sizeof builders[0]; i++)
        if (!strcmp(builders[i].op, c->op))
            builders[i].make(&m, c);
    if (!m.status)
        m.status = clFinish(clinfer_ctx_queue(ctx));
    if (bench_failed(m.status, "making the buffers of a case")) {
        bench_close(call);
        return false;
    }
    return true;
}

void bench_close(struct bench_call *call)
{
    for (int i = 0; i < call->num_mems; i++)
        (void) clReleaseMemObject(call->mems[i]);
    memset(call, 0, sizeof *call);
}
