// SPDX-License-Identifier: Apache-2.0
// Specialisations: one program each, found by its defines, kept until the context goes.
#include "program_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool same_text(const char *a, const char *b)
{
    return a == b || (a && b && !strcmp(a, b));
}

bool clf_same_spec(const struct clf_spec *a, const struct clf_spec *b)
{
    if (a->set != b->set || a->arith != b->arith || a->num_defs != b->num_defs ||
        !same_text(a->source, b->source))
        return false;
    for (int i = 0; i < a->num_defs; i++)
        if (a->def[i].value != b->def[i].value || !same_text(a->def[i].name, b->def[i].name) ||
            !same_text(a->def[i].text, b->def[i].text))
            return false;
    return true;
}

// The entry of a spec, made where there is none. Lock held.
static struct clf_program *entry_of(clinfer_ctx *ctx, const struct clf_spec *spec)
{
    for (struct clf_program *p = ctx->programs; p; p = p->next)
        if (clf_same_spec(&p->spec, spec))
            return p;
    struct clf_program *p = calloc(1, sizeof *p);
    if (p) {
        p->spec = *spec;
        p->next = ctx->programs;
        ctx->programs = p;
        ctx->stats.programs++;
    }
    return p;
}

static clinfer_status fail(clinfer_ctx *ctx, clinfer_status status, const char *op, const char *fmt,
                           const char *what)
{
    char text[CLF_ERROR_SIZE];
    const int n = snprintf(text, sizeof text, "%s: ", op);
    snprintf(text + n, sizeof text - (size_t) n, fmt, what, clinfer_status_str(status));
    return clf_error(ctx, status, text);
}

// Waits for another thread's build of the entry, or builds it. Lock held, let go of meanwhile.
static clinfer_status make_ready(clinfer_ctx *ctx, struct clf_program *p, const char *op, bool from_source)
{
    while (p->state == CLF_BUILDING)
        pthread_cond_wait(&ctx->compiled, &ctx->lock);
    if (p->state == CLF_READY)
        return CLINFER_OK;
    const struct clf_source *source;
    char error[CLF_ERROR_SIZE];
    clinfer_status st = clf_source_get(ctx, p->spec.set, p->spec.source, &source, error, sizeof error);
    if (st)
        return fail(ctx, st, op, "%s", error);
    p->state = CLF_BUILDING;
    pthread_mutex_unlock(&ctx->lock);
    struct clf_built built = { 0 };
    st = clf_program_build(ctx, &p->spec, source, op, from_source, &built);
    pthread_mutex_lock(&ctx->lock);
    p->state = st ? CLF_EMPTY : CLF_READY;
    p->program = built.program;
    p->saved = built.from_cache;
    p->checked = built.from_cache || ctx->no_self_check;
    ctx->stats.compiled += !st && !built.from_cache;
    ctx->stats.loaded += !st && built.from_cache;
    ctx->stats.rejected += built.rejected;
    pthread_cond_broadcast(&ctx->compiled);
    return st;
}

static void release(struct clf_program *p)
{
    for (int i = 0; i < p->num_kernels; i++)
        clReleaseKernel(p->kernel[i].kernel);
    if (p->program)
        clReleaseProgram(p->program);
}

// Empties an entry. Its objects go with the context: another thread may be about to bind one of its kernels.
static bool retire(clinfer_ctx *ctx, struct clf_program *p)
{
    struct clf_program *old = malloc(sizeof *old);
    if (!old)
        return false;
    *old = *p;
    old->spec.source = NULL;
    old->next = ctx->programs;
    old->saved = true;
    ctx->programs = old;
    p->program = NULL;
    p->num_kernels = 0;
    p->state = CLF_EMPTY;
    return true;
}

static struct clf_kernel *find_kernel(struct clf_program *p, const char *name)
{
    for (int i = 0; i < p->num_kernels; i++)
        if (!strcmp(p->kernel[i].name, name))
            return &p->kernel[i];
    return NULL;
}

