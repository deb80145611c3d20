// SPDX-License-Identifier: Apache-2.0
// What paged_attention keeps whatever its schedule is.
#include "optest_attention.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

// Remainders, fewer keys than splits, more splits than tiles and pages: f32, hence 1e-5 of the reference
// each.
Test(paged_attention, splits)
{
    static const int splits[] = { 1, 2, 3, 7, 32, 200, 0 };
    struct ot_device d = ot_open(0);
    for (int mask = 0; mask < 5; mask += 2) {
        struct attention_shape s = attention_plain;
        s.mask = (clinfer_mask) mask;
        s.window = 130;
        s.sinks = mask != 0;
        struct ot_call c = attention_prepared(&s, &attention_mixed, "attention splits");
        for (int i = 0; i < OT_COUNT(splits); i++) {
            attention_params(&c)->num_splits = splits[i];
            ot_check(&c, &d);
        }
        ot_free(&c);
    }
    ot_close(&d);
}

static struct attention_shape bf16_shape(clinfer_mask mask)
{
    struct attention_shape s = attention_plain;
    s.heads = 10;
    s.q = CLINFER_BF16;
    s.cache = 2;
    s.mask = mask;
    s.window = 90;
    return s;
}

// At a fixed split a request has the same bits alone, on pages of another size, as in a batch, where the
// tiles of tokens are others.
Test(paged_attention, alone_or_in_a_batch)
{
    struct ot_device d = ot_open(0);
    for (int mask = 0; mask < 5; mask += 4) {
        const struct attention_shape s = bf16_shape((clinfer_mask) mask);
        struct ot_call all = attention_prepared(&s, &attention_mixed, "attention batch");
        attention_params(&all)->num_splits = 3;
        ot_check(&all, &d);
        int64_t first = 0;
        for (int i = 0; i < attention_mixed.requests; i++) {
            const int64_t fresh = attention_mixed.fresh[i];
            const struct ot_batch one = ot_one_request(attention_mixed.cached[i], fresh, 11);
            struct ot_call c = attention_prepared(&s, &one, "attention alone");
            attention_params(&c)->num_splits = 3;
            if (fresh) {
                attention_copy_request(&all, &c, i, first);
                ot_check(&c, &d);
                attention_same_rows(&all, first, &c, 0, fresh);
            }
            first += fresh;
            ot_free(&c);
        }
        ot_free(&all);
    }
    ot_close(&d);
}

// A prompt in one step, and its last tokens one at a time after the others are cached: the same bits without
// splits.
Test(paged_attention, whole_or_in_steps)
{
    enum { KEYS = 150, STEPS = 3 };
    struct ot_device d = ot_open(0);
    const struct attention_shape s = bf16_shape(CLINFER_MASK_CAUSAL);
    const struct ot_batch whole = ot_one_request(0, KEYS, 16);
    struct ot_call all = attention_prepared(&s, &whole, "attention whole");
    attention_params(&all)->num_splits = 1;
    ot_check(&all, &d);
    for (int64_t i = 0; i < STEPS; i++) {
        const struct ot_batch one = ot_one_request(KEYS - STEPS + i, 1, 16);
        struct ot_call c = attention_prepared(&s, &one, "attention step");
        attention_params(&c)->num_splits = 1;
        attention_copy_request(&all, &c, 0, KEYS - STEPS + i);
        ot_check(&c, &d);
        attention_same_rows(&all, KEYS - STEPS + i, &c, 0, 1);
        ot_free(&c);
    }
    ot_free(&all);
    ot_close(&d);
}

// The caller's workspace, of exactly the size that was asked for.
struct workspace {
    cl_mem mem;
    size_t offset, size;
};
enum { SLACK = 256 };

static void use_workspace(struct ot_call *c, void *params)
{
    struct clinfer_paged_attention_params *p = params;
    const struct workspace *w = c->adjust_priv;
    p->workspace = w->mem;
    p->workspace_offset = w->offset;
}

static struct workspace new_workspace(const struct ot_device *d, const struct ot_call *c)
{
    struct workspace w = { .offset = 192 };
    cl_int err;
    cr_assert_eq(clinfer_paged_attention_workspace(d->ctx, c->params, &w.size), CLINFER_OK);
    cr_assert(w.size > 0);
    unsigned char *nan = malloc(w.offset + w.size + SLACK);
    cr_assert(nan);
    memset(nan, 0xff, w.offset + w.size + SLACK);
    w.mem =
        clCreateBuffer(d->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, w.offset + w.size + SLACK, nan, &err);
    cr_assert_eq(err, CL_SUCCESS);
    free(nan);
    return w;
}

static void check_guards(const struct ot_device *d, const struct workspace *w)
{
    unsigned char *after = malloc(w->offset + w->size + SLACK);
    cr_assert(after);
    cr_assert_eq(
        clEnqueueReadBuffer(d->queue, w->mem, CL_TRUE, 0, w->offset + w->size + SLACK, after, 0, NULL, NULL),
        CL_SUCCESS);
    for (size_t i = 0; i < w->offset + SLACK; i++)
        cr_assert(after[i < w->offset ? i : i + w->size] == 0xff, "a byte outside the workspace was written");
    free(after);
    (void) clReleaseMemObject(w->mem);
}

// Full of NaN or left from other calls, the caller's or the arena: the same bits, twenty times.
Test(paged_attention, workspace)
{
    struct ot_device d = ot_open(0);
    for (int splits = 0; splits < 6; splits += 5) {
        struct ot_call c = attention_prepared(&attention_plain, &attention_mixed, "attention workspace");
        attention_params(&c)->num_splits = splits;
        struct workspace w = new_workspace(&d, &c);
        ot_check(&c, &d);
        struct ot_call kept = attention_prepared(&attention_plain, &attention_mixed, "attention workspace");
        attention_params(&kept)->num_splits = splits;
        kept.adjust = use_workspace;
        kept.adjust_priv = &w;
        for (int i = 0; i < 20; i++) {
            ot_run(&kept, &d);
            attention_same_rows(&c, 0, &kept, 0, ot_used(&c.batch));
        }
        check_guards(&d, &w);
        ot_free(&kept);
        ot_free(&c);
    }
    ot_close(&d);
}
