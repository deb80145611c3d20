// SPDX-License-Identifier: Apache-2.0
#include "model.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_LAYERS = 1 << 10, MAX_EXTENT = 1 << 24 };

struct reader {
    const struct gguf_file *file;
    struct model_params *p;
    const char *arch; // what keys begin with
    struct error *error;
    bool *used; // which tensors have a role
};

static const char *key_of(const struct reader *r, const char *name, char key[128])
{
    (void) snprintf(key, 128, "%s.%s", r->arch, name);
    return key;
}

static bool read_int(const struct reader *r, const char *name, int64_t high, int64_t *value)
{
    uint64_t x;
    char key[128];
    if (!gguf_get_uint(r->file, key_of(r, name, key), 1, (uint64_t) high, &x, r->error))
        return false;
    *value = (int64_t) x;
    return true;
}

// *value as it is where the file has no such key.
static bool read_optional_int(const struct reader *r, const char *name, int64_t *value)
{
    char key[128];
    return !gguf_find(r->file, key_of(r, name, key)) || read_int(r, name, MAX_EXTENT, value);
}

// A key that may say only what is so anyway; it may be left out.
static bool expect_int(const struct reader *r, const char *name, int64_t want)
{
    int64_t value = want;
    if (!read_optional_int(r, name, &value))
        return false;
    return value == want || fail(r->error, "%s.%s is %" PRId64 ", want %" PRId64, r->arch, name, value, want);
}

static bool read_positive(const struct reader *r, const char *name, double *value)
{
    char key[128];
    if (!gguf_get_float(r->file, key_of(r, name, key), value, r->error))
        return false;
    return (isfinite(*value) && *value > 0) || fail(r->error, "%s is %g, want a number above 0", key, *value);
}

// Rope that is scaled, and experts: of what a file may say only that it has none.
static bool refuse_others(const struct reader *r)
{
    char key[128];
    struct gguf_string kind;
    uint64_t experts = 0;
    if (gguf_find(r->file, key_of(r, "rope.scaling.type", key))) {
        if (!gguf_get_string(r->file, key, &kind, r->error))
            return false;
        if (!gguf_string_is(kind, "none"))
            return fail(r->error, "%s is \"%.*s\", want none", key, kind.size < 40 ? (int) kind.size : 40,
                        kind.text);
    }
    if (gguf_find(r->file, key_of(r, "rope.scaling.factor", key)) ||
        gguf_find(r->file, key_of(r, "rope.scale_linear", key)))
        return fail(r->error, "%s is there, want a model whose rope is not scaled", key);
    return !gguf_find(r->file, key_of(r, "expert_count", key)) ||
           gguf_get_uint(r->file, key, 0, 0, &experts, r->error);
}

static bool even_rope(const struct reader *r)
{
    return r->p->rope_dims % 2 == 0 ||
           fail(r->error, "rope turns %" PRId64 " dims, want an even number", r->p->rope_dims);
}

static bool read_llama(const struct reader *r)
{
    struct model_params *p = r->p;
    if (!read_int(r, "attention.head_count_kv", MAX_EXTENT, &p->kv_heads))
        return false;
    if (p->heads % p->kv_heads)
        return fail(r->error, "%" PRId64 " heads and %" PRId64 " KV heads, want a multiple", p->heads,
                    p->kv_heads);
    p->head_size = p->width / p->heads;
    if (!read_optional_int(r, "attention.key_length", &p->head_size))
        return false;
    if (p->head_size < 1)
        return fail(r->error, "%" PRId64 " heads in a width of %" PRId64, p->heads, p->width);
    p->rope_dims = p->head_size;
    p->scale = 1 / sqrt((double) p->head_size);
    return even_rope(r) && expect_int(r, "attention.value_length", p->head_size) &&
           expect_int(r, "rope.dimension_count", p->head_size);
}

