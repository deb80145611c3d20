// SPDX-License-Identifier: Apache-2.0
// kv_store, and V's own view of the cache, which other ops may have too.
#include <criterion/criterion.h>

#include "plan_fixture.h"

TestSuite(plan_kv_store, .timeout = 30);

#define KV(field, v)     SET(clinfer_kv_store_params, field, v)
#define MEM_AT(field, n) KV(field, (uintptr_t) MEM(n))
#define SHAPE            CLINFER_ERR_SHAPE
#define TYPE             CLINFER_ERR_TYPE
#define ARGUMENT         CLINFER_ERR_ARGUMENT
#define ALIAS            CLINFER_ERR_ALIAS
#define EXPECT(p, rows)  expect_breakages(&clf_op_kv_store, &p, sizeof p, rows, COUNT_OF(rows))

// V in a buffer of its own: 8 pages, F16, Dv 24.
static struct clinfer_kv_store_params good_own(void)
{
    struct clinfer_kv_store_params p = good_kv_store();
    p.v.shape[2] = 24;
    p.kv_v = p.kv;
    p.kv_v.mem = MEM(8);
    p.kv_v.dtype = CLINFER_F16;
    p.kv_v.planes = 1;
    p.kv_v.num_pages = 8;
    p.kv_v.head_size = 24;
    return p;
}

Test(plan_kv_store, k_and_v)
{
    const struct clinfer_kv_store_params p = good_kv_store();
    const struct breakage rows[] = {
        { { KV(k.rank, 0) }, SHAPE, { "k: want rank 3", "rank 0" } },
        { { KV(k.shape[1], 4) }, SHAPE, { "k: axis 1 is 4", "K is 2" } },
        { { KV(k.shape[2], 15) }, SHAPE, { "k: axis 2 is 15", "D is 16" } },
        { { KV(k.dtype, CLINFER_F8_E4M3) }, TYPE, { "k: type F8_E4M3", "F32 F16 BF16" } },
        { { KV(v.rank, 2) }, SHAPE, { "v: want rank 3", "rank 2" } },
        { { KV(v.shape[0], 6) }, SHAPE, { "v: axis 0 is 6", "T is 5" } },
        { { KV(v.shape[1], 1) }, SHAPE, { "v: axis 1 is 1", "K is 2" } },
        { { KV(v.shape[2], 24) }, SHAPE, { "v: axis 2 is 24", "head_size of kv is 16" } },
        { { KV(v.dtype, CLINFER_U32) }, TYPE, { "v: type U32" } },
        { { KV(v.mem, 0) }, ARGUMENT, { "v: no buffer", "160 elements" } },
        { { KV(kv.planes, 1) }, SHAPE, { "v: kv has planes 1", "want 2, or a kv_v" } },
        { { KV(kv.planes, 1), KV(v.rank, 0) }, CLINFER_OK, { NULL } },
        { { KV(kv.planes, 0) }, CLINFER_OK, { NULL } },
        { { KV(layer_idx, 3) }, ARGUMENT, { "layer_idx is 3", "3 layers" } },
        { { KV(kv.head_size, 1 << 30), KV(k.shape[2], 1 << 30), KV(v.shape[2], 1 << 30) },
          CLINFER_ERR_UNSUPPORTED,
          { "kv: num_heads * head_size is 2147483648", "at most 1073741824" } },
        { { MEM_AT(v.mem, 6) }, CLINFER_OK, { NULL } }, // both are only read
        { { MEM_AT(k.mem, 1) }, ALIAS, { "k (bytes 0 to 640)", "kv (bytes 0 to 9216)" } },
        { { MEM_AT(v.mem, 1) }, ALIAS, { "v (bytes 0 to 640)", "kv (bytes 0 to 9216)" } },
        { { MEM_AT(batch.lookup_table.mem, 1) }, ALIAS, { "lookup_table", "kv" } },
    };
    EXPECT(p, rows);
}

