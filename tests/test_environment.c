// SPDX-License-Identifier: Apache-2.0
// What surrounds a context: its log, missing and broken platforms, fork.
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rig.h"
#include "skip.h"

TestSuite(environment, .timeout = 120);

struct log {
    int count[CLINFER_LOG_DEBUG + 1];
    char last[512];
};

static void keep(void *priv, clinfer_log_level level, const char *message)
{
    struct log *log = priv;
    log->count[level]++;
    snprintf(log->last, sizeof log->last, "%s", message);
}

static void log_at(clinfer_log_level level, struct log *log)
{
    clinfer_ctx *ctx;
    struct rig r;
    *log = (struct log){ 0 };
    cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.cache_dir = "", .log = keep, .log_priv = log,
                                                             .log_level = level)),
                 CLINFER_OK);
    rig_make(&r, "rms_norm_kv_cache", NULL);
    cr_assert_eq(rig_run(&r, ctx), CLINFER_OK);
    r.params.norm.layer_idx = 2;
    cr_assert_eq(r.op->compile(ctx, &r.params), CLINFER_ERR_ARGUMENT);
    cr_assert(strstr(log->last, "layer_idx is 2"), "%s", log->last);
    rig_free(&r);
    clinfer_ctx_destroy(&ctx);
}

Test(environment, log_levels)
{
    struct log log;
    unsetenv("CLINFER_LOG");
    for (int level = CLINFER_LOG_ERROR; level <= CLINFER_LOG_DEBUG; level++) {
        log_at((clinfer_log_level) level, &log);
        cr_assert_eq(log.count[CLINFER_LOG_ERROR], 1);
        cr_assert_eq(log.count[CLINFER_LOG_INFO] > 0, level >= CLINFER_LOG_INFO);
        cr_assert_eq(log.count[CLINFER_LOG_DEBUG] > 0, level >= CLINFER_LOG_DEBUG);
    }
    log_at((clinfer_log_level) 0, &log);
    cr_assert_eq(log.count[CLINFER_LOG_INFO] + log.count[CLINFER_LOG_DEBUG], 0);
    setenv("CLINFER_LOG", "debug", 1);
    log_at((clinfer_log_level) 0, &log);
    cr_assert_gt(log.count[CLINFER_LOG_DEBUG], 0);
    log_at(CLINFER_LOG_WARN, &log); // the params come first
    cr_assert_eq(log.count[CLINFER_LOG_DEBUG], 0);
    setenv("CLINFER_LOG", "nonsense", 1);
    log_at((clinfer_log_level) 0, &log);
    cr_assert_eq(log.count[CLINFER_LOG_INFO], 0);
}

// A cache folder that cannot be used costs one warning and nothing else.
Test(environment, unusable_cache_folder)
{
    struct log log = { 0 };
    clinfer_ctx *ctx;
    struct rig r;
    cr_assert_eq(clinfer_ctx_create(
                     &ctx, clinfer_ctx_params(.cache_dir = "/dev/null/cache", .log = keep, .log_priv = &log)),
                 CLINFER_OK);
    cr_assert_eq(log.count[CLINFER_LOG_WARN], 1);
    cr_assert(strstr(log.last, "program cache off") && strstr(log.last, "/dev/null"), "%s", log.last);
    rig_make(&r, "rms_norm_kv_cache", NULL);
    cr_assert_eq(rig_run(&r, ctx), CLINFER_OK);
    rig_free(&r);
    cr_assert_eq(clinfer_ctx_save(ctx), CLINFER_OK);
    clinfer_ctx_destroy(&ctx);
}

