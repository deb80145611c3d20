// SPDX-License-Identifier: Apache-2.0
// Validation and prepare of each op without a device: one wrong field, one error that names it and both
// numbers.
#include <criterion/criterion.h>
#include <limits.h>

#include "plan_fixture.h"

TestSuite(plan, .timeout = 30);

#define ROPE(field, v)           SET(clinfer_fused_qk_rope_params, field, v)
#define NORM(field, v)           SET(clinfer_rms_norm_kv_cache_params, field, v)
#define STORE(field, v)          SET(clinfer_mla_fused_rope_rmsnorm_params, field, v)
#define DECODE(field, v)         SET(clinfer_mla_decode_branch_params, field, v)
#define SHAPE                    CLINFER_ERR_SHAPE
#define TYPE                     CLINFER_ERR_TYPE
#define ARGUMENT                 CLINFER_ERR_ARGUMENT
#define EXPECT(op, params, rows) expect_breakages(&clf_op_##op, &params, sizeof params, rows, COUNT_OF(rows))

static int64_t bits_of(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    return u;
}

Test(plan, ranks_and_extents)
{
    const struct clinfer_fused_qk_rope_params p = good_rope();
    const struct breakage rows[] = {
        { { ROPE(q_proj.rank, 2) }, SHAPE, { "q_proj", "rank 3", "rank 2" } },
        { { ROPE(q_proj.rank, 0) }, SHAPE, { "q_proj", "rank 3", "rank 0" } },
        { { ROPE(freqs_cis.rank, 3) }, SHAPE, { "freqs_cis", "rank 2", "rank 3" } },
        { { ROPE(output.rank, -1) }, SHAPE, { "output", "rank 3", "rank -1" } },
        { { ROPE(q_proj.shape[0], 6) }, SHAPE, { "output: axis 0 is 5", "T is 6" } },
        { { ROPE(q_proj.shape[0], -1) }, SHAPE, { "q_proj: axis 0 is -1", "0 to 2147483647" } },
        { { ROPE(q_proj.shape[1], INT64_C(1) << 31) },
          SHAPE,
          { "q_proj: axis 1 is 2147483648", "2147483647" } },
        { { ROPE(output.shape[0], 4) }, SHAPE, { "output: axis 0 is 4", "T is 5" } },
        { { ROPE(output.shape[1], 3) }, SHAPE, { "output: axis 1 is 3", "H is 4" } },
        { { ROPE(output.shape[2], 17) }, SHAPE, { "output: axis 2 is 17", "Q is 16" } },
        { { ROPE(q_proj.shape[1], 5), ROPE(output.shape[1], 5) }, SHAPE, { "5 query heads", "2 KV heads" } },
        { { ROPE(freqs_cis.shape[1], 7) }, SHAPE, { "freqs_cis: axis 1 is 7", "even" } },
        { { ROPE(freqs_cis.shape[1], 18) }, SHAPE, { "freqs_cis: 18", "16 (q)", "16 (cache)" } },
        { { ROPE(freqs_cis.shape[1], 16), ROPE(kv.head_size, 14) },
          SHAPE,
          { "freqs_cis: 16", "16 (q)", "14 (cache)" } },
        { { ROPE(interleaved, 0), ROPE(kv.head_size, 24) },
          SHAPE,
          { "split halves", "16 (q)", "24 (cache)" } },
        { { ROPE(interleaved, 1), ROPE(kv.head_size, 24) }, CLINFER_OK, { NULL } },
        { { ROPE(freqs_cis.shape[1], 0) }, CLINFER_OK, { NULL } },
        { { ROPE(freqs_cis.shape[0], 0) }, CLINFER_OK, { NULL } },
    };
    EXPECT(fused_qk_rope, p, rows);
    cr_assert_eq(clf_plan(&(struct clf_plan){ 0 }, &clf_op_fused_qk_rope, NULL, &fixture_caps, CLF_CALL),
                 ARGUMENT);
}

