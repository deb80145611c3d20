// SPDX-License-Identifier: Apache-2.0
// What a device can do decides how, never what: each capability taken away in turn, all at once, both kernel
// sets, and devices that say to be what they are not.
#include "optest.h"

#include <criterion/criterion.h>

#include <string.h>

#include "layer_use.h"

TestSuite(capabilities, .timeout = 300);

enum {
    ROOT = CLINFER_CAP_ROUNDED_DIVIDE |
           CLINFER_CAP_DENORMALS, // an option of the compiler, which square roots follow
    SUM = CLINFER_CAP_SUBGROUPS,  // the order of a work-group's sums
    ALL = -1,
    NUM_FILES = 4
};
// A call of each op on a cache with scales, where each division shows; the capabilities that may change its
// bits.
static const struct {
    const char *name;
    unsigned changes;
} files[NUM_FILES] = {
    { "rope_fp8_scaled_partial.safetensors", 0 },
    { "norm_fp8_scaled_cache.safetensors", ROOT | SUM },
    { "mla_store_scaled.safetensors", ROOT | SUM },
    { "mla_decode_scaled_cache.safetensors", ROOT | SUM },
};

struct log {
    int row, group; // programs that came of each set
};

static void count_programs(void *priv, clinfer_log_level level, const char *message)
{
    struct log *log = priv;
    if (level == CLINFER_LOG_ERROR || level == CLINFER_LOG_WARN)
        cr_log_warn("%s", message);
    if (strstr(message, " compiled ") || strstr(message, " loaded "))
        ++*(strstr(message, "-DGROUP_ITEMS=") ? &log->group : &log->row);
}

// Programs that a capability does not concern are the same in all contexts: the driver's cache or
// CLINFER_CACHE_DIR's has them.
static struct ot_device open_device(clinfer_kernel_set set, unsigned disable_caps, struct log *log)
{
    struct ot_device d = { 0 };
    char error[512] = "";
    *log = (struct log){ 0 };
    cr_assert_eq(
        clinfer_ctx_create(&d.ctx, clinfer_ctx_params(.kernel_set = set, .disable_caps = disable_caps,
                                                      .log = count_programs, .log_priv = log,
                                                      .log_level = CLINFER_LOG_DEBUG, .error = error,
                                                      .error_size = sizeof error)),
        CLINFER_OK, "%s", error);
    d.cl = clinfer_ctx_cl_context(d.ctx);
    d.queue = clinfer_ctx_queue(d.ctx);
    return d;
}

static void expect_equal(const struct op_case *a, const struct op_case *b, const char *name, unsigned without)
{
    for (int i = 0; i < a->num_buffers; i++)
        cr_expect(!memcmp(a->buffers[i].data, b->buffers[i].data, a->buffers[i].bytes),
                  "%s: %s has other bits without capabilities %#x", name, a->buffers[i].tensor->name,
                  without);
}

static void check_without(clinfer_kernel_set set, unsigned without, const struct op_case *whole)
{
    struct log log;
    struct ot_device d = open_device(set, without, &log);
    struct clinfer_device_info info;
    clinfer_ctx_device_info(d.ctx, &info);
    cr_expect_eq(info.caps & without, 0);
    for (int i = 0; i < NUM_FILES; i++) {
        struct op_case c;
        ot_check_case(&d, files[i].name, &c);
        if (!(files[i].changes & without))
            expect_equal(&c, &whole[i], files[i].name, without);
        op_case_free(&c);
    }
    cr_expect((set == CLINFER_SET_GROUP ? log.row : log.group) == 0 && log.row + log.group > 0,
              "%d programs of the row set, %d of the group set", log.row, log.group);
    ot_close(&d);
}

static void check_set(clinfer_kernel_set set)
{
    struct op_case whole[NUM_FILES];
    struct log log;
    struct ot_device d = open_device(set, 0, &log);
    struct clinfer_device_info info;
    clinfer_ctx_device_info(d.ctx, &info);
    for (int i = 0; i < NUM_FILES; i++)
        ot_check_case(&d, files[i].name, &whole[i]);
    ot_close(&d);
    cr_assert_neq(info.caps, 0);
    for (unsigned bit = 1; bit && bit <= info.caps; bit <<= 1)
        if (info.caps & bit)
            check_without(set, bit, whole);
    check_without(set, (unsigned) ALL, whole);
    for (int i = 0; i < NUM_FILES; i++)
        op_case_free(&whole[i]);
}

Test(capabilities, row_set)
{
    check_set(CLINFER_SET_ROW);
}
Test(capabilities, group_set)
{
    check_set(CLINFER_SET_GROUP);
}

// The set that AUTO takes: in the device's info and in what is compiled.
static void expect_set(clinfer_kernel_set want, unsigned without)
{
    struct log log;
    struct clinfer_device_info info;
    struct op_case c;
    struct ot_device d = open_device(CLINFER_SET_AUTO, without, &log);
    clinfer_ctx_device_info(d.ctx, &info);
    cr_expect_eq(info.set, want, "a device of type %s without %#x gets set %d", info.type, without,
                 (int) info.set);
    ot_check_case(&d, files[0].name, &c);
    cr_expect(want == CLINFER_SET_GROUP ? log.group && !log.row : log.row && !log.group);
    op_case_free(&c);
    ot_close(&d);
}

Test(capabilities, automatic_set)
{
    const struct layer_control *layer;
    struct clinfer_device_info info;
    unsigned count;
    char error[256];
    LAYER_OR_SKIP(layer);
    expect_set(CLINFER_SET_ROW, 0);
    layer->lie("gpu");
    cr_assert_eq(clinfer_devices(&info, 1, &count, error, sizeof error), CLINFER_OK, "%s", error);
    cr_expect_str_eq(info.type, "gpu");
    cr_expect_eq(info.set, CLINFER_SET_GROUP);
    expect_set(CLINFER_SET_GROUP, 0);
    expect_set(CLINFER_SET_ROW, CLINFER_CAP_LOCAL_MEMORY);
    expect_set(CLINFER_SET_GROUP, CLINFER_CAP_SUBGROUPS);
    layer->lie("accelerator");
    expect_set(CLINFER_SET_ROW, 0);
    layer->lie("accelerator_local");
    expect_set(CLINFER_SET_GROUP, 0);
    expect_set(CLINFER_SET_ROW, CLINFER_CAP_LOCAL_MEMORY);
    layer->lie(NULL);
}
