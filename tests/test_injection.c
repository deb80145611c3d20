// SPDX-License-Identifier: Apache-2.0
// Each call of each OpenCL function that the library makes fails once: the step it is in ends with an error
// and its text, or with the right results; nothing crashes, hangs or leaks; and the same context then works.
#include <criterion/criterion.h>
#include <criterion/parameterized.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "layer_use.h"
#include "rig.h"

TestSuite(injection, .timeout = 900);

static const struct layer_control *layer;
static const char *const functions[] = {
#define X(name) #name,
    LAYER_INT_FUNCTIONS(X) LAYER_OBJECT_FUNCTIONS(X)
#undef X
};
enum { NUM_FUNCTIONS = sizeof functions / sizeof functions[0], CODE = CL_OUT_OF_RESOURCES };

enum cache { NO_CACHE, COLD, WARM };
struct scenario {
    const char *op;
    bool callers_queue; // out of order, with profiling; else the engine's own
    enum cache cache;
    bool fault; // a page that is none
    bool check; // of fresh programs, which are the group set's
};
static const struct scenario scenarios[] = {
    { "mla_decode_branch", false, NO_CACHE, false, false },
    { "mla_prefill_branch", true, NO_CACHE, true, false }, // launches that are repeated
    { "rms_norm_kv_cache", false, COLD, false, true },
    { "rms_norm_kv_cache", false, WARM, false, false },
};
enum { NUM_SCENARIOS = sizeof scenarios / sizeof scenarios[0] };

// What went wrong in an attempt.
static struct {
    char text[1024];
} report;

#define CHECK(condition, ...)                                                                                \
    do {                                                                                                     \
        if (!(condition)) {                                                                                  \
            if (!report.text[0])                                                                             \
                snprintf(report.text, sizeof report.text, __VA_ARGS__);                                      \
            return false;                                                                                    \
        }                                                                                                    \
    } while (0)

// One run of a scenario.
struct world {
    const struct scenario *s;
    const char *folder;
    struct clinfer_ctx_params params;
    clinfer_ctx *ctx;
    struct rig r;
    cl_context cl;
    cl_command_queue queue;
    char error[512];
};

static void on_profile(void *priv, const char *op, const char *kernel, uint64_t nanoseconds)
{
    (void) priv, (void) op, (void) kernel, (void) nanoseconds;
}

// An error has a text, and the driver's code its name.
static bool explained(const char *step, clinfer_status st, const char *text)
{
    CHECK(text[0], "%s: %s without a text", step, clinfer_status_str(st));
    CHECK((int) st != CODE || strstr(text, "CL_OUT_OF_RESOURCES"), "%s: \"%s\" does not name the code", step,
          text);
    return true;
}

#define LIBRARY(call) (layer->enable(1), st = (call), layer->enable(0), st)

static bool create(struct world *w)
{
    clinfer_status st;
    for (int tries = 0; LIBRARY(clinfer_ctx_create(&w->ctx, &w->params)); tries++) {
        CHECK(!w->ctx, "create failed with a context");
        CHECK(tries == 0, "create fails again: %s", w->error);
        if (!explained("create", st, w->error))
            return false;
    }
    return true;
}

// The op behind a wait list of one, with an event.
static bool run_once(struct world *w)
{
    clinfer_status st;
    cl_event before = NULL, event = NULL;
    cl_command_queue queue = clinfer_ctx_queue(w->ctx);
    for (int tries = 0;; tries++) {
        // A call that failed may have left launches in the queue, which out of order would meet the upload.
        CHECK(!clFinish(queue) && !rig_upload(&w->r, queue) &&
                  !clEnqueueMarkerWithWaitList(queue, 0, NULL, &before),
              "no upload");
        const bool done = !LIBRARY(w->r.op->run(w->ctx, &w->r.params, 1, &before, &event));
        clReleaseEvent(before);
        if (done)
            break;
        clinfer_ctx_error(w->ctx, w->error, sizeof w->error);
        CHECK(!event, "an event of a call that failed");
        CHECK(tries == 0, "the call fails again: %s", w->error);
        if (!explained("run", st, w->error))
            return false;
    }
    CHECK(!clWaitForEvents(1, &event) && !clReleaseEvent(event), "the event is not valid");
    CHECK(!rig_download(&w->r, queue), "no download");
    rig_reference(&w->r);
    CHECK(rig_same(&w->r), "%s", w->r.note);
    return true;
}

