// SPDX-License-Identifier: Apache-2.0
// clinfer dump: the programs of a call as a driver gets them, for a bug report to its authors.
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "check.h"
#include "cli.h"

enum { ERROR_SIZE = 1024, PATH_SIZE = 4096 };

struct dump {
    const struct cli_options *options;
    const char *call; // what the call is named
    struct clinfer_device_info info;
    int count;
    bool failed;
};

// A comment's text: drivers put anything into their names, and a backslash would take the next line with it.
static void print_text(FILE *to, const char *text)
{
    for (; *text; text++)
        (void) fputc(*text == '\\' || (unsigned char) *text < ' ' ? '?' : *text, to);
}

static void print_line(FILE *to, const char *what, const char *text)
{
    (void) fprintf(to, "// %s: ", what);
    print_text(to, text);
    (void) fputc('\n', to);
}

static const char *set_name(clinfer_kernel_set set)
{
    return set == CLINFER_SET_GROUP ? "group" : "row";
}

static void print_source(const struct dump *d, const struct clinfer_program_text *p, FILE *to)
{
    (void) fprintf(to, "// clinfer %s, %s of %s: cl/%s/%s.cl with all that it includes.\n", clinfer_version(),
                   p->op, d->call, set_name(p->set), p->name);
    print_line(to, "device", d->info.device);
    print_line(to, "driver", d->info.driver);
    print_line(to, "platform", d->info.platform);
    print_line(to, "version", d->info.version);
    (void) fputs("// kernels:", to);
    for (int i = 0; i < p->num_kernels; i++)
        (void) fprintf(to, " %s", p->kernels[i]);
    (void) fputs("\n// options of clBuildProgram, in one line:\n", to);
    print_line(to, "options", p->options);
    (void) fwrite(p->source, 1, p->source_size, to);
}

// A file of the folder -o, whole or not at all. NULL for `p`'s source writes its options.
static bool write_file(struct dump *d, const struct clinfer_program_text *p, const char *ending)
{
    char path[PATH_SIZE];
    const int n = snprintf(path, sizeof path, "%s/%d-%s-%s.%s", d->options->out, d->count, p->name,
                           set_name(p->set), ending);
    if (n < 0 || (size_t) n >= sizeof path) {
        cli_error("%s: too long a path", d->options->out);
        return false;
    }
    FILE *f = fopen(path, "w");
    if (!f) {
        cli_error("%s: %s", path, strerror(errno));
        return false;
    }
    if (!strcmp(ending, "cl"))
        print_source(d, p, f);
    else
        (void) fprintf(f, "%s\n", p->options);
    const bool written = !ferror(f);
    if (!fclose(f) && written) {
        (void) printf("%s\n", path);
        return true;
    }
    cli_error("%s could not be written: %s", path, strerror(errno));
    (void) unlink(path);
    return false;
}

static void on_program(void *priv, const struct clinfer_program_text *p)
{
    struct dump *d = priv;
    d->count++;
    if (!d->options->out)
        print_source(d, p, stdout);
    else if (!d->failed)
        d->failed = !write_file(d, p, "cl") || !write_file(d, p, "options");
}

static bool make_folder(const char *path)
{
    struct stat st;
    if (!mkdir(path, 0777) || (errno == EEXIST && !stat(path, &st) && S_ISDIR(st.st_mode)))
        return true;
    cli_error("%s: %s", path, strerror(errno));
    return false;
}

static bool dump_call(struct dump *d, const struct op_case *c)
{
    char error[ERROR_SIZE] = "";
    const struct clinfer_ctx_params params = { .cache_dir = "", .inspect = on_program, .inspect_priv = d };
    clinfer_ctx *ctx = cli_context_from(d->options, params);
    if (!ctx)
        return false;
    clinfer_ctx_device_info(ctx, &d->info);
    const clinfer_status status = c->op->compile(ctx, c->params);
    if (status) {
        (void) clinfer_ctx_error(ctx, error, sizeof error);
        cli_error("%s", *error ? error : clinfer_status_str(status));
    }
    clinfer_ctx_destroy(&ctx);
    return !status && !d->failed;
}

// The case of `check` that --case names, with its batch or without; the op's first where nothing is named.
static bool find_case(const struct cli_options *o, struct check_case *c)
{
    char name[CHECK_NAME_SIZE];
    for (int i = 0; check_case_at(i, c); i++) {
        check_case_name(c, name);
        if (!strcmp(c->call->op, o->operands[0]) &&
            (!o->test_case || !strcmp(c->call->name, o->test_case) || !strcmp(name, o->test_case)))
            return true;
    }
    return false;
}

static int dump_op(struct dump *d)
{
    char error[ERROR_SIZE] = "", name[CHECK_NAME_SIZE];
    struct check_case which;
    struct op_case c;
    if (!find_case(d->options, &which)) {
        cli_error("%s has no case \"%s\"; clinfer check %s --json names them", d->options->operands[0],
                  d->options->test_case ? d->options->test_case : "", d->options->operands[0]);
        return CLI_USAGE;
    }
    if (!synth_case(which.call, which.batch, &c, error, sizeof error)) {
        cli_error("%s", error);
        return CLI_WRONG;
    }
    check_case_name(&which, name);
    d->call = name;
    const bool ok = dump_call(d, &c);
    op_case_free(&c);
    return ok ? CLI_RIGHT : CLI_WRONG;
}

static int dump_file(struct dump *d)
{
    char error[ERROR_SIZE] = "";
    struct op_case c;
    const char *slash = strrchr(d->options->operands[0], '/');
    if (!op_case_load(d->options->operands[0], &c, error, sizeof error)) {
        cli_error("%s", error);
        return CLI_WRONG;
    }
    d->call = slash ? slash + 1 : d->options->operands[0];
    const bool ok = dump_call(d, &c);
    op_case_free(&c);
    return ok ? CLI_RIGHT : CLI_WRONG;
}

int cmd_dump(int argc, char **argv)
{
    static const struct cli_command command = {
        "clinfer dump OP|FILE [--case NAME] [-o DIR] [--device D] [--set row|group] [--arith f32|bf16]\n"
        "The source and the build options of each program of a call: one of `clinfer check`'s, or a case "
        "file's.\n"
        "Nothing is compiled. With -o, files N-NAME-SET.cl and .options in DIR.",
        CLI_DEVICE | CLI_OUT | CLI_VARIANT | CLI_CASE, 1, 1
    };
    struct cli_options o;
    struct dump d = { .options = &o };
    int status;
    if (!cli_parse(argc, argv, &command, &o, &status))
        return status;
    const bool op = op_find(o.operands[0]) != NULL;
    if (!op && o.test_case) {
        cli_error("--case goes with an op, and \"%s\" is none", o.operands[0]);
        return CLI_USAGE;
    }
    if (o.out && !make_folder(o.out))
        return CLI_WRONG;
    return cli_finish(op ? dump_op(&d) : dump_file(&d));
}
