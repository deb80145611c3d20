// SPDX-License-Identifier: Apache-2.0
// The generator's scheduler against an engine that only counts pages, whose "model" says a token that depends
// on all tokens before: a row that is left out, comes twice or in the wrong order changes what follows.
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "scheduler.h"

TestSuite(scheduler, .timeout = 60);

enum { VOCAB = 17, MAX_SEQS = 40, MAX_TOKENS = 64, MAX_ROWS = 16 };

struct fake_seq {
    bool alive;
    int64_t length;
    uint32_t tokens[MAX_TOKENS];
};

struct fake {
    struct scheduler s;
    struct fake_seq seqs[MAX_SEQS];
    int64_t page_size, num_pages;
    bool prefixes; // begin finds those that are stored
    int fail_step; // this step fails; 0: none
    int steps;
    struct batch_row rows[MAX_ROWS]; // of the last step
    int num_rows;
    float logits[MAX_TOKENS][VOCAB];
    double clock;
};

// What a client keeps of a request.
struct result {
    int64_t max_new, generated, taken;
    uint32_t tokens[MAX_TOKENS];
    bool all_logits;
};

static struct fake f;

static uint32_t next_token(const uint32_t *tokens, int64_t count)
{
    uint32_t hash = 2166136261u;
    for (int64_t i = 0; i < count; i++)
        hash = (hash ^ tokens[i]) * 16777619u;
    return (hash >> 13) % VOCAB;
}

static int64_t pages(int64_t tokens)
{
    return (tokens + f.page_size - 1) / f.page_size;
}

static int64_t fake_free_pages(void *self)
{
    int64_t used = 0;
    (void) self;
    for (uint64_t i = 0; i < MAX_SEQS; i++)
        used += f.seqs[i].alive ? pages(f.seqs[i].length) : 0;
    cr_assert_leq(used, f.num_pages);
    return f.num_pages - used;
}

static bool fake_begin(void *self, const uint32_t *tokens, int64_t count, bool share, uint64_t *seq,
                       int64_t *cached, struct error *error)
{
    (void) self, (void) error;
    for (*seq = 0; f.seqs[*seq].alive; ++*seq)
        cr_assert_lt(*seq, MAX_SEQS - 1);
    struct fake_seq *new = &f.seqs[*seq];
    *cached = 0;
    for (uint64_t i = 0; share && f.prefixes && i < MAX_SEQS; i++) {
        int64_t n = 0;
        while (f.seqs[i].alive && n < count - 1 && n < f.seqs[i].length && f.seqs[i].tokens[n] == tokens[n])
            n++;
        if (n / f.page_size * f.page_size > *cached)
            *cached = n / f.page_size * f.page_size;
    }
    *new = (struct fake_seq){ .alive = true, .length = *cached };
    memcpy(new->tokens, tokens, (size_t) *cached * sizeof *tokens);
    return true;
}

static void fake_end(void *self, uint64_t seq)
{
    (void) self;
    cr_assert(f.seqs[seq].alive);
    f.seqs[seq].alive = false;
}

static enum step_result fake_step(void *self, const struct batch_row *rows, int num_rows,
                                  const float **logits, struct error *error)
{
    int64_t want = 0, total = 0, out = 0;
    for (int i = 0; i < num_rows; i++) {
        const struct fake_seq *seq = &f.seqs[rows[i].seq];
        cr_assert(seq->alive);
        cr_assert_gt(rows[i].count, 0);
        cr_assert_leq(rows[i].want, rows[i].count);
        want += pages(seq->length + rows[i].count) - pages(seq->length);
        total += rows[i].count;
    }
    cr_assert_gt(num_rows, 0);
    cr_assert_leq(num_rows, f.s.params.max_batch);
    cr_assert_leq(total, f.s.params.chunk);
    if (want > fake_free_pages(self))
        return STEP_NO_PAGES;
    if (++f.steps == f.fail_step) {
        fail(error, "the device is gone");
        return STEP_FAILED;
    }
    for (int i = 0; i < num_rows; i++) {
        struct fake_seq *seq = &f.seqs[rows[i].seq];
        for (int64_t n = 0; n < rows[i].count; n++) {
            seq->tokens[seq->length++] = rows[i].tokens[n];
            if (rows[i].count - n <= rows[i].want) {
                memset(f.logits[out], 0, sizeof f.logits[out]);
                f.logits[out++][next_token(seq->tokens, seq->length)] = 1;
            }
        }
    }
    memcpy(f.rows, rows, (size_t) num_rows * sizeof *rows);
    f.num_rows = num_rows;
    *logits = f.logits[0];
    return STEP_DONE;
}

static double fake_now(void)
{
    return f.clock += 1;
}

