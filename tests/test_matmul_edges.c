// SPDX-License-Identifier: Apache-2.0
#include "optest_matmul.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

TestSuite(matmul, .timeout = 300);

Test(matmul, no_tokens)
{
    const struct mm_shape s = { 0, 2, 5, 7, CLINFER_BF16, CLINFER_BF16, 0, 0, 0, 0 };
    struct ot_device d = ot_open(0);
    struct ot_call c;
    mm_begin(&c, &s, "matmul none");
    ot_check(&c, &d);
    ot_unchanged(&c);
    ot_free(&c);
    ot_close(&d);
}

// What is no number, or infinite, reaches the outputs of its row or token, and no other.
static void check_nonfinite(const struct ot_device *d, clinfer_dtype w, int64_t tokens, const char *where,
                            double value)
{
    const struct mm_shape s = { tokens, 0, 20, 75, CLINFER_F32, w, CLINFER_F32, 1, 25, 0 };
    struct ot_call c;
    mm_begin(&c, &s, "matmul nonfinite");
    const int64_t row = 13, token = tokens - 1, last = mm_params(&c)->w_scale.rank ? 2 : 74;
    if (!strcmp(where, "x"))
        ot_set(&c, "x", token, 74, 0, value);
    else
        ot_set(&c, where, row, !strcmp(where, "w") ? 74 : !strcmp(where, "bias") ? 0 : last, 0, value);
    ot_check(&c, d);
    for (int64_t t = 0; t < tokens; t++)
        for (int64_t n = 0; n < s.rows; n++) {
            const bool hit =
                !strcmp(where, "x") ? t == token && !(w == CLINFER_F8_E4M3 && isinf(value)) : n == row;
            const double got = ot_get(&c, "output", OT_GOT, t, n, 0);
            cr_expect_eq(!isfinite(got), hit, "%s: %s of %g gives [%d][%d] %g", c.note, where, value, (int) t,
                         (int) n, got);
        }
    ot_free(&c);
}

Test(matmul, nonfinite)
{
    struct ot_device d = ot_open(0);
    for (int64_t tokens = 1; tokens <= 6; tokens += 5) { // with tiles that decode weights at once, and before
        check_nonfinite(&d, CLINFER_F32, tokens, "x", NAN);
        check_nonfinite(&d, CLINFER_F32, tokens, "x", INFINITY);
        check_nonfinite(&d, CLINFER_F32, tokens, "w", NAN);
        check_nonfinite(&d, CLINFER_F32, tokens, "w", -INFINITY);
        check_nonfinite(&d, CLINFER_F32, tokens, "bias", NAN);
        check_nonfinite(&d, CLINFER_F32, tokens, "bias", INFINITY);
        check_nonfinite(&d, CLINFER_F8_E4M3, tokens, "x", NAN);
        check_nonfinite(&d, CLINFER_F8_E4M3, tokens, "x", INFINITY); // saturates
        check_nonfinite(&d, CLINFER_F8_E4M3, tokens, "w", NAN);
        check_nonfinite(&d, CLINFER_F8_E4M3, tokens, "w_scale", NAN);
        check_nonfinite(&d, CLINFER_F8_E4M3, tokens, "w_scale", INFINITY);
    }
    ot_close(&d);
}

// The extreme codes of Q8_0, and an infinite scale on the last, short block.
Test(matmul, q8_extremes)
{
    const struct mm_shape s = { 2, 0, 3, 40, CLINFER_F32, CLINFER_I8, 0, 0, 0, 0 };
    static const double codes[] = { -128, 127, 0, 1 }, scales[] = { 65504, -5.9604644775390625e-8, INFINITY };
    struct ot_device d = ot_open(0);
    struct ot_call c;
    mm_begin(&c, &s, "matmul q8");
    for (int64_t n = 0; n < 3; n++) {
        for (int64_t k = 0; k < 40; k++)
            ot_set(&c, "w", n, k, 0, k < 32 ? codes[k % 4] : 3);
        for (int64_t b = 0; b < 2; b++)
            ot_set(&c, "w_scale", n, b, 0, n == 2 && !b ? 1 : scales[n]);
    }
    for (int64_t k = 32; k < 40; k++)
        ot_set(&c, "x", 0, k, 0, 1);
    ot_check(&c, &d);
    cr_expect(isinf(ot_get(&c, "output", OT_GOT, 0, 2, 0)) &&
              isfinite(ot_get(&c, "output", OT_GOT, 0, 0, 0)));
    ot_free(&c);
    ot_close(&d);
}

// The caller's workspace.
struct workspace {
    cl_mem mem;
    size_t offset;
};

static void use_workspace(struct ot_call *c, void *params)
{
    const struct workspace *w = c->adjust_priv;
    ((struct clinfer_matmul_params *) params)->workspace = w->mem;
    ((struct clinfer_matmul_params *) params)->workspace_offset = w->offset;
}

static size_t bytes_for(const struct ot_device *d, struct ot_call *c)
{
    size_t bytes = 0;
    cr_assert_eq(clinfer_matmul_workspace(d->ctx, c->params, &bytes), CLINFER_OK);
    return bytes;
}

