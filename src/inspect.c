// SPDX-License-Identifier: Apache-2.0
// The programs of a call as text, for a context that looks at them instead of building them.
#include "program_internal.h"
#include "inspect.h"
#include <stdio.h>
#include <stdlib.h>

// The kernels that the launches from `first` on take from the program of `first`; their number.
static int kernels_of(const struct clf_plan *plan, int first, const char *kernel[CLF_MAX_LAUNCHES])
{
    int n = 0;
    for (int i = first; i < plan->num_launches; i++)
        if (plan->launch[i].kind == CLF_KERNEL &&
            clf_same_spec(&plan->launch[i].spec, &plan->launch[first].spec))
            kernel[n++] = plan->launch[i].kernel;
    return n;
}

// An earlier launch has shown the program.
static bool is_shown(const struct clf_plan *plan, int launch)
{
    for (int i = 0; i < launch; i++)
        if (plan->launch[i].kind == CLF_KERNEL &&
            clf_same_spec(&plan->launch[i].spec, &plan->launch[launch].spec))
            return true;
    return false;
}

static clinfer_status show(clinfer_ctx *ctx, const struct clf_plan *plan, int launch)
{
    const struct clf_spec *spec = &plan->launch[launch].spec;
    const char *kernel[CLF_MAX_LAUNCHES];
    const struct clf_source *source;
    char error[CLF_ERROR_SIZE], text[2 * CLF_ERROR_SIZE];
    pthread_mutex_lock(&ctx->lock);
    clinfer_status st = clf_source_get(ctx, spec->set, spec->source, &source, error, sizeof error);
    pthread_mutex_unlock(&ctx->lock);
    if (st) {
        snprintf(text, sizeof text, "%s: %s", plan->op->name, error);
        return clf_error(ctx, st, text);
    }
    char *options = clf_program_options(spec);
    if (!options)
        return clf_error(ctx, CLINFER_ERR_MEMORY, "out of host memory for a program's options");
    const struct clinfer_program_text program = { .op = plan->op->name,
                                                  .name = spec->source,
                                                  .set = spec->set,
                                                  .source = source->text,
                                                  .source_size = source->size,
                                                  .options = options,
                                                  .kernels = kernel,
                                                  .num_kernels = kernels_of(plan, launch, kernel) };
    ctx->inspect(ctx->inspect_priv, &program);
    free(options);
    return CLINFER_OK;
}

clinfer_status clf_inspect(clinfer_ctx *ctx, const struct clf_plan *plan)
{
    clinfer_status st = CLINFER_OK;
    for (int i = 0; !st && i < plan->num_launches; i++)
        if (plan->launch[i].kind == CLF_KERNEL && !is_shown(plan, i))
            st = show(ctx, plan, i);
    return st;
}
