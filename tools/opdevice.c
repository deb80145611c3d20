// SPDX-License-Identifier: Apache-2.0
#include "opcase.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool failed(cl_int status, const char *what, const char *name, char *error, size_t error_size)
{
    if (status == CL_SUCCESS)
        return false;
    (void) snprintf(error, error_size, "%s %s: %s (%d)", what, name,
                    clinfer_status_str((clinfer_status) status), (int) status);
    return true;
}

static void set_mem(void *params, const struct op_tensor *t, cl_mem mem)
{
    void *at = (char *) params + t->offset;
    if (t->place == OP_TENSOR)
        ((clinfer_tensor *) at)->mem = mem;
    else if (t->place == OP_BLOCKS)
        ((clinfer_kv_cache *) at)->mem = mem;
    else
        ((clinfer_kv_cache *) at)->scales = mem;
}

bool op_device_open(const struct op_case *c, cl_context context, struct op_device *d, char *error,
                    size_t error_size)
{
    memset(d, 0, sizeof *d);
    if (!(d->params = malloc(c->op->params_size))) {
        (void) snprintf(error, error_size, "no memory");
        return false;
    }
    memcpy(d->params, c->params, c->op->params_size);
    for (int i = 0; i < c->num_buffers; i++) {
        const struct op_buffer *b = &c->buffers[i];
        cl_int status = CL_SUCCESS;
        if (b->bytes) // OpenCL has no empty buffers
            d->mems[i] = clCreateBuffer(context, CL_MEM_READ_WRITE, b->bytes, NULL, &status);
        if (failed(status, "creating the buffer of", b->tensor->name, error, error_size)) {
            d->mems[i] = NULL;
            op_device_close(d);
            return false;
        }
        set_mem(d->params, b->tensor, d->mems[i]);
    }
    return true;
}

void op_device_close(struct op_device *d)
{
    for (int i = 0; i < OP_MAX_TENSORS; i++)
        if (d->mems[i])
            (void) clReleaseMemObject(d->mems[i]);
    free(d->params);
    memset(d, 0, sizeof *d);
}

bool op_device_upload(const struct op_case *c, const struct op_device *d, cl_command_queue queue, char *error,
                      size_t error_size)
{
    for (int i = 0; i < c->num_buffers; i++) {
        const struct op_buffer *b = &c->buffers[i];
        if (!b->bytes)
            continue;
        const cl_int status =
            clEnqueueWriteBuffer(queue, d->mems[i], CL_TRUE, 0, b->bytes, b->data, 0, NULL, NULL);
        if (failed(status, "writing", b->tensor->name, error, error_size))
            return false;
    }
    return true;
}

bool op_device_download(struct op_case *c, const struct op_device *d, cl_command_queue queue, char *error,
                        size_t error_size)
{
    if (failed(clFinish(queue), "running", c->op->name, error, error_size))
        return false;
    for (int i = 0; i < c->num_buffers; i++) {
        const struct op_buffer *b = &c->buffers[i];
        if (!b->bytes || b->tensor->role == OP_IN)
            continue;
        const cl_int status =
            clEnqueueReadBuffer(queue, d->mems[i], CL_TRUE, 0, b->bytes, b->data, 0, NULL, NULL);
        if (failed(status, "reading", b->tensor->name, error, error_size))
            return false;
    }
    return true;
}
