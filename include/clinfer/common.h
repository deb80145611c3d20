// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_COMMON_H_
#define CLINFER_COMMON_H_

#include <stddef.h>
#include <stdint.h>

// A program that says nothing gets the OpenCL 1.2 entry points; one that wants more defines this first.
#ifndef CL_TARGET_OPENCL_VERSION
#define CL_TARGET_OPENCL_VERSION 120
#endif
#include <CL/cl.h>

#ifdef __cplusplus
#define CLINFER_API_BEGIN extern "C" {
#define CLINFER_API_END   }
#else
#define CLINFER_API_BEGIN
#define CLINFER_API_END
#endif

#if defined(__GNUC__)
#define CLINFER_API __attribute__((visibility("default")))
#else
#define CLINFER_API
#endif

CLINFER_API_BEGIN

#define CLINFER_VERSION_MAJOR 0
#define CLINFER_VERSION_MINOR 1
#define CLINFER_VERSION_PATCH 0

// The version of the library that is loaded, as "0.1.0".
CLINFER_API const char *clinfer_version(void);

// Status codes. 0 is success. Values in (-20000, 0) are OpenCL's own cl_int, passed through
// unchanged; values <= -20000 are ours. Numbers are frozen once released.
// What went wrong in detail is a text: clinfer_ctx_error().
#define CLINFER_STATUS_LIST(X)                                                                               \
    X(OK, 0, "success")                                                                                      \
    X(ERR_ARGUMENT, -20001, "invalid argument")                                                              \
    X(ERR_SHAPE, -20002, "tensor shape mismatch")                                                            \
    X(ERR_TYPE, -20003, "unsupported data type")                                                             \
    X(ERR_ALIAS, -20004, "tensors overlap in memory")                                                        \
    X(ERR_BOUNDS, -20005, "a view reaches past its buffer")                                                  \
    X(ERR_UNSUPPORTED, -20006, "not supported on this device")                                               \
    X(ERR_NO_DEVICE, -20007, "no usable OpenCL device")                                                      \
    X(ERR_BUILD, -20008, "a kernel failed to build; see the log")                                            \
    X(ERR_MEMORY, -20009, "out of host memory")                                                              \
    X(ERR_FILE, -20010, "a file could not be read or written")                                               \
    X(ERR_PAGES, -20011, "too few free pages")

typedef enum clinfer_status {
#define CLINFER_X(name, value, text) CLINFER_##name = value,
    CLINFER_STATUS_LIST(CLINFER_X)
#undef CLINFER_X
} clinfer_status;

// Text for a status; OpenCL's own codes by their name ("CL_OUT_OF_RESOURCES"). Never NULL.
CLINFER_API const char *clinfer_status_str(clinfer_status status);

CLINFER_API_END

#endif
