// SPDX-License-Identifier: Apache-2.0
#include "engine_internal.h"

// Rows of f32 in the order of a buffer's columns, dense.
static clinfer_tensor rows_of(cl_mem mem, int64_t rows, int64_t columns)
{
    return clinfer_tensor_2d(mem, CLINFER_F32, rows, columns);
}

// Heads that begin at a column of rows of `width`.
static clinfer_tensor heads_of(cl_mem mem, int64_t rows, int64_t width, int64_t column, int64_t heads,
                               int64_t size)
{
    clinfer_tensor t = clinfer_tensor_3d(mem, CLINFER_F32, rows, heads, size);
    t.offset = (size_t) column * sizeof(float);
    t.stride[0] = width, t.stride[1] = size, t.stride[2] = 1;
    return t;
}

static bool multiply(struct engine *e, const struct matrix *m, clinfer_tensor x, clinfer_tensor output,
                     struct error *error)
{
    const struct clinfer_matmul_params params = { .x = x,
                                                  .w = m->w,
                                                  .w_scale = m->scale,
                                                  .output = output,
                                                  .n_granularity = m->granularity,
                                                  .k_granularity = m->granularity };
    return engine_ok(e, clinfer_matmul(e->ctx, &params, 0, NULL, NULL), "matmul", error);
}

// normed = norm(residual), which takes up `delta` first; of the first layer it is whole.
static bool norm(struct engine *e, const struct step *s, clinfer_tensor gamma, bool has_delta,
                 struct error *error)
{
    const clinfer_tensor residual = rows_of(e->residual, s->T, e->model->params.width);
    struct clinfer_rms_norm_params params = { .x = residual,
                                              .gamma = gamma,
                                              .output = rows_of(e->normed, s->T, residual.shape[1]),
                                              .epsilon = (float) e->model->params.epsilon };
    if (has_delta) {
        params.x.mem = e->delta;
        params.residual = residual;
    }
    return engine_ok(e, clinfer_rms_norm(e->ctx, &params, 0, NULL, NULL), "rms_norm", error);
}

// K and V to their pages, q and the new keys turned, and the attention.
static bool attention(struct engine *e, const struct step *s, int64_t l, struct error *error)
{
    const struct model_params *p = &e->model->params;
    const int64_t T = s->T, H = p->heads, K = p->kv_heads, D = p->head_size, width = (H + 2 * K) * D;
    const clinfer_kv_cache kv = clinfer_kv_pool_layer(e->pool, l);
    const clinfer_tensor q = heads_of(e->qkv, T, width, 0, H, D);
    const struct clinfer_kv_store_params store = { .k = heads_of(e->qkv, T, width, H * D, K, D),
                                                   .v = heads_of(e->qkv, T, width, (H + K) * D, K, D),
                                                   .kv = kv,
                                                   .batch = s->batch.tensors };
    const struct clinfer_fused_qk_rope_params rope = { .q_proj = q,
                                                       .freqs_cis = e->freqs_cis,
                                                       .output = q,
                                                       .kv = kv,
                                                       .batch = s->batch.tensors,
                                                       .interleaved = 1 };
    const struct clinfer_paged_attention_params attend = { .q = q,
                                                           .output =
                                                               heads_of(e->attention, T, H * D, 0, H, D),
                                                           .kv = kv,
                                                           .batch = s->batch.tensors,
                                                           .scale = (float) p->scale,
                                                           .max_context = s->batch.max_context,
                                                           .num_splits = e->params.deterministic ? 1 : 0 };
    return multiply(e, &e->layers[l].qkv, rows_of(e->normed, T, p->width), rows_of(e->qkv, T, width),
                    error) &&
           engine_ok(e, clinfer_kv_store(e->ctx, &store, 0, NULL, NULL), "kv_store", error) &&
           engine_ok(e, clinfer_fused_qk_rope(e->ctx, &rope, 0, NULL, NULL), "fused_qk_rope", error) &&
           engine_ok(e, clinfer_paged_attention(e->ctx, &attend, 0, NULL, NULL), "paged_attention", error);
}

