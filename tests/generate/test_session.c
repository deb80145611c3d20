// SPDX-License-Identifier: Apache-2.0
// The generator from its command line on: psalter's loss and texts are those of
// examples/generate/model/val.txt, whatever the pages, chunks and neighbours.
#include "models.h"
#include "session.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(session, .timeout = 600);

enum { MAX_ARGS = 64, GREEDY = 5, PROMPTS = 8 };

static struct error error;
static char passage[] = "/tmp/clinfer-passage-XXXXXX";
static char val[1 << 14];
static double val_nll;
static unsigned val_tokens;
static char *val_prompt[GREEDY], *val_text[GREEDY];

// Line: greedy: 'PROMPT' -> 'TEXT' (smallest logit gap GAP)
static void read_greedy(void)
{
    static const char arrow[] = "' -> '";
    char *line = val;
    for (int i = 0; i < GREEDY; i++) {
        val_prompt[i] = strstr(line, "greedy: '") + strlen("greedy: '");
        char *at = strstr(val_prompt[i], arrow);
        val_text[i] = at + strlen(arrow);
        line = strstr(val_text[i], "' (smallest");
        *at = *line++ = 0;
    }
}

// The passage goes to a file, since --nll takes one.
static void set_up(void)
{
    FILE *f = fopen(getenv("CLINFER_MODEL_VAL"), "r");
    cr_assert(f && fread(val, 1, sizeof val - 1, f) > 0);
    fclose(f);
    cr_assert_eq(sscanf(val, "nll: %lf tokens: %u predicted", &val_nll, &val_tokens), 2);
    const char *text = strstr(val, "\n---\n") + 5;
    const int fd = mkstemp(passage);
    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t) strlen(text));
    close(fd);
    read_greedy();
}

static void tear_down(void)
{
    unlink(passage);
}

struct run {
    struct options options;
    struct session session;
};

// Options in one string, between blanks, and prompts.
static bool open_run(struct run *run, const char *options, char *const *prompts, int num_prompts)
{
    static char words[8192];
    char *argv[MAX_ARGS] = { (char *) (uintptr_t) "generate" };
    int argc = 1;
    cr_assert_lt(strlen(options), sizeof words);
    strcpy(words, options);
    for (char *word = strtok(words, " "); word; word = strtok(NULL, " "))
        argv[argc++] = word;
    for (int i = 0; i < num_prompts; i++) {
        argv[argc++] = (char *) (uintptr_t) "--prompt";
        argv[argc++] = prompts[i];
    }
    cr_assert_lt(argc, MAX_ARGS);
    cr_assert(options_parse(argc, argv, &run->options, &error), "%s", error.text);
    return options_read(&run->options, &error) && session_open(&run->session, &run->options, &error);
}

static void close_run(struct run *run)
{
    session_close(&run->session);
    options_free(&run->options);
}

static void do_run(struct run *run, const char *options, char *const *prompts, int num_prompts)
{
    cr_assert(open_run(run, options, prompts, num_prompts), "%s", error.text);
    cr_assert(session_run(&run->session, NULL, NULL, &error), "%s", error.text);
}

static double nll_of(const char *options, char *const *prompts, int num_prompts)
{
    char all[512];
    struct run run;
    snprintf(all, sizeof all, "--nll %s %s", passage, options);
    do_run(&run, all, prompts, num_prompts);
    const struct job *job = &run.session.jobs[0];
    cr_assert_eq(job->scored, val_tokens);
    const double nll = job->loss / (double) job->scored;
    close_run(&run);
    return nll;
}

struct nll_run {
    const char *options;
    int others;
    double tolerance;
};

static void check_nll(const struct nll_run *runs, size_t num_runs)
{
    char *others[7];
    for (int i = 0; i < 7; i++)
        others[i] = val_prompt[i % GREEDY];
    for (size_t i = 0; i < num_runs; i++) {
        const double nll = nll_of(runs[i].options, others, runs[i].others);
        cr_assert_float_eq(nll, val_nll, runs[i].tolerance, "%s: %.5f, want %.5f", runs[i].options, nll,
                           val_nll);
    }
}

