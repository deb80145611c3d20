// SPDX-License-Identifier: Apache-2.0
// What mla_decode_branch keeps whatever its schedule is.
#include "optest_mla.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

// Every byte of every memory.
static bool same_results(const struct ot_call *c, unsigned char *const *kept)
{
    for (int i = 0; i < c->num_memories; i++)
        if (memcmp(c->memory[i].got, kept[i], c->memory[i].size))
            return false;
    return true;
}

static void keep_results(const struct ot_call *c, unsigned char **kept)
{
    for (int i = 0; i < c->num_memories; i++) {
        cr_assert((kept[i] = malloc(c->memory[i].size)));
        memcpy(kept[i], c->memory[i].got, c->memory[i].size);
    }
}

static void drop_results(const struct ot_call *c, unsigned char **kept)
{
    for (int i = 0; i < c->num_memories; i++)
        free(kept[i]);
}

// Remainders, fewer keys than splits, more splits than tiles: f32, hence 1e-5 of the reference each.
Test(mla_decode_branch, splits)
{
    static const int splits[] = { 1, 2, 3, 7, 32, 200, 0 };
    struct ot_device d = ot_open(0);
    for (int mask = 0; mask < 5; mask += 2) {
        struct mla_shape s = mla_plain;
        s.mask = (clinfer_mask) mask;
        s.window = 130;
        s.score_mod = mask ? CLINFER_NO_POS : CLINFER_ALIBI;
        struct ot_call c = mla_prepared(&s, &mla_mixed, "mla splits");
        for (int i = 0; i < OT_COUNT(splits); i++) {
            mla_params(&c)->num_splits = splits[i];
            ot_check(&c, &d);
        }
        ot_free(&c);
    }
    ot_close(&d);
}

// Copies a request of one call to request 0 of another.
static void copy_request(const struct ot_call *from, const struct ot_call *to, int request, int64_t first)
{
    const clinfer_kv_cache *kv = &mla_params(from)->kv;
    const size_t row = (size_t) kv->head_size * clinfer_dtype_size(kv->dtype);
    const clinfer_tensor *q = &mla_params(from)->q;
    for (int64_t pos = 0; pos < to->batch.cached[0] + to->batch.fresh[0]; pos++)
        memcpy(ot_row(to, OT_INITIAL, 0, pos, 0), ot_row(from, OT_INITIAL, request, pos, 0), row);
    for (int64_t t = 0; t < to->batch.fresh[0]; t++)
        for (int64_t h = 0; h < q->shape[1]; h++)
            memcpy(ot_at(to, "q", OT_INITIAL, t, h, 0), ot_at(from, "q", OT_INITIAL, first + t, h, 0),
                   (size_t) q->shape[2] * clinfer_dtype_size(q->dtype));
}

static void copy_weights(const struct ot_call *from, const struct ot_call *to)
{
    static const char *const names[] = { "kv_norm_gamma", "w_uk", "w_uv" };
    const clinfer_tensor *t[] = { &mla_params(from)->kv_norm_gamma, &mla_params(from)->w_uk,
                                  &mla_params(from)->w_uv };
    for (int n = 0; n < 3; n++)
        for (int64_t i = 0; i < t[n]->shape[0]; i++)
            for (int64_t j = 0; j < (n ? t[n]->shape[1] : 1); j++)
                for (int64_t k = 0; k < (n ? t[n]->shape[2] : 1); k++)
                    ot_set(to, names[n], i, j, k, ot_get(from, names[n], OT_INITIAL, i, j, k));
}

static void expect_same_rows(const struct ot_call *a, int64_t first, const struct ot_call *b)
{
    const clinfer_tensor *out = &mla_params(b)->output;
    for (int64_t t = 0; t < b->batch.fresh[0]; t++)
        for (int64_t h = 0; h < out->shape[1]; h++)
            cr_expect(
                !memcmp(ot_at(a, "output", OT_GOT, first + t, h, 0), ot_at(b, "output", OT_GOT, t, h, 0),
                        (size_t) out->shape[2] * clinfer_dtype_size(out->dtype)),
                "%s: token %lld, head %lld depends on the batch", b->note, (long long) t, (long long) h);
}

