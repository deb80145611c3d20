// SPDX-License-Identifier: Apache-2.0
// What the device wrote against what the reference wrote: finds a wrong kernel, and quarrels about no
// rounding.
#include "self_check_internal.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

struct rows {
    struct ref_token token[CLF_CHECK_TOKENS];
    int64_t num_tokens, layer;
    bool v; // the op writes V too
};

// Whether the op may write a row, counted in rows of the buffer's last axis: any of a tensor that it writes,
// and of the cache those of the new tokens in the layer's planes that it writes.
static bool is_new(const struct rows *r, const struct clf_check *k, const struct clf_check_buffer *b,
                   int64_t row)
{
    if (b->role != CLF_CHECK_CACHE)
        return true;
    const clinfer_kv_cache *kv = (const clinfer_kv_cache *) (k->params + b->cache);
    const int64_t slot = row / kv->num_heads % kv->page_size, above = row / kv->num_heads / kv->page_size,
                  planes = kv->planes ? kv->planes : 2;
    if (above % kv->num_layers != r->layer || (above / kv->num_layers % planes && !r->v))
        return false;
    for (int64_t i = 0; i < r->num_tokens; i++)
        if (r->token[i].slot == slot && r->token[i].page == above / kv->num_layers / planes)
            return true;
    return false;
}

// Two units of the type it is stored in; the inner roundings of a row count by its size, and two units of
// bf16 by the element's.
static double tolerance_at(double want, double rms, clinfer_dtype dtype)
{
    return 2 * ref_ulp(want, dtype) + 0x1p-6 * fabs(want) + 0.02 * rms;
}

static bool same_row(const struct clf_check_buffer *b, int64_t row, bool is_new_row,
                     struct clf_verdict *verdict)
{
    const size_t size = clinfer_dtype_size(b->dtype);
    double sum = 0;
    for (int64_t i = row * b->width; i < (row + 1) * b->width; i++) {
        const double x = ref_load(b->want, b->dtype, i);
        sum += isfinite(x) ? x * x : 0;
    }
    const double rms = sqrt(sum / (double) b->width);
    for (int64_t i = row * b->width; i < (row + 1) * b->width; i++) {
        const double got = ref_load(b->got, b->dtype, i), want = ref_load(b->want, b->dtype, i);
        if (!memcmp(b->got + (size_t) i * size, b->want + (size_t) i * size, size) ||
            (is_new_row && isnan(got) && isnan(want)) ||
            (is_new_row && fabs(got - want) <= tolerance_at(want, rms, b->dtype)))
            continue;
        snprintf(verdict->reason, sizeof verdict->reason,
                 "failed its self-check (%s: element %lld is %g, want %g)", b->name, (long long) i, got,
                 want);
        return false;
    }
    return true;
}

static void find_rows(const struct clf_check *k, struct rows *r)
{
    const clinfer_kv_batch *batch = (const clinfer_kv_batch *) (k->params + k->op->batch);
    r->v = k->op->kv_v != 0;
    r->layer = *(const int64_t *) (k->params + k->op->layer_idx);
    for (r->num_tokens = 0; r->num_tokens < k->tokens; r->num_tokens++)
        ref_token_at(batch, clf_check_kv(k), k->tokens, r->num_tokens, &r->token[r->num_tokens]);
}

bool clf_check_compare(const struct clf_check *k, struct clf_verdict *verdict)
{
    struct rows r = { .num_tokens = 0 };
    if (k->op->kv)
        find_rows(k, &r);
    for (int i = 0; i < k->num_buffers; i++) {
        const struct clf_check_buffer *b = &k->buffer[i];
        for (int64_t row = 0; b->got && row < b->count / b->width; row++)
            if (!same_row(b, row, is_new(&r, k, b, row), verdict))
                return false;
    }
    return true;
}
