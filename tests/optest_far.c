// SPDX-License-Identifier: Apache-2.0
// Pages, or rows of tokens where an op works on no cache, so far apart that their offsets pass 32 bits.
// Drivers commit memory as it is touched, so the buffer costs little.
#include "optest.h"
#include "skip.h"

#include <criterion/criterion.h>

#include <string.h>

static const clinfer_kv_cache *kv_of(const struct ot_call *c)
{
    return (const void *) ((const char *) c->params + c->op->kv);
}

static const struct ot_memory *blocks_of(const struct ot_call *c)
{
    int i = 0;
    while (c->op->tensors[i].place != OP_BLOCKS)
        i++;
    return &c->memory[c->of[i]];
}

// Bytes of a page with all its planes and layers, as it was placed: densely.
static size_t page_bytes(const clinfer_kv_cache *kv)
{
    return (size_t) (kv->planes * kv->num_layers * kv->page_size * kv->num_heads * kv->head_size) *
           clinfer_dtype_size(kv->dtype);
}

static size_t far_bytes(const struct ot_call *c)
{
    const clinfer_kv_cache *kv = kv_of(c);
    return kv->offset + (size_t) ((kv->num_pages - 1) * c->far_stride) * clinfer_dtype_size(kv->dtype) +
           page_bytes(kv);
}

static void copy_pages(const struct ot_call *c, const struct ot_device *d, cl_mem far, bool back)
{
    const clinfer_kv_cache *kv = kv_of(c);
    const size_t bytes = page_bytes(kv), step = (size_t) c->far_stride * clinfer_dtype_size(kv->dtype);
    const cl_mem near = blocks_of(c)->mem;
    for (size_t i = 0; i < (size_t) kv->num_pages; i++) {
        const size_t here = kv->offset + i * bytes, there = kv->offset + i * step;
        cr_assert_eq(clEnqueueCopyBuffer(d->queue, back ? far : near, back ? near : far, back ? there : here,
                                         back ? here : there, bytes, 0, NULL, NULL),
                     CL_SUCCESS);
    }
    cr_assert_eq(clFinish(d->queue), CL_SUCCESS);
}

// Without a cache, all tensors by token are columns of one row as long as far_stride elements of two bytes.
enum { COLUMN = 1 << 16, FAR_TOKENS = 2 };

static size_t far_row(const struct ot_call *c)
{
    return (size_t) c->far_stride * 2;
}

static void copy_rows(const struct ot_call *c, const struct ot_device *d, cl_mem far, bool back, void *params)
{
    for (int i = 0; i < c->op->num_tensors; i++) {
        const clinfer_tensor *t = (const void *) ((const char *) c->params + c->op->tensors[i].offset);
        if (c->of[i] < 0 || c->op->tensors[i].axes[0] != 'T')
            continue;
        const size_t size = clinfer_dtype_size(t->dtype),
                     row = (size_t) (ref_at(t, 1, 0, 0) - ref_at(t, 0, 0, 0));
        const cl_mem near = c->memory[c->of[i]].mem;
        cr_assert(row <= COLUMN && t->shape[0] == FAR_TOKENS);
        for (size_t k = 0; k < FAR_TOKENS; k++) {
            const size_t here = t->offset + k * row, there = k * far_row(c) + (size_t) i * COLUMN;
            cr_assert_eq(clEnqueueCopyBuffer(d->queue, back ? far : near, back ? near : far,
                                             back ? there : here, back ? here : there, row, 0, NULL, NULL),
                         CL_SUCCESS);
        }
        if (!params)
            continue;
        clinfer_tensor *moved = (void *) ((char *) params + c->op->tensors[i].offset);
        for (int axis = t->rank - 1, n = 1; axis > 0; n *= (int) t->shape[axis--])
            moved->stride[axis] = t->stride[t->rank - 1] ? t->stride[axis] : n;
        moved->stride[0] = (int64_t) (far_row(c) / size);
        moved->offset = (size_t) i * COLUMN;
        moved->mem = far;
    }
    cr_assert_eq(clFinish(d->queue), CL_SUCCESS);
}

cl_mem ot_far_open(const struct ot_call *c, const struct ot_device *d, void *params)
{
    clinfer_kv_cache *kv = (void *) ((char *) params + c->op->kv);
    cl_int err;
    const size_t bytes = c->op->kv ? far_bytes(c) : far_row(c) + OP_MAX_TENSORS * COLUMN;
    const cl_mem far = clCreateBuffer(d->cl, CL_MEM_READ_WRITE, bytes, NULL, &err);
    cr_assert_eq(err, CL_SUCCESS, "a buffer of %zu bytes: error %d", bytes, (int) err);
    if (!c->op->kv) {
        copy_rows(c, d, far, false, params);
        return far;
    }
    copy_pages(c, d, far, false);
    kv->mem = far;
    kv->page_stride = c->far_stride;
    return far;
}

void ot_far_close(const struct ot_call *c, const struct ot_device *d, cl_mem far)
{
    if (c->op->kv)
        copy_pages(c, d, far, true);
    else
        copy_rows(c, d, far, true, NULL);
    (void) clReleaseMemObject(far);
}

static void check_at(struct ot_call *c, const struct ot_device *d, size_t bytes)
{
    struct clinfer_device_info info;
    clinfer_ctx_device_info(d->ctx, &info);
    if (info.max_alloc < bytes)
        SKIP("far offsets", "the device allocates at most %llu bytes at once, %zu are needed",
             (unsigned long long) info.max_alloc, bytes);
    ot_check(c, d);
}

void ot_check_far(struct ot_call *c, const struct ot_device *d)
{
    c->far_stride = (INT64_C(1) << 31) + 40;
    ot_place(c);
    cr_assert(kv_of(c)->num_pages >= 3 && kv_of(c)->dtype == CLINFER_F8_E4M3);
    check_at(c, d, far_bytes(c));
}

void ot_check_far_rows(struct ot_call *c, const struct ot_device *d)
{
    c->far_stride = (INT64_C(1) << 32) + 40;
    ot_place(c);
    check_at(c, d, far_row(c) + OP_MAX_TENSORS * COLUMN);
}
