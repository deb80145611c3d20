// SPDX-License-Identifier: Apache-2.0
// The forward pass in scalar C against figures of other implementations: examples/generate/model/val.txt has
// PyTorch's, and make_llama.py those of a small llama in numpy.
#include "default_model.h"
#include "gguf_writer.h"
#include "models.h"
#include "plain_model.h"
#include "tokenizer.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(plain_model, .timeout = 250);

static struct error error;

struct loaded {
    struct gguf_file file;
    struct model model;
    struct tokenizer *tokenizer;
    struct plain plain;
};

static void load(struct loaded *l)
{
    cr_assert(model_create(&l->model, &l->file, &error), "%s", error.text);
    cr_assert(tokenizer_create(&l->tokenizer, &l->file, &error), "%s", error.text);
    cr_assert_eq((int64_t) tokenizer_size(l->tokenizer), l->model.params.vocab);
    plain_create(&l->plain, &l->model, 512);
}

static void unload(struct loaded *l)
{
    plain_destroy(&l->plain);
    tokenizer_destroy(&l->tokenizer);
    model_destroy(&l->model);
    gguf_close(&l->file);
}

static void load_psalter(struct loaded *l)
{
    const size_t size = (size_t) (default_model_end - default_model);
    cr_assert(gguf_open_memory(default_model, size, "psalter", &l->file, &error), "%s", error.text);
    load(l);
}

static void load_smollm2(struct loaded *l)
{
    if (!gguf_open(smollm2_path(), &l->file, &error))
        cr_skip_test("%s; tools/fetch-model.sh fetches it", error.text);
    load(l);
}

static void encode(const struct loaded *l, const char *text, size_t size, struct token_list *tokens)
{
    tokens->count = 0;
    cr_assert(tokenizer_encode(l->tokenizer, text, size, TOKENIZER_BEGIN, tokens, &error), "%s", error.text);
}

static char *read_val(void)
{
    char *text = calloc(1, 1 << 16);
    FILE *f = fopen(getenv("CLINFER_MODEL_VAL"), "r");
    cr_assert(f && text);
    cr_assert_lt(fread(text, 1, 1 << 16, f), 1 << 16);
    fclose(f);
    return text;
}

Test(plain_model, psalter_nll)
{
    struct loaded l;
    struct token_list tokens = { 0 };
    char *val = read_val();
    const char *passage = strstr(val, "\n---\n") + 5;
    double want;
    unsigned count;
    cr_assert_eq(sscanf(val, "nll: %lf tokens: %u predicted", &want, &count), 2);
    load_psalter(&l);
    encode(&l, passage, strlen(passage), &tokens);
    cr_assert_eq(tokens.count, count + 1);
    const double nll = plain_nll(&l.plain, tokens.ids, (int64_t) tokens.count);
    cr_assert_float_eq(nll, want, 0.00002, "%.6f, want %.5f", nll, want);
    free(tokens.ids);
    free(val);
    unload(&l);
}

// Line: greedy: 'PROMPT' -> 'TEXT' (smallest logit gap GAP)
static void greedy_line(struct loaded *l, char *line)
{
    enum { COUNT = 32 };
    static const char arrow[] = "' -> '", end[] = "' (smallest logit gap ";
    char *prompt = line + strlen("greedy: '"), *text = strstr(prompt, arrow) + strlen(arrow),
         *gap = strstr(text, end);
    struct token_list tokens = { 0 };
    uint32_t out[COUNT];
    char have[1024] = "";
    size_t n = 0;
    *strstr(prompt, arrow) = *gap = 0;
    encode(l, prompt, strlen(prompt), &tokens);
    const double smallest = plain_greedy(&l->plain, tokens.ids, (int64_t) tokens.count, COUNT, out);
    for (int i = 0; i < COUNT; i++) {
        size_t size;
        const char *bytes = tokenizer_bytes(l->tokenizer, out[i], &size);
        cr_assert(bytes && n + size < sizeof have);
        memcpy(have + n, bytes, size);
        n += size;
    }
    cr_assert_str_eq(have, text);
    cr_assert_float_eq(smallest, atof(gap + strlen(end)), 0.0001, "after '%s': a gap of %g", prompt,
                       smallest);
    free(tokens.ids);
}

Test(plain_model, psalter_greedy)
{
    struct loaded l;
    char *val = read_val();
    int lines = 0;
    load_psalter(&l);
    for (char *line = strstr(val, "greedy: "), *next; line; line = next, lines++) {
        next = strstr(line + 1, "greedy: ");
        greedy_line(&l, line);
    }
    cr_assert_eq(lines, 5);
    free(val);
    unload(&l);
}

