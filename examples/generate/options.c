// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char options_usage[] =
    "usage: generate --prompt TEXT... | --prompts FILE | --nll FILE [--prompt TEXT...]  [options]\n"
    "  --prompt TEXT      continues it; several run together over one pool of pages\n"
    "  --prompts FILE     a prompt on each line\n"
    "  --nll FILE         the mean loss of the file's text, perhaps with prompts running beside it\n"
    "  --model FILE       GGUF, architecture llama or deepseek2; else the one inside, psalter-2m\n"
    "  -n N               new tokens of each prompt, at most (32)\n"
    "  --temperature X, --top-p X, --seed N   how tokens are drawn (0: the likeliest, 1, 0)\n"
    "  --special          prompts may spell special tokens\n"
    "  --weights f32|bf16|q8_0|f8_e4m3        on the device (bf16)\n"
    "  --kv-type f32|f16|bf16|f8_e4m3|f8_e4m3_scaled   of the cache (f16)\n"
    "  --attention gqa|mla   mla runs a llama model through the MLA operations, which is exact: a proof,\n"
    "                     not a saving, for its cache is larger\n"
    "  --page-size N      tokens of a page (16)\n"
    "  --pages N          of the pool (what the prompts that run at a time need)\n"
    "  --batch N          prompts that run at a time (8)\n"
    "  --chunk N          tokens of a step (128)\n"
    "  --deterministic    each text is the same, bit for bit, whatever runs beside it and whenever it is\n"
    "                     preempted. Its price: one work-item a head for all keys of a token, however long\n"
    "                     the context, and no prefill branch of MLA, so long prompts are slower\n"
    "  --device D         index, cpu, gpu or a part of a name (CLINFER_DEVICE, or the first)\n"
    "  --json             JSON Lines\n";

struct choice {
    const char *option, *value;
    int code;
};
static const struct choice choices[] = {
    { "--kv-type", "f32", KV_F32 },
    { "--kv-type", "f16", KV_F16 },
    { "--kv-type", "bf16", KV_BF16 },
    { "--kv-type", "f8_e4m3", KV_F8_E4M3 },
    { "--kv-type", "f8_e4m3_scaled", KV_F8_E4M3_SCALED },
    { "--weights", "f32", WEIGHTS_F32 },
    { "--weights", "bf16", WEIGHTS_BF16 },
    { "--weights", "q8_0", WEIGHTS_Q8_0 },
    { "--weights", "f8_e4m3", WEIGHTS_F8_E4M3 },
    { "--attention", "gqa", ATTENTION_GQA },
    { "--attention", "mla", ATTENTION_MLA },
};

static bool choose(const char *option, const char *value, int *code, struct error *error)
{
    char known[128] = "";
    size_t n = 0;
    for (size_t i = 0; i < sizeof choices / sizeof choices[0]; i++) {
        if (strcmp(choices[i].option, option))
            continue;
        if (!strcmp(choices[i].value, value)) {
            *code = choices[i].code;
            return true;
        }
        n += (size_t) snprintf(known + n, sizeof known - n, "%s%s", n ? ", " : "", choices[i].value);
    }
    return fail(error, "%s: \"%.80s\" is none of %s", option, value, known);
}

// Digits only.
static bool whole(const char *option, const char *value, uint64_t low, uint64_t high, uint64_t *x,
                  struct error *error)
{
    bool ok = *value != 0;
    *x = 0;
    for (const char *c = value; ok && *c; c++) {
        const uint64_t digit = (uint64_t) (*c - '0');
        ok = *c >= '0' && *c <= '9' && *x <= (high - digit) / 10 && digit <= high;
        if (ok)
            *x = 10 * *x + digit;
    }
    return (ok && *x >= low) || fail(error, "%s: \"%.80s\" is no whole number from %" PRIu64 " to %" PRIu64,
                                     option, value, low, high);
}

static bool count(const char *option, const char *value, int64_t low, int64_t *x, struct error *error)
{
    uint64_t n;
    if (!whole(option, value, (uint64_t) low, INT32_MAX, &n, error))
        return false;
    *x = (int64_t) n;
    return true;
}

static bool number(const char *option, const char *value, double low, double high, double *x,
                   struct error *error)
{
    char *end;
    *x = strtod(value, &end);
    return (end != value && !*end && *x >= low && *x <= high) ||
           fail(error, "%s: \"%.80s\" is no number from %g to %g", option, value, low, high);
}

static bool add_prompt(struct options *o, const char *text, size_t size, struct error *error)
{
    // Grown at powers of two.
    if (!(o->num_prompts & (o->num_prompts - 1))) {
        const size_t room = o->num_prompts ? 2 * o->num_prompts : 1;
        void *larger = realloc(o->prompts, room * sizeof *o->prompts);
        if (!larger)
            return fail(error, "out of memory for %zu prompts", room);
        o->prompts = larger;
    }
    o->prompts[o->num_prompts++] = (struct options_text){ text, size };
    return true;
}

static bool flag(const char *name, struct options *o)
{
    bool *set = !strcmp(name, "--json")            ? &o->json
                : !strcmp(name, "--help")          ? &o->help
                : !strcmp(name, "--special")       ? &o->special
                : !strcmp(name, "--deterministic") ? &o->deterministic
                                                   : NULL;
    if (set)
        *set = true;
    return set != NULL;
}

