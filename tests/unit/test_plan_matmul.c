// SPDX-License-Identifier: Apache-2.0
// matmul, one wrong field a row, and what its plans are; without a device.
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "plan_fixture.h"

TestSuite(plan_matmul, .timeout = 30);

#define MM(field, v)    SET(clinfer_matmul_params, field, v)
#define EXPECT(p, rows) expect_breakages(&clf_op_matmul, &(p), sizeof(p), rows, COUNT_OF(rows))

enum {
    OK = CLINFER_OK,
    SHAPE = CLINFER_ERR_SHAPE,
    TYPE = CLINFER_ERR_TYPE,
    ARGUMENT = CLINFER_ERR_ARGUMENT,
    ALIAS = CLINFER_ERR_ALIAS
};

Test(plan_matmul, shapes)
{
    const struct clinfer_matmul_params p = good_matmul();
    const struct breakage rows[] = {
        { { MM(x.shape[0], 6) }, SHAPE, { "output: axis 0 is 5, but T is 6" } },
        { { MM(x.shape[1], 41) }, SHAPE, { "w: axis 1 is 40, but K is 41" } },
        { { MM(w.shape[0], 23) }, SHAPE, { "bias: axis 0 is 24, but N is 23" } },
        { { MM(output.shape[1], 25) }, SHAPE, { "output: axis 1 is 25, but N is 24" } },
        { { MM(bias.shape[0], 1) }, SHAPE, { "bias: axis 0 is 1, but N is 24" } },
        { { MM(x.rank, 1) }, SHAPE, { "x: want rank 3 or one less [T,[H],K], got rank 1" } },
        { { MM(x.rank, 4) }, SHAPE, { "x: want rank 3" } },
        { { MM(x.rank, 3), MM(x.shape[1], 2), MM(x.shape[2], 40) },
          SHAPE,
          { "w: without the axis H of [[H],N,K], which is 2" } },
        { { MM(w.rank, 3), MM(w.shape[0], 2), MM(w.shape[1], 24), MM(w.shape[2], 40) },
          SHAPE,
          { "w: axis 0 is 2, but H is 1" } },
        { { MM(w.shape[0], 0), MM(bias.shape[0], 0), MM(output.shape[1], 0) },
          SHAPE,
          { "N is 0", "at least 1" } },
        { { MM(x.shape[1], 0), MM(w.shape[1], 0) }, SHAPE, { "Kd 0", "at least 1" } },
        { { MM(x.shape[0], -1) }, SHAPE, { "x: axis 0 is -1" } },
        { { MM(x.shape[0], 0), MM(output.shape[0], 0) }, OK, { NULL } },
        { { MM(bias.rank, 0) }, OK, { NULL } },
        { { MM(x.stride[0], 39), MM(x.stride[1], 1) },
          SHAPE,
          { "x: axis 0 has stride 39, want at least 40" } },
        { { MM(w.stride[0], 80), MM(w.stride[1], 2) }, SHAPE, { "w: axis 1 has stride 2, want exactly 1" } },
    };
    EXPECT(p, rows);
}

Test(plan_matmul, types)
{
    const struct clinfer_matmul_params p = good_matmul();
    const struct breakage rows[] = {
        { { MM(x.dtype, CLINFER_F8_E4M3) }, TYPE, { "x: type F8_E4M3", "F32 F16 BF16" } },
        { { MM(x.dtype, CLINFER_I8) }, TYPE, { "x: type I8" } },
        { { MM(w.dtype, CLINFER_U32) }, TYPE, { "w: type U32", "F32 F16 BF16 F8_E4M3 I8" } },
        { { MM(w.dtype, 7) }, TYPE, { "w: type ? (7)" } },
        { { MM(bias.dtype, CLINFER_F8_E4M3) }, TYPE, { "bias: type F8_E4M3" } },
        { { MM(output.dtype, CLINFER_F32) }, TYPE, { "output: type F32, but x is BF16" } },
        { { MM(w.dtype, CLINFER_F32) }, OK, { NULL } },
        { { MM(bias.dtype, CLINFER_F16) }, OK, { NULL } },
        { { MM(w.dtype, CLINFER_F8_E4M3) }, ARGUMENT, { "w is F8_E4M3, but there is no w_scale" } },
        { { MM(w.dtype, CLINFER_I8) }, ARGUMENT, { "w is I8, but there is no w_scale" } },
    };
    EXPECT(p, rows);
}

