// SPDX-License-Identifier: Apache-2.0
// Operations without a cache: what they refuse, and what they launch.
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "plan_fixture.h"

TestSuite(plan_plain, .timeout = 30);

#define SILU(field, v)   SET(clinfer_silu_mul_params, field, v)
#define NORM(field, v)   SET(clinfer_rms_norm_params, field, v)
#define MERGE(field, v)  SET(clinfer_merge_states_params, field, v)
#define SHAPE            CLINFER_ERR_SHAPE
#define TYPE             CLINFER_ERR_TYPE
#define ARGUMENT         CLINFER_ERR_ARGUMENT
#define ALIAS            CLINFER_ERR_ALIAS
#define MEM_IS(n)        (uintptr_t) MEM(n)
#define EXPECT(op, rows) expect_breakages(&clf_op_##op, &p, sizeof p, rows, COUNT_OF(rows))

Test(plan_plain, silu_mul)
{
    const struct clinfer_silu_mul_params p = good_silu_mul();
    const struct breakage rows[] = {
        { { SILU(x.rank, 3) }, SHAPE, { "x: want rank 2", "rank 3" } },
        { { SILU(output.rank, 0) }, SHAPE, { "output: want rank 2", "rank 0" } },
        { { SILU(x.shape[0], 6) }, SHAPE, { "x: axis 0 is 6", "T is 5" } },
        { { SILU(x.shape[1], 12) }, SHAPE, { "x: axis 1 is 12", "N+N is 24" } },
        { { SILU(x.dtype, CLINFER_F8_E4M3) }, TYPE, { "x: type F8_E4M3", "F32 F16 BF16" } },
        { { SILU(x.dtype, CLINFER_F32) }, TYPE, { "x: type F32", "output is F16" } },
        { { SILU(x.mem, 0) }, ARGUMENT, { "x: no buffer", "120 elements" } },
        { { SILU(x.offset, 1) }, ARGUMENT, { "x: offset 1", "2 bytes" } },
        { { SILU(output.mem, MEM_IS(1)) }, ALIAS, { "x (bytes 0 to 240)", "output (bytes 0 to 120)" } },
        { { SILU(output.shape[1], 0), SILU(x.shape[1], 0) }, CLINFER_OK, { NULL } },
        { { SILU(output.shape[0], 0), SILU(x.shape[0], 0) }, CLINFER_OK, { NULL } },
    };
    EXPECT(silu_mul, rows);
}

static int64_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

Test(plan_plain, rms_norm)
{
    const struct clinfer_rms_norm_params p = good_rms_norm();
    const struct breakage rows[] = {
        { { NORM(x.rank, 1) }, SHAPE, { "x: want rank 2", "rank 1" } },
        { { NORM(gamma.shape[0], 15) }, SHAPE, { "gamma: axis 0 is 15", "G is 16" } },
        { { NORM(residual.shape[0], 4) }, SHAPE, { "residual: axis 0 is 4", "T is 5" } },
        { { NORM(residual.shape[1], 8) }, SHAPE, { "residual: axis 1 is 8", "G is 16" } },
        { { NORM(residual.rank, 0) }, CLINFER_OK, { NULL } },
        { { NORM(output.shape[1], 17) }, SHAPE, { "output: axis 1 is 17", "G is 16" } },
        { { NORM(x.shape[1], 0), NORM(gamma.shape[0], 0), NORM(residual.rank, 0), NORM(output.shape[1], 0) },
          SHAPE,
          { "x: axis 1 is 0", "1 or more" } },
        { { NORM(residual.dtype, CLINFER_F8_E4M3) }, TYPE, { "residual: type F8_E4M3", "F32 F16 BF16" } },
        { { NORM(gamma.dtype, CLINFER_U32) }, TYPE, { "gamma: type U32" } },
        { { NORM(output.dtype, CLINFER_F32) }, TYPE, { "output: type F32", "x is BF16" } },
        { { NORM(residual.mem, 0) }, ARGUMENT, { "residual: no buffer", "80 elements" } },
        { { NORM(cast, 2) }, ARGUMENT, { "cast is 2" } },
        { { NORM(epsilon, bits_of(-1)) }, ARGUMENT, { "epsilon is -1" } },
        { { NORM(epsilon, bits_of(NAN)) }, ARGUMENT, { "epsilon is", "nan" } },
        { { NORM(output.mem, MEM_IS(1)) }, CLINFER_OK, { NULL } },
        { { NORM(output.mem, MEM_IS(1)), NORM(output.offset, 2) },
          ALIAS,
          { "output (bytes 2", "x (bytes 0" } },
        { { NORM(output.mem, MEM_IS(2)) }, ALIAS, { "output", "gamma" } },
        { { NORM(output.mem, MEM_IS(3)) }, ALIAS, { "output", "residual" } },
        { { NORM(residual.mem, MEM_IS(1)) }, ALIAS, { "residual", "x" } },
        { { NORM(residual.mem, MEM_IS(2)) }, ALIAS, { "residual", "gamma" } },
    };
    EXPECT(rms_norm, rows);
}

