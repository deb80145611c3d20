// SPDX-License-Identifier: Apache-2.0
#include "engine_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// A tensor in host memory, f32, all zero; release() ends it.
static bool make(struct gguf_tensor *t, const char *name, int64_t matrices, int64_t rows, int64_t columns,
                 struct error *error)
{
    *t = (struct gguf_tensor){ .type = GGUF_F32,
                               .rank = matrices ? 3 : 2,
                               .rows = (matrices ? matrices : 1) * rows,
                               .columns = columns };
    const int64_t shape[] = { matrices, rows, columns };
    memcpy(t->shape, matrices ? shape : shape + 1, (size_t) t->rank * sizeof *shape);
    memcpy(t->name, name, strlen(name) < GGUF_MAX_NAME ? strlen(name) : GGUF_MAX_NAME);
    t->bytes = (size_t) (t->rows * columns) * sizeof(float);
    t->data = calloc(t->bytes ? t->bytes : 1, 1);
    return t->data || fail(error, "out of memory for %zu bytes of %s", t->bytes, name);
}

static void release(struct gguf_tensor *t)
{
    free((void *) (uintptr_t) t->data);
}

static float *row_of(struct gguf_tensor *t, int64_t row)
{
    return (float *) (uintptr_t) t->data + row * t->columns;
}

static clinfer_tensor tensor_like(const struct gguf_tensor *t, cl_mem mem, clinfer_dtype dtype)
{
    return clinfer_tensor_of(mem, dtype, t->rank, t->shape[0], t->rank > 1 ? t->shape[1] : 0,
                             t->rank > 2 ? t->shape[2] : 0);
}

// The shape of the scales of a matrix with these.
static clinfer_tensor scale_tensor(const struct matrix *m, cl_mem mem, int64_t rows, int64_t columns)
{
    clinfer_tensor t = m->w;
    t.mem = mem;
    t.dtype = rows > 1 ? CLINFER_F32 : CLINFER_F16;
    t.shape[t.rank - 2] = (t.shape[t.rank - 2] + rows - 1) / rows;
    t.shape[t.rank - 1] = (t.shape[t.rank - 1] + columns - 1) / columns;
    return t;
}

static bool upload(struct engine *e, const struct gguf_tensor *t, enum weights_type type, struct matrix *m,
                   struct error *error)
{
    static const clinfer_dtype dtypes[] = { [WEIGHTS_F32] = CLINFER_F32,
                                            [WEIGHTS_BF16] = CLINFER_BF16,
                                            [WEIGHTS_Q8_0] = CLINFER_I8,
                                            [WEIGHTS_F8_E4M3] = CLINFER_F8_E4M3 };
    const bool empty = t->rows == 0 || t->columns == 0; // as w_uk is where a key is all rope
    const size_t bytes = empty ? 0 : weights_code_bytes(t, type),
                 scale_bytes = empty ? 0 : weights_scale_bytes(t, type);
    void *codes = malloc(bytes ? bytes : 1), *scales = malloc(scale_bytes ? scale_bytes : 1);
    cl_mem w = NULL, w_scale = NULL;
    bool ok = (codes && scales) || fail(error, "out of memory for %zu bytes of %s", bytes, t->name);
    if (bytes)
        ok =
            ok && weights_convert(t, type, codes, scales, error) && engine_buffer(e, bytes, codes, &w, error);
    if (scale_bytes)
        ok = ok && engine_buffer(e, scale_bytes, scales, &w_scale, error);
    free(codes);
    free(scales);
    e->weight_bytes += bytes + scale_bytes;
    m->w = tensor_like(t, w, dtypes[type]);
    if (type == WEIGHTS_Q8_0)
        m->scale = scale_tensor(m, w_scale, 1, GGUF_BLOCK);
    if (type == WEIGHTS_F8_E4M3) {
        m->scale = scale_tensor(m, w_scale, WEIGHTS_F8_BLOCK, WEIGHTS_F8_BLOCK);
        m->granularity = WEIGHTS_F8_BLOCK;
    }
    return ok;
}

// Matrices of one width, one below the other.
static bool upload_stacked(struct engine *e, const struct gguf_tensor *const *parts, int num_parts,
                           struct matrix *m, struct error *error)
{
    struct gguf_tensor all;
    int64_t rows = 0;
    for (int i = 0; i < num_parts; i++)
        rows += parts[i]->rows;
    if (!make(&all, parts[0]->name, 0, rows, parts[0]->columns, error))
        return false;
    rows = 0;
    for (int i = 0; i < num_parts; i++) {
        weights_rows(parts[i], 0, parts[i]->rows, row_of(&all, rows));
        rows += parts[i]->rows;
    }
    const bool ok = upload(e, &all, e->params.weights, m, error);
    release(&all);
    return ok;
}

static bool upload_vector(struct engine *e, const struct gguf_tensor *t, clinfer_tensor *vector,
                          struct error *error)
{
    struct matrix m;
    const bool ok = upload(e, t, WEIGHTS_F32, &m, error);
    *vector = m.w;
    return ok;
}

// What the MLA operations read; they take no Q8_0.
static enum weights_type mla_weights(const struct engine *e)
{
    return e->params.weights == WEIGHTS_Q8_0 ? WEIGHTS_BF16 : e->params.weights;
}

