// SPDX-License-Identifier: Apache-2.0
// The paged cache as every op sees it: its checks, and the arguments of cl/lib/paged.clh.
#include "kv.h"
#include "tune.h"
#include "validate.h"
#include <inttypes.h>

static bool strides_of(int64_t row, const struct clf_kv_layout *l, int64_t given_layer, int64_t given_plane,
                       int64_t given_page, int64_t *layer, int64_t *plane, int64_t *page)
{
    *layer = given_layer ? given_layer : row;
    *plane = given_plane;
    *page = given_page;
    return !((!given_plane && __builtin_mul_overflow(l->layers, *layer, plane)) ||
             (!given_page && __builtin_mul_overflow(l->planes, *plane, page)));
}

bool clf_kv_resolve(const clinfer_kv_cache *kv, struct clf_kv_layout *l)
{
    int64_t heads;
    *l = (struct clf_kv_layout){ .planes = kv->planes ? kv->planes : 2,
                                 .layers = kv->num_layers ? kv->num_layers : 1,
                                 .groups = clf_scale_groups(kv) };
    return !__builtin_mul_overflow(kv->page_size, kv->num_heads, &heads) &&
           heads <= INT64_MAX / (kv->head_size + 1) &&
           strides_of(heads * kv->head_size, l, kv->layer_stride, kv->kv_stride, kv->page_stride, &l->layer,
                      &l->plane, &l->page) &&
           strides_of(heads * l->groups, l, kv->scales_layer_stride, kv->scales_kv_stride,
                      kv->scales_page_stride, &l->scales_layer, &l->scales_plane, &l->scales_page);
}

struct step {
    int64_t count, stride;
};

// Elements from the first to past the last of `row` elements repeated in steps, whatever their order; -1
// where repetitions would overlap or the product does not fit.
static int64_t extent_of(int64_t row, const struct step *given, int num_steps)
{
    struct step s[3];
    int64_t n = row;
    for (int i = 0; i < num_steps; i++) { // by stride, smallest first
        int j = i;
        for (; j > 0 && s[j - 1].stride > given[i].stride; j--)
            s[j] = s[j - 1];
        s[j] = given[i];
    }
    for (int i = 0; i < num_steps; i++) {
        int64_t step;
        if (s[i].stride < 0 || (s[i].count > 1 && s[i].stride < n) ||
            __builtin_mul_overflow(s[i].count - 1, s[i].stride, &step) || __builtin_add_overflow(n, step, &n))
            return -1;
    }
    return n;
}

// The view of blocks or scales: `row` elements a plane and layer of a page. Checked also in a cache without
// pages, since a layer's offset is a product of the same strides.
static clinfer_status add_view(struct clf_plan *plan, const clinfer_kv_cache *kv, const char *name,
                               cl_mem mem, size_t offset, size_t size, int64_t row,
                               const struct step steps[3])
{
    const int64_t page = extent_of(row, steps + 1, 2), all = extent_of(row, steps, 3);
    if (page < 0 || all < 0)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "%s: %" PRId64 " pages with strides page %" PRId64 ", kv %" PRId64 ", layer %" PRId64
                        " of %" PRId64 " elements overlap or pass 2^63",
                        name, kv->num_pages, steps[0].stride, steps[1].stride, steps[2].stride, row);
    clinfer_status st = clf_add_view(plan, name, mem, offset, kv->num_pages ? all : 0, size, true);
    if (!st && kv->num_pages > 1 && steps[0].stride >= page) { // pages with gaps, where others may lie
        plan->view[plan->num_views - 1].row_stride = (size_t) steps[0].stride * size;
        plan->view[plan->num_views - 1].row_size = (size_t) page * size;
    }
    return st;
}

// A view under the names that messages have for it.
struct named {
    const clinfer_kv_cache *kv;
    const char *name, *scales;
};

