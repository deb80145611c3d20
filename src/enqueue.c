// SPDX-License-Identifier: Apache-2.0
// Arguments and launches of a call: the only place that binds and enqueues for one.
#include "call.h"
#include "clblast.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

clinfer_status clf_call_error(struct clf_call *c, cl_int err, const char *what)
{
    char text[2 * CLF_ERROR_SIZE];
    snprintf(text, sizeof text, "%s: %s: %s", c->plan->op->name, what,
             clinfer_status_str((clinfer_status) err));
    return clf_error(c->ctx, (clinfer_status) err, text);
}

// A command of a call: a launch, and which repetition of it.
struct step {
    int launch;
    cl_uint index;
};

// Launches of the loop count once for each repetition.
static int64_t num_steps(const struct clf_plan *plan)
{
    const int64_t more = plan->loop.count ? (int64_t) plan->loop.times - 1 : 0;
    return plan->num_launches + more * plan->loop.count;
}

static struct step step_at(const struct clf_plan *plan, int64_t i)
{
    const struct clf_loop *loop = &plan->loop;
    const int64_t in_loop = i - loop->first, all = (int64_t) loop->count * loop->times;
    if (!loop->count || in_loop < 0)
        return (struct step){ (int) i, 0 };
    if (in_loop >= all)
        return (struct step){ (int) (i - all + loop->count), 0 };
    return (struct step){ loop->first + (int) (in_loop % loop->count), (cl_uint) (in_loop / loop->count) };
}

// All arguments of a step's kernel, or only those that differ from one repetition to the next.
static cl_int bind(const struct clf_call *c, struct step s, bool all)
{
    const struct clf_launch *l = &c->plan->launch[s.launch];
    cl_int err = CL_SUCCESS;
    for (int i = 0; !err && i < l->num_args; i++) {
        const struct clf_arg *a = &l->arg[i];
        const void *value = a->kind == CLF_ARG_WORKSPACE ? (const void *) &c->workspace
                            : a->kind == CLF_ARG_FAULT   ? (const void *) &c->fault
                            : a->kind == CLF_ARG_INDEX   ? (const void *) &s.index
                                                         : (const void *) &a->v;
        if (all || a->kind == CLF_ARG_INDEX)
            err = clSetKernelArg(c->kernel[s.launch], (cl_uint) i, a->size, value);
    }
    return err;
}

// Two launches of one call may share a kernel: a later one's arguments then take the place of an earlier
// one's.
static bool has_twin(const struct clf_call *c, int launch)
{
    for (int i = 0; i < c->plan->num_launches; i++)
        if (i != launch && c->kernel[i] == c->kernel[launch])
            return true;
    return false;
}

// All arguments before the first launch, so that one which the driver refuses leaves nothing behind.
static cl_int bind_all(const struct clf_call *c, int *launch)
{
    cl_int err = CL_SUCCESS;
    for (*launch = 0; *launch < c->plan->num_launches; ++*launch)
        if ((err = bind(c, (struct step){ *launch, 0 }, true)))
            break;
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
    if (status == CL_COMPLETE &&
        !clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_START, sizeof start, &start, NULL) &&
        !clGetEventProfilingInfo(event, CL_PROFILING_COMMAND_END, sizeof end, &end, NULL))
        p->report(p->priv, p->op, p->kernel, end - start);
    free(p);
    clReleaseEvent(event);
}

// A launch that cannot be reported is only not reported.
static void report_time(const struct clf_call *c, const struct clf_launch *l, cl_event event)
{
    struct profiled *p = malloc(sizeof *p);
    if (!p)
        return;
    *p = (struct profiled){ c->ctx->profile, c->ctx->profile_priv, c->plan->op->name, l->kernel };
    if (clRetainEvent(event)) {
        free(p);
    } else if (clSetEventCallback(event, CL_COMPLETE, on_complete, p)) {
        clReleaseEvent(event);
        free(p);
    }
}

// CLBlast takes no wait list: a barrier carries it.
static cl_int multiply(struct clf_call *c, const struct clf_gemm *g, cl_uint num_wait, const cl_event *wait,
                       cl_event *event)
{
    cl_int err = num_wait ? clEnqueueBarrierWithWaitList(c->queue, num_wait, wait, NULL) : CL_SUCCESS;
    if (!err)
        err = clf_clblast_sgemm(g, c->workspace, c->queue, event);
    c->ctx->stats.gemm_calls += !err && !c->quiet;
    return err;
}

static cl_int launch(struct clf_call *c, struct step s, cl_uint num_wait, const cl_event *wait,
                     cl_event *event)
{
    const struct clf_launch *l = &c->plan->launch[s.launch];
    if (l->kind == CLF_GEMM)
        return multiply(c, &l->gemm, num_wait, wait, event);
    const bool all = has_twin(c, s.launch);
    cl_int err = all || s.index ? bind(c, s, all) : CL_SUCCESS;
    if (!err)
        err = clEnqueueNDRangeKernel(c->queue, c->kernel[s.launch], 3, NULL, l->global, l->local, num_wait,
                                     wait, event);
    c->ctx->stats.launches += !err && !c->quiet;
    return err;
}

