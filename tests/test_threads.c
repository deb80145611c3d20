// SPDX-License-Identifier: Apache-2.0
// One context and many threads. A plain program, since Criterion does not start under the thread sanitizer.
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

enum { THREADS = 16, ROUNDS = 6, COLD_THREADS = 8, VARIANTS = 4 };

static int passed, failed;
static void check(bool ok, const char *what)
{
    printf("%s %s\n", ok ? "ok  " : "FAIL", what);
    *(ok ? &passed : &failed) += 1;
}

static clinfer_ctx *open_ctx(void)
{
    clinfer_ctx *ctx;
    char error[512];
    if (clinfer_ctx_create(&ctx,
                           clinfer_ctx_params(.cache_dir = "", .error = error, .error_size = sizeof error))) {
        fprintf(stderr, "no context: %s\n", error);
        exit(1);
    }
    return ctx;
}

static const char *const ops[2] = { "rms_norm_kv_cache", "mla_decode_branch" };

// Shapes that differ in all that needs no other program: pages, lengths, order; and in the size of the
// workspace.
static void make_variant(struct rig *r, int op, int variant)
{
    struct rig_batch batch = rig_default;
    batch.page_size = variant % 2 ? 3 : 4;
    batch.columns = 6;
    batch.contiguous = variant % 3 == 0;
    batch.cached[0] = variant * 3;
    batch.fresh[2] = variant % 2 ? 3 : 1;
    rig_make(r, ops[op], &batch);
    if (op == 1)
        r->params.decode.num_splits = 1 + variant;
}

static struct rig expected[2][VARIANTS];

struct worker {
    clinfer_ctx *ctx;
    pthread_barrier_t *start;
    int index;
    bool ok;
};

static bool equals(const struct rig *a, const struct rig *b)
{
    for (int i = 0; i < a->num_buffers; i++)
        if (memcmp(a->buffer[i].got, b->buffer[i].got, a->buffer[i].size))
            return false;
    return true;
}

// Every second thread has a queue of its own, every fourth of these out of order.
static void *work(void *priv)
{
    struct worker *w = priv;
    cl_int err = CL_SUCCESS;
    cl_command_queue queue = NULL;
    if (w->index % 2)
        queue = clCreateCommandQueue(clinfer_ctx_cl_context(w->ctx), clinfer_ctx_device(w->ctx),
                                     w->index % 8 == 1 ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0, &err);
    w->ok = !err;
    pthread_barrier_wait(w->start);
    for (int n = 0; w->ok && n < ROUNDS; n++) {
        const int op = (w->index + n) % 2, variant = (w->index / 2 + n) % VARIANTS;
        struct rig r;
        cl_event event = NULL;
        make_variant(&r, op, variant);
        memcpy(&r.params, &queue, sizeof queue); // the first field of every op's params
        cl_command_queue copy = queue ? queue : clinfer_ctx_queue(w->ctx);
        w->ok = !rig_open(&r, clinfer_ctx_cl_context(w->ctx)) && !rig_upload(&r, copy) &&
                !r.op->run(w->ctx, &r.params, 0, NULL, &event) && !clWaitForEvents(1, &event) &&
                !rig_download(&r, copy) && equals(&r, &expected[op][variant]);
        if (event)
            clReleaseEvent(event);
        rig_free(&r);
    }
    if (queue)
        clReleaseCommandQueue(queue);
    return NULL;
}

static bool run_threads(clinfer_ctx *ctx, int count, void *(*body)(void *) )
{
    pthread_t thread[THREADS];
    pthread_barrier_t start;
    struct worker w[THREADS];
    bool ok = true;
    pthread_barrier_init(&start, NULL, (unsigned) count);
    for (int i = 0; i < count; i++) {
        w[i] = (struct worker){ ctx, &start, i, false };
        if (pthread_create(&thread[i], NULL, body, &w[i]))
            abort();
    }
    for (int i = 0; i < count; i++) {
        pthread_join(thread[i], NULL);
        ok = ok && w[i].ok;
    }
    pthread_barrier_destroy(&start);
    return ok;
}

