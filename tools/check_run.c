// SPDX-License-Identifier: Apache-2.0
// One case: made up, run on the device in buffers with guards, run on the reference, compared.
#include "check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ref/ref.h"
#include "compare.h"

enum { GUARD = 64, ODD_ELEMENTS = 5, GAP_ELEMENTS = 3 };

// Where a tensor's rows lie in its buffer; around and between them are guard bytes.
struct place {
    size_t lead, row, stride, rows; // bytes
    size_t size;                    // of the buffer
    int home;                       // the tensor whose buffer it is; its own index but for an output in place
    unsigned char *sent, *got;      // the whole buffer before and after
    cl_mem mem;
};

struct run {
    const struct check_case *of;
    struct op_case call;
    struct place place[OP_MAX_TENSORS];
    void *params; // with cl_mem
    clinfer_ctx *ctx;
    struct check_result *result;
};

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static bool
wrong(struct run *r, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void) vsnprintf(r->result->why, sizeof r->result->why, format, args);
    va_end(args);
    r->result->ok = false;
    return false;
}

static bool broken(struct run *r, cl_int status, const char *what, const char *tensor)
{
    if (!status)
        return true;
    r->result->failed = true;
    return wrong(r, "%s %s: %s", what, tensor, clinfer_status_str((clinfer_status) status));
}

// The input that an output in place is.
static int home_of(const struct run *r, int i)
{
    const struct op_buffer *b = &r->call.buffers[i];
    for (int k = 0; r->of->in_place && b->tensor->role == OP_OUT && k < r->call.num_buffers; k++) {
        const struct op_buffer *in = &r->call.buffers[k];
        if (in->tensor->role == OP_IN && in->dtype == b->dtype && !strcmp(in->tensor->axes, b->tensor->axes))
            return k;
    }
    return i;
}

static void lay_out(struct run *r, int i)
{
    const struct op_buffer *b = &r->call.buffers[i];
    struct place *p = &r->place[i];
    const size_t element = clinfer_dtype_size(b->dtype);
    p->home = home_of(r, i);
    p->rows = b->bytes ? (size_t) b->shape[0] : 0;
    p->row = p->rows ? b->bytes / p->rows : 0;
    p->lead = GUARD + (r->of->batch->loose ? ODD_ELEMENTS * element : 0);
    p->stride = p->row + (r->of->batch->loose && b->rank > 1 ? GAP_ELEMENTS * element : 0);
    p->size = p->lead + p->rows * p->stride + GUARD;
}

static void copy_rows(const struct place *p, unsigned char *buffer, unsigned char *dense, bool in)
{
    for (size_t i = 0; i < p->rows; i++) {
        unsigned char *row = buffer + p->lead + i * p->stride;
        memcpy(in ? row : dense + i * p->row, in ? dense + i * p->row : row, p->row);
    }
}

static void set_tensor(clinfer_tensor *t, const struct place *p, cl_mem mem)
{
    const size_t element = clinfer_dtype_size(t->dtype);
    t->mem = mem;
    t->offset = p->lead;
    if (p->stride == p->row)
        return;
    t->stride[t->rank - 1] = 1;
    for (int k = t->rank - 2; k > 0; k--)
        t->stride[k] = t->stride[k + 1] * t->shape[k + 1];
    t->stride[0] = (int64_t) (p->stride / element);
}

static void set_params(struct run *r, int i)
{
    const struct op_buffer *b = &r->call.buffers[i];
    const struct place *p = &r->place[i];
    const cl_mem mem = r->place[p->home].mem;
    void *at = (char *) r->params + b->tensor->offset;
    clinfer_kv_cache *kv = at;
    const int64_t pages = p->stride == p->row ? 0 : (int64_t) (p->stride / clinfer_dtype_size(b->dtype));
    switch (b->tensor->place) {
    case OP_TENSOR:
        set_tensor(at, p, mem);
        break;
    case OP_BLOCKS:
        kv->mem = mem;
        kv->offset = p->lead;
        kv->page_stride = pages;
        break;
    case OP_SCALES:
        kv->scales = mem;
        kv->scales_offset = p->lead;
        kv->scales_page_stride = pages;
        break;
    }
}

static bool make_buffer(struct run *r, int i)
{
    const struct op_buffer *b = &r->call.buffers[i];
    struct place *p = &r->place[i];
    cl_int status = CL_SUCCESS;
    lay_out(r, i);
    if (b->tensor->role == OP_OUT) // 0xFF is NaN; in place, what the input holds
        memset(b->data, 0xFF, b->bytes);
    if (p->home != i) {
        memcpy(b->data, r->call.buffers[p->home].data, b->bytes);
        set_params(r, i);
        return true;
    }
    p->sent = malloc(p->size);
    p->got = malloc(p->size);
    if (!p->sent || !p->got)
        return broken(r, CLINFER_ERR_MEMORY, "copies of", b->tensor->name);
    memset(p->sent, 0xFF, p->size);
    copy_rows(p, p->sent, b->data, true);
    p->mem = clCreateBuffer(clinfer_ctx_cl_context(r->ctx), CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, p->size,
                            p->sent, &status);
    if (!broken(r, status, "creating the buffer of", b->tensor->name))
        return false;
    set_params(r, i);
    return true;
}

