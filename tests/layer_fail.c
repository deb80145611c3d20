// SPDX-License-Identifier: Apache-2.0
// An OpenCL layer that makes the n-th call of a function fail, counts calls and objects, and lies about
// devices. Loaded by the ICD loader through OPENCL_LAYERS; told what to do by the environment,
//     CLF_LAYER_FAIL=clCreateBuffer:2:-4   CLF_LAYER_LIE=no_compiler
// or by the test in whose process it is, through the table at the end.
#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 120
#endif
#include <CL/cl_layer.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layer_fail.h"

#define EXPORT __attribute__((visibility("default")))

static const cl_icd_dispatch *target;

enum {
#define X(name) F_##name,
    LAYER_INT_FUNCTIONS(X) LAYER_OBJECT_FUNCTIONS(X)
#undef X
        NUM_FUNCTIONS
};
static const char *const names[] = {
#define X(name) #name,
    LAYER_INT_FUNCTIONS(X) LAYER_OBJECT_FUNCTIONS(X)
#undef X
};

static atomic_long count[NUM_FUNCTIONS], live;
static atomic_int on, fired, armed = -1;
static long armed_n;
static cl_int armed_code;
static const char *lie = "";

// Whether this call is the one to fail; the driver does not see it then.
static int fails(int function)
{
    if (!on)
        return 0;
    const long n = ++count[function];
    if (function != armed || n != armed_n)
        return 0;
    fired = 1;
    return 1;
}

