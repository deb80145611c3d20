// SPDX-License-Identifier: Apache-2.0
// The one path of every call, and the only places that bind arguments and enqueue kernels for it.
#include "op.h"
#include "ctx.h"
#include "program.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct clf_op *const clf_ops[CLF_NUM_OPS] = {
#define CLF_X(name) [CLF_OP_##name] = &clf_op_##name,
    CLF_OPS(CLF_X)
#undef CLF_X
};

// One call under way: what enqueueing needs beside the plan.
struct call {
    clinfer_ctx *ctx;
    struct clf_plan *plan;
    cl_command_queue queue;
    bool out_of_order;
    const cl_event *wait;
    cl_uint num_wait;
    cl_kernel kernel[CLF_MAX_LAUNCHES];
    cl_mem workspace;
};

static clinfer_status call_error(struct call *c, cl_int err, const char *what)
{
    char text[2 * CLF_ERROR_SIZE];
    snprintf(text, sizeof text, "%s: %s: %s", c->plan->op->name, what, clinfer_status_str((clinfer_status) err));
    return clf_error(c->ctx, (clinfer_status) err, text);
}

static clinfer_status check_queue(struct call *c, const void *params)
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
        return call_error(c, err, "the queue cannot be queried");
    if (cl != c->ctx->cl || device != c->ctx->device)
        return call_error(c, CLINFER_ERR_ARGUMENT, "the queue belongs to another OpenCL context or device");
    c->out_of_order = properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE;
    if ((c->num_wait != 0) != (c->wait != NULL))
        return call_error(c, CL_INVALID_EVENT_WAIT_LIST, "wait list and its length disagree");
    return CLINFER_OK;
}

// The caller's workspace or the arena, grown by replacement: commands in flight keep the old buffer alive.
static clinfer_status get_workspace(struct call *c)
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
        if (plan->workspace > c->ctx->info.max_alloc)
            err = CL_INVALID_BUFFER_SIZE;
        else
            mem = clCreateBuffer(c->ctx->cl, CL_MEM_READ_WRITE, plan->workspace, NULL, &err);
        if (err) {
            snprintf(text, sizeof text, "a workspace of %zu bytes, where the device allocates at most %llu at once",
                     plan->workspace, (unsigned long long) c->ctx->info.max_alloc);
            return call_error(c, err, text);
        }
        if (arena->mem)
            clReleaseMemObject(arena->mem);
        arena->mem = mem;
        c->ctx->stats.arena_bytes = arena->size = plan->workspace;
    }
    c->workspace = arena->mem;
    return CLINFER_OK;
}

static cl_int bind(const struct call *c, const struct clf_launch *l, cl_kernel kernel)
{
    cl_int err = CL_SUCCESS;
    for (int i = 0; !err && i < l->num_args; i++) {
        const struct clf_arg *a = &l->arg[i];
        const void *value = a->kind == CLF_ARG_WORKSPACE ? (const void *) &c->workspace
                          : a->kind == CLF_ARG_FAULT     ? (const void *) &c->ctx->fault
                                                         : (const void *) &a->v;
        err = clSetKernelArg(kernel, (cl_uint) i, a->size, value);
    }
    return err;
}

// A launch may outlive its context, so this has what the report takes.
struct profiled {
    void (*report)(void *priv, const char *op, const char *kernel, uint64_t nanoseconds);
    void *priv;
    const char *op, *kernel;
};

static void CL_CALLBACK on_complete(cl_event event, cl_int status, void *data)
{
    struct profiled *p = data;
    cl_ulong start = 0, end = 0;
    if (status == CL_COMPLETE && !clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_START, sizeof start, &start, NULL) &&
        !clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof end, &end, NULL))
        p->report(p->priv, p->op, p->kernel, end - start);
    free(p);
    clReleaseEvent(event);
}

// A launch that cannot be reported is only not reported.
static void report_time(const struct call *c, const struct clf_launch *l, cl_event event)
{
    struct profiled *p = malloc(sizeof *p);
    if (!p)
        return;
    *p = (struct profiled) { c->ctx->profile, c->ctx->profile_priv, c->plan->op->name, l->kernel };
    if (clRetainEvent(event)) {
        free(p);
    } else if (clSetEventCallback(event, CL_COMPLETE, on_complete, p)) {
        clReleaseEvent(event);
        free(p);
    }
}

