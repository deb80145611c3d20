// SPDX-License-Identifier: Apache-2.0
// Projections by CLBlast against case files and the reference.
#include "gemm_fixture.h"
#include <stdatomic.h>
#include <unistd.h>

#include "optest_matmul.h"
#include "optest_mla.h"

TestSuite(gemm, .timeout = 300);

static void check_file(const char *name)
{
    char path[1024];
    struct op_case c;
    struct op_device on = { 0 };
    struct cmp_result results[OP_MAX_TENSORS];
    const char *dir = getenv("CLINFER_TEST_DATA");
    const cl_command_queue queue = clinfer_ctx_queue(ctx);
    (void) snprintf(path, sizeof path, "%s/%s.safetensors", dir ? dir : "tests/data", name);
    cr_assert(op_case_load(path, &c, error, sizeof error), "%s", error);
    cr_assert(op_device_open(&c, clinfer_ctx_cl_context(ctx), &on, error, sizeof error), "%s", error);
    cr_assert(op_device_upload(&c, &on, queue, error, sizeof error), "%s", error);
    const clinfer_status st = c.op->run(ctx, on.params, 0, NULL, NULL);
    (void) clinfer_ctx_error(ctx, error, sizeof error);
    cr_assert_eq(st, CLINFER_OK, "%s: %s", name, error);
    cr_assert(op_device_download(&c, &on, queue, error, sizeof error), "%s", error);
    const int n = cmp_expected(&c, results, error, sizeof error);
    cr_expect_gt(n, 0, "%s: nothing to compare: %s", name, error);
    for (int i = 0; i < n; i++)
        cr_expect(results[i].ok, "%s: %s is off by %g, tolerance %g, cosine %g", name, results[i].tensor,
                  results[i].max_err, results[i].tolerance, results[i].cosine);
    op_device_close(&on);
    op_case_free(&c);
}

Test(gemm, case_files)
{
    OPEN_CLBLAST_OR_SKIP(0);
    check_file("mla_decode_bf16_weights");
    check_file("mla_decode_f32_weights");
    check_file("mla_decode_small"); // fp8
    check_file("mla_decode_padding_rows");
    expect_calls(8);
    check_file("mla_decode_no_nope");
    expect_calls(9);
    check_file("matmul_bf16");
    check_file("matmul_f32_one_row");
    check_file("matmul_fp8");
    check_file("matmul_batched_fp8");
    expect_calls(13);
    clinfer_ctx_destroy(&ctx);
}

// Heads, rows and columns that are no multiples of anything, strides, offsets and guards.
Test(gemm, random_call)
{
    OPEN_CLBLAST_OR_SKIP(0);
    const struct ot_device d = { ctx, clinfer_ctx_cl_context(ctx), clinfer_ctx_queue(ctx) };
    struct mla_shape s = mla_plain;
    s.weights = CLINFER_F8_E4M3;
    s.gamma = CLINFER_F16;
    s.group = 10;
    struct ot_call c = mla_prepared(&s, &mla_mixed, "gemm");
    mla_check(&c, &d);
    expect_calls(2);
    ot_free(&c);
    clinfer_ctx_destroy(&ctx);
}

// matmul with strides: of x where it lies, Q8_0 decoded, and one of a batch.
Test(gemm, random_matmul)
{
    OPEN_CLBLAST_OR_SKIP(0);
    const struct ot_device d = { ctx, clinfer_ctx_cl_context(ctx), clinfer_ctx_queue(ctx) };
    const struct mm_shape shapes[] = {
        { 7, 0, 21, 45, CLINFER_F32, CLINFER_F32, CLINFER_F16, 0, 0, 0 },
        { 3, 0, 21, 45, CLINFER_F16, CLINFER_I8, CLINFER_F32, 0, 0, 0 },
        { 5, 3, 10, 33, CLINFER_F32, CLINFER_BF16, 0, 0, 0, 0 },
        { 1, 0, 1, 1, CLINFER_F32, CLINFER_F32, 0, 0, 0, 0 },
    };
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        mm_check(&shapes[i], "gemm matmul", &d);
    expect_calls(4);
    clinfer_ctx_destroy(&ctx);
}

