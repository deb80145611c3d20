// SPDX-License-Identifier: Apache-2.0
// Contexts: where they come from, what they hold, what they say. Each test is a process of its own, so the
// loader and the driver read the environment that the test sets.
#include <criterion/criterion.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "rig.h"

TestSuite(context, .timeout = 120);

static clinfer_ctx *open_ctx(const char *device, cl_command_queue queue)
{
    char error[512];
    clinfer_ctx *ctx;
    const clinfer_status st =
        clinfer_ctx_create(&ctx, clinfer_ctx_params(.device = device, .queue = queue, .cache_dir = "",
                                                    .error = error, .error_size = sizeof error));
    cr_assert_eq(st, CLINFER_OK, "%s", error);
    cr_assert_str_eq(error, "");
    return ctx;
}

static void run_right(clinfer_ctx *ctx, const char *op)
{
    struct rig r;
    char error[512];
    rig_make(&r, op, NULL);
    const clinfer_status st = rig_run(&r, ctx);
    clinfer_ctx_error(ctx, error, sizeof error);
    cr_assert_eq(st, CLINFER_OK, "%s: %s", op, error);
    rig_reference(&r);
    cr_assert(rig_same(&r), "%s", r.note);
    rig_free(&r);
}

Test(context, device_choice)
{
    struct clinfer_device_info list[8], info;
    unsigned count;
    char error[256], part[256];
    cr_assert_eq(clinfer_devices(list, 8, &count, error, sizeof error), CLINFER_OK, "%s", error);
    cr_assert_geq(count, 1);
    cr_assert_eq(clinfer_devices(NULL, 0, &count, NULL, 0), CLINFER_OK);
    // A part of the name, in the other case.
    snprintf(part, sizeof part, "%s", list[0].device + strlen(list[0].device) / 2);
    for (char *c = part; *c; c++)
        *c = (char) (*c >= 'a' && *c <= 'z' ? *c - 32 : *c >= 'A' && *c <= 'Z' ? *c + 32 : *c);
    const char *const choices[] = { NULL, "", "0", list[0].type, part };
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        clinfer_ctx *ctx = open_ctx(choices[i], NULL);
        clinfer_ctx_device_info(ctx, &info);
        cr_assert_eq(info.id, list[0].id, "choice %zu", i);
        cr_assert_eq(clinfer_ctx_device(ctx), list[0].id);
        cr_assert_str_eq(info.device, list[0].device);
        clinfer_ctx_destroy(&ctx);
        cr_assert_null(ctx);
    }
    clinfer_ctx *ctx = NULL;
    clinfer_ctx_destroy(&ctx);
    clinfer_ctx_destroy(NULL);
}

Test(context, absent_devices)
{
    static const char *const choices[] = { "no such device", "99", "gpu-that-is-none" };
    char error[256];
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        clinfer_ctx *ctx = (clinfer_ctx *) error;
        const clinfer_status st =
            clinfer_ctx_create(&ctx, clinfer_ctx_params(.device = choices[i], .cache_dir = "", .error = error,
                                                        .error_size = sizeof error));
        cr_assert_eq(st, CLINFER_ERR_NO_DEVICE);
        cr_assert_null(ctx);
        cr_assert(strstr(error, choices[i]), "%s", error);
    }
    setenv("CLINFER_DEVICE", "named by the environment", 1);
    clinfer_ctx *ctx;
    cr_assert_eq(clinfer_ctx_create(
                     &ctx, clinfer_ctx_params(.cache_dir = "", .error = error, .error_size = sizeof error)),
                 CLINFER_ERR_NO_DEVICE);
    cr_assert(strstr(error, "named by the environment"), "%s", error);
    cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.device = "0", .cache_dir = "")),
                 CLINFER_OK); // the params come first
    clinfer_ctx_destroy(&ctx);
}

Test(context, variants_this_version_lacks)
{
    char error[256];
    clinfer_ctx *ctx;
    cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.arith = CLINFER_ARITH_BF16, .cache_dir = "",
                                                             .error = error, .error_size = sizeof error)),
                 CLINFER_ERR_UNSUPPORTED);
    cr_assert(strstr(error, "bf16"), "%s", error);
    cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.kernel_set = CLINFER_SET_ROW,
                                                             .arith = CLINFER_ARITH_F32, .cache_dir = "")),
                 CLINFER_OK);
    clinfer_ctx_destroy(&ctx);
}