static bool read_deepseek2(const struct reader *r)
{
    struct model_params *p = r->p;
    int64_t query;
    if (!read_int(r, "attention.q_lora_rank", MAX_EXTENT, &p->q_lora) ||
        !read_int(r, "attention.kv_lora_rank", MAX_EXTENT, &p->latent) ||
        !read_int(r, "attention.key_length_mla", MAX_EXTENT, &query) ||
        !read_int(r, "attention.value_length_mla", MAX_EXTENT, &p->value) ||
        !read_int(r, "rope.dimension_count", MAX_EXTENT, &p->rope_dims))
        return false;
    if (p->rope_dims >= query)
        return fail(r->error, "rope turns %" PRId64 " dims of a query head, which has %" PRId64, p->rope_dims,
                    query);
    p->nope = query - p->rope_dims;
    p->kv_heads = 1;
    p->head_size = p->latent + p->rope_dims;
    p->scale = 1 / sqrt((double) query);
    return even_rope(r) && expect_int(r, "attention.head_count_kv", 1) &&
           expect_int(r, "attention.key_length", p->head_size) &&
           expect_int(r, "attention.value_length", p->latent) &&
           expect_int(r, "leading_dense_block_count", p->layers);
}

static bool read_params(struct reader *r)
{
    struct model_params *p = r->p;
    struct gguf_string arch;
    if (!gguf_get_string(r->file, "general.architecture", &arch, r->error))
        return false;
    p->arch = gguf_string_is(arch, "llama") ? MODEL_LLAMA : MODEL_DEEPSEEK2;
    if (p->arch == MODEL_DEEPSEEK2 && !gguf_string_is(arch, "deepseek2"))
        return fail(r->error, "general.architecture is \"%.*s\", want llama or deepseek2",
                    arch.size < 40 ? (int) arch.size : 40, arch.text);
    r->arch = p->arch == MODEL_LLAMA ? "llama" : "deepseek2";
    if (!read_int(r, "block_count", MAX_LAYERS, &p->layers) ||
        !read_int(r, "embedding_length", MAX_EXTENT, &p->width) ||
        !read_int(r, "feed_forward_length", MAX_EXTENT, &p->ffn) ||
        !read_int(r, "attention.head_count", MAX_EXTENT, &p->heads) ||
        !read_int(r, "context_length", MAX_EXTENT, &p->context) ||
        !read_positive(r, "attention.layer_norm_rms_epsilon", &p->epsilon) ||
        !read_positive(r, "rope.freq_base", &p->rope_base) || !refuse_others(r))
        return false;
    return p->arch == MODEL_LLAMA ? read_llama(r) : read_deepseek2(r);
}

// The tensor of a role; of layer -1 one that is no layer's. An extent of 0 is left out.
static bool find_tensor(struct reader *r, int64_t layer, const char *role, int64_t a, int64_t b, int64_t c,
                        const struct gguf_tensor **tensor)
{
    char name[GGUF_MAX_NAME + 1], want[80], have[96];
    const int64_t shape[] = { a, b, c };
    const int rank = c ? 3 : b ? 2 : 1;
    if (layer < 0)
        (void) snprintf(name, sizeof name, "%s.weight", role);
    else
        (void) snprintf(name, sizeof name, "blk.%" PRId64 ".%s.weight", layer, role);
    const struct gguf_tensor *t = *tensor = gguf_find_tensor(r->file, name);
    if (!t)
        return fail(r->error, "tensor %s is missing", name);
    r->used[t - r->file->tensors] = true;
    if (t->rank == rank && !memcmp(t->shape, shape, (size_t) rank * sizeof *shape))
        return true;
    size_t n = 0, m = 0;
    for (int i = 0; i < rank; i++)
        n += (size_t) snprintf(want + n, sizeof want - n, "%s%" PRId64, i ? ", " : "", shape[i]);
    for (int i = 0; i < t->rank; i++)
        m += (size_t) snprintf(have + m, sizeof have - m, "%s%" PRId64, i ? ", " : "", t->shape[i]);
    return fail(r->error, "tensor %s is [%s], want [%s]", name, have, want);
}