Test(plan, batch_tensors)
{
    const struct clinfer_fused_qk_rope_params p = good_rope();
    const struct breakage rows[] = {
        { { ROPE(batch.input_row_offsets.shape[0], 4) }, SHAPE, { "cache_lengths: axis 0 is 2", "B is 3" } },
        { { ROPE(batch.input_row_offsets.shape[0], 0) },
          SHAPE,
          { "input_row_offsets: axis 0 is 0", "B+1 is 1" } },
        { { ROPE(batch.input_row_offsets.rank, 0) }, SHAPE, { "input_row_offsets", "rank 1", "rank 0" } },
        { { ROPE(batch.cache_lengths.shape[0], 3) }, SHAPE, { "cache_lengths: axis 0 is 3", "B is 2" } },
        { { ROPE(batch.lookup_table.shape[0], 1) }, SHAPE, { "lookup_table: axis 0 is 1", "B is 2" } },
        { { ROPE(batch.lookup_table.rank, 1) }, SHAPE, { "lookup_table", "rank 2", "rank 1" } },
        { { ROPE(batch.lookup_table.shape[1], -3) }, SHAPE, { "lookup_table: axis 1 is -3" } },
        { { ROPE(batch.lookup_table.shape[1], 0) }, CLINFER_OK, { NULL } },
        { { ROPE(batch.input_row_offsets.dtype, CLINFER_F32) }, TYPE, { "input_row_offsets", "F32", "U32" } },
        { { ROPE(batch.cache_lengths.dtype, 0) }, TYPE, { "cache_lengths", "?", "U32" } },
        { { ROPE(batch.lookup_table.dtype, CLINFER_F8_E4M3) }, TYPE, { "lookup_table", "F8_E4M3", "U32" } },
        { { ROPE(batch.lookup_table.mem, 0) }, ARGUMENT, { "lookup_table", "no buffer", "6 elements" } },
        { { ROPE(batch.cache_lengths.offset, 6) }, ARGUMENT, { "cache_lengths", "offset 6", "4 bytes" } },
    };
    EXPECT(fused_qk_rope, p, rows);
}

Test(plan, types)
{
    const struct clinfer_fused_qk_rope_params p = good_rope();
    const struct breakage rows[] = {
        { { ROPE(q_proj.dtype, CLINFER_U32) }, TYPE, { "q_proj", "U32", "F32 F16 BF16" } },
        { { ROPE(q_proj.dtype, CLINFER_F8_E4M3) }, TYPE, { "q_proj", "F8_E4M3", "F32 F16 BF16" } },
        { { ROPE(q_proj.dtype, 0) }, TYPE, { "q_proj", "(0)" } },
        { { ROPE(q_proj.dtype, 6) }, TYPE, { "q_proj", "(6)" } },
        { { ROPE(q_proj.dtype, 35) }, TYPE, { "q_proj", "(35)" } },
        { { ROPE(q_proj.dtype, -1) }, TYPE, { "q_proj", "(-1)" } },
        { { ROPE(output.dtype, CLINFER_BF16) }, TYPE, { "output", "BF16", "q_proj is F32" } },
        { { ROPE(freqs_cis.dtype, CLINFER_U32) }, TYPE, { "freqs_cis", "U32" } },
        { { ROPE(kv.dtype, CLINFER_U32) }, TYPE, { "kv", "U32", "F32 F16 BF16" } },
        { { ROPE(kv.dtype, 0) }, TYPE, { "kv", "(0)" } },
        { { ROPE(kv.dtype, -7) }, TYPE, { "kv", "(-7)" } },
        { { ROPE(kv.scale_group, 8) }, TYPE, { "kv", "scale_group is 8", "BF16" } },
    };
    EXPECT(fused_qk_rope, p, rows);
    const struct clinfer_mla_decode_branch_params d = good_decode();
    const struct breakage decode[] = {
        { { DECODE(output.dtype, CLINFER_F32) }, TYPE, { "output", "F32", "q is BF16" } },
        { { DECODE(w_uv.dtype, CLINFER_F16) }, TYPE, { "w_uv", "F16", "w_uk is BF16" } },
        { { DECODE(w_uk.dtype, CLINFER_U32) }, TYPE, { "w_uk", "U32", "F8_E4M3" } },
        { { DECODE(q.dtype, CLINFER_F8_E4M3) }, TYPE, { "q", "F8_E4M3" } },
        { { DECODE(kv_norm_gamma.dtype, CLINFER_F8_E4M3) }, TYPE, { "kv_norm_gamma", "F8_E4M3" } },
    };
    EXPECT(mla_decode_branch, d, decode);
}

