// SPDX-License-Identifier: Apache-2.0
// Runs a call on library and reference, and compares what they left.
#include "optest.h"

#include <criterion/criterion.h>

#include <stdlib.h>
#include <string.h>

static void *field(void *params, size_t offset)
{
    return (char *) params + offset;
}

static int index_of(const struct ot_call *c, const char *tensor)
{
    for (int i = 0; i < c->op->num_tensors; i++)
        if (!strcmp(c->op->tensors[i].name, tensor))
            return i;
    cr_assert_fail("%s has no tensor %s", c->op->name, tensor);
    return -1;
}

static unsigned char *bytes_of(const struct ot_memory *m, enum ot_copy copy)
{
    return copy == OT_INITIAL ? m->initial : copy == OT_REF ? m->ref : m->got;
}

unsigned char *ot_at(const struct ot_call *c, const char *tensor, enum ot_copy copy, int64_t i, int64_t j,
                     int64_t k)
{
    const int at = index_of(c, tensor);
    cr_assert(c->of[at] >= 0, "%s is absent", tensor);
    const struct ot_memory *m = &c->memory[c->of[at]];
    return bytes_of(m, copy) + (ref_at(field(c->params, c->op->tensors[at].offset), i, j, k) - m->ref);
}

static clinfer_dtype type_of(const struct ot_call *c, const char *tensor)
{
    return ((const clinfer_tensor *) field(c->params, c->op->tensors[index_of(c, tensor)].offset))->dtype;
}

double ot_get(const struct ot_call *c, const char *tensor, enum ot_copy copy, int64_t i, int64_t j, int64_t k)
{
    return ref_load(ot_at(c, tensor, copy, i, j, k), type_of(c, tensor), 0);
}

void ot_set(const struct ot_call *c, const char *tensor, int64_t i, int64_t j, int64_t k, double x)
{
    const clinfer_dtype type = type_of(c, tensor);
    const uint32_t bits = type == CLINFER_U32 ? (uint32_t) x : ref_encode(x, type);
    memcpy(ot_at(c, tensor, OT_INITIAL, i, j, k), &bits, clinfer_dtype_size(type));
}

// Page and slot of a position, by the table as it was set, which `ref` may not hold yet.
static void locate(const struct ot_call *c, int64_t request, int64_t pos, int64_t *page, int64_t *slot)
{
    const clinfer_kv_cache *kv = field(c->params, c->op->kv);
    *page = (int64_t) ot_get(c, "lookup_table", OT_INITIAL, request, pos / kv->page_size, 0);
    *slot = pos % kv->page_size;
    cr_assert(*page < kv->num_pages);
}

// A plane of the call's layer, V's wherever it lies, and the memory of its blocks or scales.
static struct ref_plane plane_of(const struct ot_call *c, enum ot_plane which, bool scales,
                                 const struct ot_memory **m)
{
    const bool own = which == OT_V && ((clinfer_kv_cache *) field(c->params, c->op->kv_v))->dtype;
    const char *blocks = own ? "v_blocks" : "kv_blocks";
    *m = &c->memory[c->of[index_of(c, !scales ? blocks : own ? "v_scales" : "kv_scales")]];
    return ref_plane_of(field(c->params, own ? c->op->kv_v : c->op->kv), c->batch.layer,
                        which == OT_V && !own);
}

unsigned char *ot_plane_row(const struct ot_call *c, enum ot_plane which, enum ot_copy copy, int64_t request,
                            int64_t pos, int64_t head)
{
    const struct ot_memory *m;
    const struct ref_plane k = plane_of(c, which, false, &m);
    int64_t page, slot;
    locate(c, request, pos, &page, &slot);
    const int64_t at = page * k.page_stride + (slot * k.num_heads + head) * k.head_size;
    return bytes_of(m, copy) + (k.blocks - m->ref) + (size_t) at * clinfer_dtype_size(k.dtype);
}

float *ot_plane_scales(const struct ot_call *c, enum ot_plane which, enum ot_copy copy, int64_t request,
                       int64_t pos, int64_t head)
{
    const struct ot_memory *m;
    const struct ref_plane k = plane_of(c, which, true, &m);
    int64_t page, slot;
    locate(c, request, pos, &page, &slot);
    const int64_t at = page * k.scales_page_stride + (slot * k.num_heads + head) * k.num_groups;
    return (float *) (void *) (bytes_of(m, copy) + (k.scales - m->ref)) + at;
}

unsigned char *ot_row(const struct ot_call *c, enum ot_copy copy, int64_t request, int64_t pos, int64_t head)
{
    return ot_plane_row(c, OT_K, copy, request, pos, head);
}

float *ot_row_scales(const struct ot_call *c, enum ot_copy copy, int64_t request, int64_t pos, int64_t head)
{
    return ot_plane_scales(c, OT_K, copy, request, pos, head);
}