// Counts may be high for a moment after a command has ended: a driver's threads drop theirs when they get to
// it.
static cl_uint references(cl_context context, cl_command_queue queue)
{
    cl_uint n = 0;
    if (context)
        cr_assert_eq(clGetContextInfo(context, CL_CONTEXT_REFERENCE_COUNT, sizeof n, &n, NULL), CL_SUCCESS);
    else
        cr_assert_eq(clGetCommandQueueInfo(queue, CL_QUEUE_REFERENCE_COUNT, sizeof n, &n, NULL), CL_SUCCESS);
    return n;
}

static void expect_references(cl_context context, cl_command_queue queue, cl_uint want)
{
    for (int i = 0; i < 200 && references(context, queue) != want; i++)
        usleep(5000);
    cr_assert_eq(references(context, queue), want, "%u references, want %u", references(context, queue),
                 want);
}

Test(context, callers_queue)
{
    struct clinfer_device_info info;
    unsigned count;
    cl_int err;
    cr_assert_eq(clinfer_devices(&info, 1, &count, NULL, 0), CLINFER_OK);
    cl_context context = clCreateContext(NULL, 1, &info.id, NULL, NULL, &err);
    cr_assert_eq(err, CL_SUCCESS);
    cl_command_queue queue = clCreateCommandQueue(context, info.id, 0, &err);
    cr_assert_eq(err, CL_SUCCESS);
    const cl_uint contexts = references(context, NULL), queues = references(NULL, queue);
    clinfer_ctx *ctx = open_ctx(NULL, queue);
    cr_assert_eq(clinfer_ctx_queue(ctx), queue);
    cr_assert_eq(clinfer_ctx_cl_context(ctx), context);
    cr_assert_eq(clinfer_ctx_device(ctx), info.id);
    cr_assert_gt(references(NULL, queue), queues);
    for (int i = 0; i < op_num_descs; i++)
        run_right(ctx, op_descs[i].name);
    clFinish(queue);
    clinfer_ctx_destroy(&ctx);
    expect_references(context, NULL, contexts);
    expect_references(NULL, queue, queues);
    clReleaseCommandQueue(queue);
    clReleaseContext(context);
}

Test(context, capabilities_masked)
{
    static const unsigned bits[] = {
#define X(name, bit, text) CLINFER_CAP_##name,
        CLINFER_CAP_LIST(X)
#undef X
    };
    struct clinfer_device_info info;
    clinfer_ctx *ctx = open_ctx(NULL, NULL);
    clinfer_ctx_device_info(ctx, &info);
    const unsigned all = info.caps;
    cr_assert(all, "a device without any capability tells nothing");
    clinfer_ctx_destroy(&ctx);
    for (size_t i = 0; i < sizeof bits / sizeof bits[0]; i++) {
        cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.disable_caps = bits[i], .cache_dir = "")),
                     CLINFER_OK);
        clinfer_ctx_device_info(ctx, &info);
        cr_assert_eq(info.caps, all & ~bits[i]);
        if (bits[i] == CLINFER_CAP_ROUNDED_DIVIDE)
            run_right(ctx, "rms_norm_kv_cache");
        clinfer_ctx_destroy(&ctx);
    }
    cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.disable_caps = ~0u, .cache_dir = "")),
                 CLINFER_OK);
    clinfer_ctx_device_info(ctx, &info);
    cr_assert_eq(info.caps, 0);
    for (int i = 0; i < op_num_descs; i++)
        run_right(ctx, op_descs[i].name);
    clinfer_ctx_destroy(&ctx);
}

Test(context, hundred_contexts)
{
    clinfer_ctx *first = open_ctx(NULL, NULL), *ctx = NULL;
    const cl_uint before = references(NULL, clinfer_ctx_queue(first));
    for (int i = 0; i < 100; i++) {
        ctx = open_ctx(NULL, i % 2 ? clinfer_ctx_queue(first) : NULL);
        if (i % 25 == 0)
            run_right(ctx, "rms_norm_kv_cache");
        clinfer_ctx_destroy(&ctx);
    }
    expect_references(NULL, clinfer_ctx_queue(first), before);
    clinfer_ctx_destroy(&first);
}