// Launches follow each other: by the queue's order, or by an event each. Sets *last to the final event where
// `want_last` asks for it. *done counts the launches that the driver took.
static cl_int enqueue(struct call *c, const cl_event *wait, cl_uint num_wait, bool want_last, cl_event *last, int *done)
{
    cl_event previous = NULL;
    cl_int err = CL_SUCCESS;
    for (*done = 0; *done < c->plan->num_launches; ++*done) {
        const struct clf_launch *l = &c->plan->launch[*done];
        const bool final = *done == c->plan->num_launches - 1;
        const bool need = c->out_of_order || c->ctx->profile || (final && want_last);
        cl_event event = NULL;
        err = bind(c, l, c->kernel[*done]);
        if (!err)
            err = clEnqueueNDRangeKernel(c->queue, c->kernel[*done], 3, NULL, l->global, l->local, num_wait, wait,
                                         need ? &event : NULL);
        if (err)
            break;
        c->ctx->stats.launches++;
        if (event && c->ctx->profile)
            report_time(c, l, event);
        if (previous)
            clReleaseEvent(previous);
        previous = event;
        wait = c->out_of_order ? &previous : NULL;
        num_wait = c->out_of_order ? 1 : 0;
    }
    if (!err && want_last)
        *last = previous;
    else if (previous)
        clReleaseEvent(previous);
    return err;
}

// With the arena, a call also waits for the one that used it last. The caller's list may have any length,
// so a marker stands for it.
static cl_int enqueue_after_arena(struct call *c, cl_event *last, int *done)
{
    struct clf_arena *arena = &c->ctx->arena;
    cl_event both[2];
    cl_uint n = 0;
    cl_int err = CL_SUCCESS;
    if (c->num_wait)
        err = clEnqueueMarkerWithWaitList(c->queue, c->num_wait, c->wait, &both[n++]);
    if (err)
        return err;
    if (arena->last)
        both[n++] = arena->last;
    err = enqueue(c, n ? both : NULL, n, true, last, done);
    if (c->num_wait)
        clReleaseEvent(both[0]);
    if (err) {
        if (*done)
            clFinish(c->queue); // launches without a last event are still at the arena
        return err;
    }
    if (arena->last)
        clReleaseEvent(arena->last);
    arena->last = *last;
    clRetainEvent(*last);
    return clFlush(c->queue); // another queue may come to wait for this one
}

static clinfer_status launch_all(struct call *c, cl_event *event)
{
    cl_event last = NULL;
    int done = 0;
    const bool arena = c->plan->workspace && !c->plan->workspace_mem;
    cl_int err = arena ? enqueue_after_arena(c, &last, &done)
                       : enqueue(c, c->wait, c->num_wait, event != NULL, &last, &done);
    if (err) {
        char text[128];
        const int n = c->plan->num_launches;
        if (last)
            clReleaseEvent(last);
        snprintf(text, sizeof text, done < n ? "launch %d of %d" : "flush after launch %d of %d", done < n ? done + 1 : n, n);
        return call_error(c, err, text);
    }
    if (event)
        *event = last;
    else if (last)
        clReleaseEvent(last);
    return CLINFER_OK;
}

// T or B is 0: the event, if asked for, follows the wait list.
static clinfer_status enqueue_nothing(struct call *c, cl_event *event)
{
    cl_int err = event ? clEnqueueMarkerWithWaitList(c->queue, c->num_wait, c->wait, event) : CL_SUCCESS;
    return err ? call_error(c, err, "marker of an empty call") : CLINFER_OK;
}

clinfer_status clf_run(clinfer_ctx *ctx, const struct clf_op *op, const void *params, cl_uint num_events,
                       const cl_event *events, cl_event *event)
{
    struct clf_plan plan;
    struct call c = { .ctx = ctx, .plan = &plan, .wait = events, .num_wait = num_events };
    clinfer_status st = clf_plan(&plan, op, params, &ctx->caps, CLF_CALL);
    if (!st)
        st = clf_check_views(&plan);
    if (st)
        return clf_error(ctx, st, plan.error);
    st = check_queue(&c, params);
    if (st || plan.empty)
        return st ? st : enqueue_nothing(&c, event);
    pthread_mutex_lock(&ctx->lock);
    for (int i = 0; !st && i < plan.num_launches; i++)
        st = clf_program_kernel(ctx, &plan.launch[i], op->name, &c.kernel[i]);
    if (!st)
        st = get_workspace(&c);
    if (!st)
        st = launch_all(&c, event);
    pthread_mutex_unlock(&ctx->lock);
    return st;
}

clinfer_status clf_compile(clinfer_ctx *ctx, const struct clf_op *op, const void *params)
{
    struct clf_plan plan;
    cl_kernel kernel;
    clinfer_status st = clf_plan(&plan, op, params, &ctx->caps, CLF_COMPILE);
    if (st)
        return clf_error(ctx, st, plan.error);
    pthread_mutex_lock(&ctx->lock);
    for (int i = 0; !st && i < plan.num_launches; i++)
        st = clf_program_kernel(ctx, &plan.launch[i], op->name, &kernel);
    pthread_mutex_unlock(&ctx->lock);
    return st;
}

clinfer_status clf_measure(clinfer_ctx *ctx, const struct clf_op *op, const void *params, size_t *bytes)
{
    struct clf_plan plan;
    *bytes = 0;
    clinfer_status st = clf_plan(&plan, op, params, &ctx->caps, CLF_MEASURE);
    if (st)
        return clf_error(ctx, st, plan.error);
    *bytes = plan.workspace;
    return CLINFER_OK;
}