static const char *const with_value[] = { "--model",     "--prompt",      "--prompts", "--nll",
                                          "-n",          "--kv-type",     "--weights", "--attention",
                                          "--page-size", "--pages",       "--batch",   "--chunk",
                                          "--top-p",     "--temperature", "--seed",    "--device" };

static bool set_text(const char *name, const char *value, const char **to, struct error *error)
{
    if (*to)
        return fail(error, "%s is there twice", name);
    *to = value;
    return true;
}

static bool set(const char *name, const char *value, struct options *o, struct error *error)
{
    int code = 0;
    if (!strcmp(name, "--prompt"))
        return add_prompt(o, value, strlen(value), error);
    const char **text = !strcmp(name, "--model")     ? &o->model
                        : !strcmp(name, "--prompts") ? &o->prompts_file
                        : !strcmp(name, "--nll")     ? &o->nll_file
                        : !strcmp(name, "--device")  ? &o->device
                                                     : NULL;
    if (text)
        return set_text(name, value, text, error);
    int64_t *n = !strcmp(name, "-n")            ? &o->max_tokens
                 : !strcmp(name, "--page-size") ? &o->page_size
                 : !strcmp(name, "--pages")     ? &o->pages
                 : !strcmp(name, "--batch")     ? &o->batch
                 : !strcmp(name, "--chunk")     ? &o->chunk
                                                : NULL;
    if (n)
        return count(name, value, 1, n, error);
    if (!strcmp(name, "--seed"))
        return whole(name, value, 0, UINT64_MAX, &o->seed, error);
    if (!strcmp(name, "--temperature"))
        return number(name, value, 0, 100, &o->temperature, error);
    if (!strcmp(name, "--top-p"))
        return number(name, value, 1e-6, 1, &o->top_p, error);
    if (!choose(name, value, &code, error))
        return false;
    if (!strcmp(name, "--kv-type"))
        o->kv_type = (enum options_kv_type) code;
    else if (!strcmp(name, "--weights"))
        o->weights = (enum weights_type) code;
    else
        o->attention = (enum options_attention) code;
    return true;
}

// The option of argv[*at] and its value, perhaps the next argument.
static bool parse_one(int argc, char **argv, int *at, struct options *o, struct error *error)
{
    const char *arg = argv[*at];
    if (flag(arg, o))
        return true;
    for (size_t i = 0; i < sizeof with_value / sizeof with_value[0]; i++) {
        const char *name = with_value[i];
        const size_t n = strlen(name);
        if (strncmp(arg, name, n))
            continue;
        if (arg[n] == '=' && arg[1] == '-')
            return set(name, arg + n + 1, o, error);
        if (arg[n])
            continue;
        if (*at + 1 == argc)
            return fail(error, "%s needs a value", name);
        return set(name, argv[++*at], o, error);
    }
    return arg[0] == '-' ? fail(error, "unknown option %.80s", arg)
                         : fail(error, "unknown argument \"%.80s\": texts go after --prompt", arg);
}

bool options_parse(int argc, char **argv, struct options *options, struct error *error)
{
    *options = (struct options){ .max_tokens = 32,
                                 .kv_type = KV_F16,
                                 .weights = WEIGHTS_BF16,
                                 .page_size = 16,
                                 .batch = 8,
                                 .chunk = 128,
                                 .top_p = 1 };
    bool ok = true;
    for (int at = 1; ok && at < argc; at++)
        ok = parse_one(argc, argv, &at, options, error);
    if (ok && !options->help) {
        const int ways = (options->num_prompts > 0) + !!options->prompts_file + !!options->nll_file;
        if (ways != 1 && (ways != 2 || options->prompts_file))
            ok = fail(error,
                      "%d of --prompt, --prompts and --nll are there, want one, or --prompt beside --nll",
                      ways);
    }
    if (!ok)
        options_free(options);
    return ok;
}

// The bytes of a file, with a NUL after them.
static char *read_all(const char *path, size_t *size, struct error *error)
{
    FILE *f = fopen(path, "rb");
    char *text = NULL, *larger;
    size_t room = 0, n = 1;
    if (!f) {
        fail(error, "%.300s: %s", path, strerror(errno));
        return NULL;
    }
    for (*size = 0; n; *size += n) {
        if (room - *size < 2) {
            room = room ? 2 * room : 1 << 16;
            larger = realloc(text, room);
            if (!larger)
                break;
            text = larger;
        }
        errno = 0;
        n = fread(text + *size, 1, room - *size - 1, f);
    }
    const bool ok = !n && !ferror(f);
    if (!ok)
        fail(error, "%.300s: %s", path, n ? "out of memory" : strerror(errno));
    fclose(f);
    if (!ok) {
        free(text);
        return NULL;
    }
    text[*size] = 0;
    return text;
}

bool options_read(struct options *options, struct error *error)
{
    const char *path = options->nll_file ? options->nll_file : options->prompts_file;
    size_t size;
    if (!path)
        return true;
    options->texts = read_all(path, &size, error);
    if (!options->texts)
        return false;
    if (options->nll_file) {
        options->nll = (struct options_text){ options->texts, size };
        return true;
    }
    for (size_t at = 0, n; at < size; at += n + 1) {
        const char *line = options->texts + at, *end = memchr(line, '\n', size - at);
        n = end ? (size_t) (end - line) : size - at;
        if (!add_prompt(options, line, n, error))
            return false;
    }
    return options->num_prompts || fail(error, "%.300s: no lines, want a prompt on each", path);
}

void options_free(struct options *options)
{
    free(options->prompts);
    free(options->texts);
    *options = (struct options){ 0 };
}
