// SPDX-License-Identifier: Apache-2.0
// The part of a stored program's key that says where its binary runs.
#include "ctx.h"
#include "env.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#elif defined(__linux__)
#include <sys/auxv.h>
#endif

enum { DEVICE_UUID = 0x106A, UUID_SIZE = 16 }; // not in CL 1.2 headers

// A device name is no instruction set: the same name runs on CPUs that differ in features.
static void cpu_features(char *buf, size_t size)
{
#if defined(__x86_64__) || defined(__i386__)
    unsigned a = 0, b = 0, c = 0, d = 0, word[9] = { 0 };
    if (__get_cpuid(1, &a, &b, &c, &d)) {
        word[0] = a;
        word[1] = c & ~(1u << 27); // OSXSAVE is the system's, not the CPU's
        word[2] = d;
    }
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        word[3] = b;
        word[4] = c;
        word[5] = d;
    }
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) {
        word[6] = a;
        word[7] = b;
        word[8] = d;
    }
    size_t n = 0;
    for (int i = 0; i < 9 && n < size; i++)
        n += (size_t) snprintf(buf + n, size - n, "%08x", word[i]);
#elif defined(__linux__)
    snprintf(buf, size, "%lx.%lx", getauxval(AT_HWCAP), getauxval(AT_HWCAP2));
#else
    snprintf(buf, size, "unknown");
#endif
}

static void put_text(FILE *f, const char *name, cl_device_id d, cl_device_info what)
{
    char *text = clf_device_text(d, what);
    fprintf(f, "%s=%s\n", name, text ? text : "");
    free(text);
}

// Name and version: some name the compiler they were built with only there.
static void put_platform(FILE *f, cl_device_id d)
{
    static const cl_platform_info what[] = { CL_PLATFORM_NAME, CL_PLATFORM_VERSION };
    cl_platform_id platform = NULL;
    char text[1024];
    if (clGetDeviceInfo(d, CL_DEVICE_PLATFORM, sizeof platform, &platform, NULL))
        platform = NULL;
    for (int i = 0; platform && i < 2; i++) {
        text[0] = 0;
        if (clGetPlatformInfo(platform, what[i], sizeof text - 1, text, NULL))
            text[0] = 0;
        text[sizeof text - 1] = 0;
        fprintf(f, "platform=%s\n", text);
    }
}

static void put_uuid(FILE *f, cl_device_id d)
{
    unsigned char id[UUID_SIZE];
    fputs("uuid=", f);
    if (clf_device_has(d, "cl_khr_device_uuid") && !clGetDeviceInfo(d, DEVICE_UUID, sizeof id, id, NULL))
        for (int i = 0; i < UUID_SIZE; i++)
            fprintf(f, "%02x", id[i]);
    fputc('\n', f);
}

char *clf_device_key(const struct clinfer_device_info *info)
{
    // What makes a CPU driver generate other code.
    static const char *const variables[] = { "POCL_EXTRA_BUILD_FLAGS", "POCL_WORK_GROUP_METHOD",
                                             "POCL_BITCODE_FINALIZER", "CL_CONFIG_CPU_TARGET_ARCH",
                                             "CL_CONFIG_CPU_VECTORIZER_MODE" };
    char *text = NULL, features[80] = "";
    size_t size = 0;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return NULL;
    if (!strcmp(info->type, "cpu"))
        cpu_features(features, sizeof features);
    put_text(f, "device", info->id, CL_DEVICE_NAME);
    put_text(f, "version", info->id, CL_DEVICE_VERSION);
    put_text(f, "driver", info->id, CL_DRIVER_VERSION);
    put_platform(f, info->id);
    put_uuid(f, info->id);
    fprintf(f, "cpu=%s\npointer=%zu\n", features, sizeof(void *));
    for (size_t i = 0; i < sizeof variables / sizeof variables[0]; i++) {
        const char *v = clf_getenv(variables[i]);
        if (v)
            fprintf(f, "%s=%s\n", variables[i], v);
    }
    if (fclose(f)) {
        free(text);
        return NULL;
    }
    return text;
}