// Rows that int counts, no longer ones.
Test(plan_plain, rms_norm_long_rows)
{
    struct clinfer_rms_norm_params p = good_rms_norm();
    p.residual.rank = 0;
    p.x.shape[1] = p.gamma.shape[0] = p.output.shape[1] = 1 << 30;
    const struct breakage rows[] = {
        { { NORM(x.shape[1], (1 << 30) + 1), NORM(gamma.shape[0], (1 << 30) + 1),
            NORM(output.shape[1], (1 << 30) + 1) },
          CLINFER_ERR_UNSUPPORTED,
          { "x: axis 1 is 1073741825", "at most 1073741824" } },
    };
    EXPECT(rms_norm, rows);
}

Test(plan_plain, merge_states)
{
    const struct clinfer_merge_states_params p = good_merge_states();
    const struct breakage rows[] = {
        { { MERGE(out_a.rank, 2) }, SHAPE, { "out_a: want rank 3", "rank 2" } },
        { { MERGE(lse_a.rank, 3) }, SHAPE, { "lse_a: want rank 2", "rank 3" } },
        { { MERGE(lse_a.shape[1], 5) }, SHAPE, { "lse_a: axis 1 is 5", "H is 4" } },
        { { MERGE(out_b.shape[2], 12) }, SHAPE, { "out_b: axis 2 is 12", "V is 10" } },
        { { MERGE(lse_b.shape[0], 4) }, SHAPE, { "lse_b: axis 0 is 4", "T is 5" } },
        { { MERGE(output.shape[1], 3) }, SHAPE, { "output: axis 1 is 3", "H is 4" } },
        { { MERGE(lse.shape[0], 6) }, SHAPE, { "lse: axis 0 is 6", "T is 5" } },
        { { MERGE(lse_b.dtype, CLINFER_F16) }, TYPE, { "lse_b: type F16", "want one of F32" } },
        { { MERGE(output.dtype, CLINFER_F32) }, TYPE, { "output: type F32", "out_a is BF16" } },
        { { MERGE(out_b.dtype, CLINFER_F8_E4M3) }, TYPE, { "out_b: type F8_E4M3" } },
        { { MERGE(out_b.dtype, CLINFER_F16) }, CLINFER_OK, { NULL } },
        { { MERGE(lse.mem, 0) }, ARGUMENT, { "lse: no buffer", "20 elements" } },
        { { MERGE(output.mem, MEM_IS(1)), MERGE(lse.mem, MEM_IS(2)) }, CLINFER_OK, { NULL } },
        { { MERGE(output.mem, MEM_IS(1)), MERGE(output.offset, 20) }, ALIAS, { "output", "out_a" } },
        { { MERGE(output.mem, MEM_IS(3)) }, ALIAS, { "output", "out_b" } },
        { { MERGE(lse.mem, MEM_IS(4)) }, ALIAS, { "lse (bytes 0 to 80)", "lse_b (bytes 0 to 80)" } },
        { { MERGE(lse.mem, MEM_IS(5)) }, ALIAS, { "lse", "output" } },
    };
    EXPECT(merge_states, rows);
}

// No heads, values of no size, and rows that int does not count.
Test(plan_plain, merge_states_sizes)
{
    static struct clf_plan plan;
    static const struct {
        int64_t heads, size;
        clinfer_status status;
        const char *says;
    } cases[] = {
        { 0, 10, SHAPE, "out_a: axis 1 is 0, want 1 or more" },
        { 4, 0, SHAPE, "out_a: axis 2 is 0, want 1 or more" },
        { 1 << 15, 1 << 15, CLINFER_OK, "" },
        { 1 << 15, (1 << 15) + 1, CLINFER_ERR_UNSUPPORTED, "axis 1 * axis 2 is 1073774592" },
        { INT32_MAX, 1, CLINFER_ERR_UNSUPPORTED, "axis 1 * axis 2 is 2147483647" },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct clinfer_merge_states_params p = good_merge_states();
        p.out_a.shape[1] = p.out_b.shape[1] = p.output.shape[1] = cases[i].heads;
        p.lse_a.shape[1] = p.lse_b.shape[1] = p.lse.shape[1] = cases[i].heads;
        p.out_a.shape[2] = p.out_b.shape[2] = p.output.shape[2] = cases[i].size;
        cr_assert_eq(clf_plan(&plan, &clf_op_merge_states, &p, &fixture_caps, CLF_CALL), cases[i].status,
                     "case %zu: %s", i, plan.error);
        cr_assert(strstr(plan.error, cases[i].says), "case %zu: %s", i, plan.error);
    }
}

static struct clf_launch launch_of(const struct clf_op *op, const void *params, clinfer_kernel_set set,
                                   unsigned max_work_group)
{
    static struct clf_plan plan;
    struct clf_caps caps = fixture_caps;
    caps.set = set;
    caps.max_work_group = max_work_group;
    cr_assert_eq(clf_plan(&plan, op, params, &caps, CLF_CALL), CLINFER_OK, "%s", plan.error);
    cr_assert_eq(plan.num_launches, 1);
    return plan.launch[0];
}

