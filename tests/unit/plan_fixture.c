// SPDX-License-Identifier: Apache-2.0
#include "plan_fixture.h"

#include <criterion/criterion.h>
#include <string.h>

const struct clf_caps fixture_caps = { .bits = CLINFER_CAP_DENORMALS | CLINFER_CAP_ROUNDED_DIVIDE,
                                       .compute_units = 2,
                                       .set = CLINFER_SET_ROW,
                                       .arith = CLINFER_ARITH_F32 };

static clinfer_kv_cache cache_of(int planes, int64_t heads, int64_t head_size)
{
    return (clinfer_kv_cache){ .mem = MEM(1),
                               .dtype = CLINFER_BF16,
                               .num_pages = 6,
                               .planes = planes,
                               .num_layers = 3,
                               .page_size = 4,
                               .num_heads = heads,
                               .head_size = head_size };
}

static clinfer_kv_batch batch_of(void)
{
    return (clinfer_kv_batch){ .input_row_offsets = clinfer_tensor_1d(MEM(3), CLINFER_U32, 3),
                               .cache_lengths = clinfer_tensor_1d(MEM(4), CLINFER_U32, 2),
                               .lookup_table = clinfer_tensor_2d(MEM(5), CLINFER_U32, 2, 3) };
}

struct clinfer_fused_qk_rope_params good_rope(void)
{
    return (struct clinfer_fused_qk_rope_params){ .q_proj = clinfer_tensor_3d(MEM(6), CLINFER_F32, 5, 4, 16),
                                                  .freqs_cis = clinfer_tensor_2d(MEM(7), CLINFER_F16, 32, 8),
                                                  .output = clinfer_tensor_3d(MEM(8), CLINFER_F32, 5, 4, 16),
                                                  .kv = cache_of(2, 2, 16),
                                                  .batch = batch_of(),
                                                  .layer_idx = 2,
                                                  .interleaved = 1 };
}

struct clinfer_rms_norm_kv_cache_params good_norm(void)
{
    return (struct clinfer_rms_norm_kv_cache_params){ .gamma = clinfer_tensor_1d(MEM(6), CLINFER_BF16, 16),
                                                      .kv = cache_of(2, 2, 16),
                                                      .batch = batch_of(),
                                                      .layer_idx = 1,
                                                      .total_seq_len = 5,
                                                      .epsilon = 1e-5f };
}

struct clinfer_mla_fused_rope_rmsnorm_params good_store(void)
{
    return (struct clinfer_mla_fused_rope_rmsnorm_params){
        .q_rope = clinfer_tensor_3d(MEM(6), CLINFER_F32, 5, 4, 8),
        .q_rope_output = clinfer_tensor_3d(MEM(7), CLINFER_F32, 5, 4, 8),
        .kv_input = clinfer_tensor_2d(MEM(8), CLINFER_BF16, 5, 32),
        .gamma = clinfer_tensor_1d(MEM(9), CLINFER_F32, 24),
        .freqs_cis = clinfer_tensor_2d(MEM(10), CLINFER_F32, 32, 8),
        .kv = cache_of(1, 1, 32),
        .batch = batch_of(),
        .epsilon = 1e-6f
    };
}

struct clinfer_mla_decode_branch_params good_decode(void)
{
    return (struct clinfer_mla_decode_branch_params){
        .q = clinfer_tensor_3d(MEM(6), CLINFER_BF16, 5, 4, 20),
        .kv_norm_gamma = clinfer_tensor_1d(MEM(7), CLINFER_F32, 24),
        .freqs_cis = clinfer_tensor_2d(MEM(8), CLINFER_F32, 32, 8),
        .w_uk = clinfer_tensor_3d(MEM(9), CLINFER_BF16, 4, 24, 12),
        .w_uv = clinfer_tensor_3d(MEM(10), CLINFER_BF16, 4, 10, 24),
        .output = clinfer_tensor_3d(MEM(11), CLINFER_BF16, 5, 4, 10),
        .kv = cache_of(1, 1, 32),
        .batch = batch_of(),
        .epsilon = 1e-6f,
        .scale = 0.2f
    };
}

