// SPDX-License-Identifier: Apache-2.0
#include "plan.h"
#include "tune.h"
#include <assert.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

clinfer_status clf_fail(struct clf_plan *plan, clinfer_status status, const char *fmt, ...)
{
    const int n = snprintf(plan->error, sizeof plan->error, "%s: ", plan->op->name);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(plan->error + n, sizeof plan->error - (size_t) n, fmt, ap);
    va_end(ap);
    return status;
}

clinfer_status clf_check_row(struct clf_plan *plan, const char *what, int64_t size, int64_t most)
{
    return size <= most ? CLINFER_OK
                        : clf_fail(plan, CLINFER_ERR_UNSUPPORTED,
                                   "%s is %" PRId64 ", the kernels take at most %" PRId64, what, size, most);
}

clinfer_status clf_check_local(struct clf_plan *plan, const char *kernel, uint64_t bytes)
{
    if (plan->caps->set != CLINFER_SET_GROUP || bytes <= plan->caps->local_bytes)
        return CLINFER_OK;
    return clf_fail(plan, CLINFER_ERR_UNSUPPORTED,
                    "%s takes %" PRIu64 " bytes of local memory, the device has %" PRIu64, kernel, bytes,
                    plan->caps->local_bytes);
}

clinfer_status clf_check_norm(struct clf_plan *plan, float epsilon, clinfer_norm_cast cast)
{
    if (cast != CLINFER_MULTIPLY_THEN_CAST && cast != CLINFER_CAST_THEN_MULTIPLY)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT,
                        "cast is %d, want CLINFER_MULTIPLY_THEN_CAST or CLINFER_CAST_THEN_MULTIPLY",
                        (int) cast);
    if (!(epsilon >= 0))
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "epsilon is %g, want 0 or more", (double) epsilon);
    return CLINFER_OK;
}

struct clf_launch *clf_launch_begin(struct clf_plan *plan, const char *source, const char *kernel,
                                    int64_t count)
{
    assert(plan->num_launches < CLF_MAX_LAUNCHES);
    struct clf_launch *l = &plan->launch[plan->num_launches++];
    l->kind = CLF_KERNEL;
    l->spec.source = source;
    l->spec.set = plan->caps->set;
    l->spec.arith = plan->caps->arith;
    l->spec.num_defs = l->num_args = 0;
    l->kernel = kernel;
    const unsigned exact = CLINFER_CAP_ROUNDED_DIVIDE | CLINFER_CAP_DENORMALS;
    clf_define(l, "ROUNDED_DIVIDE", (plan->caps->bits & exact) == exact);
    l->local[0] = l->local[1] = l->local[2] = 1;
    if (plan->caps->set == CLINFER_SET_GROUP) {
        const struct clf_group_shape shape = clf_tune_group(plan->caps);
        l->local[0] = (size_t) shape.items;
        clf_define(l, "GROUP_ITEMS", shape.items);
        clf_define(l, "LANES", shape.lanes);
        clf_define(l, "SUBGROUPS", plan->caps->subgroup_std);
    }
    clf_push(l, (cl_uint) count);
    return l;
}

void clf_launch_grid(struct clf_launch *l, int64_t x, int64_t y, int64_t z)
{
    const int64_t n[3] = { x, y, z };
    for (int i = 0; i < 3; i++)
        l->global[i] = (size_t) n[i] * l->local[i];
}

void clf_launch_items(struct clf_launch *l, int items)
{
    for (int i = 0; i < l->spec.num_defs; i++)
        if (!strcmp(l->spec.def[i].name, "GROUP_ITEMS")) {
            l->spec.def[i].value = items;
            l->local[0] = (size_t) items;
        }
}

void clf_loop_begin(struct clf_plan *plan, uint32_t times)
{
    assert(!plan->loop.count && times);
    plan->loop.first = plan->num_launches;
    plan->loop.times = times;
}

