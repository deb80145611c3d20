// SPDX-License-Identifier: Apache-2.0
// Who multiplies a projection, and what CLBlast is asked for, without a device.
#include <criterion/criterion.h>
#include <string.h>

#include "plan_fixture.h"

TestSuite(plan_gemm, .timeout = 30);

static struct clf_plan plan;

static void plan_decode(const struct clinfer_mla_decode_branch_params *p, clinfer_kernel_set set,
                        clinfer_gemm gemm, enum clf_mode mode)
{
    struct clf_caps caps = fixture_caps;
    caps.set = set;
    caps.gemm = gemm;
    caps.max_work_group = 64;
    caps.local_bytes = 64 << 10;
    cr_assert_eq(clf_plan(&plan, &clf_op_mla_decode_branch, p, &caps, mode), CLINFER_OK, "%s", plan.error);
}

static int products(void)
{
    int n = 0;
    for (int i = 0; i < plan.num_launches; i++)
        n += plan.launch[i].kind == CLF_GEMM;
    return n;
}

static void set_tokens(struct clinfer_mla_decode_branch_params *p, int64_t tokens)
{
    p->q.shape[0] = p->output.shape[0] = tokens;
}

static void assert_kernels(const char *const *names, int count)
{
    cr_assert_eq(plan.num_launches, count);
    for (int i = 0; i < count; i++) {
        cr_assert_str_eq(plan.launch[i].kernel, names[i]);
        cr_assert_eq(plan.launch[i].kind == CLF_GEMM, !strcmp(names[i], "clblast_sgemm"));
    }
}

Test(plan_gemm, launches)
{
    static const char *const decoded[] = { "mla_cache_rows", "mla_queries",   "weights_f32", "clblast_sgemm",
                                           "matmul_finish",  "mla_attention", "mla_combine", "weights_f32",
                                           "clblast_sgemm",  "matmul_finish" };
    static const char *const in_place[] = {
        "mla_cache_rows", "mla_queries", "clblast_sgemm", "matmul_finish",
        "mla_attention",  "mla_combine", "clblast_sgemm", "matmul_finish"
    };
    static const char *const once[] = { "mla_cache_rows", "mla_queries",   "mla_attention", "mla_combine",
                                        "weights_f32",    "clblast_sgemm", "matmul_finish" };
    struct clinfer_mla_decode_branch_params p = good_decode_fp8();
    plan_decode(&p, CLINFER_SET_ROW, CLINFER_GEMM_CLBLAST, CLF_CALL);
    assert_kernels(decoded, COUNT_OF(decoded));
    p = good_decode();
    p.w_uk.dtype = p.w_uv.dtype = CLINFER_F32;
    plan_decode(&p, CLINFER_SET_ROW, CLINFER_GEMM_CLBLAST, CLF_CALL);
    assert_kernels(in_place, COUNT_OF(in_place));
    p = good_decode();
    p.q.shape[2] = 8;
    p.w_uk.shape[2] = 0;
    plan_decode(&p, CLINFER_SET_ROW, CLINFER_GEMM_CLBLAST, CLF_CALL);
    assert_kernels(once, COUNT_OF(once));
}

// AUTO wants the group set and many tokens; OWN never, CLBLAST always.
Test(plan_gemm, choice)
{
    struct clinfer_mla_decode_branch_params p = good_decode();
    const struct {
        clinfer_kernel_set set;
        clinfer_gemm gemm;
        int64_t tokens;
        int products;
    } rows[] = {
        { CLINFER_SET_GROUP, CLINFER_GEMM_AUTO, 63, 0 }, { CLINFER_SET_GROUP, CLINFER_GEMM_AUTO, 64, 2 },
        { CLINFER_SET_ROW, CLINFER_GEMM_AUTO, 4096, 0 }, { CLINFER_SET_GROUP, CLINFER_GEMM_OWN, 4096, 0 },
        { CLINFER_SET_ROW, CLINFER_GEMM_CLBLAST, 1, 2 }, { CLINFER_SET_GROUP, CLINFER_GEMM_CLBLAST, 1, 2 },
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        set_tokens(&p, rows[i].tokens);
        plan_decode(&p, rows[i].set, rows[i].gemm, CLF_CALL);
        cr_assert_eq(products(), rows[i].products, "row %zu: %d products", i, products());
    }
}

static void assert_matrix(const struct clf_matrix *x, cl_mem mem, size_t row_stride, size_t stride)
{
    cr_assert(x->mem == mem && x->row_stride == row_stride && x->stride == stride,
              "rows %zu apart, batch %zu", x->row_stride, x->stride);
}

