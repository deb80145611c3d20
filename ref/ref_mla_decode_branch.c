// SPDX-License-Identifier: Apache-2.0
#include "ref.h"

#include <math.h>
#include <stdlib.h>

// The bound on a group's largest value when q and raw are quantised for fp8 weights.
static const float scale_bound = 1200.0f;

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

static void update_row(const struct clinfer_mla_decode_branch_params *p, const struct ref_token *at,
                       const double *table)
{
    const struct sizes s = sizes_of(p);
    const struct ref_plane rows = ref_plane_of(&p->kv, p->layer_idx, 0);
    double *x = ref_alloc(s.width);
    ref_read_head(&rows, at->page, at->slot, 0, x);
    ref_rms_norm_row(x, s.latent, &p->kv_norm_gamma, p->epsilon, 0, CLINFER_CAST_THEN_MULTIPLY, x);
    ref_rotate(x + s.latent, table, s.rope, true);
    ref_write_head(&rows, at->page, at->slot, 0, x, 0, s.width);
    free(x);
}

// y[n] = sum over k of x[k] w[h][n][k], with x and w as 8-bit codes of scaled groups.
static void project_fp8(const struct clinfer_mla_decode_branch_params *p, const clinfer_tensor *w,
                        const clinfer_tensor *w_scale, int64_t h, const double *x, double *y)
{
    const int64_t rows = w->shape[1], cols = w->shape[2], gn = p->n_granularity, gk = p->k_granularity;
    double *codes = ref_alloc(cols);
    float *values = (float *) ref_alloc(cols);
    for (int64_t k = 0; k < cols; k++)
        values[k] = (float) x[k];
    for (int64_t n = 0; n < rows; n++)
        y[n] = 0;
    for (int64_t k0 = 0; k0 < cols; k0 += gk) {
        const int64_t end = cols - k0 < gk ? cols : k0 + gk;
        const double scale = ref_quantize_group(values + k0, end - k0, scale_bound, codes + k0);
        for (int64_t n = 0; n < rows; n++) {
            const unsigned char *row = ref_at(w, h, n, 0);
            double sum = 0;
            for (int64_t k = k0; k < end; k++)
                sum += codes[k] * ref_load(row, w->dtype, k);
            y[n] += sum * scale * ref_get(w_scale, h, n / gn, k0 / gk);
        }
    }
    free(values);
    free(codes);
}

static void project(const struct clinfer_mla_decode_branch_params *p, const clinfer_tensor *w,
                    const clinfer_tensor *w_scale, int64_t h, const double *x, double *y)
{
    if (w->dtype == CLINFER_F8_E4M3) {
        project_fp8(p, w, w_scale, h, x, y);
        return;
    }
    for (int64_t n = 0; n < w->shape[1]; n++) {
        const unsigned char *row = ref_at(w, h, n, 0);
        y[n] = 0;
        for (int64_t k = 0; k < w->shape[2]; k++)
            y[n] += x[k] * ref_load(row, w->dtype, k);
    }
}

static void full_query(const struct clinfer_mla_decode_branch_params *p, int64_t token, int64_t h,
                       const double *table, double *q_full)
{
    const struct sizes s = sizes_of(p);
    double *q = ref_alloc(s.nope + s.rope);
    for (int64_t d = 0; d < s.nope + s.rope; d++)
        q[d] = ref_get(&p->q, token, h, d);
    ref_rotate(q + s.nope, table, s.rope, true);
    project(p, &p->w_uk, &p->w_uk_scale, h, q, q_full);
    for (int64_t d = 0; d < s.width; d++)
        q_full[d] = ref_round(d < s.latent ? q_full[d] : q[s.nope + d - s.latent], p->q.dtype);
    free(q);
}

// The keys of a request as doubles; seen is 0 for one that is masked or on a bad page.
struct keys {
    int64_t n;
    double *rows, *seen;
};