static int64_t items_of(const struct clf_launch *l)
{
    for (int i = 0; i < l->spec.num_defs; i++)
        if (!strcmp(l->spec.def[i].name, "GROUP_ITEMS"))
            return l->spec.def[i].value;
    return 0;
}

// In the row set an item has a row, of many rows up to eight; in the group set a group has one, and its size
// goes by the row's.
Test(plan_plain, rms_norm_groups)
{
    static const struct {
        int64_t n;
        unsigned max_work_group;
        size_t items;
    } cases[] = { { 16, 256, 64 },        { 1024, 256, 64 },  { 1025, 256, 128 }, { 2049, 1024, 256 },
                  { 1 << 20, 1024, 256 }, { 8192, 128, 128 }, { 8192, 16, 16 } };
    struct clinfer_rms_norm_params p = good_rms_norm();
    struct clf_launch l = launch_of(&clf_op_rms_norm, &p, CLINFER_SET_ROW, 4096);
    cr_assert(l.global[0] == 5 && l.global[1] == 1 && l.local[0] == 1 && items_of(&l) == 0);
    p.x.shape[0] = p.residual.shape[0] = p.output.shape[0] = 100; // 32 runs: three rows each
    l = launch_of(&clf_op_rms_norm, &p, CLINFER_SET_ROW, 4096);
    cr_assert(l.global[0] == 34 && l.global[1] == 1, "%zu items", l.global[0]);
    p.x.shape[0] = p.residual.shape[0] = p.output.shape[0] = 1000;
    l = launch_of(&clf_op_rms_norm, &p, CLINFER_SET_ROW, 4096);
    cr_assert(l.global[0] == 125 && l.global[1] == 1, "%zu items", l.global[0]);
    p = good_rms_norm();
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        p.x.shape[1] = p.gamma.shape[0] = p.residual.shape[1] = p.output.shape[1] = cases[i].n;
        l = launch_of(&clf_op_rms_norm, &p, CLINFER_SET_GROUP, cases[i].max_work_group);
        cr_assert(l.local[0] == cases[i].items && items_of(&l) == (int64_t) cases[i].items &&
                      l.global[0] == 5 * cases[i].items && l.global[1] == 1,
                  "case %zu: groups of %zu", i, l.local[0]);
    }
}

// Few tokens share their heads; a group has no more heads than items.
Test(plan_plain, merge_states_grids)
{
    static const struct {
        clinfer_kernel_set set;
        int64_t tokens, heads, size;
        size_t x, y;
    } cases[] = {
        { CLINFER_SET_ROW, 1, 32, 128, 1, 8 },          { CLINFER_SET_ROW, 100, 32, 128, 100, 1 },
        { CLINFER_SET_ROW, 1, 2, 4096, 1, 2 },          { CLINFER_SET_GROUP, 1, 20, 128, 64, 20 },
        { CLINFER_SET_GROUP, 1000, 20, 128, 64000, 1 }, { CLINFER_SET_GROUP, 1000, 130, 128, 64000, 3 },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct clinfer_merge_states_params p = good_merge_states();
        p.out_a = p.output =
            clinfer_tensor_3d(MEM(1), CLINFER_BF16, cases[i].tokens, cases[i].heads, cases[i].size);
        p.out_b = clinfer_tensor_3d(MEM(3), CLINFER_BF16, cases[i].tokens, cases[i].heads, cases[i].size);
        p.lse_a = p.lse = clinfer_tensor_2d(MEM(2), CLINFER_F32, cases[i].tokens, cases[i].heads);
        p.lse_b = clinfer_tensor_2d(MEM(4), CLINFER_F32, cases[i].tokens, cases[i].heads);
        const struct clf_launch l = launch_of(&clf_op_merge_states, &p, cases[i].set, 256);
        cr_assert(l.global[0] == cases[i].x && l.global[1] == cases[i].y, "case %zu: %zu x %zu", i,
                  l.global[0], l.global[1]);
    }
}

// The same of runs of a row.
Test(plan_plain, silu_mul_grids)
{
    static const struct {
        int64_t tokens, n;
        size_t y;
    } cases[] = { { 1, 8192, 8 }, { 3, 8192, 3 }, { 1, 1024, 2 },
                  { 1, 511, 1 },  { 1, 0, 1 },    { 2048, 8192, 1 } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct clinfer_silu_mul_params p = good_silu_mul();
        p.x = clinfer_tensor_2d(MEM(1), CLINFER_F16, cases[i].tokens, 2 * cases[i].n);
        p.output = clinfer_tensor_2d(MEM(2), CLINFER_F16, cases[i].tokens, cases[i].n);
        const struct clf_launch l = launch_of(&clf_op_silu_mul, &p, CLINFER_SET_ROW, 256);
        cr_assert(l.global[0] == (size_t) cases[i].tokens && l.global[1] == cases[i].y, "case %zu: %zu x %zu",
                  i, l.global[0], l.global[1]);
    }
}
