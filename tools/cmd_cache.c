// SPDX-License-Identifier: Apache-2.0
// clinfer cache: the folder of compiled programs.
#include <string.h>

#include "cli.h"
#include "opcase.h"

enum { ERROR_SIZE = 1024, PATH_SIZE = 4096 };

struct listing {
    bool json;
    unsigned count, damaged, disabled;
    uint64_t bytes;
};

static int print_entry(void *priv, const struct clinfer_cache_entry *e)
{
    struct listing *l = priv;
    l->count++;
    l->damaged += !e->ok;
    l->disabled += !strncmp(e->op, "disabled ", 9); // a kernel set that failed its self-check
    l->bytes += e->bytes;
    if (!l->json) {
        printf("%.8s  %-24s %9llu bytes  %s  %s\n", e->name, e->op, (unsigned long long) e->bytes,
               e->ok ? "ok" : "DAMAGED", e->device);
        return 0;
    }
    printf("{\"key\":\"%.*s\"", (int) strcspn(e->name, "."), e->name); // the file's name without its ending
    printf(",\"op\":");
    cli_json_string(stdout, e->op);
    printf(",\"bytes\":%llu,\"device\":", (unsigned long long) e->bytes);
    cli_json_string(stdout, e->device);
    printf(",\"ok\":%s}\n", e->ok ? "true" : "false");
    return 0;
}

static int list(const struct cli_options *o, bool verify)
{
    struct listing l = { .json = o->json };
    char error[ERROR_SIZE] = "";
    clinfer_status st = clinfer_cache_list(NULL, print_entry, &l, error, sizeof error);
    if (st) {
        cli_error("%s", *error ? error : clinfer_status_str(st));
        return CLI_WRONG;
    }
    if (!o->json)
        printf("%u program%s, %llu bytes, %u damaged\n", l.count - l.disabled,
               l.count - l.disabled == 1 ? "" : "s", (unsigned long long) l.bytes, l.damaged);
    if (!o->json && l.disabled)
        printf("%u kernel set%s disabled: they failed their self-check\n", l.disabled,
               l.disabled == 1 ? "" : "s");
    if (verify && l.damaged)
        cli_error("%u of %u entries are damaged; a context compiles them again when it meets them", l.damaged,
                  l.count);
    return cli_finish(verify && l.damaged ? CLI_WRONG : CLI_RIGHT);
}

static int clear(const struct cli_options *o)
{
    char error[ERROR_SIZE] = "";
    unsigned removed = 0;
    struct listing l = { .json = true };
    if (o->json)
        (void) clinfer_cache_list(NULL, print_entry, &l, NULL, 0);
    clinfer_status st = clinfer_cache_clear(NULL, &removed, error, sizeof error);
    if (st) {
        cli_error("%s", *error ? error : clinfer_status_str(st));
        return CLI_WRONG;
    }
    fprintf(stderr, "%u removed\n", removed);
    return cli_finish(CLI_RIGHT);
}

static int print_path(const struct cli_options *o)
{
    char path[PATH_SIZE];
    clinfer_status st = clinfer_cache_path(NULL, path, sizeof path);
    if (st) {
        cli_error("no program cache: CLINFER_CACHE_DIR is empty, or there is no home folder (%s)",
                  clinfer_status_str(st));
        return CLI_WRONG;
    }
    if (o->json) {
        printf("{\"path\":");
        cli_json_string(stdout, path);
        printf("}\n");
    } else {
        printf("%s\n", path);
    }
    return cli_finish(CLI_RIGHT);
}

static bool compile_case(clinfer_ctx *ctx, const struct op_case *c)
{
    char error[ERROR_SIZE] = "";
    clinfer_status st = c->op->compile(ctx, c->params);
    if (!st)
        st = clinfer_ctx_save(ctx);
    if (!st)
        return true;
    (void) clinfer_ctx_error(ctx, error, sizeof error);
    cli_error("%s", *error ? error : clinfer_status_str(st));
    return false;
}

// One line for the op's programs together, which have several keys.
static void print_built(const clinfer_ctx *ctx, const char *op)
{
    struct clinfer_device_info info;
    clinfer_ctx_device_info(ctx, &info);
    printf("{\"key\":null,\"op\":\"%s\",\"bytes\":null,\"device\":", op);
    cli_json_string(stdout, info.device);
    printf(",\"ok\":true}\n");
}

// Compiles what the file's call needs, saves it and runs nothing.
static int build(const struct cli_options *o)
{
    struct op_case c;
    struct clinfer_ctx_stats stats;
    char error[ERROR_SIZE] = "";
    if (!op_case_load(o->operands[1], &c, error, sizeof error)) {
        cli_error("%s", error);
        return CLI_WRONG;
    }
    clinfer_ctx *ctx = cli_context(o);
    const bool ok = ctx && compile_case(ctx, &c);
    if (ok) {
        clinfer_ctx_stats(ctx, &stats);
        if (o->json)
            print_built(ctx, c.op->name);
        fprintf(stderr, "%s: %llu programs compiled, %llu in the cache before, %llu stored\n", c.op->name,
                (unsigned long long) stats.compiled, (unsigned long long) stats.loaded,
                (unsigned long long) stats.stored);
    }
    clinfer_ctx_destroy(&ctx);
    op_case_free(&c);
    return ok ? cli_finish(CLI_RIGHT) : CLI_WRONG;
}

int cmd_cache(int argc, char **argv)
{
    static const struct cli_command command = {
        "clinfer cache list|verify|clear|path|build FILE [--json] [--device D]", CLI_JSON | CLI_DEVICE, 1, 2
    };
    struct cli_options o;
    int status;
    if (!cli_parse(argc, argv, &command, &o, &status))
        return status;
    const char *what = o.operands[0];
    const bool file = !strcmp(what, "build");
    if (o.num_operands == (file ? 2 : 1)) {
        if (!strcmp(what, "list") || !strcmp(what, "verify"))
            return list(&o, *what == 'v');
        if (!strcmp(what, "clear"))
            return clear(&o);
        if (!strcmp(what, "path"))
            return print_path(&o);
        if (file)
            return build(&o);
    }
    fprintf(stderr, "usage: %s\n", command.usage);
    return CLI_USAGE;
}
