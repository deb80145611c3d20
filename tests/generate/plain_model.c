// SPDX-License-Identifier: Apache-2.0
#include "plain_model.h"
#include "weights.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static float *floats(int64_t n)
{
    float *x = calloc(n > 0 ? (size_t) n : 1, sizeof *x);
    if (!x)
        abort();
    return x;
}

static double dot(const float *a, const float *b, int64_t n)
{
    double sum[4] = { 0 };
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        for (int j = 0; j < 4; j++)
            sum[j] += (double) a[i + j] * (double) b[i + j];
    for (; i < n; i++)
        sum[0] += (double) a[i] * (double) b[i];
    return sum[0] + sum[1] + sum[2] + sum[3];
}

// y[t, r] = x[t] . row first + r of w; rows of x and y are x_stride and y_stride apart.
static void multiply_rows(const struct gguf_tensor *w, int64_t first, int64_t rows, const float *x,
                          int64_t x_stride, int64_t n, float *y, int64_t y_stride)
{
    float *row = floats(w->columns);
    for (int64_t r = 0; r < rows; r++) {
        weights_rows(w, first + r, 1, row);
        for (int64_t t = 0; t < n; t++)
            y[t * y_stride + r] = (float) dot(x + t * x_stride, row, w->columns);
    }
    free(row);
}

static float *multiply(const struct gguf_tensor *w, const float *x, int64_t n)
{
    float *y = floats(n * w->rows);
    multiply_rows(w, 0, w->rows, x, w->columns, n, y, w->rows);
    return y;
}

// In place, of n rows `stride` apart; y may be x.
static void norm(const struct gguf_tensor *gamma, double epsilon, const float *x, int64_t n, int64_t stride,
                 float *y)
{
    const int64_t size = gamma->columns;
    float *g = floats(size);
    weights_rows(gamma, 0, 1, g);
    for (int64_t t = 0; t < n; t++) {
        const float *from = x + t * stride;
        const double r = 1 / sqrt(dot(from, from, size) / (double) size + epsilon);
        for (int64_t i = 0; i < size; i++)
            y[t * stride + i] = (float) ((double) from[i] * r * (double) g[i]);
    }
    free(g);
}

static float *normed(const struct gguf_tensor *gamma, double epsilon, const float *x, int64_t n)
{
    float *y = floats(n * gamma->columns);
    norm(gamma, epsilon, x, n, gamma->columns, y);
    return y;
}

static void add(float *x, float *y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
    free(y);
}

// Neighbours of x [n, heads, size] in the last R dims of each head.
static void rotate(const struct plain *p, float *x, int64_t n, int64_t heads, int64_t size)
{
    const int64_t R = p->model->params.rope_dims;
    for (int64_t i = 0; i < n * heads; i++) {
        const float *turn = p->rope + (p->length + i / heads) * R;
        float *pair = x + i * size + size - R;
        for (int64_t d = 0; d < R; d += 2) {
            const double re = (double) pair[d], im = (double) pair[d + 1];
            pair[d] = (float) (re * (double) turn[d] - im * (double) turn[d + 1]);
            pair[d + 1] = (float) (re * (double) turn[d + 1] + im * (double) turn[d]);
        }
    }
}

// One query against `count` keys of `size`, rows `stride` apart.
static void attend(const float *q, const float *keys, const float *values, int64_t count, int64_t stride,
                   int64_t size, int64_t value_size, double scale, float *out)
{
    double *weight = malloc((size_t) count * sizeof *weight), most = -INFINITY, total = 0;
    if (!weight)
        abort();
    for (int64_t j = 0; j < count; j++) {
        weight[j] = scale * dot(q, keys + j * stride, size);
        most = fmax(most, weight[j]);
    }
    for (int64_t j = 0; j < count; j++)
        total += weight[j] = exp(weight[j] - most);
    for (int64_t d = 0; d < value_size; d++) {
        double sum = 0;
        for (int64_t j = 0; j < count; j++)
            sum += weight[j] * (double) values[j * stride + d];
        out[d] = (float) (sum / total);
    }
    free(weight);
}

