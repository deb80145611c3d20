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

// A plan for the call's lengths, with room for `more` keys of each request.
static clinfer_attention_plan *plan_of(const struct ot_device *d, const struct ot_call *c, int64_t more,
                                       int splits)
{
    clinfer_attention_plan *plan = NULL;
    int64_t keys[OT_MAX_REQUESTS];
    char error[512];
    for (int i = 0; i < c->batch.requests; i++)
        keys[i] = c->batch.cached[i] + c->batch.fresh[i] + more;
    const clinfer_status st = clinfer_attention_plan_create(
        &plan, d->ctx,
        clinfer_attention_plan_params(.call = attention_params(c), .new_tokens = c->batch.fresh,
                                      .max_context = keys, .num_splits = splits));
    (void) clinfer_ctx_error(d->ctx, error, sizeof error);
    cr_assert(st == CLINFER_OK && plan, "%s: %s", c->note, error);
    return plan;
}

static void with_plan(struct ot_call *c, const struct ot_device *d, int64_t more, int splits)
{
    clinfer_attention_plan *plan = plan_of(d, c, more, splits);
    attention_params(c)->plan = plan;
    ot_check(c, d);
    clinfer_attention_plan_destroy(&plan);
    cr_assert(!plan);
    clinfer_attention_plan_destroy(&plan);
}

// Right with splits that the plan chooses; at fixed ones the bits are those without a plan.
Test(paged_attention, planned)
{
    static const int splits[] = { 1, 3, 40 };
    struct ot_device d = ot_open(0);
    for (int mask = 0; mask < 5; mask += 2) {
        const struct attention_shape s = bf16_shape((clinfer_mask) mask);
        struct ot_call c = attention_prepared(&s, &attention_mixed, "attention plan"),
                       planned = attention_prepared(&s, &attention_mixed, "attention plan");
        with_plan(&planned, &d, 0, 0);
        for (int i = 0; i < OT_COUNT(splits); i++) {
            attention_params(&c)->num_splits = splits[i];
            ot_check(&c, &d);
            with_plan(&planned, &d, 100, splits[i]);
            attention_same_rows(&c, 0, &planned, 0, ot_used(&c.batch));
        }
        ot_free(&planned);
        ot_free(&c);
    }
    ot_close(&d);
}

// Lengths that grew stay right up to the bound; past it, and with other offsets, it is a fault: nothing is
// written for that request.
Test(paged_attention, plan_and_what_there_is)
{
    struct ot_device d = ot_open(0);
    const struct ot_batch b = {
        .requests = 3, .cached = { 70, 20, 9 }, .fresh = { 1, 1, 6 }, .page_size = 8, .layers = 1
    };
    for (int round = 0; round < 4; round++) {
        struct ot_call c = attention_prepared(&attention_plain, &b, "attention grown");
        clinfer_attention_plan *plan = plan_of(&d, &c, round < 2 ? 0 : 100, 0);
        attention_params(&c)->plan = plan;
        if (round == 1) // one key past the bound: page and slot are there
            ot_set(&c, "cache_lengths", 1, 0, 0, 21);
        if (round == 2) // it shrank
            ot_set(&c, "cache_lengths", 1, 0, 0, 3);
        if (round == 3)
            ot_set(&c, "input_row_offsets", 2, 0, 0, 3);
        ot_run(&c, &d);
        ot_reference(&c);
        if (round == 1) { // what the reference knows nothing of
            cr_expect(c.fault.code == CLINFER_FAULT_LENGTH && c.fault.value == 22 && c.fault.token == 1);
            for (int64_t h = 0; h < attention_plain.heads; h++) {
                cr_expect(ot_get(&c, "output", OT_GOT, 1, h, 0) != ot_get(&c, "output", OT_GOT, 1, h, 0));
                cr_expect(ot_get(&c, "output", OT_GOT, 0, h, 0) == ot_get(&c, "output", OT_GOT, 0, h, 0));
            }
        } else if (round == 3) {
            cr_expect(c.fault.code == CLINFER_FAULT_OFFSETS && c.fault.value == 3);
            for (int64_t t = 1; t < 8; t++)
                cr_expect(ot_get(&c, "output", OT_GOT, t, 0, 0) != ot_get(&c, "output", OT_GOT, t, 0, 0));
        } else {
            cr_expect_eq(c.fault.code, CLINFER_FAULT_NONE);
            ot_compare(&c);
        }
        clinfer_attention_plan_destroy(&plan);
        ot_free(&c);
    }
    ot_close(&d);
}

static void expect_refused(const struct ot_device *d, clinfer_status st, clinfer_status want,
                           const char *words)
{
    char error[512];
    (void) clinfer_ctx_error(d->ctx, error, sizeof error);
    cr_expect(st == want && strstr(error, words), "%d, \"%s\" lacks \"%s\"", (int) st, error, words);
}

// Calls that are not the plan's, and plans that are none.
Test(paged_attention, plans_refused)
{
    struct ot_device d = ot_open(0), other = ot_open(0);
    const struct ot_batch b = ot_one_request(30, 4, 8);
    struct ot_call c = attention_prepared(&attention_plain, &b, "attention refused");
    struct clinfer_paged_attention_params *p = attention_params(&c);
    clinfer_attention_plan *plan = plan_of(&d, &c, 0, 0);
    p->plan = plan;
    p->mask = CLINFER_MASK_NULL;
    expect_refused(&d, ot_try(&c, &d), CLINFER_ERR_ARGUMENT, "mask 0, but the call's is 1");
    p->mask = CLINFER_MASK_CAUSAL;
    p->score_mod = CLINFER_ALIBI;
    expect_refused(&d, ot_try(&c, &d), CLINFER_ERR_ARGUMENT, "score_mod 0, but the call's is 1");
    p->score_mod = CLINFER_NO_POS;
    p->q.shape[0] = p->output.shape[0] = p->lse.shape[0] = 3;
    expect_refused(&d, ot_try(&c, &d), CLINFER_ERR_ARGUMENT, "T 4, but the call's is 3");
    p->q.shape[0] = p->output.shape[0] = p->lse.shape[0] = 4;
    ot_unchanged(&c);
    expect_refused(&other, ot_try(&c, &other), CLINFER_ERR_ARGUMENT, "another context");
    clinfer_attention_plan_destroy(&plan);
    p->plan = NULL;
    struct clinfer_attention_plan_params bad = { .call = p,
                                                 .new_tokens = (int64_t[]){ 5 },
                                                 .max_context = (int64_t[]){ 40 } };
    expect_refused(&d, clinfer_attention_plan_create(&plan, d.ctx, &bad), CLINFER_ERR_ARGUMENT,
                   "new_tokens: entry 0 is 5, want 0 to the 4");
    bad.new_tokens = (int64_t[]){ 4 };
    bad.max_context = (int64_t[]){ 3 };
    expect_refused(&d, clinfer_attention_plan_create(&plan, d.ctx, &bad), CLINFER_ERR_ARGUMENT,
                   "max_context: entry 0 is 3, want 4");
    p->scale = 1;
    p->softcap = -1;
    expect_refused(&d, clinfer_attention_plan_create(&plan, d.ctx, &bad), CLINFER_ERR_ARGUMENT,
                   "softcap is -1");
    cr_expect(!plan);
    ot_free(&c);
    ot_close(&other);
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
