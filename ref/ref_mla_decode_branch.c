// SPDX-License-Identifier: Apache-2.0
#include "ref.h"

#include <math.h>
#include <stdlib.h>

struct sizes {
    int64_t heads, nope, rope, latent, value, width; // H N R C V C + R
};

static struct sizes sizes_of(const struct clinfer_mla_decode_branch_params *p)
{
    struct sizes s = { 0 };
    s.heads = p->q.shape[1];
    s.rope = p->freqs_cis.shape[1];
    s.nope = p->q.shape[2] - s.rope;
    s.latent = p->kv_norm_gamma.shape[0];
    s.value = p->w_uv.shape[1];
    s.width = s.latent + s.rope;
    return s;
}

static bool token_at(const struct clinfer_mla_decode_branch_params *p, int64_t token, struct ref_token *at,
                     double *table)
{
    return ref_token_at(&p->batch, &p->kv, p->q.shape[0], token, at) &&
           ref_table_row(&p->freqs_cis, at->pos, table);
}

static void full_query(const struct clinfer_mla_decode_branch_params *p, int64_t token, int64_t h,
                       const double *table, double *q_full)
{
    const struct sizes s = sizes_of(p);
    double *q = ref_alloc(s.nope + s.rope);
    for (int64_t d = 0; d < s.nope + s.rope; d++)
        q[d] = ref_get(&p->q, token, h, d);
    ref_rotate(q + s.nope, table, s.rope, true);
    ref_project(&p->w_uk, &p->w_uk_scale, p->n_granularity, p->k_granularity, h, 1, q, 0, q_full, 0);
    for (int64_t d = 0; d < s.width; d++)
        q_full[d] = ref_round(d < s.latent ? q_full[d] : q[s.nope + d - s.latent], p->q.dtype);
    free(q);
}

// False for a key that is masked or on a bad page.
static bool sees(const struct clinfer_mla_decode_branch_params *p, const struct ref_rows *keys, int64_t pos,
                 int64_t k)
{
    return keys->there[k] && ref_sees(p->mask, p->local_window_size, pos, k);
}

// Scores into s; returns the largest of the keys seen.
static double score(const struct clinfer_mla_decode_branch_params *p, const struct ref_rows *keys,
                    int64_t pos, int64_t h, const double *q_full, double *s)
{
    const int64_t width = p->kv.head_size;
    double top = -HUGE_VAL;
    for (int64_t k = 0; k < keys->n; k++) {
        if (!sees(p, keys, pos, k))
            continue;
        s[k] = 0;
        for (int64_t d = 0; d < width; d++)
            s[k] += q_full[d] * keys->row[k * width + d];
        s[k] *= p->scale;
        s[k] += ref_score_bias(p->score_mod, p->q.shape[1], h, pos, k);
        top = s[k] > top ? s[k] : top;
    }
    return isfinite(top) ? top : 0;
}

static void attend(const struct clinfer_mla_decode_branch_params *p, const struct ref_rows *keys, int64_t pos,
                   int64_t h, const double *q_full, double *raw)
{
    const int64_t width = p->kv.head_size, latent = p->kv_norm_gamma.shape[0];
    double *s = ref_alloc(keys->n), total = 0;
    const double top = score(p, keys, pos, h, q_full, s);
    for (int64_t c = 0; c < latent; c++)
        raw[c] = 0;
    for (int64_t k = 0; k < keys->n; k++) {
        if (!sees(p, keys, pos, k)) // its row may hold NaN
            continue;
        const double weight = exp(s[k] - top);
        total += weight;
        for (int64_t c = 0; c < latent; c++)
            raw[c] += weight * keys->row[k * width + c];
    }
    for (int64_t c = 0; c < latent && total != 0; c++)
        raw[c] /= total;
    free(s);
}

static void decode_token(const struct clinfer_mla_decode_branch_params *p, int64_t token,
                         const struct ref_token *at, const double *table)
{
    const struct sizes s = sizes_of(p);
    const struct ref_rows keys = ref_read_rows(&p->batch, &p->kv, p->layer_idx, at->request, INT64_MAX);
    double *q_full = ref_alloc(s.width), *raw = ref_alloc(s.latent), *y = ref_alloc(s.value);
    for (int64_t h = 0; h < s.heads; h++) {
        full_query(p, token, h, table, q_full);
        attend(p, &keys, at->pos, h, q_full, raw);
        for (int64_t c = 0; c < s.latent; c++)
            raw[c] = ref_round(raw[c], p->q.dtype);
        ref_project(&p->w_uv, &p->w_uv_scale, p->n_granularity, p->k_granularity, h, 1, raw, 0, y, 0);
        unsigned char *out = ref_at(&p->output, token, h, 0);
        for (int64_t v = 0; v < s.value; v++)
            ref_store(out, p->output.dtype, v, y[v]);
    }
    free(q_full);
    free(raw);
    free(y);
    ref_free_rows(&keys);
}

void ref_mla_decode_branch(const struct clinfer_mla_decode_branch_params *p)
{
    double *table = ref_alloc(p->freqs_cis.shape[1]);
    struct ref_token at;
    for (int64_t i = 0; i < p->q.shape[0]; i++) // every new row before any attention
        if (token_at(p, i, &at, table))
            ref_mla_cache_row(&p->kv, p->layer_idx, &at, &p->kv_norm_gamma, p->epsilon, table);
    for (int64_t i = 0; i < p->q.shape[0]; i++)
        if (token_at(p, i, &at, table))
            decode_token(p, i, &at, table);
    free(table);
}