Test(plan_kv_store, v_of_its_own)
{
    const struct clinfer_kv_store_params p = good_own();
    const struct breakage rows[] = {
        { { KV(v.shape[2], 16) }, SHAPE, { "v: axis 2 is 16", "head_size of kv_v is 24" } },
        { { KV(kv_v.planes, 2) }, SHAPE, { "kv_v: planes is 2", "want 1" } },
        { { KV(kv_v.planes, 0) }, SHAPE, { "kv_v: planes is 0", "want 1" } },
        { { KV(kv_v.page_size, 8) }, SHAPE, { "kv_v: page_size is 8", "kv is 4" } },
        { { KV(kv_v.page_size, 0) }, SHAPE, { "kv_v: page_size is 0", "1 to" } },
        { { KV(kv_v.num_heads, 3) }, SHAPE, { "kv_v: num_heads is 3", "kv is 2" } },
        { { KV(kv_v.num_pages, 5) }, SHAPE, { "kv_v: num_pages is 5", "at least the 6" } },
        { { KV(kv_v.num_pages, 6) }, CLINFER_OK, { NULL } },
        { { KV(kv_v.num_layers, 2) }, ARGUMENT, { "layer_idx is 2", "kv_v has 2 layers" } },
        { { KV(kv_v.num_layers, 5) }, CLINFER_OK, { NULL } },
        { { KV(kv_v.dtype, 0) }, TYPE, { "kv_v: type ? (0)" } },
        { { KV(kv_v.scale_group, 8) }, TYPE, { "kv_v: scale_group is 8", "F16" } },
        { { KV(kv_v.offset, 1) }, ARGUMENT, { "kv_v: offset 1", "2 bytes" } },
        { { KV(kv_v.mem, 0) }, ARGUMENT, { "kv_v: no buffer", "4608 elements" } },
        { { KV(kv_v.layer_stride, 7) }, SHAPE, { "kv_v: 8 pages", "layer 7" } },
        { { KV(kv_v.head_size, 1 << 30), KV(v.shape[2], 1 << 30) },
          CLINFER_ERR_UNSUPPORTED,
          { "kv_v: num_heads * head_size is 2147483648", "at most 1073741824" } },
        { { KV(kv.planes, 1) }, CLINFER_OK, { NULL } },
        { { KV(v.rank, 0) }, CLINFER_OK, { NULL } },
        { { MEM_AT(kv_v.mem, 1) }, ALIAS, { "kv_v (bytes 0 to 9216)", "kv (bytes 0 to 9216)" } },
        { { MEM_AT(v.mem, 8) }, ALIAS, { "v (bytes", "kv_v (bytes" } },
        { { MEM_AT(k.mem, 8) }, ALIAS, { "k (bytes", "kv_v (bytes" } },
    };
    EXPECT(p, rows);
}

// K and V of different size, page by page in one buffer: a page is 3 layers of S * K rows of 16, then of 24
// elements.
Test(plan_kv_store, one_buffer)
{
    struct clinfer_kv_store_params p = good_own();
    p.kv.planes = 1;
    p.kv_v.mem = p.kv.mem;
    p.kv_v.num_pages = 6;
    p.kv_v.offset = 3 * 4 * 2 * 16 * 2;
    p.kv.page_stride = p.kv_v.page_stride = 3 * 4 * 2 * (16 + 24);
    const struct breakage rows[] = {
        { { KV(kv_v.offset, 3 * 4 * 2 * 16 * 2 - 2) }, ALIAS, { "kv_v (bytes 766", "kv (bytes 0" } },
        { { KV(kv_v.page_stride, 962) }, ALIAS, { "kv_v", "kv" } },
    };
    EXPECT(p, rows);
}

// What the plans are: one launch for both planes where they are alike, else one for each.
Test(plan_kv_store, launches)
{
    static struct clf_plan plan;
    struct clinfer_kv_store_params p = good_kv_store();
    const struct {
        bool other_type, own, no_v;
        int launches;
        size_t planes; // of the first
    } cases[] = {
        { false, false, false, 1, 2 }, { true, false, false, 2, 1 }, { false, true, false, 2, 1 },
        { false, false, true, 1, 1 },  { false, true, true, 1, 1 },
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        p = cases[i].own ? good_own() : good_kv_store();
        p.v.dtype = cases[i].other_type ? CLINFER_BF16 : CLINFER_F32;
        p.v.rank = cases[i].no_v ? 0 : 3;
        cr_assert_eq(clf_plan(&plan, &clf_op_kv_store, &p, &fixture_caps, CLF_CALL), CLINFER_OK, "%s",
                     plan.error);
        cr_assert_eq(plan.num_launches, cases[i].launches, "case %zu: %d launches", i, plan.num_launches);
        cr_assert(plan.launch[0].global[0] == 5 && plan.launch[0].global[1] == cases[i].planes, "case %zu",
                  i);
    }
}