void ot_set_row(const struct ot_call *c, int64_t request, int64_t pos, int64_t head, int64_t d, double x)
{
    const clinfer_kv_cache *kv = field(c->params, c->op->kv);
    ref_store(ot_row(c, OT_INITIAL, request, pos, head), kv->dtype, d, x);
}

double ot_get_row(const struct ot_call *c, enum ot_copy copy, int64_t request, int64_t pos, int64_t head,
                  int64_t d)
{
    const clinfer_kv_cache *kv = field(c->params, c->op->kv);
    const double x = ref_load(ot_row(c, copy, request, pos, head), kv->dtype, d);
    return kv->scale_group ? x * (double) ot_row_scales(c, copy, request, pos, head)[d / kv->scale_group] : x;
}

static void open_buffers(struct ot_call *c, const struct ot_device *d, void *params)
{
    for (int i = 0; i < c->num_memories; i++) {
        cl_int err;
        struct ot_memory *m = &c->memory[i];
        m->mem = clCreateBuffer(d->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, m->size, m->initial, &err);
        cr_assert_eq(err, CL_SUCCESS);
    }
    for (int i = 0; i < c->op->num_tensors; i++) {
        const struct op_tensor *t = &c->op->tensors[i];
        const cl_mem mem = c->of[i] < 0 ? NULL : c->memory[c->of[i]].mem;
        if (t->place == OP_TENSOR)
            ((clinfer_tensor *) field(params, t->offset))->mem = mem;
        else if (t->place == OP_BLOCKS)
            ((clinfer_kv_cache *) field(params, t->offset))->mem = mem;
        else
            ((clinfer_kv_cache *) field(params, t->offset))->scales = mem;
    }
}

static void close_buffers(struct ot_call *c, const struct ot_device *d)
{
    for (int i = 0; i < c->num_memories; i++) {
        struct ot_memory *m = &c->memory[i];
        cr_assert_eq(clEnqueueReadBuffer(d->queue, m->mem, CL_TRUE, 0, m->size, m->got, 0, NULL, NULL),
                     CL_SUCCESS);
        (void) clReleaseMemObject(m->mem);
        m->mem = NULL;
    }
}

clinfer_status ot_try(struct ot_call *c, const struct ot_device *d)
{
    void *params = malloc(c->op->params_size);
    cr_assert(params);
    memcpy(params, c->params, c->op->params_size);
    open_buffers(c, d, params);
    const cl_mem far = c->far_stride ? ot_far_open(c, d, params) : NULL;
    if (c->adjust)
        c->adjust(c, params);
    const clinfer_status st = c->op->run(d->ctx, params, 0, NULL, NULL);
    cr_assert_eq(clinfer_ctx_fault(d->ctx, NULL, &c->fault), CLINFER_OK);
    if (far)
        ot_far_close(c, d, far);
    close_buffers(c, d);
    free(params);
    return st;
}

void ot_run(struct ot_call *c, const struct ot_device *d)
{
    char error[512];
    const clinfer_status st = ot_try(c, d);
    (void) clinfer_ctx_error(d->ctx, error, sizeof error);
    cr_assert_eq(st, CLINFER_OK, "%s: %s", c->note, error);
}

void ot_reference(struct ot_call *c)
{
    for (int i = 0; i < c->num_memories; i++)
        memcpy(c->memory[i].ref, c->memory[i].initial, c->memory[i].size);
    c->op->ref(c->params);
}

// The rows of a tensor, or the pages of a cache plane, one after another: where each lies in the memory, and
// its bytes. Returns false past the last.
struct piece {
    const unsigned char *at;
    size_t bytes;
};

static bool piece_of(const struct ot_call *c, const struct op_tensor *t, int64_t n, struct piece *p)
{
    if (t->place == OP_TENSOR) {
        const clinfer_tensor *x = field(c->params, t->offset);
        const int64_t inner = x->rank > 2 ? x->shape[1] : 1, last = x->shape[x->rank - 1];
        p->at = n < x->shape[0] * inner ? ref_at(x, n / inner, n % inner, 0) : NULL;
        p->bytes = (size_t) last * clinfer_dtype_size(x->dtype);
        return p->at != NULL;
    }
    const clinfer_kv_cache *kv = field(c->params, t->offset);
    const int64_t layer = n % kv->num_layers, plane = n / kv->num_layers % kv->planes,
                  page = n / kv->num_layers / kv->planes;
    const struct ref_plane k = ref_plane_of(kv, layer, (int) plane);
    const size_t rows = (size_t) (k.page_size * k.num_heads);
    const bool blocks = t->place == OP_BLOCKS;
    p->at = blocks ? k.blocks + (size_t) (page * k.page_stride) * clinfer_dtype_size(k.dtype)
                   : k.scales + (size_t) (page * k.scales_page_stride) * sizeof(float);
    p->bytes = rows * (blocks ? (size_t) k.head_size * clinfer_dtype_size(k.dtype)
                              : (size_t) k.num_groups * sizeof(float));
    return page < kv->num_pages;
}

