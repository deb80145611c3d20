// SPDX-License-Identifier: Apache-2.0
#include "ctx.h"
#include "clblast.h"
#include "env.h"
#include "program.h"
#include "source.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static clinfer_log_level log_level_from_env(void)
{
    static const char *const name[] = { "error", "warn", "info", "debug" };
    const char *v = clf_getenv("CLINFER_LOG");
    for (int i = 0; v && i < 4; i++)
        if (!strcmp(v, name[i]))
            return (clinfer_log_level) (CLINFER_LOG_ERROR + i);
    return CLINFER_LOG_WARN;
}

static clinfer_status take_queue(clinfer_ctx *ctx, cl_command_queue queue)
{
    cl_int err = clGetCommandQueueInfo(queue, CL_QUEUE_CONTEXT, sizeof ctx->cl, &ctx->cl, NULL);
    if (!err)
        err = clGetCommandQueueInfo(queue, CL_QUEUE_DEVICE, sizeof ctx->device, &ctx->device, NULL);
    if (!err)
        err = clRetainContext(ctx->cl);
    if (err) {
        ctx->cl = NULL;
        return (clinfer_status) err;
    }
    err = clRetainCommandQueue(queue);
    if (!err)
        ctx->queue = queue;
    return (clinfer_status) err;
}

static clinfer_status make_queue(clinfer_ctx *ctx, const char *choice, char *error, size_t error_size)
{
    clinfer_status st = clf_device_choose(choice, &ctx->device, error, error_size);
    if (st)
        return st;
    cl_int err;
    ctx->cl = clCreateContext(NULL, 1, &ctx->device, NULL, NULL, &err);
    if (!err)
        ctx->queue = clCreateCommandQueue(ctx->cl, ctx->device, 0, &err);
    return (clinfer_status) err;
}

static clinfer_status pick_variant(clinfer_ctx *ctx, const struct clinfer_ctx_params *p, char *error,
                                   size_t size)
{
    ctx->info.caps &= ~p->disable_caps;
    if ((unsigned) p->kernel_set > CLINFER_SET_GROUP || (unsigned) p->arith > CLINFER_ARITH_BF16) {
        snprintf(error, size, "kernel_set is %d and arith %d, want 0 to %d and 0 to %d", (int) p->kernel_set,
                 (int) p->arith, CLINFER_SET_GROUP, CLINFER_ARITH_BF16);
        return CLINFER_ERR_ARGUMENT;
    }
    if (p->arith == CLINFER_ARITH_BF16) {
        snprintf(error, size, "this version has no bf16 arithmetic");
        return CLINFER_ERR_UNSUPPORTED;
    }
    if (p->disable_caps & CLINFER_CAP_LOCAL_MEMORY)
        ctx->info.set = CLINFER_SET_ROW;
    ctx->caps = (struct clf_caps){ .bits = ctx->info.caps,
                                   .compute_units = ctx->info.compute_units,
                                   .max_work_group = ctx->info.max_work_group,
                                   .local_bytes = ctx->info.local_bytes,
                                   .set = p->kernel_set ? p->kernel_set : ctx->info.set,
                                   .arith = CLINFER_ARITH_F32 };
    ctx->order[0] = ctx->caps.set;
    if (!p->kernel_set && !(p->disable_caps & CLINFER_CAP_LOCAL_MEMORY))
        ctx->order[1] = ctx->caps.set == CLINFER_SET_ROW ? CLINFER_SET_GROUP : CLINFER_SET_ROW;
    if (ctx->caps.bits & CLINFER_CAP_SUBGROUPS)
        ctx->caps.subgroup_std = clf_device_subgroup_std(ctx->device);
    return CLINFER_OK;
}

// AUTO is of use where the group set is; the row set's own kernels are the faster ones.
static clinfer_status pick_gemm(clinfer_ctx *ctx, clinfer_gemm gemm, char *error, size_t size)
{
    if ((unsigned) gemm > CLINFER_GEMM_CLBLAST) {
        snprintf(error, size, "gemm is %d, want 0 to %d", (int) gemm, CLINFER_GEMM_CLBLAST);
        return CLINFER_ERR_ARGUMENT;
    }
    const bool wanted = gemm == CLINFER_GEMM_CLBLAST || (!gemm && ctx->caps.set == CLINFER_SET_GROUP);
    const char *missing = wanted ? clf_clblast_missing() : NULL;
    ctx->caps.gemm = wanted && !missing ? gemm : CLINFER_GEMM_OWN;
    if (!missing)
        return CLINFER_OK;
    if (gemm) {
        snprintf(error, size, "no CLBlast: %s", missing);
        return CLINFER_ERR_UNSUPPORTED;
    }
    clf_log(ctx, CLINFER_LOG_INFO, "no CLBlast, own kernels serve: %s", missing);
    return CLINFER_OK;
}

static clinfer_status copy_cl_dir(clinfer_ctx *ctx, const char *dir, char *error, size_t size)
{
    if (!dir)
        dir = clf_getenv("CLINFER_CL_DIR");
    if (!dir || !*dir)
        return CLINFER_OK;
    struct stat st;
    if (stat(dir, &st) || !S_ISDIR(st.st_mode)) {
        snprintf(error, size, "the folder of kernels, %s, is not there", dir);
        return CLINFER_ERR_FILE;
    }
    ctx->cl_dir = strdup(dir);
    return ctx->cl_dir ? CLINFER_OK : CLINFER_ERR_MEMORY;
}

