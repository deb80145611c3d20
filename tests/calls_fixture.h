// SPDX-License-Identifier: Apache-2.0
// What tests of calls start from.
#ifndef CLINFER_TESTS_CALLS_FIXTURE_H_
#define CLINFER_TESTS_CALLS_FIXTURE_H_

#include <criterion/criterion.h>

#include "rig.h"

static inline clinfer_ctx *open_ctx(cl_command_queue queue)
{
    clinfer_ctx *ctx;
    cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.queue = queue, .cache_dir = "")), CLINFER_OK);
    return ctx;
}

static inline cl_command_queue new_queue(clinfer_ctx *ctx, cl_command_queue_properties properties)
{
    cl_int err;
    cl_command_queue q =
        clCreateCommandQueue(clinfer_ctx_cl_context(ctx), clinfer_ctx_device(ctx), properties, &err);
    cr_assert_eq(err, CL_SUCCESS);
    return q;
}

#endif
