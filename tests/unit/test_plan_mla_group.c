// SPDX-License-Identifier: Apache-2.0
// What mla_decode_branch plans for a GPU: tiles that fit its local memory, or an error that says both
// numbers.
#include <criterion/criterion.h>
#include <string.h>

#include "plan_fixture.h"

TestSuite(plan_mla_group, .timeout = 30);

static struct clf_plan plan;

static clinfer_status plan_with(uint64_t local_bytes, unsigned max_work_group,
                                const struct clinfer_mla_decode_branch_params *p)
{
    struct clf_caps caps = fixture_caps;
    caps.set = CLINFER_SET_GROUP;
    caps.local_bytes = local_bytes;
    caps.max_work_group = max_work_group;
    return clf_plan(&plan, &clf_op_mla_decode_branch, p, &caps, CLF_MEASURE);
}

static const struct clf_launch *launch_of(const char *kernel)
{
    for (int i = 0; i < plan.num_launches; i++)
        if (!strcmp(plan.launch[i].kernel, kernel))
            return &plan.launch[i];
    cr_assert_fail("no launch of %s", kernel);
    return NULL;
}

static const struct clf_def *define_of(const char *kernel, const char *name)
{
    const struct clf_spec *spec = &launch_of(kernel)->spec;
    for (int i = 0; i < spec->num_defs; i++)
        if (!strcmp(spec->def[i].name, name))
            return &spec->def[i];
    cr_assert_fail("%s has no %s", kernel, name);
    return NULL;
}

// 20 heads over rows of 512 + 64.
static struct clinfer_mla_decode_branch_params large_decode(void)
{
    struct clinfer_mla_decode_branch_params p = good_decode();
    p.q = clinfer_tensor_3d(MEM(6), CLINFER_BF16, 5, 20, 192);
    p.kv_norm_gamma = clinfer_tensor_1d(MEM(7), CLINFER_F32, 512);
    p.freqs_cis = clinfer_tensor_2d(MEM(8), CLINFER_F32, 32, 64);
    p.w_uk = clinfer_tensor_3d(MEM(9), CLINFER_BF16, 20, 512, 128);
    p.w_uv = clinfer_tensor_3d(MEM(10), CLINFER_BF16, 20, 128, 512);
    p.output = clinfer_tensor_3d(MEM(11), CLINFER_BF16, 5, 20, 128);
    p.kv.head_size = 576;
    return p;
}

// Bytes worked out by hand: q in f32, keys, the slices of the scores, weights, places of the keys, per-head
// values.
Test(plan_mla_group, tiles_fit_local_memory)
{
    static const struct {
        uint64_t local_bytes;
        int64_t heads, keys; // 0: too little
    } rows[] = { { 1 << 20, 8, 16 }, { 42016, 8, 16 }, { 42015, 8, 8 }, { 32544, 8, 8 }, { 32543, 4, 8 },
                 { 23376, 4, 8 },    { 23375, 4, 4 },  { 19152, 4, 4 }, { 19151, 0, 0 } };
    const struct clinfer_mla_decode_branch_params p = large_decode();
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        const clinfer_status st = plan_with(rows[i].local_bytes, 256, &p);
        if (!rows[i].heads) {
            cr_assert_eq(st, CLINFER_ERR_UNSUPPORTED);
            cr_assert(strstr(plan.error, "mla_attention takes 19152 bytes") && strstr(plan.error, "19151"),
                      "%s", plan.error);
            continue;
        }
        cr_assert_eq(st, CLINFER_OK, "%s", plan.error);
        cr_assert_eq(define_of("mla_attention", "HEAD_BLOCK")->value, rows[i].heads, "row %zu", i);
        cr_assert_eq(define_of("mla_attention", "TILE")->value, rows[i].keys, "row %zu", i);
        cr_assert_eq((int64_t) launch_of("mla_attention")->global[1],
                     (20 + rows[i].heads - 1) / rows[i].heads);
    }
}

