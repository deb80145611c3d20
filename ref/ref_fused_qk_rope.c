// SPDX-License-Identifier: Apache-2.0
#include "ref.h"

#include <stdlib.h>
#include <string.h>

void ref_rotate(double *x, const double *table, int64_t r, bool interleaved)
{
    double *y = ref_alloc(r);
    for (int64_t p = 0; p < r / 2; p++) {
        const int64_t re = interleaved ? 2 * p : p, im = interleaved ? 2 * p + 1 : p + r / 2;
        const double c = table[2 * p], s = table[2 * p + 1];
        y[re] = x[re] * c - x[im] * s;
        y[im] = x[re] * s + x[im] * c;
    }
    memcpy(x, y, (size_t) r * sizeof *x);
    free(y);
}

bool ref_table_row(const clinfer_tensor *freqs_cis, int64_t row, double *table)
{
    const int64_t r = freqs_cis->shape[1];
    if (r && row >= freqs_cis->shape[0])
        return false;
    for (int64_t d = 0; d < r; d++)
        table[d] = ref_get(freqs_cis, row, d, 0);
    return true;
}

int ref_section_of(const struct clinfer_fused_qk_rope_params *p, int64_t column)
{
    for (int s = 0; s < p->num_mrope_sections; s++)
        if (p->mrope_section[s] > (column & ~(int64_t) 1))
            return s;
    return 0;
}

static bool row_by_ids(const struct clinfer_fused_qk_rope_params *p, int64_t token, double *table)
{
    for (int64_t d = 0; d < p->freqs_cis.shape[1]; d++) {
        const int64_t row = ref_u32(&p->position_ids, ref_section_of(p, d), token);
        if (row >= p->freqs_cis.shape[0])
            return false;
        table[d] = ref_get(&p->freqs_cis, row, d, 0);
    }
    return true;
}

static void rotate_q(const struct clinfer_fused_qk_rope_params *p, int64_t token, const double *table)
{
    const int64_t size = p->q_proj.shape[2], r = p->freqs_cis.shape[1];
    const int64_t first = p->interleaved ? size - r : 0;
    const clinfer_dtype dtype = p->q_proj.dtype;
    double *x = ref_alloc(r);
    for (int64_t h = 0; h < p->q_proj.shape[1]; h++) {
        unsigned char *out = ref_at(&p->output, token, h, 0);
        memmove(out, ref_at(&p->q_proj, token, h, 0), (size_t) size * clinfer_dtype_size(dtype));
        for (int64_t d = 0; d < r; d++)
            x[d] = ref_load(out, dtype, first + d);
        ref_rotate(x, table, r, p->interleaved);
        for (int64_t d = 0; d < r; d++)
            ref_store(out, dtype, first + d, x[d]);
    }
    free(x);
}

static void rotate_k(const struct clinfer_fused_qk_rope_params *p, const struct ref_token *at,
                     const double *table)
{
    const struct ref_plane k = ref_plane_of(&p->kv, p->layer_idx, 0);
    const int64_t r = p->freqs_cis.shape[1], first = p->interleaved ? k.head_size - r : 0;
    double *x = ref_alloc(k.head_size);
    for (int64_t h = 0; h < k.num_heads; h++) {
        ref_read_head(&k, at->page, at->slot, h, x);
        ref_rotate(x + first, table, r, p->interleaved);
        ref_write_head(&k, at->page, at->slot, h, x, first, r);
    }
    free(x);
}

void ref_fused_qk_rope(const struct clinfer_fused_qk_rope_params *p)
{
    const int64_t total = p->q_proj.shape[0];
    double *table = ref_alloc(p->freqs_cis.shape[1]);
    for (int64_t i = 0; i < total; i++) {
        struct ref_token at;
        if (!ref_token_at(&p->batch, &p->kv, total, i, &at))
            continue;
        if (!(p->position_ids.rank ? row_by_ids(p, i, table) : ref_table_row(&p->freqs_cis, at.pos, table)))
            continue;
        rotate_q(p, i, table);
        rotate_k(p, &at, table);
    }
    free(table);
}