static bool run(struct world *w)
{
    CHECK(!rig_open(&w->r, clinfer_ctx_cl_context(w->ctx)), "no buffers");
    return run_once(w) && run_once(w);
}

static bool read_fault(struct world *w)
{
    clinfer_status st;
    struct clinfer_fault fault;
    for (int tries = 0; LIBRARY(clinfer_ctx_fault(w->ctx, NULL, &fault)); tries++) {
        clinfer_ctx_error(w->ctx, w->error, sizeof w->error);
        CHECK(tries == 0, "the fault cannot be read again: %s", w->error);
        if (!explained("fault", st, w->error))
            return false;
    }
    CHECK(fault.code == (w->s->fault ? CLINFER_FAULT_PAGE : CLINFER_FAULT_NONE), "wrong fault: %s",
          clinfer_fault_str(fault.code));
    return true;
}

static bool save(struct world *w)
{
    clinfer_status st;
    for (int tries = 0; LIBRARY(clinfer_ctx_save(w->ctx)); tries++) {
        clinfer_ctx_error(w->ctx, w->error, sizeof w->error);
        CHECK(tries == 0, "save fails again: %s", w->error);
        if (!explained("save", st, w->error))
            return false;
    }
    return true;
}

static bool open_world(struct world *w)
{
    w->params = (struct clinfer_ctx_params){ .cache_dir = w->s->cache ? w->folder : "",
                                             .no_self_check = !w->s->check,
                                             .kernel_set = w->s->check ? CLINFER_SET_GROUP : CLINFER_SET_AUTO,
                                             .error = w->error,
                                             .error_size = sizeof w->error };
    if (w->s->cache == COLD)
        clinfer_cache_clear(w->folder, NULL, NULL, 0);
    rig_make(&w->r, w->s->op, NULL);
    if (w->s->fault)
        rig_u32(&w->r, "lookup_table")[1] = RIG_PAGES;
    if (!w->s->callers_queue)
        return true;
    struct clinfer_device_info info;
    unsigned count;
    cl_int err;
    CHECK(!clinfer_devices(&info, 1, &count, NULL, 0), "no device");
    w->cl = clCreateContext(NULL, 1, &info.id, NULL, NULL, &err);
    w->queue = clCreateCommandQueue(w->cl, info.id,
                                    CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE | CL_QUEUE_PROFILING_ENABLE, &err);
    CHECK(!err, "no queue");
    w->params.queue = w->queue;
    w->params.profile = on_profile;
    return true;
}

static void close_world(struct world *w)
{
    layer->enable(1);
    clinfer_ctx_destroy(&w->ctx);
    layer->enable(0);
    rig_free(&w->r);
    if (w->queue)
        clReleaseCommandQueue(w->queue);
    if (w->cl)
        clReleaseContext(w->cl);
}

// Reports of launches come from the driver's threads, a moment later.
static bool nothing_alive(long before)
{
    for (int i = 0; i < 200 && layer->live() != before; i++)
        usleep(5000);
    CHECK(layer->live() == before, "%ld OpenCL objects are left", layer->live() - before);
    return true;
}

static bool attempt(const struct scenario *s, const char *folder, const char *function, long n)
{
    struct world w = { .s = s, .folder = folder };
    const long before = layer->live();
    layer->arm(function, n, CODE);
    bool ok = open_world(&w) && create(&w) && run(&w) && read_fault(&w) && save(&w);
    close_world(&w);
    // A release that fails has released nothing.
    if (ok && (!function || strncmp(function, "clRelease", 9)))
        ok = nothing_alive(before);
    return ok;
}

// The call under way, for a crash.
static char under_way[128];

static void on_abort(int number)
{
    if (write(2, under_way, strlen(under_way)) < 0)
        _exit(2);
    signal(number, SIG_DFL);
    raise(number);
}

static void make_folder(char folder[32])
{
    snprintf(folder, 32, "/tmp/clinfer-test-XXXXXX");
    cr_assert_not_null(mkdtemp(folder));
}

static void remove_folder(const char *folder)
{
    clinfer_cache_clear(folder, NULL, NULL, 0);
    rmdir(folder);
}

