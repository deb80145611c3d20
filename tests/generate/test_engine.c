// SPDX-License-Identifier: Apache-2.0
// The engine's logits against the forward pass in scalar C: psalter, and a small llama model with random
// weights through its own operations and as MLA; tokens cut into steps in several ways, beside others.
#include "default_model.h"
#include "engine.h"
#include "gguf_writer.h"
#include "plain_model.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(engine, .timeout = 600);

// Tokens enough that their keys are split where that is not forbidden.
enum { TOKENS = 141, OTHERS = 3, ROWS = OTHERS + 1, CHUNK = 150 };
enum { LAYERS = 2, WIDTH = 48, HEADS = 6, KV_HEADS = 2, HEAD = 16, FFN = 80, VOCAB = 70 };

static struct error error;

// Numbers around 0 of this size, in bf16, so that bf16 on the device is exact; of a norm around 1.
static void random_tensor(struct writer *w, const char *name, int64_t a, int64_t b)
{
    static uint64_t state = 7;
    const int64_t n = a * (b ? b : 1);
    uint16_t *x = malloc((size_t) n * sizeof *x);
    for (int64_t i = 0; i < n; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        const float r = (float) (int32_t) (state >> 32) / 2147483648.0f;
        x[i] = weights_to_bf16(b ? r * 1.7f / sqrtf((float) b) : 1 + 0.3f * r);
    }
    writer_tensor(w, name, GGUF_BF16, a, b, 0, x);
    free(x);
}

static void write_llama(struct writer *w)
{
    static const struct {
        const char *role;
        int64_t a, b;
    } roles[] = { { "attn_norm", WIDTH, 0 },
                  { "ffn_norm", WIDTH, 0 },
                  { "attn_q", HEADS * HEAD, WIDTH },
                  { "attn_k", KV_HEADS * HEAD, WIDTH },
                  { "attn_v", KV_HEADS * HEAD, WIDTH },
                  { "attn_output", WIDTH, HEADS * HEAD },
                  { "ffn_gate", FFN, WIDTH },
                  { "ffn_up", FFN, WIDTH },
                  { "ffn_down", WIDTH, FFN } };
    writer_string(w, "general.architecture", "llama");
    writer_u32(w, "llama.block_count", LAYERS);
    writer_u32(w, "llama.embedding_length", WIDTH);
    writer_u32(w, "llama.feed_forward_length", FFN);
    writer_u32(w, "llama.attention.head_count", HEADS);
    writer_u32(w, "llama.attention.head_count_kv", KV_HEADS);
    writer_u32(w, "llama.attention.key_length", HEAD);
    writer_u32(w, "llama.context_length", 512);
    writer_f32(w, "llama.attention.layer_norm_rms_epsilon", 1e-5f);
    writer_f32(w, "llama.rope.freq_base", 10000);
    random_tensor(w, "token_embd.weight", VOCAB, WIDTH);
    random_tensor(w, "output_norm.weight", WIDTH, 0);
    for (int l = 0; l < LAYERS; l++)
        for (size_t i = 0; i < sizeof roles / sizeof roles[0]; i++) {
            char name[GGUF_MAX_NAME + 1];
            snprintf(name, sizeof name, "blk.%d.%s.weight", l, roles[i].role);
            random_tensor(w, name, roles[i].a, roles[i].b);
        }
}

struct fixture {
    struct writer writer;
    struct gguf_file file;
    struct model model;
    int64_t vocab;
    uint32_t tokens[ROWS][TOKENS];
    float *want; // [TOKENS, vocab], of tokens[0]
};

static void load(struct fixture *f, bool llama)
{
    size_t size = (size_t) (default_model_end - default_model);
    const void *bytes = default_model;
    struct plain plain;
    *f = (struct fixture){ 0 };
    if (llama) {
        write_llama(&f->writer);
        bytes = writer_finish(&f->writer, &size);
    }
    cr_assert(gguf_open_memory(bytes, size, "model", &f->file, &error), "%s", error.text);
    cr_assert(model_create(&f->model, &f->file, &error), "%s", error.text);
    f->vocab = f->model.params.vocab;
    for (uint32_t r = 0; r < ROWS; r++)
        for (uint32_t i = 0; i < TOKENS; i++)
            f->tokens[r][i] = (uint32_t) ((i * 397 + r * 31 + i * i * 11 + 5) % (uint64_t) f->vocab);
    f->want = malloc((size_t) (TOKENS * f->vocab) * sizeof(float));
    plain_create(&plain, &f->model, TOKENS);
    plain_forward(&plain, f->tokens[0], TOKENS, f->want);
    plain_destroy(&plain);
}