static float *cache_row(const struct plain *p, float *cache, int64_t layer, int64_t position)
{
    const struct model_params *m = &p->model->params;
    return cache + (layer * p->capacity + position) * m->kv_heads * m->head_size;
}

// y [n, width] is the layer's normed input; the heads' outputs, before attn_output.
static float *llama_attention(struct plain *p, int64_t layer, const float *y, int64_t n)
{
    const struct model_layer *l = &p->model->layers[layer];
    const struct model_params *m = &p->model->params;
    const int64_t H = m->heads, K = m->kv_heads, D = m->head_size;
    float *q = multiply(l->attn_q, y, n), *out = floats(n * H * D);
    float *keys = cache_row(p, p->keys, layer, p->length),
          *values = cache_row(p, p->values, layer, p->length);
    multiply_rows(l->attn_k, 0, K * D, y, m->width, n, keys, K * D);
    multiply_rows(l->attn_v, 0, K * D, y, m->width, n, values, K * D);
    rotate(p, q, n, H, D);
    rotate(p, keys, n, K, D);
    for (int64_t t = 0; t < n; t++)
        for (int64_t h = 0; h < H; h++) {
            const int64_t at = h / (H / K) * D;
            attend(q + (t * H + h) * D, cache_row(p, p->keys, layer, 0) + at,
                   cache_row(p, p->values, layer, 0) + at, p->length + t + 1, K * D, D, D, m->scale,
                   out + (t * H + h) * D);
        }
    free(q);
    return out;
}

static float *mla_queries(struct plain *p, const struct model_layer *l, const float *y, int64_t n)
{
    const struct model_params *m = &p->model->params;
    const int64_t H = m->heads, N = m->nope, R = m->rope_dims, C = m->latent, Q = N + R;
    float *small = multiply(l->attn_q_a, y, n), *full = floats(n * H * (C + R));
    norm(l->attn_q_a_norm, m->epsilon, small, n, m->q_lora, small);
    float *q = multiply(l->attn_q_b, small, n);
    rotate(p, q, n, H, Q);
    for (int64_t h = 0; h < H; h++) {
        multiply_rows(l->attn_k_b, h * C, C, q + h * Q, H * Q, n, full + h * (C + R), H * (C + R));
        for (int64_t t = 0; t < n; t++)
            memcpy(full + (t * H + h) * (C + R) + C, q + (t * H + h) * Q + N, (size_t) R * sizeof *q);
    }
    free(small);
    free(q);
    return full;
}

static float *mla_attention(struct plain *p, int64_t layer, const float *y, int64_t n)
{
    const struct model_layer *l = &p->model->layers[layer];
    const struct model_params *m = &p->model->params;
    const int64_t H = m->heads, C = m->latent, V = m->value, row = m->head_size;
    float *q = mla_queries(p, l, y, n), *latent = floats(n * H * C), *out = floats(n * H * V);
    float *rows = cache_row(p, p->keys, layer, p->length);
    multiply_rows(l->attn_kv_a_mqa, 0, row, y, m->width, n, rows, row);
    norm(l->attn_kv_a_norm, m->epsilon, rows, n, row, rows);
    rotate(p, rows, n, 1, row);
    for (int64_t t = 0; t < n; t++)
        for (int64_t h = 0; h < H; h++)
            attend(q + (t * H + h) * row, cache_row(p, p->keys, layer, 0), cache_row(p, p->keys, layer, 0),
                   p->length + t + 1, row, row, C, m->scale, latent + (t * H + h) * C);
    for (int64_t h = 0; h < H; h++)
        multiply_rows(l->attn_v_b, h * V, V, latent + h * C, H * C, n, out + h * V, H * V);
    free(q);
    free(latent);
    return out;
}