// Whether the device runs the kernel in work-groups of the launch's size.
static cl_int check_group(const clinfer_ctx *ctx, cl_kernel kernel, const struct clf_launch *l)
{
    const size_t want = l->local[0] * l->local[1] * l->local[2];
    size_t most = 0;
    if (want == 1)
        return CL_SUCCESS;
    cl_int err =
        clGetKernelWorkGroupInfo(kernel, ctx->device, CL_KERNEL_WORK_GROUP_SIZE, sizeof most, &most, NULL);
    if (err || want <= most)
        return err;
    clf_log(ctx, CLINFER_LOG_WARN, "kernel %s wants work-groups of %zu, the device runs it with at most %zu",
            l->kernel, want, most);
    return CL_INVALID_WORK_GROUP_SIZE;
}

static bool is_scalar(const struct clf_arg *a)
{
    return a->kind == CLF_ARG_SCALAR || a->kind == CLF_ARG_INDEX;
}

static cl_int add_kernel(const clinfer_ctx *ctx, struct clf_program *p, const struct clf_launch *l,
                         cl_kernel *kernel)
{
    cl_int err;
    cl_kernel k = clCreateKernel(p->program, l->kernel, &err);
    if (err)
        return err;
    if ((err = check_group(ctx, k, l))) {
        clReleaseKernel(k);
        return err;
    }
    struct clf_kernel *slot = &p->kernel[p->num_kernels++];
    *slot = (struct clf_kernel){ .name = l->kernel, .kernel = k, .num_args = l->num_args };
    memcpy(slot->local, l->local, sizeof slot->local);
    for (int i = 0; i < l->num_args; i++)
        slot->arg_size[i] = is_scalar(&l->arg[i]) ? (unsigned char) l->arg[i].size : 0;
    *kernel = k;
    return CL_SUCCESS;
}

clinfer_status clf_program_kernel(clinfer_ctx *ctx, const struct clf_launch *l, const char *op,
                                  cl_kernel *kernel, bool *checked)
{
    struct clf_program *p = entry_of(ctx, &l->spec);
    if (!p)
        return fail(ctx, CLINFER_ERR_MEMORY, op, "%s: %s", l->kernel);
    for (bool from_source = false;; from_source = true) {
        clinfer_status st = make_ready(ctx, p, op, from_source);
        if (st)
            return st;
        struct clf_kernel *k = find_kernel(p, l->kernel);
        *checked = p->checked;
        if (k) {
            *kernel = k->kernel;
            return CLINFER_OK;
        }
        cl_int err = p->num_kernels < CLF_MAX_KERNELS ? add_kernel(ctx, p, l, kernel) : CL_OUT_OF_RESOURCES;
        if (!err)
            return CLINFER_OK;
        const bool too_large = err == CL_INVALID_WORK_GROUP_SIZE; // whatever the program came from
        if (too_large || !p->saved || from_source || !retire(ctx, p))
            return fail(ctx, (clinfer_status) err, op, "kernel %s: %s", l->kernel);
        clf_log(ctx, CLINFER_LOG_WARN, "%s: the stored program has no kernel %s; compiling it again", op,
                l->kernel);
        ctx->stats.rejected++;
    }
}

void clf_program_checked(clinfer_ctx *ctx, const struct clf_launch *l, cl_kernel kernel)
{
    for (struct clf_program *p = ctx->programs; p; p = p->next) {
        const struct clf_kernel *k = clf_same_spec(&p->spec, &l->spec) ? find_kernel(p, l->kernel) : NULL;
        if (k && k->kernel == kernel) // else the entry has been built anew since
            p->checked = true;
    }
}

void clf_programs_free(clinfer_ctx *ctx)
{
    for (struct clf_program *p = ctx->programs, *next; p; p = next) {
        next = p->next;
        release(p);
        free(p);
    }
    ctx->programs = NULL;
}