// Keys that bf16 has not take twice the room.
Test(plan_mla_group, type_of_the_tile)
{
    static const struct {
        clinfer_dtype cache;
        int64_t group;
        const char *type;
        int64_t keys;
    } rows[] = { { CLINFER_BF16, 0, "bf16", 16 },
                 { CLINFER_F8_E4M3, 0, "bf16", 16 },
                 { CLINFER_F8_E4M3, 128, "f32", 8 },
                 { CLINFER_F16, 0, "f32", 8 },
                 { CLINFER_F32, 0, "f32", 8 } };
    struct clinfer_mla_decode_branch_params p = large_decode();
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        p.kv.dtype = rows[i].cache;
        p.kv.scale_group = rows[i].group;
        cr_assert_eq(plan_with(48 << 10, 256, &p), CLINFER_OK, "%s", plan.error);
        cr_assert_str_eq(define_of("mla_attention", "TILE_T")->text, rows[i].type);
        cr_assert_eq(define_of("mla_attention", "TILE")->value, rows[i].keys, "row %zu", i);
    }
}

Test(plan_mla_group, other_kernels_that_do_not_fit)
{
    struct clinfer_mla_decode_branch_params p = good_decode();
    cr_assert_eq(plan_with(10240, 256, &p), CLINFER_OK, "%s", plan.error);
    cr_assert_eq(plan_with(10239, 256, &p), CLINFER_ERR_UNSUPPORTED);
    cr_assert(strstr(plan.error, "matmul takes 10240 bytes") && strstr(plan.error, "10239"), "%s",
              plan.error);
    p.q.shape[2] = 20008;
    p.w_uk.shape[2] = 20000;
    cr_assert_eq(plan_with(48 << 10, 256, &p), CLINFER_ERR_UNSUPPORTED);
    cr_assert(strstr(plan.error, "mla_queries takes 80000 bytes") && strstr(plan.error, "49152"), "%s",
              plan.error);
}

// Work-groups are as large as the device takes; the matmul gives each item a tile, whatever T.
Test(plan_mla_group, group_sizes)
{
    struct clinfer_mla_decode_branch_params p = good_decode();
    for (unsigned most = 1; most <= 256; most *= 2)
        for (int64_t tokens = 1; tokens <= 40; tokens++) {
            const int64_t items = most < 64 ? most : 64;
            p.q.shape[0] = p.output.shape[0] = tokens;
            cr_assert_eq(plan_with(48 << 10, most, &p), CLINFER_OK, "%s", plan.error);
            for (int i = 0; i < plan.num_launches; i++)
                cr_assert_eq((int64_t) plan.launch[i].local[0], items);
            const int64_t rows = define_of("matmul", "GROUP_ROWS")->value,
                          columns = define_of("matmul", "GROUP_TOKENS")->value,
                          tile = define_of("matmul", "ROW_TILE")->value *
                                 define_of("matmul", "TOKEN_TILE")->value;
            cr_assert_eq(rows * columns, items * tile);
            cr_assert(!(rows & (rows - 1)) && !(columns & (columns - 1)), "%d x %d", (int) rows,
                      (int) columns);
            cr_assert_geq((int64_t) launch_of("matmul")->global[2] * columns, tokens);
        }
}

// A workspace for the largest T serves every smaller one.
Test(plan_mla_group, workspace_grows_with_tokens)
{
    struct clinfer_mla_decode_branch_params p = large_decode();
    size_t last = 0;
    p.max_context = 4096;
    for (int64_t tokens = 1; tokens <= 40; tokens++) {
        p.q.shape[0] = p.output.shape[0] = tokens;
        cr_assert_eq(plan_with(48 << 10, 256, &p), CLINFER_OK, "%s", plan.error);
        cr_assert_geq(plan.workspace, last, "%d tokens", (int) tokens);
        last = plan.workspace;
    }
}
