// SPDX-License-Identifier: Apache-2.0
// clinfer check: every operation in every kernel set on this device, against the reference in scalar C.
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "check.h"
#include "cli.h"

struct session {
    const struct cli_options *options;
    bool progress; // a line on a terminal that is written over
    int wrong;     // cases of all variants
};

// An op in a kernel set.
struct variant {
    struct session *session;
    const struct op_desc *op;
    clinfer_kernel_set set;
    const char *name; // of the set
    clinfer_ctx *ctx; // NULL after a call that failed: on some devices nothing runs after it
    int cases, wrong;
    unsigned long long programs;
    double max_err;
};

static bool selected(const struct cli_options *o, const struct op_desc *op, const struct check_case *c)
{
    char name[CHECK_NAME_SIZE];
    check_case_name(c, name);
    return !strcmp(op->name, c->call->op) && (!o->filter || strstr(name, o->filter));
}

static int count_selected(const struct cli_options *o)
{
    struct check_case c;
    int count = 0;
    for (int i = 0; check_case_at(i, &c); i++)
        count +=
            (!o->num_operands || !strcmp(o->operands[0], c.call->op)) && selected(o, op_find(c.call->op), &c);
    return count;
}

// The verdict is on what the compiler makes of the kernels today, in the set that is named: no program comes
// from the disk, and none is replaced by one of the other set.
static clinfer_ctx *open_context(const struct variant *v)
{
    struct cli_options options = *v->session->options;
    struct clinfer_ctx_params params = { .cache_dir = "", .no_self_check = 1 };
    options.set = v->set;
    return cli_context_from(&options, params);
}

static void close_context(struct variant *v)
{
    struct clinfer_ctx_stats stats = { 0 };
    if (v->ctx)
        clinfer_ctx_stats(v->ctx, &stats);
    v->programs += stats.compiled;
    clinfer_ctx_destroy(&v->ctx);
}

static void show_progress(const struct variant *v, const char *name)
{
    if (v->session->progress)
        (void) fprintf(stderr, "\r\033[K%s %s %s ", v->op->name, v->name, name);
}

static void clear_progress(const struct session *s)
{
    if (s->progress)
        (void) fputs("\r\033[K", stderr);
}

static void print_case(const struct variant *v, const char *name, const struct check_result *r)
{
    const bool json = v->session->options->json;
    if (json) {
        (void) printf("{\"op\":\"%s\",\"case\":\"%s\",\"variant\":\"%s\",\"ok\":%s,\"max_err\":", v->op->name,
                      name, v->name, r->ok ? "true" : "false");
        cli_json_number(stdout, r->max_err);
        (void) puts("}");
    }
    if (!r->ok) {
        clear_progress(v->session);
        (void) fprintf(json ? stderr : stdout, "WRONG %s %s %s: %s\n", v->op->name, name, v->name, r->why);
    }
    (void) fflush(stdout);
}

static void run_case(struct variant *v, const struct check_case *c)
{
    struct check_result r = { .failed = true, .max_err = NAN, .why = "no context on the device" };
    char name[CHECK_NAME_SIZE];
    check_case_name(c, name);
    show_progress(v, name);
    if (!v->ctx)
        v->ctx = open_context(v);
    if (v->ctx)
        check_run(c, v->ctx, &r);
    v->cases++;
    v->wrong += !r.ok;
    if (r.max_err > v->max_err)
        v->max_err = r.max_err;
    print_case(v, name, &r);
    if (r.failed)
        close_context(v);
}

// False where the set has no kernels for the op, which only a set that was asked for by name may not say of
// itself, nor `row`, which has all.
static bool has_kernels(struct variant *v, const struct check_case *c)
{
    char error[CHECK_WHY_SIZE];
    struct op_case call;
    if (v->set == CLINFER_SET_ROW || v->session->options->set || !(v->ctx = open_context(v)) ||
        !synth_case(c->call, c->batch, &call, error, sizeof error))
        return true; // what is wrong, the case will say
    const clinfer_status status = v->op->compile(v->ctx, call.params);
    op_case_free(&call);
    return status != CLINFER_ERR_FILE;
}

static void print_summary(const struct variant *v, double seconds)
{
    clear_progress(v->session);
    if (!v->session->options->json)
        (void) printf("%-24s %-6s %3d cases, %d wrong; %llu programs compiled; largest error %.3g; %.1f s\n",
                      v->op->name, v->name, v->cases, v->wrong, v->programs, v->max_err, seconds);
    (void) fflush(stdout);
}

static double now(void)
{
    struct timespec t;
    (void) timespec_get(&t, TIME_UTC);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

static void run_variant(struct variant *v)
{
    struct check_case c;
    const double start = now();
    bool found = false;
    for (int i = 0; check_case_at(i, &c); i++) {
        if (!selected(v->session->options, v->op, &c))
            continue;
        if (!found && !has_kernels(v, &c)) {
            (void) fprintf(stderr, "%s: the %s set has no kernels for it\n", v->op->name, v->name);
            break;
        }
        found = true;
        run_case(v, &c);
    }
    close_context(v);
    if (found)
        print_summary(v, now() - start);
    v->session->wrong += v->wrong;
}

static void run_op(struct session *s, const struct op_desc *op)
{
    static const struct {
        clinfer_kernel_set set;
        const char *name;
    } sets[] = { { CLINFER_SET_ROW, "row" }, { CLINFER_SET_GROUP, "group" } };
    int cases = 0;
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        struct variant v = { .session = s, .op = op, .set = sets[i].set, .name = sets[i].name };
        if (!s->options->set || s->options->set == v.set)
            run_variant(&v);
        cases += v.cases;
    }
    if (!cases && !s->options->filter) {
        cli_error("%s has no cases", op->name);
        s->wrong++;
    }
}

// Says which device it is, and ends early where there is none.
static bool open_device(const struct cli_options *o)
{
    struct clinfer_device_info info;
    struct clinfer_ctx_params params = { .cache_dir = "", .no_self_check = 1 };
    clinfer_ctx *ctx = cli_context_from(o, params);
    if (!ctx)
        return false;
    clinfer_ctx_device_info(ctx, &info);
    if (!o->json)
        (void) printf("%s, %s, driver %s\n", info.device, info.platform, info.driver);
    clinfer_ctx_destroy(&ctx);
    return true;
}

int cmd_check(int argc, char **argv)
{
    static const struct cli_command command = {
        "clinfer check [OP] [--filter TEXT] [--json] [--device D] [--set row|group] [--arith f32|bf16]\n"
        "Each operation, in each kernel set that has it, against the reference. All programs are compiled "
        "anew:\n"
        "the program cache is neither read nor written (a driver may keep a cache of its own).",
        CLI_JSON | CLI_DEVICE | CLI_VARIANT | CLI_FILTER, 0, 1
    };
    struct cli_options o;
    struct session s = { .options = &o, .progress = isatty(STDERR_FILENO) == 1 };
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
    if (!open_device(&o))
        return CLI_WRONG;
    for (int i = 0; i < op_num_descs; i++)
        if (!o.num_operands || !strcmp(o.operands[0], op_descs[i].name))
            run_op(&s, &op_descs[i]);
    return cli_finish(s.wrong ? CLI_WRONG : CLI_RIGHT);
}
