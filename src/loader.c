// SPDX-License-Identifier: Apache-2.0
// OpenCL's entry points, found when the first is called instead of when the program starts: a program that
// embeds this library still runs, and gets an error, where no OpenCL is installed. Hidden, so that a
// program's own OpenCL calls go where it links them. The table is the only state of the process; it never
// changes once filled. The tools use the same file.
#include "loader.h"
#include <CL/cl.h>
#include <dlfcn.h>
#include <pthread.h>

// X(name, parameters, arguments): functions that return their status.
#define STATUS_FUNCTIONS(X)                                                                                  \
    X(clGetPlatformIDs, (cl_uint n, cl_platform_id * ids, cl_uint * count), (n, ids, count))                 \
    X(clGetPlatformInfo, (cl_platform_id p, cl_platform_info what, size_t size, void *value, size_t *got),   \
      (p, what, size, value, got))                                                                           \
    X(clGetDeviceIDs,                                                                                        \
      (cl_platform_id p, cl_device_type type, cl_uint n, cl_device_id * ids, cl_uint * count),               \
      (p, type, n, ids, count))                                                                              \
    X(clGetDeviceInfo, (cl_device_id d, cl_device_info what, size_t size, void *value, size_t *got),         \
      (d, what, size, value, got))                                                                           \
    X(clRetainContext, (cl_context c), (c))                                                                  \
    X(clReleaseContext, (cl_context c), (c))                                                                 \
    X(clRetainCommandQueue, (cl_command_queue q), (q))                                                       \
    X(clReleaseCommandQueue, (cl_command_queue q), (q))                                                      \
    X(clGetCommandQueueInfo,                                                                                 \
      (cl_command_queue q, cl_command_queue_info what, size_t size, void *value, size_t *got),               \
      (q, what, size, value, got))                                                                           \
    X(clReleaseMemObject, (cl_mem m), (m))                                                                   \
    X(clGetMemObjectInfo, (cl_mem m, cl_mem_info what, size_t size, void *value, size_t *got),               \
      (m, what, size, value, got))                                                                           \
    X(clReleaseProgram, (cl_program p), (p))                                                                 \
    X(clBuildProgram,                                                                                        \
      (cl_program p, cl_uint n, const cl_device_id *d, const char *options,                                  \
       void(CL_CALLBACK * done)(cl_program program, void *data), void *data),                                \
      (p, n, d, options, done, data))                                                                        \
    X(clGetProgramInfo, (cl_program p, cl_program_info what, size_t size, void *value, size_t *got),         \
      (p, what, size, value, got))                                                                           \
    X(clGetProgramBuildInfo,                                                                                 \
      (cl_program p, cl_device_id d, cl_program_build_info what, size_t size, void *value, size_t *got),     \
      (p, d, what, size, value, got))                                                                        \
    X(clReleaseKernel, (cl_kernel k), (k))                                                                   \
    X(clSetKernelArg, (cl_kernel k, cl_uint i, size_t size, const void *value), (k, i, size, value))         \
    X(clWaitForEvents, (cl_uint n, const cl_event *events), (n, events))                                     \
    X(clGetEventInfo, (cl_event e, cl_event_info what, size_t size, void *value, size_t *got),               \
      (e, what, size, value, got))                                                                           \
    X(clGetEventProfilingInfo, (cl_event e, cl_profiling_info what, size_t size, void *value, size_t *got),  \
      (e, what, size, value, got))                                                                           \
    X(clSetEventCallback,                                                                                    \
      (cl_event e, cl_int type, void(CL_CALLBACK * call)(cl_event event, cl_int status, void *data),         \
       void *data),                                                                                          \
      (e, type, call, data))                                                                                 \
    X(clRetainEvent, (cl_event e), (e))                                                                      \
    X(clReleaseEvent, (cl_event e), (e))                                                                     \
    X(clFlush, (cl_command_queue q), (q))                                                                    \
    X(clFinish, (cl_command_queue q), (q))                                                                   \
    X(clEnqueueReadBuffer,                                                                                   \
      (cl_command_queue q, cl_mem m, cl_bool block, size_t at, size_t size, void *to, cl_uint n,             \
       const cl_event *wait, cl_event *event),                                                               \
      (q, m, block, at, size, to, n, wait, event))                                                           \
    X(clEnqueueWriteBuffer,                                                                                  \
      (cl_command_queue q, cl_mem m, cl_bool block, size_t at, size_t size, const void *from, cl_uint n,     \
       const cl_event *wait, cl_event *event),                                                               \
      (q, m, block, at, size, from, n, wait, event))                                                         \
    X(clEnqueueCopyBuffer,                                                                                   \
      (cl_command_queue q, cl_mem from, cl_mem to, size_t from_at, size_t to_at, size_t size, cl_uint n,     \
       const cl_event *wait, cl_event *event),                                                               \
      (q, from, to, from_at, to_at, size, n, wait, event))                                                   \
    X(clEnqueueNDRangeKernel,                                                                                \
      (cl_command_queue q, cl_kernel k, cl_uint dims, const size_t *offset, const size_t *global,            \
       const size_t *local, cl_uint n, const cl_event *wait, cl_event *event),                               \
      (q, k, dims, offset, global, local, n, wait, event))                                                   \
    X(clGetKernelWorkGroupInfo,                                                                              \
      (cl_kernel k, cl_device_id d, cl_kernel_work_group_info what, size_t size, void *value, size_t *got),  \
      (k, d, what, size, value, got))                                                                        \
    X(clEnqueueMarkerWithWaitList, (cl_command_queue q, cl_uint n, const cl_event *wait, cl_event *event),   \
      (q, n, wait, event))                                                                                   \
    X(clEnqueueBarrierWithWaitList, (cl_command_queue q, cl_uint n, const cl_event *wait, cl_event *event),  \
      (q, n, wait, event))                                                                                   \
    X(clEnqueueFillBuffer,                                                                                   \
      (cl_command_queue q, cl_mem m, const void *pattern, size_t pattern_size, size_t at, size_t size,       \
       cl_uint n, const cl_event *wait, cl_event *event),                                                    \
      (q, m, pattern, pattern_size, at, size, n, wait, event))                                               \
    X(clEnqueueUnmapMemObject,                                                                               \
      (cl_command_queue q, cl_mem m, void *mapped, cl_uint n, const cl_event *wait, cl_event *event),        \
      (q, m, mapped, n, wait, event))

