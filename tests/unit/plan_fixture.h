// SPDX-License-Identifier: Apache-2.0
// Calls that are right, to be broken one field at a time. Their buffers are numbers that nothing
// dereferences.
#ifndef PLAN_FIXTURE_H_
#define PLAN_FIXTURE_H_

#include <clinfer/clinfer.h>
#include <stdint.h>

#include "op.h"

#define MEM(n)      ((cl_mem) (uintptr_t) (4096u * (n)))
#define COUNT_OF(a) (sizeof(a) / sizeof((a)[0]))

// T 5, H 4, Q 16, R 8, F 32; cache of 6 pages, 2 planes, 3 layers, S 4, K 2, D 16; B 2, 3 columns.
struct clinfer_fused_qk_rope_params good_rope(void);
// The same cache, gamma of 16.
struct clinfer_rms_norm_kv_cache_params good_norm(void);
// T 5, H 4, C 24, R 8; an MLA cache of 6 pages, 3 layers, S 4, D 32.
struct clinfer_mla_fused_rope_rmsnorm_params good_store(void);
// The same cache, N 12, V 10; plain bf16 weights.
struct clinfer_mla_decode_branch_params good_decode(void);
// The same with fp8 weights and scales of blocks of 8 rows and 5 columns.
struct clinfer_mla_decode_branch_params good_decode_fp8(void);
// The same by the other branch, in chunks of 5 keys of the 12 that the table reaches.
struct clinfer_mla_prefill_branch_params good_prefill(void);
struct clinfer_mla_prefill_branch_params good_prefill_fp8(void);
// The cache of good_rope, k and v of it.
struct clinfer_kv_store_params good_kv_store(void);
// No cache: T 5; n 12; n 16 with a residual; H 4, V 10.
struct clinfer_silu_mul_params good_silu_mul(void);
struct clinfer_rms_norm_params good_rms_norm(void);
struct clinfer_merge_states_params good_merge_states(void);
// T 5, N 24, Kd 40, bf16 with a bias; with fp8 weights in blocks of 8 rows and 16 columns.
struct clinfer_matmul_params good_matmul(void);
struct clinfer_matmul_params good_matmul_fp8(void);
// The cache of good_rope, T 5, H 4; with lse, without sinks.
struct clinfer_paged_attention_params good_attention(void);

// What plans are made for: a CPU with everything.
extern const struct clf_caps fixture_caps;

// One field: its place in the params, its size, and what to put there (the low bytes).
struct setting {
    size_t at, size;
    int64_t value;
};
#define SET(params, field, v)                                                                                \
    {                                                                                                        \
        offsetof(struct params, field), sizeof(((struct params *) 0)->field), (int64_t) (v)                  \
    }

enum { MAX_SETTINGS = 5, MAX_WORDS = 3 };
struct breakage {
    struct setting set[MAX_SETTINGS]; // of size 0: none
    clinfer_status status;
    const char *says[MAX_WORDS]; // what the message must contain
};

void apply(void *params, const struct setting *set, int count);

// Applies each row to a copy of the good params and asserts status, message and that nothing is to be
// launched. OK rows want success. `params` is `size` bytes.
void expect_breakages(const struct clf_op *op, const void *params, size_t size, const struct breakage *rows,
                      size_t count);

#endif