// `more`: objects that a success leaves behind.
#define INT(name, parameters, arguments, more)                                                               \
    static cl_int CL_API_CALL my_##name parameters                                                           \
    {                                                                                                        \
        if (fails(F_##name))                                                                                 \
            return armed_code;                                                                               \
        const cl_int status = target->name arguments;                                                        \
        live += status ? 0 : (more);                                                                         \
        return status;                                                                                       \
    }

#define OBJECT(type, name, parameters, arguments)                                                            \
    static type CL_API_CALL my_##name parameters                                                             \
    {                                                                                                        \
        if (fails(F_##name)) {                                                                               \
            if (err)                                                                                         \
                *err = armed_code;                                                                           \
            return NULL;                                                                                     \
        }                                                                                                    \
        type object = target->name arguments;                                                                \
        live += object != NULL;                                                                              \
        return object;                                                                                       \
    }

typedef void(CL_CALLBACK *build_notify)(cl_program, void *);
typedef void(CL_CALLBACK *event_notify)(cl_event, cl_int, void *);
typedef void(CL_CALLBACK *context_notify)(const char *, const void *, size_t, void *);

INT(clBuildProgram, (cl_program p, cl_uint n, const cl_device_id *d, const char *o, build_notify f, void *u),
    (p, n, d, o, f, u), 0)
INT(clEnqueueBarrierWithWaitList, (cl_command_queue q, cl_uint n, const cl_event *w, cl_event *e),
    (q, n, w, e), e != NULL)
INT(clEnqueueCopyBuffer,
    (cl_command_queue q, cl_mem from, cl_mem to, size_t a, size_t b, size_t s, cl_uint n, const cl_event *w,
     cl_event *e),
    (q, from, to, a, b, s, n, w, e), e != NULL)
INT(clEnqueueMarkerWithWaitList, (cl_command_queue q, cl_uint n, const cl_event *w, cl_event *e),
    (q, n, w, e), e != NULL)
INT(clEnqueueNDRangeKernel,
    (cl_command_queue q, cl_kernel k, cl_uint d, const size_t *o, const size_t *g, const size_t *l, cl_uint n,
     const cl_event *w, cl_event *e),
    (q, k, d, o, g, l, n, w, e), e != NULL)
INT(clEnqueueReadBuffer,
    (cl_command_queue q, cl_mem m, cl_bool b, size_t o, size_t s, void *to, cl_uint n, const cl_event *w,
     cl_event *e),
    (q, m, b, o, s, to, n, w, e), e != NULL)
INT(clEnqueueWriteBuffer,
    (cl_command_queue q, cl_mem m, cl_bool b, size_t o, size_t s, const void *from, cl_uint n,
     const cl_event *w, cl_event *e),
    (q, m, b, o, s, from, n, w, e), e != NULL)
INT(clFinish, (cl_command_queue q), (q), 0)
INT(clFlush, (cl_command_queue q), (q), 0)
INT(clGetCommandQueueInfo, (cl_command_queue q, cl_command_queue_info i, size_t s, void *v, size_t *r),
    (q, i, s, v, r), 0)
INT(clGetDeviceIDs, (cl_platform_id p, cl_device_type t, cl_uint n, cl_device_id *d, cl_uint *r),
    (p, t, n, d, r), 0)
INT(clGetEventProfilingInfo, (cl_event e, cl_profiling_info i, size_t s, void *v, size_t *r), (e, i, s, v, r),
    0)
INT(clGetMemObjectInfo, (cl_mem m, cl_mem_info i, size_t s, void *v, size_t *r), (m, i, s, v, r), 0)
INT(clGetPlatformIDs, (cl_uint n, cl_platform_id *p, cl_uint *r), (n, p, r), 0)
INT(clGetPlatformInfo, (cl_platform_id p, cl_platform_info i, size_t s, void *v, size_t *r), (p, i, s, v, r),
    0)
INT(clGetKernelWorkGroupInfo,
    (cl_kernel k, cl_device_id d, cl_kernel_work_group_info i, size_t s, void *v, size_t *r),
    (k, d, i, s, v, r), 0)
INT(clGetProgramBuildInfo,
    (cl_program p, cl_device_id d, cl_program_build_info i, size_t s, void *v, size_t *r), (p, d, i, s, v, r),
    0)
INT(clGetProgramInfo, (cl_program p, cl_program_info i, size_t s, void *v, size_t *r), (p, i, s, v, r), 0)
INT(clSetEventCallback, (cl_event e, cl_int t, event_notify f, void *u), (e, t, f, u), 0)
INT(clSetKernelArg, (cl_kernel k, cl_uint i, size_t s, const void *v), (k, i, s, v), 0)
INT(clWaitForEvents, (cl_uint n, const cl_event *e), (n, e), 0)
INT(clRetainCommandQueue, (cl_command_queue q), (q), 1)
INT(clRetainContext, (cl_context c), (c), 1)
INT(clRetainEvent, (cl_event e), (e), 1)
INT(clReleaseCommandQueue, (cl_command_queue q), (q), -1)
INT(clReleaseContext, (cl_context c), (c), -1)
INT(clReleaseEvent, (cl_event e), (e), -1)
INT(clReleaseKernel, (cl_kernel k), (k), -1)
INT(clReleaseMemObject, (cl_mem m), (m), -1)
INT(clReleaseProgram, (cl_program p), (p), -1)

OBJECT(cl_mem, clCreateBuffer, (cl_context c, cl_mem_flags f, size_t s, void *h, cl_int *err),
       (c, f, s, h, err))
OBJECT(cl_command_queue, clCreateCommandQueue,
       (cl_context c, cl_device_id d, cl_command_queue_properties p, cl_int *err), (c, d, p, err))
OBJECT(cl_context, clCreateContext,
       (const cl_context_properties *p, cl_uint n, const cl_device_id *d, context_notify f, void *u,
        cl_int *err),
       (p, n, d, f, u, err))
OBJECT(cl_kernel, clCreateKernel, (cl_program p, const char *name, cl_int *err), (p, name, err))
OBJECT(cl_program, clCreateProgramWithBinary,
       (cl_context c, cl_uint n, const cl_device_id *d, const size_t *s, const unsigned char **b,
        cl_int *status, cl_int *err),
       (c, n, d, s, b, status, err))
OBJECT(cl_program, clCreateProgramWithSource,
       (cl_context c, cl_uint n, const char **t, const size_t *s, cl_int *err), (c, n, t, s, err))

static int lies(const char *what)
{
    return !strcmp(lie, what);
}

static cl_int CL_API_CALL my_clGetDeviceInfo(cl_device_id d, cl_device_info i, size_t size, void *value,
                                             size_t *written)
{
    if (fails(F_clGetDeviceInfo))
        return armed_code;
    const cl_int status = target->clGetDeviceInfo(d, i, size, value, written);
    if (status || !value)
        return status;
    if ((i == CL_DEVICE_COMPILER_AVAILABLE && lies("no_compiler")) ||
        (i == CL_DEVICE_ENDIAN_LITTLE && lies("big_endian")) ||
        (i == CL_DEVICE_AVAILABLE && lies("unavailable")))
        *(cl_bool *) value = CL_FALSE;
    if (i == CL_DEVICE_TYPE && (lies("gpu") || lies("accelerator") || lies("accelerator_local")))
        *(cl_device_type *) value = lies("gpu") ? CL_DEVICE_TYPE_GPU : CL_DEVICE_TYPE_ACCELERATOR;
    if (i == CL_DEVICE_LOCAL_MEM_TYPE && (lies("accelerator") || lies("accelerator_local")))
        *(cl_device_local_mem_type *) value = lies("accelerator") ? CL_GLOBAL : CL_LOCAL;
    if (i == CL_DEVICE_MAX_MEM_ALLOC_SIZE && lies("tiny_alloc"))
        *(cl_ulong *) value = 4096;
    if (i == CL_DEVICE_MAX_MEM_ALLOC_SIZE && lies("small_alloc"))
        *(cl_ulong *) value = LAYER_SMALL_ALLOC;
    if (i == CL_DEVICE_VERSION && lies("opencl11"))
        snprintf(value, size, "OpenCL 1.1 liar");
    if (i == CL_DRIVER_VERSION && lies("driver"))
        snprintf(value, size, "another");
    return status;
}

static cl_int CL_API_CALL my_clGetEventInfo(cl_event e, cl_event_info i, size_t size, void *value,
                                            size_t *written)
{
    if (fails(F_clGetEventInfo))
        return armed_code;
    const cl_int status = target->clGetEventInfo(e, i, size, value, written);
    if (!status && value && i == CL_EVENT_COMMAND_EXECUTION_STATUS && on && lies("failed_event"))
        *(cl_int *) value = CL_OUT_OF_RESOURCES;
    return status;
}

static int function_of(const char *name)
{
    for (int i = 0; i < NUM_FUNCTIONS; i++)
        if (!strcmp(names[i], name))
            return i;
    return -1;
}

static void enable(int now)
{
    on = now;
}

static void arm(const char *function, long n, cl_int code)
{
    for (int i = 0; i < NUM_FUNCTIONS; i++)
        count[i] = 0;
    armed_n = n;
    armed_code = code;
    fired = 0;
    armed = function ? function_of(function) : -1;
}

static int has_fired(void)
{
    return fired;
}

static long calls(const char *function)
{
    const int i = function_of(function);
    return i < 0 ? -1 : count[i];
}

static long live_objects(void)
{
    return live;
}

static void set_lie(const char *what)
{
    lie = what ? what : "";
}

EXPORT extern const struct layer_control clf_layer_control;
const struct layer_control clf_layer_control = { enable, arm, has_fired, calls, live_objects, set_lie };

static void read_environment(void)
{
    static char name[64];
    const char *fail = getenv("CLF_LAYER_FAIL"), *what = getenv("CLF_LAYER_LIE");
    long n;
    int code;
    if (fail && sscanf(fail, "%63[A-Za-z]:%ld:%d", name, &n, &code) == 3) {
        arm(name, n, code);
        on = 1;
    }
    set_lie(what);
}

EXPORT cl_int CL_API_CALL clGetLayerInfo(cl_layer_info what, size_t size, void *value, size_t *written)
{
    static const char layer_name[] = "clinfer test layer";
    const cl_layer_api_version version = CL_LAYER_API_VERSION_100;
    const void *from = what == CL_LAYER_API_VERSION ? (const void *) &version : layer_name;
    const size_t n = what == CL_LAYER_API_VERSION ? sizeof version : sizeof layer_name;
    if ((what != CL_LAYER_API_VERSION && what != CL_LAYER_NAME) || (value && size < n))
        return CL_INVALID_VALUE;
    if (value)
        memcpy(value, from, n);
    if (written)
        *written = n;
    return CL_SUCCESS;
}

EXPORT cl_int CL_API_CALL clInitLayer(cl_uint entries, const cl_icd_dispatch *next, cl_uint *entries_ret,
                                      const cl_icd_dispatch **ours)
{
    static cl_icd_dispatch table;
    const size_t have = sizeof table / sizeof(void *);
    if (!next || !entries_ret || !ours || entries < have)
        return CL_INVALID_VALUE;
    target = next;
    memcpy(&table, next, sizeof table);
#define X(name) table.name = my_##name;
    LAYER_INT_FUNCTIONS(X)
    LAYER_OBJECT_FUNCTIONS(X)
#undef X
    *entries_ret = (cl_uint) have;
    *ours = &table;
    read_environment();
    return CL_SUCCESS;
}