// W_uk [H, C, N] transposed: [H * N, C].
static bool upload_keys(struct engine *e, const struct gguf_tensor *w_uk, struct matrix *m,
                        struct error *error)
{
    const int64_t H = e->heads, C = e->latent, N = e->nope;
    struct gguf_tensor w_k;
    float *row = malloc((size_t) (N + 1) * sizeof *row);
    if (!row)
        return fail(error, "out of memory for a row of %s", w_uk->name);
    bool ok = make(&w_k, w_uk->name, 0, H * N, C, error);
    for (int64_t i = 0; ok && i < H * C; i++) {
        weights_rows(w_uk, i, 1, row);
        for (int64_t n = 0; n < N; n++)
            row_of(&w_k, i / C * N + n)[i % C] = row[n];
    }
    ok = ok && upload(e, &w_k, mla_weights(e), m, error);
    free(row);
    release(&w_k);
    return ok;
}

static bool load_deepseek2(struct engine *e, const struct model_layer *from, struct layer *to,
                           struct error *error)
{
    const enum weights_type type = e->params.weights;
    return upload(e, from->attn_q_a, type, &to->q_a, error) &&
           upload_vector(e, from->attn_q_a_norm, &to->q_norm, error) &&
           upload(e, from->attn_q_b, type, &to->q_b, error) &&
           upload(e, from->attn_kv_a_mqa, type, &to->kv, error) &&
           upload_vector(e, from->attn_kv_a_norm, &to->kv_norm, error) &&
           upload(e, from->attn_k_b, mla_weights(e), &to->w_uk, error) &&
           upload(e, from->attn_v_b, mla_weights(e), &to->w_uv, error) &&
           upload_keys(e, from->attn_k_b, &to->w_k, error);
}

// Queries [H * R, width], head h in its KV head's place of R = K * D, the rest zero; values [H, D, width],
// its KV head's. All of a key is rope, so that w_uk has no columns.
static bool load_llama_as_mla(struct engine *e, const struct model_layer *from, struct layer *to,
                              struct error *error)
{
    const struct model_params *p = &e->model->params;
    const int64_t H = p->heads, K = p->kv_heads, D = p->head_size, R = e->rope;
    struct gguf_tensor q = { 0 }, v = { 0 }, none = { 0 };
    bool ok = make(&q, from->attn_q->name, 0, H * R, p->width, error) &&
              make(&v, from->attn_v->name, H, D, p->width, error) &&
              make(&none, "w_uk", H, p->width, 0, error);
    for (int64_t h = 0; ok && h < H; h++) {
        const int64_t kv_head = h / (H / K);
        weights_rows(from->attn_q, h * D, D, row_of(&q, h * R + kv_head * D));
        weights_rows(from->attn_v, kv_head * D, D, row_of(&v, h * D));
    }
    to->kv_norm = to->attn_norm;
    ok = ok && upload(e, &q, e->params.weights, &to->q_b, error) &&
         upload(e, from->attn_k, e->params.weights, &to->kv, error) &&
         upload(e, &none, mla_weights(e), &to->w_uk, error) &&
         upload(e, &v, mla_weights(e), &to->w_uv, error) && upload_keys(e, &none, &to->w_k, error);
    release(&q);
    release(&v);
    release(&none);
    return ok;
}

static bool load_layer(struct engine *e, const struct model_layer *from, struct layer *to,
                       struct error *error)
{
    const struct gguf_tensor *qkv[] = { from->attn_q, from->attn_k, from->attn_v };
    const struct gguf_tensor *gate_up[] = { from->ffn_gate, from->ffn_up };
    if (!upload_vector(e, from->attn_norm, &to->attn_norm, error) ||
        !upload_vector(e, from->ffn_norm, &to->ffn_norm, error))
        return false;
    const bool attention = e->model->params.arch == MODEL_DEEPSEEK2 ? load_deepseek2(e, from, to, error)
                           : e->mla                                 ? load_llama_as_mla(e, from, to, error)
                                    : upload_stacked(e, qkv, 3, &to->qkv, error);
    return attention && upload(e, from->attn_output, e->params.weights, &to->attn_output, error) &&
           upload_stacked(e, gate_up, 2, &to->gate_up, error) &&
           upload(e, from->ffn_down, e->params.weights, &to->down, error);
}

// Rows of freqs_cis; the KV heads of a llama model that runs as MLA turn alike, each in its place.
static bool load_rope(struct engine *e, struct error *error)
{
    const int64_t rows = e->params.context, dims = e->model->params.rope_dims, R = e->rope;
    float *table = malloc((size_t) (rows * dims) * sizeof *table),
          *tiled = malloc((size_t) (rows * R) * sizeof *tiled);
    cl_mem mem = NULL;
    bool ok = (table && tiled) || fail(error, "out of memory for rotations of %" PRId64 " positions", rows);
    if (ok) {
        model_rope_table(&e->model->params, rows, table);
        for (int64_t i = 0; i < rows * R; i++)
            tiled[i] = table[i / R * dims + i % R % dims];
        ok = engine_buffer(e, (size_t) (rows * R) * sizeof *tiled, tiled, &mem, error);
    }
    e->freqs_cis = clinfer_tensor_2d(mem, CLINFER_F32, rows, R);
    free(table);
    free(tiled);
    return ok;
}

bool engine_load_weights(struct engine *e, struct error *error)
{
    const struct model *model = e->model;
    e->layers = calloc((size_t) model->params.layers, sizeof *e->layers);
    if (!e->layers)
        return fail(error, "out of memory for %" PRId64 " layers", model->params.layers);
    for (int64_t l = 0; l < model->params.layers; l++)
        if (!load_layer(e, &model->layers[l], &e->layers[l], error))
            return false;
    return load_rope(e, error) && upload_vector(e, model->output_norm, &e->output_norm, error) &&
           upload(e, model->output, e->params.weights, &e->output, error);
}
