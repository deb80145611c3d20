// SPDX-License-Identifier: Apache-2.0
#include "cli.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void cli_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    (void) fputs("clinfer: ", stderr);
    (void) vfprintf(stderr, format, args);
    (void) fputc('\n', stderr);
    va_end(args);
}

// What --set, --arith and --gemm can say.
struct variant {
    const char *option, *value;
    int code; // clinfer_kernel_set, clinfer_arith or clinfer_gemm; 0: this version has it not
};
static const struct variant variants[] = {
    { "--set", "row", CLINFER_SET_ROW },     { "--set", "group", CLINFER_SET_GROUP },
    { "--arith", "f32", CLINFER_ARITH_F32 }, { "--arith", "bf16", 0 },
    { "--gemm", "own", CLINFER_GEMM_OWN },   { "--gemm", "clblast", CLINFER_GEMM_CLBLAST },
};

static bool set_variant(struct cli_options *o, const char *option, const char *value)
{
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        const struct variant *v = &variants[i];
        if (strcmp(v->option, option) || strcmp(v->value, value))
            continue;
        if (!v->code)
            cli_error("%s %s does not exist yet", option, value);
        if (!strcmp(option, "--set"))
            o->set = (clinfer_kernel_set) v->code;
        else if (!strcmp(option, "--gemm"))
            o->gemm = (clinfer_gemm) v->code;
        else
            o->arith = (clinfer_arith) v->code;
        return v->code != 0;
    }
    cli_error("%s: \"%s\" is none of its values", option, value);
    return false;
}

struct scan {
    int argc, at;
    char **argv;
    const struct cli_command *command;
};

// The value of an option, as `--name VALUE` or `--name=VALUE`; NULL where the argument is another.
// *missing: it is that option, without a value.
static const char *value_of(struct scan *s, const char *name, bool *missing)
{
    const char *arg = s->argv[s->at];
    const size_t n = strlen(name);
    if (strncmp(arg, name, n))
        return NULL;
    if (arg[n] == '=' && arg[1] == '-')
        return arg + n + 1;
    if (arg[n])
        return NULL;
    if (s->at + 1 == s->argc) {
        cli_error("%s needs a value", name);
        *missing = true;
        return NULL;
    }
    return s->argv[++s->at];
}

static bool parse_option(struct scan *s, struct cli_options *o)
{
    const unsigned takes = s->command->options;
    const char *value;
    bool missing = false;
    if (takes & CLI_JSON && !strcmp(s->argv[s->at], "--json"))
        return o->json = true;
    if (takes & CLI_DEVICE && (value = value_of(s, "--device", &missing)) != NULL) {
        o->device = value;
        return true;
    }
    if (takes & CLI_OUT && (value = value_of(s, "-o", &missing)) != NULL) {
        o->out = value;
        return true;
    }
    if (takes & CLI_FILTER && (value = value_of(s, "--filter", &missing)) != NULL) {
        o->filter = value;
        return true;
    }
    if (takes & CLI_CASE && (value = value_of(s, "--case", &missing)) != NULL) {
        o->test_case = value;
        return true;
    }
    if (takes & CLI_VARIANT && (value = value_of(s, "--set", &missing)) != NULL)
        return set_variant(o, "--set", value);
    if (takes & CLI_VARIANT && (value = value_of(s, "--arith", &missing)) != NULL)
        return set_variant(o, "--arith", value);
    if (takes & CLI_VARIANT && (value = value_of(s, "--gemm", &missing)) != NULL)
        return set_variant(o, "--gemm", value);
    if (!missing)
        cli_error("unknown option %s", s->argv[s->at]);
    return false;
}