// T 5, H 4, C 24, N 12, V 10.
Test(plan_gemm, products)
{
    struct clinfer_mla_decode_branch_params p = good_decode();
    p.workspace = MEM(20);
    p.workspace_offset = 128;
    plan_decode(&p, CLINFER_SET_ROW, CLINFER_GEMM_CLBLAST, CLF_CALL);
    const struct clf_gemm *down = &plan.launch[3].gemm, *up = &plan.launch[8].gemm;
    cr_assert(down->m == 5 && down->n == 24 && down->k == 12 && down->batch == 4);
    cr_assert(up->m == 5 && up->n == 10 && up->k == 24 && up->batch == 4);
    assert_matrix(&down->x, NULL, 48, 12);
    assert_matrix(&down->w, NULL, 12, 288);
    assert_matrix(&down->y, NULL, 96, 24);
    assert_matrix(&up->x, NULL, 96, 24);
    assert_matrix(&up->w, NULL, 24, 240);
    assert_matrix(&up->y, NULL, 40, 10);
    // valid and q_nope lie before x; the scratch of both is the end of the workspace.
    cr_assert_eq(4 * down->x.at, 128 + 64);
    cr_assert_eq(down->w.at, up->w.at);
    cr_assert_geq(down->y.at, down->w.at + 4 * 24 * 12);
    cr_assert_geq(up->y.at, up->w.at + 4 * 10 * 24);
    cr_assert_leq(4 * (down->y.at + 5 * 4 * 24), 128 + plan.workspace);
    cr_assert_gt(4 * (down->y.at + 5 * 4 * 24) + 64, 128 + plan.workspace);
    const size_t with = plan.workspace;
    plan_decode(&p, CLINFER_SET_ROW, CLINFER_GEMM_OWN, CLF_CALL);
    cr_assert_eq(4 * down->w.at, 128 + plan.workspace, "the scratch overlaps what own kernels use");
    cr_assert_gt(with, plan.workspace);
}

// f32 weights serve where they lie, with the strides that they have.
Test(plan_gemm, weights_in_place)
{
    struct clinfer_mla_decode_branch_params p = good_decode();
    p.w_uk.dtype = p.w_uv.dtype = CLINFER_F32;
    p.w_uk.offset = 40;
    p.w_uk.stride[0] = 500;
    p.w_uk.stride[1] = 20;
    p.w_uk.stride[2] = 1;
    plan_decode(&p, CLINFER_SET_ROW, CLINFER_GEMM_CLBLAST, CLF_CALL);
    assert_matrix(&plan.launch[2].gemm.w, MEM(9), 20, 500);
    cr_assert_eq(plan.launch[2].gemm.w.at, 10);
    assert_matrix(&plan.launch[6].gemm.w, MEM(10), 24, 240);
    // The stride of an axis of one row says nothing: CLBlast wants at least a row.
    p = good_decode();
    p.w_uk.dtype = p.w_uv.dtype = CLINFER_F32;
    p.w_uv.shape[1] = p.output.shape[2] = 1;
    p.w_uv.stride[0] = 24;
    p.w_uv.stride[1] = p.w_uv.stride[2] = 1;
    plan_decode(&p, CLINFER_SET_ROW, CLINFER_GEMM_CLBLAST, CLF_CALL);
    assert_matrix(&plan.launch[6].gemm.w, MEM(10), 24, 24);
}

// One element past what 32 bits count, own kernels serve. The last element of the second product's y stands
// at the end of the workspace.
Test(plan_gemm, indices_of_32_bits)
{
    struct clinfer_mla_decode_branch_params p = good_decode();
    p.workspace = MEM(20);
    plan_decode(&p, CLINFER_SET_ROW, CLINFER_GEMM_CLBLAST, CLF_CALL);
    const struct clf_gemm *down = &plan.launch[3].gemm;
    const size_t room = 4 * ((size_t) INT32_MAX - (down->y.at + 5 * 4 * 24));
    p.workspace_offset = room / 64 * 64;
    plan_decode(&p, CLINFER_SET_ROW, CLINFER_GEMM_CLBLAST, CLF_CALL);
    cr_assert_eq(products(), 2);
    cr_assert_leq(plan.launch[3].gemm.y.at + 5 * 4 * 24, INT32_MAX);
    p.workspace_offset += 64;
    plan_decode(&p, CLINFER_SET_ROW, CLINFER_GEMM_CLBLAST, CLF_CALL);
    cr_assert_eq(products(), 1, "%d products", products());
    cr_assert_str_eq(plan.launch[2].kernel, "matmul");
    p.workspace_offset += 4 * 5 * 4 * 24;
    plan_decode(&p, CLINFER_SET_ROW, CLINFER_GEMM_CLBLAST, CLF_CALL);
    cr_assert_eq(products(), 0);
}

// Also where CLBlast comes in with many tokens and goes with too many.
Test(plan_gemm, workspace_grows_with_tokens)
{
    static const int64_t tokens[] = { 1,     2,      63,      64,      65,       127,      1000,     40000,
                                      80000, 300000, 1000000, 5000000, 20000000, 30000000, 100000000 };
    static const clinfer_gemm gemm[] = { CLINFER_GEMM_AUTO, CLINFER_GEMM_CLBLAST };
    struct clinfer_mla_decode_branch_params p = good_decode();
    for (size_t g = 0; g < COUNT_OF(gemm); g++) {
        size_t last = 0;
        int seen[3] = { 0 };
        for (size_t i = 0; i < COUNT_OF(tokens); i++) {
            set_tokens(&p, tokens[i]);
            plan_decode(&p, CLINFER_SET_GROUP, gemm[g], CLF_MEASURE);
            cr_assert_geq(plan.workspace, last, "%lld tokens", (long long) tokens[i]);
            last = plan.workspace;
            seen[products()]++;
        }
        cr_assert(seen[2] && seen[0], "of %zu plans %d without CLBlast", COUNT_OF(tokens), seen[0]);
    }
}