// X(type, name, parameters, arguments): functions that return an object; their last parameter is `err`.
#define OBJECT_FUNCTIONS(X)                                                                                  \
    X(cl_context, clCreateContext,                                                                           \
      (const cl_context_properties *properties, cl_uint n, const cl_device_id *d,                            \
       void(CL_CALLBACK * notify)(const char *text, const void *info, size_t size, void *data), void *data,  \
       cl_int *err),                                                                                         \
      (properties, n, d, notify, data, err))                                                                 \
    X(cl_command_queue, clCreateCommandQueue,                                                                \
      (cl_context c, cl_device_id d, cl_command_queue_properties properties, cl_int * err),                  \
      (c, d, properties, err))                                                                               \
    X(cl_mem, clCreateBuffer, (cl_context c, cl_mem_flags flags, size_t size, void *from, cl_int *err),      \
      (c, flags, size, from, err))                                                                           \
    X(cl_program, clCreateProgramWithSource,                                                                 \
      (cl_context c, cl_uint n, const char **text, const size_t *size, cl_int *err),                         \
      (c, n, text, size, err))                                                                               \
    X(cl_program, clCreateProgramWithBinary,                                                                 \
      (cl_context c, cl_uint n, const cl_device_id *d, const size_t *size, const unsigned char **binary,     \
       cl_int *status, cl_int *err),                                                                         \
      (c, n, d, size, binary, status, err))                                                                  \
    X(cl_kernel, clCreateKernel, (cl_program p, const char *name, cl_int *err), (p, name, err))              \
    X(void *, clEnqueueMapBuffer,                                                                            \
      (cl_command_queue q, cl_mem m, cl_bool block, cl_map_flags flags, size_t at, size_t size, cl_uint n,   \
       const cl_event *wait, cl_event *event, cl_int *err),                                                  \
      (q, m, block, flags, at, size, n, wait, event, err))

static struct {
#define MEMBER(name, parameters, arguments) cl_int(CL_API_CALL *name) parameters;
    STATUS_FUNCTIONS(MEMBER)
#undef MEMBER
#define MEMBER(type, name, parameters, arguments) type(CL_API_CALL *name) parameters;
    OBJECT_FUNCTIONS(MEMBER)
#undef MEMBER
} table;
static bool found;
static pthread_once_t once = PTHREAD_ONCE_INIT;

// ISO C has no cast from an object pointer to a function's; POSIX promises that the bits serve.
static void find(void *library, const char *name, void *slot)
{
    *(void **) slot = found ? dlsym(library, name) : NULL;
}

static void fill(void)
{
    // What the process has already, linked or put in front by a tool, comes before what is on disk.
    void *library = RTLD_DEFAULT;
    found = dlsym(library, "clGetPlatformIDs") != NULL;
    if (!found) {
        library = dlopen("libOpenCL.so.1", RTLD_NOW | RTLD_LOCAL);
        if (!library)
            library = dlopen("libOpenCL.so", RTLD_NOW | RTLD_LOCAL);
        found = library != NULL;
    }
#define FIND(name, parameters, arguments) find(library, #name, &table.name);
    STATUS_FUNCTIONS(FIND)
#undef FIND
#define FIND(type, name, parameters, arguments) find(library, #name, &table.name);
    OBJECT_FUNCTIONS(FIND)
#undef FIND
}

bool clf_loader_found(void)
{
    pthread_once(&once, fill);
    return found;
}

#define FORWARD(name, parameters, arguments)                                                                 \
    cl_int CL_API_CALL name parameters                                                                       \
    {                                                                                                        \
        pthread_once(&once, fill);                                                                           \
        return table.name ? table.name arguments : CL_DEVICE_NOT_AVAILABLE;                                  \
    }
STATUS_FUNCTIONS(FORWARD)
#undef FORWARD

#define FORWARD(type, name, parameters, arguments)                                                           \
    type CL_API_CALL name parameters                                                                         \
    {                                                                                                        \
        pthread_once(&once, fill);                                                                           \
        if (table.name)                                                                                      \
            return table.name arguments;                                                                     \
        if (err)                                                                                             \
            *err = CL_DEVICE_NOT_AVAILABLE;                                                                  \
        return NULL;                                                                                         \
    }
OBJECT_FUNCTIONS(FORWARD)
