// SPDX-License-Identifier: Apache-2.0
// The forward pass in scalar C against figures of other implementations: examples/generate/model/val.txt has
// PyTorch's.
#include "default_model.h"
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
    enum { N = 12, VOCAB = 1024 };
    struct loaded l;
    float *all = malloc(N * VOCAB * sizeof *all), one[VOCAB];
    uint32_t tokens[N];
    load_psalter(&l);
    for (uint32_t i = 0; i < N; i++)
        tokens[i] = (i * 397 + 5) % VOCAB;
    plain_forward(&l.plain, tokens, N, all);
    l.plain.length = 0;
    for (int i = 0; i < N; i++) {
        plain_forward(&l.plain, &tokens[i], 1, one);
        cr_assert(!memcmp(one, all + i * VOCAB, sizeof one), "token %d", i);
    }
    free(all);
    unload(&l);
}

// Tied embeddings, grouped query heads, Q4_1 and Q8_0: 1.680 is the figure of weights as stored and f32
// arithmetic.
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
