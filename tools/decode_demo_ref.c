// SPDX-License-Identifier: Apache-2.0
// The steps of decode_demo by the scalar reference, on a cache of its own.
#include "decode_demo.h"

#include <math.h>
#include <stdlib.h>

#include "../ref/ref.h"
#include "cli.h"

// Tokens of a step are neighbours in every tensor: token 0 of it is 2 * step.
static clinfer_tensor part(clinfer_tensor like, cl_mem mem, int64_t tokens, int64_t first, int64_t elements)
{
    like.mem = mem;
    like.offset = (size_t) (first * elements) * 2;
    like.shape[0] = tokens;
    return like;
}

void demo_set_step(const struct demo *d, int64_t step, int64_t tokens, cl_mem x, cl_mem q, cl_mem y,
                   struct clinfer_kv_store_params *store, struct clinfer_mla_decode_branch_params *decode)
{
    const int64_t first = REQUESTS * step;
    store->k = part(clinfer_tensor_3d(NULL, CLINFER_BF16, 0, 1, d->row), x, tokens, first, d->row);
    decode->q = part(d->like.q, q, tokens, first, d->query);
    decode->output = part(d->like.output, y, tokens, first, d->width);
}

// The cache of the reference; each sequence has its pages in order. Rows never change once their step is
// done, so a step can be done again.
struct reference {
    const struct demo *d;
    clinfer_kv_cache kv;
    uint32_t *table;
};

// The outputs go to `y`, [tokens, width]; the score scale is the case's times `factor`.
static void reference_step(const struct reference *r, int64_t step, double factor, uint16_t *y)
{
    const struct demo *d = r->d;
    const int64_t n = step < demo_late(d->steps) ? 1 : REQUESTS, pages = r->kv.num_pages / REQUESTS;
    uint32_t offsets[REQUESTS + 1] = { 0, 1, 2 },
                                lengths[REQUESTS] = { (uint32_t) step,
                                                      (uint32_t) (step - demo_late(d->steps)) };
    struct clinfer_kv_store_params store = {
        .kv = r->kv,
        .batch = { clinfer_tensor_1d((cl_mem) (void *) offsets, CLINFER_U32, n + 1),
                   clinfer_tensor_1d((cl_mem) (void *) lengths, CLINFER_U32, n),
                   clinfer_tensor_2d((cl_mem) (void *) r->table, CLINFER_U32, n, pages) }
    };
    struct clinfer_mla_decode_branch_params decode = d->like;
    decode.freqs_cis = clinfer_tensor_2d((cl_mem) (void *) d->table, CLINFER_F32, d->steps, d->columns);
    decode.kv = r->kv;
    decode.batch = store.batch;
    decode.scale = (float) (decode.scale * factor);
    demo_set_step(d, step, n, (cl_mem) (void *) d->x, (cl_mem) (void *) d->q, (cl_mem) (void *) y, &store,
                  &decode);
    ref_kv_store(&store);
    ref_mla_decode_branch(&decode);
}

// What element i is off by, as a part of the outputs' RMS, past one unit in the last place.
static double past_unit(const struct demo *d, const uint16_t *want, double rms, int64_t i)
{
    const double x = ref_load(want, CLINFER_BF16, i);
    return (fabs(ref_load(d->got, CLINFER_BF16, i) - x) - ref_ulp(x, CLINFER_BF16)) / rms;
}

// Of the n elements from `first` on, those past the limit; *worst becomes the largest seen.
static int64_t count_wrong(const struct demo *d, const uint16_t *want, double rms, int64_t first, int64_t n,
                           double *worst)
{
    int64_t wrong = 0;
    for (int64_t i = first; i < first + n; i++) {
        const double off = past_unit(d, want, rms, i);
        wrong += !(off <= DEMO_ELEMENT_LIMIT); // NaN too
        *worst = fmax(*worst, off);
    }
    return wrong;
}

// Does one of these score scales make the reference agree with all outputs of a head?
static bool is_tie(const struct reference *r, double rms, int64_t first, int64_t n, double *worst)
{
    static const double steps[] = { 3e-6, -3e-6, 3e-5, -3e-5 };
    for (size_t i = 0; i < sizeof steps / sizeof steps[0]; i++) {
        double off = 0;
        reference_step(r, first / r->d->width / REQUESTS, 1 + steps[i], r->d->again);
        if (!count_wrong(r->d, r->d->again, rms, first, n, &off)) {
            *worst = fmax(*worst, off);
            return true;
        }
    }
    return false;
}

static void judge_elements(const struct reference *r, double rms, struct demo_verdict *v)
{
    const struct demo *d = r->d;
    const int64_t n = d->width / d->heads, heads = d->tokens * d->heads, most = 1 + heads / 100;
    for (int64_t h = 0, asked = 0; h < heads; h++) {
        double worst = 0;
        const int64_t wrong = count_wrong(d, d->want, rms, h * n, n, &worst);
        if (wrong && asked++ < most && is_tie(r, rms, h * n, n, &v->worst)) {
            v->excused += wrong;
        } else {
            v->wrong += wrong;
            v->worst = fmax(v->worst, worst);
        }
    }
}

static void judge(const struct reference *r, struct demo_verdict *v)
{
    const int64_t n = r->d->tokens * r->d->width;
    double sum = 0, off = 0;
    for (int64_t i = 0; i < n; i++) {
        const double want = ref_load(r->d->want, CLINFER_BF16, i), got = ref_load(r->d->got, CLINFER_BF16, i);
        sum += want * want;
        off += (got - want) * (got - want);
    }
    *v = (struct demo_verdict){ .rms = sqrt(off / sum) };
    judge_elements(r, sqrt(sum / (double) n), v);
}

bool demo_judge(const struct demo *d, struct demo_verdict *v)
{
    const int64_t pages = REQUESTS * (d->steps / PAGE_SIZE + 1);
    uint16_t *cache = calloc((size_t) (pages * PAGE_SIZE * d->row), 2);
    const struct reference r = { .d = d,
                                 .kv = { .mem = (cl_mem) (void *) cache,
                                         .dtype = CLINFER_BF16,
                                         .num_pages = pages,
                                         .planes = 1,
                                         .page_size = PAGE_SIZE,
                                         .num_heads = 1,
                                         .head_size = d->row },
                                 .table = calloc((size_t) pages, 4) };
    const bool ok = cache && r.table;
    for (int64_t i = 0; ok && i < pages; i++)
        r.table[i] = (uint32_t) i;
    for (int64_t step = 0; ok && step < d->steps; step++)
        reference_step(&r, step, 1, d->want);
    if (ok)
        judge(&r, v);
    else
        cli_error("no memory for a cache of %lld pages", (long long) pages);
    free(cache);
    free(r.table);
    return ok;
}
