// SPDX-License-Identifier: Apache-2.0
// rms_norm_kv_cache calls, for its test files.
#ifndef CLINFER_TESTS_OPTEST_NORM_H_
#define CLINFER_TESTS_OPTEST_NORM_H_

#include "optest.h"

struct norm_shape {
    int64_t heads, head_size, gamma_size, group;
    int cache;
    clinfer_dtype gamma;
    clinfer_norm_cast cast;
    clinfer_norm_rows rows;
    float epsilon, offset;
};

extern const struct norm_shape norm_plain; // f32, per head
struct clinfer_rms_norm_kv_cache_params *norm_begin(struct ot_call *c, const struct norm_shape *s,
                                                    const struct ot_batch *b, const struct ot_random *r);

#endif
