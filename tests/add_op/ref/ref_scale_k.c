// SPDX-License-Identifier: Apache-2.0
#include "ref.h"

#include <stdlib.h>

void ref_scale_k(const struct clinfer_scale_k_params *p)
{
    const struct ref_plane k = ref_plane_of(&p->kv, p->layer_idx, 0);
    double *row = ref_alloc(k.head_size);
    for (int64_t i = 0; i < p->total_seq_len; i++) {
        struct ref_token at;
        if (!ref_token_at(&p->batch, &p->kv, p->total_seq_len, i, &at))
            continue;
        for (int64_t h = 0; h < k.num_heads; h++) {
            const double factor = ref_round(ref_get(&p->factors, h, 0, 0) * p->scale, CLINFER_F32);
            ref_read_head(&k, at.page, at.slot, h, row);
            for (int64_t d = 0; d < k.head_size; d++)
                row[d] *= factor;
            ref_write_head(&k, at.page, at.slot, h, row, 0, k.head_size);
        }
    }
    free(row);
}