struct parameter {
    int scenario, function;
};

ParameterizedTestParameters(injection, each_call)
{
    static struct parameter list[NUM_SCENARIOS * NUM_FUNCTIONS];
    for (int i = 0; i < NUM_SCENARIOS * NUM_FUNCTIONS; i++)
        list[i] = (struct parameter){ i / NUM_FUNCTIONS, i % NUM_FUNCTIONS };
    return cr_make_param_array(struct parameter, list, NUM_SCENARIOS * NUM_FUNCTIONS);
}

// A scenario as it is, then with each call of one function failing: all calls up to ALL, samples past it.
ParameterizedTest(struct parameter *p, injection, each_call)
{
    enum { ALL = 6, SAMPLES = 5 };
    const struct scenario *s = &scenarios[p->scenario];
    const char *function = functions[p->function];
    char folder[32];
    LAYER_OR_SKIP(layer);
    make_folder(folder);
    signal(SIGABRT, on_abort);
    for (int i = 0; i < 2; i++) // the first one fills the folder
        cr_assert(attempt(s, folder, NULL, 0), "scenario %d: %s", p->scenario, report.text);
    const long calls = layer->calls(function), step = calls > ALL ? (calls - ALL + SAMPLES - 1) / SAMPLES : 1;
    for (long n = 1; n <= calls; n += n < ALL ? 1 : step) {
        snprintf(under_way, sizeof under_way, "scenario %d, %s, call %ld of %ld\n", p->scenario, function, n,
                 calls);
        report.text[0] = 0;
        cr_assert(attempt(s, folder, function, n), "%s%s", under_way, report.text);
        cr_assert(layer->fired() || s->callers_queue, "%s: was never made",
                  under_way); // reports come when they come
    }
    remove_folder(folder);
}

// A launch that the driver refuses in a later repetition is counted as the caller's queue sees it.
Test(injection, repeated_launches)
{
    const struct scenario s = { "mla_prefill_branch", false, NO_CACHE, false, false };
    struct world w = { .s = &s };
    LAYER_OR_SKIP(layer);
    layer->arm(NULL, 0, 0);
    cr_assert(open_world(&w) && create(&w), "%s", report.text);
    cr_assert_eq(rig_open(&w.r, clinfer_ctx_cl_context(w.ctx)), CL_SUCCESS);
    cr_assert(run_once(&w), "%s", report.text);
    struct clinfer_ctx_stats stats;
    clinfer_ctx_stats(w.ctx, &stats);
    cr_assert_eq(stats.launches, 1 + 3 * 4, "%d launches", (int) stats.launches);
    layer->arm("clEnqueueNDRangeKernel", 11, CODE);
    layer->enable(1);
    const clinfer_status st = w.r.op->run(w.ctx, &w.r.params, 0, NULL, NULL);
    layer->enable(0);
    cr_assert_eq((int) st, CODE);
    clinfer_ctx_error(w.ctx, w.error, sizeof w.error);
    cr_assert(strstr(w.error, "launch 11 of 13"), "%s", w.error);
    cr_assert(run_once(&w), "%s", report.text);
    close_world(&w);
}

// The list of functions is what the scenarios call: each is called in one of them; barriers, only around
// CLBlast, in test_gemm_failures.
Test(injection, every_function_is_called)
{
    char folder[32];
    long total[NUM_FUNCTIONS] = { 0 };
    LAYER_OR_SKIP(layer);
    make_folder(folder);
    for (int s = 0; s < NUM_SCENARIOS; s++) {
        for (int i = 0; i < 2; i++) // the first one fills the folder
            cr_assert(attempt(&scenarios[s], folder, NULL, 0), "%s", report.text);
        for (int f = 0; f < NUM_FUNCTIONS; f++)
            total[f] += layer->calls(functions[f]);
    }
    for (int f = 0; f < NUM_FUNCTIONS;
         f++) // a thread of the driver's may ask for times while the layer is off
        cr_assert(total[f] > 0 || !strcmp(functions[f], "clGetEventProfilingInfo") ||
                      !strcmp(functions[f], "clEnqueueBarrierWithWaitList") ||
                      !strcmp(functions[f], "clEnqueueCopyBuffer"), // a pool's: test_kv_pool_injection
                  "%s is never called", functions[f]);
    remove_folder(folder);
}
