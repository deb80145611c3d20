// SPDX-License-Identifier: Apache-2.0
// Where a pool's rows lie: every element and scale of every layer has a place of its own in the buffers, the
// operations take the views, and sizes that do not fit are errors.
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv.h"
#include "kv_pool_layout.h"

TestSuite(kv_pool_layout, .timeout = 30);

static const struct clinfer_kv_pool_params shapes[] = {
    { 0, 3, 2, 5, 0, 4, CLINFER_BF16, 0, 0, 7, 0 },              // both planes in one view
    { 0, 3, 2, 5, 3, 4, CLINFER_BF16, 0, 0, 7, 0 },              // V narrower
    { 0, 3, 2, 5, 0, 4, CLINFER_F32, CLINFER_F8_E4M3, 2, 7, 0 }, // V in fp8, with scales
    { 0, 3, 2, 5, 4, 4, CLINFER_F8_E4M3, CLINFER_F16, 3, 7, 0 }, // K in fp8, with scales
    { 0, 2, 3, 7, 0, 3, CLINFER_F8_E4M3, 0, 4, 5, 0 },           // both in fp8, with scales
    { 0, 2, 3, 7, 6, 3, CLINFER_F8_E4M3, 0, 4, 5, 0 },           // ... of two sizes
    { 1, 3, 0, 9, 0, 4, CLINFER_F8_E4M3, 0, 4, 6, 0 },           // MLA
    { 0, 0, 1, 1, 0, 1, CLINFER_F8_E4M3, 0, 0, 1, 0 },           // one byte a plane
};
enum { SHAPES = sizeof shapes / sizeof shapes[0] };

static struct clf_pool_layout layout_of(const struct clinfer_kv_pool_params *p, uint64_t max_alloc)
{
    struct clf_pool_layout l;
    char error[CLF_ERROR_SIZE] = "";
    cr_assert_eq(clf_pool_layout(&l, p, max_alloc, error), CLINFER_OK, "%s", error);
    return l;
}

// Marks `size` bytes of a buffer, which nobody may have marked.
static void mark(unsigned char *used, size_t bytes, size_t at, size_t size)
{
    cr_assert(at % size == 0 && at + size <= bytes, "byte %zu of %zu", at + size, bytes);
    for (size_t i = 0; i < size; i++)
        cr_assert_eq(used[at + i]++, 0, "byte %zu belongs to two", at + i);
}

// All elements of one plane of a view, by the formula of kv_cache.h.
static size_t mark_plane(unsigned char *used, size_t bytes, const clinfer_kv_cache *kv, int plane)
{
    struct clf_kv_layout l;
    size_t total = 0;
    cr_assert(clf_kv_resolve(kv, &l));
    const int64_t rows = kv->page_size * kv->num_heads;
    for (int64_t p = 0; p < kv->num_pages; p++) {
        const size_t size = clinfer_dtype_size(kv->dtype);
        for (int64_t i = 0; i < rows * kv->head_size; i++, total += size)
            mark(used, bytes, kv->offset + (size_t) (p * l.page + plane * l.plane + i) * size, size);
        for (int64_t i = 0; i < rows * l.groups; i++, total += 4)
            mark(used, bytes,
                 kv->scales_offset + (size_t) (p * l.scales_page + plane * l.scales_plane + i) * 4, 4);
    }
    return total;
}

static bool same_plane(const clinfer_kv_cache *both, const clinfer_kv_cache *v)
{
    const size_t size = clinfer_dtype_size(both->dtype);
    return v->offset == both->offset + (size_t) both->kv_stride * size &&
           v->page_stride == both->page_stride && v->dtype == both->dtype &&
           v->head_size == both->head_size && v->planes == 1 &&
           (!both->scale_group ||
            (v->scales_offset == both->scales_offset + (size_t) both->scales_kv_stride * 4 &&
             v->scales_page_stride == both->scales_page_stride));
}