static bool find_attention(struct reader *r, int64_t l, struct model_layer *layer)
{
    const struct model_params *p = r->p;
    const int64_t width = p->width, H = p->heads, K = p->kv_heads, D = p->head_size;
    if (p->arch == MODEL_LLAMA)
        return find_tensor(r, l, "attn_q", H * D, width, 0, &layer->attn_q) &&
               find_tensor(r, l, "attn_k", K * D, width, 0, &layer->attn_k) &&
               find_tensor(r, l, "attn_v", K * D, width, 0, &layer->attn_v) &&
               find_tensor(r, l, "attn_output", width, H * D, 0, &layer->attn_output);
    const int64_t C = p->latent, N = p->nope, R = p->rope_dims, V = p->value;
    return find_tensor(r, l, "attn_q_a", p->q_lora, width, 0, &layer->attn_q_a) &&
           find_tensor(r, l, "attn_q_a_norm", p->q_lora, 0, 0, &layer->attn_q_a_norm) &&
           find_tensor(r, l, "attn_q_b", H * (N + R), p->q_lora, 0, &layer->attn_q_b) &&
           find_tensor(r, l, "attn_kv_a_mqa", C + R, width, 0, &layer->attn_kv_a_mqa) &&
           find_tensor(r, l, "attn_kv_a_norm", C, 0, 0, &layer->attn_kv_a_norm) &&
           find_tensor(r, l, "attn_k_b", H, C, N, &layer->attn_k_b) &&
           find_tensor(r, l, "attn_v_b", H, V, C, &layer->attn_v_b) &&
           find_tensor(r, l, "attn_output", width, H * V, 0, &layer->attn_output);
}

static bool find_layer(struct reader *r, int64_t l, struct model_layer *layer)
{
    const int64_t width = r->p->width, ffn = r->p->ffn;
    return find_tensor(r, l, "attn_norm", width, 0, 0, &layer->attn_norm) && find_attention(r, l, layer) &&
           find_tensor(r, l, "ffn_norm", width, 0, 0, &layer->ffn_norm) &&
           find_tensor(r, l, "ffn_gate", ffn, width, 0, &layer->ffn_gate) &&
           find_tensor(r, l, "ffn_up", ffn, width, 0, &layer->ffn_up) &&
           find_tensor(r, l, "ffn_down", width, ffn, 0, &layer->ffn_down);
}

static bool find_tensors(struct reader *r, struct model *m)
{
    struct model_params *p = r->p;
    m->token_embd = gguf_find_tensor(r->file, "token_embd.weight");
    if (m->token_embd)
        p->vocab = m->token_embd->shape[0];
    if (!find_tensor(r, -1, "token_embd", p->vocab, p->width, 0, &m->token_embd) ||
        !expect_int(r, "vocab_size", p->vocab) ||
        !find_tensor(r, -1, "output_norm", p->width, 0, 0, &m->output_norm))
        return false;
    m->output = m->token_embd;
    if (gguf_find_tensor(r->file, "output.weight") &&
        !find_tensor(r, -1, "output", p->vocab, p->width, 0, &m->output))
        return false;
    m->layers = calloc((size_t) p->layers, sizeof *m->layers);
    if (!m->layers)
        return fail(r->error, "out of memory for %" PRId64 " layers", p->layers);
    for (int64_t l = 0; l < p->layers; l++)
        if (!find_layer(r, l, &m->layers[l]))
            return false;
    return true;
}

// A bias, say, or a norm of an architecture's variant: without it the results would be wrong.
static bool all_used(const struct reader *r)
{
    for (size_t i = 0; i < r->file->num_tensors; i++)
        if (!r->used[i])
            return fail(r->error, "tensor %s has no role in architecture %s of this program",
                        r->file->tensors[i].name, r->arch);
    return true;
}

bool model_create(struct model *model, const struct gguf_file *file, struct error *error)
{
    *model = (struct model){ 0 };
    struct reader r = { file, &model->params, NULL, error, calloc(file->num_tensors + 1, sizeof *r.used) };
    const bool ok = (r.used || fail(error, "out of memory for %zu tensors", file->num_tensors)) &&
                    read_params(&r) && find_tensors(&r, model) && all_used(&r);
    free(r.used);
    if (!ok)
        model_destroy(model);
    return ok;
}

void model_destroy(struct model *model)
{
    free(model->layers);
    *model = (struct model){ 0 };
}

void model_rope_table(const struct model_params *params, int64_t rows, float *table)
{
    for (int64_t p = 0; p < params->rope_dims / 2; p++) {
        const double turn = pow(params->rope_base, -2.0 * (double) p / (double) params->rope_dims);
        for (int64_t position = 0; position < rows; position++) {
            table[position * params->rope_dims + 2 * p] = (float) cos((double) position * turn);
            table[position * params->rope_dims + 2 * p + 1] = (float) sin((double) position * turn);
        }
    }
}
