// SPDX-License-Identifier: Apache-2.0
// Each OpenCL call of a pool fails once: the call that it is in ends with an error and its text, or right;
// the pool is as it was, the same call then works, and nothing is left over. And a step in steady state makes
// nothing.
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
    char path[64];
};

static void expect_sound(struct world *w)
{
    char error[256];
    cr_assert(clinfer_kv_pool_check(w->pool, error, sizeof error), "%s: %s", w->where, error);
}

static bool same_books(const struct clinfer_kv_pool_info *a, const struct clinfer_kv_pool_info *b)
{
    return a->free_pages == b->free_pages && a->cached_pages == b->cached_pages && a->copies == b->copies &&
           a->num_seqs == b->num_seqs && a->num_batches == b->num_batches;
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

static void open_gate(struct world *w)
{
    cr_assert_eq(clSetUserEventStatus(w->gate, CL_COMPLETE), CL_SUCCESS);
    cr_assert_eq(clFinish(clinfer_ctx_queue(w->ctx)), CL_SUCCESS);
}

enum { LONG = 1100 };

// Two steps behind a gate, one that is dropped, and one with a table that outgrows its buffer.
static void steps(struct world *w)
{
    int64_t length;
    for (int i = 0; i < 2; i++)
        TRY(w, clinfer_kv_seq_create(w->pool, &w->seq[i]));
    step(w, 3, true, &w->gate);
    step(w, 2, true, NULL);
    step(w, 4, false, NULL);
    open_gate(w);
    step(w, LONG - 5, true, NULL);
    TRY(w, clinfer_kv_seq_length(w->pool, w->seq[0], &length));
    cr_assert_eq(length, LONG, "%s: %d tokens", w->where, (int) length);
}

// Copies of a tail behind a gate, by a batch that is dropped, by one that is not, and by extend.
static void copies(struct world *w)
{
    const uint32_t tokens[3] = { 1, 2, 3 };
    struct clinfer_kv_pool_info info;
    clinfer_kv_seq found;
    int64_t length;
    for (int i = 0; i < 2; i++)
        TRY(w, clinfer_kv_seq_create(w->pool, &w->seq[i]));
    step(w, 3, true, &w->gate);
    TRY(w, clinfer_kv_seq_fork(w->pool, w->seq[0], &found));
    step(w, 1, false, NULL);
    step(w, 1, true, NULL);
    TRY(w, clinfer_kv_seq_set_tokens(w->pool, found, tokens, 3));
    TRY(w, clinfer_kv_seq_extend(w->pool, w->seq[1], 1));
    TRY(w, clinfer_kv_seq_fork(w->pool, found, &w->seq[1]));
    TRY(w, clinfer_kv_seq_extend(w->pool, found, 2));
    TRY(w, clinfer_kv_seq_match(w->pool, clinfer_kv_match_params(.tokens = tokens, .count = 3), &found,
                                &length));
    clinfer_kv_pool_info(w->pool, &info);
    cr_assert_eq(info.copies, 2, "%s: %d copies", w->where, (int) info.copies);
    open_gate(w);
}

// A sequence to a file and back.
static void files(struct world *w)
{
    clinfer_kv_seq loaded;
    int64_t length;
    for (int i = 0; i < 2; i++)
        TRY(w, clinfer_kv_seq_create(w->pool, &w->seq[i]));
    open_gate(w);
    step(w, 6, true, NULL);
    cr_assert_eq(clFinish(clinfer_ctx_queue(w->ctx)), CL_SUCCESS); // so that each run waits for as much
    TRY(w, clinfer_kv_seq_save(w->pool, w->seq[0], w->path));
    TRY(w, clinfer_kv_seq_load(w->pool, w->path, &loaded));
    TRY(w, clinfer_kv_seq_length(w->pool, loaded, &length));
    cr_assert_eq(length, 6);
}

static void attempt(void (*play)(struct world *w), const char *function, long n)
{
    struct world w = { 0 };
    struct clinfer_kv_pool_params params = pool_params("mla_decode_branch", play == steps ? LONG : 12);
    cl_int err;
    params.page_size = play == steps ? 1 : POOL_PAGE;
    snprintf(w.where, sizeof w.where, "%s, call %ld", function ? function : "nothing", n);
    snprintf(w.path, sizeof w.path, "/tmp/clinfer-injection-%ld", (long) getpid());
    w.ctx = open_ctx(NULL);
    w.gate = clCreateUserEvent(clinfer_ctx_cl_context(w.ctx), &err);
    const long before = layer->live();
    layer->arm(function, n, CODE);
    TRY(&w, clinfer_kv_pool_create(&w.pool, w.ctx, &params));
    play(&w);
    expect_sound(&w);
    cr_assert_eq(clFinish(clinfer_ctx_queue(w.ctx)), CL_SUCCESS);
    layer->enable(1);
    clinfer_kv_pool_destroy(&w.pool);
    layer->enable(0);
    if (!function || strncmp(function, "clRelease", 9)) // a release that fails has released nothing
        cr_assert_eq(layer->live(), before, "%s: %ld objects are left", w.where, layer->live() - before);
    clReleaseEvent(w.gate);
    clinfer_ctx_destroy(&w.ctx);
    unlink(w.path);
}

static void each_call(void (*play)(struct world *w))
{
    long total = 0;
    LAYER_OR_SKIP(layer);
    for (size_t f = 0; f < sizeof functions / sizeof functions[0]; f++) {
        attempt(play, NULL, 0);
        const long calls = layer->calls(functions[f]);
        total += calls;
        for (long n = 1; n <= calls; n++) {
            attempt(play, functions[f], n);
            cr_assert(layer->fired(), "%s, call %ld of %ld: was never made", functions[f], n, calls);
        }
    }
    cr_assert_gt(total, 30, "the pool made %ld calls", total);
}

Test(kv_pool_injection, each_call_of_steps)
{
    each_call(steps);
}

Test(kv_pool_injection, each_call_of_copies)
{
    each_call(copies);
}

Test(kv_pool_injection, each_call_of_files)
{
    each_call(files);
}

// Into a new pool of another type, rows converted on their way: the calls that were made.
static long load_converted(struct world *w, const char *function, long n)
{
    struct clinfer_kv_pool_params params = pool_params("mla_decode_branch", 8);
    clinfer_kv_seq loaded;
    const long before = layer->live();
    params.dtype = CLINFER_BF16;
    snprintf(w->where, sizeof w->where, "%s, call %ld", function ? function : "nothing", n);
    cr_assert_eq(clinfer_kv_pool_create(&w->pool, w->ctx, &params), CLINFER_OK);
    layer->arm(n ? function : NULL, n, CODE);
    TRY(w, clinfer_kv_seq_load(w->pool, w->path, &loaded));
    cr_assert(!n || layer->fired(), "%s: was never made", w->where);
    const long calls = function ? layer->calls(function) : 0;
    clinfer_kv_pool_destroy(&w->pool);
    cr_assert(!function || layer->live() == before, "%s: %ld objects are left", w->where,
              layer->live() - before);
    return calls;
}

Test(kv_pool_injection, conversion)
{
    static const char *const called[] = { "clCreateBuffer", "clEnqueueWriteBuffer", "clEnqueueNDRangeKernel",
                                          "clFinish", "clWaitForEvents" };
    struct world w = { .path = "/tmp/clinfer-conversion-XXXXXX" };
    const struct clinfer_kv_pool_params params = pool_params("mla_decode_branch", 8);
    LAYER_OR_SKIP(layer);
    close(mkstemp(w.path));
    w.ctx = open_ctx(NULL);
    layer->arm(NULL, 0, 0);
    TRY(&w, clinfer_kv_pool_create(&w.pool, w.ctx, &params));
    TRY(&w, clinfer_kv_seq_create(w.pool, &w.seq[0]));
    TRY(&w, clinfer_kv_seq_extend(w.pool, w.seq[0], 3));
    TRY(&w, clinfer_kv_seq_save(w.pool, w.seq[0], w.path));
    clinfer_kv_pool_destroy(&w.pool);
    load_converted(&w, NULL, 0); // compiles
    for (size_t f = 0; f < sizeof called / sizeof called[0]; f++) {
        const long calls = load_converted(&w, called[f], 0);
        cr_assert_gt(calls, 0, "no %s", called[f]);
        for (long n = 1; n <= calls; n++)
            load_converted(&w, called[f], n);
    }
    clinfer_ctx_destroy(&w.ctx);
    unlink(w.path);
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
