// SPDX-License-Identifier: Apache-2.0
// Lays the tensors of a call out in buffers of 0xFF bytes.
#include "optest.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

enum { GUARD = 64 }; // bytes before and after what a buffer's tensors cover

static void *field(void *params, size_t offset)
{
    return (char *) params + offset;
}

static clinfer_kv_cache *kv_of(const struct ot_call *c)
{
    return field(c->params, c->op->kv);
}

static clinfer_kv_batch *batch_of(const struct ot_call *c)
{
    return field(c->params, c->op->batch);
}

void *ot_begin(struct ot_call *c, const char *op, const struct ot_batch *batch,
               const struct ot_random *random)
{
    *c = (struct ot_call){ .op = op_find(op), .batch = *batch, .random = *random };
    cr_assert(c->op && (c->params = calloc(1, c->op->params_size)));
    for (int i = 0; i < OP_MAX_TENSORS; i++)
        c->of[i] = -1;
    if (c->op->kv)
        kv_of(c)->page_size = batch->page_size;
    return c->params;
}

void ot_free(struct ot_call *c)
{
    for (int i = 0; i < c->num_memories; i++) {
        free(c->memory[i].initial);
        free(c->memory[i].ref);
        free(c->memory[i].got);
        free(c->memory[i].inside);
    }
    free(c->params);
    *c = (struct ot_call){ 0 };
}

// A memory with guards on both sides of `bytes`; *offset: where they start, a multiple of `size`.
static int new_memory(struct ot_call *c, size_t bytes, size_t size, size_t *offset)
{
    struct ot_memory *m = &c->memory[c->num_memories];
    *offset = GUARD + size * (size_t) ot_between(&c->random, 0, 17);
    m->size = *offset + bytes + GUARD + (size_t) ot_between(&c->random, 0, 17);
    m->initial = malloc(m->size);
    m->ref = malloc(m->size);
    m->got = malloc(m->size);
    m->inside = calloc(m->size, 1);
    cr_assert(m->initial && m->ref && m->got && m->inside);
    memset(m->initial, 0xff, m->size);
    return c->num_memories++;
}

// Strides with gaps on every axis but the last, or none. Returns the elements that the tensor spans.
static int64_t stride_randomly(struct ot_random *r, clinfer_tensor *t)
{
    const bool dense = ot_between(r, 0, 3) == 0;
    int64_t n = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        t->stride[i] = n + (dense || i == t->rank - 1 ? 0 : ot_between(r, 0, 9));
        n = t->stride[i] * t->shape[i];
    }
    if (dense)
        memset(t->stride, 0, sizeof t->stride);
    return n;
}

static void place_tensor(struct ot_call *c, int i, clinfer_tensor *t)
{
    const size_t size = clinfer_dtype_size(t->dtype);
    const int64_t n = stride_randomly(&c->random, t);
    c->of[i] = new_memory(c, (size_t) n * size, size, &t->offset);
}

// Two tensors of one type and number of rows as columns of one wider row.
static void place_in_one_row(struct ot_call *c, int i, clinfer_tensor *a, int j, clinfer_tensor *b)
{
    const size_t size = clinfer_dtype_size(a->dtype);
    clinfer_tensor *left = ot_between(&c->random, 0, 1) ? a : b, *right = left == a ? b : a;
    (void) stride_randomly(&c->random, a);
    (void) stride_randomly(&c->random, b);
    int64_t row = 0;
    for (clinfer_tensor *t = left; t; t = t == left ? right : NULL) {
        t->stride[1] = t->stride[2] ? t->stride[1] : t->shape[2];
        t->stride[2] = 1;
        t->offset = (size_t) row * size;
        row += t->shape[1] * t->stride[1] + ot_between(&c->random, 0, 5);
    }
    size_t at;
    a->stride[0] = b->stride[0] = row;
    c->of[i] = c->of[j] = new_memory(c, (size_t) (row * a->shape[0]) * size, size, &at);
    a->offset += at;
    b->offset += at;
}

// Pages, planes and layers in any order, with gaps, or (always without `r`) the default. Returns the elements
// that they span.
static int64_t stride_axes(struct ot_random *r, int64_t row, const int64_t count[3], int64_t *stride[3])
{
    int order[3] = { 0, 1, 2 };
    int64_t n = row;
    if (!r || ot_between(r, 0, 3) == 0)
        return row * count[0] * count[1] * count[2];
    for (int i = 2; i > 0; i--) {
        const int j = (int) ot_between(r, 0, i), k = order[i];
        order[i] = order[j];
        order[j] = k;
    }
    for (int i = 0; i < 3; i++) {
        *stride[order[i]] = n + ot_between(r, 0, 1) * ot_between(r, 1, 40);
        n = *stride[order[i]] * count[order[i]];
    }
    return n;
}