static clinfer_status check_fields(struct clf_plan *plan, const struct named *view, int64_t layer_idx)
{
    const clinfer_kv_cache *kv = view->kv;
    const struct {
        const char *name;
        int64_t value, least, most;
    } field[] = {
        { "num_pages", kv->num_pages, 0, UINT32_MAX },
        { "page_size", kv->page_size, 1, INT32_MAX },
        { "num_heads", kv->num_heads, 1, INT32_MAX },
        { "head_size", kv->head_size, 1, INT32_MAX },
        { "planes", kv->planes, 0, 2 },
        { "num_layers", kv->num_layers, 0, INT32_MAX },
        { "scale_group", kv->scale_group, 0, INT32_MAX },
    };
    for (size_t i = 0; i < sizeof field / sizeof field[0]; i++)
        if (field[i].value < field[i].least || field[i].value > field[i].most)
            return clf_fail(plan, CLINFER_ERR_SHAPE, "%s: %s is %" PRId64 ", want %" PRId64 " to %" PRId64,
                            view->name, field[i].name, field[i].value, field[i].least, field[i].most);
    const int64_t layers = kv->num_layers ? kv->num_layers : 1;
    if (layer_idx < 0 || layer_idx >= layers)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "layer_idx is %" PRId64 ", but %s has %" PRId64 " layers",
                        layer_idx, view->name, layers);
    if (plan->op->mla && (kv->planes != 1 || kv->num_heads != 1))
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "kv: an MLA cache has 1 plane and 1 head, got %d and %" PRId64,
                        kv->planes ? kv->planes : 2, kv->num_heads);
    return CLINFER_OK;
}

static clinfer_status check_types(struct clf_plan *plan, const struct named *view)
{
    const clinfer_kv_cache *kv = view->kv;
    const size_t size = clinfer_dtype_size(kv->dtype);
    if (!size || kv->dtype == CLINFER_U32 || kv->dtype == CLINFER_I8)
        return clf_fail(plan, CLINFER_ERR_TYPE, "%s: type %s (%d), want F32 F16 BF16 or F8_E4M3", view->name,
                        clinfer_dtype_str(kv->dtype), (int) kv->dtype);
    if (kv->scale_group && kv->dtype != CLINFER_F8_E4M3)
        return clf_fail(plan, CLINFER_ERR_TYPE,
                        "%s: scale_group is %" PRId64 ", but only F8_E4M3 has scales, not %s", view->name,
                        kv->scale_group, clinfer_dtype_str(kv->dtype));
    if (kv->offset % size)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT,
                        "%s: offset %zu is no multiple of the %zu bytes of an element", view->name,
                        kv->offset, size);
    if (kv->scale_group && kv->scales_offset % 4)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "%s: scales_offset %zu is no multiple of 4", view->name,
                        kv->scales_offset);
    return CLINFER_OK;
}

static clinfer_status add_views(struct clf_plan *plan, const struct named *view)
{
    const clinfer_kv_cache *kv = view->kv;
    struct clf_kv_layout l;
    if (!clf_kv_resolve(kv, &l))
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "%s: %" PRId64 " pages of %" PRId64 " tokens pass 2^63 elements", view->name,
                        kv->num_pages, kv->page_size);
    const int64_t pages = kv->num_pages ? kv->num_pages : 1, rows = kv->page_size * kv->num_heads;
    const struct step blocks[3] = { { pages, l.page }, { l.planes, l.plane }, { l.layers, l.layer } };
    const struct step scales[3] = { { pages, l.scales_page },
                                    { l.planes, l.scales_plane },
                                    { l.layers, l.scales_layer } };
    clinfer_status st = add_view(plan, kv, view->name, kv->mem, kv->offset, clinfer_dtype_size(kv->dtype),
                                 rows * kv->head_size, blocks);
    if (!st && kv->scale_group)
        st = add_view(plan, kv, view->scales, kv->scales, kv->scales_offset, 4, rows * l.groups, scales);
    return st;
}

static clinfer_status check_view(struct clf_plan *plan, const struct named *view, int64_t layer_idx)
{
    clinfer_status st = check_fields(plan, view, layer_idx);
    if (!st)
        st = check_types(plan, view);
    return st ? st : add_views(plan, view);
}

bool clf_kv_given(const clinfer_kv_cache *kv)
{
    return kv->mem || kv->dtype || kv->num_pages || kv->planes || kv->page_size || kv->num_heads ||
           kv->head_size;
}