static void feed_forward(const struct model_layer *l, double epsilon, float *x, int64_t n)
{
    float *y = normed(l->ffn_norm, epsilon, x, n), *gate = multiply(l->ffn_gate, y, n),
          *up = multiply(l->ffn_up, y, n);
    for (int64_t i = 0; i < n * l->ffn_gate->rows; i++)
        gate[i] = (float) ((double) gate[i] / (1 + exp(-(double) gate[i])) * (double) up[i]);
    add(x, multiply(l->ffn_down, gate, n), n * l->ffn_down->rows);
    free(y);
    free(gate);
    free(up);
}

void plain_forward(struct plain *plain, const uint32_t *tokens, int64_t n, float *logits)
{
    const struct model *m = plain->model;
    const int64_t width = m->params.width;
    float *x = floats(n * width);
    if (n > plain->capacity - plain->length)
        abort();
    for (int64_t t = 0; t < n; t++)
        weights_rows(m->token_embd, tokens[t], 1, x + t * width);
    for (int64_t layer = 0; layer < m->params.layers; layer++) {
        const struct model_layer *l = &m->layers[layer];
        float *y = normed(l->attn_norm, m->params.epsilon, x, n);
        float *out = m->params.arch == MODEL_LLAMA ? llama_attention(plain, layer, y, n)
                                                   : mla_attention(plain, layer, y, n);
        add(x, multiply(l->attn_output, out, n), n * width);
        feed_forward(l, m->params.epsilon, x, n);
        free(y);
        free(out);
    }
    norm(m->output_norm, m->params.epsilon, x, n, width, x);
    multiply_rows(m->output, 0, m->params.vocab, x, width, n, logits, m->params.vocab);
    plain->length += n;
    free(x);
}

void plain_create(struct plain *plain, const struct model *model, int64_t capacity)
{
    const struct model_params *m = &model->params;
    const int64_t size = m->layers * capacity * m->kv_heads * m->head_size;
    *plain = (struct plain){ .model = model, .capacity = capacity };
    plain->rope = floats(capacity * m->rope_dims);
    plain->keys = floats(size);
    plain->values = m->arch == MODEL_LLAMA ? floats(size) : NULL;
    model_rope_table(m, capacity, plain->rope);
}

void plain_destroy(struct plain *plain)
{
    free(plain->rope);
    free(plain->keys);
    free(plain->values);
}

double plain_nll(struct plain *plain, const uint32_t *tokens, int64_t n)
{
    const int64_t vocab = plain->model->params.vocab;
    float *logits = floats(n * vocab);
    double loss = 0;
    plain->length = 0;
    plain_forward(plain, tokens, n - 1, logits);
    for (int64_t t = 0; t + 1 < n; t++) {
        const float *row = logits + t * vocab;
        double most = -INFINITY, total = 0;
        for (int64_t i = 0; i < vocab; i++)
            most = fmax(most, (double) row[i]);
        for (int64_t i = 0; i < vocab; i++)
            total += exp((double) row[i] - most);
        loss += most + log(total) - (double) row[tokens[t + 1]];
    }
    free(logits);
    return loss / (double) (n - 1);
}

double plain_greedy(struct plain *plain, const uint32_t *tokens, int64_t n, int64_t count, uint32_t *out)
{
    const int64_t vocab = plain->model->params.vocab;
    float *logits = floats(n * vocab);
    double gap = INFINITY;
    plain->length = 0;
    plain_forward(plain, tokens, n, logits);
    const float *row = logits + (n - 1) * vocab;
    for (int64_t i = 0; i < count; i++) {
        int64_t best = 0;
        float second = -INFINITY;
        for (int64_t v = 1; v < vocab; v++) {
            second = fmaxf(second, fminf(row[v], row[best]));
            best = row[v] > row[best] ? v : best;
        }
        gap = fmin(gap, (double) row[best] - (double) second);
        out[i] = (uint32_t) best;
        if (i + 1 < count)
            plain_forward(plain, &out[i], 1, logits);
        row = logits;
    }
    free(logits);
    return gap;
}
