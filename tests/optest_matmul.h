// SPDX-License-Identifier: Apache-2.0
// Calls of matmul for its tests.
#ifndef CLINFER_TESTS_OPTEST_MATMUL_H_
#define CLINFER_TESTS_OPTEST_MATMUL_H_

#include "optest.h"

enum { MM_WEIGHTS = 5 };
extern const clinfer_dtype mm_weights[MM_WEIGHTS]; // F32 F16 BF16 F8_E4M3 I8

struct mm_shape {
    int64_t tokens, heads, rows, columns; // heads 0: no such axis
    clinfer_dtype x, w, bias;             // bias 0: none
    int64_t gn, gk;                       // with fp8 weights
    float bound;                          // x_scale_bound
};

// A call that is laid out and filled. Calls of the same shape but for `tokens` have the same weights and, as
// far as both have them, the same rows of x.
void mm_begin(struct ot_call *c, const struct mm_shape *s, const char *seed);
struct clinfer_matmul_params *mm_params(const struct ot_call *c);
// All of it: mm_begin, ot_check, ot_free.
void mm_check(const struct mm_shape *s, const char *seed, const struct ot_device *d);

#endif