// In whatever pages and chunks, alone and beside others.
Test(session, nll, .init = set_up, .fini = tear_down)
{
    static const struct nll_run runs[] = { { "--kv-type f32 --chunk 512", 0, 0.0001 },
                                           { "--kv-type f32 --chunk 100 --page-size 128", 0, 0.0001 },
                                           { "", 0, 0.001 },
                                           { "--page-size 1 --chunk 61", 7, 0.001 },
                                           { "--page-size 128 --deterministic", 7, 0.001 },
                                           { "--kv-type f8_e4m3_scaled --weights q8_0", 0, 0.03 } };
    check_nll(runs, sizeof runs / sizeof runs[0]);
}

Test(session, types, .init = set_up, .fini = tear_down)
{
    static const struct nll_run runs[] = { { "--kv-type f32 --weights f32", 0, 0.0001 },
                                           { "--kv-type bf16", 0, 0.004 },
                                           { "--kv-type f8_e4m3 --weights q8_0", 0, 0.04 },
                                           { "--kv-type f8_e4m3_scaled --weights f8_e4m3", 7, 0.1 } };
    check_nll(runs, sizeof runs / sizeof runs[0]);
}

static void expect_text(const struct job *job, const char *want)
{
    cr_assert(job->size == strlen(want) && !memcmp(job->text, want, job->size), "after \"%.*s\":\n%.*s\n%s",
              (int) job->prompt.size, job->prompt.text, (int) job->size, job->text, want);
}

Test(session, greedy, .init = set_up, .fini = tear_down)
{
    static const char *const options[] = { "", "--kv-type f32 --page-size 3 --chunk 9", "--deterministic" };
    for (size_t i = 0; i < sizeof options / sizeof options[0]; i++) {
        struct run run;
        do_run(&run, options[i], val_prompt, GREEDY);
        for (int p = 0; p < GREEDY; p++) {
            expect_text(&run.session.jobs[p], val_text[p]);
            cr_assert_eq(run.session.jobs[p].generated, 32);
        }
        close_run(&run);
    }
}

// Prompts that begin alike in part, drawn tokens; each as it is alone, though the pool holds a few at a time.
Test(session, together_as_alone, .init = set_up, .fini = tear_down)
{
    static char texts[PROMPTS][128];
    char *prompts[PROMPTS], alone[PROMPTS][512], options[256];
    struct run run;
    for (int i = 0; i < PROMPTS; i++) {
        prompts[i] = texts[i];
        snprintf(texts[i], sizeof texts[i], "%s%s", i % 2 ? "And the LORD spake unto Moses, saying, " : "",
                 val_prompt[i % GREEDY]);
        do_run(&run, "--deterministic --temperature 0.8 --top-p 0.95 --seed 3 -n 24 --page-size 4",
               &prompts[i], 1);
        snprintf(alone[i], sizeof alone[i], "%.*s", (int) run.session.jobs[0].size, run.session.jobs[0].text);
        close_run(&run);
    }
    for (int pages = 14; pages <= 200; pages += 93) {
        snprintf(options, sizeof options,
                 "--deterministic --temperature 0.8 --top-p 0.95 --seed 3 -n 24 --page-size 4 --chunk 11 "
                 "--pages %d",
                 pages);
        do_run(&run, options, prompts, PROMPTS);
        int64_t hits = 0;
        for (int i = 0; i < PROMPTS; i++) {
            expect_text(&run.session.jobs[i], alone[i]);
            hits += run.session.jobs[i].request->prefix_hits;
        }
        cr_assert_gt(hits, 0);
        cr_assert_eq(run.session.scheduler.preemptions > 0, pages == 14);
        close_run(&run);
    }
}

