// SPDX-License-Identifier: Apache-2.0
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "bench.h"

enum { MIN_REPEATS = 11, MAX_REPEATS = 101 };
static const double budget = 0.3, batch_seconds = 2e-3; // of a case; at least, of a batch of calls
static const double patience = 5;                       // for a profile callback

static bool call_failed(clinfer_ctx *ctx, const struct bench_call *call, clinfer_status status)
{
    char text[512] = "";
    if (status == CLINFER_OK)
        return false;
    (void) clinfer_ctx_error(ctx, text, sizeof text);
    cli_error("%s: %s", call->op->name, *text ? text : clinfer_status_str(status));
    return true;
}

// Seconds of `calls` calls and a finish; negative after an error.
static double batch(clinfer_ctx *ctx, const struct bench_call *call, int calls)
{
    const double start = bench_seconds();
    for (int i = 0; i < calls; i++)
        if (call_failed(ctx, call, call->op->run(ctx, &call->params, 0, NULL, NULL)))
            return -1;
    if (bench_failed(clFinish(clinfer_ctx_queue(ctx)), call->op->name))
        return -1;
    return bench_seconds() - start;
}

// Compiles, here or in the driver, and asks whether the call was a sound one.
static bool warm_up(clinfer_ctx *ctx, const struct bench_call *call)
{
    struct clinfer_fault fault;
    if (batch(ctx, call, 1) < 0 || batch(ctx, call, 1) < 0 ||
        call_failed(ctx, call, clinfer_ctx_fault(ctx, NULL, &fault)))
        return false;
    if (fault.code == CLINFER_FAULT_NONE)
        return true;
    cli_error("%s: fault at token %u: %s (%u)", fault.op, fault.token, clinfer_fault_str(fault.code),
              fault.value);
    return false;
}

void bench_on_profile(void *profile, const char *op, const char *kernel, uint64_t nanoseconds)
{
    struct bench_profile *p = profile;
    (void) op;
    if (!strcmp(kernel, p->part))
        atomic_store(&p->nanoseconds, nanoseconds);
    atomic_fetch_add(&p->launches, 1);
}

// Callbacks may come after clFinish. Waits for those of every launch, so that none meets a freed context.
static bool all_reported(clinfer_ctx *ctx, struct bench_profile *profile)
{
    const struct timespec nap = { 0, 20000 };
    const double start = bench_seconds();
    struct clinfer_ctx_stats stats;
    clinfer_ctx_stats(ctx, &stats);
    while (atomic_load(&profile->launches) < stats.launches) {
        if (bench_seconds() - start > patience) {
            cli_error("the driver does not report the times of its launches");
            return false;
        }
        (void) nanosleep(&nap, NULL);
    }
    return true;
}

// Seconds of a call: the mean of a batch on the wall clock, or of the kernel that counts. Negative: an error.
static double sample(clinfer_ctx *ctx, const struct bench_call *call, int calls,
                     struct bench_profile *profile)
{
    const double wall = batch(ctx, call, calls);
    if (wall < 0 || !profile)
        return wall / calls;
    return all_reported(ctx, profile) ? 1e-9 * (double) atomic_load(&profile->nanoseconds) : -1;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *) a, y = *(const double *) b;
    return (x > y) - (x < y);
}

// Calls that make a batch long enough; 0 after an error.
static int batch_size(clinfer_ctx *ctx, const struct bench_call *call, double *seconds)
{
    int calls = 1;
    while ((*seconds = batch(ctx, call, calls)) >= 0 && *seconds < batch_seconds && calls < 1 << 20)
        calls *= 2;
    return *seconds < 0 ? 0 : calls;
}

bool bench_run(clinfer_ctx *ctx, const struct bench_call *call, struct bench_profile *profile,
               struct bench_time *t)
{
    double samples[MAX_REPEATS], seconds;
    if (!warm_up(ctx, call) || (profile && !all_reported(ctx, profile)))
        return false;
    const int calls = profile ? 1 : batch_size(ctx, call, &seconds);
    if (profile)
        seconds = batch(ctx, call, calls);
    if (!calls || seconds < 0)
        return false;
    double repeats = budget / seconds;
    repeats = repeats < MIN_REPEATS ? MIN_REPEATS : repeats > MAX_REPEATS ? MAX_REPEATS : repeats;
    for (int i = 0; i < (int) repeats; i++)
        if ((samples[i] = sample(ctx, call, calls, profile)) < 0)
            return false;
    qsort(samples, (size_t) repeats, sizeof samples[0], by_size);
    t->median = samples[(int) repeats / 2];
    t->best = samples[0];
    return true;
}
