// SPDX-License-Identifier: Apache-2.0
// Where tensors lie: strides, overflow, aliasing; empty calls; and that planning is pure and allocates
// nothing.
#include <criterion/criterion.h>
#include <string.h>

#include "plan_fixture.h"

TestSuite(plan_views, .timeout = 30);

#define ROPE(field, v)           SET(clinfer_fused_qk_rope_params, field, v)
#define STORE(field, v)          SET(clinfer_mla_fused_rope_rmsnorm_params, field, v)
#define DECODE(field, v)         SET(clinfer_mla_decode_branch_params, field, v)
#define SHAPE                    CLINFER_ERR_SHAPE
#define ALIAS                    CLINFER_ERR_ALIAS
#define STRIDES(a, b, c)         ROPE(q_proj.stride[0], a), ROPE(q_proj.stride[1], b), ROPE(q_proj.stride[2], c)
#define EXPECT(op, params, rows) expect_breakages(&clf_op_##op, &params, sizeof params, rows, COUNT_OF(rows))

Test(plan_views, strides)
{
    const struct clinfer_fused_qk_rope_params p = good_rope();
    const struct breakage rows[] = {
        { { STRIDES(64, 16, 1) }, CLINFER_OK, { NULL } },
        { { STRIDES(100, 20, 1) }, CLINFER_OK, { NULL } },
        { { STRIDES(63, 16, 1) }, SHAPE, { "q_proj: axis 0", "stride 63", "at least 64" } },
        { { STRIDES(64, 15, 1) }, SHAPE, { "q_proj: axis 1", "stride 15", "at least 16" } },
        { { STRIDES(128, 32, 2) }, SHAPE, { "q_proj: axis 2", "stride 2", "exactly 1" } },
        { { STRIDES(64, 16, 0) }, SHAPE, { "q_proj: axis 2", "stride 0", "exactly 1" } },
        { { STRIDES(-64, 16, 1) }, SHAPE, { "q_proj: axis 0", "stride -64" } },
        { { STRIDES(INT64_MAX, 16, 1) }, SHAPE, { "q_proj: axis 0", "9223372036854775807", "2^63" } },
        { { STRIDES(INT64_MAX / 4, 16, 1) }, SHAPE, { "q_proj: axis 0", "2^63" } },
        { { STRIDES(INT64_C(1) << 60, 16, 1) }, SHAPE, { "q_proj", "2^64 bytes" } },
        { { ROPE(q_proj.offset, SIZE_MAX - 3) }, SHAPE, { "q_proj", "18446744073709551612", "2^64 bytes" } },
        { { ROPE(q_proj.offset, 2) }, CLINFER_ERR_ARGUMENT, { "q_proj", "offset 2", "4 bytes" } },
        // An axis of extent 1 may have any stride.
        { { ROPE(q_proj.shape[1], 1), ROPE(output.shape[1], 1), ROPE(kv.num_heads, 1),
            ROPE(q_proj.stride[0], 16), ROPE(q_proj.stride[2], 1) },
          CLINFER_OK,
          { NULL } },
    };
    EXPECT(fused_qk_rope, p, rows);
}

