// SPDX-License-Identifier: Apache-2.0
// What `generate` prints: texts as they grow, one prompt after the other whatever order they end in; or JSON
// Lines.
#ifndef GENERATE_OUTPUT_H_
#define GENERATE_OUTPUT_H_

#include "session.h"

struct output {
    bool terminal;       // a line on stderr says how far the prompts are
    bool progress_line;  // it is there
    size_t job, printed; // the prompt whose text is being printed, and its bytes so far
};

// After each step; `self` is a struct output.
void output_step(void *self, const struct session *session);
// After the last: the rates, or the loss.
void output_end(struct output *output, const struct session *session);

#endif
