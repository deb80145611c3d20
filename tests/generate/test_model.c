// SPDX-License-Identifier: Apache-2.0
// What a file says of its model: psalter's, and small ones made here, right and wrong.
#include "default_model.h"
#include "gguf_writer.h"
#include "model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(model, .timeout = 60);

static struct error error;

Test(model, psalter)
{
    struct gguf_file file;
    struct model m;
    cr_assert(gguf_open_memory(default_model, (size_t) (default_model_end - default_model), "psalter", &file,
                               &error));
    cr_assert(model_create(&m, &file, &error), "%s", error.text);
    const struct model_params *p = &m.params;
    cr_assert(p->arch == MODEL_DEEPSEEK2 && p->layers == 5 && p->width == 192 && p->heads == 6 &&
              p->ffn == 512);
    cr_assert(p->vocab == 1024 && p->context == 512 && p->rope_base == 10000 && p->rope_dims == 16);
    cr_assert(p->q_lora == 96 && p->latent == 64 && p->nope == 32 && p->value == 32);
    cr_assert(p->kv_heads == 1 && p->head_size == 80);
    cr_assert_float_eq(p->scale, 1 / sqrt(48), 1e-15);
    cr_assert_float_eq(p->epsilon, 1e-6, 1e-13);
    cr_assert(!strcmp(m.output->name, "output.weight") && !strcmp(m.token_embd->name, "token_embd.weight"));
    cr_assert_str_eq(m.layers[4].attn_k_b->name, "blk.4.attn_k_b.weight");
    cr_assert_str_eq(m.layers[0].attn_q_a_norm->name, "blk.0.attn_q_a_norm.weight");
    cr_assert_null(m.layers[0].attn_q);
    model_destroy(&m);
    gguf_close(&file);
}

// Small models. A test changes one value or one tensor of them: `name` is left out, or is what `put` writes;
// with a + before it, it is one more.
struct change {
    const char *name;
    void (*put)(struct writer *w, const char *name);
    const char *want; // of the error; NULL: it is taken
};

struct making {
    struct writer *w;
    const struct change *change;
    const char *arch;
};

// False where the change has taken the name's place.
static bool unchanged(const struct making *m, const char *name)
{
    const bool same = m->change->name && !strcmp(m->change->name, name);
    if (same && m->change->put)
        m->change->put(m->w, name);
    return !same;
}

static void value(const struct making *m, const char *name, uint32_t x)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", m->arch, name);
    if (unchanged(m, key))
        writer_u32(m->w, key, x);
}

static void number(const struct making *m, const char *name, float x)
{
    char key[128];
    snprintf(key, sizeof key, "%s.%s", m->arch, name);
    if (unchanged(m, key))
        writer_f32(m->w, key, x);
}

static void tensor(const struct making *m, const char *name, int64_t a, int64_t b, int64_t c)
{
    if (unchanged(m, name))
        writer_tensor(m->w, name, GGUF_BF16, a, b, c, NULL);
}

enum { LAYERS = 2, WIDTH = 24, HEADS = 4, KV_HEADS = 2, HEAD = 6, FFN = 40, VOCAB = 11 };
enum { Q_LORA = 10, LATENT = 8, NOPE = 5, ROPE = 4, VALUE = 3 };

static void shared(const struct making *m)
{
    if (unchanged(m, "general.architecture"))
        writer_string(m->w, "general.architecture", m->arch);
    value(m, "block_count", LAYERS);
    value(m, "embedding_length", WIDTH);
    value(m, "feed_forward_length", FFN);
    value(m, "attention.head_count", HEADS);
    value(m, "context_length", 64);
    number(m, "attention.layer_norm_rms_epsilon", 1e-5f);
    number(m, "rope.freq_base", 10000);
    tensor(m, "token_embd.weight", VOCAB, WIDTH, 0);
    tensor(m, "output_norm.weight", WIDTH, 0, 0);
    for (int l = 0; l < LAYERS; l++) {
        static const struct {
            const char *role;
            int64_t a, b;
        } roles[] = { { "attn_norm", WIDTH, 0 },
                      { "ffn_norm", WIDTH, 0 },
                      { "ffn_gate", FFN, WIDTH },
                      { "ffn_up", FFN, WIDTH },
                      { "ffn_down", WIDTH, FFN } };
        for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, roles[i].role);
            tensor(m, name, roles[i].a, roles[i].b, 0);
        }
    }
}