Test(plan, cache_fields)
{
    const struct clinfer_fused_qk_rope_params p = good_rope();
    const struct breakage rows[] = {
        { { ROPE(kv.page_size, 0) }, SHAPE, { "kv: page_size is 0", "1 to" } },
        { { ROPE(kv.page_size, -4) }, SHAPE, { "kv: page_size is -4", "1 to" } },
        { { ROPE(kv.num_heads, 0) }, SHAPE, { "kv: num_heads is 0" } },
        { { ROPE(kv.head_size, 0) }, SHAPE, { "kv: head_size is 0" } },
        { { ROPE(kv.head_size, INT64_C(1) << 31) }, SHAPE, { "kv: head_size is 2147483648", "2147483647" } },
        { { ROPE(kv.num_pages, -1) }, SHAPE, { "kv: num_pages is -1", "0 to 4294967295" } },
        { { ROPE(kv.num_pages, INT64_C(1) << 32) }, SHAPE, { "kv: num_pages is 4294967296", "4294967295" } },
        { { ROPE(kv.planes, 3) }, SHAPE, { "kv: planes is 3", "0 to 2" } },
        { { ROPE(kv.planes, -1) }, SHAPE, { "kv: planes is -1" } },
        { { ROPE(kv.num_layers, -2) }, SHAPE, { "kv: num_layers is -2" } },
        { { ROPE(kv.scale_group, -1), ROPE(kv.dtype, CLINFER_F8_E4M3) }, SHAPE, { "kv: scale_group is -1" } },
        { { ROPE(layer_idx, 3) }, ARGUMENT, { "layer_idx is 3", "3 layers" } },
        { { ROPE(layer_idx, -1) }, ARGUMENT, { "layer_idx is -1", "3 layers" } },
        { { ROPE(kv.num_layers, 0) }, ARGUMENT, { "layer_idx is 2", "1 layers" } },
        { { ROPE(kv.offset, 3) }, ARGUMENT, { "kv: offset 3", "2 bytes" } },
        { { ROPE(kv.mem, 0) }, ARGUMENT, { "kv", "no buffer", "4608 elements" } },
        { { ROPE(kv.num_pages, 0), ROPE(kv.mem, 0) }, CLINFER_OK, { NULL } },
        { { ROPE(kv.planes, 1) }, CLINFER_OK, { NULL } },
        { { ROPE(kv.planes, 0) }, CLINFER_OK, { NULL } },
    };
    EXPECT(fused_qk_rope, p, rows);
}

Test(plan, cache_scales)
{
    struct clinfer_fused_qk_rope_params p = good_rope();
    p.kv.dtype = CLINFER_F8_E4M3;
    p.kv.scale_group = 5;
    p.kv.scales = MEM(2);
    const struct breakage rows[] = {
        { { ROPE(kv.scales, 0) }, ARGUMENT, { "kv scales", "no buffer", "1152 elements" } },
        { { ROPE(kv.scales_offset, 2) }, ARGUMENT, { "scales_offset 2", "4" } },
        { { ROPE(kv.dtype, CLINFER_F32) }, TYPE, { "scale_group is 5", "F32" } },
        { { ROPE(kv.scales_page_stride, 1) }, SHAPE, { "kv", "6 pages" } },
        { { ROPE(kv.scales_layer_stride, 7) }, SHAPE, { "kv" } },
        { { ROPE(kv.scale_group, 0), ROPE(kv.scales, 0) }, CLINFER_OK, { NULL } },
        { { ROPE(kv.scale_group, 100) }, CLINFER_OK, { NULL } },
    };
    EXPECT(fused_qk_rope, p, rows);
}