static void expect_no_device(const char *word)
{
    struct clinfer_device_info info;
    struct log log = { 0 };
    unsigned count = 7;
    char error[512] = "";
    clinfer_ctx *ctx;
    cr_assert_eq(clinfer_devices(&info, 1, &count, error, sizeof error), CLINFER_ERR_NO_DEVICE);
    cr_assert_eq(count, 0);
    cr_assert(strstr(error, word), "%s", error);
    cr_assert_eq(clinfer_devices(&info, 1, &count, NULL, 0), CLINFER_ERR_NO_DEVICE);
    error[0] = 0;
    cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.cache_dir = "", .log = keep, .log_priv = &log,
                                                             .error = error, .error_size = sizeof error)),
                 CLINFER_ERR_NO_DEVICE);
    cr_assert_null(ctx);
    cr_assert(strstr(error, word), "%s", error);
    cr_assert_str_eq(log.last, error);
    char cut[8];
    cr_assert_eq(
        clinfer_ctx_create(&ctx, clinfer_ctx_params(.cache_dir = "", .error = cut, .error_size = sizeof cut)),
        CLINFER_ERR_NO_DEVICE);
    cr_assert_eq(strlen(cut), sizeof cut - 1);
}

static int count_entry(void *priv, const struct clinfer_cache_entry *entry)
{
    (void) entry;
    ++*(int *) priv;
    return 0;
}

Test(environment, no_platform)
{
    char folder[] = "/tmp/clinfer-test-XXXXXX", path[256], error[256];
    int entries = 0;
    cr_assert_not_null(mkdtemp(folder));
    setenv("OCL_ICD_VENDORS", folder, 1);
    unsetenv("OCL_ICD_FILENAMES");
    expect_no_device("OCL_ICD_VENDORS");
    // What needs no device still works.
    cr_assert_eq(clinfer_cache_path(folder, path, sizeof path), CLINFER_OK);
    cr_assert_str_eq(path, folder);
    cr_assert_eq(clinfer_cache_list(folder, count_entry, &entries, error, sizeof error), CLINFER_OK, "%s",
                 error);
    cr_assert_eq(entries, 0);
    cr_assert_eq(clinfer_cache_clear(folder, NULL, error, sizeof error), CLINFER_OK, "%s", error);
    cr_assert_str_eq(clinfer_version(), "0.1.0");
    cr_assert_str_eq(clinfer_status_str(CLINFER_ERR_NO_DEVICE), "no usable OpenCL device");
    rmdir(folder);
}

// With PoCL this is what a cache folder that cannot be written leads to.
Test(environment, platform_without_device)
{
    char name[64] = "";
    cl_platform_id platform;
    cr_assert_eq(clGetPlatformIDs(1, &platform, NULL), CL_SUCCESS);
    (void) clGetPlatformInfo(platform, CL_PLATFORM_NAME, sizeof name, name, NULL);
    if (strcmp(name, "Portable Computing Language"))
        SKIP("environment", "%s: only of PoCL is it known how to take its devices away", name);
    setenv("POCL_CACHE_DIR", "/dev/null/cache", 1);
    expect_no_device("POCL_CACHE_DIR");
}

static void run_right(clinfer_ctx *ctx)
{
    struct rig r;
    rig_make(&r, "rms_norm_kv_cache", NULL);
    cr_assert_eq(rig_run(&r, ctx), CLINFER_OK);
    rig_reference(&r);
    cr_assert(rig_same(&r), "%s", r.note);
    rig_free(&r);
}

// A child inherits no threads of the driver's: it may use what needs no device, fail validation and leave.
Test(environment, fork_after_creation)
{
    clinfer_ctx *ctx;
    cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.cache_dir = "")), CLINFER_OK);
    run_right(ctx);
    const pid_t child = fork();
    if (child == 0) {
        struct rig r;
        char path[256];
        rig_make(&r, "rms_norm_kv_cache", NULL);
        r.params.norm.kv.page_size = 0;
        const bool ok = r.op->compile(ctx, &r.params) == CLINFER_ERR_SHAPE &&
                        clinfer_ctx_error(ctx, NULL, 0) &&
                        clinfer_cache_path("/tmp", path, sizeof path) == CLINFER_OK;
        _exit(ok ? 0 : 1);
    }
    int status = -1;
    cr_assert_eq(waitpid(child, &status, 0), child);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cr_assert_eq(clinfer_ctx_error(ctx, NULL, 0), 0, "the child's error is the child's");
    run_right(ctx);
    clinfer_ctx_destroy(&ctx);
}