struct clinfer_mla_decode_branch_params good_decode_fp8(void)
{
    struct clinfer_mla_decode_branch_params p = good_decode();
    p.w_uk.dtype = p.w_uv.dtype = CLINFER_F8_E4M3;
    p.n_granularity = 8;
    p.k_granularity = 5;
    p.w_uk_scale = clinfer_tensor_3d(MEM(12), CLINFER_F32, 4, 3, 3);
    p.w_uv_scale = clinfer_tensor_3d(MEM(13), CLINFER_F32, 4, 2, 5);
    return p;
}

struct clinfer_mla_prefill_branch_params good_prefill(void)
{
    return (struct clinfer_mla_prefill_branch_params){
        .q = clinfer_tensor_3d(MEM(6), CLINFER_BF16, 5, 4, 20),
        .kv_norm_gamma = clinfer_tensor_1d(MEM(7), CLINFER_F32, 24),
        .freqs_cis = clinfer_tensor_2d(MEM(8), CLINFER_F32, 32, 8),
        .w_k = clinfer_tensor_2d(MEM(9), CLINFER_BF16, 48, 24),
        .w_uv = clinfer_tensor_3d(MEM(10), CLINFER_BF16, 4, 10, 24),
        .output = clinfer_tensor_3d(MEM(11), CLINFER_BF16, 5, 4, 10),
        .kv = cache_of(1, 1, 32),
        .batch = batch_of(),
        .epsilon = 1e-6f,
        .scale = 0.2f,
        .chunk_tokens = 5
    };
}

struct clinfer_mla_prefill_branch_params good_prefill_fp8(void)
{
    struct clinfer_mla_prefill_branch_params p = good_prefill();
    p.w_k.dtype = p.w_uv.dtype = CLINFER_F8_E4M3;
    p.n_granularity = 8;
    p.k_granularity = 5;
    p.w_k_scale = clinfer_tensor_2d(MEM(12), CLINFER_F32, 6, 5);
    p.w_uv_scale = clinfer_tensor_3d(MEM(13), CLINFER_F32, 4, 2, 5);
    return p;
}

struct clinfer_kv_store_params good_kv_store(void)
{
    return (struct clinfer_kv_store_params){ .k = clinfer_tensor_3d(MEM(6), CLINFER_F32, 5, 2, 16),
                                             .v = clinfer_tensor_3d(MEM(7), CLINFER_F32, 5, 2, 16),
                                             .kv = cache_of(2, 2, 16),
                                             .batch = batch_of(),
                                             .layer_idx = 2 };
}

struct clinfer_silu_mul_params good_silu_mul(void)
{
    return (struct clinfer_silu_mul_params){ .x = clinfer_tensor_2d(MEM(1), CLINFER_F16, 5, 24),
                                             .output = clinfer_tensor_2d(MEM(2), CLINFER_F16, 5, 12) };
}

struct clinfer_rms_norm_params good_rms_norm(void)
{
    return (struct clinfer_rms_norm_params){ .x = clinfer_tensor_2d(MEM(1), CLINFER_BF16, 5, 16),
                                             .gamma = clinfer_tensor_1d(MEM(2), CLINFER_F32, 16),
                                             .residual = clinfer_tensor_2d(MEM(3), CLINFER_F32, 5, 16),
                                             .output = clinfer_tensor_2d(MEM(4), CLINFER_BF16, 5, 16),
                                             .epsilon = 1e-5f };
}