Test(plan_matmul, scales)
{
    struct clinfer_matmul_params p = good_matmul_fp8();
    const struct breakage fp8[] = {
        { { MM(w_scale.shape[0], 4) }, SHAPE, { "w_scale: [4, 3], want [3, 3]" } },
        { { MM(w_scale.shape[1], 2) }, SHAPE, { "w_scale: [3, 2], want [3, 3]" } },
        { { MM(n_granularity, 0) }, ARGUMENT, { "n_granularity is 0, k_granularity 16" } },
        { { MM(k_granularity, -1) }, ARGUMENT, { "k_granularity -1" } },
        { { MM(k_granularity, INT64_C(1) << 31) }, ARGUMENT, { "k_granularity 2147483648" } },
        { { MM(w_scale.dtype, CLINFER_F16) },
          TYPE,
          { "w_scale: type F16, but with F8_E4M3 weights want F32" } },
        { { MM(w_scale.dtype, CLINFER_BF16) }, TYPE, { "w_scale: type BF16" } },
        { { MM(w.dtype, CLINFER_BF16) }, ARGUMENT, { "w_scale with weights of type BF16" } },
        { { MM(n_granularity, INT32_MAX), MM(w_scale.shape[0], 1) }, OK, { NULL } },
    };
    EXPECT(p, fp8);
    p.x_scale_bound = -1;
    static struct clf_plan plan;
    cr_assert_eq(clf_plan(&plan, &clf_op_matmul, &p, &fixture_caps, CLF_CALL), ARGUMENT);
    cr_assert(strstr(plan.error, "x_scale_bound is -1"), "%s", plan.error);
    p.x_scale_bound = NAN;
    cr_assert_eq(clf_plan(&plan, &clf_op_matmul, &p, &fixture_caps, CLF_CALL), ARGUMENT);
    p = good_matmul();
    p.w.dtype = CLINFER_I8;
    p.w_scale = clinfer_tensor_2d(MEM(10), CLINFER_F16, 24, 2);
    const struct breakage q8[] = {
        { { MM(w_scale.shape[1], 3) }, SHAPE, { "w_scale: [24, 3], want [24, 2]" } },
        { { MM(w_scale.dtype, CLINFER_F32) }, TYPE, { "with I8 weights want F16" } },
    };
    EXPECT(p, q8);
}

Test(plan_matmul, batch_workspace_and_aliases)
{
    struct clinfer_matmul_params p = good_matmul();
    const struct breakage rows[] = {
        { { MM(output.mem, MEM(6)) }, ALIAS, { "output", "x" } },
        { { MM(output.mem, MEM(7)) }, ALIAS, { "output", "w" } },
        { { MM(output.mem, MEM(8)) }, ALIAS, { "output", "bias" } },
        { { MM(workspace, MEM(6)) }, ALIAS, { "workspace", "x" } },
        { { MM(workspace, MEM(20)), MM(workspace_offset, 32) }, ARGUMENT, { "workspace_offset is 32" } },
    };
    EXPECT(p, rows);
    p.bias.rank = 0;
    p.x = clinfer_tensor_3d(MEM(6), CLINFER_BF16, 5, 3, 40);
    p.w = clinfer_tensor_3d(MEM(7), CLINFER_BF16, 3, 24, 40);
    p.output = clinfer_tensor_3d(MEM(9), CLINFER_BF16, 5, 3, 24);
    const struct breakage batch[] = {
        { { MM(bias.rank, 1), MM(bias.mem, MEM(8)) }, ARGUMENT, { "bias does not go with a batch" } },
        { { MM(w.shape[0], 2) }, SHAPE, { "w: axis 0 is 2, but H is 3" } },
        { { MM(output.rank, 2) }, SHAPE, { "output: without the axis H" } },
    };
    EXPECT(p, batch);
}

static struct clf_plan plan;

static void plan_with(const struct clinfer_matmul_params *p, clinfer_kernel_set set, clinfer_gemm gemm,
                      enum clf_mode mode)
{
    struct clf_caps caps = fixture_caps;
    caps.set = set;
    caps.gemm = gemm;
    caps.max_work_group = 64;
    caps.local_bytes = 64 << 10;
    cr_assert_eq(clf_plan(&plan, &clf_op_matmul, p, &caps, mode), CLINFER_OK, "%s", plan.error);
}