// Drawn tokens differ between prompts that are the same, and with the seed.
Test(session, sampling)
{
    char *prompts[] = { (char *) (uintptr_t) "And he said", (char *) (uintptr_t) "And he said" };
    struct run runs[3];
    do_run(&runs[0], "--temperature 1 -n 16", prompts, 2);
    do_run(&runs[1], "--temperature 1 -n 16", prompts, 1);
    do_run(&runs[2], "--temperature 1 -n 16 --seed 1", prompts, 1);
    const struct job *job = runs[0].session.jobs;
    cr_assert(job[0].size != job[1].size || memcmp(job[0].text, job[1].text, job[0].size));
    cr_assert(runs[1].session.jobs[0].size == job[0].size &&
              !memcmp(runs[1].session.jobs[0].text, job[0].text, job[0].size));
    job = &runs[2].session.jobs[0];
    cr_assert(job->size != runs[1].session.jobs[0].size ||
              memcmp(job->text, runs[1].session.jobs[0].text, job->size));
    for (int i = 0; i < 3; i++)
        close_run(&runs[i]);
}

// At this temperature all tokens are about as likely, and one in a thousand ends the text.
Test(session, end_token)
{
    char *prompts[] = { (char *) (uintptr_t) "And" };
    struct run run;
    do_run(&run, "--temperature 100 --seed 5 -n 500", prompts, 1);
    const struct job *job = &run.session.jobs[0];
    cr_assert(job->generated > 0 && job->generated < 500, "%d tokens", (int) job->generated);
    cr_assert_eq(job->request->count, job->request->num_prompt + job->generated);
    close_run(&run);
}

static void refused(const char *options, const char *prompt, const char *want)
{
    struct run run;
    char *prompts[] = { (char *) (uintptr_t) prompt };
    cr_assert_not(open_run(&run, options, prompts, prompt ? 1 : 0));
    cr_assert(strstr(error.text, want), "%s\n%s", error.text, want);
    options_free(&run.options);
}

Test(session, refused)
{
    refused("", "", "prompt 1 of 1: it is empty, want at least 1 byte");
    refused("-n 600", "And he said",
            "prompt 1 of 1: too long: 5 tokens and 600 to generate take 604 positions, the model has 512");
    refused("-n 32 --page-size 4 --pages 8", "And he said",
            "prompt 1 of 1: the pool is too small: 5 prompt tokens and 32 to generate take 9 pages of 4 "
            "tokens, it has 8");
    refused("--model /nowhere/model.gguf", "a", "/nowhere/model.gguf: cannot open");
    refused("--model /dev/null", "a", "/dev/null");
    refused("--attention gqa", "a", "the model's architecture is deepseek2");
    refused("--nll /nowhere/text", NULL, "/nowhere/text");
    refused("--nll /dev/null", NULL, "/dev/null: it is empty");
    refused("--device nosuchdevice", "a", "nosuchdevice");
}

// The figure of weights as stored and f32 arithmetic is 1.680; both attentions are the model itself.
Test(session, smollm2)
{
    static const char text[] =
        "The capital of France is Paris. It is the largest city in the country, and it lies on the river "
        "Seine. The sun rises in the east and sets in the west.";
    if (access(smollm2_path(), R_OK))
        cr_skip_test("%s is not there; tools/fetch-model.sh fetches it", smollm2_path());
    const int fd = mkstemp(passage);
    cr_assert(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t) strlen(text));
    close(fd);
    double nll[2];
    for (int mla = 0; mla < 2; mla++) {
        char options[4400];
        struct run run;
        snprintf(options, sizeof options, "--nll %s --model %s --attention %s", passage, smollm2_path(),
                 mla ? "mla" : "gqa");
        do_run(&run, options, NULL, 0);
        cr_assert_eq(run.session.jobs[0].scored, 36);
        nll[mla] = run.session.jobs[0].loss / 36;
        cr_assert_float_eq(nll[mla], 1.680, 0.02, "%s: %.4f", options, nll[mla]);
        close_run(&run);
    }
    cr_assert_float_eq(nll[0], nll[1], 0.005, "%.4f and %.4f", nll[0], nll[1]);
    unlink(passage);
}