Test(plan_views, cache_strides)
{
    const struct clinfer_fused_qk_rope_params p = good_rope();
    const struct breakage rows[] = {
        { { ROPE(kv.page_stride, 1) }, SHAPE, { "kv", "6 pages", "page 1" } },
        { { ROPE(kv.kv_stride, 127) }, SHAPE, { "kv", "kv 127" } },
        { { ROPE(kv.layer_stride, 127) }, SHAPE, { "kv", "layer 127" } },
        { { ROPE(kv.kv_stride, 3 * 128), ROPE(kv.page_stride, 3 * 128) },
          SHAPE,
          { "kv", "page 384", "kv 384" } },
        { { ROPE(kv.layer_stride, 128), ROPE(kv.kv_stride, 2 * 128) },
          SHAPE,
          { "kv", "kv 256", "layer 128" } },
        { { ROPE(kv.layer_stride, -128) }, SHAPE, { "kv", "layer -128" } },
        { { ROPE(kv.page_stride, INT64_MAX) }, SHAPE, { "kv", "2^63" } },
        { { ROPE(kv.layer_stride, INT64_MAX / 2) }, SHAPE, { "kv", "2^63" } },
        { { ROPE(kv.page_stride, INT64_C(1) << 61) }, SHAPE, { "kv", "2^63" } },
        { { ROPE(kv.page_stride, INT64_C(1) << 40) }, CLINFER_OK, { NULL } },
        { { ROPE(kv.page_size, INT32_MAX), ROPE(kv.head_size, INT32_MAX), ROPE(kv.num_heads, 4) },
          SHAPE,
          { "kv", "2^63" } },
        // A cache without pages still has strides to be right: the layer's offset is made of them.
        { { ROPE(kv.num_pages, 0), ROPE(kv.layer_stride, INT64_MAX) }, SHAPE, { "kv", "2^63" } },
        { { ROPE(kv.num_pages, 0), ROPE(kv.layer_stride, -128) }, SHAPE, { "kv", "layer -128" } },
    };
    EXPECT(fused_qk_rope, p, rows);
}

// K and V planes, pages and layers that interleave elsewhere are still distinct rows.
Test(plan_views, interleaved_planes)
{
    const struct clinfer_fused_qk_rope_params p = good_rope();
    const struct breakage rows[] = {
        { { ROPE(kv.layer_stride, 128), ROPE(kv.kv_stride, 6 * 3 * 128), ROPE(kv.page_stride, 3 * 128) },
          CLINFER_OK,
          { NULL } },
        { { ROPE(kv.layer_stride, 2 * 128), ROPE(kv.kv_stride, 128), ROPE(kv.page_stride, 6 * 128) },
          CLINFER_OK,
          { NULL } },
    };
    EXPECT(fused_qk_rope, p, rows);
}

#define SAME_MEM(n) ROPE(output.mem, (uintptr_t) MEM(n))

Test(plan_views, aliasing)
{
    const struct clinfer_fused_qk_rope_params p = good_rope();
    const struct breakage rows[] = {
        { { SAME_MEM(6) }, CLINFER_OK, { NULL } }, // output is q_proj, exactly
        { { SAME_MEM(6), ROPE(output.offset, 4) },
          ALIAS,
          { "output (bytes 4 to 1284)", "q_proj (bytes 0 to 1280)" } },
        { { SAME_MEM(6), ROPE(output.offset, 1276) },
          ALIAS,
          { "output (bytes 1276 to 2556)", "q_proj (bytes 0 to 1280)" } },
        { { SAME_MEM(6), ROPE(output.offset, 1280) }, CLINFER_OK, { NULL } },
        { { SAME_MEM(6), ROPE(output.stride[0], 128), ROPE(output.stride[1], 16), ROPE(output.stride[2], 1) },
          ALIAS,
          { "output", "q_proj" } },
        { { SAME_MEM(7) }, ALIAS, { "output (bytes 0 to 1280)", "freqs_cis (bytes 0 to 512)" } },
        { { SAME_MEM(5) }, ALIAS, { "output", "lookup_table" } },
        { { ROPE(kv.mem, (uintptr_t) MEM(6)) },
          ALIAS,
          { "q_proj (bytes 0 to 1280)", "kv (bytes 0 to 9216)" } },
        { { ROPE(kv.mem, (uintptr_t) MEM(6)), ROPE(kv.offset, 1280) }, CLINFER_OK, { NULL } },
        { { ROPE(kv.mem, (uintptr_t) MEM(8)) }, ALIAS, { "output", "kv" } },
        { { ROPE(kv.mem, (uintptr_t) MEM(4)) }, ALIAS, { "cache_lengths", "kv" } },
        { { ROPE(freqs_cis.mem, (uintptr_t) MEM(6)) }, CLINFER_OK, { NULL } }, // both are only read
    };
    EXPECT(fused_qk_rope, p, rows);
}

