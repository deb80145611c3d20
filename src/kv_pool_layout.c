// SPDX-License-Identifier: Apache-2.0
#include "kv_pool_layout.h"
#include "plan.h"
#include <inttypes.h>
#include <stdio.h>

enum { SECTION_ALIGN = 128 }; // bytes: the widest vector of OpenCL C

#define FAIL(status, ...) (snprintf(error, CLF_ERROR_SIZE, __VA_ARGS__), (status))

static clinfer_status check_fields(const struct clinfer_kv_pool_params *p, char *error)
{
    const struct {
        const char *name;
        int64_t value, least, most;
    } field[] = {
        { "num_layers", p->num_layers, 1, INT32_MAX },
        { "num_heads", p->num_heads, 1, p->mla ? 1 : INT32_MAX },
        { "head_size", p->head_size, 1, INT32_MAX },
        { "v_head_size", p->v_head_size, 1, INT32_MAX },
        { "page_size", p->page_size, 1, INT32_MAX },
        { "scale_group", p->scale_group, 0, INT32_MAX },
        { "num_pages", p->num_pages, 0, INT32_MAX },
    };
    for (size_t i = 0; i < sizeof field / sizeof field[0]; i++)
        if (field[i].value < field[i].least || field[i].value > field[i].most)
            return FAIL(CLINFER_ERR_SHAPE, "%s is %" PRId64 ", want %" PRId64 " to %" PRId64, field[i].name,
                        field[i].value, field[i].least, field[i].most);
    if (!p->num_pages == !p->max_bytes)
        return FAIL(CLINFER_ERR_ARGUMENT,
                    "num_pages is %" PRId64 " and max_bytes %" PRIu64 ", want one of them", p->num_pages,
                    p->max_bytes);
    if (p->mla && (p->v_head_size != p->head_size || p->v_dtype != p->dtype))
        return FAIL(CLINFER_ERR_ARGUMENT, "MLA has no V, but v_head_size is %" PRId64 " and v_dtype %s",
                    p->v_head_size, clinfer_dtype_str(p->v_dtype));
    return CLINFER_OK;
}

static clinfer_status check_types(const struct clinfer_kv_pool_params *p, char *error)
{
    const clinfer_dtype type[2] = { p->dtype, p->v_dtype };
    for (int i = 0; i < 2; i++)
        if (!clinfer_dtype_size(type[i]) || type[i] == CLINFER_U32 || type[i] == CLINFER_I8)
            return FAIL(CLINFER_ERR_TYPE, "%s is %s (%d), want F32 F16 BF16 or F8_E4M3",
                        i ? "v_dtype" : "dtype", clinfer_dtype_str(type[i]), (int) type[i]);
    if (p->scale_group && p->dtype != CLINFER_F8_E4M3 && p->v_dtype != CLINFER_F8_E4M3)
        return FAIL(CLINFER_ERR_TYPE,
                    "scale_group is %" PRId64 ", but only F8_E4M3 has scales, not %s and %s", p->scale_group,
                    clinfer_dtype_str(p->dtype), clinfer_dtype_str(p->v_dtype));
    return CLINFER_OK;
}

static bool alike(const struct clinfer_kv_pool_params *p)
{
    return p->head_size == p->v_head_size && p->dtype == p->v_dtype;
}

// Blocks and scales of one part: K, V or both.
static bool set_part(struct clf_pool_layout *l, int blocks, clinfer_dtype dtype, int64_t head_size,
                     int planes)
{
    struct clf_pool_section *b = &l->section[blocks], *s = &l->section[blocks + CLF_POOL_SCALES];
    const int64_t heads = l->p.page_size * l->p.num_heads; // below 2^62
    const bool scaled = l->p.scale_group && dtype == CLINFER_F8_E4M3;
    const int64_t groups = scaled ? clf_blocks(head_size, l->p.scale_group) : 0;
    b->size = clinfer_dtype_size(dtype);
    s->size = sizeof(cl_float);
    b->planes = s->planes = planes;
    return !__builtin_mul_overflow(heads, head_size, &b->row) &&
           !__builtin_mul_overflow(heads, groups, &s->row);
}

