// SPDX-License-Identifier: Apache-2.0
// Planning is pure, and allocates nothing.
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "plan_fixture.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define COUNT_BY_HOOK 1
#endif
#endif
#if defined(__SANITIZE_ADDRESS__)
#define COUNT_BY_HOOK 1
#endif

TestSuite(plan_pure, .timeout = 30);

static void assert_same_launch(const struct clf_launch *a, const struct clf_launch *b)
{
    cr_assert_eq(a->kind, b->kind);
    if (a->kind == CLF_GEMM)
        cr_assert_eq(memcmp(&a->gemm, &b->gemm, sizeof a->gemm), 0);
    cr_assert_eq(a->spec.num_defs, b->spec.num_defs);
    for (int i = 0; i < a->spec.num_defs; i++) {
        const struct clf_def *x = &a->spec.def[i], *y = &b->spec.def[i];
        cr_assert(x->name == y->name && x->text == y->text && x->value == y->value, "define %s", x->name);
    }
    cr_assert_eq(a->num_args, b->num_args);
    for (int i = 0; i < a->num_args; i++) {
        cr_assert_eq(a->arg[i].kind, b->arg[i].kind);
        cr_assert_eq(a->arg[i].size, b->arg[i].size);
        cr_assert_arr_eq(&a->arg[i].v, &b->arg[i].v, a->arg[i].size);
    }
    cr_assert_eq(a->spec.source, b->spec.source);
    cr_assert(a->spec.set == b->spec.set && a->spec.arith == b->spec.arith);
    cr_assert_str_eq(a->kernel, b->kernel);
    cr_assert_arr_eq(a->global, b->global, sizeof a->global);
    cr_assert_arr_eq(a->local, b->local, sizeof a->local);
}

// The calls that are planned.
static struct {
    const struct clf_op *op;
    const void *params;
    clinfer_gemm gemm;
} plans[24];
static int num_plans;

static clinfer_status plan_each(int i, struct clf_plan *plan)
{
    struct clf_caps caps = fixture_caps;
    caps.gemm = plans[i].gemm;
    return clf_plan(plan, plans[i].op, plans[i].params, &caps, CLF_CALL);
}

#define ADD(name, good, by)                                                                                  \
    do {                                                                                                     \
        static struct clinfer_##name##_params params;                                                        \
        params = good();                                                                                     \
        plans[num_plans].op = &clf_op_##name;                                                                \
        plans[num_plans].params = &params;                                                                   \
        plans[num_plans++].gemm = by;                                                                        \
    } while (0)

static void set_up_all(void)
{
    num_plans = 0;
    ADD(fused_qk_rope, good_rope, CLINFER_GEMM_OWN);
    ADD(rms_norm_kv_cache, good_norm, CLINFER_GEMM_OWN);
    ADD(mla_fused_rope_rmsnorm, good_store, CLINFER_GEMM_OWN);
    ADD(mla_decode_branch, good_decode, CLINFER_GEMM_OWN);
    ADD(mla_decode_branch, good_decode_fp8, CLINFER_GEMM_OWN);
    ADD(mla_decode_branch, good_decode_fp8, CLINFER_GEMM_CLBLAST);
    ADD(kv_store, good_kv_store, CLINFER_GEMM_OWN);
    ADD(silu_mul, good_silu_mul, CLINFER_GEMM_OWN);
    ADD(rms_norm, good_rms_norm, CLINFER_GEMM_OWN);
    ADD(merge_states, good_merge_states, CLINFER_GEMM_OWN);
    ADD(matmul, good_matmul, CLINFER_GEMM_OWN);
    ADD(matmul, good_matmul_fp8, CLINFER_GEMM_OWN);
    ADD(matmul, good_matmul_fp8, CLINFER_GEMM_CLBLAST);
    ADD(paged_attention, good_attention, CLINFER_GEMM_OWN);
    ADD(mla_prefill_branch, good_prefill, CLINFER_GEMM_OWN);
    ADD(mla_prefill_branch, good_prefill_fp8, CLINFER_GEMM_CLBLAST);
}

// Whatever the memory held before, and whatever was planned in between.
Test(plan_pure, planning_is_pure, .init = set_up_all)
{
    static struct clf_plan a, b;
    for (int i = 0; i < num_plans; i++) {
        memset(&a, 0, sizeof a);
        memset(&b, 0xA5, sizeof b);
        cr_assert_eq(plan_each(i, &a), CLINFER_OK, "%s", a.error);
        cr_assert_eq(plan_each((i + 1) % num_plans, &b), CLINFER_OK, "%s", b.error);
        cr_assert_eq(plan_each(i, &b), CLINFER_OK, "%s", b.error);
        cr_assert_eq(a.num_launches, b.num_launches);
        cr_assert_eq(a.num_views, b.num_views);
        cr_assert(a.loop.first == b.loop.first && a.loop.count == b.loop.count &&
                  a.loop.times == b.loop.times);
        cr_assert_eq(a.workspace, b.workspace);
        cr_assert_arr_eq(a.dim, b.dim, sizeof a.dim);
        for (int k = 0; k < a.num_launches; k++)
            assert_same_launch(&a.launch[k], &b.launch[k]);
    }
}

static volatile long allocations;
static volatile int counting;

#ifdef COUNT_BY_HOOK
// Of sanitizer/allocator_interface.h, which gcc does not bring.
int __sanitizer_install_malloc_and_free_hooks(void (*on_malloc)(const volatile void *, size_t),
                                              void (*on_free)(const volatile void *));
static void on_malloc(const volatile void *at, size_t size)
{
    (void) at, (void) size;
    allocations += counting;
}
static void on_free(const volatile void *at)
{
    (void) at;
}
static void start_counting(void)
{
    cr_assert_neq(__sanitizer_install_malloc_and_free_hooks(on_malloc, on_free), 0);
}
#else
// The C library's own entry points, so that every allocation of the process is seen.
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *at, size_t size);
void *malloc(size_t size)
{
    allocations += counting;
    return __libc_malloc(size);
}
void *calloc(size_t n, size_t size)
{
    allocations += counting;
    return __libc_calloc(n, size);
}
void *realloc(void *at, size_t size)
{
    allocations += counting;
    return __libc_realloc(at, size);
}
static void start_counting(void) {}
#endif

Test(plan_pure, planning_allocates_nothing, .init = set_up_all)
{
    static struct clf_plan plan;
    clinfer_status st = CLINFER_OK;
    start_counting();
    counting = 1;
    void *volatile probe = malloc(1);
    counting = 0;
    free(probe);
    cr_assert_eq(allocations, 1, "the counter does not count");
    allocations = 0;
    counting = 1;
    for (int i = 0; i < num_plans && !st; i++)
        st = plan_each(i, &plan);
    counting = 0;
    cr_assert_eq(st, CLINFER_OK, "%s", plan.error);
    cr_assert_eq(allocations, 0);
}