static void unload(struct fixture *f)
{
    free(f->want);
    model_destroy(&f->model);
    gguf_close(&f->file);
    writer_free(&f->writer);
}

static struct engine_params params_of(bool mla, int64_t page_size)
{
    return (struct engine_params){ .mla = mla,
                                   .weights = WEIGHTS_BF16,
                                   .kv_type = CLINFER_F32,
                                   .page_size = page_size,
                                   .num_pages = ROWS * (TOKENS + page_size - 1) / page_size + ROWS,
                                   .context = TOKENS,
                                   .max_tokens = CHUNK,
                                   .max_rows = ROWS,
                                   .max_logits = CHUNK };
}

static struct engine *engine_of(const struct fixture *f, const struct engine_params *params)
{
    struct engine *e;
    cr_assert(engine_create(&e, &f->model, params, &error), "%s", error.text);
    return e;
}

// All logits of tokens[0], computed in steps of so many tokens, the other rows beside it in steps of theirs.
static void compute(const struct fixture *f, struct engine *e, int64_t chunk, int others, float *logits)
{
    const struct executor x = engine_executor(e);
    uint64_t seq[ROWS];
    int64_t done[ROWS] = { 0 }, cached;
    for (int r = 0; r <= others; r++)
        cr_assert(x.begin(x.self, f->tokens[r], TOKENS, false, &seq[r], &cached, &error), "%s", error.text);
    while (done[0] < TOKENS) {
        struct batch_row rows[ROWS];
        const float *out;
        int n = 0;
        int64_t skip = 0;
        for (int r = others; r >= 0; r--) {
            const int64_t left = TOKENS - done[r], most = r ? 2 * r - 1 : chunk;
            const int64_t count = left < most ? left : most, want = r ? r % 2 : count;
            if (count == 0)
                continue;
            rows[n++] = (struct batch_row){ seq[r], f->tokens[r] + done[r], count, want };
            done[r] += count;
            skip += r ? want : 0;
        }
        const int64_t count = rows[n - 1].count;
        cr_assert_eq(x.step(x.self, rows, n, &out, &error), STEP_DONE, "%s", error.text);
        memcpy(logits + (done[0] - count) * f->vocab, out + skip * f->vocab,
               (size_t) (count * f->vocab) * sizeof *logits);
    }
    for (int r = 0; r <= others; r++)
        x.end(x.self, seq[r]);
    cr_assert(engine_check(e, &error), "%s", error.text);
    cr_assert_eq(x.free_pages(x.self), ROWS * (TOKENS + 15) / 16 + ROWS);
}

// Distance of a token's logits from those that are right, by their root mean square: the largest.
static double distance(const struct fixture *f, const float *logits)
{
    double worst = 0;
    for (int64_t t = 0; t < TOKENS; t++) {
        double difference = 0, size = 0;
        for (int64_t i = t * f->vocab; i < (t + 1) * f->vocab; i++) {
            difference += pow((double) logits[i] - f->want[i], 2);
            size += pow(f->want[i], 2);
        }
        const double d = sqrt(difference / size);
        worst = d <= worst ? worst : d; // NaN too
    }
    return worst;
}

// Whole and in pieces, alone and beside others; in the deterministic mode bit for bit.
static void check_model(bool llama, bool mla)
{
    static const struct {
        int64_t chunk;
        int others;
    } ways[] = { { TOKENS, 0 }, { 7, OTHERS }, { 1, 1 } };
    struct fixture f;
    load(&f, llama);
    const size_t bytes = (size_t) (TOKENS * f.vocab) * sizeof(float);
    float *first = malloc(bytes), *logits = malloc(bytes);
    for (int deterministic = 0; deterministic < 2; deterministic++) {
        struct engine_params params = params_of(mla, 16);
        params.deterministic = deterministic;
        struct engine *e = engine_of(&f, &params);
        for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
            memset(logits, 0xff, bytes);
            compute(&f, e, ways[i].chunk, ways[i].others, logits);
            const double d = distance(&f, logits);
            cr_assert(d < 2e-5, "deterministic %d, way %zu: off by %g", deterministic, i, d);
            if (i == 0)
                memcpy(first, logits, bytes);
            cr_assert(!deterministic || !memcmp(first, logits, bytes), "way %zu has other bits", i);
        }
        engine_destroy(&e);
    }
    free(first);
    free(logits);
    unload(&f);
}

