// SPDX-License-Identifier: Apache-2.0
// Binaries to the cache, after the driver has generated the code that launches run.
#include "program_internal.h"
#include <stdlib.h>
#include <string.h>

// A CPU driver may specialise a kernel on small and on large grids, at its first launch of each.
static const size_t warm_grid[] = { 1, (size_t) 1 << 17 };

// A program on its way to the cache: what saving needs of it, so that other threads need not wait.
struct job {
    const char *source;
    char *key;
    cl_program program; // lives as long as the context
    struct clf_kernel kernel[CLF_MAX_KERNELS];
    int num_kernels;
};

// The next unsaved program. It counts as saved from here on: a driver's first answer is its last, and a cache
// that refuses once is not asked again.
static bool next_job(clinfer_ctx *ctx, struct job *job, cl_int *err)
{
    char why[CLF_ERROR_SIZE];
    const struct clf_source *source;
    bool found = false;
    pthread_mutex_lock(&ctx->lock);
    for (struct clf_program *p = ctx->programs; p && !found; p = p->next) {
        found = p->state == CLF_READY && !p->saved && p->checked && p->num_kernels;
        if (!found)
            continue;
        p->saved = true;
        *job = (struct job){ .source = p->spec.source, .program = p->program, .num_kernels = p->num_kernels };
        memcpy(job->kernel, p->kernel, sizeof job->kernel);
        if (!clf_source_get(ctx, p->spec.set, p->spec.source, &source, why, sizeof why))
            job->key = clf_program_key(ctx, &p->spec, source);
        *err = job->key ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
    }
    pthread_mutex_unlock(&ctx->lock);
    return found;
}

static cl_int bind_nothing(cl_kernel kernel, const struct clf_kernel *k)
{
    static const cl_ulong zero[2] = { 0, 0 };
    cl_int err = CL_SUCCESS;
    for (int i = 0; !err && i < k->num_args; i++) {
        const cl_mem none = NULL;
        err = k->arg_size[i] ? clSetKernelArg(kernel, (cl_uint) i, k->arg_size[i], zero)
                             : clSetKernelArg(kernel, (cl_uint) i, sizeof none, &none);
    }
    return err;
}

// Launches each kernel of the program with a count of 0, on which it returns at once. The kernel objects are
// its own: those of the calls have arguments of theirs.
static cl_int warm(const struct job *job, cl_command_queue queue)
{
    cl_int err = CL_SUCCESS;
    for (int i = 0; !err && i < job->num_kernels; i++) {
        cl_kernel kernel = clCreateKernel(job->program, job->kernel[i].name, &err);
        if (err)
            return err;
        err = bind_nothing(kernel, &job->kernel[i]);
        for (size_t g = 0; !err && g < sizeof warm_grid / sizeof warm_grid[0]; g++) {
            const size_t *local = job->kernel[i].local;
            const size_t global[3] = { warm_grid[g] * local[0], local[1], local[2] };
            err = clEnqueueNDRangeKernel(queue, kernel, 3, NULL, global, local, 0, NULL, NULL);
        }
        clReleaseKernel(kernel);
    }
    return err ? err : clFinish(queue);
}

// The binary for the context's device among all that the program has.
static cl_int binary_of(const clinfer_ctx *ctx, cl_program program, struct clf_blob *blob)
{
    enum { MAX = 16 };
    cl_device_id device[MAX];
    size_t size[MAX] = { 0 }, got = 0;
    unsigned char *data[MAX] = { NULL };
    cl_uint n = 0;
    cl_int err = clGetProgramInfo(program, CL_PROGRAM_NUM_DEVICES, sizeof n, &n, NULL);
    if (err || n > MAX)
        return err ? err : CL_OUT_OF_RESOURCES;
    err = clGetProgramInfo(program, CL_PROGRAM_DEVICES, n * sizeof device[0], device, NULL);
    if (!err)
        err = clGetProgramInfo(program, CL_PROGRAM_BINARY_SIZES, n * sizeof size[0], size, &got);
    for (cl_uint i = 0; !err && i < n; i++)
        if (device[i] == ctx->device) {
            blob->size = size[i];
            blob->data = data[i] = size[i] ? malloc(size[i]) : NULL;
            err = data[i] ? clGetProgramInfo(program, CL_PROGRAM_BINARIES, n * sizeof data[0], data, NULL)
                          : CL_OUT_OF_HOST_MEMORY;
            break;
        }
    if (err || !blob->data) {
        free(blob->data);
        blob->data = NULL;
    }
    return err ? err : blob->data ? CL_SUCCESS : CL_INVALID_DEVICE;
}

static cl_int save(clinfer_ctx *ctx, const struct job *job, cl_command_queue *queue)
{
    struct clf_blob blob = { NULL, 0 };
    char why[CLF_ERROR_SIZE];
    cl_int err = CL_SUCCESS;
    if (!strcmp(ctx->info.type, "cpu")) {
        if (!*queue)
            *queue = clCreateCommandQueue(ctx->cl, ctx->device, 0, &err);
        if (!err)
            err = warm(job, *queue);
    }
    if (!err)
        err = binary_of(ctx, job->program, &blob);
    if (err)
        return err;
    if (clf_cache_put(&ctx->cache, job->key, blob.data, blob.size, why, sizeof why)) {
        pthread_mutex_lock(&ctx->lock);
        ctx->stats.stored++;
        pthread_mutex_unlock(&ctx->lock);
    } else {
        clf_log(ctx, CLINFER_LOG_WARN, "%s: compiled program not stored: %s", job->source, why);
    }
    free(blob.data);
    return CL_SUCCESS;
}

clinfer_status clf_programs_save(clinfer_ctx *ctx)
{
    struct job job;
    cl_int err = CL_SUCCESS;
    cl_command_queue queue = NULL;
    if (!clf_cache_writable(&ctx->cache))
        return CLINFER_OK;
    while (!err && next_job(ctx, &job, &err)) {
        if (!err)
            err = save(ctx, &job, &queue);
        free(job.key);
    }
    if (queue)
        clReleaseCommandQueue(queue);
    if (!err)
        return CLINFER_OK;
    char text[128] = "compiled programs cannot be saved: ";
    strncat(text, clinfer_status_str((clinfer_status) err), sizeof text - strlen(text) - 1);
    return clf_error(ctx, (clinfer_status) err, text);
}
