// SPDX-License-Identifier: Apache-2.0
#include "ref.h"

#include <stdlib.h>
#include <string.h>

// A token's rows of `x` into a plane; where the types are equal, as they are.
static void store_token(const clinfer_tensor *x, int64_t token, const struct ref_plane *plane,
                        const struct ref_token *at)
{
    const int64_t size = plane->head_size;
    double *row = ref_alloc(size);
    for (int64_t h = 0; h < plane->num_heads; h++) {
        if (x->dtype == plane->dtype) {
            memcpy(ref_head_at(plane, at->page, at->slot, h), ref_at(x, token, h, 0),
                   (size_t) size * clinfer_dtype_size(x->dtype));
            continue;
        }
        for (int64_t d = 0; d < size; d++)
            row[d] = ref_get(x, token, h, d);
        ref_write_head(plane, at->page, at->slot, h, row, 0, size);
    }
    free(row);
}

void ref_kv_store(const struct clinfer_kv_store_params *p)
{
    const bool own = p->kv_v.head_size != 0; // V has a view of its own
    const struct ref_plane k = ref_plane_of(&p->kv, p->layer_idx, 0),
                           v = ref_plane_of(own ? &p->kv_v : &p->kv, p->layer_idx, own ? 0 : 1);
    const int64_t total = p->k.shape[0];
    for (int64_t i = 0; i < total; i++) {
        struct ref_token at;
        if (!ref_token_at(&p->batch, &p->kv, total, i, &at))
            continue;
        store_token(&p->k, i, &k, &at);
        if (p->v.rank)
            store_token(&p->v, i, &v, &at);
    }
}