// What is asked for is enough, nothing past it is touched, and one byte less is an error; it grows with T.
Test(matmul, workspace)
{
    enum { OFFSET = 192, GUARD = 256 };
    struct ot_device d = ot_open(0);
    size_t last = 0;
    for (int64_t tokens = 1; tokens < 100; tokens += tokens < 6 ? 1 : 17) {
        const struct mm_shape s = { tokens, 0, 20, 75, CLINFER_BF16, CLINFER_F8_E4M3, 0, 8, 16, 0 };
        struct ot_call c;
        mm_begin(&c, &s, "matmul workspace");
        const size_t bytes = bytes_for(&d, &c);
        cr_expect(bytes >= last && bytes > 0, "%zu bytes for %d tokens, %zu for fewer", bytes, (int) tokens,
                  last);
        last = bytes;
        if (tokens % 5 == 1) {
            unsigned char *all = malloc(OFFSET + bytes + GUARD);
            cl_int err;
            cr_assert(all);
            memset(all, 0xff, OFFSET + bytes + GUARD);
            struct workspace w = { clCreateBuffer(d.cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                                                  OFFSET + bytes + GUARD, all, &err),
                                   OFFSET };
            cr_assert_eq(err, CL_SUCCESS);
            c.adjust = use_workspace;
            c.adjust_priv = &w;
            ot_check(&c, &d);
            cr_assert_eq(
                clEnqueueReadBuffer(d.queue, w.mem, CL_TRUE, 0, OFFSET + bytes + GUARD, all, 0, NULL, NULL),
                CL_SUCCESS);
            for (size_t i = 0; i < OFFSET + GUARD; i++)
                cr_assert(all[i < OFFSET ? i : i + bytes] == 0xff,
                          "a byte outside the workspace was written");
            w.offset += (GUARD + 63) / 64 * 64 + 64;
            cr_expect_eq(ot_try(&c, &d), CLINFER_ERR_BOUNDS);
            (void) clReleaseMemObject(w.mem);
            free(all);
        }
        ot_free(&c);
    }
    ot_close(&d);
}

// Rows of weights past 2^32 elements.
struct far_weights {
    const struct ot_device *d;
    cl_mem mem;
};
static const int64_t far = (INT64_C(1) << 31) + 64;

static void use_far_weights(struct ot_call *c, void *params)
{
    const struct far_weights *f = c->adjust_priv;
    clinfer_tensor *w = &((struct clinfer_matmul_params *) params)->w;
    const int64_t row = w->stride[0] ? w->stride[0] : w->shape[1];
    for (int64_t n = 0; n < w->shape[0]; n++)
        cr_assert_eq(clEnqueueCopyBuffer(f->d->queue, w->mem, f->mem, w->offset + (size_t) (n * row),
                                         (size_t) (n * far), (size_t) w->shape[1], 0, NULL, NULL),
                     CL_SUCCESS);
    w->mem = f->mem;
    w->offset = 0;
    w->stride[0] = far;
    w->stride[1] = 1;
}

Test(matmul, weights_far_apart)
{
    struct ot_device d = ot_open(0);
    struct clinfer_device_info info;
    struct far_weights f = { .d = &d };
    const size_t bytes = (size_t) (2 * far) + 64;
    clinfer_ctx_device_info(d.ctx, &info);
    if (info.max_alloc < bytes)
        cr_skip_test("the device allocates at most %llu bytes at once, %zu are needed",
                     (unsigned long long) info.max_alloc, bytes);
    cl_int err;
    f.mem = clCreateBuffer(d.cl, CL_MEM_READ_WRITE, bytes, NULL, &err);
    cr_assert_eq(err, CL_SUCCESS);
    for (int64_t tokens = 1; tokens <= 6; tokens += 5) {
        const struct mm_shape s = { tokens, 0, 3, 50, CLINFER_F32, CLINFER_I8, 0, 0, 0, 0 };
        struct ot_call c;
        mm_begin(&c, &s, "matmul far");
        c.adjust = use_far_weights;
        c.adjust_priv = &f;
        ot_check(&c, &d);
        ot_free(&c);
    }
    (void) clReleaseMemObject(f.mem);
    ot_close(&d);
}

// Without what some devices lack, results stay the same.
Test(matmul, fewer_capabilities)
{
    struct ot_device d =
        ot_open(CLINFER_CAP_DENORMALS | CLINFER_CAP_ROUNDED_DIVIDE | CLINFER_CAP_FMA | CLINFER_CAP_SUBGROUPS);
    const struct mm_shape s = { 5, 0, 20, 75, CLINFER_F16, CLINFER_F8_E4M3, CLINFER_BF16, 8, 20, 0 };
    mm_check(&s, "matmul caps", &d);
    ot_close(&d);
}

static void share_place(struct ot_call *c, void *params)
{
    const clinfer_tensor *in = (const void *) ((const char *) params + *(const size_t *) c->adjust_priv);
    clinfer_tensor *out = &((struct clinfer_matmul_params *) params)->output;
    out->mem = in->mem;
    out->offset = in->offset;
    memset(out->stride, 0, sizeof out->stride);
}

// The output may lie on nothing that is read.
Test(matmul, aliasing)
{
    struct ot_device d = ot_open(0);
    const struct mm_shape s = { 1, 0, 8, 8, CLINFER_F32, CLINFER_F32, CLINFER_F32, 0, 0, 0 };
    static const char *const names[] = { "x ", "w ", "bias " };
    size_t field[] = { offsetof(struct clinfer_matmul_params, x), offsetof(struct clinfer_matmul_params, w),
                       offsetof(struct clinfer_matmul_params, bias) };
    for (int i = 0; i < 3; i++) {
        struct ot_call c;
        char error[512];
        mm_begin(&c, &s, "matmul alias");
        c.adjust = share_place;
        c.adjust_priv = &field[i];
        cr_expect_eq(ot_try(&c, &d), CLINFER_ERR_ALIAS);
        (void) clinfer_ctx_error(d.ctx, error, sizeof error);
        cr_expect(strstr(error, "output ") && strstr(error, names[i]), "%s", error);
        ot_unchanged(&c);
        ot_free(&c);
    }
    ot_close(&d);
}