static bool call_op(struct run *r)
{
    char text[CHECK_WHY_SIZE / 2] = "";
    struct clinfer_fault fault = { 0 };
    clinfer_status status = r->call.op->run(r->ctx, r->params, 0, NULL, NULL);
    if (status == CLINFER_OK)
        status = clinfer_ctx_fault(r->ctx, NULL, &fault); // waits
    if (status != CLINFER_OK) {
        (void) clinfer_ctx_error(r->ctx, text, sizeof text);
        r->result->failed = true;
        return wrong(r, "%s", *text ? text : clinfer_status_str(status));
    }
    return fault.code == CLINFER_FAULT_NONE || wrong(r, "the device recorded a fault at token %u: %s (%u)",
                                                     fault.token, clinfer_fault_str(fault.code), fault.value);
}

static bool read_back(struct run *r)
{
    cl_int status = CL_SUCCESS;
    for (int i = 0; i < r->call.num_buffers; i++) {
        const struct place *p = &r->place[i];
        if (p->mem)
            status = clEnqueueReadBuffer(clinfer_ctx_queue(r->ctx), p->mem, CL_TRUE, 0, p->size, p->got, 0,
                                         NULL, NULL);
        if (!broken(r, status, "reading", r->call.buffers[i].tensor->name))
            return false;
    }
    return true;
}

// Compares the rows of an output with what the reference left in the case, then takes them as they were, so
// that all bytes which still differ are outside every output.
static bool compare_output(struct run *r, int i)
{
    const struct op_buffer *b = &r->call.buffers[i];
    struct place *p = &r->place[i];
    const struct place *home = &r->place[p->home];
    struct cmp_result result;
    unsigned char *dense = malloc(b->bytes ? b->bytes : 1);
    if (!dense)
        return broken(r, CLINFER_ERR_MEMORY, "a copy of", b->tensor->name);
    copy_rows(p, home->got, dense, false);
    bool ok = cmp_compare(&r->call, b, dense, b->data, &result);
    if (!ok) {
        ok = broken(r, CLINFER_ERR_MEMORY, "comparing", b->tensor->name);
    } else {
        if (!(result.max_err <= r->result->max_err))
            r->result->max_err = result.max_err;
        ok = result.ok;
        if (result.bad)
            wrong(r, "%s: %lld elements are wrong; element %lld is %g, not %g: off by %g, tolerance %g",
                  b->tensor->name, (long long) result.bad, (long long) result.index,
                  ref_load(dense, b->dtype, result.index), ref_load(b->data, b->dtype, result.index),
                  result.max_err, result.tolerance);
        else if (!ok)
            wrong(r, "%s: its cosine to the reference is %.6f", b->tensor->name, result.cosine);
    }
    for (size_t k = 0; k < p->rows; k++)
        memcpy(home->got + p->lead + k * p->stride, home->sent + p->lead + k * p->stride, p->row);
    free(dense);
    return ok;
}

static bool compare_rest(struct run *r, int i)
{
    const struct place *p = &r->place[i];
    for (size_t k = 0; p->mem && k < p->size; k++)
        if (p->got[k] != p->sent[k])
            return wrong(r, "byte %zu of %zu in the buffer of %s was written: it is no part of an output", k,
                         p->size, r->call.buffers[i].tensor->name);
    return true;
}

static bool compare(struct run *r)
{
    bool ok = true;
    for (int i = 0; i < r->call.num_buffers; i++)
        if (r->call.buffers[i].tensor->role != OP_IN)
            ok = compare_output(r, i) && ok;
    for (int i = 0; ok && i < r->call.num_buffers; i++)
        ok = compare_rest(r, i);
    return ok;
}

static bool run(struct run *r)
{
    for (int i = 0; i < r->call.num_buffers; i++)
        if (!make_buffer(r, i))
            return false;
    if (!call_op(r) || !read_back(r))
        return false;
    r->call.op->ref(r->call.params);
    r->result->max_err = -1;
    const bool ok = compare(r);
    r->result->max_err = r->result->max_err < 0 ? NAN : r->result->max_err;
    return ok;
}

void check_run(const struct check_case *c, clinfer_ctx *ctx, struct check_result *result)
{
    struct run r = { .of = c, .ctx = ctx, .result = result };
    *result = (struct check_result){ .max_err = NAN };
    if (!synth_case(c->call, c->batch, &r.call, result->why, sizeof result->why))
        return;
    r.params = malloc(r.call.op->params_size);
    if (r.params) {
        memcpy(r.params, r.call.params, r.call.op->params_size);
        result->ok = run(&r);
    } else {
        (void) broken(&r, CLINFER_ERR_MEMORY, "params of", c->call->name);
    }
    for (int i = 0; i < r.call.num_buffers; i++) {
        if (r.place[i].mem)
            (void) clReleaseMemObject(r.place[i].mem);
        free(r.place[i].sent);
        free(r.place[i].got);
    }
    free(r.params);
    op_case_free(&r.call);
}
