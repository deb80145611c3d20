// SPDX-License-Identifier: Apache-2.0
#include "scheduler.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t pages_of(const struct scheduler *s, int64_t tokens)
{
    return (tokens + s->params.page_size - 1) / s->params.page_size;
}

bool scheduler_create(struct scheduler *s, const struct scheduler_params *params, struct error *error)
{
    *s = (struct scheduler){ .params = *params };
    if (s->params.max_batch > s->params.chunk)
        s->params.max_batch = (int) s->params.chunk;
    s->rows = calloc((size_t) s->params.max_batch, sizeof *s->rows);
    s->row_requests = calloc((size_t) s->params.max_batch, sizeof(struct request *));
    if (s->rows && s->row_requests)
        return true;
    scheduler_destroy(s);
    return fail(error, "out of memory for a batch of %d requests", params->max_batch);
}

void scheduler_destroy(struct scheduler *s)
{
    for (int i = 0; i < s->num_requests; i++) {
        if (s->requests[i]->state == REQUEST_RUNNING)
            s->params.executor.end(s->params.executor.self, s->requests[i]->seq);
        free(s->requests[i]->tokens);
        free(s->requests[i]);
    }
    free(s->requests);
    free(s->rows);
    free(s->row_requests);
    *s = (struct scheduler){ 0 };
}

// Doubles an array that is full.
static bool grow(void **array, int64_t *capacity, int64_t count, size_t size, struct error *error)
{
    if (count < *capacity)
        return true;
    const int64_t more = *capacity ? 2 * *capacity : 16;
    void *bigger = realloc(*array, (size_t) more * size);
    if (!bigger)
        return fail(error, "out of memory for %" PRId64 " elements of %zu bytes", more, size);
    *array = bigger;
    *capacity = more;
    return true;
}

bool request_push(struct request *r, uint32_t token, struct error *error)
{
    void *tokens = r->tokens;
    if (!grow(&tokens, &r->capacity, r->count, sizeof *r->tokens, error))
        return false;
    r->tokens = tokens;
    r->tokens[r->count++] = token;
    return true;
}

static bool append(struct scheduler *s, struct request *r, struct error *error)
{
    void *requests = s->requests;
    int64_t capacity = s->capacity;
    if (!grow(&requests, &capacity, s->num_requests, sizeof(struct request *), error))
        return false;
    s->requests = requests;
    s->capacity = (int) capacity;
    s->requests[s->num_requests++] = r;
    return true;
}

bool scheduler_add(struct scheduler *s, const uint32_t *prompt, int64_t count, int64_t max_new,
                   bool all_logits, void *user, struct request **request, struct error *error)
{
    // The last token that is generated is never computed.
    const int64_t limit = max_new > 1 ? count + max_new - 1 : count;
    if (count < 1)
        return fail(error, "the prompt has 0 tokens, want at least 1");
    if (pages_of(s, limit) > s->params.num_pages)
        return fail(error,
                    "the pool is too small: %" PRId64 " prompt tokens and %" PRId64
                    " to generate take %" PRId64 " pages of %" PRId64 " tokens, it has %" PRId64,
                    count, max_new, pages_of(s, limit), s->params.page_size, s->params.num_pages);
    struct request *r = calloc(1, sizeof *r);
    uint32_t *tokens = malloc((size_t) count * sizeof *tokens);
    if (!r || !tokens || !append(s, r, error)) {
        free(r);
        free(tokens);
        return fail(error, "out of memory for a prompt of %" PRId64 " tokens", count);
    }
    memcpy(tokens, prompt, (size_t) count * sizeof *tokens);
    *r = (struct request){ .tokens = tokens,
                           .count = count,
                           .capacity = count,
                           .num_prompt = count,
                           .user = user,
                           .next_logits = all_logits ? 0 : count - 1,
                           .limit = limit,
                           .share = !all_logits };
    if (request)
        *request = r;
    return true;
}

bool scheduler_busy(const struct scheduler *s)
{
    return s->first_open < s->num_requests;
}

static void take_row(struct scheduler *s, struct request *r, int64_t count)
{
    const int64_t end = r->cached + count, first = r->next_logits > r->cached ? r->next_logits : r->cached;
    s->row_requests[s->num_rows] = r;
    s->rows[s->num_rows++] =
        (struct batch_row){ r->seq, r->tokens + r->cached, count, end > first ? end - first : 0 };
}

// Requests that run: those that generate, or those whose prompts are not through.
static void take_running(struct scheduler *s, bool generating, int64_t *budget)
{
    for (int i = s->first_open; i < s->num_requests; i++) {
        struct request *r = s->requests[i];
        const int64_t pending = r->count - r->cached, count = smaller(pending, *budget);
        if (r->state != REQUEST_RUNNING || (pending == 1) != generating || count == 0)
            continue;
        take_row(s, r, count);
        *budget -= count;
    }
}

static int64_t common_prefix(const struct request *a, const struct request *b)
{
    const int64_t most = smaller(a->count, b->count);
    int64_t n = 0;
    while (n < most && a->tokens[n] == b->tokens[n])
        n++;
    return n;
}