// Parts of one fused projection: rows of 200 elements, q in [0, 64) and output in [64 + d, 128 + d).
Test(plan_views, columns_of_one_row)
{
    struct clinfer_fused_qk_rope_params p = good_rope();
    p.output.mem = p.q_proj.mem;
    p.q_proj.stride[0] = p.output.stride[0] = 200;
    p.q_proj.stride[1] = p.output.stride[1] = 16;
    p.q_proj.stride[2] = p.output.stride[2] = 1;
    p.output.offset = 64 * 4;
    const struct breakage rows[] = {
        { { ROPE(output.offset, 63 * 4) }, ALIAS, { "output (bytes 252 to", "q_proj (bytes 0 to" } },
        { { ROPE(output.offset, 136 * 4) }, CLINFER_OK, { NULL } },
        { { ROPE(output.offset, 137 * 4) }, ALIAS, { "output", "q_proj" } }, // reaches into the next row's q
        { { ROPE(output.stride[0], 201) }, ALIAS, { "output", "q_proj" } },
        { { ROPE(q_proj.offset, 64 * 4), ROPE(output.offset, 0) }, CLINFER_OK, { NULL } },
        { { ROPE(q_proj.offset, 63 * 4), ROPE(output.offset, 0) }, ALIAS, { "output", "q_proj" } },
    };
    EXPECT(fused_qk_rope, p, rows);
}

Test(plan_views, aliasing_of_other_ops)
{
    const struct clinfer_mla_fused_rope_rmsnorm_params s = good_store();
    const struct breakage store[] = {
        { { STORE(q_rope_output.mem, (uintptr_t) MEM(6)) }, CLINFER_OK, { NULL } },
        { { STORE(q_rope_output.mem, (uintptr_t) MEM(6)), STORE(q_rope_output.dtype, CLINFER_BF16) },
          ALIAS,
          { "q_rope_output", "q_rope" } },
        { { STORE(q_rope_output.mem, (uintptr_t) MEM(8)) }, ALIAS, { "q_rope_output", "kv_input" } },
        { { STORE(kv_input.mem, (uintptr_t) MEM(1)) }, ALIAS, { "kv_input", "kv" } },
    };
    EXPECT(mla_fused_rope_rmsnorm, s, store);
    const struct clinfer_mla_decode_branch_params d = good_decode();
    const struct breakage decode[] = {
        { { DECODE(output.mem, (uintptr_t) MEM(6)) }, ALIAS, { "output", "q" } }, // q is not changed
        { { DECODE(output.mem, (uintptr_t) MEM(10)) }, ALIAS, { "output", "w_uv" } },
        { { DECODE(workspace, (uintptr_t) MEM(6)) }, ALIAS, { "workspace", "q" } },
        { { DECODE(workspace, (uintptr_t) MEM(1)), DECODE(workspace_offset, 2304) },
          ALIAS,
          { "workspace (bytes 2304", "kv (bytes 0 to 4608)" } },
        { { DECODE(workspace, (uintptr_t) MEM(1)), DECODE(workspace_offset, 4608) }, CLINFER_OK, { NULL } },
    };
    EXPECT(mla_decode_branch, d, decode);
}

Test(plan_views, empty_calls)
{
    static struct clf_plan plan;
    struct clinfer_fused_qk_rope_params p = good_rope();
    p.q_proj.shape[0] = p.output.shape[0] = 0;
    p.q_proj.mem = p.output.mem = NULL;
    cr_assert_eq(clf_plan(&plan, &clf_op_fused_qk_rope, &p, &fixture_caps, CLF_CALL), CLINFER_OK, "%s",
                 plan.error);
    cr_assert(plan.empty);
    p = good_rope();
    p.batch.cache_lengths.shape[0] = p.batch.lookup_table.shape[0] = 0;
    p.batch.input_row_offsets.shape[0] = 1;
    p.batch.cache_lengths.mem = p.batch.lookup_table.mem = NULL;
    cr_assert_eq(clf_plan(&plan, &clf_op_fused_qk_rope, &p, &fixture_caps, CLF_CALL), CLINFER_OK, "%s",
                 plan.error);
    cr_assert(plan.empty);
    struct clinfer_rms_norm_kv_cache_params n = good_norm();
    n.total_seq_len = 0;
    cr_assert_eq(clf_plan(&plan, &clf_op_rms_norm_kv_cache, &n, &fixture_caps, CLF_CALL), CLINFER_OK, "%s",
                 plan.error);
    cr_assert(plan.empty);
    n.total_seq_len = 1;
    cr_assert_eq(clf_plan(&plan, &clf_op_rms_norm_kv_cache, &n, &fixture_caps, CLF_CALL), CLINFER_OK, "%s",
                 plan.error);
    cr_assert_not(plan.empty);
}

