// SPDX-License-Identifier: Apache-2.0
// paged_attention calls, for its test files.
#ifndef CLINFER_TESTS_OPTEST_ATTENTION_H_
#define CLINFER_TESTS_OPTEST_ATTENTION_H_

#include "optest.h"

struct attention_shape {
    int64_t heads, kv_heads, head_size, group;
    int cache;
    int64_t v_size, v_group; // of a V in a view of its own; 0: in the second plane
    int v_cache;
    clinfer_dtype q;
    clinfer_mask mask;
    int64_t window;
    clinfer_score_mod score_mod;
    double softcap;
    bool sinks, no_lse;
};

extern const struct attention_shape attention_plain; // small, everything f32, causal
struct clinfer_paged_attention_params *attention_begin(struct ot_call *c, const struct attention_shape *s,
                                                       const struct ot_batch *b, const struct ot_random *r);

extern const struct ot_batch attention_mixed; // long, short, empty and new requests
struct ot_call attention_prepared(const struct attention_shape *s, const struct ot_batch *b,
                                  const char *name); // and placed

static inline struct clinfer_paged_attention_params *attention_params(const struct ot_call *c)
{
    return c->params;
}

// Copies a request of one call to request 0 of another of the same shape; its tokens there begin at `first`.
void attention_copy_request(const struct ot_call *from, const struct ot_call *to, int request, int64_t first);
// Output and lse of tokens [at, at + count) of a, bit for bit those from `b_at` on of b.
void attention_same_rows(const struct ot_call *a, int64_t at, const struct ot_call *b, int64_t b_at,
                         int64_t count);

#endif
