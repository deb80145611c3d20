// SPDX-License-Identifier: Apache-2.0
// CLBlast's OpenCL calls, which the layer sees as it sees ours: when they are made, and what a failing one
// does.
#include "gemm_fixture.h"

#include "layer_use.h"

TestSuite(gemm_failures, .timeout = 300);

static const struct layer_control *layer;

// Compiling ahead makes CLBlast compile too, and calls nothing in anybody's name.
Test(gemm_failures, compile_ahead)
{
    struct rig r;
    LAYER_OR_SKIP(layer);
    OPEN_CLBLAST_OR_SKIP(0);
    rig_make(&r, "mla_decode_branch", NULL);
    cr_assert_eq(clinfer_mla_decode_branch_compile(ctx, &r.params.decode), CLINFER_OK);
    expect_calls(0);
    layer->arm(NULL, 0, 0);
    layer->enable(1);
    cr_assert_eq(rig_run(&r, ctx), CLINFER_OK);
    layer->enable(0);
    cr_expect_eq(layer->calls("clBuildProgram"), 0);
    expect_calls(2);
    rig_free(&r);
    clinfer_ctx_destroy(&ctx);
}

// The n-th call of the function fails, ours or CLBlast's: an error with a text, or the right results; then
// the same call is right.
static bool fails_well(struct rig *r, const char *function, long n)
{
    const cl_command_queue queue = clinfer_ctx_queue(ctx);
    cr_assert_eq(rig_upload(r, queue), CL_SUCCESS);
    layer->arm(function, n, CL_OUT_OF_RESOURCES);
    layer->enable(1);
    clinfer_status st = r->op->run(ctx, &r->params, 0, NULL, NULL);
    layer->enable(0);
    const bool fired = layer->fired();
    if (st) {
        clinfer_ctx_error(ctx, error, sizeof error);
        cr_assert(st == (clinfer_status) CL_OUT_OF_RESOURCES || st == CLINFER_ERR_UNSUPPORTED, "%s %ld: %s",
                  function, n, clinfer_status_str(st));
        cr_assert(strstr(error, "mla_decode_branch"), "%s %ld: \"%s\"", function, n, error);
        cr_assert_eq(clFinish(queue), CL_SUCCESS);
        cr_assert_eq(rig_upload(r, queue), CL_SUCCESS);
        st = r->op->run(ctx, &r->params, 0, NULL, NULL);
    }
    cr_assert_eq(st, CLINFER_OK, "%s %ld: the next call fails", function, n);
    cr_assert_eq(rig_download(r, queue), CL_SUCCESS);
    rig_reference(r);
    cr_assert(rig_same(r), "%s %ld: %s", function, n, r->note);
    return fired;
}

// With CLBlast's programs there: what it and the engine call for each product.
Test(gemm_failures, failing_calls)
{
    static const char *const functions[] = {
        "clEnqueueBarrierWithWaitList", "clEnqueueNDRangeKernel", "clCreateKernel", "clSetKernelArg",
        "clGetMemObjectInfo",           "clGetCommandQueueInfo",  "clCreateBuffer", "clGetKernelWorkGroupInfo"
    };
    enum { SAMPLES = 8 };
    struct rig r;
    LAYER_OR_SKIP(layer);
    const long before = layer->live();
    OPEN_CLBLAST_OR_SKIP(0);
    clinfer_ctx *owner = ctx;
    cl_command_queue queue = new_queue(owner, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    OPEN_CLBLAST_OR_SKIP(.queue = queue);
    rig_make(&r, "mla_decode_branch", NULL);
    cr_assert_eq(rig_open(&r, clinfer_ctx_cl_context(ctx)), CL_SUCCESS);
    int failed = 0;
    for (size_t f = 0; f < sizeof functions / sizeof functions[0]; f++) {
        for (int i = 0; i < 2; i++) // the first one compiles
            cr_assert_not(fails_well(&r, NULL, 0));
        const long calls = layer->calls(functions[f]);
        cr_assert(f > 0 || calls == 2, "%ld barriers", calls);
        for (long n = 1; n <= calls; n += (calls + SAMPLES - 1) / SAMPLES)
            failed += fails_well(&r, functions[f], n);
    }
    cr_assert_gt(failed, 2 + 8);
    rig_close(&r);
    clinfer_ctx_destroy(&ctx);
    clReleaseCommandQueue(queue);
    clinfer_ctx_destroy(&owner);
    cr_assert_eq(layer->live(), before, "%ld OpenCL objects are left", layer->live() - before);
    rig_free(&r);
}

// CLBlast's own first steps: a driver that fails it costs the call, and leaves nothing.
Test(gemm_failures, failing_start)
{
    static const char *const functions[] = { "clCreateCommandQueue", "clCreateBuffer", "clEnqueueWriteBuffer",
                                             "clBuildProgram", "clEnqueueReadBuffer" };
    struct rig r;
    LAYER_OR_SKIP(layer);
    const long before = layer->live();
    for (size_t f = 0; f < sizeof functions / sizeof functions[0]; f++) {
        OPEN_CLBLAST_OR_SKIP(0);
        rig_make(&r, "mla_decode_branch", NULL);
        const bool ours = strcmp(functions[f], "clBuildProgram");
        layer->arm(functions[f], ours ? 1 : 2, CL_OUT_OF_RESOURCES); // after the program of our own kernels
        layer->enable(1);
        const clinfer_status st = clinfer_mla_decode_branch_compile(ctx, &r.params.decode);
        layer->enable(0);
        cr_assert(layer->fired(), "%s was not called", functions[f]);
        cr_expect_eq((int) st, CL_OUT_OF_RESOURCES, "%s: %s", functions[f], clinfer_status_str(st));
        clinfer_ctx_error(ctx, error, sizeof error);
        cr_expect(strstr(error, "CLBlast does not work"), "%s: \"%s\"", functions[f], error);
        cr_assert_eq(clinfer_mla_decode_branch_compile(ctx, &r.params.decode), CLINFER_OK);
        rig_free(&r);
        clinfer_ctx_destroy(&ctx);
        cr_expect_eq(layer->live(), before, "%s: %ld OpenCL objects are left", functions[f],
                     layer->live() - before);
    }
}