Test(plan, norm_arguments)
{
    const struct clinfer_rms_norm_kv_cache_params p = good_norm();
    const struct breakage rows[] = {
        { { NORM(gamma.shape[0], 17) }, SHAPE, { "gamma: axis 0 is 17", "1 to 16" } },
        { { NORM(gamma.shape[0], 33), NORM(rows, CLINFER_WHOLE_ROW) },
          SHAPE,
          { "gamma: axis 0 is 33", "1 to 32" } },
        { { NORM(gamma.shape[0], 32), NORM(rows, CLINFER_WHOLE_ROW) }, CLINFER_OK, { NULL } },
        { { NORM(gamma.shape[0], 0) }, SHAPE, { "gamma: axis 0 is 0", "1 to 16" } },
        { { NORM(gamma.rank, 2) }, SHAPE, { "gamma", "rank 1", "rank 2" } },
        { { NORM(gamma.dtype, CLINFER_F8_E4M3) }, TYPE, { "gamma", "F8_E4M3" } },
        { { NORM(rows, 2) }, ARGUMENT, { "rows is 2" } },
        { { NORM(rows, -1) }, ARGUMENT, { "rows is -1" } },
        { { NORM(cast, 2) }, ARGUMENT, { "cast is 2" } },
        { { NORM(total_seq_len, -1) }, ARGUMENT, { "total_seq_len is -1", "0 to 2147483647" } },
        { { NORM(total_seq_len, INT64_C(1) << 31) },
          ARGUMENT,
          { "total_seq_len is 2147483648", "2147483647" } },
        { { NORM(epsilon, bits_of(-1.0f)) }, ARGUMENT, { "epsilon is -1" } },
        { { NORM(epsilon, 0x7fc00000) }, ARGUMENT, { "epsilon is nan" } },
        { { NORM(epsilon, 0) }, CLINFER_OK, { NULL } },
        { { NORM(kv.page_size, 0) }, SHAPE, { "page_size is 0" } },
        { { NORM(layer_idx, 9) }, ARGUMENT, { "layer_idx is 9", "3 layers" } },
    };
    EXPECT(rms_norm_kv_cache, p, rows);
}

Test(plan, mla_store_arguments)
{
    const struct clinfer_mla_fused_rope_rmsnorm_params p = good_store();
    const struct breakage rows[] = {
        { { STORE(kv.planes, 2) }, SHAPE, { "kv", "1 plane and 1 head", "got 2 and 1" } },
        { { STORE(kv.planes, 0) }, SHAPE, { "kv", "1 plane and 1 head", "got 2 and 1" } },
        { { STORE(kv.num_heads, 3) }, SHAPE, { "kv", "1 plane and 1 head", "got 1 and 3" } },
        { { STORE(kv.head_size, 31) }, SHAPE, { "kv: head_size is 31", "24 + 8" } },
        { { STORE(gamma.shape[0], 23) }, SHAPE, { "kv_input: axis 1 is 32", "C+R is 31" } },
        { { STORE(kv_input.shape[1], 31) }, SHAPE, { "kv_input: axis 1 is 31", "C+R is 32" } },
        { { STORE(kv_input.shape[0], 4) }, SHAPE, { "kv_input: axis 0 is 4", "T is 5" } },
        { { STORE(q_rope_output.shape[1], 5) }, SHAPE, { "q_rope_output: axis 1 is 5", "H is 4" } },
        { { STORE(q_rope_output.shape[2], 6) }, SHAPE, { "q_rope_output: axis 2 is 6", "R is 8" } },
        { { STORE(freqs_cis.shape[1], 6) }, SHAPE, { "freqs_cis: axis 1 is 6", "R is 8" } },
        { { STORE(q_rope.shape[2], 7), STORE(q_rope_output.shape[2], 7), STORE(kv_input.shape[1], 31),
            STORE(freqs_cis.shape[1], 7), STORE(kv.head_size, 31) },
          SHAPE,
          { "freqs_cis: axis 1 is 7", "even" } },
        { { STORE(q_rope.shape[2], 0), STORE(q_rope_output.shape[2], 0), STORE(kv_input.shape[1], 24),
            STORE(freqs_cis.shape[1], 0), STORE(kv.head_size, 24) },
          CLINFER_OK,
          { NULL } },
        { { STORE(gamma.shape[0], 0), STORE(kv_input.shape[1], 8), STORE(kv.head_size, 8) },
          SHAPE,
          { "gamma: axis 0 is 0" } },
        { { STORE(q_rope_output.dtype, CLINFER_U32) }, TYPE, { "q_rope_output", "U32", "F8_E4M3" } },
        { { STORE(q_rope_output.dtype, CLINFER_F8_E4M3) }, CLINFER_OK, { NULL } },
        { { STORE(kv_input.dtype, CLINFER_F8_E4M3) }, TYPE, { "kv_input", "F8_E4M3" } },
        { { STORE(epsilon, bits_of(-0.5f)) }, ARGUMENT, { "epsilon is -0.5" } },
    };
    EXPECT(mla_fused_rope_rmsnorm, p, rows);
}