// Launches follow each other: by the queue's order, or by an event each. Sets *last to the final event where
// `want_last` asks for it. *done counts the launches that the driver took.
static cl_int enqueue(struct clf_call *c, const cl_event *wait, cl_uint num_wait, bool want_last,
                      cl_event *last, int64_t *done)
{
    const int64_t steps = num_steps(c->plan);
    const bool report = c->ctx->profile && !c->quiet;
    cl_event previous = NULL;
    cl_int err = CL_SUCCESS;
    for (*done = 0; *done < steps; ++*done) {
        const struct step s = step_at(c->plan, *done);
        const bool final = *done == steps - 1;
        const bool need = c->out_of_order || report || (final && want_last);
        cl_event event = NULL;
        err = launch(c, s, num_wait, wait, need ? &event : NULL);
        if (err)
            break;
        if (event && report)
            report_time(c, &c->plan->launch[s.launch], event);
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

// Makes later calls wait for what was enqueued so far: by the event of the last launch or, where a launch
// failed after others, of a marker.
static void arena_in_use(struct clf_call *c, cl_event last)
{
    struct clf_arena *arena = &c->ctx->arena;
    cl_event event = last;
    cl_int err = last ? clRetainEvent(last) : clEnqueueMarkerWithWaitList(c->queue, 0, NULL, &event);
    if (err) {
        clFinish(c->queue);
        return;
    }
    if (arena->last)
        clReleaseEvent(arena->last);
    arena->last = event;
}

// The event that a call in the arena has to wait for, or NULL. A command that ended with an error, its wait
// list's perhaps, no longer uses the arena, and must not fail those that come after it.
static cl_event arena_event(struct clf_arena *arena)
{
    cl_int state = CL_COMPLETE;
    if (arena->last &&
        !clGetEventInfo(arena->last, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL) &&
        state < 0) {
        clReleaseEvent(arena->last);
        arena->last = NULL;
    }
    return arena->last;
}

// With the arena, a call also waits for the one that used it last. The caller's list may have any length,
// so a marker stands for it.
static cl_int enqueue_after_arena(struct clf_call *c, cl_event *last, int64_t *done)
{
    cl_event both[2];
    cl_uint n = 0;
    cl_int err = CL_SUCCESS;
    if (c->num_wait)
        err = clEnqueueMarkerWithWaitList(c->queue, c->num_wait, c->wait, &both[n++]);
    if (err)
        return err;
    if ((both[n] = arena_event(&c->ctx->arena)))
        n++;
    err = enqueue(c, n ? both : NULL, n, true, last, done);
    if (c->num_wait)
        clReleaseEvent(both[0]);
    if (*done) {
        arena_in_use(c, err ? NULL : *last);
        const cl_int flushed = clFlush(c->queue); // another queue may come to wait for this one
        if (flushed)
            clf_log(c->ctx, CLINFER_LOG_WARN, "%s: clFlush: %s", c->plan->op->name,
                    clinfer_status_str((clinfer_status) flushed));
    }
    return err;
}

// The error of launch `number` of `of`, from 1.
static clinfer_status launch_error(struct clf_call *c, cl_int err, const char *what, int launch,
                                   int64_t number, int64_t of)
{
    char text[256];
    const int n = snprintf(text, sizeof text, "%s %" PRId64 " of %" PRId64, what, number, of);
    if (c->plan->launch[launch].kind == CLF_GEMM) {
        const char *why;
        const int code = err;
        err = (cl_int) clf_clblast_status(code, &why);
        snprintf(text + n, sizeof text - (size_t) n, ", by CLBlast%s%s (%d)", why ? ": " : "", why ? why : "",
                 code);
    }
    return clf_call_error(c, err, text);
}

clinfer_status clf_enqueue(struct clf_call *c, cl_event *event)
{
    cl_event last = NULL;
    int bound;
    int64_t done;
    const bool arena = c->plan->workspace && !c->plan->workspace_mem;
    cl_int err = bind_all(c, &bound);
    if (err)
        return launch_error(c, err, "arguments of launch", bound, bound + 1, c->plan->num_launches);
    done = 0;
    err = arena ? enqueue_after_arena(c, &last, &done)
                : enqueue(c, c->wait, c->num_wait, event != NULL, &last, &done);
    if (err)
        return launch_error(c, err, "launch", step_at(c->plan, done).launch, done + 1, num_steps(c->plan));
    if (event)
        *event = last;
    else if (last)
        clReleaseEvent(last);
    return CLINFER_OK;
}
