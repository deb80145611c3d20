// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_TOOLS_DECODE_DEMO_H_
#define CLINFER_TOOLS_DECODE_DEMO_H_

#include "opcase.h"

enum { REQUESTS = 2, PAGE_SIZE = 16 };

// The second request starts later.
static inline int64_t demo_late(int64_t steps)
{
    return steps / 4;
}

struct demo {
    struct op_case c;
    struct op_device weights;
    struct clinfer_mla_decode_branch_params like, params; // of the case, on the host and on the device
    clinfer_ctx *ctx;
    cl_command_queue queue;
    clinfer_kv_pool *pool;
    int64_t steps, tokens, columns;   // columns: R, of the table
    int64_t heads, query, row, width; // elements of a token: query, cache row, outputs
    float *table;                     // [steps, R]
    uint16_t *x, *q;                  // bf16: rows and queries of each token
    uint16_t *want, *again, *got;     // outputs
    cl_mem table_mem, x_mem, q_mem, y_mem;
};

// Points k of kv_store, and q and output of the decode, at the tokens of a step.
void demo_set_step(const struct demo *d, int64_t step, int64_t tokens, cl_mem x, cl_mem q, cl_mem y,
                   struct clinfer_kv_store_params *store, struct clinfer_mla_decode_branch_params *decode);

// The contract's limit for one element, as a part of the outputs' RMS; and a tighter one than its cosine for
// all of them, the root mean square of what they are off by.
#define DEMO_ELEMENT_LIMIT 0.02
#define DEMO_RMS_LIMIT     0.005

// raw is rounded to bf16 and then to fp8: where it lies next to a tie a rounding error moves an output by
// more than the limit. Elements are excused where the reference itself, at a score scale at most 3e-5 off,
// agrees with all elements of the head; so at most 1 head in 100.
struct demo_verdict {
    double rms, worst; // what all are off by, and the worst element past one unit; parts of the outputs' RMS
    int64_t excused, wrong; // elements
};

// All steps by the scalar reference, into `want`, and what `got` is off by. False, and says why: no memory.
bool demo_judge(const struct demo *d, struct demo_verdict *v);

#endif