// Bytes of a buffer with `layers` layers of num_pages pages; places the sections. False past 2^63.
static bool buffer_bytes(struct clf_pool_layout *l, int64_t layers, int64_t num_pages, int64_t *bytes)
{
    int64_t at = 0;
    for (int i = 0; i < CLF_POOL_SECTIONS; i++) {
        struct clf_pool_section *s = &l->section[i];
        int64_t n;
        if (!s->row)
            continue;
        if (at > INT64_MAX - SECTION_ALIGN)
            return false;
        at = clf_blocks(at, SECTION_ALIGN) * SECTION_ALIGN;
        s->offset = (size_t) at;
        if (__builtin_mul_overflow(s->row, layers * s->planes, &n) ||
            __builtin_mul_overflow(n, (int64_t) s->size, &n) || __builtin_mul_overflow(n, num_pages, &n) ||
            __builtin_add_overflow(at, n, &at))
            return false;
    }
    *bytes = at;
    return true;
}

// One buffer where that may be allocated, else one a layer. *total: of all buffers; *bytes: of one.
static bool split(struct clf_pool_layout *l, int64_t num_pages, uint64_t max_alloc, int64_t *bytes,
                  int64_t *total)
{
    const uint64_t most = max_alloc && max_alloc < SIZE_MAX ? max_alloc : SIZE_MAX;
    l->num_buffers = 1;
    l->layers_each = l->p.num_layers;
    if (buffer_bytes(l, l->layers_each, num_pages, bytes) && (uint64_t) *bytes <= most) {
        *total = *bytes;
        return true;
    }
    l->num_buffers = l->p.num_layers;
    l->layers_each = 1;
    return buffer_bytes(l, 1, num_pages, bytes) && !__builtin_mul_overflow(*bytes, l->num_buffers, total);
}

