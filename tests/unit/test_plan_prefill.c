// SPDX-License-Identifier: Apache-2.0
// What mla_prefill_branch plans, and when it is the cheaper branch, without a device.
#include <criterion/criterion.h>
#include <string.h>

#include "plan_fixture.h"
#include "tune.h"

TestSuite(plan_prefill, .timeout = 30);

static struct clf_plan plan;

#define PREFILL(field, v) SET(clinfer_mla_prefill_branch_params, field, v)
#define EXPECT(rows)                                                                                         \
    expect_breakages(&clf_op_mla_prefill_branch, &p, sizeof p, rows, sizeof(rows) / sizeof((rows)[0]))
#define ARGUMENT CLINFER_ERR_ARGUMENT
#define SHAPE    CLINFER_ERR_SHAPE

static clinfer_status plan_with(clinfer_kernel_set set, clinfer_gemm gemm, uint64_t local_bytes,
                                const struct clinfer_mla_prefill_branch_params *p)
{
    struct clf_caps caps = fixture_caps;
    caps.set = set;
    caps.gemm = gemm;
    caps.max_work_group = 64;
    caps.local_bytes = local_bytes;
    return clf_plan(&plan, &clf_op_mla_prefill_branch, p, &caps, CLF_MEASURE);
}

Test(plan_prefill, wrong_fields)
{
    const struct clinfer_mla_prefill_branch_params p = good_prefill();
    const struct breakage rows[] = {
        { { PREFILL(kv.head_size, 40) }, SHAPE, { "kv: head_size is 40", "24 + 8" } },
        { { PREFILL(q.shape[2], 7) }, SHAPE, { "q: axis 2 is 7", "N+R is 8" } },
        { { PREFILL(w_k.shape[0], 47) }, SHAPE, { "w_k: axis 0 is 47", "4 * 12" } },
        { { PREFILL(w_k.shape[1], 23) }, SHAPE, { "w_k: axis 1 is 23", "C is 24" } },
        { { PREFILL(w_uv.shape[0], 3) }, SHAPE, { "w_uv: axis 0 is 3", "H is 4" } },
        { { PREFILL(w_uv.dtype, CLINFER_F16) }, CLINFER_ERR_TYPE, { "w_uv", "w_k" } },
        { { PREFILL(output.shape[2], 11) }, SHAPE, { "output: axis 2 is 11", "V is 10" } },
        { { PREFILL(mask, 5) }, ARGUMENT, { "mask is 5", "0 to 4" } },
        { { PREFILL(mask, CLINFER_MASK_CHUNKED) }, ARGUMENT, { "local_window_size is 0" } },
        { { PREFILL(chunk_tokens, -1) }, ARGUMENT, { "chunk_tokens is -1" } },
        { { PREFILL(max_context, -1) }, ARGUMENT, { "max_context is -1" } },
        { { PREFILL(workspace_offset, 32) }, ARGUMENT, { "workspace_offset is 32", "64" } },
        { { PREFILL(w_k_scale.rank, 2), PREFILL(w_k_scale.dtype, CLINFER_F32),
            PREFILL(w_k_scale.shape[0], 4) },
          ARGUMENT,
          { "weight scales", "BF16" } },
        { { PREFILL(chunk_tokens, 0) }, CLINFER_OK, { NULL } },
        { { PREFILL(q.shape[2], 8), PREFILL(w_k.shape[0], 0), PREFILL(w_k.mem, 0) }, CLINFER_OK, { NULL } },
    };
    EXPECT(rows);
}

Test(plan_prefill, weight_scales)
{
    const struct clinfer_mla_prefill_branch_params p = good_prefill_fp8();
    const struct breakage rows[] = {
        { { PREFILL(w_k_scale.rank, 0) }, ARGUMENT, { "fp8 weights, but no w_k_scale" } },
        { { PREFILL(w_k_scale.shape[0], 5) }, SHAPE, { "w_k_scale: [5, 5], want [6, 5]" } },
        { { PREFILL(w_uv_scale.shape[1], 1) }, SHAPE, { "w_uv_scale: [1, 5], want [2, 5]" } },
        { { PREFILL(k_granularity, 0) }, ARGUMENT, { "k_granularity 0" } },
    };
    EXPECT(rows);
}

static void assert_kernels(const char *const *names, int count)
{
    cr_assert_eq(plan.num_launches, count, "%d launches", plan.num_launches);
    for (int i = 0; i < count; i++)
        cr_assert_str_eq(plan.launch[i].kernel, names[i]);
}

// All but the first are repeated, once a chunk of the 12 keys that the table reaches, or of fewer.
Test(plan_prefill, launches)
{
    static const char *const own[] = { "mla_cache_rows", "mla_chunk_rows", "matmul", "matmul",
                                       "mla_chunk_attention" };
    static const char *const clblast[] = { "mla_cache_rows", "mla_chunk_rows", "weights_f32",
                                           "clblast_sgemm",  "matmul_finish",  "weights_f32",
                                           "clblast_sgemm",  "matmul_finish",  "mla_chunk_attention" };
    static const struct {
        int64_t chunk, context;
        uint32_t times;
    } rows[] = { { 5, 0, 3 },  { 4, 0, 3 }, { 1, 0, 12 }, { 12, 0, 1 },
                 { 99, 0, 1 }, { 5, 5, 1 }, { 5, 6, 2 },  { 0, 0, 1 } };
    struct clinfer_mla_prefill_branch_params p = good_prefill();
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        p.chunk_tokens = rows[i].chunk;
        p.max_context = rows[i].context;
        cr_assert_eq(plan_with(CLINFER_SET_ROW, CLINFER_GEMM_OWN, 0, &p), CLINFER_OK, "%s", plan.error);
        assert_kernels(own, COUNT_OF(own));
        cr_assert_eq(plan.loop.first, 1);
        cr_assert_eq(plan.loop.count, 4);
        cr_assert_eq(plan.loop.times, rows[i].times, "row %zu: %u times", i, plan.loop.times);
    }
    cr_assert_eq(plan_with(CLINFER_SET_ROW, CLINFER_GEMM_CLBLAST, 0, &p), CLINFER_OK, "%s", plan.error);
    assert_kernels(clblast, COUNT_OF(clblast));
    cr_assert_eq(plan.loop.count, 8);
}