static void open_cache(clinfer_ctx *ctx, const struct clinfer_ctx_params *p)
{
    char why[CLF_ERROR_SIZE];
    clf_cache_open(&ctx->cache, p->cache_dir, p->cache_read_only, p->cache_max_bytes, &p->store, why,
                   sizeof why);
    if (why[0])
        clf_log(ctx, CLINFER_LOG_WARN, "program cache off: %s", why);
}

static clinfer_status set_up(clinfer_ctx *ctx, const struct clinfer_ctx_params *p, char *error, size_t size)
{
    clinfer_status st = p->queue ? take_queue(ctx, p->queue) : make_queue(ctx, p->device, error, size);
    if (!st)
        st = clf_device_query(ctx->device, &ctx->info, error, size);
    if (!st)
        st = pick_variant(ctx, p, error, size);
    if (!st)
        st = pick_gemm(ctx, p->gemm, error, size);
    if (!st)
        st = copy_cl_dir(ctx, p->cl_dir, error, size);
    if (!st && !(ctx->device_key = clf_device_key(&ctx->info)))
        st = CLINFER_ERR_MEMORY;
    return st ? st : clf_fault_init(ctx);
}

static clinfer_ctx *new_ctx(const struct clinfer_ctx_params *p)
{
    clinfer_ctx *ctx = calloc(1, sizeof *ctx);
    if (!ctx)
        return NULL;
    pthread_mutex_init(&ctx->lock, NULL);
    pthread_mutex_init(&ctx->error_lock, NULL);
    pthread_mutex_init(&ctx->fault_lock, NULL);
    pthread_cond_init(&ctx->compiled, NULL);
    ctx->log = p->log;
    ctx->log_priv = p->log_priv;
    ctx->log_level = p->log_level ? p->log_level : log_level_from_env();
    ctx->profile = p->profile;
    ctx->profile_priv = p->profile_priv;
    ctx->inspect = p->inspect;
    ctx->inspect_priv = p->inspect_priv;
    ctx->no_self_check = p->no_self_check;
    open_cache(ctx, p);
    return ctx;
}

clinfer_status clinfer_ctx_create(clinfer_ctx **out, const struct clinfer_ctx_params *params)
{
    const struct clinfer_ctx_params defaults = { 0 }, *p = params ? params : &defaults;
    char error[CLF_ERROR_SIZE] = "";
    *out = NULL;
    clinfer_ctx *ctx = new_ctx(p);
    clinfer_status st = ctx ? set_up(ctx, p, error, sizeof error) : CLINFER_ERR_MEMORY;
    if (st && !error[0])
        snprintf(error, sizeof error, "no context: %s", clinfer_status_str(st));
    if (p->error && p->error_size)
        snprintf(p->error, p->error_size, "%s", error);
    if (!st) {
        clf_log(ctx, CLINFER_LOG_INFO, "device \"%s\" (%s), %s set", ctx->info.device, ctx->info.driver,
                clf_set_name(ctx->caps.set));
        *out = ctx;
    } else if (ctx) {
        clf_log(ctx, CLINFER_LOG_ERROR, "%s", error);
        clinfer_ctx_destroy(&ctx);
    }
    return st;
}

void clinfer_ctx_destroy(clinfer_ctx **pctx)
{
    clinfer_ctx *ctx = pctx ? *pctx : NULL;
    if (!ctx)
        return;
    clf_programs_save(ctx);
    if (ctx->arena.last) {
        clWaitForEvents(1, &ctx->arena.last);
        clReleaseEvent(ctx->arena.last);
    }
    clf_programs_free(ctx);
    if (ctx->clblast_used)
        clf_clblast_clear();
    clf_sources_free(ctx);
    clf_cache_close(&ctx->cache);
    if (ctx->arena.mem)
        clReleaseMemObject(ctx->arena.mem);
    if (ctx->fault)
        clReleaseMemObject(ctx->fault);
    if (ctx->queue)
        clReleaseCommandQueue(ctx->queue);
    if (ctx->cl)
        clReleaseContext(ctx->cl);
    clf_errors_free(ctx);
    free(ctx->cl_dir);
    free(ctx->device_key);
    pthread_cond_destroy(&ctx->compiled);
    pthread_mutex_destroy(&ctx->error_lock);
    pthread_mutex_destroy(&ctx->fault_lock);
    pthread_mutex_destroy(&ctx->lock);
    free(ctx);
    *pctx = NULL;
}

clinfer_status clinfer_ctx_save(clinfer_ctx *ctx)
{
    return clf_programs_save(ctx);
}

cl_context clinfer_ctx_cl_context(const clinfer_ctx *ctx)
{
    return ctx->cl;
}

cl_command_queue clinfer_ctx_queue(const clinfer_ctx *ctx)
{
    return ctx->queue;
}

cl_device_id clinfer_ctx_device(const clinfer_ctx *ctx)
{
    return ctx->device;
}

void clinfer_ctx_device_info(const clinfer_ctx *ctx, struct clinfer_device_info *info)
{
    *info = ctx->info;
}

void clinfer_ctx_stats(clinfer_ctx *ctx, struct clinfer_ctx_stats *stats)
{
    pthread_mutex_lock(&ctx->lock);
    *stats = ctx->stats;
    pthread_mutex_unlock(&ctx->lock);
}
