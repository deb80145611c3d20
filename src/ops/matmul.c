// SPDX-License-Identifier: Apache-2.0
#include <clinfer/matmul.h>
#include <inttypes.h>
#include <math.h>
#include "matmul.h"
#include "ref.h"
#include "validate.h"

#define FIELD(name) offsetof(struct clinfer_matmul_params, name)
static const struct clf_tensor_rule tensors[] = {
    { "x", "T,[H],K", FIELD(x), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "w", "[H],N,K", FIELD(w), CLF_FLOATS | CLF_F8 | CLF_I8, CLF_WEIGHT, NULL, NULL },
    { "w_scale", "[H],a,b", FIELD(w_scale), CLF_F32 | CLF_F16, CLF_OPTIONAL, NULL, NULL },
    { "bias", "N", FIELD(bias), CLF_FLOATS, CLF_OPTIONAL, NULL, NULL },
    { "output", "T,[H],N", FIELD(output), CLF_FLOATS, CLF_OUT, "x", NULL },
};

enum { Q8_0_BLOCK = 32 };

static int64_t row_block(const struct clinfer_matmul_params *p)
{
    return p->w.dtype == CLINFER_F8_E4M3 ? p->n_granularity : 1;
}

static int64_t column_block(const struct clinfer_matmul_params *p)
{
    return p->w.dtype == CLINFER_F8_E4M3 ? p->k_granularity : Q8_0_BLOCK;
}

static clinfer_status check_scale(struct clf_plan *plan, const struct clinfer_matmul_params *p)
{
    const clinfer_dtype dtype = p->w.dtype == CLINFER_I8 ? CLINFER_F16 : CLINFER_F32;
    const char *type = clinfer_dtype_str(p->w.dtype);
    if (p->w.dtype != CLINFER_F8_E4M3 && p->w.dtype != CLINFER_I8)
        return p->w_scale.rank ? clf_fail(plan, CLINFER_ERR_ARGUMENT,
                                          "w_scale with weights of type %s, which has none", type)
                               : CLINFER_OK;
    if (!p->w_scale.rank)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "w is %s, but there is no w_scale", type);
    if (p->w_scale.dtype != dtype)
        return clf_fail(plan, CLINFER_ERR_TYPE, "w_scale: type %s, but with %s weights want %s",
                        clinfer_dtype_str(p->w_scale.dtype), type, clinfer_dtype_str(dtype));
    if (row_block(p) < 1 || column_block(p) < 1 || row_block(p) > INT32_MAX || column_block(p) > INT32_MAX)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT,
                        "n_granularity is %" PRId64 ", k_granularity %" PRId64 ", want 1 to %d",
                        p->n_granularity, p->k_granularity, INT32_MAX);
    const int64_t rows = clf_blocks(CLF_DIM(plan, 'N'), row_block(p)),
                  columns = clf_blocks(CLF_DIM(plan, 'K'), column_block(p));
    if (CLF_DIM(plan, 'a') != rows || CLF_DIM(plan, 'b') != columns)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "w_scale: [%" PRId64 ", %" PRId64 "], want [%" PRId64 ", %" PRId64 "]",
                        CLF_DIM(plan, 'a'), CLF_DIM(plan, 'b'), rows, columns);
    return CLINFER_OK;
}

static clinfer_status check(struct clf_plan *plan, const struct clinfer_matmul_params *p)
{
    const int64_t N = CLF_DIM(plan, 'N'), K = CLF_DIM(plan, 'K'), H = CLF_DIM(plan, 'H');
    if (N < 1 || K < 1 || H < 1)
        return clf_fail(plan, CLINFER_ERR_SHAPE,
                        "w: N is %" PRId64 ", Kd %" PRId64 ", Hb %" PRId64 ", want at least 1 each", N, K, H);
    if (p->bias.rank && p->x.rank > 2)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "bias does not go with a batch: x has rank %d, want 2",
                        p->x.rank);
    if (!(p->x_scale_bound >= 0))
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "x_scale_bound is %g, want 0 or more",
                        (double) p->x_scale_bound);
    if (p->workspace_offset % 64)
        return clf_fail(plan, CLINFER_ERR_ARGUMENT, "workspace_offset is %zu, want a multiple of 64",
                        p->workspace_offset);
    return check_scale(plan, p);
}