// Heads share the rows of a chunk: one product, of 2 requests' 5 keys with 4 heads' 12 and 10 rows.
Test(plan_prefill, products)
{
    struct clinfer_mla_prefill_branch_params p = good_prefill();
    cr_assert_eq(plan_with(CLINFER_SET_ROW, CLINFER_GEMM_CLBLAST, 0, &p), CLINFER_OK, "%s", plan.error);
    const struct clf_gemm *k = &plan.launch[3].gemm, *v = &plan.launch[6].gemm;
    cr_assert(k->m == 10 && k->n == 48 && k->k == 24 && k->batch == 1);
    cr_assert(v->m == 10 && v->n == 40 && v->k == 24 && v->batch == 1);
    cr_assert(k->x.at == v->x.at && k->x.row_stride == 24 && v->x.row_stride == 24);
    cr_assert(v->w.row_stride == 24 && v->y.row_stride == 40 && k->y.row_stride == 48);
    p.w_k.dtype = p.w_uv.dtype = CLINFER_F32; // in place where the heads' rows lie one after another
    cr_assert_eq(plan_with(CLINFER_SET_ROW, CLINFER_GEMM_CLBLAST, 0, &p), CLINFER_OK, "%s", plan.error);
    cr_assert_eq(plan.num_launches, 7);
    cr_assert_eq(plan.launch[4].gemm.w.mem, MEM(10));
    p.w_uv.stride[0] = 300;
    p.w_uv.stride[1] = 24;
    p.w_uv.stride[2] = 1;
    cr_assert_eq(plan_with(CLINFER_SET_ROW, CLINFER_GEMM_CLBLAST, 0, &p), CLINFER_OK, "%s", plan.error);
    cr_assert_eq(plan.num_launches, 8);
    cr_assert_null(plan.launch[5].gemm.w.mem);
}

// Tiles that fit local memory, or an error that says both numbers.
Test(plan_prefill, local_memory)
{
    struct clinfer_mla_prefill_branch_params p = good_prefill();
    p.q = clinfer_tensor_3d(MEM(6), CLINFER_BF16, 5, 16, 192);
    p.kv_norm_gamma = clinfer_tensor_1d(MEM(7), CLINFER_F32, 512);
    p.freqs_cis = clinfer_tensor_2d(MEM(8), CLINFER_F32, 32, 64);
    p.w_k = clinfer_tensor_2d(MEM(9), CLINFER_BF16, 2048, 512);
    p.w_uv = clinfer_tensor_3d(MEM(10), CLINFER_BF16, 16, 128, 512);
    p.output = clinfer_tensor_3d(MEM(11), CLINFER_BF16, 5, 16, 128);
    p.kv.head_size = 576;
    uint64_t least = 0;
    for (uint64_t bytes = 64 << 10; bytes; bytes -= 1024) {
        const clinfer_status st = plan_with(CLINFER_SET_GROUP, CLINFER_GEMM_OWN, bytes, &p);
        cr_assert(!st || st == CLINFER_ERR_UNSUPPORTED, "%s", plan.error);
        if (!st)
            least = bytes;
        else
            cr_assert(strstr(plan.error, "bytes of local memory, the device has"), "%s", plan.error);
    }
    cr_assert(least > 4096 && least <= 16 << 10, "%d bytes are enough", (int) least);
}

// The shape of DeepSeek-V3 in both sets: few new tokens are cheaper with absorbed weights, many without; and
// once they are, more tokens do not change it back.
Test(plan_prefill, cheaper_branch)
{
    static const struct {
        int64_t requests, tokens, context;
        bool prefill;
    } rows[] = { { 1, 1, 4096, false },   { 8, 8, 4096, false },   { 64, 64, 1000, false },
                 { 1, 4, 100000, false }, { 1, 2048, 2048, true }, { 1, 4096, 100000, true },
                 { 4, 8192, 2048, true }, { 1, 512, 512, true },   { 64, 128, 100000, false },
                 { 0, 0, 0, false } };
    for (int set = CLINFER_SET_ROW; set <= CLINFER_SET_GROUP; set++) {
        struct clf_caps caps = fixture_caps;
        caps.set = (clinfer_kernel_set) set;
        for (size_t i = 0; i < COUNT_OF(rows); i++) {
            const struct clinfer_mla_shape s = {
                128, 128, 64, 512, 128, rows[i].requests, rows[i].tokens, rows[i].context
            };
            cr_assert_eq(clf_tune_mla_prefill(&caps, &s), rows[i].prefill, "set %d, row %zu", set, i);
        }
        for (int64_t context = 64; context <= 1 << 17; context *= 4) {
            struct clinfer_mla_shape s = { 16, 128, 64, 512, 128, 2, 0, context };
            bool last = false;
            for (s.new_tokens = 1; s.new_tokens <= 1 << 14; s.new_tokens *= 2) {
                const bool now = clf_tune_mla_prefill(&caps, &s);
                cr_assert(now || !last, "%d tokens of %d keys", (int) s.new_tokens, (int) context);
                last = now;
            }
            cr_assert(last);
        }
    }
}
