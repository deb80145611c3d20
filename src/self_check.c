// SPDX-License-Identifier: Apache-2.0
// The small call on the device, on a queue and buffers of its own, then in the reference.
#include "self_check_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static clinfer_status fail(const struct clf_check *k, clinfer_status st, const char *what)
{
    char text[CLF_ERROR_SIZE];
    snprintf(text, sizeof text, "%s: self-check: %s: %s", k->op->name, what, clinfer_status_str(st));
    return clf_error(k->ctx, st, text);
}

static size_t bytes_of(const struct clf_check_buffer *b)
{
    return (size_t) b->count * clinfer_dtype_size(b->dtype);
}

static clinfer_status make_images(struct clf_check *k)
{
    for (int i = 0; i < k->num_buffers; i++) {
        struct clf_check_buffer *b = &k->buffer[i];
        const bool out = b->role != CLF_CHECK_IN;
        if (!bytes_of(b))
            continue;
        b->want = malloc(bytes_of(b));
        b->got = out ? malloc(bytes_of(b)) : NULL;
        if (!b->want || (out && !b->got))
            return fail(k, CLINFER_ERR_MEMORY, b->name);
    }
    clf_check_fill(k);
    return CLINFER_OK;
}

static clinfer_status create(struct clf_check *k, const char *name, size_t bytes, void *contents, cl_mem *mem)
{
    cl_int err = CL_SUCCESS;
    *mem = NULL;
    if (bytes) // OpenCL has no empty buffers
        *mem = clCreateBuffer(k->ctx->cl, CL_MEM_READ_WRITE | (contents ? CL_MEM_COPY_HOST_PTR : 0), bytes,
                              contents, &err);
    return err ? fail(k, (clinfer_status) err, name) : CLINFER_OK;
}

static void set_mem(const struct clf_check *k, const struct clf_check_buffer *b, cl_mem mem)
{
    memcpy(k->params + b->field, &mem, sizeof mem);
}

// The buffers, and the plan over them.
static clinfer_status make_buffers(struct clf_check *k)
{
    cl_uint zero[CLF_FAULT_WORDS] = { 0 };
    clinfer_status st = create(k, "fault record", sizeof zero, zero, &k->fault);
    for (int i = 0; !st && i < k->num_buffers; i++) {
        struct clf_check_buffer *b = &k->buffer[i];
        st = create(k, b->name, bytes_of(b), b->want, &b->mem);
        set_mem(k, b, b->mem);
    }
    if (st)
        return st;
    if ((st = clf_plan(&k->plan, k->op, k->params, k->plan.caps, CLF_CALL)))
        return clf_error(k->ctx, st, k->plan.error);
    st = create(k, "workspace", k->plan.workspace, NULL, &k->workspace);
    k->plan.workspace_mem = k->workspace;
    return st;
}

static clinfer_status read_back(struct clf_check *k, cl_command_queue queue, struct clf_verdict *verdict)
{
    cl_uint record[CLF_FAULT_WORDS];
    cl_int err = clEnqueueReadBuffer(queue, k->fault, CL_TRUE, 0, sizeof record, record, 0, NULL, NULL);
    for (int i = 0; !err && i < k->num_buffers; i++) {
        struct clf_check_buffer *b = &k->buffer[i];
        if (b->got)
            err = clEnqueueReadBuffer(queue, b->mem, CL_TRUE, 0, bytes_of(b), b->got, 0, NULL, NULL);
    }
    if (err)
        return fail(k, (clinfer_status) err, "reading results");
    for (int i = 0; i < CLF_FAULT_WORDS; i++)
        verdict->good = verdict->good && !record[i];
    if (!verdict->good)
        snprintf(verdict->reason, sizeof verdict->reason, "failed its self-check (it reports a fault)");
    return CLINFER_OK;
}

static clinfer_status launch(struct clf_check *k, const struct clf_call *call, struct clf_verdict *verdict)
{
    struct clf_call c = {
        .ctx = k->ctx, .plan = &k->plan, .workspace = k->workspace, .fault = k->fault, .quiet = true
    };
    cl_int err;
    memcpy(c.kernel, call->kernel, sizeof c.kernel);
    c.queue = clCreateCommandQueue(k->ctx->cl, k->ctx->device, 0, &err);
    if (err)
        return fail(k, (clinfer_status) err, "queue");
    pthread_mutex_lock(&k->ctx->lock);
    clinfer_status st = clf_enqueue(&c, NULL);
    pthread_mutex_unlock(&k->ctx->lock);
    if (!st)
        st = read_back(k, c.queue, verdict);
    else
        clFinish(c.queue); // launches before the one that failed
    clReleaseCommandQueue(c.queue);
    return st;
}

// The reference ends the process where it finds no memory: what it takes at most is asked for first.
static bool has_memory(void)
{
    void *volatile spare = malloc((size_t) 16 << 20); // volatile: compilers drop what is only freed
    const bool found = spare != NULL;
    free(spare);
    return found;
}

static clinfer_status run(struct clf_check *k, const struct clf_call *call, struct clf_verdict *verdict)
{
    clinfer_status st = make_images(k);
    if (!st)
        st = make_buffers(k);
    if (!st)
        st = launch(k, call, verdict);
    if (st || !verdict->good)
        return st;
    if (!has_memory())
        return fail(k, CLINFER_ERR_MEMORY, "reference");
    for (int i = 0; i < k->num_buffers; i++)
        set_mem(k, &k->buffer[i], (cl_mem) (void *) k->buffer[i].want);
    k->op->ref(k->params);
    verdict->good = clf_check_compare(k, verdict);
    return CLINFER_OK;
}

static void release(struct clf_check *k)
{
    for (int i = 0; i < k->num_buffers; i++) {
        free(k->buffer[i].want);
        free(k->buffer[i].got);
        if (k->buffer[i].mem)
            clReleaseMemObject(k->buffer[i].mem);
    }
    if (k->workspace)
        clReleaseMemObject(k->workspace);
    if (k->fault)
        clReleaseMemObject(k->fault);
    free(k->params);
    free(k);
}

clinfer_status clf_self_check(const struct clf_call *call, const void *params, struct clf_verdict *verdict)
{
    struct clf_check *k = calloc(1, sizeof *k);
    *verdict = (struct clf_verdict){ .good = true };
    if (!k || !(k->params = malloc(call->plan->op->params_size))) {
        free(k);
        return clf_error(call->ctx, CLINFER_ERR_MEMORY, "self-check: out of host memory");
    }
    k->ctx = call->ctx;
    k->op = call->plan->op;
    clinfer_status st = CLINFER_OK;
    if (clf_check_shape(k, call->plan, params))
        st = run(k, call, verdict);
    else
        clf_log(k->ctx, CLINFER_LOG_WARN, "%s: no self-check: no small call takes the same programs",
                k->op->name);
    release(k);
    return st;
}