static void mixed_calls(void)
{
    clinfer_ctx *ctx = open_ctx();
    struct clinfer_ctx_stats before, after;
    bool ok = true;
    for (int op = 0; op < 2; op++)
        for (int v = 0; v < VARIANTS; v++) {
            make_variant(&expected[op][v], op, v);
            ok = ok && !rig_run(&expected[op][v], ctx);
            rig_reference(&expected[op][v]);
            ok = ok && rig_same(&expected[op][v]);
        }
    check(ok, "one thread: results are the reference's");
    clinfer_ctx_stats(ctx, &before);
    check(run_threads(ctx, THREADS, work), "16 threads, two ops, mixed shapes and queues: the same bits");
    clinfer_ctx_stats(ctx, &after);
    check(after.compiled == before.compiled, "nothing was compiled again");
    check(after.launches - before.launches == THREADS * ROUNDS / 2 * 7, "every launch was counted");
    clinfer_ctx_destroy(&ctx);
    ctx = open_ctx();
    check(run_threads(ctx, THREADS, work), "the same from a cold context");
    clinfer_ctx_stats(ctx, &after);
    check(after.compiled == before.compiled, "each program was compiled once");
    clinfer_ctx_destroy(&ctx);
    for (int op = 0; op < 2; op++)
        for (int v = 0; v < VARIANTS; v++)
            rig_free(&expected[op][v]);
}

static void *compile(void *priv)
{
    struct worker *w = priv;
    struct rig r;
    rig_make(&r, "fused_qk_rope", NULL);
    pthread_barrier_wait(w->start);
    w->ok = !r.op->compile(w->ctx, &r.params);
    rig_free(&r);
    return NULL;
}

static void cold_specialisation(void)
{
    clinfer_ctx *ctx = open_ctx();
    struct clinfer_ctx_stats stats;
    check(run_threads(ctx, COLD_THREADS, compile), "8 threads want one cold program");
    clinfer_ctx_stats(ctx, &stats);
    check(stats.compiled == 1 && stats.programs == 1, "it is compiled once");
    clinfer_ctx_destroy(&ctx);
}

// Errors, faults, saving and statistics while others call.
static void *meddle(void *priv)
{
    struct worker *w = priv;
    struct rig r;
    struct clinfer_fault fault;
    struct clinfer_ctx_stats stats;
    char error[256];
    rig_make(&r, "rms_norm_kv_cache", NULL);
    pthread_barrier_wait(w->start);
    w->ok = true;
    for (int n = 0; n < ROUNDS && w->ok; n++) {
        r.params.norm.kv.page_size = w->index % 2 ? 4 : -w->index - 1;
        const clinfer_status st = r.op->compile(w->ctx, &r.params);
        clinfer_ctx_error(w->ctx, error, sizeof error);
        char number[32];
        snprintf(number, sizeof number, "page_size is %d,", -w->index - 1);
        w->ok = w->index % 2 ? st == CLINFER_OK : st == CLINFER_ERR_SHAPE && strstr(error, number);
        w->ok = w->ok && !clinfer_ctx_fault(w->ctx, NULL, &fault) && fault.code == CLINFER_FAULT_NONE &&
                !clinfer_ctx_save(w->ctx);
        clinfer_ctx_stats(w->ctx, &stats);
    }
    rig_free(&r);
    return NULL;
}

// Saving with a store that forgets everything.
static size_t get_nothing(void *priv, const char *key, void **entry)
{
    (void) priv, (void) key, (void) entry;
    return 0;
}
static void count_put(void *priv, const char *key, const void *entry, size_t size)
{
    (void) key, (void) entry;
    if (size)
        atomic_fetch_add((atomic_int *) priv, 1);
}

