// SPDX-License-Identifier: Apache-2.0
// The forward pass of a model in scalar C: f32 values, double sums, every token of a text against all before
// it. What examples/generate computes on a device is measured against it.
#ifndef CLINFER_TESTS_PLAIN_MODEL_H_
#define CLINFER_TESTS_PLAIN_MODEL_H_

#include "model.h"

struct plain {
    const struct model *model;
    int64_t capacity, length; // positions
    float *rope;              // [capacity, R] pairs
    float *keys, *values; // [layers, capacity, K * D]; of deepseek2 `keys` has the rows and `values` is NULL
};

// Aborts where there is no memory.
void plain_create(struct plain *plain, const struct model *model, int64_t capacity);
void plain_destroy(struct plain *plain);

// Appends n tokens, which fit; logits [n, vocab].
void plain_forward(struct plain *plain, const uint32_t *tokens, int64_t n, float *logits);

// Mean natural-log loss of the tokens after the first, from an empty cache.
double plain_nll(struct plain *plain, const uint32_t *tokens, int64_t n);

// The `count` tokens of the largest logits after n tokens, from an empty cache. Returns the smallest gap
// between the largest logit and the next.
double plain_greedy(struct plain *plain, const uint32_t *tokens, int64_t n, int64_t count, uint32_t *out);

#endif
