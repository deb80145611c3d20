// SPDX-License-Identifier: Apache-2.0
#include "session.h"

#include "default_model.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void)
{
    struct timespec t;
    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static bool open_model(struct session *s, struct error *error)
{
    const char *path = s->options->model;
    if (!(path ? gguf_open(path, &s->file, error)
               : gguf_open_memory(default_model, (size_t) (default_model_end - default_model), "psalter-2m",
                                  &s->file, error)) ||
        !model_create(&s->model, &s->file, error) || !tokenizer_create(&s->tokenizer, &s->file, error))
        return false;
    const size_t words = tokenizer_size(s->tokenizer);
    if (s->model.params.vocab != (int64_t) words)
        return fail(error, "the model has %" PRId64 " tokens, its tokenizer %zu", s->model.params.vocab,
                    words);
    return s->options->attention != ATTENTION_GQA || s->model.params.arch == MODEL_LLAMA ||
           fail(error, "--attention gqa: the model's architecture is deepseek2, whose attention is mla");
}

// log(sum(exp(logits))) - logits[token]
static double loss_of(const float *logits, int64_t n, uint32_t token)
{
    double most = -INFINITY, sum = 0;
    for (int64_t i = 0; i < n; i++)
        most = fmax(most, logits[i]);
    for (int64_t i = 0; i < n; i++)
        sum += exp(logits[i] - most);
    return most + log(sum) - logits[token];
}

static bool append_text(struct job *job, const char *bytes, size_t n, struct error *error)
{
    if (job->size + n > job->capacity) {
        const size_t capacity = 2 * (job->capacity + n);
        char *text = realloc(job->text, capacity);
        if (!text)
            return fail(error, "out of memory for %zu bytes of text", capacity);
        job->text = text;
        job->capacity = capacity;
    }
    memcpy(job->text + job->size, bytes, n);
    job->size += n;
    return true;
}

static bool take(void *self, struct request *request, int64_t position, const float *logits,
                 struct error *error)
{
    struct session *s = self;
    struct job *job = request->user;
    if (job->score) {
        job->loss += loss_of(logits, s->model.params.vocab, job->tokens.ids[position + 1]);
        job->scored++;
        return true;
    }
    uint32_t token;
    size_t size;
    if (!sampler_pick(&job->sampler, logits, (size_t) s->model.params.vocab, &token, error))
        return false;
    if (tokenizer_is_end(s->tokenizer, token))
        return true;
    const char *bytes = tokenizer_bytes(s->tokenizer, token, &size);
    return append_text(job, bytes, size, error) &&
           (++job->generated == s->options->max_tokens || request_push(request, token, error));
}

static bool encode(struct session *s, struct job *job, struct error *error)
{
    const unsigned special = s->options->special && !job->score ? TOKENIZER_SPECIAL : 0;
    if (job->prompt.size == 0)
        return fail(error, "it is empty, want at least 1 byte");
    return tokenizer_encode(s->tokenizer, job->prompt.text, job->prompt.size, TOKENIZER_BEGIN | special,
                            &job->tokens, error);
}

// Positions that the text takes; its last token needs none.
static bool positions(const struct session *s, const struct job *job, int64_t *n, struct error *error)
{
    const int64_t count = (int64_t) job->tokens.count, new = job->score ? 0 : s->options->max_tokens;
    *n = count + new - 1;
    if (*n < 1)
        return fail(error, "it has %" PRId64 " token, want at least 2: one to predict the next", count);
    return *n <= s->model.params.context ||
           fail(error,
                "too long: %" PRId64 " tokens and %" PRId64 " to generate take %" PRId64
                " positions, the model has %" PRId64,
                count, new, *n, s->model.params.context);
}

// Puts before the reason whose it is.
static bool about_job(const struct session *s, size_t i, struct error *error)
{
    const struct error reason = *error;
    const size_t prompts = s->options->num_prompts;
    if (s->jobs[i].score)
        return fail(error, "%.200s: %s", s->options->nll_file, reason.text);
    return fail(error, "prompt %zu of %zu: %s", i + 1 + prompts - s->num_jobs, prompts, reason.text);
}

// Prompts that are the same draw other tokens, each those that it draws alone.
static uint64_t stream_of(const struct session *s, size_t i)
{
    const struct options_text *prompt = &s->jobs[i].prompt;
    uint64_t stream = 0;
    for (size_t k = 0; k < i; k++)
        stream += s->jobs[k].prompt.size == prompt->size &&
                  !memcmp(s->jobs[k].prompt.text, prompt->text, prompt->size);
    return stream;
}

static bool make_jobs(struct session *s, int64_t *longest, struct error *error)
{
    const struct options *o = s->options;
    const size_t scores = o->nll_file ? 1 : 0;
    s->num_jobs = scores + o->num_prompts;
    s->jobs = calloc(s->num_jobs, sizeof *s->jobs);
    if (!s->jobs)
        return fail(error, "out of memory for %zu prompts", s->num_jobs);
    for (size_t i = 0; i < s->num_jobs; i++) {
        struct job *job = &s->jobs[i];
        int64_t n;
        job->score = i < scores;
        job->prompt = job->score ? o->nll : o->prompts[i - scores];
        sampler_init(&job->sampler, o->temperature, o->top_p, o->seed, stream_of(s, i));
        if (!encode(s, job, error) || !positions(s, job, &n, error))
            return about_job(s, i, error);
        *longest = n > *longest ? n : *longest;
    }
    return true;
}

static bool add_jobs(struct session *s, struct error *error)
{
    for (size_t i = 0; i < s->num_jobs; i++) {
        struct job *job = &s->jobs[i];
        if (!scheduler_add(&s->scheduler, job->tokens.ids, (int64_t) job->tokens.count - job->score,
                           job->score ? 0 : s->options->max_tokens, job->score, job, &job->request, error))
            return about_job(s, i, error);
    }
    return true;
}

static struct engine_params engine_params_of(const struct session *s, int64_t pages, int64_t longest)
{
    static const clinfer_dtype types[] = { [KV_F32] = CLINFER_F32,
                                           [KV_F16] = CLINFER_F16,
                                           [KV_BF16] = CLINFER_BF16,
                                           [KV_F8_E4M3] = CLINFER_F8_E4M3,
                                           [KV_F8_E4M3_SCALED] = CLINFER_F8_E4M3 };
    const struct options *o = s->options;
    return (struct engine_params){ .device = o->device,
                                   .mla = o->attention == ATTENTION_MLA,
                                   .weights = o->weights,
                                   .kv_type = types[o->kv_type],
                                   .kv_scales = o->kv_type == KV_F8_E4M3_SCALED,
                                   .page_size = o->page_size,
                                   .num_pages = pages,
                                   .context = longest,
                                   .max_tokens = o->chunk,
                                   .max_rows = s->scheduler.params.max_batch,
                                   .max_logits = o->nll_file ? o->chunk : s->scheduler.params.max_batch,
                                   .deterministic = o->deterministic };
}

static bool set_up(struct session *s, struct error *error)
{
    const struct options *o = s->options;
    int64_t longest = 0;
    if (!open_model(s, error) || !make_jobs(s, &longest, error))
        return false;
    const int64_t jobs = (int64_t) s->num_jobs, together = jobs < o->batch ? jobs : o->batch;
    const int64_t pages = o->pages ? o->pages : (longest + o->page_size - 1) / o->page_size * together;
    const struct scheduler_params params = { .page_size = o->page_size,
                                             .num_pages = pages,
                                             .vocab = s->model.params.vocab,
                                             .chunk = o->chunk,
                                             .max_batch = (int) together,
                                             .now = now,
                                             .take = take,
                                             .take_self = s };
    if (!scheduler_create(&s->scheduler, &params, error) || !add_jobs(s, error))
        return false;
    const struct engine_params engine = engine_params_of(s, pages, longest);
    if (!engine_create(&s->engine, &s->model, &engine, error))
        return false;
    s->scheduler.params.executor = engine_executor(s->engine);
    return true;
}

bool session_open(struct session *s, const struct options *options, struct error *error)
{
    *s = (struct session){ .options = options };
    if (set_up(s, error))
        return true;
    session_close(s);
    return false;
}

bool session_run(struct session *s, void (*progress)(void *self, const struct session *session), void *self,
                 struct error *error)
{
    s->started_s = now();
    while (scheduler_busy(&s->scheduler)) {
        if (!scheduler_step(&s->scheduler, error))
            return false;
        if (progress)
            progress(self, s);
    }
    s->done_s = now();
    return engine_check(s->engine, error);
}

void session_close(struct session *s)
{
    scheduler_destroy(&s->scheduler);
    engine_destroy(&s->engine);
    for (size_t i = 0; i < s->num_jobs; i++) {
        free(s->jobs[i].tokens.ids);
        free(s->jobs[i].text);
    }
    free(s->jobs);
    if (s->tokenizer)
        tokenizer_destroy(&s->tokenizer);
    model_destroy(&s->model);
    gguf_close(&s->file);
    *s = (struct session){ 0 };
}