static void check_shape(const struct clinfer_kv_pool_params *p, bool split)
{
    struct clf_pool_layout l = layout_of(p, 0);
    const size_t one = l.buffer_bytes;
    const int64_t layers = p->num_layers ? p->num_layers : 1;
    if (split)
        l = layout_of(p, one - 1);
    cr_assert_eq(l.num_buffers, split ? layers : 1);
    unsigned char *used = calloc((size_t) l.num_buffers, l.buffer_bytes);
    size_t total = 0;
    for (int64_t layer = 0; layer < layers; layer++) {
        int64_t at, at_v;
        const clinfer_kv_cache k = clf_pool_view(&l, layer, false, &at),
                               v = clf_pool_view(&l, layer, true, &at_v);
        const bool both = !p->mla && (!p->v_head_size || p->v_head_size == p->head_size) &&
                          (!p->v_dtype || p->v_dtype == p->dtype);
        cr_assert_eq(k.planes, both ? 2 : 1);
        cr_assert_eq(k.num_layers, 1);
        cr_assert(at < l.num_buffers);
        total += mark_plane(used + (size_t) at * l.buffer_bytes, l.buffer_bytes, &k, 0);
        if (p->mla) {
            cr_assert_eq(v.page_size, 0);
            continue;
        }
        cr_assert_eq(at, at_v);
        cr_assert_eq(v.head_size, p->v_head_size ? p->v_head_size : p->head_size);
        cr_assert_eq(v.dtype, p->v_dtype ? p->v_dtype : p->dtype);
        cr_assert(!both || same_plane(&k, &v), "V's view is not the second plane");
        total += mark_plane(used + (size_t) at * l.buffer_bytes, l.buffer_bytes, &v, 0);
    }
    cr_assert_eq(total, l.page_bytes * (uint64_t) p->num_pages, "%zu bytes of %" PRIu64, total,
                 l.page_bytes * (uint64_t) p->num_pages);
    cr_assert((size_t) l.num_buffers * l.buffer_bytes - total < 512 * (size_t) l.num_buffers,
              "too much between");
    free(used);
}

Test(kv_pool_layout, each_element_has_its_place)
{
    for (int i = 0; i < SHAPES; i++) {
        check_shape(&shapes[i], false);
        if (shapes[i].num_layers > 1)
            check_shape(&shapes[i], true);
    }
}

Test(kv_pool_layout, layers_that_are_none)
{
    struct clf_pool_layout l = layout_of(&shapes[0], 0);
    int64_t at;
    cr_assert_eq(clf_pool_view(&l, -1, false, &at).page_size, 0);
    cr_assert_eq(clf_pool_view(&l, 3, false, &at).page_size, 0);
    cr_assert_eq(clf_pool_view(&l, 3, true, &at).page_size, 0);
    cr_assert_eq(clf_pool_view(&l, INT64_MIN, true, &at).page_size, 0);
}

// The most pages that fit: theirs do, one more does not, in one buffer and in one a layer.
Test(kv_pool_layout, budgets)
{
    for (int i = 0; i < SHAPES; i++)
        for (uint64_t max_alloc = 0; max_alloc <= 2048; max_alloc += 2048)
            for (uint64_t budget = 1; budget < 5000; budget += 97) {
                struct clinfer_kv_pool_params p = shapes[i];
                struct clf_pool_layout l, more;
                char error[CLF_ERROR_SIZE];
                p.num_pages = 0;
                p.max_bytes = budget;
                const clinfer_status st = clf_pool_layout(&l, &p, max_alloc, error);
                p.max_bytes = 0;
                p.num_pages = st ? 1 : l.p.num_pages + 1;
                if (st == CLINFER_ERR_UNSUPPORTED)
                    continue;
                cr_assert(!st || st == CLINFER_ERR_ARGUMENT, "%s", error);
                cr_assert(st || (uint64_t) l.num_buffers * l.buffer_bytes <= budget);
                cr_assert(!st || strstr(error, "one page takes"), "%s", error);
                const clinfer_status next = clf_pool_layout(&more, &p, max_alloc, error);
                cr_assert(next || (uint64_t) more.num_buffers * more.buffer_bytes > budget,
                          "shape %d: %" PRId64 " pages fit into %" PRIu64 " bytes too", i, p.num_pages,
                          budget);
            }
}