void clf_loop_end(struct clf_plan *plan)
{
    plan->loop.count = plan->num_launches - plan->loop.first;
}

void clf_define(struct clf_launch *l, const char *name, int64_t value)
{
    assert(l->spec.num_defs < CLF_MAX_DEFS);
    l->spec.def[l->spec.num_defs++] = (struct clf_def){ name, NULL, value };
}

void clf_define_type(struct clf_launch *l, const char *name, clinfer_dtype dtype)
{
    static const char *const format[] = { [CLINFER_F32] = "f32",
                                          [CLINFER_F16] = "f16",
                                          [CLINFER_BF16] = "bf16",
                                          [CLINFER_F8_E4M3] = "f8_e4m3",
                                          [CLINFER_I8] = "i8" };
    assert(l->spec.num_defs < CLF_MAX_DEFS);
    l->spec.def[l->spec.num_defs++] = (struct clf_def){ name, format[dtype], 0 };
}

void clf_push_arg(struct clf_launch *l, struct clf_arg arg)
{
    assert(l->num_args < CLF_MAX_ARGS);
    l->arg[l->num_args++] = arg;
}

void clf_push_i32(struct clf_launch *l, cl_int v)
{
    clf_push_arg(l, (struct clf_arg){ CLF_ARG_SCALAR, sizeof v, { .i32 = v } });
}

void clf_push_u32(struct clf_launch *l, cl_uint v)
{
    clf_push_arg(l, (struct clf_arg){ CLF_ARG_SCALAR, sizeof v, { .u32 = v } });
}

void clf_push_u64(struct clf_launch *l, cl_ulong v)
{
    clf_push_arg(l, (struct clf_arg){ CLF_ARG_SCALAR, sizeof v, { .u64 = v } });
}

void clf_push_f32(struct clf_launch *l, cl_float v)
{
    clf_push_arg(l, (struct clf_arg){ CLF_ARG_SCALAR, sizeof v, { .f32 = v } });
}

void clf_push_mem(struct clf_launch *l, cl_mem mem)
{
    clf_push_arg(l, (struct clf_arg){ CLF_ARG_MEM, sizeof mem, { .mem = mem } });
}

void clf_push_index(struct clf_launch *l)
{
    clf_push_arg(l, (struct clf_arg){ CLF_ARG_INDEX, sizeof(cl_uint), { .u32 = 0 } });
}

int64_t clf_stride(const clinfer_tensor *t, int axis)
{
    int64_t n = 1;
    for (int i = 0; i < t->rank; i++)
        if (t->stride[i])
            return t->stride[axis];
    for (int i = t->rank - 1; i > axis; i--)
        n *= t->shape[i];
    return n;
}

void clf_push_tensor(struct clf_launch *l, const clinfer_tensor *t, int rank)
{
    clf_push_mem(l, t->rank ? t->mem : NULL);
    clf_push(l, t->rank ? (cl_ulong) (t->offset / clinfer_dtype_size(t->dtype)) : (cl_ulong) 0);
    for (int i = 0; i < rank - 1; i++)
        clf_push(l, t->rank ? (cl_ulong) clf_stride(t, i) : (cl_ulong) 0);
}

void clf_push_workspace(struct clf_launch *l, const struct clf_plan *plan, size_t offset)
{
    clf_push_arg(l, (struct clf_arg){ CLF_ARG_WORKSPACE, sizeof(cl_mem), { .mem = NULL } });
    clf_push(l, (cl_ulong) ((plan->workspace_offset + offset) / 4));
}

size_t clf_reserve(struct clf_plan *plan, int64_t count, int64_t size)
{
    const size_t at = plan->workspace;
    size_t bytes;
    if (__builtin_mul_overflow((size_t) count, (size_t) size, &bytes) || bytes > SIZE_MAX - 63 ||
        __builtin_add_overflow(at, (bytes + 63) / 64 * 64, &plan->workspace))
        plan->workspace = SIZE_MAX;
    return at;
}