// Rows of the cache as they come from the layer, before norm and rope.
static bool latent_rows(struct engine *e, const struct step *s, const struct layer *layer,
                        struct error *error)
{
    const int64_t width = e->model->params.width, row = e->latent + e->rope;
    const clinfer_tensor normed = rows_of(e->normed, s->T, width);
    clinfer_tensor rows = rows_of(e->kv_rows, s->T, row);
    if (e->model->params.arch == MODEL_DEEPSEEK2)
        return multiply(e, &layer->kv, normed, rows, error);
    rows.offset = (size_t) e->latent * sizeof(float);
    rows.shape[1] = e->rope;
    rows.stride[0] = row, rows.stride[1] = 1;
    const size_t origin[3] = { 0 }, part[3] = { (size_t) width * sizeof(float), (size_t) s->T, 1 };
    return multiply(e, &layer->kv, normed, rows, error) &&
           engine_ok(e,
                     clEnqueueCopyBufferRect(e->queue, e->residual, e->kv_rows, origin, origin, part, part[0],
                                             0, (size_t) row * sizeof(float), 0, 0, NULL, NULL),
                     "clEnqueueCopyBufferRect", error);
}

static bool latent_queries(struct engine *e, const struct step *s, const struct layer *layer,
                           struct error *error)
{
    clinfer_tensor x = rows_of(e->normed, s->T, e->model->params.width);
    if (layer->q_a.w.rank) {
        const clinfer_tensor q_latent = rows_of(e->q_latent, s->T, e->model->params.q_lora);
        const struct clinfer_rms_norm_params params = { .x = q_latent,
                                                        .gamma = layer->q_norm,
                                                        .output = q_latent,
                                                        .epsilon = (float) e->model->params.epsilon };
        if (!multiply(e, &layer->q_a, x, q_latent, error) ||
            !engine_ok(e, clinfer_rms_norm(e->ctx, &params, 0, NULL, NULL), "rms_norm", error))
            return false;
        x = q_latent;
    }
    return multiply(e, &layer->q_b, x, rows_of(e->q, s->T, e->heads * (e->nope + e->rope)), error);
}

static bool decode_branch(struct engine *e, const struct step *s, int64_t l, struct error *error)
{
    const struct layer *layer = &e->layers[l];
    const int64_t H = e->heads, query = e->nope + e->rope;
    const struct clinfer_mla_decode_branch_params params = {
        .q = heads_of(e->q, s->T, H * query, 0, H, query),
        .kv_norm_gamma = layer->kv_norm,
        .freqs_cis = e->freqs_cis,
        .w_uk = layer->w_uk.w,
        .w_uv = layer->w_uv.w,
        .w_uk_scale = layer->w_uk.scale,
        .w_uv_scale = layer->w_uv.scale,
        .output = heads_of(e->attention, s->T, H * e->value, 0, H, e->value),
        .kv = clinfer_kv_pool_layer(e->pool, l),
        .batch = s->batch.tensors,
        .epsilon = (float) e->model->params.epsilon,
        .scale = (float) e->model->params.scale,
        .n_granularity = layer->w_uv.granularity,
        .k_granularity = layer->w_uv.granularity,
        .max_context = s->batch.max_context,
        .num_splits = e->params.deterministic ? 1 : 0,
    };
    return engine_ok(e, clinfer_mla_decode_branch(e->ctx, &params, 0, NULL, NULL), "mla_decode_branch",
                     error);
}

static bool prefill_branch(struct engine *e, const struct step *s, int64_t l, struct error *error)
{
    const struct layer *layer = &e->layers[l];
    const int64_t H = e->heads, query = e->nope + e->rope;
    const struct clinfer_mla_prefill_branch_params params = {
        .q = heads_of(e->q, s->T, H * query, 0, H, query),
        .kv_norm_gamma = layer->kv_norm,
        .freqs_cis = e->freqs_cis,
        .w_k = layer->w_k.w,
        .w_uv = layer->w_uv.w,
        .w_k_scale = layer->w_k.scale,
        .w_uv_scale = layer->w_uv.scale,
        .output = heads_of(e->attention, s->T, H * e->value, 0, H, e->value),
        .kv = clinfer_kv_pool_layer(e->pool, l),
        .batch = s->batch.tensors,
        .epsilon = (float) e->model->params.epsilon,
        .scale = (float) e->model->params.scale,
        .n_granularity = layer->w_uv.granularity,
        .k_granularity = layer->w_uv.granularity,
        .max_context = s->batch.max_context,
    };
    return engine_ok(e, clinfer_mla_prefill_branch(e->ctx, &params, 0, NULL, NULL), "mla_prefill_branch",
                     error);
}