struct clinfer_merge_states_params good_merge_states(void)
{
    return (struct clinfer_merge_states_params){ .out_a = clinfer_tensor_3d(MEM(1), CLINFER_BF16, 5, 4, 10),
                                                 .lse_a = clinfer_tensor_2d(MEM(2), CLINFER_F32, 5, 4),
                                                 .out_b = clinfer_tensor_3d(MEM(3), CLINFER_F32, 5, 4, 10),
                                                 .lse_b = clinfer_tensor_2d(MEM(4), CLINFER_F32, 5, 4),
                                                 .output = clinfer_tensor_3d(MEM(5), CLINFER_BF16, 5, 4, 10),
                                                 .lse = clinfer_tensor_2d(MEM(6), CLINFER_F32, 5, 4) };
}

struct clinfer_matmul_params good_matmul(void)
{
    return (struct clinfer_matmul_params){ .x = clinfer_tensor_2d(MEM(6), CLINFER_BF16, 5, 40),
                                           .w = clinfer_tensor_2d(MEM(7), CLINFER_BF16, 24, 40),
                                           .bias = clinfer_tensor_1d(MEM(8), CLINFER_F32, 24),
                                           .output = clinfer_tensor_2d(MEM(9), CLINFER_BF16, 5, 24) };
}

struct clinfer_matmul_params good_matmul_fp8(void)
{
    struct clinfer_matmul_params p = good_matmul();
    p.w.dtype = CLINFER_F8_E4M3;
    p.w_scale = clinfer_tensor_2d(MEM(10), CLINFER_F32, 3, 3);
    p.n_granularity = 8;
    p.k_granularity = 16;
    return p;
}

struct clinfer_paged_attention_params good_attention(void)
{
    return (struct clinfer_paged_attention_params){ .q = clinfer_tensor_3d(MEM(6), CLINFER_BF16, 5, 4, 16),
                                                    .output =
                                                        clinfer_tensor_3d(MEM(7), CLINFER_BF16, 5, 4, 16),
                                                    .lse = clinfer_tensor_2d(MEM(8), CLINFER_F32, 5, 4),
                                                    .kv = cache_of(2, 2, 16),
                                                    .batch = batch_of(),
                                                    .layer_idx = 1,
                                                    .scale = 0.25f };
}

void apply(void *params, const struct setting *set, int count)
{
    for (int i = 0; i < count; i++)
        memcpy((char *) params + set[i].at, &set[i].value, set[i].size);
}

void expect_breakages(const struct clf_op *op, const void *params, size_t size, const struct breakage *rows,
                      size_t count)
{
    static struct clf_plan plan;
    union {
        struct clinfer_mla_decode_branch_params decode;
        struct clinfer_mla_prefill_branch_params prefill;
        struct clinfer_fused_qk_rope_params rope;
        struct clinfer_mla_fused_rope_rmsnorm_params store;
        struct clinfer_paged_attention_params attention;
    } copy;
    cr_assert_leq(size, sizeof copy);
    memcpy(&copy, params, size);
    cr_assert_eq(clf_plan(&plan, op, &copy, &fixture_caps, CLF_CALL), CLINFER_OK, "the good params: %s",
                 plan.error);
    for (size_t i = 0; i < count; i++) {
        memcpy(&copy, params, size);
        apply(&copy, rows[i].set, MAX_SETTINGS);
        const clinfer_status st = clf_plan(&plan, op, &copy, &fixture_caps, CLF_CALL);
        cr_assert_eq(st, rows[i].status, "row %zu: %s, want %s: %s", i, clinfer_status_str(st),
                     clinfer_status_str(rows[i].status), plan.error);
        if (!st)
            continue;
        cr_assert_eq(strncmp(plan.error, op->name, strlen(op->name)), 0, "row %zu does not name the op: %s",
                     i, plan.error);
        for (int w = 0; w < MAX_WORDS; w++)
            cr_assert(!rows[i].says[w] || strstr(plan.error, rows[i].says[w]), "row %zu lacks \"%s\": %s", i,
                      rows[i].says[w], plan.error);
    }
}