static void layer_tensor(const struct making *m, int layer, const char *role, int64_t a, int64_t b, int64_t c)
{
    char name[64];
    snprintf(name, sizeof name, "blk.%d.%s.weight", layer, role);
    tensor(m, name, a, b, c);
}

static void llama(const struct making *m)
{
    shared(m);
    value(m, "attention.head_count_kv", KV_HEADS);
    value(m, "rope.dimension_count", HEAD);
    for (int l = 0; l < LAYERS; l++) {
        layer_tensor(m, l, "attn_q", HEADS * HEAD, WIDTH, 0);
        layer_tensor(m, l, "attn_k", KV_HEADS * HEAD, WIDTH, 0);
        layer_tensor(m, l, "attn_v", KV_HEADS * HEAD, WIDTH, 0);
        layer_tensor(m, l, "attn_output", WIDTH, HEADS * HEAD, 0);
    }
}

static void deepseek2(const struct making *m)
{
    shared(m);
    value(m, "attention.head_count_kv", 1);
    value(m, "attention.q_lora_rank", Q_LORA);
    value(m, "attention.kv_lora_rank", LATENT);
    value(m, "attention.key_length", LATENT + ROPE);
    value(m, "attention.value_length", LATENT);
    value(m, "attention.key_length_mla", NOPE + ROPE);
    value(m, "attention.value_length_mla", VALUE);
    value(m, "rope.dimension_count", ROPE);
    value(m, "leading_dense_block_count", LAYERS);
    value(m, "expert_count", 0);
    for (int l = 0; l < LAYERS; l++) {
        layer_tensor(m, l, "attn_q_a", Q_LORA, WIDTH, 0);
        layer_tensor(m, l, "attn_q_a_norm", Q_LORA, 0, 0);
        layer_tensor(m, l, "attn_q_b", HEADS * (NOPE + ROPE), Q_LORA, 0);
        layer_tensor(m, l, "attn_kv_a_mqa", LATENT + ROPE, WIDTH, 0);
        layer_tensor(m, l, "attn_kv_a_norm", LATENT, 0, 0);
        layer_tensor(m, l, "attn_k_b", HEADS, LATENT, NOPE);
        layer_tensor(m, l, "attn_v_b", HEADS, VALUE, LATENT);
        layer_tensor(m, l, "attn_output", WIDTH, HEADS * VALUE, 0);
    }
}

// What stands in the place of a name, or beside all others where the name is new.
static void put_0(struct writer *w, const char *name)
{
    writer_u32(w, name, 0);
}
static void put_3(struct writer *w, const char *name)
{
    writer_u32(w, name, 3);
}
static void put_5(struct writer *w, const char *name)
{
    writer_u32(w, name, 5);
}
static void put_64(struct writer *w, const char *name)
{
    writer_u32(w, name, 64);
}
static void put_huge(struct writer *w, const char *name)
{
    writer_u32(w, name, UINT32_MAX);
}
static void put_zero(struct writer *w, const char *name)
{
    writer_f32(w, name, 0);
}
static void put_nan(struct writer *w, const char *name)
{
    writer_f32(w, name, NAN);
}
static void put_text(struct writer *w, const char *name)
{
    writer_string(w, name, "yarn");
}
static void put_none(struct writer *w, const char *name)
{
    writer_string(w, name, "none");
}
static void put_row(struct writer *w, const char *name)
{
    writer_tensor(w, name, GGUF_F32, 7, 0, 0, NULL);
}
static void put_square(struct writer *w, const char *name)
{
    writer_tensor(w, name, GGUF_F32, 9, 24, 0, NULL);
}
static void put_output(struct writer *w, const char *name)
{
    writer_tensor(w, name, GGUF_F16, VOCAB, WIDTH, 0, NULL);
}

