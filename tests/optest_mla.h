// SPDX-License-Identifier: Apache-2.0
// Calls of both branches of MLA, for their test files.
#ifndef CLINFER_TESTS_OPTEST_MLA_H_
#define CLINFER_TESTS_OPTEST_MLA_H_

#include "optest.h"

struct mla_shape {
    int64_t heads, nope, rope, latent, value, group;
    int cache;
    clinfer_dtype q, gamma, freqs, weights;
    int64_t rows, columns; // of a block of fp8 weights that shares a scale
    clinfer_mask mask;
    int64_t window;
    clinfer_score_mod score_mod;
};

extern const struct mla_shape mla_plain; // small, everything f32, causal
struct clinfer_mla_decode_branch_params *mla_begin(struct ot_call *c, const struct mla_shape *s,
                                                   const struct ot_batch *b, const struct ot_random *r);

// The same shape by the other branch, in chunks of `chunk` keys.
struct clinfer_mla_prefill_branch_params *mla_prefill_begin(struct ot_call *c, const struct mla_shape *s,
                                                            const struct ot_batch *b,
                                                            const struct ot_random *r, int64_t chunk);
struct ot_call mla_prefill_prepared(const struct mla_shape *s, const struct ot_batch *b, const char *name,
                                    int64_t chunk); // and placed

extern const struct ot_batch mla_mixed; // long, short, empty and new requests
struct ot_call mla_prepared(const struct mla_shape *s, const struct ot_batch *b,
                            const char *name); // and placed

// ot_check, but with fp8 weights each output may agree with the reference at a score scale or an epsilon some
// millionths off: a value of a cache row or of raw that lies next to a tie takes either code, which moves an
// output by more than 2 % of the RMS where its sum is short.
void mla_check(struct ot_call *c, const struct ot_device *d);

static inline struct clinfer_mla_decode_branch_params *mla_params(const struct ot_call *c)
{
    return c->params;
}

static inline struct clinfer_mla_prefill_branch_params *mla_prefill_params(const struct ot_call *c)
{
    return c->params;
}

#endif