// Whether one that runs is about to compute a whole page more of the same prefix than `cached` tokens.
static bool comes_soon(const struct scheduler *s, const struct request *r, int64_t cached)
{
    for (int i = s->first_open; i < s->num_requests; i++) {
        const struct request *other = s->requests[i];
        if (other->state != REQUEST_RUNNING)
            continue;
        const int64_t common = smaller(common_prefix(r, other), r->count - 1);
        const int64_t whole = common / s->params.page_size * s->params.page_size;
        if (whole > cached && whole > other->cached)
            return true;
    }
    return false;
}

// Pages that the running ones still take for tokens they have, and one more each.
static int64_t promised_pages(const struct scheduler *s)
{
    int64_t pages = 0;
    for (int i = s->first_open; i < s->num_requests; i++) {
        const struct request *r = s->requests[i];
        if (r->state == REQUEST_RUNNING)
            pages += pages_of(s, smaller(r->count + 1, r->limit)) - pages_of(s, r->cached);
    }
    return pages;
}

// *admitted: it runs now; else it has to wait, and those behind it too.
static bool admit(struct scheduler *s, struct request *r, bool *admitted, struct error *error)
{
    const struct executor *x = &s->params.executor;
    uint64_t seq;
    int64_t cached;
    *admitted = false;
    if (!x->begin(x->self, r->tokens, r->count, r->share, &seq, &cached, error))
        return false;
    const int64_t want = pages_of(s, smaller(r->count + 1, r->limit)) - pages_of(s, cached);
    if (s->num_running > 0 &&
        (want > x->free_pages(x->self) - promised_pages(s) || (r->share && comes_soon(s, r, cached)))) {
        x->end(x->self, seq);
        return true;
    }
    if (!r->started) {
        r->started_s = s->params.now();
        r->prefix_hits = cached;
    }
    r->started = *admitted = true;
    r->state = REQUEST_RUNNING;
    r->seq = seq;
    r->cached = cached;
    s->num_running++;
    return true;
}

static bool take_waiting(struct scheduler *s, int64_t *budget, struct error *error)
{
    for (int i = s->first_open; i < s->num_requests; i++) {
        struct request *r = s->requests[i];
        bool admitted;
        if (r->state != REQUEST_WAITING)
            continue;
        if (*budget == 0 || s->num_running == s->params.max_batch)
            break;
        if (!admit(s, r, &admitted, error))
            return false;
        if (!admitted)
            break;
        const int64_t count = smaller(r->count - r->cached, *budget);
        take_row(s, r, count);
        *budget -= count;
    }
    return true;
}

// The youngest that runs gives its pages back; what it has so far is its prompt when it comes back.
static bool preempt(struct scheduler *s, struct error *error)
{
    int i = s->num_requests - 1;
    while (s->requests[i]->state != REQUEST_RUNNING)
        i--;
    struct request *r = s->requests[i];
    if (s->num_running == 1)
        return fail(error,
                    "the pool is too small: %" PRId64 " tokens of one request do not fit into %" PRId64
                    " pages of %" PRId64,
                    r->cached + 1, s->params.num_pages, s->params.page_size);
    s->params.executor.end(s->params.executor.self, r->seq);
    r->state = REQUEST_WAITING;
    r->cached = 0;
    r->preemptions++;
    s->preemptions++;
    s->num_running--;
    int kept = 0;
    for (int row = 0; row < s->num_rows; row++)
        if (s->row_requests[row] != r) {
            s->rows[kept] = s->rows[row];
            s->row_requests[kept++] = s->row_requests[row];
        }
    s->num_rows = kept;
    return true;
}

static void finish(struct scheduler *s, struct request *r)
{
    s->params.executor.end(s->params.executor.self, r->seq);
    r->state = REQUEST_DONE;
    r->pages = pages_of(s, r->cached);
    r->done_s = s->params.now();
    s->num_running--;
    while (s->first_open < s->num_requests && s->requests[s->first_open]->state == REQUEST_DONE)
        s->first_open++;
}

static bool take_logits(struct scheduler *s, const float *logits, struct error *error)
{
    for (int i = 0; i < s->num_rows; i++) {
        struct request *r = s->row_requests[i];
        r->cached += s->rows[i].count;
        s->computed_tokens += s->rows[i].count;
        if (r->cached == r->num_prompt && r->prefilled_s == 0)
            r->prefilled_s = s->params.now();
        for (int64_t n = s->rows[i].want; n > 0; n--, logits += s->params.vocab) {
            r->next_logits = r->cached - n + 1;
            if (!s->params.take(s->params.take_self, r, r->cached - n, logits, error))
                return false;
        }
        if (r->cached == r->count)
            finish(s, r);
    }
    return true;
}

bool scheduler_step(struct scheduler *s, struct error *error)
{
    const struct executor *x = &s->params.executor;
    int64_t budget = s->params.chunk;
    s->num_rows = 0;
    take_running(s, true, &budget);
    take_running(s, false, &budget);
    if (!take_waiting(s, &budget, error))
        return false;
    if (s->num_rows == 0)
        return true;

    const float *logits = NULL;
    enum step_result result;
    while ((result = x->step(x->self, s->rows, s->num_rows, &logits, error)) == STEP_NO_PAGES)
        if (!preempt(s, error))
            return false;
    s->steps++;
    return result == STEP_DONE && take_logits(s, logits, error);
}