static const clinfer_kv_cache *cache_of(const struct clf_plan *plan, const void *params)
{
    return (const clinfer_kv_cache *) ((const char *) params + plan->op->kv);
}

static const clinfer_kv_cache *v_cache_of(const struct clf_plan *plan, const void *params)
{
    return (const clinfer_kv_cache *) ((const char *) params + plan->op->kv_v);
}

// One lookup table serves K and V, so they have pages, slots and heads in common.
static clinfer_status check_v(struct clf_plan *plan, const void *params, int64_t layer_idx)
{
    const clinfer_kv_cache *k = cache_of(plan, params), *v = v_cache_of(plan, params);
    if (!plan->op->kv_v || !clf_kv_given(v))
        return CLINFER_OK;
    clinfer_status st = check_view(plan, &(struct named){ v, "kv_v", "kv_v scales" }, layer_idx);
    if (st)
        return st;
    if (v->planes != 1)
        return clf_fail(plan, CLINFER_ERR_SHAPE, "kv_v: planes is %d, want 1", v->planes);
    if (v->page_size != k->page_size)
        return clf_fail(plan, CLINFER_ERR_SHAPE, "kv_v: page_size is %" PRId64 ", but that of kv is %" PRId64,
                        v->page_size, k->page_size);
    if (v->num_heads != k->num_heads)
        return clf_fail(plan, CLINFER_ERR_SHAPE, "kv_v: num_heads is %" PRId64 ", but that of kv is %" PRId64,
                        v->num_heads, k->num_heads);
    if (v->num_pages < k->num_pages)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "kv_v: num_pages is %" PRId64 ", want at least the %" PRId64 " of kv", v->num_pages,
                        k->num_pages);
    return CLINFER_OK;
}

clinfer_status clf_kv_validate(struct clf_plan *plan, const void *params)
{
    const clinfer_kv_cache *kv = cache_of(plan, params);
    const int64_t layer_idx = *(const int64_t *) ((const char *) params + plan->op->layer_idx);
    clinfer_status st = check_view(plan, &(struct named){ kv, "kv", "kv scales" }, layer_idx);
    if (!st)
        st = check_v(plan, params, layer_idx);
    if (st)
        return st;
    static const struct clf_tensor_rule batch[] = {
        { "input_row_offsets", "B+1", offsetof(clinfer_kv_batch, input_row_offsets), CLF_U32, CLF_IN, NULL,
          NULL },
        { "cache_lengths", "B", offsetof(clinfer_kv_batch, cache_lengths), CLF_U32, CLF_IN, NULL, NULL },
        { "lookup_table", "B,M", offsetof(clinfer_kv_batch, lookup_table), CLF_U32, CLF_IN, NULL, NULL },
    };
    CLF_DIM(plan, 'P') = kv->num_pages;
    CLF_DIM(plan, 'S') = kv->page_size;
    CLF_DIM(plan, 'K') = kv->num_heads;
    CLF_DIM(plan, 'D') = kv->head_size;
    return clf_validate_tensors(plan, CLF_TENSORS(batch), (const char *) params + plan->op->batch);
}

static void define_view(struct clf_launch *l, const clinfer_kv_cache *kv)
{
    clf_define_type(l, "CACHE_T", kv->dtype);
    clf_define(l, "KV_HEADS", kv->num_heads);
    clf_define(l, "HEAD_SIZE", kv->head_size);
    clf_define(l, "SCALE_GROUP", kv->scale_group);
}

int64_t clf_scale_groups(const clinfer_kv_cache *kv)
{
    return kv->scale_group ? clf_blocks(kv->head_size, kv->scale_group) : 0;
}

uint64_t clf_staged_bytes(const struct clf_plan *plan, int64_t elements, int64_t groups)
{
    // f32 values, scale and inverse of a group, and a float an item for the sums.
    return 4 * (uint64_t) (elements + 2 * groups + clf_tune_group(plan->caps).items);
}