Test(engine, psalter)
{
    check_model(false, false);
}

Test(engine, llama)
{
    check_model(true, false);
}

Test(engine, llama_as_mla)
{
    check_model(true, true);
}

// How far weights and caches of fewer bits may be off, of this model.
Test(engine, types)
{
    static const struct {
        enum weights_type weights;
        clinfer_dtype kv_type;
        bool kv_scales;
        double far;
    } types[] = { { WEIGHTS_F32, CLINFER_F16, false, 0.002 },
                  { WEIGHTS_Q8_0, CLINFER_BF16, false, 0.03 },
                  { WEIGHTS_F8_E4M3, CLINFER_F8_E4M3, true, 0.2 },
                  { WEIGHTS_BF16, CLINFER_F8_E4M3, false, 0.2 } };
    struct fixture f;
    load(&f, true);
    float *logits = malloc((size_t) (TOKENS * f.vocab) * sizeof *logits);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        struct engine_params params = params_of(false, 16);
        params.weights = types[i].weights;
        params.kv_type = types[i].kv_type;
        params.kv_scales = types[i].kv_scales;
        struct engine *e = engine_of(&f, &params);
        compute(&f, e, TOKENS, 0, logits);
        const double d = distance(&f, logits);
        cr_assert(d < types[i].far && d > types[i].far / 50, "types %zu: off by %g", i, d);
        engine_destroy(&e);
    }
    free(logits);
    unload(&f);
}

// Bytes of a token: of each layer K and V of all heads; with scales one f32 for up to 64 elements of a head.
Test(engine, bytes_of_a_token)
{
    static const struct {
        clinfer_dtype type;
        bool scales, mla;
        int64_t bytes;
    } caches[] = { { CLINFER_F32, false, false, LAYERS * 2 * KV_HEADS * HEAD * 4 },
                   { CLINFER_BF16, false, false, LAYERS * 2 * KV_HEADS * HEAD * 2 },
                   { CLINFER_F8_E4M3, true, false, LAYERS * 2 * KV_HEADS * (HEAD + 4) },
                   { CLINFER_F8_E4M3, true, true, LAYERS * (WIDTH + KV_HEADS * HEAD + 2 * 4) } };
    struct fixture f;
    load(&f, true);
    for (size_t i = 0; i < sizeof caches / sizeof caches[0]; i++) {
        struct engine_params params = params_of(caches[i].mla, 16);
        struct engine_info info;
        params.kv_type = caches[i].type;
        params.kv_scales = caches[i].scales;
        struct engine *e = engine_of(&f, &params);
        engine_info(e, &info);
        cr_assert_eq(info.row_bytes, caches[i].bytes, "cache %zu: %d", i, (int) info.row_bytes);
        cr_assert_eq(info.pages, params.num_pages);
        engine_destroy(&e);
    }
    unload(&f);
}

Test(engine, what_it_cannot_do)
{
    struct fixture f;
    load(&f, true);
    struct engine_params params = params_of(false, 16);
    struct engine *e;
    params.device = "no device of this name";
    cr_assert_not(engine_create(&e, &f.model, &params, &error));
    cr_assert(strstr(error.text, params.device) && !e, "%s", error.text);
    params.device = NULL;
    params.num_pages = 2;
    e = engine_of(&f, &params);
    const struct executor x = engine_executor(e);
    const uint32_t wrong = VOCAB;
    const float *logits;
    uint64_t seq;
    int64_t cached;
    cr_assert(x.begin(x.self, f.tokens[0], TOKENS, true, &seq, &cached, &error));
    struct batch_row rows[] = { { seq, f.tokens[0], 33, 0 } }; // 3 pages
    cr_assert_eq(x.step(x.self, rows, 1, &logits, &error), STEP_NO_PAGES);
    cr_assert_eq(x.free_pages(x.self), 2, "nothing was taken");
    rows[0] = (struct batch_row){ seq, &wrong, 1, 1 };
    cr_assert_eq(x.step(x.self, rows, 1, &logits, &error), STEP_FAILED);
    cr_assert(strstr(error.text, "token 70, want less than 70"), "%s", error.text);
    rows[0] = (struct batch_row){ seq, f.tokens[0], CHUNK + 1, 1 };
    cr_assert_eq(x.step(x.self, rows, 1, &logits, &error), STEP_FAILED);
    cr_assert(strstr(error.text, "151 tokens and 1 logits, want at most 150 and 150"), "%s", error.text);
    engine_destroy(&e);
    unload(&f);
}
