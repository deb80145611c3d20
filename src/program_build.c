// SPDX-License-Identifier: Apache-2.0
#include "program_internal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Every OpenCL 3.x device compiles CL1.2; only sub-groups want a later one. No option here may change NaN,
// infinity or denormals.
static int std_of(const struct clf_spec *spec)
{
    for (int i = 0; i < spec->num_defs; i++)
        if (!strcmp(spec->def[i].name, "SUBGROUPS") && spec->def[i].value)
            return (int) spec->def[i].value;
    return 12;
}

char *clf_program_options(const struct clf_spec *spec)
{
    char *text = NULL;
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return NULL;
    fprintf(f, "-cl-std=CL%d.%d", std_of(spec) / 10, std_of(spec) % 10);
    for (int i = 0; i < spec->num_defs; i++) {
        const struct clf_def *d = &spec->def[i];
        if (!strcmp(d->name, "ROUNDED_DIVIDE") && d->value)
            fputs(" -cl-fp32-correctly-rounded-divide-sqrt", f);
        if (d->text)
            fprintf(f, " -D%s=%s", d->name, d->text);
        else
            fprintf(f, " -D%s=%lld", d->name, (long long) d->value);
    }
    if (fclose(f)) {
        free(text);
        return NULL;
    }
    return text;
}

char *clf_program_key(const clinfer_ctx *ctx, const struct clf_spec *spec, const struct clf_source *source)
{
    char *text = NULL, *options = clf_program_options(spec);
    size_t size = 0;
    FILE *f = options ? open_memstream(&text, &size) : NULL;
    if (f) {
        fprintf(f, "op=%s\nset=%s\narith=%d\nsource=%s\noptions=%s\n%s", spec->source,
                clf_set_name(spec->set), (int) spec->arith, source->hash, options, ctx->device_key);
        if (fclose(f)) {
            free(text);
            text = NULL;
        }
    }
    free(options);
    return text;
}

static void log_build(clinfer_ctx *ctx, cl_program program, const char *op, const char *options,
                      clinfer_status status)
{
    size_t size = 0;
    char *text = NULL;
    if (!clGetProgramBuildInfo(program, ctx->device, CL_PROGRAM_BUILD_LOG, 0, NULL, &size) && size &&
        (text = malloc(size + 1))) {
        text[size] = 0;
        if (clGetProgramBuildInfo(program, ctx->device, CL_PROGRAM_BUILD_LOG, size, text, NULL))
            text[0] = 0;
    }
    const bool useful = text && text[strspn(text, " \n\t")];
    if (status || useful)
        clf_log(ctx, status ? CLINFER_LOG_ERROR : CLINFER_LOG_DEBUG, "%s: build on \"%s\" with %s: %s\n%s",
                op, ctx->info.device, options, clinfer_status_str(status), useful ? text : "(no build log)");
    free(text);
}

static clinfer_status compile(clinfer_ctx *ctx, const struct clf_source *source, const char *options,
                              const char *op, cl_program *out)
{
    const char *text = source->text;
    const size_t size = source->size;
    char error[CLF_ERROR_SIZE];
    cl_int err;
    cl_program program = clCreateProgramWithSource(ctx->cl, 1, &text, &size, &err);
    if (!err) {
        err = clBuildProgram(program, 1, &ctx->device, options, NULL, NULL);
        log_build(ctx, program, op, options, (clinfer_status) err);
    }
    if (!err) {
        *out = program;
        return CLINFER_OK;
    }
    if (program)
        clReleaseProgram(program);
    snprintf(error, sizeof error,
             "%s: %s/%s.cl does not build on \"%s\": %s; the log has the compiler's words", op,
             clf_set_name(source->set), source->stem, ctx->info.device,
             clinfer_status_str((clinfer_status) err));
    return clf_error(ctx, err == CL_BUILD_PROGRAM_FAILURE ? CLINFER_ERR_BUILD : (clinfer_status) err, error);
}

// True where the driver took the stored binary.
static bool load(clinfer_ctx *ctx, const struct clf_blob *blob, const char *options, cl_program *out)
{
    const unsigned char *data = blob->data;
    const size_t size = blob->size;
    cl_int err, status = CL_SUCCESS;
    cl_program program = clCreateProgramWithBinary(ctx->cl, 1, &ctx->device, &size, &data, &status, &err);
    if (!err && !status)
        err = clBuildProgram(program, 1, &ctx->device, options, NULL, NULL);
    if (!err && !status) {
        *out = program;
        return true;
    }
    if (program)
        clReleaseProgram(program);
    return false;
}

clinfer_status clf_program_build(clinfer_ctx *ctx, const struct clf_spec *spec,
                                 const struct clf_source *source, const char *op, bool from_source,
                                 struct clf_built *built)
{
    char *key = clf_program_key(ctx, spec, source), *options = clf_program_options(spec);
    clinfer_status st = CLINFER_OK;
    struct clf_blob blob;
    if (!key || !options) {
        st = clf_error(ctx, CLINFER_ERR_MEMORY, "out of host memory for a program's key");
    } else if (!from_source && clf_cache_get(&ctx->cache, key, &blob)) {
        built->from_cache = load(ctx, &blob, options, &built->program);
        free(blob.data);
        if (!built->from_cache) {
            built->rejected = 1;
            clf_log(ctx, CLINFER_LOG_WARN, "%s: the driver refuses the stored program; compiling it again",
                    op);
            clf_cache_drop(&ctx->cache, key);
        }
    } else if (from_source) {
        clf_cache_drop(&ctx->cache, key);
    }
    if (!st && !built->program)
        st = compile(ctx, source, options, op, &built->program);
    if (!st)
        clf_log(ctx, CLINFER_LOG_DEBUG, "%s: %s %s %s", op, built->from_cache ? "loaded" : "compiled",
                spec->source, options);
    free(options);
    free(key);
    return st;
}