// Whom nobody forces: on every set for few tokens, and on the row set always, own kernels.
Test(gemm, own)
{
    struct rig r;
    for (int gemm = CLINFER_GEMM_AUTO; gemm <= CLINFER_GEMM_OWN; gemm++) {
        const struct clinfer_ctx_params row = { .kernel_set = CLINFER_SET_ROW };
        cr_assert_eq(try_open(row, (clinfer_gemm) gemm), CLINFER_OK, "%s", error);
        rig_make(&r, "mla_decode_branch", NULL);
        cr_assert_eq(rig_run(&r, ctx), CLINFER_OK);
        rig_reference(&r);
        cr_expect(rig_same(&r), "%s", r.note);
        expect_calls(0);
        rig_free(&r);
        clinfer_ctx_destroy(&ctx);
    }
}

Test(gemm, forced_where_it_is_not)
{
    const struct clinfer_ctx_params none = { 0 };
    const clinfer_status st = try_open(none, CLINFER_GEMM_CLBLAST);
    cr_assert(st == CLINFER_OK || (st == CLINFER_ERR_UNSUPPORTED && !ctx && strstr(error, "CLBlast")),
              "%s: %s", clinfer_status_str(st), error);
    clinfer_ctx_destroy(&ctx);
    cr_assert_eq(try_open(none, (clinfer_gemm) 3), CLINFER_ERR_ARGUMENT);
    cr_assert(strstr(error, "gemm is 3"), "%s", error);
}

// Scratch full of numbers: what is left in it for tokens without a result shows where it is written.
static void use_ones(struct ot_call *c, void *params)
{
    static const cl_float one = 1;
    cl_mem *mem = c->adjust_priv;
    size_t bytes;
    cl_int err;
    cr_assert_eq(clinfer_mla_decode_branch_workspace(ctx, params, &bytes), CLINFER_OK);
    *mem = clCreateBuffer(clinfer_ctx_cl_context(ctx), CL_MEM_READ_WRITE, bytes, NULL, &err);
    cr_assert_eq(err, CL_SUCCESS);
    cr_assert_eq(clEnqueueFillBuffer(clinfer_ctx_queue(ctx), *mem, &one, 4, 0, bytes, 0, NULL, NULL),
                 CL_SUCCESS);
    ((struct clinfer_mla_decode_branch_params *) params)->workspace = *mem;
}

// The group set: left to itself, CLBlast takes 64 tokens and no fewer.
Test(gemm, group_set)
{
    char path[1024];
    const char *dir = getenv("CLINFER_CL_SRC");
    (void) snprintf(path, sizeof path, "%s/group/mla_decode_branch.cl", dir ? dir : "cl");
    if (access(path, R_OK))
        SKIP("gemm", "the group set has no mla_decode_branch");
    OPEN_CLBLAST_OR_SKIP(0);
    clinfer_ctx_destroy(&ctx);
    const struct clinfer_ctx_params group = { .kernel_set = CLINFER_SET_GROUP };
    cr_assert_eq(try_open(group, CLINFER_GEMM_AUTO), CLINFER_OK, "%s", error);
    const struct ot_device d = { ctx, clinfer_ctx_cl_context(ctx), clinfer_ctx_queue(ctx) };
    struct mla_shape s = mla_plain;
    struct ot_batch b = mla_mixed;
    s.weights = CLINFER_F8_E4M3;
    s.gamma = CLINFER_F16;
    for (int tokens = 63; tokens <= 64; tokens++) {
        b.padding = tokens - ot_used(&b);
        struct ot_call c = mla_prepared(&s, &b, "gemm group");
        cl_mem mem = NULL;
        c.adjust = use_ones;
        c.adjust_priv = &mem;
        mla_check(&c, &d);
        expect_calls(tokens < 64 ? 0 : 2);
        (void) clReleaseMemObject(mem);
        ot_free(&c);
    }
    const struct mm_shape half = { 64, 0, 9, 21, CLINFER_F16, CLINFER_BF16, CLINFER_F32, 0, 0, 0 };
    mm_check(&half, "gemm group", &d);
    expect_calls(3);
    clinfer_ctx_destroy(&ctx);
}

