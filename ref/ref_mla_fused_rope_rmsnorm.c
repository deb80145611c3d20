// SPDX-License-Identifier: Apache-2.0
#include "ref.h"

#include <stdlib.h>

static void rotate_q(const struct clinfer_mla_fused_rope_rmsnorm_params *p, int64_t token,
                     const double *table)
{
    const int64_t r = p->q_rope.shape[2];
    double *x = ref_alloc(r);
    for (int64_t h = 0; h < p->q_rope.shape[1]; h++) {
        for (int64_t d = 0; d < r; d++)
            x[d] = ref_get(&p->q_rope, token, h, d);
        ref_rotate(x, table, r, true);
        unsigned char *out = ref_at(&p->q_rope_output, token, h, 0);
        for (int64_t d = 0; d < r; d++)
            ref_store(out, p->q_rope_output.dtype, d, ref_round(x[d], p->q_rope.dtype));
    }
    free(x);
}

static void write_row(const struct clinfer_mla_fused_rope_rmsnorm_params *p, int64_t token,
                      const struct ref_token *at, const double *table)
{
    const struct ref_plane rows = ref_plane_of(&p->kv, p->layer_idx, 0);
    const int64_t c = p->gamma.shape[0], width = p->kv_input.shape[1];
    double *x = ref_alloc(width);
    for (int64_t d = 0; d < width; d++)
        x[d] = ref_get(&p->kv_input, token, d, 0);
    ref_rms_norm_row(x, c, &p->gamma, p->epsilon, 0, CLINFER_CAST_THEN_MULTIPLY, x);
    ref_rotate(x + c, table, width - c, true);
    for (int64_t d = c; d < width; d++)
        x[d] = ref_round(x[d], p->kv_input.dtype);
    ref_write_head(&rows, at->page, at->slot, 0, x, 0, width);
    free(x);
}

void ref_mla_fused_rope_rmsnorm(const struct clinfer_mla_fused_rope_rmsnorm_params *p)
{
    const int64_t total = p->kv_input.shape[0];
    double *table = ref_alloc(p->freqs_cis.shape[1]);
    for (int64_t i = 0; i < total; i++) {
        struct ref_token at;
        if (!ref_token_at(&p->batch, &p->kv, total, i, &at) || !ref_table_row(&p->freqs_cis, at.pos, table))
            continue;
        rotate_q(p, i, table);
        write_row(p, i, &at, table);
    }
    free(table);
}
