// SPDX-License-Identifier: Apache-2.0
// Results against expected ones, element by element, with the tolerance of each op's contract.
#ifndef CLINFER_TOOLS_COMPARE_H_
#define CLINFER_TOOLS_COMPARE_H_

#include "opcase.h"

struct cmp_result {
    const char *tensor;
    bool ok;
    // Of the element that uses most of its tolerance. Infinite where NaN or infinity meets something else.
    double max_err, tolerance;
    int64_t index; // that element's
    double cosine; // of the elements the op wrote, where the contract bounds it; else 1
    int64_t bad;   // elements past their tolerance
};

// `got` and `expected` have the buffer's type and shape. What the op does not write is compared bit for
// bit; which elements those are is taken from the case's params. False: no memory.
bool cmp_compare(const struct op_case *c, const struct op_buffer *b, const unsigned char *got,
                 const unsigned char *expected, struct cmp_result *result);

// Compares what an op left in the case with expect.* of its file. `results` has room for OP_MAX_TENSORS.
// Returns how many there are; -1 where one has another type or shape, named in `error`.
int cmp_expected(const struct op_case *c, struct cmp_result *results, char *error, size_t error_size);

// The type with the fewer mantissa bits.
clinfer_dtype cmp_narrower(clinfer_dtype a, clinfer_dtype b);

#endif