// The tensor with an axis of one head where it has none.
static clinfer_tensor with_heads(const clinfer_tensor *t, int axis)
{
    clinfer_tensor to = *t;
    if (t->rank != 2)
        return to;
    to.rank = 3;
    to.shape[axis] = to.stride[axis] = 1; // the stride of an axis of one element says nothing
    for (int i = 0; i < 2; i++) {
        to.shape[i + (i >= axis)] = t->shape[i];
        to.stride[i + (i >= axis)] = clf_stride(t, i);
    }
    return to;
}

static clinfer_status prepare(struct clf_plan *plan, const void *params)
{
    const struct clinfer_matmul_params *p = params;
    clinfer_status st = check(plan, p);
    if (st)
        return st;
    const clinfer_tensor x = with_heads(&p->x, 1), w = with_heads(&p->w, 0),
                         w_scale = with_heads(&p->w_scale, 0), y = with_heads(&p->output, 1);
    struct clf_matmul m = { .tokens = CLF_DIM(plan, 'T'),
                            .heads = CLF_DIM(plan, 'H'),
                            .rows = CLF_DIM(plan, 'N'),
                            .columns = CLF_DIM(plan, 'K'),
                            .x_tensor = &x,
                            .w = &w,
                            .w_scale = &w_scale,
                            .bias = &p->bias,
                            .row_block = p->n_granularity,
                            .column_block = p->k_granularity,
                            .x_scale_bound = p->x_scale_bound > 0 ? p->x_scale_bound : HUGE_VALF,
                            .y = &y,
                            .round = p->output.dtype,
                            .alpha = 1.0f,
                            .all_valid = true };
    plan->workspace_mem = p->workspace;
    plan->workspace_offset = p->workspace ? p->workspace_offset : 0;
    clf_reserve_matmul(plan, &m, 1);
    if (plan->workspace == SIZE_MAX)
        return clf_fail(plan, CLINFER_ERR_SHAPE, "the workspace of %" PRId64 " tokens passes 2^64 bytes",
                        m.tokens);
    if (p->workspace && (st = clf_add_view(plan, "workspace", p->workspace, p->workspace_offset,
                                           (int64_t) plan->workspace, 1, true)))
        return st;
    return clf_push_matmul(plan, &m);
}

static void ref(const void *params)
{
    ref_matmul(params);
}

static void shrink(void *params, int64_t tokens)
{
    struct clinfer_matmul_params *p = params;
    (void) tokens;
    p->workspace = NULL;
    p->workspace_offset = 0;
}

// Some tiles of rows, and more columns than are decoded at a time, with a vector's rest where there is one.
static void shrink_dims(int64_t *dim, const void *params)
{
    enum { ROWS = 24, COLUMNS = 528 };
    const struct clinfer_matmul_params *p = params;
    int64_t *N = &dim['N' - 'A'], *K = &dim['K' - 'A'], *H = &dim['H' - 'A'];
    *H = *H < 2 ? *H : 2;
    *N = *N < 2 * ROWS ? *N : ROWS + *N % ROWS;
    *K = *K < COLUMNS ? *K : COLUMNS + *K % 16;
    if (p->w_scale.rank) {
        dim['a' - 'A'] = clf_blocks(*N, row_block(p));
        dim['b' - 'A'] = clf_blocks(*K, column_block(p));
    }
}

const struct clf_op clf_op_matmul = { .name = "matmul",
                                      .tensors = tensors,
                                      .num_tensors = sizeof tensors / sizeof tensors[0],
                                      .params_size = sizeof(struct clinfer_matmul_params),
                                      .queue = FIELD(queue),
                                      .prepare = prepare,
                                      .ref = ref,
                                      .shrink = shrink,
                                      .shrink_dims = shrink_dims };

clinfer_status clinfer_matmul(clinfer_ctx *ctx, const struct clinfer_matmul_params *params,
                              cl_uint num_events_in_wait_list, const cl_event *event_wait_list,
                              cl_event *event)
{
    return clf_run(ctx, &clf_op_matmul, params, num_events_in_wait_list, event_wait_list, event);
}

clinfer_status clinfer_matmul_compile(clinfer_ctx *ctx, const struct clinfer_matmul_params *params)
{
    return clf_compile(ctx, &clf_op_matmul, params);
}

clinfer_status clinfer_matmul_workspace(clinfer_ctx *ctx, const struct clinfer_matmul_params *params,
                                        size_t *bytes)
{
    return clf_measure(ctx, &clf_op_matmul, params, bytes);
}
