// SPDX-License-Identifier: Apache-2.0
// Where arguments lie in memory: inside their buffers, and apart where one is written.
#include "op.h"
#include <string.h>

// Columns of one wider row (q and output as parts of a fused projection) interleave without sharing a byte.
static bool columns_apart(const struct clf_view *a, const struct clf_view *b)
{
    const size_t stride = a->row_stride;
    if (!stride || stride != b->row_stride || a->row_size > stride || b->row_size > stride)
        return false;
    const size_t from = a->begin <= b->begin ? (b->begin - a->begin) % stride
                                             : (stride - (a->begin - b->begin) % stride) % stride;
    return from >= a->row_size && from + b->row_size <= stride;
}

static bool same_place(const struct clf_view *a, const struct clf_view *b)
{
    return a->begin == b->begin && a->end == b->end && a->row_stride == b->row_stride &&
           a->row_size == b->row_size;
}

static bool may_share(const struct clf_view *a, const struct clf_view *b)
{
    if (!a->out && !b->out)
        return true;
    return (a->in_place && !strcmp(a->in_place, b->name) && same_place(a, b)) ||
           (b->in_place && !strcmp(b->in_place, a->name) && same_place(a, b));
}

clinfer_status clf_check_aliases(struct clf_plan *plan, const struct clf_view *views)
{
    for (int i = 0; i < plan->num_views; i++)
        for (int j = 0; j < i; j++) {
            const struct clf_view *a = &views[i], *b = &views[j];
            if (a->mem && a->mem == b->mem && a->begin < b->end && b->begin < a->end && !may_share(a, b) &&
                !columns_apart(a, b))
                return clf_fail(plan, CLINFER_ERR_ALIAS,
                                "%s (bytes %zu to %zu) and %s (bytes %zu to %zu) overlap", a->name, a->begin,
                                a->end, b->name, b->begin, b->end);
        }
    return CLINFER_OK;
}

// Moves a view to the buffer that its sub-buffer is part of.
static cl_int to_root(struct clf_view *v, bool *moved)
{
    cl_mem root = NULL;
    size_t at = 0;
    cl_int err = clGetMemObjectInfo(v->mem, CL_MEM_ASSOCIATED_MEMOBJECT, sizeof root, &root, NULL);
    if (err || !root)
        return err;
    err = clGetMemObjectInfo(v->mem, CL_MEM_OFFSET, sizeof at, &at, NULL);
    v->mem = root;
    v->begin += at;
    v->end += at;
    *moved = true;
    return err;
}

clinfer_status clf_check_views(struct clf_plan *plan)
{
    struct clf_view root[CLF_MAX_VIEWS];
    bool moved = false;
    memcpy(root, plan->view, sizeof root);
    for (int i = 0; i < plan->num_views; i++) {
        const struct clf_view *v = &plan->view[i];
        size_t size = 0;
        cl_int err = clGetMemObjectInfo(v->mem, CL_MEM_SIZE, sizeof size, &size, NULL);
        if (!err)
            err = to_root(&root[i], &moved);
        if (err)
            return clf_fail(plan, (clinfer_status) err, "%s: its buffer cannot be queried: %s", v->name,
                            clinfer_status_str((clinfer_status) err));
        if (v->end > size)
            return clf_fail(plan, CLINFER_ERR_BOUNDS, "%s reaches byte %zu of a buffer of %zu bytes", v->name,
                            v->end, size);
    }
    return moved ? clf_check_aliases(plan, root) : CLINFER_OK;
}
