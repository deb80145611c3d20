// SPDX-License-Identifier: Apache-2.0
#include "clblast.h"
#include <stdio.h>

#if CLF_CLBLAST
#include <clblast_c.h>
#include <dlfcn.h>

// The entry points, of the process; they never change once filled.
static struct {
    __typeof__(CLBlastSgemmStridedBatched) *sgemm;
    __typeof__(CLBlastClearCache) *clear;
    char why[256];
} table;
static pthread_once_t once = PTHREAD_ONCE_INIT;

static bool find(void *library)
{
    // ISO C has no cast from an object pointer to a function's; POSIX promises that the bits serve.
    *(void **) (void *) &table.sgemm = dlsym(library, "CLBlastSgemmStridedBatched");
    *(void **) (void *) &table.clear = dlsym(library, "CLBlastClearCache");
    return table.sgemm && table.clear;
}

static void fill(void)
{
    // What the process has already comes before what is on disk.
    if (find(RTLD_DEFAULT))
        return;
    void *library = dlopen("libclblast.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library && find(library))
        return;
    const char *error = library ? "it has no CLBlastSgemmStridedBatched or no CLBlastClearCache" : dlerror();
    snprintf(table.why, sizeof table.why, "libclblast.so.1 cannot be used: %s",
             error ? error : "no reason given");
    table.sgemm = NULL;
    if (library)
        dlclose(library);
}

const char *clf_clblast_missing(void)
{
    pthread_once(&once, fill);
    return table.sgemm ? NULL : table.why;
}

int clf_clblast_sgemm(const struct clf_gemm *g, cl_mem workspace, cl_command_queue queue, cl_event *event)
{
    const struct clf_matrix *x = &g->x, *w = &g->w, *y = &g->y;
    return table.sgemm(CLBlastLayoutRowMajor, CLBlastTransposeNo, CLBlastTransposeYes, g->m, g->n, g->k, 1.0f,
                       x->mem ? x->mem : workspace, x->at, x->row_stride, x->stride,
                       w->mem ? w->mem : workspace, w->at, w->row_stride, w->stride, 0.0f,
                       y->mem ? y->mem : workspace, y->at, y->row_stride, y->stride, g->batch, &queue, event);
}

void clf_clblast_clear(void)
{
    table.clear();
}
#else
const char *clf_clblast_missing(void)
{
    return "this build of the library has none";
}

int clf_clblast_sgemm(const struct clf_gemm *g, cl_mem workspace, cl_command_queue queue, cl_event *event)
{
    (void) g, (void) workspace, (void) queue, (void) event;
    return CL_INVALID_OPERATION;
}

void clf_clblast_clear(void) {}
#endif

clinfer_status clf_clblast_status(int code, const char **text)
{
    static const struct {
        int code;
        const char *text;
    } list[] = {
        { -1024, "routine not implemented" }, { -2039, "unexpected error" },
        { -2040, "unknown error" },           { -2041, "nothing in its database for this device" },
        { -2046, "not enough local memory" },
    };
    *text = NULL;
    if (code > -1000)
        return (clinfer_status) code;
    *text = "product refused";
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (list[i].code == code)
            *text = list[i].text;
    return CLINFER_ERR_UNSUPPORTED;
}

// x w^T of 1 x 1 matrices that lie one after another in a buffer.
static int multiply(clinfer_ctx *ctx, const float number[2], float *product)
{
    enum { BYTES = 12 };
    const float data[3] = { number[0], number[1], 0.0f };
    cl_int err;
    cl_mem mem = NULL;
    cl_command_queue queue = clCreateCommandQueue(ctx->cl, ctx->device, 0, &err);
    if (!err)
        mem = clCreateBuffer(ctx->cl, CL_MEM_READ_WRITE, BYTES, NULL, &err);
    if (!err)
        err = clEnqueueWriteBuffer(queue, mem, CL_TRUE, 0, BYTES, data, 0, NULL, NULL);
    const struct clf_gemm g = { 1, 1, 1, 1, { mem, 0, 1, 1 }, { mem, 1, 1, 1 }, { mem, 2, 1, 1 } };
    if (!err)
        err = clf_clblast_sgemm(&g, NULL, queue, NULL);
    if (!err)
        err = clEnqueueReadBuffer(queue, mem, CL_TRUE, 8, sizeof *product, product, 0, NULL, NULL);
    if (mem)
        clReleaseMemObject(mem);
    if (queue)
        clReleaseCommandQueue(queue);
    return err;
}

clinfer_status clf_clblast_ready(clinfer_ctx *ctx, const char *op)
{
    char error[CLF_ERROR_SIZE] = "";
    const float number[2] = { 3.0f, 5.0f };
    float product = 0.0f;
    if (ctx->clblast_ready)
        return CLINFER_OK;
    ctx->clblast_used = true;
    pthread_mutex_unlock(&ctx->lock);
    const char *text;
    const int code = multiply(ctx, number, &product);
    clinfer_status st = clf_clblast_status(code, &text);
    if (st) {
        snprintf(error, sizeof error, "%s: CLBlast does not work on \"%s\": %s (%d)", op, ctx->info.device,
                 text ? text : clinfer_status_str(st), code);
    } else if (product != number[0] * number[1]) {
        st = CLINFER_ERR_UNSUPPORTED;
        snprintf(error, sizeof error, "%s: CLBlast is wrong on \"%s\": %g times %g is %g", op,
                 ctx->info.device, (double) number[0], (double) number[1], (double) product);
    }
    if (st)
        clf_error(ctx, st, error);
    pthread_mutex_lock(&ctx->lock);
    ctx->clblast_ready = ctx->clblast_ready || !st;
    return st;
}
