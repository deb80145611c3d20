// SPDX-License-Identifier: Apache-2.0
// The rig's call on a device and in the reference, and what is the same.
#include "rig.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void set_mem(union rig_params *p, const struct op_tensor *t, cl_mem mem)
{
    void *at = (char *) p + t->offset;
    if (t->place == OP_BLOCKS)
        ((clinfer_kv_cache *) at)->mem = mem;
    else
        ((clinfer_tensor *) at)->mem = mem;
}

cl_int rig_open(struct rig *r, cl_context context)
{
    cl_int err = CL_SUCCESS;
    for (int i = 0; !err && i < r->num_buffers; i++) {
        struct rig_buffer *b = &r->buffer[i];
        b->mem = clCreateBuffer(context, CL_MEM_READ_WRITE, b->size, NULL, &err);
        set_mem(&r->params, b->tensor, b->mem);
    }
    return err;
}

cl_int rig_upload(struct rig *r, cl_command_queue queue)
{
    cl_int err = CL_SUCCESS;
    for (int i = 0; !err && i < r->num_buffers; i++)
        err = clEnqueueWriteBuffer(queue, r->buffer[i].mem, CL_TRUE, 0, r->buffer[i].size,
                                   r->buffer[i].initial, 0, NULL, NULL);
    return err ? err : clFinish(queue); // a blocking write returns before other queues see it
}

cl_int rig_download(struct rig *r, cl_command_queue queue)
{
    cl_int err = clFinish(queue);
    for (int i = 0; !err && i < r->num_buffers; i++)
        err = clEnqueueReadBuffer(queue, r->buffer[i].mem, CL_TRUE, 0, r->buffer[i].size, r->buffer[i].got, 0,
                                  NULL, NULL);
    return err;
}

void rig_close(struct rig *r)
{
    for (int i = 0; i < r->num_buffers; i++) {
        if (r->buffer[i].mem)
            clReleaseMemObject(r->buffer[i].mem);
        r->buffer[i].mem = NULL;
    }
}

clinfer_status rig_run(struct rig *r, clinfer_ctx *ctx)
{
    cl_command_queue queue = clinfer_ctx_queue(ctx);
    cl_int err = rig_open(r, clinfer_ctx_cl_context(ctx));
    if (!err)
        err = rig_upload(r, queue);
    clinfer_status st = err ? (clinfer_status) err : r->op->run(ctx, &r->params, 0, NULL, NULL);
    err = err ? err : rig_download(r, queue);
    rig_close(r);
    return st ? st : (clinfer_status) err;
}

void rig_reference(struct rig *r)
{
    union rig_params host = r->params;
    for (int i = 0; i < r->num_buffers; i++) {
        memcpy(r->buffer[i].want, r->buffer[i].initial, r->buffer[i].size);
        set_mem(&host, r->buffer[i].tensor, (cl_mem) (void *) r->buffer[i].want);
    }
    r->op->ref(&host);
}

static bool close_enough(const unsigned char *got, const unsigned char *want, const unsigned char *initial)
{
    float x, y;
    if (!memcmp(got, want, 4))
        return true;
    memcpy(&x, got, 4);
    memcpy(&y, want, 4);
    return memcmp(want, initial, 4) && fabsf(x - y) <= 2e-5f * (1.0f + fabsf(y));
}

bool rig_same(struct rig *r)
{
    for (int i = 0; i < r->num_buffers; i++) {
        const struct rig_buffer *b = &r->buffer[i];
        for (size_t at = 0; at < b->size; at += 4)
            if (!close_enough(b->got + at, b->want + at, b->initial + at)) {
                float x, y;
                memcpy(&x, b->got + at, 4);
                memcpy(&y, b->want + at, 4);
                snprintf(r->note, sizeof r->note, "%s of %s: element %td is %g, want %g", b->tensor->name,
                         r->op->name, ((ptrdiff_t) at - RIG_GUARD) / 4, (double) x, (double) y);
                return false;
            }
    }
    return true;
}

bool rig_untouched(struct rig *r)
{
    for (int i = 0; i < r->num_buffers; i++)
        if (memcmp(r->buffer[i].got, r->buffer[i].initial, r->buffer[i].size)) {
            snprintf(r->note, sizeof r->note, "%s of %s was written", r->buffer[i].tensor->name, r->op->name);
            return false;
        }
    return true;
}

// Of V, which only the new rows of some ops concern, what is cached holds poison.
static bool equal_rows(struct rig *a, struct rig *b, int64_t plane)
{
    unsigned char *x = rig_buffer(a, "kv_blocks")->got + plane * rig_plane_bytes(a);
    unsigned char *y = rig_buffer(b, "kv_blocks")->got + plane * rig_plane_bytes(b);
    for (int64_t q = 0; q < RIG_REQUESTS; q++)
        for (int64_t p = plane ? a->batch.cached[q] : 0; p < a->batch.cached[q] + a->batch.fresh[q]; p++)
            if (memcmp(rig_row(a, x, q, p), rig_row(b, y, q, p), RIG_ROW_BYTES)) {
                snprintf(a->note, sizeof a->note, "%s: cache row %d of request %d differs, plane %d",
                         a->op->name, (int) p, (int) q, (int) plane);
                return false;
            }
    return true;
}

bool rig_equal(struct rig *a, struct rig *b)
{
    const int64_t used = a->op->kv ? a->batch.fresh[0] + a->batch.fresh[1] + a->batch.fresh[2] : RIG_TOKENS;
    for (int i = 0; i < a->num_buffers; i++) {
        const struct rig_buffer *x = &a->buffer[i], *y = &b->buffer[i];
        const size_t bytes = (x->size - 2 * RIG_GUARD) / RIG_TOKENS * (size_t) used;
        if (x->tensor->role == OP_OUT && memcmp(x->got + RIG_GUARD, y->got + RIG_GUARD, bytes)) {
            snprintf(a->note, sizeof a->note, "%s of %s differs", x->tensor->name, a->op->name);
            return false;
        }
    }
    return !a->op->kv || (equal_rows(a, b, 0) && (!a->op->kv_v || equal_rows(a, b, 1)));
}
