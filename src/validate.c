// SPDX-License-Identifier: Apache-2.0
// Tensor tables against params: ranks, extents by axis letter, types, strides. No OpenCL.
#include "validate.h"
#include "kv.h"
#include <assert.h>
#include <inttypes.h>
#include <string.h>

// Solves one axis term such as "N+R" or "B+1" for the extent n: sets its one unknown letter, or compares.
// Returns the wanted extent, which is n where all is well.
static int64_t match_axis(struct clf_plan *plan, const char *term, size_t length, int64_t n)
{
    int64_t known = 0, *unknown = NULL;
    for (size_t i = 0; i < length; i++) {
        if (term[i] == '+')
            continue;
        if (term[i] >= '0' && term[i] <= '9') {
            known += term[i] - '0';
        } else if (CLF_DIM(plan, term[i]) >= 0) {
            known += CLF_DIM(plan, term[i]);
        } else {
            assert(!unknown);
            unknown = &CLF_DIM(plan, term[i]);
        }
    }
    if (unknown && n >= known)
        *unknown = n - known;
    return unknown && n >= known ? n : known;
}

int clf_axes(const struct clf_tensor_rule *r, int rank, struct clf_axis axis[CLINFER_MAX_RANK],
             char *left_out)
{
    int all = 1, n = 0;
    for (const char *c = r->dims; *c; c++)
        all += *c == ',';
    *left_out = 0;
    for (const char *term = r->dims; n < CLINFER_MAX_RANK; term++) {
        const bool brackets = *term == '[';
        term += brackets;
        const size_t length = strcspn(term, ",]");
        if (brackets && rank == all - 1)
            *left_out = *term;
        else
            axis[n++] = (struct clf_axis){ term, length };
        term += length + brackets;
        if (!*term)
            break;
    }
    return n;
}

static clinfer_status check_shape(struct clf_plan *plan, const struct clf_tensor_rule *r,
                                  const clinfer_tensor *t)
{
    struct clf_axis axis[CLINFER_MAX_RANK];
    char left_out;
    const int rank = clf_axes(r, t->rank, axis, &left_out);
    if (t->rank != rank)
        return clf_fail(plan, CLINFER_ERR_SHAPE, "%s: want rank %d%s [%s], got rank %d", r->name, rank,
                        strchr(r->dims, '[') ? " or one less" : "", r->dims, t->rank);
    if (left_out && match_axis(plan, &left_out, 1, 1) != 1)
        return clf_fail(plan, CLINFER_ERR_SHAPE, "%s: without the axis %c of [%s], which is %" PRId64,
                        r->name, left_out, r->dims, CLF_DIM(plan, left_out));
    for (int i = 0; i < rank; i++) {
        const int64_t n = t->shape[i];
        if (n < 0 || n > INT32_MAX)
            return clf_fail(plan, CLINFER_ERR_SHAPE, "%s: axis %d is %" PRId64 ", want 0 to %d", r->name, i,
                            n, INT32_MAX);
        const int64_t want = match_axis(plan, axis[i].term, axis[i].length, n);
        if (want != n)
            return clf_fail(plan, CLINFER_ERR_SHAPE, "%s: axis %d is %" PRId64 ", but %.*s is %" PRId64,
                            r->name, i, n, (int) axis[i].length, axis[i].term, want);
    }
    return CLINFER_OK;
}

static const char *type_names(unsigned types, char *buf, size_t size)
{
    size_t n = 0;
    buf[0] = 0;
    for (unsigned d = CLINFER_F32; clinfer_dtype_size((clinfer_dtype) d); d++)
        if (types >> d & 1 && n + 10 < size) {
            const char *name = clinfer_dtype_str((clinfer_dtype) d);
            memcpy(buf + n, " ", 2);
            memcpy(buf + n + 1, name, strlen(name) + 1);
            n += 1 + strlen(name);
        }
    return buf;
}

static const clinfer_tensor *find(const struct clf_tensor_rule *rules, const void *base, const char *name)
{
    while (strcmp(rules->name, name))
        rules++;
    return (const clinfer_tensor *) ((const char *) base + rules->field);
}

static clinfer_status check_type(struct clf_plan *plan, const struct clf_tensor_rule *rules,
                                 const struct clf_tensor_rule *r, const clinfer_tensor *t, const void *base)
{
    char names[64];
    if (!clinfer_dtype_size(t->dtype) || !(r->types >> t->dtype & 1))
        return clf_fail(plan, CLINFER_ERR_TYPE, "%s: type %s (%d), want one of%s", r->name,
                        clinfer_dtype_str(t->dtype), (int) t->dtype,
                        type_names(r->types, names, sizeof names));
    if (r->same_type && find(rules, base, r->same_type)->dtype != t->dtype)
        return clf_fail(plan, CLINFER_ERR_TYPE, "%s: type %s, but %s is %s", r->name,
                        clinfer_dtype_str(t->dtype), r->same_type,
                        clinfer_dtype_str(find(rules, base, r->same_type)->dtype));
    return CLINFER_OK;
}

