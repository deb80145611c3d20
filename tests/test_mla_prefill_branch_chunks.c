// SPDX-License-Identifier: Apache-2.0
// What mla_prefill_branch keeps whatever its chunks are.
#include "optest_mla.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

// A prompt that crosses blocks of queries, one in the middle of its context, a short step, an empty request.
static const struct ot_batch prompts = { .requests = 4,
                                         .cached = { 0, 130, 0, 45 },
                                         .fresh = { 90, 37, 0, 1 },
                                         .padding = 2,
                                         .page_size = 8,
                                         .layers = 2,
                                         .layer = 1 };

// Remainders, one key a chunk, chunks past the end: f32, hence 1e-5 of the reference each.
Test(mla_prefill_branch, chunks)
{
    static const int64_t chunks[] = { 1, 5, 31, 32, 33, 64, 166, 167, 5000, 0 };
    struct ot_device d = ot_open(0);
    for (int mask = 0; mask < 5; mask += 2) {
        struct mla_shape s = mla_plain;
        s.mask = (clinfer_mask) mask;
        s.window = 70;
        s.score_mod = mask ? CLINFER_NO_POS : CLINFER_ALIBI;
        struct ot_call c = mla_prefill_prepared(&s, &prompts, "mla chunks", 0);
        for (int i = mask ? 1 : 0; i<OT_COUNT(chunks); i += ot_share()> 1 || mask ? 3 : 1) {
            mla_prefill_params(&c)->chunk_tokens = chunks[i];
            ot_check(&c, &d);
        }
        ot_free(&c);
    }
    ot_close(&d);
}

// Copies a request of one call to request 0 of another.
static void copy_request(const struct ot_call *from, const struct ot_call *to, int request, int64_t first)
{
    const clinfer_kv_cache *kv = &mla_prefill_params(from)->kv;
    const size_t row = (size_t) kv->head_size * clinfer_dtype_size(kv->dtype);
    const clinfer_tensor *q = &mla_prefill_params(from)->q;
    for (int64_t pos = 0; pos < to->batch.cached[0] + to->batch.fresh[0]; pos++)
        memcpy(ot_row(to, OT_INITIAL, 0, pos, 0), ot_row(from, OT_INITIAL, request, pos, 0), row);
    for (int64_t t = 0; t < to->batch.fresh[0]; t++)
        for (int64_t h = 0; h < q->shape[1]; h++)
            memcpy(ot_at(to, "q", OT_INITIAL, t, h, 0), ot_at(from, "q", OT_INITIAL, first + t, h, 0),
                   (size_t) q->shape[2] * clinfer_dtype_size(q->dtype));
}

static void copy_tensor(const struct ot_call *from, const struct ot_call *to, const char *name,
                        const clinfer_tensor *t)
{
    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < (t->rank > 1 ? t->shape[1] : 1); j++)
            for (int64_t k = 0; k < (t->rank > 2 ? t->shape[2] : 1); k++)
                ot_set(to, name, i, j, k, ot_get(from, name, OT_INITIAL, i, j, k));
}

static void copy_weights(const struct ot_call *from, const struct ot_call *to)
{
    const struct clinfer_mla_prefill_branch_params *p = mla_prefill_params(from);
    copy_tensor(from, to, "kv_norm_gamma", &p->kv_norm_gamma);
    copy_tensor(from, to, "w_k", &p->w_k);
    copy_tensor(from, to, "w_uv", &p->w_uv);
}

static void expect_same_rows(const struct ot_call *a, int64_t first, const struct ot_call *b)
{
    const clinfer_tensor *out = &mla_prefill_params(b)->output;
    for (int64_t t = 0; t < b->batch.fresh[0]; t++)
        for (int64_t h = 0; h < out->shape[1]; h++)
            cr_expect(
                !memcmp(ot_at(a, "output", OT_GOT, first + t, h, 0), ot_at(b, "output", OT_GOT, t, h, 0),
                        (size_t) out->shape[2] * clinfer_dtype_size(out->dtype)),
                "%s: token %lld, head %lld depends on the batch", b->note, (long long) t, (long long) h);
}

