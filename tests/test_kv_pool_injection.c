// SPDX-License-Identifier: Apache-2.0
// Each OpenCL call of a pool fails once: the call that it is in ends with an error and its text, or right;
// the pool is as it was, the same call then works, and nothing is left over. And a step in steady state makes
// nothing.
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "calls_fixture.h"
#include "layer_use.h"
#include "pool_rig.h"

TestSuite(kv_pool_injection, .timeout = 120);

enum { CODE = CL_OUT_OF_RESOURCES };

static const struct layer_control *layer;
static const char *const functions[] = {
#define X(name) #name,
    LAYER_INT_FUNCTIONS(X) LAYER_OBJECT_FUNCTIONS(X)
#undef X
};

struct world {
    clinfer_ctx *ctx;
    clinfer_kv_pool *pool;
    clinfer_kv_seq seq[2];
    cl_event gate;
    char where[128];
};

static void expect_sound(struct world *w)
{
    char error[256];
    cr_assert(clinfer_kv_pool_check(w->pool, error, sizeof error), "%s: %s", w->where, error);
}

static bool same_books(const struct clinfer_kv_pool_info *a, const struct clinfer_kv_pool_info *b)
{
    return a->free_pages == b->free_pages && a->num_seqs == b->num_seqs && a->num_batches == b->num_batches;
}