// Compile and measure take calls without buffers, and sizes no machine has.
Test(plan_views, without_buffers)
{
    static struct clf_plan plan;
    struct clinfer_mla_decode_branch_params p = good_decode();
    p.q.mem = p.kv_norm_gamma.mem = p.freqs_cis.mem = p.w_uk.mem = p.w_uv.mem = p.output.mem = p.kv.mem =
        NULL;
    p.batch.cache_lengths.mem = p.batch.input_row_offsets.mem = p.batch.lookup_table.mem = NULL;
    cr_assert_eq(clf_plan(&plan, &clf_op_mla_decode_branch, &p, &fixture_caps, CLF_COMPILE), CLINFER_OK, "%s",
                 plan.error);
    cr_assert_eq(plan.num_launches, 6);
    cr_assert_eq(clf_plan(&plan, &clf_op_mla_decode_branch, &p, &fixture_caps, CLF_MEASURE), CLINFER_OK, "%s",
                 plan.error);
    cr_assert_gt(plan.workspace, 0);
    cr_assert_eq(plan.workspace % 64, 0);
    cr_assert_eq(clf_plan(&plan, &clf_op_mla_decode_branch, &p, &fixture_caps, CLF_CALL),
                 CLINFER_ERR_ARGUMENT);

    p.q = clinfer_tensor_3d(NULL, CLINFER_BF16, INT32_MAX, 1 << 30, 0);
    p.kv_norm_gamma.shape[0] = p.kv.head_size = 1;
    p.freqs_cis.shape[1] = 0;
    p.w_uk = clinfer_tensor_3d(NULL, CLINFER_BF16, 1 << 30, 1, 0);
    p.w_uv = clinfer_tensor_3d(NULL, CLINFER_BF16, 1 << 30, 1, 1);
    p.output = clinfer_tensor_3d(NULL, CLINFER_BF16, INT32_MAX, 1 << 30, 1);
    p.num_splits = 65535;
    cr_assert_eq(clf_plan(&plan, &clf_op_mla_decode_branch, &p, &fixture_caps, CLF_MEASURE), SHAPE);
    cr_assert(strstr(plan.error, "workspace") && strstr(plan.error, "2147483647") &&
                  strstr(plan.error, "2^64"),
              "%s", plan.error);
}

// The workspace does not depend on where the call will find its scratch, and grows with T.
Test(plan_views, workspace_size)
{
    static struct clf_plan plan;
    struct clinfer_mla_decode_branch_params p = good_decode();
    size_t last = 0;
    for (int64_t t = 1; t < 40; t++) {
        p.q.shape[0] = p.output.shape[0] = t;
        p.num_splits = 3;
        cr_assert_eq(clf_plan(&plan, &clf_op_mla_decode_branch, &p, &fixture_caps, CLF_MEASURE), CLINFER_OK,
                     "%s", plan.error);
        cr_assert_geq(plan.workspace, last);
        // valid; q_nope, q_full and raw of H heads; sums and (top, total) of 3 splits of one block of heads.
        cr_assert_geq(plan.workspace, (size_t) t * (4 + 4 * 4 * (12 + 32 + 24) + 3 * (4 * 2 * 64 + 128)));
        last = plan.workspace;
    }
}