// At a fixed chunk a request has the same bits alone, on pages of another size, as in a batch.
Test(mla_prefill_branch, alone_or_in_a_batch)
{
    struct ot_device d = ot_open(0);
    struct mla_shape s = mla_plain;
    s.heads = 3;
    s.weights = CLINFER_BF16;
    s.cache = 2;
    struct ot_call all = mla_prefill_prepared(&s, &prompts, "mla prefill batch", 50);
    ot_check(&all, &d);
    int64_t first = 0;
    for (int i = 0; i < prompts.requests; i++) {
        if (prompts.fresh[i]) {
            const struct ot_batch one = ot_one_request(prompts.cached[i], prompts.fresh[i], 11);
            struct ot_call c = mla_prefill_prepared(&s, &one, "mla prefill alone", 50);
            copy_request(&all, &c, i, first);
            copy_weights(&all, &c);
            ot_check(&c, &d);
            expect_same_rows(&all, first, &c);
            ot_free(&c);
        }
        first += prompts.fresh[i];
    }
    ot_free(&all);
    ot_close(&d);
}

// The caller's workspace, full of NaN; 256 bytes past the size that was asked for stand behind it.
struct workspace {
    const struct ot_device *d;
    cl_mem mem;
    size_t size;
};
enum { BEFORE = 192, BEHIND = 256 };

static void use_workspace(struct ot_call *c, void *params)
{
    struct clinfer_mla_prefill_branch_params *p = params;
    const struct workspace *w = c->adjust_priv;
    p->workspace = w->mem;
    p->workspace_offset = BEFORE;
}

static struct workspace new_workspace(const struct ot_device *d, struct ot_call *c)
{
    struct workspace w = { .d = d };
    cl_int err;
    cr_assert_eq(clinfer_mla_prefill_branch_workspace(d->ctx, c->params, &w.size), CLINFER_OK);
    const size_t bytes = BEFORE + w.size + BEHIND;
    unsigned char *nan = malloc(bytes);
    cr_assert(w.size > 0 && nan);
    memset(nan, 0xff, bytes);
    w.mem = clCreateBuffer(d->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes, nan, &err);
    cr_assert_eq(err, CL_SUCCESS);
    free(nan);
    return w;
}

static void check_guards(const struct workspace *w)
{
    const size_t bytes = BEFORE + w->size + BEHIND;
    unsigned char *after = malloc(bytes);
    cr_assert(after);
    cr_assert_eq(clEnqueueReadBuffer(w->d->queue, w->mem, CL_TRUE, 0, bytes, after, 0, NULL, NULL),
                 CL_SUCCESS);
    for (size_t i = 0; i < BEFORE + BEHIND; i++)
        cr_assert(after[i < BEFORE ? i : i + w->size] == 0xff, "a byte outside the workspace was written");
    free(after);
    (void) clReleaseMemObject(w->mem);
}

// Full of NaN or left from other calls, the caller's or the arena: the same bits.
Test(mla_prefill_branch, workspace)
{
    struct ot_device d = ot_open(0);
    const clinfer_tensor *out;
    struct ot_call c = mla_prefill_prepared(&mla_plain, &prompts, "mla prefill workspace", 40);
    struct workspace w = new_workspace(&d, &c);
    ot_check(&c, &d);
    out = &mla_prefill_params(&c)->output;
    double *first = calloc((size_t) (out->shape[0] * out->shape[1] * out->shape[2]), sizeof *first);
    cr_assert(first);
    c.adjust_priv = &w;
    for (int round = 0; round < 4; round++) {
        c.adjust = round % 2 ? use_workspace : NULL;
        if (round)
            ot_check(&c, &d);
        for (int64_t t = 0, i = 0; t < ot_used(&prompts); t++)
            for (int64_t h = 0; h < out->shape[1]; h++)
                for (int64_t v = 0; v < out->shape[2]; v++, i++) {
                    const double x = ot_get(&c, "output", OT_GOT, t, h, v);
                    cr_assert(!round || x == first[i], "round %d, token %lld", round, (long long) t);
                    first[i] = x;
                }
    }
    check_guards(&w);
    free(first);
    ot_free(&c);
    ot_close(&d);
}

