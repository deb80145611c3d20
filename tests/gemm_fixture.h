// SPDX-License-Identifier: Apache-2.0
// Contexts with CLBlast forced, on whatever device there is. Its kernels compile slowly: one program serves
// all shapes, and the driver's own cache keeps it for the next process.
#ifndef CLINFER_TESTS_GEMM_FIXTURE_H_
#define CLINFER_TESTS_GEMM_FIXTURE_H_

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls_fixture.h"
#include "skip.h"

static clinfer_ctx *ctx;
static char error[512];

static inline clinfer_status try_open(struct clinfer_ctx_params params, clinfer_gemm gemm)
{
    const char *set = getenv("OPTEST_SET"); // as the op tests take it: for those that name no set
    if (set && !strcmp(set, "group") && params.kernel_set == CLINFER_SET_AUTO)
        params.kernel_set = CLINFER_SET_GROUP;
    params.gemm = gemm;
    params.cache_dir = "";
    params.no_self_check = getenv("CLINFER_TEST_UNCHECKED") != NULL; // broken kernels run (sabotage.py)
    params.error = error;
    params.error_size = sizeof error;
    return clinfer_ctx_create(&ctx, &params);
}

// CLINFER_TEST_CLBLAST: whether the build has CLBlast, and so the machine.
#define OPEN_CLBLAST_OR_SKIP(...)                                                                            \
    do {                                                                                                     \
        const clinfer_status st_ =                                                                           \
            try_open((struct clinfer_ctx_params){ __VA_ARGS__ }, CLINFER_GEMM_CLBLAST);                      \
        const char *built_ = getenv("CLINFER_TEST_CLBLAST");                                                 \
        if (st_ == CLINFER_ERR_UNSUPPORTED && !(built_ && *built_ == '1'))                                   \
            SKIP("gemm", "%s", error);                                                                       \
        cr_assert_eq(st_, CLINFER_OK, "%s", error);                                                          \
    } while (0)

static inline void expect_calls(uint64_t calls)
{
    struct clinfer_ctx_stats s;
    clinfer_ctx_stats(ctx, &s);
    cr_expect_eq(s.gemm_calls, calls, "CLBlast was called %llu times, want %llu",
                 (unsigned long long) s.gemm_calls, (unsigned long long) calls);
}

#endif
