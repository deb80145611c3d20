// SPDX-License-Identifier: Apache-2.0
#include "optest.h"

#include <criterion/criterion.h>

static void begin(struct ot_call *c, int cache, int64_t head_size, const struct ot_batch *b,
                  const struct ot_random *r)
{
    struct clinfer_scale_k_params *p = ot_begin(c, "scale_k", b, r);
    p->kv.num_heads = 3;
    p->kv.head_size = head_size;
    p->factors = clinfer_tensor_1d(NULL, CLINFER_F32, p->kv.num_heads);
    p->total_seq_len = ot_total(b);
    p->scale = 0.75f;
    ot_cache_type(&p->kv, cache, 24);
    ot_describe_cache(&p->kv, c->note, sizeof c->note);
}

Test(scale_k, types)
{
    struct ot_device d = ot_open(0);
    for (int cache = 0; cache < OT_CACHES; cache++) {
        struct ot_random r = ot_seeded("scale k", cache);
        for (int v = 0; v < 3; v++) {
            const struct ot_batch b = ot_random_batch(&r, 60, 40);
            struct ot_call c;
            begin(&c, cache, cache % 2 ? 56 : 13, &b, &r);
            ot_place(&c);
            ot_check(&c, &d);
            ot_free(&c);
        }
    }
    ot_close(&d);
}

static void begin_f32(struct ot_call *c, const struct ot_batch *b, const struct ot_random *r)
{
    begin(c, 0, 13, b, r);
}

Test(scale_k, no_tokens)
{
    ot_check_no_tokens(begin_f32);
}