static bool take(void *self, struct request *r, int64_t position, const float *logits, struct error *error)
{
    (void) self;
    struct result *result = r->user;
    const uint32_t token = next_token(r->tokens, position + 1);
    cr_assert_eq(logits[token], 1, "token %d of a request has the logits of other tokens", (int) position);
    if (result->all_logits) {
        cr_assert_eq(position, result->taken++);
        return true;
    }
    cr_assert_eq(position, r->count - 1);
    result->tokens[result->generated++] = token;
    return result->generated == result->max_new || request_push(r, token, error);
}

static void create(int64_t page_size, int64_t num_pages, int64_t chunk, int max_batch)
{
    struct error error;
    f = (struct fake){ .page_size = page_size, .num_pages = num_pages };
    const struct scheduler_params params = {
        .executor = { &f, fake_begin, fake_end, fake_free_pages, fake_step },
        .page_size = page_size,
        .num_pages = num_pages,
        .vocab = VOCAB,
        .chunk = chunk,
        .max_batch = max_batch,
        .now = fake_now,
        .take = take,
    };
    cr_assert(scheduler_create(&f.s, &params, &error));
}

static struct request *add(struct result *result, const uint32_t *prompt, int64_t count, int64_t max_new)
{
    struct error error;
    struct request *r;
    result->max_new = max_new;
    cr_assert(scheduler_add(&f.s, prompt, count, max_new, result->all_logits, result, &r, &error), "%s",
              error.text);
    return r;
}

static void step(void)
{
    struct error error;
    cr_assert(scheduler_step(&f.s, &error), "%s", error.text);
    int running = 0;
    for (int i = 0; i < f.s.num_requests; i++)
        running += f.s.requests[i]->state == REQUEST_RUNNING;
    cr_assert_eq(running, f.s.num_running);
}

static void run(void)
{
    for (int i = 0; scheduler_busy(&f.s); i++) {
        cr_assert_lt(i, 20000, "it does not end");
        step();
    }
}

static void destroy(void)
{
    scheduler_destroy(&f.s);
    for (uint64_t i = 0; i < MAX_SEQS; i++)
        cr_assert_not(f.seqs[i].alive);
}

static void fill(uint32_t *prompt, int64_t count, uint32_t seed)
{
    for (int64_t i = 0; i < count; i++)
        prompt[i] = (uint32_t) ((seed + 1) * 2654435761u + (uint32_t) i * 40503u) >> 16 & 0xff;
}

static void expect_text(const struct result *result, const uint32_t *prompt, int64_t count)
{
    uint32_t tokens[MAX_TOKENS];
    memcpy(tokens, prompt, (size_t) count * sizeof *tokens);
    cr_assert_eq(result->generated, result->max_new);
    for (int64_t i = 0; i < result->max_new; i++) {
        tokens[count + i] = next_token(tokens, count + i);
        cr_assert_eq(result->tokens[i], tokens[count + i], "token %d", (int) i);
    }
}

// 64 requests over a pool that holds a few: each says what it says alone, whatever the budget.
Test(scheduler, all_finish_with_their_own_text)
{
    static const struct {
        int64_t page_size, num_pages, chunk;
        int max_batch;
        bool prefixes;
    } runs[] = { { 4, 12, 7, 5, false },  { 1, 48, 1, 1, false },  { 16, 3, 64, 16, true },
                 { 4, 12, 16, 16, true }, { 3, 16, 5, 16, false }, { 4, 1000, 64, 16, false } };
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++) {
        static uint32_t prompts[64][24];
        static struct result results[64];
        memset(results, 0, sizeof results);
        create(runs[i].page_size, runs[i].num_pages, runs[i].chunk, runs[i].max_batch);
        f.prefixes = runs[i].prefixes;
        for (uint32_t r = 0; r < 64; r++) {
            fill(prompts[r], 24, r % 40); // some come twice
            add(&results[r], prompts[r], 1 + r * 7 % 24, 1 + r * 5 % 20);
        }
        run();
        for (uint32_t r = 0; r < 64; r++)
            expect_text(&results[r], prompts[r], 1 + r * 7 % 24);
        cr_assert_eq(f.s.preemptions > 0, runs[i].num_pages < 40 && runs[i].max_batch > 1, "run %zu", i);
        destroy();
    }
}

Test(scheduler, decode_comes_first_and_prompts_fill_the_rest)
{
    uint32_t a[4], b[30], c[30];
    struct result results[3] = { 0 };
    fill(a, 4, 1), fill(b, 30, 2), fill(c, 30, 3);
    create(4, 100, 10, 4);
    add(&results[0], a, 4, 8);
    step();
    add(&results[1], b, 30, 2), add(&results[2], c, 30, 2);
    const int64_t counts[][3] = { { 1, 9 }, { 1, 9 }, { 1, 9 }, { 1, 3, 6 }, { 1, 1, 8 }, { 1, 9 } };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        step();
        cr_assert_eq(f.num_rows, counts[i][2] ? 3 : 2, "step %zu", i);
        for (int row = 0; row < f.num_rows; row++) {
            cr_assert_eq(f.rows[row].count, counts[i][row], "step %zu, row %d", i, row);
            cr_assert_eq(f.rows[row].want, (i == 3 && row < 2) || f.rows[row].count == 1);
        }
    }
    destroy();
}

