// SPDX-License-Identifier: Apache-2.0
// A case file through the library.
#include "optest.h"

#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>

const char *ot_data_dir(void)
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

void ot_check_case(const struct ot_device *d, const char *name, struct op_case *c)
{
    char path[1024], error[1024] = "";
    struct cmp_result results[OP_MAX_TENSORS];
    (void) snprintf(path, sizeof path, "%s/%s", ot_data_dir(), name);
    cr_assert(op_case_load(path, c, error, sizeof error), "%s", error);
    op_case_reset(c);
    run(c, d, name);
    const int n = cmp_expected(c, results, error, sizeof error);
    cr_expect(n > 0, "%s: nothing to compare: %s", name, error);
    for (int i = 0; i < n; i++)
        cr_expect(results[i].ok, "%s: %s is off by %g, tolerance %g, cosine %g", name, results[i].tensor,
                  results[i].max_err, results[i].tolerance, results[i].cosine);
}
