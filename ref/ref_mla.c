// SPDX-License-Identifier: Apache-2.0
// What both branches of MLA share: the rows of a request, new rows, and projections.
#include "ref.h"

#include <stdlib.h>

// The bound on a group's largest value when the left side of a product with fp8 weights is quantised.
static const float scale_bound = 1200.0f;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

struct ref_rows ref_read_rows(const clinfer_kv_batch *batch, const clinfer_kv_cache *kv, int64_t layer,
                              int64_t request, int64_t most)
{
    const struct ref_plane plane = ref_plane_of(kv, layer, 0);
    struct ref_rows rows = { .n = least(ref_num_keys(batch, kv, request), most) };
    rows.row = ref_alloc(rows.n * plane.head_size);
    rows.there = calloc(rows.n ? (size_t) rows.n : 1, sizeof *rows.there);
    if (!rows.there)
        abort();
    for (int64_t k = 0; k < rows.n; k++) {
        const int64_t page = ref_page(batch, kv, request, k);
        rows.there[k] = page >= 0;
        if (rows.there[k])
            ref_read_head(&plane, page, k % kv->page_size, 0, rows.row + k * plane.head_size);
    }
    return rows;
}

void ref_free_rows(const struct ref_rows *rows)
{
    free(rows->row);
    free(rows->there);
}

void ref_mla_cache_row(const clinfer_kv_cache *kv, int64_t layer, const struct ref_token *at,
                       const clinfer_tensor *gamma, double epsilon, const double *table)
{
    const struct ref_plane rows = ref_plane_of(kv, layer, 0);
    const int64_t latent = gamma->shape[0];
    double *x = ref_alloc(kv->head_size);
    ref_read_head(&rows, at->page, at->slot, 0, x);
    ref_rms_norm_row(x, latent, gamma, epsilon, 0, CLINFER_CAST_THEN_MULTIPLY, x);
    ref_rotate(x + latent, table, kv->head_size - latent, true);
    ref_write_head(&rows, at->page, at->slot, 0, x, 0, kv->head_size);
    free(x);
}

// x as the product takes it: with fp8 weights 8-bit codes, a scale each gk of them.
struct left {
    double *x, *scales; // [count][cols], [count][groups]
    int64_t groups, group;
};

static struct left left_of(const clinfer_tensor *w, int64_t gk, int64_t count, const double *x,
                           int64_t x_stride)
{
    const int64_t cols = w->shape[2];
    const bool fp8 = w->dtype == CLINFER_F8_E4M3;
    struct left l = { .group = fp8 ? gk : cols };
    l.groups = cols ? (cols - 1) / l.group + 1 : 0;
    l.x = ref_alloc(count * cols);
    l.scales = ref_alloc(count * l.groups);
    float *values = (float *) ref_alloc(cols);
    for (int64_t i = 0; i < count; i++) {
        for (int64_t k = 0; k < cols; k++) {
            values[k] = (float) x[i * x_stride + k];
            l.x[i * cols + k] = x[i * x_stride + k];
        }
        for (int64_t g = 0; g < l.groups; g++) {
            const int64_t k0 = g * l.group, n = least(l.group, cols - k0);
            l.scales[i * l.groups + g] =
                fp8 ? ref_quantize_group(values + k0, n, scale_bound, l.x + i * cols + k0) : 1;
        }
    }
    free(values);
    return l;
}

void ref_project(const clinfer_tensor *w, const clinfer_tensor *w_scale, int64_t gn, int64_t gk, int64_t h,
                 int64_t count, const double *x, int64_t x_stride, double *y, int64_t y_stride)
{
    const int64_t rows = w->shape[1], cols = w->shape[2];
    const struct left l = left_of(w, gk, count, x, x_stride);
    double *row = ref_alloc(cols);
    for (int64_t n = 0; n < rows; n++) {
        for (int64_t k = 0; k < cols; k++)
            row[k] = ref_load(ref_at(w, h, n, 0), w->dtype, k);
        for (int64_t i = 0; i < count; i++) {
            double total = 0;
            for (int64_t g = 0; g < l.groups; g++) {
                const double *a = l.x + i * cols + g * l.group, *b = row + g * l.group;
                double sum = 0;
                for (int64_t k = 0; k < least(l.group, cols - g * l.group); k++)
                    sum += a[k] * b[k];
                if (w->dtype == CLINFER_F8_E4M3)
                    sum *= l.scales[i * l.groups + g] * ref_get(w_scale, h, n / gn, g);
                total += sum;
            }
            y[i * y_stride + n] = total;
        }
    }
    free(row);
    free(l.x);
    free(l.scales);
}