Test(context, two_at_once)
{
    clinfer_ctx *a = open_ctx(NULL, NULL), *b = open_ctx(NULL, NULL);
    for (int i = 0; i < op_num_descs; i++) {
        run_right(a, op_descs[i].name);
        run_right(b, op_descs[op_num_descs - 1 - i].name);
    }
    clinfer_ctx_destroy(&a);
    for (int i = 0; i < op_num_descs; i++)
        run_right(b, op_descs[i].name);
    clinfer_ctx_destroy(&b);
}

// Two threads that fail differently, in turns, each see their own error.
struct failing {
    clinfer_ctx *ctx;
    const char *op, *word;
    pthread_barrier_t *barrier;
    bool ok;
};

static void *fail_often(void *priv)
{
    struct failing *f = priv;
    char error[512];
    clinfer_ctx_error(f->ctx, error, sizeof error);
    f->ok = !error[0]; // nothing failed in this thread yet
    for (int i = 0; i < 50; i++) {
        struct rig r;
        rig_make(&r, f->op, NULL);
        ((clinfer_kv_cache *) ((char *) &r.params + r.op->kv))->page_size = f->op[0] == 'f' ? -7 : -9;
        const clinfer_status st = r.op->compile(f->ctx, &r.params);
        pthread_barrier_wait(f->barrier);
        const size_t n = clinfer_ctx_error(f->ctx, error, sizeof error);
        f->ok = f->ok && st == CLINFER_ERR_SHAPE && n == strlen(error) && strstr(error, f->op) &&
                strstr(error, f->word);
        rig_free(&r);
    }
    return NULL;
}

Test(context, error_text_per_thread)
{
    pthread_t thread[2];
    pthread_barrier_t barrier;
    clinfer_ctx *ctx = open_ctx(NULL, NULL);
    struct failing f[2] = { { ctx, "fused_qk_rope", "page_size is -7", &barrier, false },
                            { ctx, "rms_norm_kv_cache", "page_size is -9", &barrier, false } };
    pthread_barrier_init(&barrier, NULL, 2);
    for (int i = 0; i < 2; i++)
        cr_assert_eq(pthread_create(&thread[i], NULL, fail_often, &f[i]), 0);
    for (int i = 0; i < 2; i++)
        pthread_join(thread[i], NULL);
    cr_assert(f[0].ok && f[1].ok);
    char small[8];
    cr_assert_eq(clinfer_ctx_error(ctx, NULL, 0), 0, "this thread has not failed");
    struct rig r;
    rig_make(&r, "fused_qk_rope", NULL);
    r.params.rope.kv.page_size = 0;
    cr_assert_eq(r.op->compile(ctx, &r.params), CLINFER_ERR_SHAPE);
    cr_assert_gt(clinfer_ctx_error(ctx, small, sizeof small), 7);
    cr_assert_str_eq(small, "fused_q");
    rig_free(&r);
    clinfer_ctx_destroy(&ctx);
}

// Far more threads than slots: none crashes, and each that asks at once sees an error of its own or none.
static void *fail_once(void *priv)
{
    struct rig r;
    rig_make(&r, "rms_norm_kv_cache", NULL);
    r.params.norm.kv.page_size = 0;
    const clinfer_status st = r.op->compile(priv, &r.params);
    rig_free(&r);
    return st == CLINFER_ERR_SHAPE ? NULL : priv;
}

Test(context, errors_of_many_threads)
{
    clinfer_ctx *ctx = open_ctx(NULL, NULL);
    char error[512];
    for (int i = 0; i < 200; i++) {
        pthread_t thread;
        void *bad;
        cr_assert_eq(pthread_create(&thread, NULL, fail_once, ctx), 0);
        pthread_join(thread, &bad);
        cr_assert_null(bad);
    }
    cr_assert_not_null(fail_once(ctx) ? NULL : ctx);
    clinfer_ctx_error(ctx, error, sizeof error);
    cr_assert(strstr(error, "page_size is 0"), "%s", error);
    clinfer_ctx_destroy(&ctx);
}
