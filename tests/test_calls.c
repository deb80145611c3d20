// SPDX-License-Identifier: Apache-2.0
// Calls as commands of a queue: events and wait lists, order, queues, empty calls.
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "calls_fixture.h"

TestSuite(calls, .timeout = 120);

static cl_event user_event(clinfer_ctx *ctx)
{
    cl_int err;
    cl_event e = clCreateUserEvent(clinfer_ctx_cl_context(ctx), &err);
    cr_assert_eq(err, CL_SUCCESS);
    return e;
}

static void set_queue(struct rig *r, cl_command_queue queue)
{
    memcpy(&r->params, &queue, sizeof queue); // the first field of every op's params
}

static void ready(struct rig *r, clinfer_ctx *ctx, const char *op)
{
    rig_make(r, op, NULL);
    cr_assert_eq(rig_open(r, clinfer_ctx_cl_context(ctx)), CL_SUCCESS);
    cr_assert_eq(rig_upload(r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
}

static void expect_right(struct rig *r, clinfer_ctx *ctx)
{
    cr_assert_eq(rig_download(r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
    rig_reference(r);
    cr_assert(rig_same(r), "%s", r->note);
}

static cl_int state_of(cl_event event)
{
    cl_int state = -1;
    cr_assert_eq(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL),
                 CL_SUCCESS);
    return state;
}

// `event` stays incomplete until `gate` opens, and completes then.
static void expect_gated(cl_event event, cl_event gate)
{
    usleep(50 * 1000);
    cr_assert_neq(state_of(event), CL_COMPLETE, "the wait list was not waited for");
    cr_assert_eq(clSetUserEventStatus(gate, CL_COMPLETE), CL_SUCCESS);
    cr_assert_eq(clWaitForEvents(1, &event), CL_SUCCESS);
    cr_assert_eq(state_of(event), CL_COMPLETE);
    clReleaseEvent(event);
    clReleaseEvent(gate);
}

static void set_tokens(struct rig *r, int64_t tokens)
{
    for (int i = 0; i < r->op->num_tensors; i++) {
        const struct op_tensor *t = &r->op->tensors[i];
        if (t->axes[0] == 'T')
            ((clinfer_tensor *) ((char *) &r->params + t->offset))->shape[0] = tokens;
    }
    if (!strcmp(r->op->name, "rms_norm_kv_cache"))
        r->params.norm.total_seq_len = tokens;
}

static void set_requests(struct rig *r, int64_t requests)
{
    clinfer_kv_batch *batch = (clinfer_kv_batch *) ((char *) &r->params + r->op->batch);
    batch->input_row_offsets.shape[0] = requests + 1;
    batch->cache_lengths.shape[0] = batch->lookup_table.shape[0] = requests;
}

// T 0 and B 0: success, nothing launched or compiled, and an event that follows the wait list.
static void run_empty(clinfer_ctx *ctx, const char *op, bool no_tokens)
{
    struct clinfer_ctx_stats before, after;
    struct rig r;
    cl_event event = NULL, gate = user_event(ctx);
    ready(&r, ctx, op);
    if (no_tokens)
        set_tokens(&r, 0);
    else
        set_requests(&r, 0);
    clinfer_ctx_stats(ctx, &before);
    cr_assert_eq(r.op->run(ctx, &r.params, 0, NULL, NULL), CLINFER_OK);
    cr_assert_eq(r.op->run(ctx, &r.params, 0, NULL, &event), CLINFER_OK);
    cr_assert_eq(clWaitForEvents(1, &event), CL_SUCCESS);
    clReleaseEvent(event);
    cr_assert_eq(r.op->run(ctx, &r.params, 1, &gate, &event), CLINFER_OK);
    expect_gated(event, gate);
    clinfer_ctx_stats(ctx, &after);
    cr_assert_eq(after.launches, before.launches);
    cr_assert_eq(after.programs, before.programs);
    cr_assert_eq(rig_download(&r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
    cr_assert(rig_untouched(&r), "%s", r.note);
    rig_free(&r);
}

Test(calls, empty_calls)
{
    clinfer_ctx *ctx = open_ctx(NULL);
    for (int i = 0; i < op_num_descs; i++) {
        run_empty(ctx, op_descs[i].name, true);
        if (op_descs[i].kv)
            run_empty(ctx, op_descs[i].name, false);
    }
    clinfer_ctx_destroy(&ctx);
}

// Both kinds of queue; the caller's event and one without.
Test(calls, wait_lists)
{
    clinfer_ctx *ctx = open_ctx(NULL);
    struct rig r;
    cl_command_queue queue[2] = { new_queue(ctx, 0), new_queue(ctx, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE) };
    for (int q = 0; q < 2; q++)
        for (int i = 0; i < op_num_descs; i++) {
            cl_event event = NULL, gates[2] = { user_event(ctx), user_event(ctx) };
            ready(&r, ctx, op_descs[i].name);
            set_queue(&r, queue[q]);
            cr_assert_eq(clSetUserEventStatus(gates[0], CL_COMPLETE), CL_SUCCESS);
            cr_assert_eq(r.op->run(ctx, &r.params, 2, gates, &event), CLINFER_OK);
            expect_gated(event, gates[1]);
            clReleaseEvent(gates[0]);
            expect_right(&r, ctx);
            cr_assert_eq(rig_upload(&r, queue[q]), CL_SUCCESS);
            cr_assert_eq(r.op->run(ctx, &r.params, 0, NULL, NULL), CLINFER_OK);
            cr_assert_eq(clFinish(queue[q]), CL_SUCCESS);
            expect_right(&r, ctx);
            rig_free(&r);
        }
    for (int q = 0; q < 2; q++)
        clReleaseCommandQueue(queue[q]);
    clinfer_ctx_destroy(&ctx);
}

static void expect_error(clinfer_ctx *ctx, const char *word)
{
    char error[512];
    clinfer_ctx_error(ctx, error, sizeof error);
    cr_assert(strstr(error, word), "want \"%s\": %s", word, error);
}

Test(calls, wait_list_and_length_disagree)
{
    clinfer_ctx *ctx = open_ctx(NULL);
    struct rig r;
    cl_event gate = user_event(ctx), event = NULL;
    clSetUserEventStatus(gate, CL_COMPLETE);
    for (int i = 0; i < op_num_descs; i++) {
        ready(&r, ctx, op_descs[i].name);
        for (int tokens = 0; tokens < 2; tokens++) {
            set_tokens(&r, tokens ? RIG_TOKENS : 0);
            cr_assert_eq((int) r.op->run(ctx, &r.params, 1, NULL, &event), CL_INVALID_EVENT_WAIT_LIST);
            cr_assert_eq((int) r.op->run(ctx, &r.params, 0, &gate, &event), CL_INVALID_EVENT_WAIT_LIST);
            cr_assert_null(event);
            expect_error(ctx, op_descs[i].name);
            expect_error(ctx, "wait list");
        }
        cr_assert_eq(rig_download(&r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
        cr_assert(rig_untouched(&r), "%s", r.note);
        rig_free(&r);
    }
    clReleaseEvent(gate);
    clinfer_ctx_destroy(&ctx);
}

// A chain of six launches: on an out-of-order queue it is held together by events.
Test(calls, in_and_out_of_order_agree)
{
    clinfer_ctx *ctx = open_ctx(NULL);
    cl_command_queue queue = new_queue(ctx, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    struct rig a, b;
    struct clinfer_ctx_stats stats;
    rig_make(&a, "mla_decode_branch", NULL);
    cr_assert_eq(rig_run(&a, ctx), CLINFER_OK);
    clinfer_ctx_stats(ctx, &stats);
    cr_assert_eq(stats.launches, 6);
    for (int i = 0; i < 10; i++) {
        cl_event event;
        ready(&b, ctx, "mla_decode_branch");
        set_queue(&b, queue);
        cr_assert_eq(b.op->run(ctx, &b.params, 0, NULL, i % 2 ? &event : NULL), CLINFER_OK);
        if (i % 2) {
            cr_assert_eq(clWaitForEvents(1, &event), CL_SUCCESS);
            clReleaseEvent(event);
        } else {
            cr_assert_eq(clFinish(queue), CL_SUCCESS);
        }
        cr_assert_eq(rig_download(&b, clinfer_ctx_queue(ctx)), CL_SUCCESS);
        cr_assert(rig_equal(&a, &b), "%s", a.note);
        rig_free(&b);
    }
    rig_reference(&a);
    cr_assert(rig_same(&a), "%s", a.note);
    rig_free(&a);
    clReleaseCommandQueue(queue);
    clinfer_ctx_destroy(&ctx);
}

Test(calls, queue_of_another_context)
{
    clinfer_ctx *ctx = open_ctx(NULL), *other = open_ctx(NULL);
    struct rig r;
    for (int i = 0; i < op_num_descs; i++) {
        ready(&r, ctx, op_descs[i].name);
        set_queue(&r, clinfer_ctx_queue(other));
        cr_assert_eq(r.op->run(ctx, &r.params, 0, NULL, NULL), CLINFER_ERR_ARGUMENT);
        expect_error(ctx, "another OpenCL context");
        cr_assert_eq(rig_download(&r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
        cr_assert(rig_untouched(&r), "%s", r.note);
        rig_free(&r);
    }
    clinfer_ctx_destroy(&other);
    clinfer_ctx_destroy(&ctx);
}

// What _compile compiles is what the call uses, with buffers or without.
Test(calls, compile_then_run)
{
    clinfer_ctx *ctx = open_ctx(NULL);
    struct clinfer_ctx_stats before, after = { 0 };
    struct rig r;
    for (int i = 0; i < op_num_descs; i++) {
        const uint64_t launches = after.launches;
        rig_make(&r, op_descs[i].name, NULL);
        cr_assert_eq(r.op->compile(ctx, &r.params), CLINFER_OK);
        clinfer_ctx_stats(ctx, &before);
        cr_assert_eq(before.launches, launches, "compiling launched something");
        cr_assert_eq(rig_run(&r, ctx), CLINFER_OK);
        clinfer_ctx_stats(ctx, &after);
        cr_assert_eq(after.compiled, before.compiled);
        cr_assert_eq(after.programs, before.programs);
        rig_reference(&r);
        cr_assert(rig_same(&r), "%s", r.note);
        rig_free(&r);
    }
    // One of each: all products are one program, matmul's.
    const uint64_t programs = (uint64_t) op_num_descs;
    cr_assert_eq(after.compiled, programs);
    cr_assert_eq(after.programs, programs);
    cr_assert_eq(after.loaded + after.stored + after.rejected, 0, "the cache is off");
    clinfer_ctx_destroy(&ctx);
}
