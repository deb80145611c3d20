// SPDX-License-Identifier: Apache-2.0
// Fills what the op may read. The rest stays 0xFF bytes, NaN in every type: guards, gaps between rows and
// pages, padding rows, unused slots, spare pages, ends of the table.
#include "optest.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *field(void *params, size_t offset)
{
    return (char *) params + offset;
}

static clinfer_kv_cache *kv_of(const struct ot_call *c)
{
    return field(c->params, c->op->kv);
}

int64_t ot_pages(const struct ot_batch *b, int i)
{
    return b->fresh[i] ? op_groups(b->cached[i] + b->fresh[i], b->page_size) : 0;
}

static void fill_batch(struct ot_call *c)
{
    const struct ot_batch *b = &c->batch;
    const int64_t pages = kv_of(c)->num_pages;
    int64_t *free_page = calloc((size_t) pages, sizeof *free_page), next = 0;
    uint32_t offset = 0;
    cr_assert(free_page);
    for (int64_t i = 0; i < pages; i++) {
        const int64_t j = ot_between(&c->random, 0, i);
        free_page[i] = free_page[j];
        free_page[j] = i;
    }
    ot_set(c, "input_row_offsets", 0, 0, 0, 0);
    for (int i = 0; i < b->requests; i++) {
        const int64_t common =
            b->share && i ? (b->cached[0] < b->cached[i] ? b->cached[0] : b->cached[i]) : 0;
        offset += (uint32_t) b->fresh[i];
        ot_set(c, "input_row_offsets", i + 1, 0, 0, offset);
        ot_set(c, "cache_lengths", i, 0, 0, (double) b->cached[i]);
        const int64_t first = c->op->reads_context ? 0 : b->cached[i] / b->page_size;
        for (int64_t page = first; page < ot_pages(b, i); page++) {
            const bool shared = c->op->reads_context && b->fresh[0] && page < common / b->page_size;
            ot_set(c, "lookup_table", i, page, 0,
                   shared ? ot_get(c, "lookup_table", OT_INITIAL, 0, page, 0) : (double) free_page[next++]);
        }
    }
    free(free_page);
}

static const struct {
    const char *name;
    double mean, spread;
} contents[] = {
    { "gamma", 1, 0.3 },
    { "kv_norm_gamma", 1, 0.3 },
    { "q_proj", 0, 1 },
    { "q_rope", 0, 1 },
    { "q", 0, 1 },
    { "sinks", 0, 1 },
    { "k", 0, 1 },
    { "v", 0, 1 },
    { "kv_input", 0.1, 1.5 },
    { "x", 0, 1.5 },
    { "residual", 0.1, 3 },
    { "out_a", 0, 1 },
    { "out_b", 0, 1 },
    { "lse_a", 3, 4 },
    { "lse_b", 3, 4 },
    { "w", 0, 0.1 },
    { "w_scale", 0.002, 0.0004 },
    { "bias", 0, 1 },
    { "w_uk", 0, 0.1 },
    { "w_k", 0, 0.1 },
    { "w_uv", 0, 0.1 },
    { "w_uk_scale", 0.002, 0.0004 },
    { "w_k_scale", 0.002, 0.0004 },
    { "w_uv_scale", 0.002, 0.0004 },
};

static void fill_tensor(struct ot_call *c, const struct op_tensor *d, double mean, double spread)
{
    const clinfer_tensor *t = field(c->params, d->offset);
    const int64_t rows = c->op->kv && d->axes[0] == 'T' ? ot_used(&c->batch) : t->shape[0];
    if (t->dtype == CLINFER_F8_E4M3 ||
        t->dtype == CLINFER_I8) // codes of the whole range, next to small scales
        spread = 60;
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < (t->rank > 1 ? t->shape[1] : 1); j++)
            for (int64_t k = 0; k < (t->rank > 2 ? t->shape[2] : 1); k++)
                ot_set(c, d->name, i, j, k, mean + spread * ot_gauss(&c->random));
}

static void fill_freqs(struct ot_call *c, const struct op_tensor *d)
{
    const clinfer_tensor *t = field(c->params, d->offset);
    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < t->shape[1]; j++) {
            const double angle = (double) i * pow(10000, -(double) (j / 2 * 2) / (double) t->shape[1]);
            ot_set(c, d->name, i, j, 0, j % 2 ? sin(angle) : cos(angle));
        }
}

static void fill_ids(struct ot_call *c, const struct op_tensor *d)
{
    const clinfer_tensor *t = field(c->params, d->offset);
    const int64_t rows = ((const struct clinfer_fused_qk_rope_params *) c->params)->freqs_cis.shape[0];
    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < ot_used(&c->batch); j++)
            ot_set(c, d->name, i, j, 0, (double) ot_between(&c->random, 0, rows - 1));
}

static void fill_tensors(struct ot_call *c)
{
    for (int i = 0; i < c->op->num_tensors; i++) {
        const struct op_tensor *d = &c->op->tensors[i];
        if (c->of[i] < 0)
            continue;
        if (!strcmp(d->name, "freqs_cis"))
            fill_freqs(c, d);
        if (!strcmp(d->name, "position_ids"))
            fill_ids(c, d);
        for (int64_t k = 0; k < OT_COUNT(contents); k++)
            if (!strcmp(d->name, contents[k].name))
                fill_tensor(c, d, contents[k].mean, contents[k].spread);
    }
}

static void fill_row(struct ot_call *c, enum ot_plane which, int request, int64_t pos)
{
    const clinfer_kv_cache *own = field(c->params, c->op->kv_v),
                           *kv = which == OT_V && own->dtype ? own : kv_of(c);
    for (int64_t h = 0; h < kv->num_heads; h++) {
        unsigned char *row = ot_plane_row(c, which, OT_INITIAL, request, pos, h);
        for (int64_t d = 0; d < kv->head_size; d++)
            ref_store(row, kv->dtype, d, (kv->scale_group ? 60 : 1) * ot_gauss(&c->random));
        if (!kv->scale_group)
            continue;
        float *scales = ot_plane_scales(c, which, OT_INITIAL, request, pos, h);
        for (int64_t g = 0; g < op_groups(kv->head_size, kv->scale_group); g++) {
            const float scale = (float) (exp2(ot_gauss(&c->random)) / 60);
            memcpy(scales + g, &scale, sizeof scale);
        }
    }
}

void ot_fill(struct ot_call *c)
{
    const struct ot_batch *b = &c->batch;
    const bool reads_v = c->op->reads_context && c->op->kv_v;
    if (c->op->kv)
        fill_batch(c);
    fill_tensors(c);
    for (int i = 0; c->op->kv && i < b->requests; i++) {
        const int64_t end = b->fresh[i] ? b->cached[i] + b->fresh[i] : 0;
        for (int64_t pos = c->op->reads_context ? 0 : b->cached[i]; pos < end; pos++)
            for (enum ot_plane which = OT_K; which <= (reads_v ? OT_V : OT_K); which++)
                fill_row(c, which, i, pos);
    }
}