// The call, again if it failed; what failed has changed nothing and has said why.
#define TRY(w, call)                                                                                         \
    do {                                                                                                     \
        struct clinfer_kv_pool_info before_ = { 0 }, after_ = { 0 };                                         \
        char error_[512];                                                                                    \
        for (int tries_ = 0;; tries_++) {                                                                    \
            if ((w)->pool)                                                                                   \
                clinfer_kv_pool_info((w)->pool, &before_);                                                   \
            layer->enable(1);                                                                                \
            const clinfer_status st_ = (call);                                                               \
            layer->enable(0);                                                                                \
            if (!st_)                                                                                        \
                break;                                                                                       \
            clinfer_ctx_error((w)->ctx, error_, sizeof error_);                                              \
            cr_assert(tries_ == 0 && (int) st_ == CODE && strstr(error_, "CL_OUT_OF_RESOURCES"),             \
                      "%s, %s: %s", (w)->where, #call, error_);                                              \
            if ((w)->pool) {                                                                                 \
                clinfer_kv_pool_info((w)->pool, &after_);                                                    \
                cr_assert(same_books(&before_, &after_), "%s, %s: changed the pool", (w)->where, #call);     \
                expect_sound(w);                                                                             \
            }                                                                                                \
        }                                                                                                    \
    } while (0)

static void step(struct world *w, int64_t tokens, bool commit, const cl_event *wait)
{
    const int64_t fresh[2] = { tokens, 0 };
    clinfer_kv_pool_batch batch = 0;
    TRY(w, clinfer_kv_batch_create(
               w->pool, clinfer_kv_batch_params(.num_seqs = 2, .seqs = w->seq, .new_tokens = fresh), &batch));
    if (commit)
        TRY(w, clinfer_kv_batch_commit(w->pool, batch, wait != NULL, wait));
    else
        TRY(w, clinfer_kv_batch_drop(w->pool, batch, wait != NULL, wait));
}

// Two steps behind a gate, one that is dropped, and one with a table that outgrows its buffer.
static void attempt(const char *function, long n)
{
    enum { LONG = 1100 };
    struct world w = { 0 };
    struct clinfer_kv_pool_params params = pool_params("mla_decode_branch", LONG);
    cl_int err;
    int64_t length;
    params.page_size = 1;
    snprintf(w.where, sizeof w.where, "%s, call %ld", function ? function : "nothing", n);
    w.ctx = open_ctx(NULL);
    w.gate = clCreateUserEvent(clinfer_ctx_cl_context(w.ctx), &err);
    const long before = layer->live();
    layer->arm(function, n, CODE);
    TRY(&w, clinfer_kv_pool_create(&w.pool, w.ctx, &params));
    for (int i = 0; i < 2; i++)
        TRY(&w, clinfer_kv_seq_create(w.pool, &w.seq[i]));
    step(&w, 3, true, &w.gate);
    step(&w, 2, true, NULL);
    step(&w, 4, false, NULL);
    cr_assert_eq(clSetUserEventStatus(w.gate, CL_COMPLETE), CL_SUCCESS);
    cr_assert_eq(clFinish(clinfer_ctx_queue(w.ctx)), CL_SUCCESS);
    step(&w, LONG - 5, true, NULL);
    TRY(&w, clinfer_kv_seq_length(w.pool, w.seq[0], &length));
    cr_assert_eq(length, LONG, "%s: %d tokens", w.where, (int) length);
    expect_sound(&w);
    cr_assert_eq(clFinish(clinfer_ctx_queue(w.ctx)), CL_SUCCESS);
    layer->enable(1);
    clinfer_kv_pool_destroy(&w.pool);
    layer->enable(0);
    if (!function || strncmp(function, "clRelease", 9)) // a release that fails has released nothing
        cr_assert_eq(layer->live(), before, "%s: %ld objects are left", w.where, layer->live() - before);
    clReleaseEvent(w.gate);
    clinfer_ctx_destroy(&w.ctx);
}

Test(kv_pool_injection, each_call)
{
    long total = 0;
    LAYER_OR_SKIP(layer);
    for (size_t f = 0; f < sizeof functions / sizeof functions[0]; f++) {
        attempt(NULL, 0);
        const long calls = layer->calls(functions[f]);
        total += calls;
        for (long n = 1; n <= calls; n++) {
            attempt(functions[f], n);
            cr_assert(layer->fired(), "%s, call %ld of %ld: was never made", functions[f], n, calls);
        }
    }
    cr_assert_gt(total, 30, "the pool made %ld calls", total);
}

// The second of two buffers fails: the first goes too.
Test(kv_pool_injection, buffer_of_a_layer)
{
    struct world w = { 0 };
    struct clinfer_kv_pool_params params = pool_params("mla_decode_branch", 20);
    char error[512];
    LAYER_OR_SKIP(layer);
    layer->lie("small_alloc");
    w.ctx = open_ctx(NULL);
    layer->lie(NULL);
    const long before = layer->live();
    layer->arm("clCreateBuffer", 2, CODE);
    layer->enable(1);
    cr_assert_eq((int) clinfer_kv_pool_create(&w.pool, w.ctx, &params), CODE);
    layer->enable(0);
    clinfer_ctx_error(w.ctx, error, sizeof error);
    cr_assert(strstr(error, "buffer 2 of 2, of 15360 bytes: CL_OUT_OF_RESOURCES"), "%s", error);
    cr_assert(!w.pool && layer->live() == before);
    clinfer_ctx_destroy(&w.ctx);
}

Test(kv_pool_injection, warm_steps_create_nothing)
{
    struct world w = { 0 };
    struct clinfer_kv_pool_params params = pool_params("mla_decode_branch", 40);
    LAYER_OR_SKIP(layer);
    w.ctx = open_ctx(NULL);
    layer->arm(NULL, 0, 0);
    TRY(&w, clinfer_kv_pool_create(&w.pool, w.ctx, &params));
    for (int i = 0; i < 2; i++)
        TRY(&w, clinfer_kv_seq_create(w.pool, &w.seq[i]));
    for (int i = 0; i < 60; i++) {
        step(&w, 2, true, NULL);
        cr_assert_eq(clFinish(clinfer_ctx_queue(w.ctx)), CL_SUCCESS);
    }
    cr_assert_eq(layer->calls("clCreateBuffer"), 2, "the pool's and a batch's, but %ld buffers",
                 layer->calls("clCreateBuffer"));
    cr_assert_eq(layer->calls("clEnqueueWriteBuffer"), 60);
    cr_assert_eq(layer->calls("clFinish") + layer->calls("clWaitForEvents"), 0, "a step that blocks");
    clinfer_kv_pool_destroy(&w.pool);
    clinfer_ctx_destroy(&w.ctx);
}