static void attempt(const char *arch, const struct change *change)
{
    struct writer w = { 0 };
    const struct making making = { &w, change, arch };
    struct gguf_file file;
    struct model m;
    size_t size;
    if (!strcmp(arch, "llama"))
        llama(&making);
    else
        deepseek2(&making);
    if (change->name && change->put && change->name[0] == '+')
        change->put(&w, change->name + 1);
    const unsigned char *bytes = writer_finish(&w, &size);
    cr_assert(gguf_open_memory(bytes, size, "file", &file, &error), "%s", error.text);
    const bool ok = model_create(&m, &file, &error);
    cr_assert_eq(ok, !change->want, "%s of %s: %s", change->name ? change->name : "nothing", arch,
                 ok ? "was taken" : error.text);
    if (!ok) {
        cr_assert(strstr(error.text, change->want), "\"%s\" does not say \"%s\"", error.text, change->want);
        cr_assert_null(m.layers);
    } else {
        cr_assert(m.params.layers == LAYERS && m.params.vocab == VOCAB && m.params.kv_heads >= 1);
        model_destroy(&m);
    }
    gguf_close(&file);
    writer_free(&w);
}

static const struct change llama_changes[] = {
    { NULL, NULL, NULL },
    { "+output.weight", put_output, NULL },
    { "llama.rope.dimension_count", NULL, NULL },
    { "+llama.rope.scaling.type", put_none, NULL },
    { "general.architecture", NULL, "general.architecture is missing" },
    { "general.architecture", put_text, "general.architecture is \"yarn\", want llama or deepseek2" },
    { "llama.block_count", NULL, "llama.block_count is missing" },
    { "llama.block_count", put_huge, "llama.block_count is 4294967295, want 1 to 1024" },
    { "llama.block_count", put_3, "tensor blk.2.attn_norm.weight is missing" },
    { "llama.embedding_length", put_64, "llama.rope.dimension_count is 6, want 16" },
    { "llama.embedding_length", put_0, "llama.embedding_length is 0, want 1 to" },
    { "llama.attention.head_count", put_5, "5 heads and 2 KV heads, want a multiple" },
    { "llama.attention.head_count_kv", put_3, "4 heads and 3 KV heads, want a multiple" },
    { "llama.attention.head_count_kv", put_0, "llama.attention.head_count_kv is 0, want 1 to" },
    { "+llama.attention.key_length", put_5, "rope turns 5 dims, want an even number" },
    { "+llama.attention.key_length", put_64, "llama.rope.dimension_count is 6, want 64" },
    { "+llama.attention.value_length", put_5, "llama.attention.value_length is 5, want 6" },
    { "llama.rope.dimension_count", put_3, "llama.rope.dimension_count is 3, want 6" },
    { "llama.attention.layer_norm_rms_epsilon", put_zero, "rms_epsilon is 0, want a number above 0" },
    { "llama.rope.freq_base", put_nan, "llama.rope.freq_base is" },
    { "llama.rope.freq_base", put_3, "llama.rope.freq_base is of type u32, want f32 or f64" },
    { "+llama.rope.scaling.type", put_text, "llama.rope.scaling.type is \"yarn\", want none" },
    { "+llama.rope.scaling.factor", put_zero, "llama.rope.scaling.factor is there" },
    { "+llama.rope.scale_linear", put_zero, "llama.rope.scale_linear is there" },
    { "+llama.expert_count", put_64, "llama.expert_count is 64, want 0 to 0" },
    { "+llama.vocab_size", put_64, "llama.vocab_size is 64, want 11" },
    { "token_embd.weight", NULL, "tensor token_embd.weight is missing" },
    { "token_embd.weight", put_row, "tensor token_embd.weight is [7], want [7, 24]" },
    { "output_norm.weight", NULL, "tensor output_norm.weight is missing" },
    { "+output.weight", put_square, "tensor output.weight is [9, 24], want [11, 24]" },
    { "blk.1.attn_k.weight", NULL, "tensor blk.1.attn_k.weight is missing" },
    { "blk.1.attn_k.weight", put_square, "tensor blk.1.attn_k.weight is [9, 24], want [12, 24]" },
    { "blk.0.ffn_norm.weight", put_row, "tensor blk.0.ffn_norm.weight is [7], want [24]" },
    { "+blk.0.attn_q.bias", put_row, "tensor blk.0.attn_q.bias has no role in architecture llama" },
    { "+rope_freqs.weight", put_row, "tensor rope_freqs.weight has no role" },
};

