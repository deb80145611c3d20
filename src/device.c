// SPDX-License-Identifier: Apache-2.0
// Devices by query: capabilities, never names.
#include "ctx.h"
#include "env.h"
#include "loader.h"
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_PLATFORMS = 32, MAX_DEVICES = 64 };

// Enumerators that CL 1.2 headers do not have.
enum {
    DEVICE_IL_VERSION = 0x105B,
    DEVICE_SVM_CAPABILITIES = 0x1053,
    DEVICE_OPENCL_C_ALL_VERSIONS = 0x1066,
    DEVICE_MAX_NUM_SUB_GROUPS = 0x105C
};

char *clf_device_text(cl_device_id d, cl_device_info what)
{
    size_t size = 0;
    char *text = NULL;
    if (clGetDeviceInfo(d, what, 0, NULL, &size) || !size || !(text = calloc(1, size + 1)))
        return NULL;
    if (!clGetDeviceInfo(d, what, size, text, NULL))
        return text;
    free(text);
    return NULL;
}

static void text_info(cl_device_id d, cl_device_info what, char *buf, size_t size)
{
    char *text = clf_device_text(d, what);
    snprintf(buf, size, "%s", text ? text : "");
    free(text);
}

static uint64_t number_info(cl_device_id d, cl_device_info what, size_t size)
{
    uint64_t v = 0; // little-endian hosts only, so a shorter value fills the low bytes
    return clGetDeviceInfo(d, what, size, &v, NULL) ? 0 : v;
}

bool clf_device_has(cl_device_id d, const char *name)
{
    char *list = clf_device_text(d, CL_DEVICE_EXTENSIONS);
    const size_t n = strlen(name);
    bool found = false;
    for (const char *p = list; p && !found && (p = strstr(p, name)); p += n)
        found = (p == list || p[-1] == ' ') && (p[n] == 0 || p[n] == ' ');
    free(list);
    return found;
}

int clf_device_subgroup_std(cl_device_id d)
{
    // cl_name_version of OpenCL 3.0's headers.
    struct {
        cl_uint version;
        char name[64];
    } list[16] = { 0 };
    char c_version[64];
    int major = 0;
    // From OpenCL 3.0 on they are a feature of the language, and the extension may go unnamed.
    if (!clf_device_has(d, "cl_khr_subgroups") && !number_info(d, DEVICE_MAX_NUM_SUB_GROUPS, sizeof(cl_uint)))
        return 0;
    if (!clGetDeviceInfo(d, DEVICE_OPENCL_C_ALL_VERSIONS, sizeof list, list, NULL))
        for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
            if (list[i].version >> 22 == 3)
                return 30;
    text_info(d, CL_DEVICE_OPENCL_C_VERSION, c_version, sizeof c_version);
    return sscanf(c_version, "OpenCL C %d.", &major) == 1 && major >= 2 ? major * 10 : 0;
}

const char *clf_set_name(clinfer_kernel_set set)
{
    return set == CLINFER_SET_GROUP ? "group" : "row";
}

static clinfer_kernel_set set_of(cl_device_type type, unsigned caps)
{
    if (type & CL_DEVICE_TYPE_CPU)
        return CLINFER_SET_ROW;
    return type & CL_DEVICE_TYPE_GPU || caps & CLINFER_CAP_LOCAL_MEMORY ? CLINFER_SET_GROUP : CLINFER_SET_ROW;
}