// At a fixed split a request has the same bits alone, on pages of another size, as in a batch.
Test(mla_decode_branch, alone_or_in_a_batch)
{
    struct ot_device d = ot_open(0);
    struct mla_shape s = mla_plain;
    s.heads = 5;
    s.q = s.weights = CLINFER_BF16;
    s.cache = 2;
    struct ot_call all = mla_prepared(&s, &mla_mixed, "mla batch");
    mla_params(&all)->num_splits = 3;
    ot_check(&all, &d);
    int64_t first = 0;
    for (int i = 0; i < mla_mixed.requests; i++) {
        const struct ot_batch one = ot_one_request(mla_mixed.cached[i], mla_mixed.fresh[i], 11);
        struct ot_call c = mla_prepared(&s, &one, "mla alone");
        mla_params(&c)->num_splits = 3;
        if (mla_mixed.fresh[i]) {
            copy_request(&all, &c, i, first);
            copy_weights(&all, &c);
            ot_check(&c, &d);
            expect_same_rows(&all, first, &c);
        }
        first += mla_mixed.fresh[i];
        ot_free(&c);
    }
    ot_free(&all);
    ot_close(&d);
}

// The caller's workspace: `slack` bytes past the size that was asked for stand behind it.
struct workspace {
    const struct ot_device *d;
    cl_mem mem;
    size_t offset, size;
};

static void use_workspace(struct ot_call *c, void *params)
{
    struct clinfer_mla_decode_branch_params *p = params;
    const struct workspace *w = c->adjust_priv;
    p->workspace = w->mem;
    p->workspace_offset = w->offset;
}

static struct workspace new_workspace(const struct ot_device *d, struct ot_call *c)
{
    struct workspace w = { .d = d, .offset = 192 };
    cl_int err;
    cr_assert_eq(clinfer_mla_decode_branch_workspace(d->ctx, c->params, &w.size), CLINFER_OK);
    cr_assert(w.size > 0);
    unsigned char *nan = malloc(w.offset + w.size + 256);
    cr_assert(nan);
    memset(nan, 0xff, w.offset + w.size + 256);
    w.mem =
        clCreateBuffer(d->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, w.offset + w.size + 256, nan, &err);
    cr_assert_eq(err, CL_SUCCESS);
    free(nan);
    return w;
}

static void check_guards(const struct workspace *w)
{
    unsigned char *after = malloc(w->offset + w->size + 256);
    cr_assert(after);
    cr_assert_eq(
        clEnqueueReadBuffer(w->d->queue, w->mem, CL_TRUE, 0, w->offset + w->size + 256, after, 0, NULL, NULL),
        CL_SUCCESS);
    for (size_t i = 0; i < w->offset + 256; i++)
        cr_assert(after[i < w->offset ? i : i + w->size] == 0xff, "a byte outside the workspace was written");
    free(after);
    (void) clReleaseMemObject(w->mem);
}

// Full of NaN or left from other calls, the caller's or the arena: the same bits, twenty times.
Test(mla_decode_branch, workspace)
{
    struct ot_device d = ot_open(0);
    for (int n = 0; n < 3; n++) {
        struct mla_shape s = mla_plain;
        s.heads = n == 2 ? 20 : 3;
        s.nope = n == 1 ? 0 : 6;
        unsigned char *kept[OP_MAX_TENSORS];
        struct ot_call c = mla_prepared(&s, &mla_mixed, "mla workspace");
        struct workspace w = new_workspace(&d, &c);
        ot_check(&c, &d);
        keep_results(&c, kept);
        c.adjust = use_workspace;
        c.adjust_priv = &w;
        for (int i = 0; i < 20; i++) {
            ot_run(&c, &d);
            cr_assert(same_results(&c, kept), "repeat %d differs", i);
        }
        check_guards(&w);
        drop_results(&c, kept);
        ot_free(&c);
    }
    ot_close(&d);
}
