// SPDX-License-Identifier: Apache-2.0
#include "ref.h"

#include <math.h>
#include <stdlib.h>

// K and V of one KV head of one request as doubles; page is 0 for a key on a bad page.
struct keys {
    int64_t request, n;
    double *k, *v, *page;
};

static void free_keys(struct keys *keys)
{
    free(keys->k);
    free(keys->v);
    free(keys->page);
}

static void read_keys(const struct clinfer_paged_attention_params *p, int64_t request, int64_t head,
                      struct keys *keys)
{
    const bool own = p->kv_v.head_size != 0; // V has a view of its own
    const struct ref_plane k = ref_plane_of(&p->kv, p->layer_idx, 0),
                           v = ref_plane_of(own ? &p->kv_v : &p->kv, p->layer_idx, own ? 0 : 1);
    free_keys(keys);
    keys->request = request;
    keys->n = ref_num_keys(&p->batch, &p->kv, request);
    keys->k = ref_alloc(keys->n * k.head_size);
    keys->v = ref_alloc(keys->n * v.head_size);
    keys->page = ref_alloc(keys->n);
    for (int64_t i = 0; i < keys->n; i++) {
        const int64_t page = ref_page(&p->batch, &p->kv, request, i), slot = i % k.page_size;
        keys->page[i] = page >= 0;
        if (page < 0)
            continue;
        ref_read_head(&k, page, slot, head, keys->k + i * k.head_size);
        ref_read_head(&v, page, slot, head, keys->v + i * v.head_size);
    }
}

static bool sees(const struct clinfer_paged_attention_params *p, const struct keys *keys, int64_t query,
                 int64_t key)
{
    return keys->page[key] != 0 && ref_sees(p->mask, p->local_window_size, query, key);
}

// Scores into s; returns the largest of the keys seen and the sink.
static double score(const struct clinfer_paged_attention_params *p, const struct keys *keys, int64_t pos,
                    int64_t token, int64_t h, double sink, double *s)
{
    const int64_t size = p->kv.head_size, heads = p->q.shape[1];
    double top = sink;
    for (int64_t i = 0; i < keys->n; i++) {
        if (!sees(p, keys, pos, i))
            continue;
        s[i] = 0;
        for (int64_t d = 0; d < size; d++)
            s[i] += ref_get(&p->q, token, h, d) * keys->k[i * size + d];
        s[i] *= p->scale;
        if (p->softcap > 0)
            s[i] = p->softcap * tanh(s[i] / p->softcap);
        s[i] += ref_score_bias(p->score_mod, heads, h, pos, i);
        top = s[i] > top ? s[i] : top;
    }
    return isfinite(top) ? top : 0;
}

static void attend(const struct clinfer_paged_attention_params *p, const struct keys *keys, int64_t pos,
                   int64_t token, int64_t h)
{
    const int64_t size = p->output.shape[2];
    const double sink = p->sinks.rank ? ref_get(&p->sinks, h, 0, 0) : -HUGE_VAL;
    double *s = ref_alloc(keys->n), *sum = ref_alloc(size);
    const double top = score(p, keys, pos, token, h, sink, s);
    double z = exp(sink - top);
    for (int64_t i = 0; i < keys->n; i++) {
        if (!sees(p, keys, pos, i)) // its row may hold NaN
            continue;
        const double weight = exp(s[i] - top);
        z += weight;
        for (int64_t d = 0; d < size; d++)
            sum[d] += weight * keys->v[i * size + d];
    }
    for (int64_t d = 0; d < size; d++)
        ref_store(ref_at(&p->output, token, h, d), p->output.dtype, 0, z == 0 ? 0 : sum[d] / z);
    if (p->lse.rank)
        ref_store(ref_at(&p->lse, token, h, 0), p->lse.dtype, 0, top + log(z));
    free(s);
    free(sum);
}

void ref_paged_attention(const struct clinfer_paged_attention_params *p)
{
    const int64_t heads = p->q.shape[1], group = heads / p->kv.num_heads;
    for (int64_t k = 0; k < p->kv.num_heads; k++) {
        struct keys keys = { .request = -1 };
        for (int64_t i = 0; i < p->q.shape[0]; i++) {
            struct ref_token at;
            if (!ref_token_at(&p->batch, &p->kv, p->q.shape[0], i, &at))
                continue;
            if (at.request != keys.request)
                read_keys(p, at.request, k, &keys);
            for (int64_t h = k * group; h < (k + 1) * group; h++)
                attend(p, &keys, at.pos, i, h);
        }
        free_keys(&keys);
    }
}