static void place_cache(struct ot_call *c, int i, clinfer_kv_cache *kv, bool scales)
{
    const bool far = c->far_stride && kv == kv_of(c);
    const int64_t rows = kv->page_size * kv->num_heads,
                  count[3] = { kv->num_pages, kv->planes, kv->num_layers };
    if (!scales) {
        int64_t *stride[3] = { &kv->page_stride, &kv->kv_stride, &kv->layer_stride };
        const int64_t n = stride_axes(far ? NULL : &c->random, rows * kv->head_size, count, stride);
        const size_t size = clinfer_dtype_size(kv->dtype);
        c->of[i] = new_memory(c, (size_t) n * size, size, &kv->offset);
        kv->mem = (cl_mem) c->memory[c->of[i]].ref;
    } else if (kv->scale_group) {
        int64_t *stride[3] = { &kv->scales_page_stride, &kv->scales_kv_stride, &kv->scales_layer_stride };
        const int64_t groups = op_groups(kv->head_size, kv->scale_group);
        const int64_t n = stride_axes(&c->random, rows * groups, count, stride);
        c->of[i] = new_memory(c, (size_t) n * sizeof(float), sizeof(float), &kv->scales_offset);
        kv->scales = (cl_mem) c->memory[c->of[i]].ref;
    }
}

// The input that an output may share its rows with, and where all axes agree its place.
static int partner_of(const struct ot_call *c, int i)
{
    const struct op_tensor *t = c->op->tensors;
    for (int j = 0; j < c->op->num_tensors; j++)
        if (t[j].role == OP_IN && !strcmp(t[j].axes, t[i].axes))
            return j;
    for (int j = 0; j < c->op->num_tensors; j++)
        if (t[j].role == OP_IN && !strncmp(t[j].axes, "TH", 2))
            return j;
    return -1;
}

static void place(struct ot_call *c, int i)
{
    const struct op_tensor *d = &c->op->tensors[i];
    clinfer_tensor *t = field(c->params, d->offset);
    const int j = d->role == OP_OUT ? partner_of(c, i) : -1;
    clinfer_tensor *in = j < 0 ? NULL : field(c->params, c->op->tensors[j].offset);
    if (d->place != OP_TENSOR) {
        clinfer_kv_cache *view = field(c->params, d->offset);
        if (view->dtype) // V's own may be absent
            place_cache(c, i, view, d->place == OP_SCALES);
        return;
    }
    if (!t->rank)
        return;
    const bool same = in && !strcmp(d->axes, c->op->tensors[j].axes);
    if (c->pairing == OT_IN_PLACE && same && in->dtype == t->dtype) {
        *t = *in;
        c->of[i] = c->of[j];
    } else if (c->pairing == OT_ONE_ROW && in && in->dtype == t->dtype && t->shape[0] && t->shape[2] &&
               in->shape[2]) {
        place_in_one_row(c, j, in, i, t);
    } else {
        place_tensor(c, i, t);
    }
}

// V's own view, where the test asks for one by its type: K's pages, slots and heads, and some more of its
// own.
static void shape_v(struct ot_call *c)
{
    const clinfer_kv_cache *kv = kv_of(c);
    clinfer_kv_cache *v = field(c->params, c->op->kv_v);
    if (!c->op->kv_v || !v->dtype)
        return;
    v->num_pages = kv->num_pages + ot_between(&c->random, 0, 2);
    v->num_layers = kv->num_layers + ot_between(&c->random, 0, 1);
    v->page_size = kv->page_size;
    v->num_heads = kv->num_heads;
    v->planes = 1;
}

static void shape_batch(struct ot_call *c)
{
    const struct ot_batch *b = &c->batch;
    clinfer_kv_batch *t = batch_of(c);
    clinfer_kv_cache *kv = kv_of(c);
    int64_t columns = 1, pages = 0;
    for (int i = 0; i < b->requests; i++) {
        columns = ot_pages(b, i) > columns ? ot_pages(b, i) : columns;
        pages += ot_pages(b, i);
    }
    columns += ot_between(&c->random, 0, 2);
    t->input_row_offsets = clinfer_tensor_1d(NULL, CLINFER_U32, b->requests + 1);
    t->cache_lengths = clinfer_tensor_1d(NULL, CLINFER_U32, b->requests);
    t->lookup_table = clinfer_tensor_2d(NULL, CLINFER_U32, b->requests, columns);
    kv->num_pages = pages + (c->far_stride ? 0 : ot_between(&c->random, 1, 3));
    kv->page_size = b->page_size;
    kv->num_layers = b->layers;
    *(int64_t *) field(c->params, c->op->layer) = b->layer;
    if (!kv->planes)
        kv->planes = 2;
    shape_v(c);
}

void ot_place(struct ot_call *c)
{
    if (c->op->kv)
        shape_batch(c);
    for (int i = 0; i < c->op->num_tensors; i++)
        place(c, i);
    for (int i = 0; i < c->op->num_tensors; i++) {
        clinfer_tensor *t = field(c->params, c->op->tensors[i].offset);
        if (c->of[i] >= 0 && c->op->tensors[i].place == OP_TENSOR)
            t->mem = (cl_mem) c->memory[c->of[i]].ref;
    }
    ot_fill(c);
}
