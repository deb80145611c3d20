// SPDX-License-Identifier: Apache-2.0
// The one path of every call: plan, views, queue, programs, workspace, then enqueue.c.
#include "call.h"
#include "clblast.h"
#include "inspect.h"
#include "program.h"
#include <stdio.h>

const struct clf_op *const clf_ops[CLF_NUM_OPS] = {
#define CLF_X(name) [CLF_OP_##name] = &clf_op_##name,
    CLF_OPS(CLF_X)
#undef CLF_X
};

static clinfer_status check_queue(struct clf_call *c, const void *params)
{
    cl_context cl = NULL;
    cl_device_id device = NULL;
    cl_command_queue_properties properties = 0;
    c->queue = *(const cl_command_queue *) ((const char *) params + c->plan->op->queue);
    if (!c->queue)
        c->queue = c->ctx->queue;
    cl_int err = clGetCommandQueueInfo(c->queue, CL_QUEUE_CONTEXT, sizeof cl, &cl, NULL);
    if (!err)
        err = clGetCommandQueueInfo(c->queue, CL_QUEUE_DEVICE, sizeof device, &device, NULL);
    if (!err)
        err = clGetCommandQueueInfo(c->queue, CL_QUEUE_PROPERTIES, sizeof properties, &properties, NULL);
    if (err)
        return clf_call_error(c, err, "the queue cannot be queried");
    if (cl != c->ctx->cl || device != c->ctx->device)
        return clf_call_error(c, CLINFER_ERR_ARGUMENT,
                              "the queue belongs to another OpenCL context or device");
    c->out_of_order = properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE;
    if ((c->num_wait != 0) != (c->wait != NULL))
        return clf_call_error(c, CL_INVALID_EVENT_WAIT_LIST, "wait list and its length disagree");
    return CLINFER_OK;
}

// The caller's workspace or the arena, grown by replacement: commands in flight keep the old buffer alive.
static clinfer_status get_workspace(struct clf_call *c)
{
    const struct clf_plan *plan = c->plan;
    struct clf_arena *arena = &c->ctx->arena;
    cl_int err;
    c->workspace = plan->workspace_mem;
    if (!plan->workspace || plan->workspace_mem)
        return CLINFER_OK;
    if (arena->size < plan->workspace) {
        char text[CLF_ERROR_SIZE];
        cl_mem mem = NULL;
        if (c->ctx->info.max_alloc && plan->workspace > c->ctx->info.max_alloc)
            err = CL_INVALID_BUFFER_SIZE;
        else
            mem = clCreateBuffer(c->ctx->cl, CL_MEM_READ_WRITE, plan->workspace, NULL, &err);
        if (err) {
            snprintf(text, sizeof text,
                     "a workspace of %zu bytes, where the device allocates at most %llu at once",
                     plan->workspace, (unsigned long long) c->ctx->info.max_alloc);
            return clf_call_error(c, err, text);
        }
        if (arena->mem)
            clReleaseMemObject(arena->mem);
        arena->mem = mem;
        c->ctx->stats.arena_bytes = arena->size = plan->workspace;
    }
    c->workspace = arena->mem;
    return CLINFER_OK;
}

// T or B is 0: the event, if asked for, follows the wait list.
static clinfer_status enqueue_nothing(struct clf_call *c, cl_event *event)
{
    cl_int err = event ? clEnqueueMarkerWithWaitList(c->queue, c->num_wait, c->wait, event) : CL_SUCCESS;
    return err ? clf_call_error(c, err, "marker of an empty call") : CLINFER_OK;
}

clinfer_status clf_run(clinfer_ctx *ctx, const struct clf_op *op, const void *params, cl_uint num_events,
                       const cl_event *events, cl_event *event)
{
    struct clf_plan plan;
    struct clf_call c = {
        .ctx = ctx, .plan = &plan, .wait = events, .num_wait = num_events, .fault = ctx->fault
    };
    clinfer_status st;
    bool again;
    do {
        const struct clf_caps caps = clf_variant_caps(ctx, op);
        st = clf_plan(&plan, op, params, &caps, CLF_CALL);
        if (!st)
            st = clf_check_views(&plan);
        if (st)
            return clf_error(ctx, st, plan.error);
        st = check_queue(&c, params);
        if (st || plan.empty)
            return st ? st : enqueue_nothing(&c, event);
        pthread_mutex_lock(&ctx->lock);
        st = clf_variant_kernels(&c, params, &again);
        if (!st && !again)
            st = get_workspace(&c);
        if (!st && !again)
            st = clf_enqueue(&c, event);
        pthread_mutex_unlock(&ctx->lock);
    } while (again);
    return st;
}

clinfer_status clf_compile(clinfer_ctx *ctx, const struct clf_op *op, const void *params)
{
    struct clf_plan plan;
    struct clf_call c = { .ctx = ctx, .plan = &plan };
    clinfer_status st;
    bool again;
    do {
        const struct clf_caps caps = clf_variant_caps(ctx, op);
        st = clf_plan(&plan, op, params, &caps, CLF_COMPILE);
        if (st)
            return clf_error(ctx, st, plan.error);
        if (ctx->inspect)
            return clf_inspect(ctx, &plan);
        pthread_mutex_lock(&ctx->lock);
        st = clf_variant_kernels(&c, params, &again);
        pthread_mutex_unlock(&ctx->lock);
    } while (again);
    return st;
}

// Enough for whichever set takes the call.
clinfer_status clf_measure(clinfer_ctx *ctx, const struct clf_op *op, const void *params, size_t *bytes)
{
    struct clf_plan plan;
    struct clf_caps caps = clf_variant_caps(ctx, op);
    *bytes = 0;
    clinfer_status st = clf_plan(&plan, op, params, &caps, CLF_MEASURE);
    if (st)
        return clf_error(ctx, st, plan.error);
    *bytes = plan.workspace;
    for (int i = 0; i < CLF_NUM_SETS && ctx->order[i]; i++) {
        caps.set = ctx->order[i];
        if (!clf_plan(&plan, op, params, &caps, CLF_MEASURE) && plan.workspace > *bytes)
            *bytes = plan.workspace;
    }
    return CLINFER_OK;
}
