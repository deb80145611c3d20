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
    uint16_t *x, *q, *want, *got;     // bf16: rows and queries of each token, outputs
    cl_mem table_mem, x_mem, q_mem, y_mem;
};

// Points k of kv_store, and q and output of the decode, at the tokens of a step.
void demo_set_step(const struct demo *d, int64_t step, int64_t tokens, cl_mem x, cl_mem q, cl_mem y,
                   struct clinfer_kv_store_params *store, struct clinfer_mla_decode_branch_params *decode);

// All steps by the scalar reference, into `want`.
bool demo_run_reference(const struct demo *d);

// Root mean square of the differences as a part of the outputs'. Single outputs differ by more where a code
// of fp8 falls to the other side of a tie.
double demo_difference(const struct demo *d);

#endif
