// SPDX-License-Identifier: Apache-2.0
// Picks the next token. The same seed, stream and logits give the same token on every machine: the random
// numbers and the exponential are made of exact operations here, none of them the C library's. Threads: a
// struct sampler is used by one at a time.
#ifndef GENERATE_SAMPLER_H_
#define GENERATE_SAMPLER_H_

#include "error.h"

#include <stddef.h>
#include <stdint.h>

struct sampler {
    double temperature; // 0: greedy
    double top_p;       // in (0, 1]; 1: all tokens
    uint64_t state;
};

// A stream for each request makes its tokens independent of what runs beside it.
void sampler_init(struct sampler *sampler, double temperature, double top_p, uint64_t seed, uint64_t stream);

// Greedy: the token of the largest logit, the first of equals. Else: of the tokens with the largest
// probabilities softmax(logits / temperature), as few as reach top_p together (the first of equals before the
// others), one at random. An error where a logit is NaN or +infinity, all are -infinity, or there is no
// memory.
bool sampler_pick(struct sampler *sampler, const float *logits, size_t n, uint32_t *token,
                  struct error *error);

// A number in [0, 1), a multiple of 2^-53.
double sampler_uniform(struct sampler *sampler);
// e^x for x <= 0, to 1e-15 of its value; 0 below -700.
double sampler_exp(double x);

#endif
