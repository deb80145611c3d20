// SPDX-License-Identifier: Apache-2.0
#include "plan.h"
#include <clinfer/kv_store.h>
#include <inttypes.h>
#include "ref.h"

#define FIELD(name) offsetof(struct clinfer_kv_store_params, name)
// V is a head's size in v.
static const struct clf_tensor_rule tensors[] = {
    { "k", "T,K,D", FIELD(k), CLF_FLOATS, CLF_IN, NULL, NULL },
    { "v", "T,K,V", FIELD(v), CLF_FLOATS, CLF_OPTIONAL, NULL, NULL },
};

static clinfer_status check(struct clf_plan *plan, const struct clinfer_kv_store_params *p)
{
    enum { MAX_ROW = 1 << 30 }; // kernels count a row's elements in int
    const bool own = clf_kv_given(&p->kv_v);
    const int64_t want = own ? p->kv_v.head_size : p->kv.head_size, K = CLF_DIM(plan, 'K');
    if (p->v.rank && !own && p->kv.planes == 1)
        return clf_fail(plan, CLINFER_ERR_SHAPE, "v: kv has planes 1, want 2, or a kv_v");
    if (p->v.rank && CLF_DIM(plan, 'V') != want)
        return clf_fail(plan, CLINFER_ERR_SHAPE, "v: axis 2 is %" PRId64 ", but head_size of %s is %" PRId64,
                        CLF_DIM(plan, 'V'), own ? "kv_v" : "kv", want);
    const clinfer_status st = clf_check_row(plan, "kv: num_heads * head_size", K * p->kv.head_size, MAX_ROW);
    return st || !own ? st : clf_check_row(plan, "kv_v: num_heads * head_size", K * want, MAX_ROW);
}

// `x` into K's or V's plane; with `both`, k and v in one launch.
static void store(struct clf_plan *plan, const struct clinfer_kv_store_params *p, const clinfer_tensor *x,
                  bool both)
{
    static const clinfer_tensor none;
    const int64_t T = CLF_DIM(plan, 'T');
    struct clf_launch *l = clf_launch_begin(plan, "kv_store", "kv_store", T);
    clf_define_type(l, "SOURCE_T", x->dtype);
    (x == &p->v ? clf_define_paged_v : clf_define_paged)(l, plan, p);
    (x == &p->v ? clf_push_paged_v : clf_push_paged)(l, plan, p);
    clf_push_tensor(l, x, 3);
    clf_push_tensor(l, both ? &p->v : &none, 3);
    clf_push_plane_strides(l, plan, p);
    clf_launch_grid(l, T, both ? 2 : 1, 1);
}

static clinfer_status prepare(struct clf_plan *plan, const void *params)
{
    const struct clinfer_kv_store_params *p = params;
    const clinfer_status st = check(plan, p);
    if (st)
        return st;
    const bool both = p->v.rank && p->v.dtype == p->k.dtype && !clf_kv_given(&p->kv_v);
    store(plan, p, &p->k, both);
    if (p->v.rank && !both)
        store(plan, p, &p->v, false);
    return CLINFER_OK;
}

static void ref(const void *params)
{
    ref_kv_store(params);
}

const struct clf_op clf_op_kv_store = {
    "kv_store", CLF_TENSORS(tensors), CLF_CACHE_FIELDS(clinfer_kv_store_params), false, prepare, ref,
    NULL,       FIELD(kv_v)
};

clinfer_status clinfer_kv_store(clinfer_ctx *ctx, const struct clinfer_kv_store_params *params,
                                cl_uint num_events_in_wait_list, const cl_event *event_wait_list,
                                cl_event *event)
{
    return clf_run(ctx, &clf_op_kv_store, params, num_events_in_wait_list, event_wait_list, event);
}

clinfer_status clinfer_kv_store_compile(clinfer_ctx *ctx, const struct clinfer_kv_store_params *params)
{
    return clf_compile(ctx, &clf_op_kv_store, params);
}
