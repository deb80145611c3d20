// SPDX-License-Identifier: Apache-2.0
// What one start of `generate` does: a model, its engine, and the prompts that run over one pool of pages, or
// a text whose loss is measured.
#ifndef GENERATE_SESSION_H_
#define GENERATE_SESSION_H_

#include "engine.h"
#include "options.h"
#include "sampler.h"
#include "tokenizer.h"

struct job {
    struct options_text prompt;
    bool score;               // the loss of its text is measured; else it is continued
    struct token_list tokens; // of the prompt
    struct request *request;
    struct sampler sampler;
    char *text; // what was generated: bytes, which need not be whole characters before the end
    size_t size, capacity;
    int64_t generated; // tokens, an end token not counted
    double loss;       // the sum over `scored` tokens
    int64_t scored;
};

struct session {
    const struct options *options;
    struct gguf_file file;
    struct model model;
    struct tokenizer *tokenizer;
    struct scheduler scheduler;
    struct engine *engine;
    struct job *jobs; // the text of --nll, if there is one, then the prompts
    size_t num_jobs;
    double started_s, done_s; // of session_run
};

// Loads the model, refuses what will not fit, and only then makes the engine. The options outlive the
// session.
bool session_open(struct session *session, const struct options *options, struct error *error);
// Until all is done; `progress`, which may be NULL, is called after each step.
bool session_run(struct session *session, void (*progress)(void *self, const struct session *session),
                 void *self, struct error *error);
void session_close(struct session *session);

#endif