Test(scheduler, the_youngest_gives_way_and_comes_back_first)
{
    uint32_t prompt[8];
    struct result results[3] = { 0 };
    struct request *r[3];
    fill(prompt, 8, 1);
    create(4, 5, 16, 8);
    r[0] = add(&results[0], prompt, 7, 8); // 2 pages, in the end 4
    r[1] = add(&results[1], prompt + 1, 7, 8);
    r[2] = add(&results[2], prompt + 2, 5, 1); // 2
    while (r[1]->preemptions == 0) {
        cr_assert_neq(r[2]->state, REQUEST_RUNNING, "it would take what is promised");
        step();
    }
    cr_assert_eq(r[0]->state, REQUEST_RUNNING);
    cr_assert_eq(r[1]->state, REQUEST_WAITING);
    cr_assert_gt(r[1]->count, 7, "what it generated is kept");
    cr_assert_eq(r[1]->cached, 0);
    run();
    cr_assert_eq(r[0]->preemptions, 0);
    cr_assert_eq(r[2]->preemptions, 0, "it waited for pages that were free for good");
    cr_assert_lt(r[0]->done_s, r[1]->done_s);
    cr_assert_lt(r[1]->started_s, r[2]->started_s);
    expect_text(&results[0], prompt, 7), expect_text(&results[1], prompt + 1, 7);
    cr_assert_eq(r[1]->pages, 4);
    destroy();
}

Test(scheduler, what_the_pool_cannot_hold_is_refused)
{
    const uint32_t prompt[12] = { 0 };
    struct error error;
    create(4, 3, 16, 8);
    cr_assert(scheduler_add(&f.s, prompt, 12, 1, false, NULL, NULL, &error), "its last token needs no page");
    cr_assert_not(scheduler_add(&f.s, prompt, 12, 2, false, NULL, NULL, &error));
    cr_assert(strstr(error.text, "12 prompt tokens and 2 to generate take 4 pages of 4 tokens, it has 3"),
              "%s", error.text);
    cr_assert_not(scheduler_add(&f.s, prompt, 0, 2, false, NULL, NULL, &error));
    cr_assert(strstr(error.text, "0 tokens"), "%s", error.text);
    destroy();
}

// Whole or in chunks, beside others, preempted or not: the logits of each token, once.
Test(scheduler, all_logits)
{
    for (int64_t chunk = 1; chunk < 40; chunk = 3 * chunk + 1) {
        uint32_t a[30], b[9];
        struct result results[2] = { { 0 }, { .all_logits = true } };
        fill(a, 30, 1), fill(b, 9, 1);
        create(4, 8, chunk, 4);
        f.prefixes = true;
        add(&results[0], b, 9, 20);
        const struct request *r = add(&results[1], a, 30, 0);
        run();
        cr_assert_eq(results[1].taken, 30);
        cr_assert_eq(r->prefix_hits, 0);
        destroy();
    }
}

Test(scheduler, who_begins_alike_waits_for_the_pages)
{
    uint32_t prompt[30];
    struct result results[3] = { 0 };
    struct request *r[3];
    fill(prompt, 30, 1);
    create(4, 100, 16, 8);
    f.prefixes = true;
    for (int i = 0; i < 3; i++)
        r[i] = add(&results[i], prompt, 30 - 4 * i, 3);
    run();
    cr_assert_eq(r[0]->prefix_hits, 0);
    cr_assert_eq(r[1]->prefix_hits, 24); // whole pages, and one token is left to compute
    cr_assert_eq(r[2]->prefix_hits, 20);
    cr_assert_eq(f.s.computed_tokens, 30 + 2 + 2 + 3 * 2);
    for (int i = 0; i < 3; i++)
        expect_text(&results[i], prompt, 30 - 4 * i);
    destroy();
}

Test(scheduler, a_failed_step_ends_it)
{
    const uint32_t prompt[3] = { 0 };
    struct result result = { 0 };
    struct error error;
    create(4, 3, 16, 8);
    f.fail_step = 2;
    add(&result, prompt, 3, 5);
    cr_assert(scheduler_step(&f.s, &error));
    cr_assert_not(scheduler_step(&f.s, &error));
    cr_assert_str_eq(error.text, "the device is gone");
    destroy();
}