// Whether the prefill branch is to serve a step; the choice goes by what else is in it.
static bool prefill_is_cheaper(const struct engine *e, const struct step *s)
{
    const struct clinfer_mla_shape shape = { .heads = e->heads,
                                             .nope = e->nope,
                                             .rope = e->rope,
                                             .latent = e->latent,
                                             .value = e->value,
                                             .requests = s->num_rows,
                                             .new_tokens = s->T,
                                             .context = s->batch.max_context };
    return !e->params.deterministic && clinfer_mla_prefill_cheaper(e->ctx, &shape);
}

static bool latent_attention(struct engine *e, const struct step *s, int64_t l, struct error *error)
{
    const struct layer *layer = &e->layers[l];
    const int64_t row = e->latent + e->rope;
    const struct clinfer_kv_store_params store = { .k = heads_of(e->kv_rows, s->T, row, 0, 1, row),
                                                   .kv = clinfer_kv_pool_layer(e->pool, l),
                                                   .batch = s->batch.tensors };
    return latent_rows(e, s, layer, error) &&
           engine_ok(e, clinfer_kv_store(e->ctx, &store, 0, NULL, NULL), "kv_store", error) &&
           latent_queries(e, s, layer, error) &&
           (prefill_is_cheaper(e, s) ? prefill_branch(e, s, l, error) : decode_branch(e, s, l, error));
}

static bool feed_forward(struct engine *e, const struct step *s, const struct layer *layer,
                         struct error *error)
{
    const int64_t T = s->T, width = e->model->params.width, ffn = e->model->params.ffn;
    const struct clinfer_silu_mul_params gate = { .x = rows_of(e->gate_up, T, 2 * ffn),
                                                  .output = rows_of(e->gated, T, ffn) };
    return multiply(e, &layer->gate_up, rows_of(e->normed, T, width), gate.x, error) &&
           engine_ok(e, clinfer_silu_mul(e->ctx, &gate, 0, NULL, NULL), "silu_mul", error) &&
           multiply(e, &layer->down, gate.output, rows_of(e->delta, T, width), error);
}

// Rows of `normed` whose logits are wanted; copied together where others lie between.
static bool pick_rows(struct engine *e, const struct step *s, clinfer_tensor *picked, struct error *error)
{
    const size_t row_bytes = (size_t) e->model->params.width * sizeof(float);
    int64_t end = 0, first = -1, next = 0, out = 0;
    bool together = true;
    for (int i = 0; i < s->num_rows; i++) {
        end += s->rows[i].count;
        if (s->rows[i].want == 0)
            continue;
        first = first < 0 ? end - s->rows[i].want : first;
        together = together && (next == 0 || next == end - s->rows[i].want);
        next = end;
    }
    *picked = rows_of(together ? e->normed : e->picked, s->num_logits, e->model->params.width);
    if (together) {
        picked->offset = (size_t) first * row_bytes;
        return true;
    }
    end = 0;
    for (int i = 0; i < s->num_rows; i++) {
        const int64_t want = s->rows[i].want;
        end += s->rows[i].count;
        if (want && !engine_ok(e,
                               clEnqueueCopyBuffer(
                                   e->queue, e->normed, e->picked, (size_t) (end - want) * row_bytes,
                                   (size_t) out * row_bytes, (size_t) want * row_bytes, 0, NULL, NULL),
                               "clEnqueueCopyBuffer", error))
            return false;
        out += want;
    }
    return true;
}

bool engine_forward(struct engine *e, const struct step *s, struct error *error)
{
    const struct model_params *p = &e->model->params;
    for (int64_t l = 0; l < p->layers; l++) {
        const struct layer *layer = &e->layers[l];
        const int64_t heads = e->heads * e->value;
        if (!norm(e, s, layer->attn_norm, l > 0, error) ||
            !(e->mla ? latent_attention(e, s, l, error) : attention(e, s, l, error)) ||
            !multiply(e, &layer->attn_output, rows_of(e->attention, s->T, heads),
                      rows_of(e->delta, s->T, p->width), error) ||
            !norm(e, s, layer->ffn_norm, true, error) || !feed_forward(e, s, layer, error))
            return false;
    }
    clinfer_tensor picked;
    return s->num_logits == 0 ||
           (norm(e, s, e->output_norm, true, error) && pick_rows(e, s, &picked, error) &&
            multiply(e, &e->output, picked, rows_of(e->logits, s->num_logits, p->vocab), error));
}
