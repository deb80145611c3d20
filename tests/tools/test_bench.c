// SPDX-License-Identifier: Apache-2.0
// The `bench` command: its exit statuses and the lines of --json. CLINFER_COMMAND names the program.
#include <criterion/criterion.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cJSON.h>

enum { LINE_SIZE = 1024, MAX_LINES = 32 };

struct output {
    cJSON *line[MAX_LINES];
    int lines, status;
};

static struct output bench(const char *arguments)
{
    struct output out = { { NULL }, 0, -1 };
    char command[LINE_SIZE], line[LINE_SIZE];
    const char *program = getenv("CLINFER_COMMAND");
    cr_assert_not_null(program, "CLINFER_COMMAND is not set");
    (void) snprintf(command, sizeof command, "'%s' bench %s 2>/dev/null", program, arguments);
    FILE *from = popen(command, "r");
    cr_assert_not_null(from);
    while (fgets(line, sizeof line, from)) {
        cr_assert_lt(out.lines, MAX_LINES);
        cJSON *object = cJSON_Parse(line);
        cr_assert(cJSON_IsObject(object), "not a JSON object: %s", line);
        out.line[out.lines++] = object;
    }
    const int status = pclose(from);
    out.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return out;
}

static void release(struct output *out)
{
    for (int i = 0; i < out->lines; i++)
        cJSON_Delete(out->line[i]);
}

static double number(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    cr_assert(cJSON_IsNumber(item), "%s is no number", name);
    cr_assert_gt(item->valuedouble, 0, "%s is %g", name, item->valuedouble);
    return item->valuedouble;
}

static const char *text(const cJSON *object, const char *name)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(object, name);
    cr_assert(cJSON_IsString(item), "%s is no string", name);
    return item->valuestring;
}

static void check_case(const cJSON *device, const cJSON *row, const char *prefix)
{
    const double share = number(row, "share");
    cr_expect_eq(strncmp(text(row, "case"), prefix, strlen(prefix)), 0, "%s", text(row, "case"));
    cr_expect_leq(number(row, "min_us"), number(row, "median_us"));
    if (!strcmp(text(row, "limit"), "f32")) {
        cr_expect_float_eq(share, number(row, "gflops") / number(device, "f32_gflops"), 1e-6 * share);
        return;
    }
    cr_expect_str_eq(text(row, "limit"), "bandwidth");
    const double gbps = number(row, "gbps"), off_copy = gbps / number(device, "copy_gbps") / share - 1,
                 off_read = gbps / number(device, "read_gbps") / share - 1;
    cr_expect(off_copy * off_copy < 1e-12 || off_read * off_read < 1e-12);
}

static void check_op(const char *arguments, const char *prefix, int rows)
{
    struct output out = bench(arguments);
    cr_assert_eq(out.status, 0);
    cr_assert_eq(out.lines, 1 + rows);
    const cJSON *device = out.line[0];
    (void) text(device, "device");
    cr_expect(cJSON_IsNull(cJSON_GetObjectItemCaseSensitive(device, "dot_gflops")));
    (void) number(device, "launch_us");
    for (int i = 1; i < out.lines; i++)
        check_case(device, out.line[i], prefix);
    release(&out);
}

Test(bench, norm)
{
    check_op("rms_norm_kv_cache --filter 9x3x64/bf16/ --json", "rms_norm_kv_cache/smollm2-9x3x64/bf16/", 5);
}

Test(bench, rope)
{
    check_op("fused_qk_rope --filter smollm2-9x3x64-halves/bf16+f8scaled/decode --json",
             "fused_qk_rope/smollm2-9x3x64-halves/bf16+f8scaled/decode", 3);
}

Test(bench, mla_store)
{
    check_op("--filter deepseek-lite-16x576/f32/decode64 --json", "mla_fused_rope_rmsnorm/", 1);
}

Test(bench, attention_alone)
{
    check_op("mla_decode_branch --filter attention/deepseek-lite-16x576/bf16/decode1 --json",
             "mla_decode_branch:attention/", 1);
}

Test(bench, statuses)
{
    static const struct {
        const char *arguments;
        int status;
    } calls[] = {
        { "no_such_op", 2 }, { "--no-such-option", 2 },      { "--filter", 2 },
        { "a b", 2 },        { "--filter no-such-case", 1 }, { "--device no-such-device", 1 },
    };
    for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
        struct output out = bench(calls[i].arguments);
        cr_expect_eq(out.status, calls[i].status, "bench %s: %d", calls[i].arguments, out.status);
        cr_expect_eq(out.lines, 0);
        release(&out);
    }
}