static bool parse_all(struct scan *s, struct cli_options *o)
{
    bool options_end = false;
    for (s->at = 1; s->at < s->argc; s->at++) {
        const char *arg = s->argv[s->at];
        if (!options_end && !strcmp(arg, "--")) {
            options_end = true;
        } else if (!options_end && arg[0] == '-' && arg[1]) {
            if (!parse_option(s, o))
                return false;
        } else if (o->num_operands == s->command->max_operands) {
            cli_error("one argument too many: %s", arg);
            return false;
        } else {
            o->operands[o->num_operands++] = arg;
        }
    }
    if (o->num_operands < s->command->min_operands)
        cli_error("an argument is missing");
    return o->num_operands >= s->command->min_operands;
}

bool cli_parse(int argc, char **argv, const struct cli_command *command, struct cli_options *options,
               int *status)
{
    struct scan s = { argc, 1, argv, command };
    memset(options, 0, sizeof *options);
    for (int i = 1; i < argc && strcmp(argv[i], "--"); i++)
        if (!strcmp(argv[i], "--help")) {
            (void) printf("usage: %s\n", command->usage);
            *status = cli_finish(CLI_RIGHT);
            return false;
        }
    if (parse_all(&s, options))
        return true;
    (void) fprintf(stderr, "usage: %s\n", command->usage);
    *status = CLI_USAGE;
    return false;
}

static void log_message(void *priv, clinfer_log_level level, const char *message)
{
    static const char *const names[] = { "", "error", "warn", "info", "debug" };
    (void) priv;
    (void) fprintf(stderr, "clinfer: %s: %s\n", level <= CLINFER_LOG_DEBUG ? names[level] : "", message);
}

clinfer_ctx *cli_context(const struct cli_options *options)
{
    return cli_context_from(options, (struct clinfer_ctx_params){ 0 });
}

// Errors come back as a text, which is printed: without CLINFER_LOG only warnings go this way.
static void log_warning(void *priv, clinfer_log_level level, const char *message)
{
    if (level == CLINFER_LOG_WARN)
        log_message(priv, level, message);
}

clinfer_ctx *cli_context_from(const struct cli_options *options, struct clinfer_ctx_params params)
{
    char error[512] = "";
    clinfer_ctx *ctx = NULL;
    params.device = options->device;
    params.kernel_set = options->set;
    params.arith = options->arith;
    params.gemm = options->gemm;
    params.log = getenv("CLINFER_LOG") ? log_message : log_warning;
    params.error = error;
    params.error_size = sizeof error;
    const clinfer_status status = clinfer_ctx_create(&ctx, &params);
    if (status == CLINFER_OK)
        return ctx;
    cli_error("%s", *error ? error : clinfer_status_str(status));
    return NULL;
}

// Bytes of the UTF-8 character at c, 0 where there is none.
static int utf8_length(const unsigned char *c)
{
    const int n = *c < 0x80                 ? 1
                  : *c >= 0xc2 && *c < 0xe0 ? 2
                  : *c >= 0xe0 && *c < 0xf0 ? 3
                  : *c >= 0xf0 && *c < 0xf5 ? 4
                                            : 0;
    for (int i = 1; i < n; i++)
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    return n;
}

void cli_json_string(FILE *to, const char *text)
{
    (void) fputc('"', to);
    for (const unsigned char *c = (const unsigned char *) text; *c; c++)
        if (!utf8_length(c))
            (void) fputs("\\ufffd", to);
        else if (utf8_length(c) > 1) {
            const int n = utf8_length(c);
            (void) fwrite(c, 1, (size_t) n, to);
            c += n - 1;
        } else if (*c == '"' || *c == '\\')
            (void) fprintf(to, "\\%c", *c);
        else if (*c < 0x20 || *c == 0x7f)
            (void) fprintf(to, "\\u%04x", *c);
        else
            (void) fputc(*c, to);
    (void) fputc('"', to);
}

void cli_json_number(FILE *to, double x)
{
    if (isfinite(x))
        (void) fprintf(to, "%.9g", x);
    else
        (void) fputs("null", to);
}

int cli_finish(int status)
{
    if (!fflush(stdout) && !ferror(stdout))
        return status;
    cli_error("stdout could not be written");
    return CLI_WRONG;
}
