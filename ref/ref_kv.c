// SPDX-License-Identifier: Apache-2.0
#include "ref.h"

#include <math.h>
#include <stdlib.h>

static int64_t or_dense(int64_t stride, int64_t dense)
{
    return stride ? stride : dense;
}

struct ref_plane ref_plane_of(const clinfer_kv_cache *kv, int64_t layer, int plane)
{
    const int64_t planes = kv->planes ? kv->planes : 2, layers = kv->num_layers ? kv->num_layers : 1;
    const int64_t rows = kv->page_size * kv->num_heads;
    const int64_t by_layer = or_dense(kv->layer_stride, rows * kv->head_size);
    const int64_t by_kv = or_dense(kv->kv_stride, layers * by_layer);
    struct ref_plane p = { 0 };
    p.dtype = kv->dtype;
    p.num_pages = kv->num_pages;
    p.page_size = kv->page_size;
    p.num_heads = kv->num_heads;
    p.head_size = kv->head_size;
    p.page_stride = or_dense(kv->page_stride, planes * by_kv);
    p.blocks = (unsigned char *) kv->mem + kv->offset +
               (size_t) (layer * by_layer + plane * by_kv) * clinfer_dtype_size(kv->dtype);
    if (!kv->scale_group)
        return p;
    p.group = kv->scale_group;
    p.num_groups = (kv->head_size + p.group - 1) / p.group;
    const int64_t scales_by_layer = or_dense(kv->scales_layer_stride, rows * p.num_groups);
    const int64_t scales_by_kv = or_dense(kv->scales_kv_stride, layers * scales_by_layer);
    p.scales_page_stride = or_dense(kv->scales_page_stride, planes * scales_by_kv);
    p.scales = (unsigned char *) kv->scales + kv->scales_offset +
               (size_t) (layer * scales_by_layer + plane * scales_by_kv) * sizeof(float);
    return p;
}

int64_t ref_page(const clinfer_kv_batch *batch, const clinfer_kv_cache *kv, int64_t request, int64_t pos)
{
    const int64_t column = pos / kv->page_size;
    if (column >= batch->lookup_table.shape[1])
        return -1;
    const int64_t page = ref_u32(&batch->lookup_table, request, column);
    return page < kv->num_pages ? page : -1;
}

// The first request that ends past the token, by the bisection that the kernels use, so that tokens stand in
// the same place also when the offsets do not ascend. -1: padding.
static int64_t request_of(const clinfer_tensor *offsets, int64_t token)
{
    const int64_t requests = offsets->shape[0] - 1;
    int64_t low = 0, high = requests;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        if (ref_u32(offsets, middle + 1, 0) > token)
            high = middle;
        else
            low = middle + 1;
    }
    return low < requests && ref_u32(offsets, low, 0) <= token ? low : -1;
}

bool ref_token_at(const clinfer_kv_batch *batch, const clinfer_kv_cache *kv, int64_t total, int64_t token,
                  struct ref_token *out)
{
    out->request = token < total ? request_of(&batch->input_row_offsets, token) : -1;
    if (out->request < 0)
        return false;
    const int64_t first = ref_u32(&batch->input_row_offsets, out->request, 0);
    out->pos = (int64_t) ref_u32(&batch->cache_lengths, out->request, 0) + token - first;
    out->page = ref_page(batch, kv, out->request, out->pos);
    out->slot = out->pos % kv->page_size;
    return out->page >= 0;
}

static int64_t row_of(const struct ref_plane *p, int64_t slot, int64_t head)
{
    return slot * p->num_heads + head;
}

unsigned char *ref_head_at(const struct ref_plane *p, int64_t page, int64_t slot, int64_t head)
{
    const int64_t at = page * p->page_stride + row_of(p, slot, head) * p->head_size;
    return p->blocks + (size_t) at * clinfer_dtype_size(p->dtype);
}

static unsigned char *scales_at(const struct ref_plane *p, int64_t page, int64_t slot, int64_t head)
{
    const int64_t at = page * p->scales_page_stride + row_of(p, slot, head) * p->num_groups;
    return p->scales + (size_t) at * sizeof(float);
}

void ref_read_head(const struct ref_plane *plane, int64_t page, int64_t slot, int64_t head, double *x)
{
    const unsigned char *blocks = ref_head_at(plane, page, slot, head);
    for (int64_t d = 0; d < plane->head_size; d++) {
        x[d] = ref_load(blocks, plane->dtype, d);
        if (plane->scales)
            x[d] *= ref_load(scales_at(plane, page, slot, head), CLINFER_F32, d / plane->group);
    }
}

static void write_group(const struct ref_plane *plane, unsigned char *blocks, unsigned char *scales,
                        const double *x, int64_t g)
{
    const int64_t first = g * plane->group;
    const int64_t n = plane->head_size - first < plane->group ? plane->head_size - first : plane->group;
    double *codes = ref_alloc(n);
    float *values = (float *) ref_alloc(n);
    for (int64_t i = 0; i < n; i++)
        values[i] = (float) x[first + i];
    ref_store(scales, CLINFER_F32, g, ref_quantize_group(values, n, HUGE_VALF, codes));
    for (int64_t i = 0; i < n; i++)
        ref_store(blocks, plane->dtype, first + i, codes[i]);
    free(values);
    free(codes);
}

void ref_write_head(const struct ref_plane *plane, int64_t page, int64_t slot, int64_t head, const double *x,
                    int64_t first, int64_t count)
{
    unsigned char *blocks = ref_head_at(plane, page, slot, head);
    if (count < 1)
        return;
    if (!plane->scales) {
        for (int64_t d = first; d < first + count; d++)
            ref_store(blocks, plane->dtype, d, x[d]);
        return;
    }
    for (int64_t g = first / plane->group; g * plane->group < first + count; g++)
        write_group(plane, blocks, scales_at(plane, page, slot, head), x, g);
}