static atomic_int reports, products;

static void on_profile(void *priv, const char *op, const char *kernel, uint64_t nanoseconds)
{
    (void) priv, (void) op, (void) nanoseconds;
    products += !strcmp(kernel, "clblast_sgemm");
    reports++;
}

// Behind the caller's wait list, with the caller's scratch, which holds NaN: nothing of it gets into a
// result.
static void run_gated(struct rig *r)
{
    struct clinfer_mla_decode_branch_params *p = &r->params.decode;
    const cl_context cl = clinfer_ctx_cl_context(ctx);
    const cl_command_queue queue = clinfer_ctx_queue(ctx);
    static const cl_uint nan = 0x7fc00000u; // not what the rig poisons with
    size_t bytes;
    cl_int err;
    cl_event gate = clCreateUserEvent(cl, &err), done;
    cr_assert_eq(clinfer_mla_decode_branch_workspace(ctx, p, &bytes), CLINFER_OK);
    p->workspace = clCreateBuffer(cl, CL_MEM_READ_WRITE, bytes, NULL, &err);
    cr_assert_eq(err, CL_SUCCESS);
    cr_assert_eq(clEnqueueFillBuffer(queue, p->workspace, &nan, 4, 0, bytes, 0, NULL, NULL), CL_SUCCESS);
    cr_assert_eq(clFinish(queue), CL_SUCCESS);
    const clinfer_status st = r->op->run(ctx, p, 1, &gate, &done);
    cr_assert_eq(clSetUserEventStatus(gate, CL_COMPLETE), CL_SUCCESS);
    (void) clinfer_ctx_error(ctx, error, sizeof error);
    cr_assert_eq(st, CLINFER_OK, "%s", error);
    cr_assert_eq(clWaitForEvents(1, &done), CL_SUCCESS);
    clReleaseEvent(done);
    clReleaseEvent(gate);
    clReleaseMemObject(p->workspace);
    p->workspace = NULL;
}

static void check_queue(clinfer_ctx *owner, cl_command_queue_properties properties)
{
    struct rig r;
    cl_command_queue queue = new_queue(owner, properties | CL_QUEUE_PROFILING_ENABLE);
    reports = products = 0;
    OPEN_CLBLAST_OR_SKIP(.queue = queue, .profile = on_profile);
    rig_make(&r, "mla_decode_branch", NULL);
    cr_assert_eq(rig_open(&r, clinfer_ctx_cl_context(ctx)), CL_SUCCESS);
    cr_assert_eq(rig_upload(&r, queue), CL_SUCCESS);
    run_gated(&r);
    cr_assert_eq(rig_download(&r, queue), CL_SUCCESS);
    rig_reference(&r);
    cr_expect(rig_same(&r), "%s", r.note);
    expect_calls(2);
    for (int i = 0; reports < 8 && i < 1000; i++)
        usleep(5000);
    cr_expect(reports == 8 && products == 2, "%d reports, %d of CLBlast", reports, products);
    rig_free(&r);
    clinfer_ctx_destroy(&ctx);
    clReleaseCommandQueue(queue);
}

Test(gemm, queues)
{
    OPEN_CLBLAST_OR_SKIP(0);
    clinfer_ctx *owner = ctx;
    check_queue(owner, 0);
    check_queue(owner, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    clinfer_ctx_destroy(&owner);
}
