// SPDX-License-Identifier: Apache-2.0
// paged_attention: what is refused, tiles, splits and their workspace.
#include <criterion/criterion.h>
#include <string.h>

#include "plan_fixture.h"

TestSuite(plan_attention, .timeout = 30);

#define AT(field, v)     SET(clinfer_paged_attention_params, field, v)
#define MEM_AT(field, n) AT(field, (uintptr_t) MEM(n))
#define SHAPE            CLINFER_ERR_SHAPE
#define TYPE             CLINFER_ERR_TYPE
#define ARGUMENT         CLINFER_ERR_ARGUMENT
#define ALIAS            CLINFER_ERR_ALIAS

static int64_t bits_of(float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

Test(plan_attention, refusals)
{
    const struct clinfer_paged_attention_params p = good_attention();
    const struct breakage rows[] = {
        { { AT(q.rank, 2) }, SHAPE, { "q: want rank 3", "rank 2" } },
        { { AT(q.shape[2], 15) }, SHAPE, { "q: axis 2 is 15", "D is 16" } },
        { { AT(q.shape[1], 3), AT(output.shape[1], 3), AT(lse.shape[1], 3) },
          SHAPE,
          { "q: axis 1 is 3", "multiple of the 2 KV heads" } },
        { { AT(q.dtype, CLINFER_F8_E4M3) }, CLINFER_OK, { NULL } },
        { { AT(q.dtype, CLINFER_U32) }, TYPE, { "q: type U32" } },
        { { AT(q.dtype, CLINFER_F32) }, TYPE, { "output: type BF16, want F32 with q of type F32" } },
        { { AT(q.dtype, CLINFER_F8_E4M3), AT(output.dtype, CLINFER_F32) },
          TYPE,
          { "output: type F32, want BF16" } },
        { { AT(output.shape[0], 6) }, SHAPE, { "output: axis 0 is 6", "T is 5" } },
        { { AT(output.shape[2], 8) }, SHAPE, { "output: axis 2 is 8, but head_size of kv is 16" } },
        { { AT(output.mem, 0) }, ARGUMENT, { "output: no buffer", "320 elements" } },
        { { AT(lse.rank, 0) }, CLINFER_OK, { NULL } },
        { { AT(lse.shape[1], 2) }, SHAPE, { "lse: axis 1 is 2", "H is 4" } },
        { { AT(lse.dtype, CLINFER_BF16) }, TYPE, { "lse: type BF16" } },
        { { AT(sinks.rank, 1), AT(sinks.shape[0], 3) }, SHAPE, { "sinks: axis 0 is 3", "H is 4" } },
        { { AT(kv.planes, 1) }, SHAPE, { "kv: planes is 1", "want 2, or a kv_v" } },
        { { AT(kv.head_size, 1 << 15), AT(q.shape[2], 1 << 15), AT(output.shape[2], 1 << 15) },
          CLINFER_ERR_UNSUPPORTED,
          { "kv: head_size is 32768", "at most 16384" } },
        { { AT(mask, 5) }, ARGUMENT, { "mask is 5", "0 to 4" } },
        { { AT(mask, CLINFER_MASK_CHUNKED) }, ARGUMENT, { "local_window_size is 0", "1 to" } },
        { { AT(mask, CLINFER_MASK_CHUNKED), AT(local_window_size, 1) }, CLINFER_OK, { NULL } },
        { { AT(score_mod, 2) }, ARGUMENT, { "score_mod is 2" } },
        { { AT(softcap, bits_of(-1)) }, ARGUMENT, { "softcap is -1" } },
        { { AT(softcap, 0x7fc00000) }, ARGUMENT, { "softcap is nan" } },
        { { AT(softcap, 0x7f800000) }, ARGUMENT, { "softcap is inf" } },
        { { AT(num_splits, -1) }, ARGUMENT, { "num_splits is -1", "65535" } },
        { { AT(max_context, -1) }, ARGUMENT, { "max_context is -1" } },
        { { MEM_AT(workspace, 9), AT(workspace_offset, 32) }, ARGUMENT, { "workspace_offset is 32", "64" } },
        { { MEM_AT(output.mem, 6) }, ALIAS, { "output", "q" } },
        { { MEM_AT(output.mem, 1) }, ALIAS, { "output", "kv" } },
        { { MEM_AT(lse.mem, 7) }, ALIAS, { "lse", "output" } },
    };
    expect_breakages(&clf_op_paged_attention, &p, sizeof p, rows, COUNT_OF(rows));
}

static struct clf_plan plan;

static const struct clf_plan *plan_of(const struct clinfer_paged_attention_params *p, clinfer_kernel_set set,
                                      unsigned units)
{
    struct clf_caps caps = fixture_caps;
    caps.set = set;
    caps.compute_units = units;
    caps.max_work_group = 256;
    caps.local_bytes = 1 << 16;
    cr_assert_eq(clf_plan(&plan, &clf_op_paged_attention, p, &caps, CLF_COMPILE), CLINFER_OK, "%s",
                 plan.error);
    return &plan;
}

static struct clinfer_paged_attention_params shaped(int64_t T, int64_t B, int64_t H, int64_t K, int64_t D)
{
    struct clinfer_paged_attention_params p = good_attention();
    p.q = clinfer_tensor_3d(NULL, CLINFER_BF16, T, H, D);
    p.output = clinfer_tensor_3d(NULL, CLINFER_BF16, T, H, D);
    p.lse = clinfer_tensor_2d(NULL, CLINFER_F32, T, H);
    p.kv.num_heads = K;
    p.kv.head_size = D;
    p.batch.input_row_offsets.shape[0] = B + 1;
    p.batch.cache_lengths.shape[0] = p.batch.lookup_table.shape[0] = B;
    p.max_context = 4096;
    return p;
}

static int64_t value_of(const struct clf_plan *of, const char *name)
{
    for (int i = 0; i < of->launch[0].spec.num_defs; i++)
        if (!strcmp(of->launch[0].spec.def[i].name, name))
            return of->launch[0].spec.def[i].value;
    cr_assert_fail("no %s", name);
    return 0;
}

// A workspace holds the parts of the splits, and what serves a number of tokens serves every smaller one.
// Tiles of keys, on which results depend, are those of one token.
Test(plan_attention, workspace_and_tiles)
{
    static const int64_t tokens[] = { 1, 2, 3, 7, 16, 17, 64, 100, 512, 2048, 10000 },
                         requests[] = { 1, 5, 64 };
    static const int64_t heads[][2] = { { 32, 8 }, { 9, 3 }, { 4, 4 }, { 200, 1 } };
    for (int set = CLINFER_SET_ROW; set <= CLINFER_SET_GROUP; set++)
        for (unsigned units = 1; units <= 128; units *= 8)
            for (size_t h = 0; h < COUNT_OF(heads); h++) {
                const int64_t H = heads[h][0], K = heads[h][1];
                struct clinfer_paged_attention_params p = shaped(1, 1, H, K, 128);
                const int64_t tile = value_of(plan_of(&p, (clinfer_kernel_set) set, units), "TILE");
                size_t least = 0;
                for (size_t t = 0; t < COUNT_OF(tokens); t++) {
                    size_t most = least;
                    for (size_t b = 0; b < COUNT_OF(requests); b++) {
                        p = shaped(tokens[t], requests[b], H, K, 128);
                        const struct clf_plan *made = plan_of(&p, (clinfer_kernel_set) set, units);
                        const struct clf_launch *l = &made->launch[0];
                        const int64_t splits = (int64_t) (l->global[2] / l->local[2]),
                                      rows = value_of(made, "HEAD_BLOCK");
                        const size_t parts = splits > 1 ? (size_t) (tokens[t] * splits * H) : 0;
                        cr_assert_geq(made->workspace, parts * (128 * 4 + 8), "%lld tokens, %lld splits",
                                      (long long) tokens[t], (long long) splits);
                        cr_assert_geq(made->workspace, least);
                        cr_assert_eq(value_of(made, "TILE"), tile);
                        cr_assert(rows * value_of(made, "TOKENS") <= 128);
                        most = made->workspace > most ? made->workspace : most;
                    }
                    least = most;
                }
            }
}

// A CPU's item takes several KV heads of a step with one token a request, as long as all cores have items.
Test(plan_attention, kv_heads_of_an_item)
{
    static const struct {
        int64_t T, B;
        unsigned units;
        size_t y; // of the grid
    } cases[] = { { 64, 64, 2, 1 }, { 1, 1, 2, 1 }, { 1, 1, 128, 8 }, { 2048, 1, 2, 8 }, { 64, 64, 128, 1 } };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct clinfer_paged_attention_params p = shaped(cases[i].T, cases[i].B, 32, 8, 128);
        const struct clf_launch *l = &plan_of(&p, CLINFER_SET_ROW, cases[i].units)->launch[0];
        cr_expect_eq(l->global[1], cases[i].y, "case %zu: %zu", i, l->global[1]);
        cr_expect_eq(l->global[0], (size_t) cases[i].T);
    }
}

// Heads too wide for a small local memory: the error has both numbers.
Test(plan_attention, local_memory)
{
    const struct clinfer_paged_attention_params p = shaped(5, 2, 4, 2, 16384);
    struct clf_caps caps = fixture_caps;
    caps.set = CLINFER_SET_GROUP;
    caps.max_work_group = 256;
    caps.local_bytes = 1 << 16;
    cr_assert_eq(clf_plan(&plan, &clf_op_paged_attention, &p, &caps, CLF_COMPILE), CLINFER_ERR_UNSUPPORTED);
    cr_assert(strstr(plan.error, "paged_attention takes") && strstr(plan.error, "the device has 65536"), "%s",
              plan.error);
}
