// SPDX-License-Identifier: Apache-2.0
// The callback that is told how long each launch took.
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "calls_fixture.h"

TestSuite(profile, .timeout = 120);

static atomic_int profiled, wrong;
static const char *expected_op;
static void on_profile(void *priv, const char *op, const char *kernel, uint64_t nanoseconds)
{
    if (priv != &profiled || strcmp(op, expected_op) || !kernel[0] || nanoseconds == 0 ||
        nanoseconds > UINT64_C(60000000000))
        wrong++;
    profiled++;
}

static void wait_for(int count)
{
    for (int i = 0; profiled < count && i < 1000; i++)
        usleep(5000);
    cr_assert_eq(profiled, count);
    cr_assert_eq(wrong, 0);
}

static clinfer_ctx *open_profiled(cl_command_queue_properties properties, clinfer_ctx *owner)
{
    clinfer_ctx *ctx;
    cl_command_queue queue = new_queue(owner, properties);
    cr_assert_eq(
        clinfer_ctx_create(&ctx, clinfer_ctx_params(.queue = queue, .cache_dir = "", .profile = on_profile,
                                                    .profile_priv = &profiled)),
        CLINFER_OK);
    clReleaseCommandQueue(queue);
    profiled = wrong = 0;
    return ctx;
}

Test(profile, each_launch)
{
    clinfer_ctx *owner = open_ctx(NULL);
    for (int ordered = 0; ordered < 2; ordered++) {
        clinfer_ctx *ctx = open_profiled(
            CL_QUEUE_PROFILING_ENABLE | (ordered ? 0 : CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE), owner);
        for (int i = 0; i < op_num_descs; i++) {
            struct clinfer_ctx_stats stats;
            struct rig r;
            rig_make(&r, op_descs[i].name, NULL);
            expected_op = op_descs[i].name;
            cr_assert_eq(rig_run(&r, ctx), CLINFER_OK);
            clinfer_ctx_stats(ctx, &stats);
            cr_assert_gt(stats.launches, (uint64_t) i);
            wait_for((int) stats.launches);
            rig_free(&r);
        }
        clinfer_ctx_destroy(&ctx);
    }
    clinfer_ctx_destroy(&owner);
}

// A launch may outlive the context that enqueued it; its report then still arrives.
Test(profile, after_destroy)
{
    clinfer_ctx *owner = open_ctx(NULL), *ctx = open_profiled(CL_QUEUE_PROFILING_ENABLE, owner);
    cl_int err;
    cl_event gate = clCreateUserEvent(clinfer_ctx_cl_context(owner), &err), event;
    struct rig r;
    cr_assert_eq(err, CL_SUCCESS);
    rig_make(&r, "rms_norm_kv_cache", NULL);
    cr_assert_eq(rig_open(&r, clinfer_ctx_cl_context(owner)), CL_SUCCESS);
    cr_assert_eq(rig_upload(&r, clinfer_ctx_queue(owner)), CL_SUCCESS);
    expected_op = "rms_norm_kv_cache";
    cr_assert_eq(r.op->run(ctx, &r.params, 1, &gate, &event), CLINFER_OK);
    clinfer_ctx_destroy(&ctx);
    cr_assert_eq(clSetUserEventStatus(gate, CL_COMPLETE), CL_SUCCESS);
    cr_assert_eq(clWaitForEvents(1, &event), CL_SUCCESS);
    clReleaseEvent(event);
    clReleaseEvent(gate);
    wait_for(1);
    cr_assert_eq(rig_download(&r, clinfer_ctx_queue(owner)), CL_SUCCESS);
    rig_reference(&r);
    cr_assert(rig_same(&r), "%s", r.note);
    rig_free(&r);
    clinfer_ctx_destroy(&owner);
}

// The caller's queue has no profiling: calls work and report nothing.
Test(profile, without_profiling)
{
    clinfer_ctx *owner = open_ctx(NULL), *ctx = open_profiled(0, owner);
    struct rig r;
    expected_op = "none";
    rig_make(&r, "rms_norm_kv_cache", NULL);
    cr_assert_eq(rig_run(&r, ctx), CLINFER_OK);
    rig_reference(&r);
    cr_assert(rig_same(&r), "%s", r.note);
    usleep(20000);
    cr_assert_eq(profiled, 0);
    rig_free(&r);
    clinfer_ctx_destroy(&ctx);
    clinfer_ctx_destroy(&owner);
}
