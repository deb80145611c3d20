// SPDX-License-Identifier: Apache-2.0
// What the operations on rows plan for a GPU: work-groups, and rows that fit its local memory or an error
// that says both numbers.
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "plan_fixture.h"

TestSuite(plan_group, .timeout = 30);

static struct clf_plan plan;

static clinfer_status plan_on(const struct clf_op *op, const void *params, unsigned units,
                              unsigned max_work_group, uint64_t local_bytes)
{
    struct clf_caps caps = fixture_caps;
    caps.set = CLINFER_SET_GROUP;
    caps.compute_units = units;
    caps.max_work_group = max_work_group;
    caps.local_bytes = local_bytes;
    return clf_plan(&plan, op, params, &caps, CLF_CALL);
}

static void assert_grid(size_t x, size_t y, size_t items)
{
    const struct clf_launch *l = &plan.launch[0];
    cr_assert_eq(plan.num_launches, 1);
    cr_assert(l->local[0] == items && l->local[1] == 1 && l->local[2] == 1, "groups of %zu", l->local[0]);
    cr_assert(l->global[0] == x * items && l->global[1] == y && l->global[2] == 1,
              "%zu x %zu items, want %zu x %zu", l->global[0], l->global[1], x * items, y);
}

// Few tokens share their heads among groups, at most one a head; many have a group each.
Test(plan_group, grids)
{
    struct clinfer_fused_qk_rope_params rope = good_rope(); // T 5, H 4
    cr_assert_eq(plan_on(&clf_op_fused_qk_rope, &rope, 1, 256, 32768), CLINFER_OK, "%s", plan.error);
    assert_grid(5, 4, 64);
    rope.q_proj.shape[0] = rope.output.shape[0] = 8;
    cr_assert_eq(plan_on(&clf_op_fused_qk_rope, &rope, 1, 32, 32768), CLINFER_OK, "%s", plan.error);
    assert_grid(8, 2, 32);
    rope.q_proj.shape[0] = rope.output.shape[0] = 1000;
    cr_assert_eq(plan_on(&clf_op_fused_qk_rope, &rope, 1, 256, 32768), CLINFER_OK, "%s", plan.error);
    assert_grid(1000, 1, 64);

    struct clinfer_rms_norm_kv_cache_params norm = good_norm(); // T 5, K 2
    cr_assert_eq(plan_on(&clf_op_rms_norm_kv_cache, &norm, 100, 256, 32768), CLINFER_OK, "%s", plan.error);
    assert_grid(5, 2, 64);
    norm.rows = CLINFER_WHOLE_ROW;
    cr_assert_eq(plan_on(&clf_op_rms_norm_kv_cache, &norm, 100, 256, 32768), CLINFER_OK, "%s", plan.error);
    assert_grid(5, 1, 64);

    struct clinfer_mla_fused_rope_rmsnorm_params store = good_store(); // T 5, H 4
    cr_assert_eq(plan_on(&clf_op_mla_fused_rope_rmsnorm, &store, 100, 256, 32768), CLINFER_OK, "%s",
                 plan.error);
    assert_grid(5, 4, 64);
    cr_assert_eq(clf_plan(&plan, &clf_op_mla_fused_rope_rmsnorm, &store, &fixture_caps, CLF_CALL),
                 CLINFER_OK);
    assert_grid(5, 1, 1);
}

// Fits in `bytes`, and not in four less.
static void expect_bytes(const struct clf_op *op, const void *params, uint64_t bytes)
{
    char want[CLF_ERROR_SIZE];
    cr_assert_eq(plan_on(op, params, 4, 256, bytes), CLINFER_OK, "%s", plan.error);
    cr_assert_eq(plan_on(op, params, 4, 256, bytes - 4), CLINFER_ERR_UNSUPPORTED, "%s of %llu bytes: %s",
                 op->name, (unsigned long long) bytes, plan.error);
    snprintf(want, sizeof want, "%s: %s takes %llu bytes of local memory, the device has %llu", op->name,
             op->name, (unsigned long long) bytes, (unsigned long long) bytes - 4);
    cr_assert_str_eq(plan.error, want);
}

static void add_scales(clinfer_kv_cache *kv, int64_t group)
{
    kv->dtype = CLINFER_F8_E4M3;
    kv->scale_group = group;
    kv->scales = MEM(30);
}

// 4 bytes an element, 8 a scale group of a head, 4 for each of 64 items.
Test(plan_group, local_memory)
{
    struct clinfer_rms_norm_kv_cache_params norm = good_norm();
    norm.gamma.shape[0] = 11;
    expect_bytes(&clf_op_rms_norm_kv_cache, &norm, 4 * 11 + 256);
    norm.rows = CLINFER_WHOLE_ROW;
    norm.gamma.shape[0] = 27;
    expect_bytes(&clf_op_rms_norm_kv_cache, &norm, 4 * 27 + 256);
    add_scales(&norm.kv, 5);
    expect_bytes(&clf_op_rms_norm_kv_cache, &norm, 4 * 32 + 8 * 4 + 256);

    struct clinfer_mla_fused_rope_rmsnorm_params store = good_store();
    expect_bytes(&clf_op_mla_fused_rope_rmsnorm, &store, 4 * 32 + 256);
    add_scales(&store.kv, 32);
    expect_bytes(&clf_op_mla_fused_rope_rmsnorm, &store, 4 * 32 + 8 + 256);

    struct clinfer_fused_qk_rope_params rope = good_rope();
    cr_assert_eq(plan_on(&clf_op_fused_qk_rope, &rope, 4, 256, 0), CLINFER_OK, "%s", plan.error);
    add_scales(&rope.kv, 3);
    expect_bytes(&clf_op_fused_qk_rope, &rope, 4 * 16 + 8 * 6 + 256);
}

// The row set has no such limit, and one of its own.
Test(plan_group, rows_of_the_row_set)
{
    struct clinfer_mla_fused_rope_rmsnorm_params store = good_store();
    store.gamma.shape[0] = (1 << 17) - 8;
    store.kv_input.shape[1] = store.kv.head_size = 1 << 17;
    cr_assert_eq(clf_plan(&plan, &clf_op_mla_fused_rope_rmsnorm, &store, &fixture_caps, CLF_CALL), CLINFER_OK,
                 "%s", plan.error);
    store.gamma.shape[0]++;
    store.kv_input.shape[1] = ++store.kv.head_size;
    cr_assert_eq(clf_plan(&plan, &clf_op_mla_fused_rope_rmsnorm, &store, &fixture_caps, CLF_CALL),
                 CLINFER_ERR_UNSUPPORTED);
    cr_assert(strstr(plan.error, "head_size is 131073") && strstr(plan.error, "at most 131072"), "%s",
              plan.error);
}
