// SPDX-License-Identifier: Apache-2.0
// Pages so far apart that their offsets pass 32 bits. Drivers commit memory as it is touched, so the buffer
// costs little.
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

cl_mem ot_far_open(const struct ot_call *c, const struct ot_device *d, void *params)
{
    clinfer_kv_cache *kv = (void *) ((char *) params + c->op->kv);
    cl_int err;
    const cl_mem far = clCreateBuffer(d->cl, CL_MEM_READ_WRITE, far_bytes(c), NULL, &err);
    cr_assert_eq(err, CL_SUCCESS, "a buffer of %zu bytes: error %d", far_bytes(c), (int) err);
    copy_pages(c, d, far, false);
    kv->mem = far;
    kv->page_stride = c->far_stride;
    return far;
}

void ot_far_close(const struct ot_call *c, const struct ot_device *d, cl_mem far)
{
    copy_pages(c, d, far, true);
    (void) clReleaseMemObject(far);
}

void ot_check_far(struct ot_call *c, const struct ot_device *d)
{
    struct clinfer_device_info info;
    c->far_stride = (INT64_C(1) << 31) + 40;
    ot_place(c);
    cr_assert(kv_of(c)->num_pages >= 3 && kv_of(c)->dtype == CLINFER_F8_E4M3);
    clinfer_ctx_device_info(d->ctx, &info);
    if (info.max_alloc < far_bytes(c))
        SKIP("far cache", "the device allocates at most %llu bytes at once, %zu are needed",
             (unsigned long long) info.max_alloc, far_bytes(c));
    ot_check(c, d);
}
