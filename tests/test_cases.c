// SPDX-License-Identifier: Apache-2.0
// Every case file, through the library, against the results in it.
#include "optest.h"

#include <criterion/criterion.h>

#include <dirent.h>
#include <stdlib.h>
#include <string.h>

static void check_file(const struct ot_device *d, const char *name)
{
    struct op_case c;
    ot_check_case(d, name, &c);
    op_case_free(&c);
}

// Splits the files of the folder among `parts` tests. OPTEST_CASE: only files whose name has that text, all
// in the first; kernels are then run as they are, without the engine's own check.
static void check_part(int part, int parts)
{
    const char *only = getenv("OPTEST_CASE");
    if (only && part)
        cr_skip_test("OPTEST_CASE=%s: all files are in the first part", only);
    if (only)
        parts = 1;
    struct ot_device d = only ? ot_open(0) : ot_open_checked();
    struct clinfer_ctx_stats stats;
    struct dirent **entries;
    const int count = scandir(ot_data_dir(), &entries, NULL, alphasort);
    int files = 0;
    cr_assert(count >= 0, "%s cannot be read", ot_data_dir());
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        if (strstr(name, ".safetensors") && (!only || strstr(name, only)) && files++ % parts == part)
            check_file(&d, name);
        free(entries[i]);
    }
    free(entries);
    cr_assert(files > 0, "%s holds no case", ot_data_dir());
    clinfer_ctx_stats(d.ctx, &stats);
    cr_expect(only || stats.self_checks > 0);
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
