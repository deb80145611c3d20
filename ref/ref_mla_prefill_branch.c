// SPDX-License-Identifier: Apache-2.0
#include "ref.h"

#include <math.h>
#include <stdlib.h>

struct sizes {
    int64_t tokens, heads, nope, rope, latent, value, width; // T H N R C V C + R
};

static struct sizes sizes_of(const struct clinfer_mla_prefill_branch_params *p)
{
    struct sizes s = { 0 };
    s.tokens = p->q.shape[0];
    s.heads = p->q.shape[1];
    s.rope = p->freqs_cis.shape[1];
    s.nope = p->q.shape[2] - s.rope;
    s.latent = p->kv_norm_gamma.shape[0];
    s.value = p->w_uv.shape[1];
    s.width = s.latent + s.rope;
    return s;
}

// K and V of a request, from its rows.
struct keys {
    struct ref_rows rows;
    double *k, *v; // [n][H][N], [n][H][V]
};

static int64_t reach_of(const struct clinfer_mla_prefill_branch_params *p)
{
    return p->max_context ? p->max_context : INT64_MAX;
}

static bool token_at(const struct clinfer_mla_prefill_branch_params *p, int64_t token, struct ref_token *at,
                     double *table)
{
    return ref_token_at(&p->batch, &p->kv, p->q.shape[0], token, at) && at->pos < reach_of(p) &&
           ref_table_row(&p->freqs_cis, at->pos, table);
}

// w_k as one matrix.
static clinfer_tensor one_head(const clinfer_tensor *t)
{
    clinfer_tensor w = { .mem = t->mem, .offset = t->offset, .dtype = t->dtype, .rank = 3 };
    w.shape[0] = 1;
    for (int i = 0; i < 2; i++) {
        w.shape[i + 1] = t->shape[i];
        w.stride[i + 1] = t->stride[i];
    }
    w.stride[0] = w.stride[1]; // of one matrix: any
    return w;
}

static struct keys project_keys(const struct clinfer_mla_prefill_branch_params *p, int64_t request)
{
    const struct sizes s = sizes_of(p);
    const clinfer_tensor w_k = one_head(&p->w_k), w_k_scale = one_head(&p->w_k_scale);
    const int64_t gn = p->n_granularity, gk = p->k_granularity, ks = s.heads * s.nope, vs = s.heads * s.value;
    struct keys keys = { .rows = ref_read_rows(&p->batch, &p->kv, p->layer_idx, request, reach_of(p)) };
    keys.k = ref_alloc(keys.rows.n * ks);
    keys.v = ref_alloc(keys.rows.n * vs);
    ref_project(&w_k, &w_k_scale, gn, gk, 0, keys.rows.n, keys.rows.row, s.width, keys.k, ks);
    for (int64_t h = 0; h < s.heads; h++)
        ref_project(&p->w_uv, &p->w_uv_scale, gn, gk, h, keys.rows.n, keys.rows.row, s.width,
                    keys.v + h * s.value, vs);
    for (int64_t i = 0; i < keys.rows.n * ks; i++)
        keys.k[i] = ref_round(keys.k[i], p->q.dtype);
    for (int64_t i = 0; i < keys.rows.n * vs; i++)
        keys.v[i] = ref_round(keys.v[i], p->q.dtype);
    return keys;
}

static void free_keys(const struct keys *keys)
{
    ref_free_rows(&keys->rows);
    free(keys->k);
    free(keys->v);
}

static bool sees(const struct clinfer_mla_prefill_branch_params *p, const struct keys *keys, int64_t pos,
                 int64_t k)
{
    return keys->rows.there[k] && ref_sees(p->mask, p->local_window_size, pos, k);
}

// Scores into `scores`; returns the largest of the keys seen.
static double score(const struct clinfer_mla_prefill_branch_params *p, const struct keys *keys, int64_t pos,
                    int64_t h, const double *q, double *scores)
{
    const struct sizes s = sizes_of(p);
    double top = -HUGE_VAL;
    for (int64_t k = 0; k < keys->rows.n; k++) {
        const double *nope = keys->k + (k * s.heads + h) * s.nope,
                     *rope = keys->rows.row + k * s.width + s.latent;
        if (!sees(p, keys, pos, k))
            continue;
        scores[k] = 0;
        for (int64_t d = 0; d < s.nope + s.rope; d++)
            scores[k] += q[d] * (d < s.nope ? nope[d] : rope[d - s.nope]);
        scores[k] *= p->scale;
        scores[k] += ref_score_bias(p->score_mod, s.heads, h, pos, k);
        top = scores[k] > top ? scores[k] : top;
    }
    return isfinite(top) ? top : 0;
}

static void attend(const struct clinfer_mla_prefill_branch_params *p, const struct keys *keys, int64_t pos,
                   int64_t h, const double *q, double *out)
{
    const struct sizes s = sizes_of(p);
    double *scores = ref_alloc(keys->rows.n), total = 0;
    const double top = score(p, keys, pos, h, q, scores);
    for (int64_t v = 0; v < s.value; v++)
        out[v] = 0;
    for (int64_t k = 0; k < keys->rows.n; k++) {
        if (!sees(p, keys, pos, k)) // its values may be NaN
            continue;
        const double weight = exp(scores[k] - top);
        total += weight;
        for (int64_t v = 0; v < s.value; v++)
            out[v] += weight * keys->v[(k * s.heads + h) * s.value + v];
    }
    for (int64_t v = 0; v < s.value && total != 0; v++)
        out[v] /= total;
    free(scores);
}

static void prefill_token(const struct clinfer_mla_prefill_branch_params *p, const struct keys *keys,
                          int64_t token, int64_t pos, const double *table)
{
    const struct sizes s = sizes_of(p);
    double *q = ref_alloc(s.nope + s.rope), *out = ref_alloc(s.value);
    for (int64_t h = 0; h < s.heads; h++) {
        for (int64_t d = 0; d < s.nope + s.rope; d++)
            q[d] = ref_get(&p->q, token, h, d);
        ref_rotate(q + s.nope, table, s.rope, true);
        for (int64_t d = s.nope; d < s.nope + s.rope; d++)
            q[d] = ref_round(q[d], p->q.dtype);
        attend(p, keys, pos, h, q, out);
        for (int64_t v = 0; v < s.value; v++)
            ref_store(ref_at(&p->output, token, h, 0), p->output.dtype, v, out[v]);
    }
    free(q);
    free(out);
}

void ref_mla_prefill_branch(const struct clinfer_mla_prefill_branch_params *p)
{
    double *table = ref_alloc(p->freqs_cis.shape[1]);
    struct ref_token at;
    for (int64_t i = 0; i < p->q.shape[0]; i++) // every new row before any attention
        if (token_at(p, i, &at, table))
            ref_mla_cache_row(&p->kv, p->layer_idx, &at, &p->kv_norm_gamma, p->epsilon, table);
    struct keys keys = { 0 };
    int64_t request = -1; // whose keys they are
    for (int64_t i = 0; i < p->q.shape[0]; i++) {
        if (!token_at(p, i, &at, table))
            continue;
        if (at.request != request) {
            free_keys(&keys);
            keys = project_keys(p, request = at.request);
        }
        prefill_token(p, &keys, i, at.pos, table);
    }
    free_keys(&keys);
    free(table);
}