static size_t bytes_of(const struct ot_device *d, const struct ot_call *c, int64_t context, int64_t chunk)
{
    struct clinfer_mla_prefill_branch_params p = *mla_prefill_params(c);
    size_t bytes = 0;
    p.batch.lookup_table = clinfer_tensor_2d(NULL, CLINFER_U32, prompts.requests, 1 << 16);
    p.max_context = context;
    p.chunk_tokens = chunk;
    cr_assert_eq(clinfer_mla_prefill_branch_workspace(d->ctx, &p, &bytes), CLINFER_OK);
    return bytes;
}

// Memory goes with the chunk and not with the context; left to the engine, it is bounded.
Test(mla_prefill_branch, workspace_is_bounded)
{
    struct ot_device d = ot_open(0);
    struct mla_shape s = mla_plain;
    s.heads = 128;
    s.nope = s.value = 128;
    s.latent = 512;
    s.rope = 64;
    s.q = s.weights = CLINFER_BF16;
    struct ot_call c = mla_prefill_prepared(&s, &prompts, "mla prefill bound", 0);
    const size_t at = bytes_of(&d, &c, 1000, 256);
    cr_expect_eq(bytes_of(&d, &c, 100000, 256), at);
    cr_expect_eq(bytes_of(&d, &c, 0, 256), at);
    cr_expect_gt(bytes_of(&d, &c, 1000, 512), at);
    const size_t chosen = bytes_of(&d, &c, 100000, 0);
    cr_expect_eq(bytes_of(&d, &c, 500000, 0), chosen);
    cr_expect(chosen < (size_t) 256 << 20, "%zu bytes", chosen);
    ot_free(&c);
    ot_close(&d);
}

// The other branch multiplies in another order: w_uk[h][c][n] is w_k[h * N + n][c].
Test(mla_prefill_branch, agrees_with_mla_decode_branch)
{
    struct ot_device d = ot_open(0);
    const struct mla_shape s = mla_plain;
    struct ot_call a = mla_prefill_prepared(&s, &prompts, "mla both", 40), b;
    struct ot_random r = ot_seeded("mla both", 0);
    mla_begin(&b, &s, &prompts, &r)->scale = mla_prefill_params(&a)->scale;
    ot_place(&b);
    copy_tensor(&a, &b, "kv_norm_gamma", &mla_prefill_params(&a)->kv_norm_gamma);
    copy_tensor(&a, &b, "w_uv", &mla_prefill_params(&a)->w_uv);
    copy_tensor(&a, &b, "freqs_cis", &mla_prefill_params(&a)->freqs_cis);
    for (int64_t h = 0; h < s.heads; h++)
        for (int64_t k = 0; k < s.latent; k++)
            for (int64_t n = 0; n < s.nope; n++)
                ot_set(&b, "w_uk", h, k, n, ot_get(&a, "w_k", OT_INITIAL, h * s.nope + n, k, 0));
    for (int64_t t = 0; t < ot_used(&prompts); t++)
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t i = 0; i < s.nope + s.rope; i++)
                ot_set(&b, "q", t, h, i, ot_get(&a, "q", OT_INITIAL, t, h, i));
    for (int i = 0; i < prompts.requests; i++)
        for (int64_t pos = 0; prompts.fresh[i] && pos < prompts.cached[i] + prompts.fresh[i]; pos++)
            memcpy(ot_row(&b, OT_INITIAL, i, pos, 0), ot_row(&a, OT_INITIAL, i, pos, 0),
                   (size_t) (s.latent + s.rope) * 4);
    ot_run(&a, &d);
    ot_run(&b, &d);
    double worst = 0, largest = 0;
    for (int64_t t = 0; t < ot_used(&prompts); t++)
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t v = 0; v < s.value; v++) {
                const double x = ot_get(&a, "output", OT_GOT, t, h, v);
                worst = fmax(worst, fabs(x - ot_get(&b, "output", OT_GOT, t, h, v)));
                largest = fmax(largest, fabs(x));
            }
    cr_expect(largest > 0.1 && worst < 1e-5 * largest, "%g apart, the largest is %g", worst, largest);
    ot_free(&a);
    ot_free(&b);
    ot_close(&d);
}
