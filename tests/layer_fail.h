// SPDX-License-Identifier: Apache-2.0
// What a test asks of the layer that it finds in its process: see layer_fail.c.
#ifndef CLINFER_TESTS_LAYER_FAIL_H_
#define CLINFER_TESTS_LAYER_FAIL_H_

#include <CL/cl.h>

// Functions that the library calls. INT: returns its status. OBJECT: returns an object, the status last.
#define LAYER_INT_FUNCTIONS(X)                                                                               \
    X(clBuildProgram)                                                                                        \
    X(clEnqueueBarrierWithWaitList)                                                                          \
    X(clEnqueueCopyBuffer)                                                                                   \
    X(clEnqueueMarkerWithWaitList)                                                                           \
    X(clEnqueueNDRangeKernel)                                                                                \
    X(clEnqueueReadBuffer)                                                                                   \
    X(clEnqueueWriteBuffer)                                                                                  \
    X(clFinish)                                                                                              \
    X(clFlush)                                                                                               \
    X(clGetCommandQueueInfo)                                                                                 \
    X(clGetDeviceIDs)                                                                                        \
    X(clGetDeviceInfo)                                                                                       \
    X(clGetEventInfo)                                                                                        \
    X(clGetEventProfilingInfo)                                                                               \
    X(clGetMemObjectInfo)                                                                                    \
    X(clGetPlatformIDs)                                                                                      \
    X(clGetPlatformInfo)                                                                                     \
    X(clGetKernelWorkGroupInfo)                                                                              \
    X(clGetProgramBuildInfo)                                                                                 \
    X(clGetProgramInfo)                                                                                      \
    X(clSetEventCallback)                                                                                    \
    X(clSetKernelArg)                                                                                        \
    X(clWaitForEvents)                                                                                       \
    X(clRetainCommandQueue)                                                                                  \
    X(clRetainContext)                                                                                       \
    X(clRetainEvent)                                                                                         \
    X(clReleaseCommandQueue)                                                                                 \
    X(clReleaseContext) X(clReleaseEvent) X(clReleaseKernel) X(clReleaseMemObject) X(clReleaseProgram)
#define LAYER_OBJECT_FUNCTIONS(X)                                                                            \
    X(clCreateBuffer)                                                                                        \
    X(clCreateCommandQueue)                                                                                  \
    X(clCreateContext) X(clCreateKernel) X(clCreateProgramWithBinary) X(clCreateProgramWithSource)

enum { LAYER_SMALL_ALLOC = 16384 }; // bytes, of the lie "small_alloc"

struct layer_control {
    // Calls are counted, and may fail, only while on.
    void (*enable)(int on);
    // The n-th call of the function from now on fails with `code`, once. NULL: none does.
    void (*arm)(const char *function, long n, cl_int code);
    int (*fired)(void);                  // whether it has
    long (*calls)(const char *function); // since the last arm; -1: not a function of the layer's
    long (*live)(void);                  // objects created and retained less those released, on or not
    // Of devices: "no_compiler", "tiny_alloc", "small_alloc", "big_endian", "opencl11", "unavailable",
    // "driver" (another version), "gpu", "accelerator", "accelerator_local" (memory). "failed_event": events
    // have ended with an error, while on. NULL: none.
    void (*lie)(const char *what);
};

#define LAYER_CONTROL "clf_layer_control" // the name of a struct layer_control in the module

#endif
