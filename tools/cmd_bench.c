// SPDX-License-Identifier: Apache-2.0
// clinfer bench: how long the ops take, and how near that is to what the device can do.
#include <string.h>

#include "bench.h"

struct session {
    const struct cli_options *options;
    clinfer_ctx *ctx;      // for the wall clock
    clinfer_ctx *profiled; // on a queue that takes times; made when a case wants it
    struct bench_profile profile;
    struct bench_limits limits;
};

static bool selected(const struct cli_options *o, const struct bench_case *c, char name[BENCH_NAME_SIZE])
{
    bench_case_name(c, name);
    return (!o->num_operands || !strcmp(o->operands[0], c->op)) && (!o->filter || strstr(name, o->filter));
}

static int count_selected(const struct cli_options *o)
{
    char name[BENCH_NAME_SIZE];
    struct bench_case c;
    int count = 0;
    for (int i = 0; bench_case_at(i, &c); i++)
        count += selected(o, &c, name);
    return count;
}

static void print_field(const char *name, double value)
{
    (void) printf(", \"%s\": ", name);
    cli_json_number(stdout, value);
}

static void print_device_json(const struct bench_limits *l)
{
    (void) fputs("{\"device\": ", stdout);
    cli_json_string(stdout, l->info.device);
    print_field("copy_gbps", l->copy / 1e9);
    print_field("read_gbps", l->read / 1e9);
    print_field("f32_gflops", l->f32 / 1e9);
    (void) fputs(", \"dot_gflops\": null", stdout);
    print_field("launch_us", l->launch * 1e6);
    (void) puts("}");
}

static void print_device(const struct bench_limits *l)
{
    (void) printf("%s, %u compute units\n", l->info.device, l->info.compute_units);
    (void) printf("copy %.1f GB/s, read %.1f GB/s, f32 FMA %.1f GFLOP/s, %.2f us a launch\n", l->copy / 1e9,
                  l->read / 1e9, l->f32 / 1e9, l->launch * 1e6);
    if (l->clock > 0)
        (void) printf("%.1f f32 flop a cycle and compute unit, at %.2f GHz (%s)\n",
                      l->f32 / l->clock / l->info.compute_units, l->clock / 1e9,
                      l->clock_is_measured ? "measured: a chain of dependent integer operations"
                                           : "as the device reports");
    (void) puts("times: wall clock over batches of calls with one finish, per call; of one launch alone "
                "(op:kernel):\n"
                "the driver's profiling events");
    (void) printf("%-66s %10s %10s %8s %9s %-9s %6s %9s\n", "case", "median us", "min us", "GB/s", "GFLOP/s",
                  "limit", "share", "MiB used");
}

static void print_case(const struct session *s, const char *name, const struct bench_work *w,
                       const struct bench_time *t)
{
    const double bytes = w->read + w->written + 2 * w->in_place;
    // Whoever writes a quarter of what it moves is measured by copying.
    const double rate = 4 * (w->written + w->in_place) >= bytes ? s->limits.copy : s->limits.read;
    const double bandwidth = bytes / rate, arithmetic = w->flop / s->limits.f32;
    const bool moves = bandwidth >= arithmetic;
    const double share = (moves ? bandwidth : arithmetic) / t->median;
    const char *limit = moves ? "bandwidth" : "f32";
    if (!s->options->json) {
        (void) printf("%-66s %10.2f %10.2f %8.2f %9.2f %-9s %5.1f%% %9.3f%s\n", name, t->median * 1e6,
                      t->best * 1e6, bytes / t->median / 1e9, w->flop / t->median / 1e9, limit, 100 * share,
                      (w->read + w->written + w->in_place) / (1 << 20),
                      moves && share > 1 ? " above memory's rate: from a cache" : "");
    } else {
        (void) fputs("{\"case\": ", stdout);
        cli_json_string(stdout, name);
        print_field("median_us", t->median * 1e6);
        print_field("min_us", t->best * 1e6);
        print_field("gbps", bytes / t->median / 1e9);
        print_field("gflops", w->flop / t->median / 1e9);
        (void) printf(", \"limit\": \"%s\"", limit);
        print_field("share", share);
        (void) puts("}");
    }
    (void) fflush(stdout);
}

// A second context in the first one's OpenCL context, whose queue takes times.
static clinfer_ctx *profiled_context(struct session *s, const char *part)
{
    struct clinfer_ctx_params params = { 0 };
    cl_int status;
    s->profile.part = part;
    if (s->profiled)
        return s->profiled;
    params.queue = clCreateCommandQueue(clinfer_ctx_cl_context(s->ctx), clinfer_ctx_device(s->ctx),
                                        CL_QUEUE_PROFILING_ENABLE, &status);
    if (bench_failed(status, "a queue that takes times"))
        return NULL;
    params.profile = bench_on_profile;
    params.profile_priv = &s->profile;
    s->profiled = cli_context_from(s->options, params);
    (void) clReleaseCommandQueue(params.queue); // the context holds it
    return s->profiled;
}

static bool run_case(struct session *s, const struct bench_case *c, const char *name)
{
    struct bench_call call;
    struct bench_time t;
    clinfer_ctx *ctx = c->part ? profiled_context(s, c->part) : s->ctx;
    if (!ctx || !bench_open(c, ctx, &call))
        return false;
    const bool ok = bench_run(ctx, &call, c->part ? &s->profile : NULL, &t);
    if (ok)
        print_case(s, name, &call.work, &t);
    bench_close(&call);
    return ok;
}

static bool run_selected(struct session *s)
{
    char name[BENCH_NAME_SIZE];
    struct bench_case c;
    if (!bench_measure(s->ctx, &s->limits))
        return false;
    (s->options->json ? print_device_json : print_device)(&s->limits);
    (void) fflush(stdout);
    for (int i = 0; bench_case_at(i, &c); i++)
        if (selected(s->options, &c, name) && !run_case(s, &c, name))
            return false;
    return true;
}

int cmd_bench(int argc, char **argv)
{
    static const struct cli_command command = {
        "clinfer bench [OP] [--filter TEXT] [--json] [--device D] [--set row|group] [--arith f32|bf16] "
        "[--gemm own|clblast]",
        CLI_JSON | CLI_DEVICE | CLI_VARIANT | CLI_FILTER, 0, 1
    };
    struct cli_options o;
    struct session s = { .options = &o };
    int status;
    if (!cli_parse(argc, argv, &command, &o, &status))
        return status;
    if (o.num_operands && !op_find(o.operands[0])) {
        cli_error("no op \"%s\"", o.operands[0]);
        return CLI_USAGE;
    }
    if (!count_selected(&o)) {
        cli_error("no case has \"%s\" in its name", o.filter ? o.filter : "");
        return CLI_WRONG;
    }
    if (!(s.ctx = cli_context(&o)))
        return CLI_WRONG;
    const bool ok = run_selected(&s);
    clinfer_ctx_destroy(&s.profiled); // each saves what was compiled
    clinfer_ctx_destroy(&s.ctx);
    return cli_finish(ok ? CLI_RIGHT : CLI_WRONG);
}