static unsigned caps_of(cl_device_id d)
{
    const uint64_t fp = number_info(d, CL_DEVICE_SINGLE_FP_CONFIG, sizeof(cl_device_fp_config));
    const uint64_t queue = number_info(d, CL_DEVICE_QUEUE_PROPERTIES, sizeof(cl_command_queue_properties));
    char il[64];
    text_info(d, DEVICE_IL_VERSION, il, sizeof il);
    const struct {
        clinfer_cap cap;
        bool has;
    } list[] = {
        { CLINFER_CAP_FP16, clf_device_has(d, "cl_khr_fp16") },
        { CLINFER_CAP_SUBGROUPS, clf_device_subgroup_std(d) != 0 },
        { CLINFER_CAP_IL, il[0] || clf_device_has(d, "cl_khr_il_program") },
        { CLINFER_CAP_DENORMALS, fp & CL_FP_DENORM },
        { CLINFER_CAP_FMA, fp & CL_FP_FMA },
        { CLINFER_CAP_ROUNDED_DIVIDE, fp & CL_FP_CORRECTLY_ROUNDED_DIVIDE_SQRT },
        { CLINFER_CAP_LOCAL_MEMORY,
          number_info(d, CL_DEVICE_LOCAL_MEM_TYPE, sizeof(cl_device_local_mem_type)) == CL_LOCAL },
        { CLINFER_CAP_INT_DOT, clf_device_has(d, "cl_khr_integer_dot_product") },
        { CLINFER_CAP_SVM, number_info(d, DEVICE_SVM_CAPABILITIES, sizeof(cl_bitfield)) != 0 },
        { CLINFER_CAP_OUT_OF_ORDER, queue & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE },
    };
    unsigned bits = 0;
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        bits |= list[i].has ? (unsigned) list[i].cap : 0;
    return bits;
}

static const char *type_name(cl_device_type type)
{
    return type & CL_DEVICE_TYPE_CPU           ? "cpu"
           : type & CL_DEVICE_TYPE_GPU         ? "gpu"
           : type & CL_DEVICE_TYPE_ACCELERATOR ? "accelerator"
                                               : "other";
}

static void describe(cl_device_id d, struct clinfer_device_info *info)
{
    cl_platform_id platform = NULL;
    *info = (struct clinfer_device_info){ .id = d };
    text_info(d, CL_DEVICE_NAME, info->device, sizeof info->device);
    text_info(d, CL_DRIVER_VERSION, info->driver, sizeof info->driver);
    text_info(d, CL_DEVICE_VERSION, info->version, sizeof info->version);
    if (!clGetDeviceInfo(d, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL) && platform)
        clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof info->platform - 1, info->platform, NULL);
    const cl_device_type type = number_info(d, CL_DEVICE_TYPE, sizeof(cl_device_type));
    snprintf(info->type, sizeof info->type, "%s", type_name(type));
    info->caps = caps_of(d);
    info->set = set_of(type, info->caps);
    info->compute_units = (unsigned) number_info(d, CL_DEVICE_MAX_COMPUTE_UNITS, sizeof(cl_uint));
    info->max_work_group = (unsigned) number_info(d, CL_DEVICE_MAX_WORK_GROUP_SIZE, sizeof(size_t));
    info->local_bytes = number_info(d, CL_DEVICE_LOCAL_MEM_SIZE, sizeof(cl_ulong));
    info->max_alloc = number_info(d, CL_DEVICE_MAX_MEM_ALLOC_SIZE, sizeof(cl_ulong));
    info->global_bytes = number_info(d, CL_DEVICE_GLOBAL_MEM_SIZE, sizeof(cl_ulong));
}

clinfer_status clf_device_query(cl_device_id d, struct clinfer_device_info *info, char *error,
                                size_t error_size)
{
    int major = 0, minor = 0;
    describe(d, info);
    const char *lack = NULL;
    if (sscanf(info->version, "OpenCL %d.%d", &major, &minor) != 2 || major < 1 || (major == 1 && minor < 2))
        lack = "OpenCL 1.2";
    else if (!number_info(d, CL_DEVICE_AVAILABLE, sizeof(cl_bool)))
        lack = "the state \"available\"";
    else if (!number_info(d, CL_DEVICE_COMPILER_AVAILABLE, sizeof(cl_bool)))
        lack = "a compiler for OpenCL C";
    else if (!number_info(d, CL_DEVICE_ENDIAN_LITTLE, sizeof(cl_bool)))
        lack = "little-endian order";
    if (!lack)
        return CLINFER_OK;
    snprintf(error, error_size, "device \"%s\" (%s) lacks %s", info->device, info->version, lack);
    return CLINFER_ERR_NO_DEVICE;
}