Test(plan, mla_decode_arguments)
{
    const struct clinfer_mla_decode_branch_params p = good_decode();
    const struct breakage rows[] = {
        { { DECODE(mask, 5) }, ARGUMENT, { "mask is 5", "0 to 4" } },
        { { DECODE(mask, -1) }, ARGUMENT, { "mask is -1", "0 to 4" } },
        { { DECODE(score_mod, 2) }, ARGUMENT, { "score_mod is 2", "0 to 1" } },
        { { DECODE(mask, CLINFER_MASK_CHUNKED) }, ARGUMENT, { "local_window_size is 0", "1 to 2147483647" } },
        { { DECODE(mask, CLINFER_MASK_CHUNKED_CAUSAL), DECODE(local_window_size, -1) },
          ARGUMENT,
          { "local_window_size is -1" } },
        { { DECODE(mask, CLINFER_MASK_SLIDING_WINDOW_CAUSAL), DECODE(local_window_size, INT64_C(1) << 31) },
          ARGUMENT,
          { "local_window_size is 2147483648", "2147483647" } },
        { { DECODE(mask, CLINFER_MASK_SLIDING_WINDOW_CAUSAL), DECODE(local_window_size, 1) },
          CLINFER_OK,
          { NULL } },
        { { DECODE(mask, CLINFER_MASK_NULL), DECODE(local_window_size, -1) }, CLINFER_OK, { NULL } },
        { { DECODE(num_splits, -1) }, ARGUMENT, { "num_splits is -1", "0 to 65535" } },
        { { DECODE(num_splits, 65536) }, ARGUMENT, { "num_splits is 65536", "65535" } },
        { { DECODE(max_context, -1) }, ARGUMENT, { "max_context is -1" } },
        { { DECODE(workspace_offset, 32) }, ARGUMENT, { "workspace_offset is 32", "64" } },
        { { DECODE(epsilon, bits_of(-1.0f)) }, ARGUMENT, { "epsilon is -1" } },
    };
    EXPECT(mla_decode_branch, p, rows);
}

Test(plan, mla_decode_shapes)
{
    const struct clinfer_mla_decode_branch_params p = good_decode();
    const struct breakage rows[] = {
        { { DECODE(kv.head_size, 40) }, SHAPE, { "kv: head_size is 40", "24 + 8" } },
        { { DECODE(kv.planes, 0) }, SHAPE, { "1 plane and 1 head", "got 2 and 1" } },
        { { DECODE(q.shape[2], 7) }, SHAPE, { "q: axis 2 is 7", "N+R is 8" } },
        { { DECODE(w_uk.shape[2], 11) }, SHAPE, { "w_uk: axis 2 is 11", "N is 12" } },
        { { DECODE(w_uk.shape[1], 25) }, SHAPE, { "w_uk: axis 1 is 25", "C is 24" } },
        { { DECODE(w_uk.shape[0], 3) }, SHAPE, { "w_uk: axis 0 is 3", "H is 4" } },
        { { DECODE(w_uv.shape[2], 23) }, SHAPE, { "w_uv: axis 2 is 23", "C is 24" } },
        { { DECODE(output.shape[2], 11) }, SHAPE, { "output: axis 2 is 11", "V is 10" } },
        { { DECODE(output.shape[0], 6) }, SHAPE, { "output: axis 0 is 6", "T is 5" } },
        { { DECODE(w_uv.shape[1], 0), DECODE(output.shape[2], 0) }, SHAPE, { "V 0" } },
        { { DECODE(freqs_cis.shape[1], 7), DECODE(q.shape[2], 19), DECODE(kv.head_size, 31) },
          SHAPE,
          { "freqs_cis: axis 1 is 7", "even" } },
        // No absorbed part; no rope.
        { { DECODE(q.shape[2], 8), DECODE(w_uk.shape[2], 0), DECODE(w_uk.mem, 0) }, CLINFER_OK, { NULL } },
        { { DECODE(freqs_cis.shape[1], 0), DECODE(q.shape[2], 12), DECODE(kv.head_size, 24),
            DECODE(freqs_cis.mem, 0) },
          CLINFER_OK,
          { NULL } },
        { { DECODE(w_uk_scale.rank, 3), DECODE(w_uk_scale.dtype, CLINFER_F32),
            DECODE(w_uk_scale.shape[0], 4) },
          ARGUMENT,
          { "weight scales", "BF16" } },
    };
    EXPECT(mla_decode_branch, p, rows);
}

