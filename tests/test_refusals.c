// SPDX-License-Identifier: Apache-2.0
// Drivers that refuse a launch, an argument or a binary, and devices that lack what every kernel needs.
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "layer_use.h"
#include "rig.h"

TestSuite(refusals, .timeout = 120);

static const struct layer_control *layer;
static clinfer_ctx *ctx;
static char error[512];

static void open_ctx(const char *cache_dir)
{
    cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.cache_dir = cache_dir, .error = error,
                                                             .error_size = sizeof error)),
                 CLINFER_OK, "%s", error);
}

static struct clinfer_ctx_stats stats_of(void)
{
    struct clinfer_ctx_stats stats;
    clinfer_ctx_stats(ctx, &stats);
    return stats;
}

static void run_right(struct rig *r)
{
    cr_assert_eq(rig_upload(r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
    cr_assert_eq(r->op->run(ctx, &r->params, 0, NULL, NULL), CLINFER_OK);
    cr_assert_eq(rig_download(r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
    rig_reference(r);
    cr_assert(rig_same(r), "%s", r->note);
}

static int run_failing(struct rig *r, const char *function, long n, cl_int code)
{
    layer->arm(function, n, code);
    layer->enable(1);
    const clinfer_status st = r->op->run(ctx, &r->params, 0, NULL, NULL);
    layer->enable(0);
    clinfer_ctx_error(ctx, error, sizeof error);
    cr_assert(layer->fired());
    return st;
}

static void ready(struct rig *r, const char *op)
{
    LAYER_OR_SKIP(layer);
    open_ctx("");
    rig_make(r, op, NULL);
    cr_assert_eq(rig_open(r, clinfer_ctx_cl_context(ctx)), CL_SUCCESS);
    run_right(r);
}

Test(refusals, launch_k_of_n)
{
    struct rig r;
    ready(&r, "mla_decode_branch");
    for (int k = 1; k <= 6; k++) {
        char words[32];
        const uint64_t before = stats_of().launches;
        cr_assert_eq(run_failing(&r, "clEnqueueNDRangeKernel", k, CL_OUT_OF_RESOURCES), CL_OUT_OF_RESOURCES);
        snprintf(words, sizeof words, "launch %d of 6", k);
        cr_assert(strstr(error, "mla_decode_branch") && strstr(error, words) &&
                      strstr(error, "CL_OUT_OF_RESOURCES"),
                  "%s", error);
        cr_assert_eq(stats_of().launches, before + (uint64_t) (k - 1));
        run_right(&r);
    }
    rig_free(&r);
    clinfer_ctx_destroy(&ctx);
}

// Arguments fail before the first launch, whichever launch they are of: nothing is enqueued, nothing written.
// The two products share a kernel, whose arguments, all taken once before, are set again between launches;
// what fails there counts as the launch.
Test(refusals, argument_of_any_launch)
{
    struct rig r;
    ready(&r, "mla_decode_branch");
    layer->arm(NULL, 0, 0);
    layer->enable(1);
    cr_assert_eq(r.op->run(ctx, &r.params, 0, NULL, NULL), CLINFER_OK);
    layer->enable(0);
    const long calls = layer->calls("clSetKernelArg");
    cr_assert_gt(calls, 60);
    long again = 0;
    for (long n = 1; n <= calls; n += 7) {
        cr_assert_eq(rig_upload(&r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
        const uint64_t before = stats_of().launches;
        cr_assert_eq(run_failing(&r, "clSetKernelArg", n, CL_INVALID_ARG_VALUE), CL_INVALID_ARG_VALUE);
        cr_assert(strstr(error, "of 6") && strstr(error, "CL_INVALID_ARG_VALUE"), "%s", error);
        if (!strstr(error, "arguments of launch")) {
            cr_assert_gt(stats_of().launches, before, "argument %ld: %s", n, error);
            again = again ? again : n;
            continue;
        }
        cr_assert(!again, "argument %ld of %ld", n, calls);
        cr_assert_eq(stats_of().launches, before, "argument %ld of %ld failed after launches", n, calls);
        cr_assert_eq(rig_download(&r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
        cr_assert(rig_untouched(&r), "%s", r.note);
    }
    cr_assert(again > 2 * calls / 3, "argument %ld of %ld is set again", again, calls);
    run_right(&r);
    rig_free(&r);
    clinfer_ctx_destroy(&ctx);
}

static cl_event gate_of(void)
{
    cl_int err;
    cl_event gate = clCreateUserEvent(clinfer_ctx_cl_context(ctx), &err);
    cr_assert_eq(err, CL_SUCCESS);
    return gate;
}

// The launches before the refused one wait for the caller's event: the call must not wait for them, the next
// must.
Test(refusals, launch_behind_a_gate)
{
    struct rig r;
    ready(&r, "mla_decode_branch");
    for (int k = 1; k <= 6; k += 2) {
        cl_event gate = gate_of(), event;
        cl_int state;
        cr_assert_eq(rig_upload(&r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
        layer->arm("clEnqueueNDRangeKernel", k, CL_OUT_OF_RESOURCES);
        layer->enable(1);
        cr_assert_eq((int) r.op->run(ctx, &r.params, 1, &gate, NULL), CL_OUT_OF_RESOURCES);
        cr_assert_eq(r.op->run(ctx, &r.params, 0, NULL, &event), CLINFER_OK);
        layer->enable(0);
        usleep(20000);
        cr_assert_eq(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL),
                     CL_SUCCESS);
        cr_assert(k == 1 || state != CL_COMPLETE, "launch %d: the arena was in use", k);
        cr_assert_eq(clSetUserEventStatus(gate, CL_COMPLETE), CL_SUCCESS);
        cr_assert_eq(clWaitForEvents(1, &event), CL_SUCCESS);
        clReleaseEvent(event);
        clReleaseEvent(gate);
        run_right(&r);
    }
    rig_free(&r);
    clinfer_ctx_destroy(&ctx);
}

// A call that ended with an error, its wait list's perhaps, no longer uses the arena: those after it do not
// wait for it, since they would fail with it. (A driver that is told so only: PoCL 3.1 aborts on chains of
// failed commands.)
Test(refusals, event_that_failed)
{
    struct rig a, b;
    cl_int err;
    ready(&a, "mla_decode_branch");
    rig_make(&b, "mla_decode_branch", NULL);
    cr_assert_eq(rig_open(&b, clinfer_ctx_cl_context(ctx)), CL_SUCCESS);
    cl_command_queue other =
        clCreateCommandQueue(clinfer_ctx_cl_context(ctx), clinfer_ctx_device(ctx), 0, &err);
    cl_event gate = gate_of(), event;
    cr_assert_eq(rig_upload(&b, other), CL_SUCCESS);
    b.params.decode.queue = other;
    cr_assert_eq(a.op->run(ctx, &a.params, 1, &gate, NULL), CLINFER_OK);
    layer->lie("failed_event");
    layer->enable(1);
    cr_assert_eq(b.op->run(ctx, &b.params, 0, NULL, &event), CLINFER_OK);
    layer->enable(0);
    cr_assert_eq(clWaitForEvents(1, &event), CL_SUCCESS); // with the gate still shut
    cr_assert_eq(rig_download(&b, other), CL_SUCCESS);
    rig_reference(&b);
    cr_assert(rig_same(&b), "%s", b.note);
    cr_assert_eq(clSetUserEventStatus(gate, CL_COMPLETE), CL_SUCCESS);
    clReleaseEvent(event);
    clReleaseEvent(gate);
    rig_free(&a);
    rig_free(&b);
    clReleaseCommandQueue(other);
    clinfer_ctx_destroy(&ctx);
}

// The device allocates less than the arena needs: both numbers, nothing launched; the caller's own scratch
// serves.
Test(refusals, workspace_larger_than_the_device_allocates)
{
    struct rig r;
    size_t bytes;
    char number[32];
    cl_int err;
    LAYER_OR_SKIP(layer);
    layer->lie("tiny_alloc");
    open_ctx("");
    rig_make(&r, "mla_decode_branch", NULL);
    cr_assert_eq(clinfer_mla_decode_branch_workspace(ctx, &r.params.decode, &bytes), CLINFER_OK);
    cr_assert_eq((int) rig_run(&r, ctx), CL_INVALID_BUFFER_SIZE);
    clinfer_ctx_error(ctx, error, sizeof error);
    snprintf(number, sizeof number, "%zu bytes", bytes);
    cr_assert(strstr(error, "mla_decode_branch") && strstr(error, number) && strstr(error, "4096"), "%s",
              error);
    cr_assert(rig_untouched(&r), "%s", r.note);
    cr_assert_eq(stats_of().launches, 0);
    r.params.decode.workspace =
        clCreateBuffer(clinfer_ctx_cl_context(ctx), CL_MEM_READ_WRITE, bytes, NULL, &err);
    cr_assert_eq(rig_run(&r, ctx), CLINFER_OK);
    rig_reference(&r);
    cr_assert(rig_same(&r), "%s", r.note);
    clReleaseMemObject(r.params.decode.workspace);
    rig_free(&r);
    clinfer_ctx_destroy(&ctx);
}

Test(refusals, devices_without_what_kernels_need)
{
    static const struct {
        const char *lie, *word;
    } cases[] = { { "no_compiler", "compiler" },
                  { "big_endian", "little-endian" },
                  { "opencl11", "OpenCL 1.2" },
                  { "unavailable", "available" } };
    LAYER_OR_SKIP(layer);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        layer->lie(cases[i].lie);
        error[0] = 0;
        cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.cache_dir = "", .error = error,
                                                                 .error_size = sizeof error)),
                     CLINFER_ERR_NO_DEVICE, "%s", cases[i].lie);
        cr_assert_null(ctx);
        cr_assert(strstr(error, "lacks") && strstr(error, cases[i].word), "%s", error);
    }
    layer->lie(NULL);
    open_ctx("");
    clinfer_ctx_destroy(&ctx);
}

// The layer's other way in, for programs that know nothing of it.
Test(refusals, by_environment)
{
    setenv("CLF_LAYER_FAIL", "clCreateContext:1:-6", 1);
    LAYER_OR_SKIP(layer);
    cr_assert_eq((int) clinfer_ctx_create(
                     &ctx, clinfer_ctx_params(.cache_dir = "", .error = error, .error_size = sizeof error)),
                 CL_OUT_OF_HOST_MEMORY);
    cr_assert(strstr(error, "CL_OUT_OF_HOST_MEMORY"), "%s", error);
    open_ctx("");
    clinfer_ctx_destroy(&ctx);
}

static void run_and_save(const char *folder, uint64_t compiled, uint64_t loaded, uint64_t rejected,
                         uint64_t stored)
{
    struct rig r;
    open_ctx(folder);
    rig_make(&r, "rms_norm_kv_cache", NULL);
    layer->enable(1);
    cr_assert_eq(r.op->compile(ctx, &r.params), CLINFER_OK);
    layer->enable(0);
    cr_assert_eq(rig_open(&r, clinfer_ctx_cl_context(ctx)), CL_SUCCESS);
    run_right(&r);
    rig_free(&r);
    cr_assert_eq(clinfer_ctx_save(ctx), CLINFER_OK);
    const struct clinfer_ctx_stats s = stats_of();
    cr_assert(s.compiled == compiled && s.loaded == loaded && s.rejected == rejected && s.stored == stored,
              "compiled %d loaded %d rejected %d stored %d", (int) s.compiled, (int) s.loaded,
              (int) s.rejected, (int) s.stored);
    clinfer_ctx_destroy(&ctx);
}

// A verified binary that the driver does not want, will not build, or in which a kernel is missing: compiled
// again and stored anew.
Test(refusals, stored_binaries)
{
    static const char *const functions[] = { "clCreateProgramWithBinary", "clBuildProgram",
                                             "clCreateKernel" };
    char folder[] = "/tmp/clinfer-test-XXXXXX";
    LAYER_OR_SKIP(layer);
    cr_assert_not_null(mkdtemp(folder));
    run_and_save(folder, 1, 0, 0, 1);
    run_and_save(folder, 0, 1, 0, 0);
    for (int i = 0; i < 3; i++) {
        layer->arm(functions[i], 1, i ? CL_INVALID_KERNEL_NAME : CL_INVALID_BINARY);
        run_and_save(folder, 1, i == 2, 1, 1);
        cr_assert(layer->fired());
        cr_assert_gt(layer->calls("clCreateProgramWithBinary"), 0);
        run_and_save(folder, 0, 1, 0, 0);
    }
    clinfer_cache_clear(folder, NULL, NULL, 0);
    rmdir(folder);
}