static void expect(struct clinfer_kv_pool_params p, uint64_t max_alloc, clinfer_status status, const char *a,
                   const char *b)
{
    struct clf_pool_layout l;
    char error[CLF_ERROR_SIZE] = "";
    cr_assert_eq(clf_pool_layout(&l, &p, max_alloc, error), status, "%s: %s", a, error);
    cr_assert(strstr(error, a) && strstr(error, b), "want \"%s\" and \"%s\": %s", a, b, error);
}

#define WITH(field, value) (p = shapes[0], p.field = (value), p)

Test(kv_pool_layout, errors_name_the_field_and_both_numbers)
{
    struct clinfer_kv_pool_params p;
    const clinfer_status shape = CLINFER_ERR_SHAPE, argument = CLINFER_ERR_ARGUMENT, type = CLINFER_ERR_TYPE;
    expect(WITH(num_layers, -1), 0, shape, "num_layers is -1", "1 to 2147483647");
    expect(WITH(num_heads, 0), 0, shape, "num_heads is 0", "1 to");
    expect(WITH(head_size, 0), 0, shape, "head_size is 0", "1 to");
    expect(WITH(v_head_size, -3), 0, shape, "v_head_size is -3", "1 to");
    expect(WITH(page_size, 0), 0, shape, "page_size is 0", "1 to");
    expect(WITH(scale_group, -1), 0, shape, "scale_group is -1", "0 to");
    expect(WITH(num_pages, INT64_C(1) << 31), 0, shape, "num_pages is 2147483648", "2147483647");
    expect(WITH(num_pages, -1), 0, shape, "num_pages is -1", "0 to");
    expect(WITH(num_pages, 0), 0, argument, "num_pages is 0", "max_bytes 0");
    expect(WITH(max_bytes, 9), 0, argument, "num_pages is 7", "max_bytes 9");
    expect(WITH(dtype, CLINFER_U32), 0, type, "dtype is U32", "F8_E4M3");
    expect(WITH(dtype, (clinfer_dtype) 77), 0, type, "dtype is ? (77)", "F8_E4M3");
    expect(WITH(v_dtype, CLINFER_U32), 0, type, "v_dtype is U32", "F8_E4M3");
    expect(WITH(scale_group, 4), 0, type, "scale_group is 4", "BF16");
    expect(WITH(mla, 1), 0, shape, "num_heads is 2", "1 to 1");
    p.num_heads = 1;
    p.v_head_size = 4;
    expect(p, 0, argument, "MLA has no V", "v_head_size is 4");
}

Test(kv_pool_layout, sizes_past_2_63)
{
    struct clinfer_kv_pool_params p = { .num_layers = INT32_MAX,
                                        .num_heads = INT32_MAX,
                                        .head_size = INT32_MAX,
                                        .page_size = INT32_MAX,
                                        .dtype = CLINFER_F32,
                                        .num_pages = INT32_MAX };
    expect(p, 0, CLINFER_ERR_SHAPE, "passes 2^63 bytes", "2147483647");
    p.page_size = p.num_layers = 1;
    p.head_size = 1 << 20;
    expect(p, 0, CLINFER_ERR_SHAPE, "pass 2^63 bytes", "2147483647 pages");
    p.num_pages = 0;
    p.max_bytes = UINT64_MAX;
    expect(p, 1 << 20, CLINFER_ERR_UNSUPPORTED, "bytes a layer", "1048576");
}

Test(kv_pool_layout, one_layer_past_the_largest_allocation)
{
    struct clinfer_kv_pool_params p = shapes[0]; // 7 pages of 2 * 2 * 5 * 4 * 2 bytes a layer
    expect(p, 1119, CLINFER_ERR_UNSUPPORTED, "7 pages take 1120 bytes a layer", "at most 1119");
    cr_assert_eq(layout_of(&p, 1120).num_buffers, 3);
    cr_assert_eq(layout_of(&p, 3359).num_buffers, 3);
    cr_assert_eq(layout_of(&p, 3360).num_buffers, 1);
}