static struct op_buffer dense_buffer(const struct ot_call *c, const struct op_tensor *t)
{
    struct op_buffer b = { .tensor = t };
    if (t->place == OP_TENSOR) {
        const clinfer_tensor *x = field(c->params, t->offset);
        b.dtype = x->dtype;
        b.rank = x->rank;
        memcpy(b.shape, x->shape, sizeof x->shape);
    } else {
        const clinfer_kv_cache *kv = field(c->params, t->offset);
        const bool blocks = t->place == OP_BLOCKS;
        const int64_t last = blocks ? kv->head_size : op_groups(kv->head_size, kv->scale_group);
        const int64_t shape[] = { kv->num_pages, kv->planes,    kv->num_layers,
                                  kv->page_size, kv->num_heads, last };
        b.dtype = blocks ? kv->dtype : CLINFER_F32;
        b.rank = 6;
        memcpy(b.shape, shape, sizeof shape);
    }
    b.bytes = clinfer_dtype_size(b.dtype);
    for (int i = 0; i < b.rank; i++)
        b.bytes *= (size_t) b.shape[i];
    return b;
}

// What a tensor that the op writes holds, against the reference. Marks its bytes as inside.
static void compare_tensor(const struct ot_call *c, int i)
{
    const struct ot_memory *m = &c->memory[c->of[i]];
    const struct op_buffer b = dense_buffer(c, &c->op->tensors[i]);
    const struct op_case of = { .op = c->op, .params = c->params, .total = ot_total(&c->batch) };
    unsigned char *got = malloc(b.bytes + 1), *expected = malloc(b.bytes + 1);
    struct cmp_result result;
    struct piece p;
    size_t at = 0;
    cr_assert(got && expected);
    for (int64_t n = 0; b.bytes && piece_of(c, b.tensor, n, &p); n++) {
        const size_t from = (size_t) (p.at - m->ref);
        cr_assert(from + p.bytes <= m->size && at + p.bytes <= b.bytes);
        memcpy(got + at, m->got + from, p.bytes);
        memcpy(expected + at, m->ref + from, p.bytes);
        memset(m->inside + from, 1, p.bytes);
        at += p.bytes;
    }
    cr_assert_eq(at, b.bytes);
    cr_assert(cmp_compare(&of, &b, got, expected, &result));
    cr_expect(
        result.ok,
        "%s: %s: %lld elements are wrong; element %lld is %g, not %g; off by %g, tolerance %g, cosine %g",
        c->note, b.tensor->name, (long long) result.bad, (long long) result.index,
        ref_load(got, b.dtype, result.index), ref_load(expected, b.dtype, result.index), result.max_err,
        result.tolerance, result.cosine);
    free(got);
    free(expected);
}

static void same_outside(const struct ot_call *c, const struct ot_memory *m, const unsigned char *after,
                         const char *whose)
{
    for (size_t i = 0; i < m->size; i++)
        if (!m->inside[i] && after[i] != m->initial[i]) {
            cr_expect(false, "%s: %s: the %s wrote byte %zu of memory %d, outside every output", c->note,
                      c->op->name, whose, i, (int) (m - c->memory));
            return;
        }
}

void ot_compare(const struct ot_call *c)
{
    for (int i = 0; i < c->op->num_tensors; i++)
        if (c->of[i] >= 0 && c->op->tensors[i].role != OP_IN)
            compare_tensor(c, i);
    for (int i = 0; i < c->num_memories; i++) {
        same_outside(c, &c->memory[i], c->memory[i].got, "library");
        same_outside(c, &c->memory[i], c->memory[i].ref, "reference");
    }
}

void ot_unchanged(const struct ot_call *c)
{
    for (int i = 0; i < c->num_memories; i++)
        cr_expect(!memcmp(c->memory[i].got, c->memory[i].initial, c->memory[i].size),
                  "%s: memory %d was written", c->note, i);
}

void ot_check(struct ot_call *c, const struct ot_device *d)
{
    ot_run(c, d);
    cr_expect_eq(c->fault.code, CLINFER_FAULT_NONE, "%s: fault %d, token %u, value %u", c->note,
                 (int) c->fault.code, c->fault.token, c->fault.value);
    ot_reference(c);
    ot_compare(c);
}

void ot_check_no_tokens(void (*begin)(struct ot_call *c, const struct ot_batch *b, const struct ot_random *r))
{
    struct ot_device d = ot_open(0);
    for (int requests = 0; requests < 4; requests++)
        for (int padding = 0; padding < 2; padding++) {
            const struct ot_batch b = { requests, { 3, 0, 9 }, { 0 }, padding, 4, 1, 0, false };
            struct ot_random r = ot_seeded("no tokens", requests);
            struct ot_call c;
            begin(&c, &b, &r);
            ot_place(&c);
            ot_check(&c, &d);
            ot_unchanged(&c);
            ot_free(&c);
        }
    ot_close(&d);
}
