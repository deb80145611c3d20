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

static void reference_step(const struct demo *d, int64_t step, const clinfer_kv_cache *kv, uint32_t *table)
{
    const int64_t n = step < demo_late(d->steps) ? 1 : REQUESTS, pages = kv->num_pages / REQUESTS;
    uint32_t offsets[REQUESTS + 1] = { 0, 1, 2 },
                                lengths[REQUESTS] = { (uint32_t) step,
                                                      (uint32_t) (step - demo_late(d->steps)) };
    struct clinfer_kv_store_params store = {
        .kv = *kv,
        .batch = { clinfer_tensor_1d((cl_mem) (void *) offsets, CLINFER_U32, n + 1),
                   clinfer_tensor_1d((cl_mem) (void *) lengths, CLINFER_U32, n),
                   clinfer_tensor_2d((cl_mem) (void *) table, CLINFER_U32, n, pages) }
    };
    struct clinfer_mla_decode_branch_params decode = d->like;
    decode.freqs_cis = clinfer_tensor_2d((cl_mem) (void *) d->table, CLINFER_F32, d->steps, d->columns);
    decode.kv = *kv;
    decode.batch = store.batch;
    demo_set_step(d, step, n, (cl_mem) (void *) d->x, (cl_mem) (void *) d->q, (cl_mem) (void *) d->want,
                  &store, &decode);
    ref_kv_store(&store);
    ref_mla_decode_branch(&decode);
}

bool demo_run_reference(const struct demo *d)
{
    const int64_t pages = REQUESTS * (d->steps / PAGE_SIZE + 1);
    uint16_t *cache = calloc((size_t) (pages * PAGE_SIZE * d->row), 2);
    uint32_t *table = calloc((size_t) pages, 4);
    const bool ok = cache && table;
    const clinfer_kv_cache kv = { .mem = (cl_mem) (void *) cache,
                                  .dtype = CLINFER_BF16,
                                  .num_pages = pages,
                                  .planes = 1,
                                  .page_size = PAGE_SIZE,
                                  .num_heads = 1,
                                  .head_size = d->row };
    for (int64_t i = 0; ok && i < pages; i++)
        table[i] = (uint32_t) i;
    for (int64_t step = 0; ok && step < d->steps; step++)
        reference_step(d, step, &kv, table);
    if (!ok)
        cli_error("no memory for a cache of %lld pages", (long long) pages);
    free(cache);
    free(table);
    return ok;
}

double demo_difference(const struct demo *d)
{
    double sum = 0, off = 0;
    for (int64_t i = 0; i < d->tokens * d->width; i++) {
        const double want = ref_load(d->want, CLINFER_BF16, i), got = ref_load(d->got, CLINFER_BF16, i);
        sum += want * want;
        off += (got - want) * (got - want);
    }
    return sqrt(off / sum);
}
