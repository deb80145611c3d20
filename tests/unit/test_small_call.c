// SPDX-License-Identifier: Apache-2.0
// The small call of a self-check, as a plan: no device.
#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../tools/opcase.h"
#include "self_check_internal.h"

static void expect_alike(const char *path, clinfer_kernel_set set)
{
    static struct clf_plan plan;
    static struct clf_check k;
    const struct clf_caps caps = { .bits = ~0u,
                                   .compute_units = 8,
                                   .max_work_group = 1024,
                                   .local_bytes = 1 << 16,
                                   .set = set,
                                   .arith = CLINFER_ARITH_F32 };
    struct op_case c;
    char error[512];
    cr_assert(op_case_load(path, &c, error, sizeof error), "%s", error);
    for (int i = 0; i < CLF_NUM_OPS; i++)
        if (!strcmp(clf_ops[i]->name, c.op->name)) {
            cr_assert_eq(clf_plan(&plan, clf_ops[i], c.params, &caps, CLF_CALL), CLINFER_OK, "%s: %s", path,
                         plan.error);
            k = (struct clf_check){ .op = clf_ops[i], .params = malloc(clf_ops[i]->params_size) };
            cr_assert(k.params && k.op->ref, "%s has no reference", k.op->name);
            cr_assert(clf_check_shape(&k, &plan, c.params), "%s: the small call takes other programs", path);
            cr_assert_leq(k.tokens, 8, "%s: a small call of %lld tokens", path, (long long) k.tokens);
            free(k.params);
        }
    op_case_free(&c);
}

// Every case's programs are those of a small call.
Test(small_call, takes_the_same_programs)
{
    char path[512];
    struct dirent **list;
    const char *data = getenv("CLINFER_TEST_DATA");
    int files = 0;
    cr_assert_not_null(data);
    const int count = scandir(data, &list, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/%s", data, list[i]->d_name);
        for (int set = CLINFER_SET_ROW; strstr(path, ".safetensors") && set <= CLINFER_SET_GROUP;
             set++, files++)
            expect_alike(path, (clinfer_kernel_set) set);
        free(list[i]);
    }
    free(list);
    cr_assert_gt(files, 0);
}
