// SPDX-License-Identifier: Apache-2.0
// Two drivers in one process, a context on each, at the same time. Run where there are two platforms.
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "rig.h"

enum { NUM_OPS = 4, ROUNDS = 20 };
static const char *const ops[NUM_OPS] = { "fused_qk_rope", "rms_norm_kv_cache", "mla_fused_rope_rmsnorm",
                                          "mla_decode_branch" };

// Contexts on the first devices of two platforms.
static void open_two(clinfer_ctx *ctx[2])
{
    struct clinfer_device_info info[64];
    unsigned count = 0, second = 1;
    char error[512] = "", index[16];
    cr_assert_eq(clinfer_devices(info, 64, &count, error, sizeof error), CLINFER_OK, "%s", error);
    while (second < count && !strcmp(info[second].platform, info[0].platform))
        second++;
    cr_assert_lt(second, count, "the only platform here is %s", info[0].platform);
    for (int i = 0; i < 2; i++) {
        struct clinfer_device_info got;
        (void) snprintf(index, sizeof index, "%u", i ? second : 0);
        cr_assert_eq(
            clinfer_ctx_create(&ctx[i], clinfer_ctx_params(.device = index, .cache_dir = "", .error = error,
                                                           .error_size = sizeof error)),
            CLINFER_OK, "%s", error);
        clinfer_ctx_device_info(ctx[i], &got);
        cr_assert_str_eq(got.platform, info[i ? second : 0].platform);
    }
}

static void start(struct rig *r, clinfer_ctx *ctx)
{
    cr_assert_eq(rig_open(r, clinfer_ctx_cl_context(ctx)), CL_SUCCESS);
    cr_assert_eq(rig_upload(r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
    cr_assert_eq(r->op->run(ctx, &r->params, 0, NULL, NULL), CLINFER_OK);
}

static void expect_right(struct rig *r, clinfer_ctx *ctx)
{
    cr_assert_eq(rig_download(r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
    rig_reference(r);
    cr_expect(rig_same(r), "%s", r->note);
}

// Every op is started on both before either is waited for.
Test(two_runtimes, interleaved, .timeout = 300)
{
    clinfer_ctx *ctx[2];
    struct rig rig[NUM_OPS][2];
    open_two(ctx);
    for (int i = 0; i < NUM_OPS; i++)
        for (int j = 0; j < 2; j++) {
            rig_make(&rig[i][j], ops[i], NULL);
            start(&rig[i][j], ctx[j]);
        }
    for (int i = 0; i < NUM_OPS; i++) {
        for (int j = 1; j >= 0; j--)
            expect_right(&rig[i][j], ctx[j]);
        struct rig *a = &rig[i][0], *b = &rig[i][1];
        for (int n = 0; n < a->num_buffers; n++)
            memcpy(a->buffer[n].want, b->buffer[n].got, b->buffer[n].size);
        cr_expect(rig_same(a), "one against the other: %s", a->note);
        rig_free(a);
        rig_free(b);
    }
    // Neither context needs the other.
    clinfer_ctx_destroy(&ctx[0]);
    struct rig last;
    rig_make(&last, ops[0], NULL);
    start(&last, ctx[1]);
    expect_right(&last, ctx[1]);
    rig_free(&last);
    clinfer_ctx_destroy(&ctx[1]);
}

// A queue of the one is an error in the other, and nothing is written.
Test(two_runtimes, foreign_queue, .timeout = 300)
{
    clinfer_ctx *ctx[2];
    struct rig r;
    char error[512] = "";
    open_two(ctx);
    rig_make(&r, ops[0], NULL);
    cr_assert_eq(rig_open(&r, clinfer_ctx_cl_context(ctx[0])), CL_SUCCESS);
    cr_assert_eq(rig_upload(&r, clinfer_ctx_queue(ctx[0])), CL_SUCCESS);
    r.params.rope.queue = clinfer_ctx_queue(ctx[1]);
    cr_expect_eq(r.op->run(ctx[0], &r.params, 0, NULL, NULL), CLINFER_ERR_ARGUMENT);
    (void) clinfer_ctx_error(ctx[0], error, sizeof error);
    cr_expect(strstr(error, "queue"), "%s", error);
    cr_assert_eq(rig_download(&r, clinfer_ctx_queue(ctx[0])), CL_SUCCESS);
    cr_expect(rig_untouched(&r), "%s", r.note);
    rig_free(&r);
    clinfer_ctx_destroy(&ctx[1]);
    clinfer_ctx_destroy(&ctx[0]);
}

static void *use_context(void *ctx)
{
    for (int i = 0; i < NUM_OPS * ROUNDS; i++) {
        struct rig r;
        rig_make(&r, ops[i % NUM_OPS], NULL);
        const clinfer_status st = rig_run(&r, ctx);
        rig_reference(&r);
        const bool good = st == CLINFER_OK && rig_same(&r);
        if (!good)
            fprintf(stderr, "round %d: status %d, %s\n", i, (int) st, r.note);
        rig_free(&r);
        if (!good)
            return ctx;
    }
    return NULL;
}

// A thread for each, compiling and running at the same time.
Test(two_runtimes, threads, .timeout = 300)
{
    clinfer_ctx *ctx[2];
    pthread_t thread[2];
    open_two(ctx);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, use_context, ctx[i]), 0);
    for (int i = 0; i < 2; i++) {
        void *wrong;
        cr_assert_eq(pthread_join(thread[i], &wrong), 0);
        cr_expect_null(wrong, "wrong results in context %d", i);
    }
    clinfer_ctx_destroy(&ctx[0]);
    clinfer_ctx_destroy(&ctx[1]);
}
