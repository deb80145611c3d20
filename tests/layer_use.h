// SPDX-License-Identifier: Apache-2.0
// How a test program gets at the layer: the environment names the module.
#ifndef CLINFER_TESTS_LAYER_USE_H_
#define CLINFER_TESTS_LAYER_USE_H_

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdlib.h>

#include "layer_fail.h"
#include "skip.h"

#define LAYER_VARIABLE "CLINFER_TEST_LAYER"

// Before the process's first OpenCL call. NULL, with the reason in *why, where the loader takes no layers.
static inline const struct layer_control *layer_load(const char **why)
{
    const char *path = getenv(LAYER_VARIABLE);
    cl_uint n;
    cr_assert_not_null(path, LAYER_VARIABLE " does not name the layer's module");
    setenv("OPENCL_LAYERS", path, 1);
    clGetPlatformIDs(0, NULL, &n);
    void *module = dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    *why = module ? NULL : "this OpenCL loader loads no layers (OPENCL_LAYERS)";
    return module ? dlsym(module, LAYER_CONTROL) : NULL;
}

#define LAYER_OR_SKIP(layer)                                                                                 \
    do {                                                                                                     \
        const char *why_;                                                                                    \
        layer = layer_load(&why_);                                                                           \
        if (why_)                                                                                            \
            SKIP("layer", "%s", why_);                                                                       \
    } while (0)

#endif