static void meddling(void)
{
    atomic_int puts = 0;
    clinfer_ctx *ctx;
    if (clinfer_ctx_create(&ctx, clinfer_ctx_params(.store = { get_nothing, count_put, &puts }))) {
        check(false, "a context with a store");
        return;
    }
    check(run_threads(ctx, THREADS, meddle), "16 threads fail, read faults and save at once");
    check(puts == 1, "the program is stored once");
    clinfer_ctx_destroy(&ctx);
}

static void *come_and_go(void *priv)
{
    struct worker *w = priv;
    pthread_barrier_wait(w->start);
    w->ok = true;
    for (int n = 0; n < ROUNDS && w->ok; n++) {
        clinfer_ctx *ctx;
        w->ok = !clinfer_ctx_create(
            &ctx, clinfer_ctx_params(.cache_dir = "", .queue = n % 2 ? clinfer_ctx_queue(w->ctx) : NULL));
        clinfer_ctx_destroy(&ctx);
    }
    return NULL;
}

enum { POOL_PAGES = 12, POOL_STEPS = 200 };
static clinfer_kv_pool *pool;

// A step of a sequence of its own; where the others have all pages, it gives its own back. Counts its tokens.
static bool pool_step(clinfer_kv_seq seq, bool commit, int64_t *tokens)
{
    static const int64_t one = 1;
    clinfer_kv_pool_batch batch;
    struct clinfer_kv_batch_info info;
    int64_t length;
    const clinfer_status st = clinfer_kv_batch_create(
        pool, clinfer_kv_batch_params(.num_seqs = 1, .seqs = &seq, .new_tokens = &one), &batch);
    if (st == CLINFER_ERR_PAGES) {
        *tokens = 0;
        return !clinfer_kv_seq_truncate(pool, seq, 0);
    }
    if (st || clinfer_kv_batch_info(pool, batch, &info) || info.max_context != *tokens + 1)
        return false;
    *tokens += commit;
    return !(commit ? clinfer_kv_batch_commit : clinfer_kv_batch_drop)(pool, batch, 0, NULL) &&
           !clinfer_kv_seq_length(pool, seq, &length) && length == *tokens &&
           clinfer_kv_pool_check(pool, NULL, 0);
}

static void *pool_steps(void *priv)
{
    struct worker *w = priv;
    clinfer_kv_seq seq;
    int64_t tokens = 0;
    pthread_barrier_wait(w->start);
    w->ok = !clinfer_kv_seq_create(pool, &seq);
    for (int n = 0; n < POOL_STEPS && w->ok; n++)
        w->ok = pool_step(seq, n % 3 != 0, &tokens);
    w->ok = w->ok && !clinfer_kv_seq_free(pool, seq);
    return NULL;
}

static void one_pool(void)
{
    clinfer_ctx *ctx = open_ctx();
    struct clinfer_kv_pool_info info;
    check(!clinfer_kv_pool_create(&pool, ctx,
                                  clinfer_kv_pool_params(.num_heads = 1, .head_size = 8, .page_size = 4,
                                                         .dtype = CLINFER_F32, .num_pages = POOL_PAGES)),
          "a pool");
    check(run_threads(ctx, COLD_THREADS, pool_steps), "8 threads step through one pool");
    clinfer_kv_pool_info(pool, &info);
    check(info.free_pages == POOL_PAGES && !info.num_seqs && !info.num_batches, "every page came back");
    clinfer_kv_pool_destroy(&pool);
    clinfer_ctx_destroy(&ctx);
}

int main(void)
{
    clinfer_ctx *ctx = open_ctx();
    check(run_threads(ctx, COLD_THREADS, come_and_go), "8 threads make and destroy contexts");
    clinfer_ctx_destroy(&ctx);
    cold_specialisation();
    mixed_calls();
    meddling();
    one_pool();
    printf("%d passed, %d failed\n", passed, failed);
    return failed != 0;
}