// Elements from the first to past the last; rows must not overlap, and the last axis is dense.
static clinfer_status measure(struct clf_plan *plan, const struct clf_tensor_rule *r, const clinfer_tensor *t,
                              int64_t *extent, int64_t *row)
{
    *extent = *row = 1;
    for (int i = t->rank - 1; i >= 0; i--) {
        const int64_t stride = clf_stride(t, i), n = t->shape[i];
        int64_t step;
        if (n == 0) {
            *extent = *row = 0;
            return CLINFER_OK;
        }
        if (i == 0)
            *row = *extent;
        if ((i == t->rank - 1 && stride != 1) || (n > 1 && stride < *extent))
            return clf_fail(plan, CLINFER_ERR_SHAPE, "%s: axis %d has stride %" PRId64 ", want %s %" PRId64,
                            r->name, i, stride, i == t->rank - 1 ? "exactly" : "at least", *extent);
        if (__builtin_mul_overflow(n - 1, stride, &step) || __builtin_add_overflow(*extent, step, extent))
            return clf_fail(plan, CLINFER_ERR_SHAPE, "%s: axis %d with stride %" PRId64 " passes 2^63",
                            r->name, i, stride);
    }
    return CLINFER_OK;
}

clinfer_status clf_add_view(struct clf_plan *plan, const char *name, cl_mem mem, size_t offset, int64_t count,
                            size_t size, bool out)
{
    size_t bytes, end;
    if (!mem && count && plan->mode == CLF_CALL)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "%s: no buffer, but it has %" PRId64 " elements", name,
                        count);
    if (__builtin_mul_overflow((size_t) count, size, &bytes) || __builtin_add_overflow(offset, bytes, &end))
        return clf_fail(plan, CLINFER_ERR_SHAPE, "%s: %" PRId64 " elements at offset %zu pass 2^64 bytes",
                        name, count, offset);
    if (count) {
        assert(plan->num_views < CLF_MAX_VIEWS);
        plan->view[plan->num_views++] =
            (struct clf_view){ .name = name, .mem = mem, .begin = offset, .end = end, .out = out };
    }
    return CLINFER_OK;
}

static clinfer_status add_tensor_view(struct clf_plan *plan, const struct clf_tensor_rule *r,
                                      const clinfer_tensor *t)
{
    const size_t size = clinfer_dtype_size(t->dtype);
    int64_t extent, row;
    if (t->offset % size)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT,
                        "%s: offset %zu is no multiple of the %zu bytes of an element", r->name, t->offset,
                        size);
    clinfer_status st = measure(plan, r, t, &extent, &row);
    if (!st)
        st = clf_add_view(plan, r->name, t->mem, t->offset, extent, size, r->flags & CLF_OUT);
    if (!st && extent) {
        struct clf_view *v = &plan->view[plan->num_views - 1];
        v->row_stride = (size_t) clf_stride(t, 0) * size;
        v->row_size = (size_t) row * size;
        v->in_place = r->in_place;
    }
    return st;
}

clinfer_status clf_validate_tensors(struct clf_plan *plan, const struct clf_tensor_rule *rules, int num_rules,
                                    const void *base)
{
    clinfer_status st = CLINFER_OK;
    for (int i = 0; !st && i < num_rules; i++) {
        const clinfer_tensor *t = (const clinfer_tensor *) ((const char *) base + rules[i].field);
        if (!t->rank && rules[i].flags & CLF_OPTIONAL)
            continue;
        st = check_shape(plan, &rules[i], t);
        if (!st)
            st = check_type(plan, rules, &rules[i], t, base);
        if (!st)
            st = add_tensor_view(plan, &rules[i], t);
    }
    return st;
}

clinfer_status clf_plan(struct clf_plan *plan, const struct clf_op *op, const void *params,
                        const struct clf_caps *caps, enum clf_mode mode)
{
    plan->op = op;
    plan->caps = caps;
    plan->mode = mode;
    plan->num_launches = plan->num_views = 0;
    plan->loop = (struct clf_loop){ 0 };
    plan->workspace = plan->workspace_offset = 0;
    plan->workspace_mem = NULL;
    plan->empty = false;
    plan->error[0] = 0;
    for (size_t i = 0; i < sizeof plan->dim / sizeof plan->dim[0]; i++)
        plan->dim[i] = -1;
    if (!params)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "params is NULL");
    clinfer_status st = op->kv ? clf_kv_validate(plan, params) : CLINFER_OK;
    if (!st)
        st = clf_validate_tensors(plan, op->tensors, op->num_tensors, params);
    if (!st)
        st = op->prepare(plan, params);
    if (!st)
        st = clf_check_aliases(plan, plan->view);
    plan->empty = CLF_DIM(plan, 'T') == 0 || (op->kv && CLF_DIM(plan, 'B') == 0);
    return st;
}
