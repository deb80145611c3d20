// SPDX-License-Identifier: Apache-2.0
#include "optest_kernels.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char kernels[] =
    "#include \"lib/format.clh\"\n"
    "#include \"lib/quant.clh\"\n"
    "#define FIRST (LANES * (uint) get_global_id(0))\n"
    "#define HERE min((uint) LANES, n - FIRST)\n"
    "__kernel void decode(__global const ELEM(F) *in, __global float *out, uint n) {\n"
    "    f32_store(out + FIRST, FORMAT(F, load)(in + FIRST, HERE), HERE); }\n"
    "__kernel void encode(__global const float *in, __global ELEM(F) *out, uint n) {\n"
    "    FORMAT(F, store)(out + FIRST, f32_load(in + FIRST, HERE), HERE); }\n"
    "__kernel void tails(__global const ELEM(F) *in, __global float *lanes, __global ELEM(F) *out, uint n) "
    "{\n"
    "    const floatn x = FORMAT(F, load)(in + 1, n);\n"
    "    vstoren(x, 0, lanes);\n"
    "    FORMAT(F, store)(out + 1, x, n); }\n"
    "__kernel void pairs(__global const ELEM(F) *in, __global float *lanes, __global ELEM(F) *out, uint n) "
    "{\n"
    "    floatn re, im;\n"
    "    FORMAT(F, load_pairs)(in + 1, n, &re, &im);\n"
    "    vstoren(re, 0, lanes);\n"
    "    vstoren(im, 1, lanes);\n"
    "    FORMAT(F, store_pairs)(out + 1, n, re, im); }\n"
    "__kernel void copies(__global const ELEM(F) *in, __global ELEM(F) *out, uint n) {\n"
    "    FORMAT(F, copy)(in + 1, out + 1, n); }\n"
    "__kernel void quotients(__global const float *in, __global float *out, uint n) {\n"
    "    for (uint i = FIRST; i < FIRST + HERE; i++)\n"
    "        out[i] = divide(in[2 * i], in[2 * i + 1]); }\n";

struct fk_program fk_build(const char *format, int lanes, int rounded)
{
    const char *dir = getenv("CLINFER_CL_SRC"), *text = kernels;
    struct fk_program p = { .d = ot_open(0) };
    char options[1200], log[2000] = "";
    cl_int err;
    (void) snprintf(options, sizeof options, "-cl-std=CL1.2 -I%s -DF=%s -DLANES=%d -DROUNDED_DIVIDE=%d%s",
                    dir ? dir : "cl", format, lanes, rounded,
                    rounded ? " -cl-fp32-correctly-rounded-divide-sqrt" : "");
    p.program = clCreateProgramWithSource(p.d.cl, 1, &text, NULL, &err);
    cr_assert_eq(err, CL_SUCCESS);
    err = clBuildProgram(p.program, 0, NULL, options, NULL, NULL);
    (void) clGetProgramBuildInfo(p.program, clinfer_ctx_device(p.d.ctx), CL_PROGRAM_BUILD_LOG, sizeof log,
                                 log, NULL);
    cr_assert_eq(err, CL_SUCCESS, "%s: %s", options, log);
    return p;
}

void fk_release(struct fk_program *p)
{
    (void) clReleaseProgram(p->program);
    ot_close(&p->d);
}

void fk_launch(const struct fk_program *p, const char *name, struct fk_argument *args, cl_uint num_args,
               cl_uint n, size_t items)
{
    cl_int err;
    cl_kernel kernel = clCreateKernel(p->program, name, &err);
    cr_assert_eq(err, CL_SUCCESS);
    for (cl_uint i = 0; i < num_args; i++) {
        args[i].mem = clCreateBuffer(p->d.cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, args[i].bytes,
                                     args[i].data, &err);
        cr_assert_eq(err, CL_SUCCESS);
        cr_assert_eq(clSetKernelArg(kernel, i, sizeof(cl_mem), &args[i].mem), CL_SUCCESS);
    }
    const size_t one = 1;
    cr_assert_eq(clSetKernelArg(kernel, num_args, sizeof n, &n), CL_SUCCESS);
    cr_assert_eq(clEnqueueNDRangeKernel(p->d.queue, kernel, 1, NULL, &items, &one, 0, NULL, NULL),
                 CL_SUCCESS);
    for (cl_uint i = 0; i < num_args; i++) {
        cr_assert_eq(clEnqueueReadBuffer(p->d.queue, args[i].mem, CL_TRUE, 0, args[i].bytes, args[i].data, 0,
                                         NULL, NULL),
                     CL_SUCCESS);
        (void) clReleaseMemObject(args[i].mem);
    }
    (void) clReleaseKernel(kernel);
}

void *fk_allocated(size_t bytes)
{
    void *p = malloc(bytes);
    cr_assert(p);
    memset(p, 0xff, bytes);
    return p;
}
