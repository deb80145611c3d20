// SPDX-License-Identifier: Apache-2.0
// What the device can do: the best of several runs each, for a limit is what a quiet machine reaches.
#include <string.h>
#include <time.h>

#include "bench.h"
#include "bench_kernels.h"

enum {
    REPEATS = 15,
    SHORT_REPEATS = 100, // of launches short enough to slip between other processes
    GROUPS_A_UNIT = 4,
    MAX_BUFFER = 512 << 20,
    VECTOR = 64,       // bytes of a float16
    ITEM_VECTORS = 16, // data of an item of the FMA kernels
    STEP_CYCLES = 2,
    STEPS_A_ROUND = 8,
    LAUNCHES = 1000,
};

struct rig {
    cl_context context;
    cl_device_id device;
    cl_command_queue queue;
    cl_program bandwidth, arithmetic;
    cl_mem a, b;
    size_t bytes; // of each
    size_t local, items;
    cl_int status;
};

double bench_seconds(void)
{
    struct timespec t;
    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

bool bench_failed(cl_int status, const char *what)
{
    if (status)
        cli_error("%s: %s (%d)", what, clinfer_status_str((clinfer_status) status), (int) status);
    return status != CL_SUCCESS;
}

static cl_program build(struct rig *r, const char *source)
{
    cl_program program = NULL;
    if (!r->status)
        program = clCreateProgramWithSource(r->context, 1, &source, NULL, &r->status);
    if (!r->status)
        r->status = clBuildProgram(program, 1, &r->device, "-cl-std=CL1.2", NULL, NULL);
    return program;
}

static cl_mem new_zeros(struct rig *r)
{
    const cl_uchar zero = 0;
    cl_mem mem = NULL;
    if (!r->status)
        mem = clCreateBuffer(r->context, CL_MEM_READ_WRITE, r->bytes, NULL, &r->status);
    if (!r->status)
        r->status = clEnqueueFillBuffer(r->queue, mem, &zero, sizeof zero, 0, r->bytes, 0, NULL, NULL);
    return mem;
}

static void open_rig(struct rig *r, clinfer_ctx *ctx, const struct clinfer_device_info *info)
{
    const bool gpu = !strcmp(info->type, "gpu");
    memset(r, 0, sizeof *r);
    r->context = clinfer_ctx_cl_context(ctx);
    r->device = clinfer_ctx_device(ctx);
    r->queue = clinfer_ctx_queue(ctx);
    r->local = gpu ? 64 : 1;
    r->items = r->local * GROUPS_A_UNIT * info->compute_units;
    // Whole runs of a multiple of four vectors for each item.
    const size_t most = info->max_alloc / 4 < MAX_BUFFER ? (size_t) (info->max_alloc / 4) : MAX_BUFFER;
    const size_t unit = r->items * VECTOR * ITEM_VECTORS;
    r->bytes = (most > unit ? most / unit : 1) * unit;
    r->bandwidth = build(r, bench_bandwidth_source);
    r->arithmetic = build(r, bench_arithmetic_source);
    r->a = new_zeros(r);
    r->b = new_zeros(r);
}

static void close_rig(struct rig *r)
{
    (void) clFinish(r->queue);
    if (r->a)
        (void) clReleaseMemObject(r->a);
    if (r->b)
        (void) clReleaseMemObject(r->b);
    if (r->bandwidth)
        (void) clReleaseProgram(r->bandwidth);
    if (r->arithmetic)
        (void) clReleaseProgram(r->arithmetic);
}

static cl_kernel new_kernel(struct rig *r, cl_program program, const char *name)
{
    return r->status ? NULL : clCreateKernel(program, name, &r->status);
}

static void free_kernel(cl_kernel kernel)
{
    if (kernel)
        (void) clReleaseKernel(kernel);
}

static void set_arg(struct rig *r, cl_kernel kernel, cl_uint index, size_t size, const void *value)
{
    if (!r->status)
        r->status = clSetKernelArg(kernel, index, size, value);
}

// Seconds of `launches` launches and a finish.
static double launch(struct rig *r, cl_kernel kernel, size_t items, int launches)
{
    const size_t global[3] = { items, 1, 1 }, local[3] = { items < r->local ? items : r->local, 1, 1 };
    const double start = bench_seconds();
    for (int i = 0; !r->status && i < launches; i++)
        r->status = clEnqueueNDRangeKernel(r->queue, kernel, 3, NULL, global, local, 0, NULL, NULL);
    if (!r->status)
        r->status = clFinish(r->queue);
    return bench_seconds() - start;
}

static double best_of(struct rig *r, cl_kernel kernel, size_t items, int launches, int repeats)
{
    double best = launch(r, kernel, items, launches); // compiles, on some drivers
    for (int i = 0; !r->status && i < repeats; i++) {
        const double t = launch(r, kernel, items, launches);
        best = t < best ? t : best;
    }
    return best;
}

static void set_run(struct rig *r, cl_kernel kernel)
{
    const cl_ulong run = r->bytes / VECTOR / r->items;
    const cl_ulong step = r->local > 1 ? r->items : 1, item_step = r->local > 1 ? 1 : run;
    set_arg(r, kernel, 2, sizeof run, &run);
    set_arg(r, kernel, 3, sizeof step, &step);
    set_arg(r, kernel, 4, sizeof item_step, &item_step);
}

static double measure_copy(struct rig *r)
{
    cl_kernel kernel = new_kernel(r, r->bandwidth, "copy");
    set_arg(r, kernel, 0, sizeof r->a, &r->a);
    set_arg(r, kernel, 1, sizeof r->b, &r->b);
    set_run(r, kernel);
    const double t = best_of(r, kernel, r->items, 1, REPEATS);
    free_kernel(kernel);
    return 2 * (double) r->bytes / t;
}

// Both buffers in turn, for one of them may fit a large cache.
static double measure_read(struct rig *r)
{
    double best = 1e30;
    cl_kernel kernel = new_kernel(r, r->bandwidth, "read");
    cl_mem sums =
        r->status ? NULL : clCreateBuffer(r->context, CL_MEM_READ_WRITE, r->items * VECTOR, NULL, &r->status);
    set_arg(r, kernel, 1, sizeof sums, &sums);
    set_run(r, kernel);
    for (int i = 0; !r->status && i <= REPEATS; i++) {
        set_arg(r, kernel, 0, sizeof r->a, &r->a);
        double t = launch(r, kernel, r->items, 1);
        set_arg(r, kernel, 0, sizeof r->b, &r->b);
        t += launch(r, kernel, r->items, 1);
        best = t < best ? t : best;
    }
    if (sums)
        (void) clReleaseMemObject(sums);
    free_kernel(kernel);
    return 2 * (double) r->bytes / best;
}

// Rounds a second of an item of a kernel (data, rounds, ...), on launches long enough to be timed.
static double rounds_a_second(struct rig *r, cl_kernel kernel, size_t items)
{
    const double enough = 4e-3;
    cl_uint rounds = 10000;
    set_arg(r, kernel, 0, sizeof r->a, &r->a);
    set_arg(r, kernel, 1, sizeof rounds, &rounds);
    (void) launch(r, kernel, items, 1);
    while (!r->status && launch(r, kernel, items, 1) < enough && rounds < 1u << 30) {
        rounds *= 2;
        set_arg(r, kernel, 1, sizeof rounds, &rounds);
    }
    return rounds / best_of(r, kernel, items, 1, SHORT_REPEATS);
}

static double measure_fma(struct rig *r, const char *name, int chains)
{
    const cl_float half = 0.5f; // values go to 1
    cl_kernel kernel = new_kernel(r, r->arithmetic, name);
    set_arg(r, kernel, 2, sizeof half, &half);
    set_arg(r, kernel, 3, sizeof half, &half);
    const double rounds = rounds_a_second(r, kernel, r->items);
    free_kernel(kernel);
    return rounds * (double) r->items * chains * 16 * 2;
}

static double measure_clock(struct rig *r)
{
    const cl_uint y = 0x9e3779b9u, z = 0x7f4a7c15u;
    cl_kernel kernel = new_kernel(r, r->arithmetic, "cycles");
    set_arg(r, kernel, 2, sizeof y, &y);
    set_arg(r, kernel, 3, sizeof z, &z);
    const double rounds = rounds_a_second(r, kernel, 1);
    free_kernel(kernel);
    return rounds * STEPS_A_ROUND * STEP_CYCLES;
}

static double measure_launch(struct rig *r)
{
    const cl_uint count = 0;
    cl_kernel kernel = new_kernel(r, r->bandwidth, "nothing");
    set_arg(r, kernel, 0, sizeof count, &count);
    const double t = best_of(r, kernel, 1, LAUNCHES, SHORT_REPEATS);
    free_kernel(kernel);
    return t / LAUNCHES;
}

bool bench_measure(clinfer_ctx *ctx, struct bench_limits *limits)
{
    struct rig r;
    cl_uint mhz = 0;
    clinfer_ctx_device_info(ctx, &limits->info);
    open_rig(&r, ctx, &limits->info);
    limits->copy = measure_copy(&r);
    limits->read = measure_read(&r);
    const double few = measure_fma(&r, "fma6", 6), many = measure_fma(&r, "fma12", 12);
    limits->f32 = few > many ? few : many;
    limits->launch = measure_launch(&r);
    // On CPUs an integer operation takes a cycle; elsewhere its latency is not known.
    limits->clock_is_measured = !strcmp(limits->info.type, "cpu");
    if (limits->clock_is_measured)
        limits->clock = measure_clock(&r);
    else if (!r.status)
        r.status = clGetDeviceInfo(r.device, CL_DEVICE_MAX_CLOCK_FREQUENCY, sizeof mhz, &mhz, NULL);
    if (!limits->clock_is_measured)
        limits->clock = 1e6 * mhz;
    close_rig(&r);
    return !bench_failed(r.status, "measuring the device");
}
