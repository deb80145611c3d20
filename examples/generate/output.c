// SPDX-License-Identifier: Apache-2.0
#include "output.h"

#include "utf8.h"

#include <inttypes.h>
#include <stdio.h>

static void progress_clear(struct output *o)
{
    if (o->progress_line)
        fputs("\r\033[K", stderr);
    o->progress_line = false;
}

// While the prompt whose text comes next is not through.
static void progress_show(struct output *o, const struct session *s)
{
    const struct job *job = &s->jobs[o->job];
    const struct request *r = job->request;
    const int64_t total = r->num_prompt, done = r->cached < total ? r->cached : total;
    if (!o->terminal || (r->prefilled_s > 0 && !job->score))
        return;
    fprintf(stderr, "\r\033[K%zu/%zu: %" PRId64 " of %" PRId64 " tokens", o->job + 1, s->num_jobs, done,
            total);
    fflush(stderr);
    o->progress_line = true;
}

// A string of JSON; bytes that are no UTF-8 become U+FFFD.
static void json_string(const char *text, size_t size)
{
    putchar('"');
    for (size_t i = 0, n; i < size; i += n ? n : 1) {
        const unsigned char c = (unsigned char) text[i];
        n = utf8_length(text + i, size - i);
        if (n == 0)
            fputs("\\ufffd", stdout);
        else if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 0x20 || c == 0x7f)
            printf("\\u%04x", c);
        else
            (void) fwrite(text + i, 1, n, stdout);
    }
    putchar('"');
}

// null where there is no time to divide by.
static void json_rate(const char *name, int64_t count, double seconds)
{
    if (count > 0 && seconds > 0)
        printf(",\"%s\":%.3f", name, (double) count / seconds);
    else
        printf(",\"%s\":null", name);
}

static void json_job(const struct session *s, const struct job *job)
{
    const struct request *r = job->request;
    fputs("{\"prompt\":", stdout);
    json_string(job->prompt.text, job->prompt.size);
    fputs(",\"text\":", stdout);
    json_string(job->text, job->size);
    printf(",\"prompt_tokens\":%" PRId64 ",\"gen_tokens\":%" PRId64, r->num_prompt, job->generated);
    json_rate("prompt_tokens_s", r->num_prompt, r->prefilled_s - r->started_s);
    json_rate("gen_tokens_s", job->generated - 1, r->done_s - r->prefilled_s);
    printf(",\"latency_ms\":%.3f,\"pages\":%" PRId64 ",\"prefix_hits\":%" PRId64 "}\n",
           1e3 * (r->done_s - s->started_s), r->pages, r->prefix_hits);
    fflush(stdout);
}

// What is new of a text, whole characters unless it has ended. The prompt comes first, at once.
static void print_text(struct output *o, const struct session *s, const struct job *job)
{
    const bool done = job->request->state == REQUEST_DONE;
    const size_t size = job->size - (done ? 0 : utf8_incomplete(job->text, job->size));
    if (size > o->printed || done)
        progress_clear(o);
    if ((size > 0 || done) && o->printed == 0)
        (void) fwrite(job->prompt.text, 1, job->prompt.size, stdout);
    if (size > o->printed)
        (void) fwrite(job->text + o->printed, 1, size - o->printed, stdout);
    if (done)
        fputs(o->job + 1 < s->num_jobs ? "\n\n" : "\n", stdout);
    o->printed = size;
    fflush(stdout);
}

// With JSON nothing before it is done.
static void print_job(struct output *o, const struct session *s, const struct job *job)
{
    if (s->options->json && job->request->state == REQUEST_DONE)
        json_job(s, job);
    else if (!s->options->json)
        print_text(o, s, job);
}

void output_step(void *self, const struct session *s)
{
    struct output *o = self;
    for (bool done = true; done && o->job < s->num_jobs; o->job += done) {
        const struct job *job = &s->jobs[o->job];
        done = job->request->state == REQUEST_DONE;
        if (!job->score)
            print_job(o, s, job);
        if (done)
            o->printed = 0;
        else
            progress_show(o, s);
    }
}

static void print_totals(const struct session *s)
{
    const double seconds = s->done_s - s->started_s;
    int64_t prompts = 0, generated = 0, hits = 0;
    struct engine_info info;
    engine_info(s->engine, &info);
    for (size_t i = 0; i < s->num_jobs; i++) {
        prompts += s->jobs[i].request->num_prompt;
        hits += s->jobs[i].request->prefix_hits;
        generated += s->jobs[i].generated;
    }
    if (s->options->json) {
        printf("{\"total_gen_tokens_s\":%.3f,\"total_prompt_tokens_s\":%.3f}\n", (double) generated / seconds,
               (double) prompts / seconds);
        return;
    }
    fprintf(stderr,
            "%zu prompts of %" PRId64 " tokens (%" PRId64 " found in the cache), %" PRId64
            " generated in %.2f s: "
            "%.1f tokens/s; %" PRId64 " steps, %" PRId64 " pages of %" PRId64 " tokens, %" PRId64
            " preemptions; %s\n",
            s->num_jobs, prompts, hits, generated, seconds, (double) generated / seconds, s->scheduler.steps,
            info.pages, s->options->page_size, s->scheduler.preemptions, info.device);
}

static void print_loss(const struct session *s, const struct job *job)
{
    const double mean = job->loss / (double) job->scored;
    if (s->options->json)
        printf("{\"nll\":%.6f,\"tokens\":%" PRId64 "}\n", mean, job->scored);
    else
        printf("nll %.5f over %" PRId64 " tokens\n", mean, job->scored);
}

void output_end(struct output *o, const struct session *s)
{
    progress_clear(o);
    if (s->options->num_prompts)
        print_totals(s);
    if (s->options->nll_file)
        print_loss(s, &s->jobs[0]);
}
