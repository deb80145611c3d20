// SPDX-License-Identifier: Apache-2.0
// Shared by program.c (look-up), program_build.c (compile, load) and program_save.c.
#pragma once
#include "program.h"
#include "source.h"

enum { CLF_MAX_KERNELS = 8 };
enum clf_program_state { CLF_EMPTY, CLF_BUILDING, CLF_READY };

struct clf_kernel {
    const char *name;
    cl_kernel kernel;
    int num_args;
    size_t local[3];                      // of its launches
    unsigned char arg_size[CLF_MAX_ARGS]; // bytes of a scalar; 0: a buffer
};

struct clf_program {
    struct clf_program *next;
    struct clf_spec spec;
    enum clf_program_state state;
    cl_program program;
    bool saved;   // from the cache, or in it
    bool checked; // from the cache, or its self-check was passed
    struct clf_kernel kernel[CLF_MAX_KERNELS];
    int num_kernels;
};

struct clf_built {
    cl_program program;
    bool from_cache;
    int rejected; // stored binaries that the driver refused
};

// The program of a spec: from the cache unless `from_source`, else compiled. No lock needed.
clinfer_status clf_program_build(clinfer_ctx *ctx, const struct clf_spec *spec,
                                 const struct clf_source *source, const char *op, bool from_source,
                                 struct clf_built *built);
bool clf_same_spec(const struct clf_spec *a, const struct clf_spec *b);
// What the spec gives clBuildProgram; malloc'd, NULL without memory.
char *clf_program_options(const struct clf_spec *spec);
// The key of a spec as text; malloc'd.
char *clf_program_key(const clinfer_ctx *ctx, const struct clf_spec *spec, const struct clf_source *source);