// The most pages whose buffers fit into max_bytes: the total grows with them.
static int64_t pages_within(struct clf_pool_layout *l, uint64_t max_alloc)
{
    int64_t low = 0, high = INT32_MAX, bytes, total;
    while (low < high) {
        const int64_t middle = low + (high - low + 1) / 2;
        if (split(l, middle, max_alloc, &bytes, &total) && (uint64_t) total <= l->p.max_bytes)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static bool set_page_bytes(struct clf_pool_layout *l)
{
    uint64_t sum = 0;
    for (int i = 0; i < CLF_POOL_SECTIONS; i++) {
        const struct clf_pool_section *s = &l->section[i];
        uint64_t n;
        if (__builtin_mul_overflow((uint64_t) s->row, s->size, &n) ||
            __builtin_mul_overflow(n, (uint64_t) (l->p.num_layers * s->planes), &n) ||
            __builtin_add_overflow(sum, n, &sum))
            return false;
    }
    l->page_bytes = sum;
    return sum <= INT64_MAX;
}

static clinfer_status set_pages(struct clf_pool_layout *l, uint64_t max_alloc, char *error)
{
    int64_t bytes = 0, total = 0;
    if (l->p.max_bytes && !(l->p.num_pages = pages_within(l, max_alloc)))
        return FAIL(CLINFER_ERR_ARGUMENT, "max_bytes is %" PRIu64 ", but one page takes %" PRIu64 " bytes",
                    l->p.max_bytes, l->page_bytes);
    if (!split(l, l->p.num_pages, max_alloc, &bytes, &total))
        return FAIL(CLINFER_ERR_SHAPE, "%" PRId64 " pages of %" PRIu64 " bytes pass 2^63 bytes",
                    l->p.num_pages, l->page_bytes);
    if ((max_alloc && (uint64_t) bytes > max_alloc) || (uint64_t) bytes > SIZE_MAX)
        return FAIL(CLINFER_ERR_UNSUPPORTED,
                    "%" PRId64 " pages take %" PRId64
                    " bytes a layer, and the device allocates at most %" PRIu64 " at once",
                    l->p.num_pages, bytes, max_alloc);
    l->buffer_bytes = (size_t) bytes;
    return CLINFER_OK;
}

clinfer_status clf_pool_layout(struct clf_pool_layout *l, const struct clinfer_kv_pool_params *params,
                               uint64_t max_alloc, char *error)
{
    *l = (struct clf_pool_layout){ .p = *params };
    struct clinfer_kv_pool_params *p = &l->p;
    p->num_layers = p->num_layers ? p->num_layers : 1;
    p->num_heads = p->mla && !p->num_heads ? 1 : p->num_heads;
    p->v_head_size = p->v_head_size ? p->v_head_size : p->head_size;
    p->v_dtype = p->v_dtype ? p->v_dtype : p->dtype;
    clinfer_status st = check_fields(p, error);
    if (!st)
        st = check_types(p, error);
    if (st)
        return st;
    const bool one = p->mla || alike(p);
    bool fits = set_part(l, CLF_POOL_BLOCKS, p->dtype, p->head_size, p->mla || !one ? 1 : 2);
    if (!one)
        fits = set_part(l, CLF_POOL_V_BLOCKS, p->v_dtype, p->v_head_size, 1) && fits;
    if (!fits || !set_page_bytes(l))
        return FAIL(CLINFER_ERR_SHAPE,
                    "a page of %" PRId64 " tokens, %" PRId64 " heads of %" PRId64 " and %" PRId64
                    " elements, %" PRId64 " layers passes 2^63 bytes",
                    p->page_size, p->num_heads, p->head_size, p->v_head_size, p->num_layers);
    return set_pages(l, max_alloc, error);
}

clinfer_kv_cache clf_pool_view(const struct clf_pool_layout *l, int64_t layer, bool v, int64_t *buffer)
{
    const struct clinfer_kv_pool_params *p = &l->p;
    const bool apart = l->section[CLF_POOL_V_BLOCKS].row != 0;
    const struct clf_pool_section *b = &l->section[v && apart ? CLF_POOL_V_BLOCKS : CLF_POOL_BLOCKS];
    const struct clf_pool_section *s = b + CLF_POOL_SCALES;
    *buffer = 0;
    if (layer < 0 || layer >= p->num_layers || (v && p->mla))
        return (clinfer_kv_cache){ 0 };
    *buffer = layer / l->layers_each;
    // Elements to the layer in the first page, and to V's plane where it is one of two.
    const int64_t in = layer % l->layers_each, plane = v && !apart;
    const int64_t at = in + plane * l->layers_each;
    clinfer_kv_cache kv = { .offset = b->offset + (size_t) (at * b->row) * b->size,
                            .dtype = v ? p->v_dtype : p->dtype,
                            .num_pages = p->num_pages,
                            .planes = v ? 1 : b->planes,
                            .num_layers = 1,
                            .page_size = p->page_size,
                            .num_heads = p->num_heads,
                            .head_size = v ? p->v_head_size : p->head_size,
                            .page_stride = b->planes * l->layers_each * b->row,
                            .kv_stride = l->layers_each * b->row };
    if (s->row) {
        kv.scales_offset = s->offset + (size_t) (at * s->row) * s->size;
        kv.scale_group = p->scale_group;
        kv.scales_page_stride = s->planes * l->layers_each * s->row;
        kv.scales_kv_stride = l->layers_each * s->row;
    }
    return kv;
}

size_t clf_pool_at(const struct clf_pool_layout *l, int section, int64_t layer, int plane, int64_t page)
{
    const struct clf_pool_section *s = &l->section[section];
    const int64_t rows = (page * s->planes + plane) * l->layers_each + layer % l->layers_each;
    return s->offset + (size_t) (rows * s->row) * s->size;
}