Test(plan, weight_scales)
{
    const struct clinfer_mla_decode_branch_params p = good_decode_fp8();
    const struct breakage rows[] = {
        { { DECODE(w_uk_scale.rank, 0) }, ARGUMENT, { "no w_uk_scale" } },
        { { DECODE(w_uv_scale.rank, 0) }, ARGUMENT, { "no w_uv_scale" } },
        { { DECODE(w_uk_scale.shape[1], 4) }, SHAPE, { "w_uk_scale", "[4, 3]", "[3, 3]" } },
        { { DECODE(w_uk_scale.shape[2], 2) }, SHAPE, { "w_uk_scale", "[3, 2]", "[3, 3]" } },
        { { DECODE(w_uv_scale.shape[1], 1) }, SHAPE, { "w_uv_scale", "[1, 5]", "[2, 5]" } },
        { { DECODE(w_uv_scale.shape[2], 6) }, SHAPE, { "w_uv_scale", "[2, 6]", "[2, 5]" } },
        { { DECODE(w_uv_scale.shape[0], 3) }, SHAPE, { "w_uv_scale: axis 0 is 3", "H is 4" } },
        { { DECODE(w_uk_scale.dtype, CLINFER_BF16) }, TYPE, { "w_uk_scale", "BF16", "F32" } },
        { { DECODE(n_granularity, 0) }, ARGUMENT, { "n_granularity is 0" } },
        { { DECODE(k_granularity, -5) }, ARGUMENT, { "k_granularity -5" } },
        { { DECODE(k_granularity, INT64_C(1) << 31) }, ARGUMENT, { "k_granularity 2147483648" } },
        { { DECODE(n_granularity, 128), DECODE(w_uk_scale.shape[1], 1), DECODE(w_uv_scale.shape[1], 1) },
          CLINFER_OK,
          { NULL } },
    };
    EXPECT(mla_decode_branch, p, rows);
}

Test(plan, mrope_sections)
{
    struct clinfer_fused_qk_rope_params p = good_rope();
    p.position_ids = clinfer_tensor_2d(MEM(9), CLINFER_U32, 2, 5);
    p.num_mrope_sections = 2;
    p.mrope_section[0] = 4;
    p.mrope_section[1] = 8;
    const struct breakage rows[] = {
        { { ROPE(position_ids.rank, 0) }, ARGUMENT, { "2 mrope sections", "no position_ids" } },
        { { ROPE(num_mrope_sections, 3), ROPE(mrope_section[2], 9) },
          SHAPE,
          { "position_ids: axis 0 is 2", "want 3" } },
        { { ROPE(num_mrope_sections, -1) }, ARGUMENT, { "num_mrope_sections is -1", "0 to 8" } },
        { { ROPE(num_mrope_sections, 9), ROPE(position_ids.shape[0], 9) },
          ARGUMENT,
          { "num_mrope_sections is 9", "0 to 8" } },
        { { ROPE(mrope_section[1], 4) }, ARGUMENT, { "end 1 is 4", "more than 4" } },
        { { ROPE(mrope_section[0], 0) }, ARGUMENT, { "end 0 is 0", "more than 0" } },
        { { ROPE(mrope_section[0], -2) }, ARGUMENT, { "end 0 is -2" } },
        { { ROPE(position_ids.shape[1], 4) }, SHAPE, { "position_ids: axis 1 is 4", "T is 5" } },
        { { ROPE(position_ids.dtype, CLINFER_F32) }, TYPE, { "position_ids", "F32", "U32" } },
        { { ROPE(num_mrope_sections, 0), ROPE(position_ids.shape[0], 0) },
          SHAPE,
          { "position_ids: axis 0 is 0", "want 1" } },
        { { ROPE(num_mrope_sections, 0) }, CLINFER_OK, { NULL } },
    };
    EXPECT(fused_qk_rope, p, rows);
}

// Rows that a kernel holds whole end where a thread's stack would.
Test(plan, long_rows)
{
    const struct clinfer_rms_norm_kv_cache_params p = good_norm();
    const struct breakage rows[] = {
        { { NORM(kv.head_size, 1 << 17) }, CLINFER_OK, { NULL } },
        { { NORM(kv.head_size, (1 << 17) + 1) },
          CLINFER_ERR_UNSUPPORTED,
          { "head_size is 131073", "at most 131072" } },
    };
    EXPECT(rms_norm_kv_cache, p, rows);
}