static struct keys read_keys(const struct clinfer_mla_decode_branch_params *p, const struct ref_token *at)
{
    const struct ref_plane rows = ref_plane_of(&p->kv, p->layer_idx, 0);
    const int64_t b = at->request;
    struct keys keys = { .n = ref_num_keys(&p->batch, &p->kv, b) };
    keys.rows = ref_alloc(keys.n * rows.head_size);
    keys.seen = ref_alloc(keys.n);
    for (int64_t k = 0; k < keys.n; k++) {
        const int64_t page = ref_page(&p->batch, &p->kv, b, k);
        keys.seen[k] = page >= 0 && ref_sees(p->mask, p->local_window_size, at->pos, k);
        if (page >= 0)
            ref_read_head(&rows, page, k % p->kv.page_size, 0, keys.rows + k * rows.head_size);
    }
    return keys;
}

// Scores into s; returns the largest of the keys seen.
static double score(const struct clinfer_mla_decode_branch_params *p, const struct keys *keys, int64_t pos,
                    int64_t h, const double *q_full, double *s)
{
    const int64_t width = p->kv.head_size;
    double top = -HUGE_VAL;
    for (int64_t k = 0; k < keys->n; k++) {
        if (keys->seen[k] == 0)
            continue;
        s[k] = 0;
        for (int64_t d = 0; d < width; d++)
            s[k] += q_full[d] * keys->rows[k * width + d];
        s[k] *= p->scale;
        s[k] += ref_score_bias(p->score_mod, p->q.shape[1], h, pos, k);
        top = s[k] > top ? s[k] : top;
    }
    return isfinite(top) ? top : 0;
}

static void attend(const struct clinfer_mla_decode_branch_params *p, const struct keys *keys, int64_t pos,
                   int64_t h, const double *q_full, double *raw)
{
    const int64_t width = p->kv.head_size, latent = p->kv_norm_gamma.shape[0];
    double *s = ref_alloc(keys->n), total = 0;
    const double top = score(p, keys, pos, h, q_full, s);
    for (int64_t c = 0; c < latent; c++)
        raw[c] = 0;
    for (int64_t k = 0; k < keys->n; k++) {
        if (keys->seen[k] == 0) // its row may hold NaN
            continue;
        const double weight = exp(s[k] - top);
        total += weight;
        for (int64_t c = 0; c < latent; c++)
            raw[c] += weight * keys->rows[k * width + c];
    }
    for (int64_t c = 0; c < latent && total != 0; c++)
        raw[c] /= total;
    free(s);
}

static void decode_token(const struct clinfer_mla_decode_branch_params *p, int64_t token,
                         const struct ref_token *at, const double *table)
{
    const struct sizes s = sizes_of(p);
    struct keys keys = read_keys(p, at);
    double *q_full = ref_alloc(s.width), *raw = ref_alloc(s.latent), *y = ref_alloc(s.value);
    for (int64_t h = 0; h < s.heads; h++) {
        full_query(p, token, h, table, q_full);
        attend(p, &keys, at->pos, h, q_full, raw);
        for (int64_t c = 0; c < s.latent; c++)
            raw[c] = ref_round(raw[c], p->q.dtype);
        project(p, &p->w_uv, &p->w_uv_scale, h, raw, y);
        unsigned char *out = ref_at(&p->output, token, h, 0);
        for (int64_t v = 0; v < s.value; v++)
            ref_store(out, p->output.dtype, v, y[v]);
    }
    free(q_full);
    free(raw);
    free(y);
    free(keys.rows);
    free(keys.seen);
}

void ref_mla_decode_branch(const struct clinfer_mla_decode_branch_params *p)
{
    double *table = ref_alloc(p->freqs_cis.shape[1]);
    struct ref_token at;
    for (int64_t i = 0; i < p->q.shape[0]; i++) // every new row before any attention
        if (token_at(p, i, &at, table))
            update_row(p, &at, table);
    for (int64_t i = 0; i < p->q.shape[0]; i++)
        if (token_at(p, i, &at, table))
            decode_token(p, i, &at, table);
    free(table);
}
