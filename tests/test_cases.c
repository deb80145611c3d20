// SPDX-License-Identifier: Apache-2.0
// Every case file, through the library, against the results in it.
#include "optest.h"

#include <criterion/criterion.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *data_dir(void)
{
    const char *dir = getenv("CLINFER_TEST_DATA");
    return dir ? dir : "tests/data";
}

static void run(struct op_case *c, const struct ot_device *d, const char *name)
{
    struct op_device on = { 0 };
    struct clinfer_fault fault;
    char error[1024] = "";
    cr_assert(op_device_open(c, d->cl, &on, error, sizeof error), "%s: %s", name, error);
    cr_assert(op_device_upload(c, &on, d->queue, error, sizeof error), "%s: %s", name, error);
    const clinfer_status st = c->op->run(d->ctx, on.params, 0, NULL, NULL);
    (void) clinfer_ctx_error(d->ctx, error, sizeof error);
    cr_assert_eq(st, CLINFER_OK, "%s: %s", name, error);
    cr_assert(op_device_download(c, &on, d->queue, error, sizeof error), "%s: %s", name, error);
    cr_assert_eq(clinfer_ctx_fault(d->ctx, NULL, &fault), CLINFER_OK);
    cr_expect_eq(fault.code, CLINFER_FAULT_NONE, "%s: %s", name, clinfer_fault_str(fault.code));
    op_device_close(&on);
}

static void check_file(const struct ot_device *d, const char *name)
{
    char path[1024], error[1024] = "";
    struct op_case c;
    struct cmp_result results[OP_MAX_TENSORS];
    (void) snprintf(path, sizeof path, "%s/%s", data_dir(), name);
    cr_assert(op_case_load(path, &c, error, sizeof error), "%s", error);
    op_case_reset(&c);
    run(&c, d, name);
    const int n = cmp_expected(&c, results, error, sizeof error);
    cr_expect(n > 0, "%s: nothing to compare: %s", name, error);
    for (int i = 0; i < n; i++)
        cr_expect(results[i].ok, "%s: %s is off by %g, tolerance %g, cosine %g", name, results[i].tensor,
                  results[i].max_err, results[i].tolerance, results[i].cosine);
    op_case_free(&c);
}

// Splits the files of the folder among `parts` tests, which run side by side.
static void check_part(int part, int parts)
{
    struct ot_device d = ot_open_checked();
    struct clinfer_ctx_stats stats;
    struct dirent **entries;
    const int count = scandir(data_dir(), &entries, NULL, alphasort);
    int files = 0;
    cr_assert(count >= 0, "%s cannot be read", data_dir());
    for (int i = 0; i < count; i++) {
        if (strstr(entries[i]->d_name, ".safetensors") && files++ % parts == part)
            check_file(&d, entries[i]->d_name);
        free(entries[i]);
    }
    free(entries);
    cr_assert(files > 0, "%s holds no case", data_dir());
    clinfer_ctx_stats(d.ctx, &stats);
    cr_expect_gt(stats.self_checks, 0);
    cr_expect_eq(stats.disabled, 0, "a right kernel failed its self-check");
    ot_close(&d);
}

Test(cases, part_1_of_2)
{
    check_part(0, 2);
}
Test(cases, part_2_of_2)
{
    check_part(1, 2);
}