static void expect_kernels(const char *names)
{
    char got[128] = "";
    for (int i = 0; i < plan.num_launches; i++)
        strcat(strcat(got, plan.launch[i].kernel), " ");
    cr_expect_str_eq(got, names);
}

// x is decoded, or quantised, before only where it has to be.
Test(plan_matmul, launches)
{
    struct clinfer_matmul_params p = good_matmul();
    plan_with(&p, CLINFER_SET_ROW, CLINFER_GEMM_OWN, CLF_CALL);
    expect_kernels("matmul_x matmul ");
    plan_with(&p, CLINFER_SET_GROUP, CLINFER_GEMM_OWN, CLF_CALL);
    expect_kernels("matmul ");
    plan_with(&p, CLINFER_SET_ROW, CLINFER_GEMM_CLBLAST, CLF_CALL);
    expect_kernels("matmul_x weights_f32 clblast_sgemm matmul_finish ");
    p.x.shape[0] = p.output.shape[0] = 4;
    plan_with(&p, CLINFER_SET_ROW, CLINFER_GEMM_OWN, CLF_CALL);
    expect_kernels("matmul ");
    cr_expect_eq(plan.workspace, 0);
    p = good_matmul_fp8();
    p.x.shape[0] = p.output.shape[0] = 1;
    plan_with(&p, CLINFER_SET_GROUP, CLINFER_GEMM_OWN, CLF_CALL);
    expect_kernels("matmul_x matmul ");
    p = good_matmul();
    p.x.dtype = p.output.dtype = p.w.dtype = CLINFER_F32;
    p.x.stride[0] = 50;
    p.x.stride[1] = 1;
    plan_with(&p, CLINFER_SET_ROW, CLINFER_GEMM_CLBLAST, CLF_CALL);
    expect_kernels("clblast_sgemm matmul_finish ");
    const struct clf_gemm *g = &plan.launch[0].gemm;
    cr_expect(g->m == 5 && g->n == 24 && g->k == 40 && g->batch == 1);
    cr_expect(g->x.mem == MEM(6) && g->x.row_stride == 50 && g->w.mem == MEM(7) && g->w.row_stride == 40);
}

// Few rows still make work for every compute unit; grids cover all rows and tokens.
Test(plan_matmul, grids)
{
    struct clinfer_matmul_params p = good_matmul();
    static const int64_t rows[] = { 1, 8, 24, 576, 1536, 50000 }, tokens[] = { 1, 2, 4, 5, 64, 65, 1000 };
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        for (size_t t = 0; t < COUNT_OF(tokens); t++) {
            p.w.shape[0] = p.bias.shape[0] = p.output.shape[1] = rows[i];
            p.x.shape[0] = p.output.shape[0] = tokens[t];
            plan_with(&p, CLINFER_SET_ROW, CLINFER_GEMM_OWN, CLF_MEASURE);
            const struct clf_launch *l = &plan.launch[plan.num_launches - 1];
            const int64_t item = l->arg[l->num_args - 1].v.u32;
            cr_expect(item > 0 && (int64_t) l->global[0] * item >= rows[i] &&
                      ((int64_t) l->global[0] - 1) * item < rows[i]);
            if (rows[i] >= 576)
                cr_expect_geq(l->global[0] * l->global[2], 4 * fixture_caps.compute_units);
        }
}

// What the largest T needs is enough for every smaller one, whoever multiplies.
Test(plan_matmul, workspace_grows_with_tokens)
{
    static const int64_t tokens[] = { 1, 2, 3, 4, 5, 63, 64, 65, 1000, 40000, 1000000, 30000000, 100000000 };
    for (int n = 0; n < 8; n++) {
        struct clinfer_matmul_params p = n & 1 ? good_matmul_fp8() : good_matmul();
        size_t last = 0;
        for (size_t i = 0; i < COUNT_OF(tokens); i++) {
            p.x.shape[0] = p.output.shape[0] = tokens[i];
            plan_with(&p, n & 2 ? CLINFER_SET_GROUP : CLINFER_SET_ROW,
                      n & 4 ? CLINFER_GEMM_CLBLAST : CLINFER_GEMM_AUTO, CLF_MEASURE);
            cr_expect_geq(plan.workspace, last, "%lld tokens", (long long) tokens[i]);
            last = plan.workspace;
        }
    }
}
