// SPDX-License-Identifier: Apache-2.0
#include "optest_norm.h"

#include <stdio.h>

const struct norm_shape norm_plain = {
    .heads = 2, .head_size = 56, .gamma_size = 56, .group = 24, .gamma = CLINFER_F32, .epsilon = 1e-6f
};

struct clinfer_rms_norm_kv_cache_params *norm_begin(struct ot_call *c, const struct norm_shape *s,
                                                    const struct ot_batch *b, const struct ot_random *r)
{
    struct clinfer_rms_norm_kv_cache_params *p = ot_begin(c, "rms_norm_kv_cache", b, r);
    p->gamma = clinfer_tensor_1d(NULL, s->gamma, s->gamma_size);
    p->kv.num_heads = s->heads;
    p->kv.head_size = s->head_size;
    p->total_seq_len = ot_total(b);
    p->epsilon = s->epsilon;
    p->weight_offset = s->offset;
    p->cast = s->cast;
    p->rows = s->rows;
    ot_cache_type(&p->kv, s->cache, s->group);
    char text[100];
    ot_describe_cache(&p->kv, text, sizeof text);
    (void) snprintf(c->note, sizeof c->note, "n=%lld gamma=%s cast=%d rows=%d, %s", (long long) s->gamma_size,
                    clinfer_dtype_str(s->gamma), (int) s->cast, (int) s->rows, text);
    return p;
}
