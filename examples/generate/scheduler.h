// SPDX-License-Identifier: Apache-2.0
// Continuous batching: which tokens of which request the next step computes. Requests are served in the order
// they came; a step has one token of each that is generating, then prompts in chunks, up to a budget of
// tokens. Where the pages run out the youngest gives its own back and starts again later, from what it has so
// far. Knows nothing of OpenCL, and of the clock what it is told. Threads: one.
// Sources: Orca (Yu et al. 2022); PagedAttention (Kwon et al. 2023); Sarathi-Serve (Agrawal et al. 2024).
#ifndef GENERATE_SCHEDULER_H_
#define GENERATE_SCHEDULER_H_

#include "error.h"

#include <stdint.h>

enum request_state { REQUEST_WAITING, REQUEST_RUNNING, REQUEST_DONE };

struct request {
    uint32_t *tokens; // the prompt, then what was generated
    int64_t count, capacity, num_prompt;
    void *user;
    enum request_state state;
    // The rest is the scheduler's, to be read.
    uint64_t seq;        // while it runs
    int64_t cached;      // tokens of it in the cache
    int64_t next_logits; // the first token whose logits have not been taken
    int64_t limit;       // most tokens it will ever have in the cache
    int64_t prefix_hits; // prompt tokens found in the cache when it first started
    int64_t pages;       // that it held when it ended
    int preemptions;
    bool share, started;
    double started_s, prefilled_s, done_s; // first run, the prompt's logits there, ended; 0: not yet
};

// New tokens of a sequence; logits are wanted of the last `want` of them.
struct batch_row {
    uint64_t seq;
    const uint32_t *tokens;
    int64_t count, want;
};

enum step_result { STEP_DONE, STEP_NO_PAGES, STEP_FAILED };

// What computes: the engine, or a test's.
struct executor {
    void *self;
    // A new sequence; with `share` of the longest prefix of the tokens that is cached, less than all of them.
    bool (*begin)(void *self, const uint32_t *tokens, int64_t count, bool share, uint64_t *seq,
                  int64_t *cached, struct error *error);
    void (*end)(void *self, uint64_t seq);
    int64_t (*free_pages)(void *self);
    // Appends the rows to their sequences. *logits: the wanted ones, row after row, until the next call.
    // After NO_PAGES nothing has changed.
    enum step_result (*step)(void *self, const struct batch_row *rows, int num_rows, const float **logits,
                             struct error *error);
};

struct scheduler_params {
    struct executor executor;
    int64_t page_size, num_pages, vocab;
    int64_t chunk; // most tokens a step
    int max_batch; // most requests that run at once; at most `chunk`
    double (*now)(void);
    // Takes the logits that follow tokens[position]. A request that has a token pushed goes on, one that has
    // not is done once all its tokens are in the cache.
    bool (*take)(void *self, struct request *request, int64_t position, const float *logits,
                 struct error *error);
    void *take_self;
};

struct scheduler {
    struct scheduler_params params;
    struct request **requests; // the oldest first
    int num_requests, capacity, first_open, num_running;
    struct batch_row *rows; // max_batch, of the step
    struct request **row_requests;
    int num_rows;
    int64_t steps, computed_tokens, preemptions; // so far
};

bool scheduler_create(struct scheduler *scheduler, const struct scheduler_params *params,
                      struct error *error);
void scheduler_destroy(struct scheduler *scheduler); // and its requests; all zero is none

// A request for at most `max_new` tokens after the prompt, which is copied. With `all_logits` they are taken
// of each token, so that no prefix of it can be shared. An error where the pool could not hold it even alone.
bool scheduler_add(struct scheduler *scheduler, const uint32_t *prompt, int64_t count, int64_t max_new,
                   bool all_logits, void *user, struct request **request, struct error *error);
bool request_push(struct request *request, uint32_t token, struct error *error);

// One step. Whether any request is left is scheduler_busy().
bool scheduler_step(struct scheduler *scheduler, struct error *error);
bool scheduler_busy(const struct scheduler *scheduler);

#endif