// Tokens one by one have the logits of all at once.
Test(plain_model, steps)
{
    enum { N = 12, ALL = 1024 };
    struct loaded l;
    float *all = malloc(N * ALL * sizeof *all), one[ALL];
    uint32_t tokens[N];
    load_psalter(&l);
    for (uint32_t i = 0; i < N; i++)
        tokens[i] = (i * 397 + 5) % ALL;
    plain_forward(&l.plain, tokens, N, all);
    l.plain.length = 0;
    for (int i = 0; i < N; i++) {
        plain_forward(&l.plain, &tokens[i], 1, one);
        cr_assert(!memcmp(one, all + i * ALL, sizeof one), "token %d", i);
    }
    free(all);
    unload(&l);
}

enum { WIDTH = 24, HEADS = 4, KV_HEADS = 2, HEAD = 6, FFN = 40, VOCAB = 11 };

// The next tensor of the file, as make_llama.py has it. b of 0: a norm.
static void made(struct writer *w, const char *name, int64_t a, int64_t b)
{
    const int64_t n = a * (b ? b : 1), number = (int64_t) w->num_tensors + 1;
    float *x = malloc((size_t) n * sizeof *x);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float) ((i * 7919 + number * 104729) % 257 - 128) / 512 + (b ? 0 : 1);
    writer_tensor(w, name, GGUF_F32, a, b, 0, x);
    free(x);
}

static const unsigned char *write_llama(struct writer *w, size_t *size)
{
    static const struct {
        const char *role;
        int64_t a, b;
    } roles[] = { { "attn_norm", WIDTH, 0 },
                  { "attn_q", HEADS * HEAD, WIDTH },
                  { "attn_k", KV_HEADS * HEAD, WIDTH },
                  { "attn_v", KV_HEADS * HEAD, WIDTH },
                  { "attn_output", WIDTH, HEADS * HEAD },
                  { "ffn_norm", WIDTH, 0 },
                  { "ffn_gate", FFN, WIDTH },
                  { "ffn_up", FFN, WIDTH },
                  { "ffn_down", WIDTH, FFN } };
    writer_string(w, "general.architecture", "llama");
    writer_u32(w, "llama.block_count", 2);
    writer_u32(w, "llama.embedding_length", WIDTH);
    writer_u32(w, "llama.feed_forward_length", FFN);
    writer_u32(w, "llama.attention.head_count", HEADS);
    writer_u32(w, "llama.attention.head_count_kv", KV_HEADS);
    writer_u32(w, "llama.context_length", 64);
    writer_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    writer_f32(w, "llama.rope.freq_base", 500);
    made(w, "token_embd.weight", VOCAB, WIDTH);
    made(w, "output_norm.weight", WIDTH, 0);
    for (int l = 0; l < 2; l++)
        for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
            char name[64];
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, roles[i].role);
            made(w, name, roles[i].a, roles[i].b);
        }
    return writer_finish(w, size);
}

// Grouped query heads and tied embeddings.
Test(plain_model, small_llama)
{
    enum { N = 10 };
    static const uint32_t tokens[N] = { 3, 1, 4, 1, 5, 9, 2, 6, 5, 3 };
    static const double want[VOCAB] = { -0.1215588, 0.5192412,  -0.1439165, 1.3067556,  -0.2150604, 1.2843979,
                                        -0.2374182, -0.4762224, 0.1763615,  -0.4985801, 0.8405268 };
    struct writer w = { 0 };
    struct loaded l;
    size_t size;
    float logits[N * VOCAB];
    const unsigned char *bytes = write_llama(&w, &size);
    cr_assert(gguf_open_memory(bytes, size, "llama", &l.file, &error), "%s", error.text);
    cr_assert(model_create(&l.model, &l.file, &error), "%s", error.text);
    plain_create(&l.plain, &l.model, N);
    const double nll = plain_nll(&l.plain, tokens, N);
    cr_assert_float_eq(nll, 2.656852687530515, 1e-6, "%.9f", nll);
    l.plain.length = 0;
    plain_forward(&l.plain, tokens, N, logits);
    for (int i = 0; i < VOCAB; i++)
        cr_assert_float_eq(logits[(N - 1) * VOCAB + i], want[i], 2e-6, "logit %d", i);
    plain_destroy(&l.plain);
    model_destroy(&l.model);
    gguf_close(&l.file);
    writer_free(&w);
}

// Tied embeddings, grouped query heads, Q4_1 and Q8_0: 1.680, of weights as stored in f32.
Test(plain_model, smollm2_nll)
{
    static const char text[] =
        "The capital of France is Paris. It is the largest city in the country, and it lies on the river "
        "Seine. The sun rises in the east and sets in the west.";
    struct loaded l;
    struct token_list tokens = { 0 };
    load_smollm2(&l);
    encode(&l, text, strlen(text), &tokens);
    cr_assert_eq(tokens.count, 37);
    const double nll = plain_nll(&l.plain, tokens.ids, 37);
    cr_assert_float_eq(nll, 1.680, 0.01, "%.4f", nll);
    free(tokens.ids);
    unload(&l);
}