// The first plane of a view, or of the cache also its second: blocks and scales, as TENSOR2 takes them.
static void push_plane(struct clf_launch *l, const struct clf_plan *plan, const void *params,
                       const clinfer_kv_cache *kv, int plane)
{
    const int64_t layer = *(const int64_t *) ((const char *) params + plan->op->layer_idx);
    struct clf_kv_layout at;
    clf_kv_resolve(kv, &at);
    clf_push_mem(l, kv->mem);
    clf_push(l, (cl_ulong) (kv->offset / clinfer_dtype_size(kv->dtype)) +
                    (cl_ulong) (layer * at.layer + plane * at.plane));
    clf_push(l, (cl_ulong) at.page);
    clf_push_mem(l, kv->scale_group ? kv->scales : NULL);
    clf_push(l, (cl_ulong) (kv->scales_offset / 4) +
                    (cl_ulong) (layer * at.scales_layer + plane * at.scales_plane));
    clf_push(l, (cl_ulong) at.scales_page);
}

// Page ids past the cache's pages are faults of both planes.
static void push_view(struct clf_launch *l, const struct clf_plan *plan, const void *params,
                      const clinfer_kv_cache *kv, int plane)
{
    const struct clf_op *op = plan->op;
    const clinfer_kv_batch *batch = (const clinfer_kv_batch *) ((const char *) params + op->batch);

    clf_push(l, (cl_uint) CLF_DIM(plan, 'B'));
    clf_push(l, (cl_uint) CLF_DIM(plan, 'M'));
    clf_push(l, (cl_uint) kv->page_size);
    clf_push(l, (cl_uint) CLF_DIM(plan, 'P'));
    clf_push_tensor(l, &batch->input_row_offsets, 1);
    clf_push_tensor(l, &batch->cache_lengths, 1);
    clf_push_tensor(l, &batch->lookup_table, 2);
    push_plane(l, plan, params, kv, plane);
    clf_push_arg(l, (struct clf_arg){ CLF_ARG_FAULT, sizeof(cl_mem), { .mem = NULL } });
    for (cl_uint id = 0; id < CLF_NUM_OPS; id++)
        if (clf_ops[id] == op)
            clf_push(l, id);
}

void clf_define_paged(struct clf_launch *l, const struct clf_plan *plan, const void *params)
{
    define_view(l, cache_of(plan, params));
}

void clf_push_paged(struct clf_launch *l, const struct clf_plan *plan, const void *params)
{
    push_view(l, plan, params, cache_of(plan, params), 0);
}

static const clinfer_kv_cache *values_of(const struct clf_plan *plan, const void *params, int *plane)
{
    const clinfer_kv_cache *v = v_cache_of(plan, params);
    *plane = clf_kv_given(v) ? 0 : 1;
    return clf_kv_given(v) ? v : cache_of(plan, params);
}

void clf_define_paged_v(struct clf_launch *l, const struct clf_plan *plan, const void *params)
{
    int plane;
    define_view(l, values_of(plan, params, &plane));
}

void clf_push_paged_v(struct clf_launch *l, const struct clf_plan *plan, const void *params)
{
    int plane;
    const clinfer_kv_cache *v = values_of(plan, params, &plane);
    push_view(l, plan, params, v, plane);
}

void clf_define_values(struct clf_launch *l, const struct clf_plan *plan, const void *params)
{
    int plane;
    const clinfer_kv_cache *v = values_of(plan, params, &plane);
    clf_define_type(l, "VALUE_T", v->dtype);
    clf_define(l, "VALUE_SIZE", v->head_size);
    clf_define(l, "VALUE_GROUP", v->scale_group);
}

void clf_push_values(struct clf_launch *l, const struct clf_plan *plan, const void *params)
{
    int plane;
    const clinfer_kv_cache *v = values_of(plan, params, &plane);
    push_plane(l, plan, params, v, plane);
}

void clf_push_plane_strides(struct clf_launch *l, const struct clf_plan *plan, const void *params)
{
    struct clf_kv_layout at;
    clf_kv_resolve(cache_of(plan, params), &at);
    clf_push(l, (cl_ulong) at.plane);
    clf_push(l, (cl_ulong) at.scales_plane);
}