// All devices of all platforms, in the order the loader names them.
static clinfer_status list_devices(cl_device_id *ids, unsigned *count, char *error, size_t error_size)
{
    cl_platform_id platform[MAX_PLATFORMS];
    cl_uint platforms = 0;
    *count = 0;
    if (!clf_loader_found()) {
        snprintf(error, error_size,
                 "no OpenCL loader: libOpenCL.so.1 cannot be loaded; install ocl-icd-libopencl1 (Debian) "
                 "or the device vendor's OpenCL");
        return CLINFER_ERR_NO_DEVICE;
    }
    cl_int err = clGetPlatformIDs(MAX_PLATFORMS, platform, &platforms);
    if (err || !platforms) {
        snprintf(error, error_size,
                 "the OpenCL loader finds no platform (%s): install a driver such as pocl-opencl-icd, "
                 "or check OCL_ICD_VENDORS and /etc/OpenCL/vendors",
                 clinfer_status_str((clinfer_status) err));
        return CLINFER_ERR_NO_DEVICE;
    }
    cl_int last = CL_SUCCESS;
    for (cl_uint i = 0; i < platforms && i < MAX_PLATFORMS && *count < MAX_DEVICES; i++) {
        cl_uint n = 0;
        err = clGetDeviceIDs(platform[i], CL_DEVICE_TYPE_ALL, MAX_DEVICES - *count, ids + *count, &n);
        if (err)
            last = err;
        else
            *count += n < MAX_DEVICES - *count ? n : MAX_DEVICES - *count;
    }
    if (*count)
        return CLINFER_OK;
    snprintf(error, error_size,
             "no device on %u OpenCL platform%s (%s); with PoCL this also happens when its cache "
             "folder, POCL_CACHE_DIR, cannot be written",
             platforms, platforms > 1 ? "s" : "", clinfer_status_str((clinfer_status) last));
    return CLINFER_ERR_NO_DEVICE;
}

clinfer_status clinfer_devices(struct clinfer_device_info *infos, unsigned capacity, unsigned *count,
                               char *error, size_t error_size)
{
    cl_device_id ids[MAX_DEVICES];
    clinfer_status st = list_devices(ids, count, error, error ? error_size : 0);
    for (unsigned i = 0; !st && i < *count && i < capacity; i++)
        describe(ids[i], &infos[i]);
    return st;
}

static bool contains_nocase(const char *text, const char *part)
{
    const size_t n = strlen(part);
    for (; *text; text++)
        if (!strncasecmp(text, part, n))
            return true;
    return false;
}

static bool chosen(const char *choice, unsigned index, const struct clinfer_device_info *info)
{
    char *end;
    const unsigned long number = strtoul(choice, &end, 10);
    if (choice[0] >= '0' && choice[0] <= '9' && !*end)
        return number == index;
    if (!strcasecmp(choice, "cpu") || !strcasecmp(choice, "gpu"))
        return !strcasecmp(choice, info->type);
    return contains_nocase(info->device, choice) || contains_nocase(info->platform, choice);
}

clinfer_status clf_device_choose(const char *choice, cl_device_id *device, char *error, size_t error_size)
{
    cl_device_id ids[MAX_DEVICES];
    unsigned count;
    if (!choice)
        choice = clf_getenv("CLINFER_DEVICE");
    clinfer_status st = list_devices(ids, &count, error, error_size);
    for (unsigned i = 0; !st && i < count; i++) {
        struct clinfer_device_info info;
        describe(ids[i], &info);
        if (!choice || !*choice || chosen(choice, i, &info)) {
            *device = ids[i];
            return CLINFER_OK;
        }
    }
    if (!st)
        snprintf(error, error_size, "no device matches \"%s\"; there are %u, see `clinfer info`", choice,
                 count);
    return st ? st : CLINFER_ERR_NO_DEVICE;
}