static const struct change deepseek2_changes[] = {
    { NULL, NULL, NULL },
    { "deepseek2.expert_count", NULL, NULL },
    { "deepseek2.attention.q_lora_rank", NULL, "deepseek2.attention.q_lora_rank is missing" },
    { "deepseek2.attention.kv_lora_rank", put_5, "deepseek2.attention.key_length is 12, want 9" },
    { "deepseek2.attention.key_length", put_5, "deepseek2.attention.key_length is 5, want 12" },
    { "deepseek2.attention.value_length", put_5, "deepseek2.attention.value_length is 5, want 8" },
    { "deepseek2.attention.head_count_kv", put_5, "deepseek2.attention.head_count_kv is 5, want 1" },
    { "deepseek2.rope.dimension_count", put_3, "rope turns 3 dims, want an even number" },
    { "deepseek2.attention.key_length_mla", put_3, "rope turns 4 dims of a query head, which has 3" },
    { "deepseek2.attention.key_length_mla", put_5,
      "tensor blk.0.attn_q_b.weight is [36, 10], want [20, 10]" },
    { "deepseek2.attention.value_length_mla", put_5,
      "tensor blk.0.attn_v_b.weight is [4, 3, 8], want [4, 5, 8]" },
    { "deepseek2.leading_dense_block_count", put_5, "deepseek2.leading_dense_block_count is 5, want 2" },
    { "deepseek2.expert_count", put_64, "deepseek2.expert_count is 64, want 0 to 0" },
    { "+deepseek2.rope.scaling.type", put_text, "deepseek2.rope.scaling.type is \"yarn\", want none" },
    { "blk.1.attn_k_b.weight", NULL, "tensor blk.1.attn_k_b.weight is missing" },
    { "blk.1.attn_k_b.weight", put_square, "tensor blk.1.attn_k_b.weight is [9, 24], want [4, 8, 5]" },
    { "+blk.1.attn_kv_b.weight", put_row,
      "tensor blk.1.attn_kv_b.weight has no role in architecture deepseek2" },
};

Test(model, llama)
{
    for (size_t i = 0; i < sizeof llama_changes / sizeof llama_changes[0]; i++)
        attempt("llama", &llama_changes[i]);
}

Test(model, deepseek2)
{
    for (size_t i = 0; i < sizeof deepseek2_changes / sizeof deepseek2_changes[0]; i++)
        attempt("deepseek2", &deepseek2_changes[i]);
}

Test(model, rope_table)
{
    enum { R = 6, ROWS = 100 };
    const struct model_params p = { .rope_dims = R, .rope_base = 500 };
    float table[ROWS * R];
    model_rope_table(&p, ROWS, table);
    const int positions[] = { 0, 1, 17, ROWS - 1 };
    for (int i = 0; i < 4; i++)
        for (int pair = 0; pair < R / 2; pair++) {
            const double angle = positions[i] / pow(500, 2 * pair / 6.0);
            cr_assert_float_eq(table[positions[i] * R + 2 * pair], cos(angle), 1e-7);
            cr_assert_float_eq(table[positions[i] * R + 2 * pair + 1], sin(angle), 1e-7);
        }
}
