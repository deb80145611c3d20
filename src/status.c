// SPDX-License-Identifier: Apache-2.0
#include <clinfer/tensor.h>

static const char *cl_error_name(int code)
{
    static const char *const name[] = {
        [1] = "CL_DEVICE_NOT_FOUND",
        [2] = "CL_DEVICE_NOT_AVAILABLE",
        [3] = "CL_COMPILER_NOT_AVAILABLE",
        [4] = "CL_MEM_OBJECT_ALLOCATION_FAILURE",
        [5] = "CL_OUT_OF_RESOURCES",
        [6] = "CL_OUT_OF_HOST_MEMORY",
        [7] = "CL_PROFILING_INFO_NOT_AVAILABLE",
        [8] = "CL_MEM_COPY_OVERLAP",
        [11] = "CL_BUILD_PROGRAM_FAILURE",
        [12] = "CL_MAP_FAILURE",
        [13] = "CL_MISALIGNED_SUB_BUFFER_OFFSET",
        [14] = "CL_EXEC_STATUS_ERROR_FOR_EVENTS_IN_WAIT_LIST",
        [19] = "CL_KERNEL_ARG_INFO_NOT_AVAILABLE",
        [30] = "CL_INVALID_VALUE",
        [31] = "CL_INVALID_DEVICE_TYPE",
        [32] = "CL_INVALID_PLATFORM",
        [33] = "CL_INVALID_DEVICE",
        [34] = "CL_INVALID_CONTEXT",
        [35] = "CL_INVALID_QUEUE_PROPERTIES",
        [36] = "CL_INVALID_COMMAND_QUEUE",
        [37] = "CL_INVALID_HOST_PTR",
        [38] = "CL_INVALID_MEM_OBJECT",
        [42] = "CL_INVALID_BINARY",
        [43] = "CL_INVALID_BUILD_OPTIONS",
        [44] = "CL_INVALID_PROGRAM",
        [45] = "CL_INVALID_PROGRAM_EXECUTABLE",
        [46] = "CL_INVALID_KERNEL_NAME",
        [47] = "CL_INVALID_KERNEL_DEFINITION",
        [48] = "CL_INVALID_KERNEL",
        [49] = "CL_INVALID_ARG_INDEX",
        [50] = "CL_INVALID_ARG_VALUE",
        [51] = "CL_INVALID_ARG_SIZE",
        [52] = "CL_INVALID_KERNEL_ARGS",
        [53] = "CL_INVALID_WORK_DIMENSION",
        [54] = "CL_INVALID_WORK_GROUP_SIZE",
        [55] = "CL_INVALID_WORK_ITEM_SIZE",
        [56] = "CL_INVALID_GLOBAL_OFFSET",
        [57] = "CL_INVALID_EVENT_WAIT_LIST",
        [58] = "CL_INVALID_EVENT",
        [59] = "CL_INVALID_OPERATION",
        [61] = "CL_INVALID_BUFFER_SIZE",
        [63] = "CL_INVALID_GLOBAL_WORK_SIZE",
        [64] = "CL_INVALID_PROPERTY",
    };
    if (code == -1001)
        return "CL_PLATFORM_NOT_FOUND_KHR";
    const char *text = -code > 0 && -code < (int) (sizeof name / sizeof name[0]) ? name[-code] : NULL;
    return text ? text : "OpenCL error";
}

const char *clinfer_status_str(clinfer_status status)
{
    switch (status) {
#define CLINFER_X(name, value, text)                                                                         \
    case CLINFER_##name:                                                                                     \
        return text;
        CLINFER_STATUS_LIST(CLINFER_X)
#undef CLINFER_X
    }
    return (int) status < 0 && (int) status > -20000 ? cl_error_name((int) status) : "unknown status";
}

const char *clinfer_dtype_str(clinfer_dtype dtype)
{
    switch (dtype) {
#define CLINFER_X(name, value, text, bytes)                                                                  \
    case CLINFER_##name:                                                                                     \
        return text;
        CLINFER_DTYPE_LIST(CLINFER_X)
#undef CLINFER_X
    }
    return "?";
}

size_t clinfer_dtype_size(clinfer_dtype dtype)
{
    switch (dtype) {
#define CLINFER_X(name, value, text, bytes)                                                                  \
    case CLINFER_##name:                                                                                     \
        return bytes;
        CLINFER_DTYPE_LIST(CLINFER_X)
#undef CLINFER_X
    }
    return 0;
}

#define STRING(x)                    #x
#define VERSION(major, minor, patch) STRING(major) "." STRING(minor) "." STRING(patch)
const char *clinfer_version(void)
{
    return VERSION(CLINFER_VERSION_MAJOR, CLINFER_VERSION_MINOR, CLINFER_VERSION_PATCH);
}
