// SPDX-License-Identifier: Apache-2.0
// clinfer run: one case file through the library.
#include <string.h>
#include <time.h>

#include "cli.h"
#include "compare.h"

enum { ERROR_SIZE = 1024 };

static double seconds(void)
{
    struct timespec t;
    (void) timespec_get(&t, TIME_UTC);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static bool call_op(const struct op_case *c, const struct op_device *d, clinfer_ctx *ctx, double *took)
{
    char text[ERROR_SIZE] = "";
    struct clinfer_fault fault = { 0 };
    const double start = seconds();
    clinfer_status status = c->op->run(ctx, d->params, 0, NULL, NULL);
    if (status == CLINFER_OK)
        status = clinfer_ctx_fault(ctx, NULL, &fault); // waits
    *took = seconds() - start;
    if (status != CLINFER_OK) {
        (void) clinfer_ctx_error(ctx, text, sizeof text);
        cli_error("%s", *text ? text : clinfer_status_str(status));
    } else if (fault.code != CLINFER_FAULT_NONE) {
        cli_error("%s: fault at token %u: %s (%u)", fault.op, fault.token, clinfer_fault_str(fault.code),
                  fault.value);
    }
    return status == CLINFER_OK && fault.code == CLINFER_FAULT_NONE;
}

static bool execute(struct op_case *c, clinfer_ctx *ctx, double *took)
{
    char error[ERROR_SIZE] = "";
    struct op_device d;
    const cl_command_queue queue = clinfer_ctx_queue(ctx);
    if (!op_device_open(c, clinfer_ctx_cl_context(ctx), &d, error, sizeof error)) {
        cli_error("%s", error);
        return false;
    }
    bool ok = op_device_upload(c, &d, queue, error, sizeof error);
    if (ok && !call_op(c, &d, ctx, took))
        ok = false;
    else if (ok)
        ok = op_device_download(c, &d, queue, error, sizeof error);
    if (*error)
        cli_error("%s", error);
    op_device_close(&d);
    return ok;
}

static bool write_results(const struct op_case *c, const char *path)
{
    char error[ERROR_SIZE] = "", names[OP_MAX_TENSORS][32];
    struct st_tensor tensors[OP_MAX_TENSORS] = { 0 };
    struct st_file out = { 0 };
    out.tensors = tensors;
    for (int i = 0; i < c->num_buffers; i++) {
        const struct op_buffer *b = &c->buffers[i];
        struct st_tensor *t = &tensors[out.num_tensors];
        if (b->tensor->role == OP_IN)
            continue;
        t->name = names[out.num_tensors++];
        (void) snprintf(t->name, sizeof names[0], "%s", b->tensor->name);
        t->dtype = b->dtype;
        t->rank = b->rank;
        memcpy(t->shape, b->shape, sizeof t->shape);
        t->bytes = b->bytes;
        t->data = b->data;
    }
    if (st_write(path, &out, error, sizeof error))
        return true;
    cli_error("%s", error);
    return false;
}

static void print_result(const struct cmp_result *r, bool json)
{
    if (!json) {
        (void) printf("%-14s max_err %-11.4g tolerance %-11.4g %s\n", r->tensor, r->max_err, r->tolerance,
                      r->ok ? "ok" : "WRONG");
        return;
    }
    (void) fputs("{\"tensor\": ", stdout);
    cli_json_string(stdout, r->tensor);
    (void) fputs(", \"max_err\": ", stdout);
    cli_json_number(stdout, r->max_err);
    (void) fputs(", \"tolerance\": ", stdout);
    cli_json_number(stdout, r->tolerance);
    (void) printf(", \"ok\": %s}\n", r->ok ? "true" : "false");
}

static bool check_results(const struct op_case *c, bool json)
{
    char error[ERROR_SIZE] = "";
    struct cmp_result results[OP_MAX_TENSORS];
    const int n = cmp_expected(c, results, error, sizeof error);
    bool ok = n >= 0;
    if (n < 0)
        cli_error("%s", error);
    for (int i = 0; i < n; i++) {
        const struct cmp_result *r = &results[i];
        print_result(r, json);
        ok = ok && r->ok;
        if (r->bad)
            cli_error("%s: %lld elements are past their tolerance, the worst is element %lld", r->tensor,
                      (long long) r->bad, (long long) r->index);
        else if (!r->ok)
            cli_error("%s: its cosine to the expected result is %.6f", r->tensor, r->cosine);
    }
    return ok;
}

static void print_summary(const struct op_case *c, clinfer_ctx *ctx, double took)
{
    struct clinfer_ctx_stats stats;
    clinfer_ctx_stats(ctx, &stats);
    (void) printf("%s: %.3f ms, programs: %llu compiled, %llu loaded from the cache\n", c->op->name,
                  1e3 * took, (unsigned long long) stats.compiled, (unsigned long long) stats.loaded);
}

static int run_case(struct op_case *c, const struct cli_options *o)
{
    double took = 0;
    clinfer_ctx *ctx = cli_context(o);
    if (!ctx)
        return CLI_WRONG;
    bool ok = execute(c, ctx, &took);
    if (ok) {
        const bool written = !o->out || write_results(c, o->out);
        ok = check_results(c, o->json) && written;
        if (!o->json)
            print_summary(c, ctx, took);
    }
    clinfer_ctx_destroy(&ctx); // saves what was compiled
    return ok ? CLI_RIGHT : CLI_WRONG;
}

int cmd_run(int argc, char **argv)
{
    static const struct cli_command command = {
        "clinfer run CASE [-o OUT] [--json] [--device D] [--set row|group] [--arith f32|bf16] "
        "[--gemm own|clblast]",
        CLI_JSON | CLI_DEVICE | CLI_OUT | CLI_VARIANT, 1, 1
    };
    struct cli_options o;
    struct op_case c;
    char error[ERROR_SIZE] = "";
    int status = CLI_WRONG;
    if (!cli_parse(argc, argv, &command, &o, &status))
        return status;
    if (!op_case_load(o.operands[0], &c, error, sizeof error)) {
        cli_error("%s", error);
        return CLI_WRONG;
    }
    status = run_case(&c, &o);
    op_case_free(&c);
    return cli_finish(status);
}
