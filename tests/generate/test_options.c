// SPDX-License-Identifier: Apache-2.0
#include "options.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

TestSuite(options, .timeout = 60);

static struct error error;
static struct options o;

enum { MAX_ARGS = 40 };
static bool parse(char *const *args)
{
    char *argv[MAX_ARGS] = { (char[]){ "generate" } };
    int argc = 1;
    while (args[argc - 1]) {
        argv[argc] = args[argc - 1];
        argc++;
    }
    return options_parse(argc, argv, &o, &error);
}
#define ARGS(...) ((char *const[]){ __VA_ARGS__, NULL })

Test(options, defaults)
{
    cr_assert(parse(ARGS("--prompt", "In the beginning")), "%s", error.text);
    cr_assert(o.num_prompts == 1 && o.prompts[0].size == 16 &&
              !strcmp(o.prompts[0].text, "In the beginning"));
    cr_assert(!o.model && !o.device && !o.json && !o.special && !o.deterministic && !o.help &&
              o.max_tokens == 32 && o.page_size == 16);
    cr_assert(o.kv_type == KV_F16 && o.weights == WEIGHTS_BF16 && o.attention == ATTENTION_AUTO &&
              o.pages == 0);
    cr_assert(o.batch == 8 && o.chunk == 128 && o.temperature == 0 && o.top_p == 1 && o.seed == 0);
    options_free(&o);
}

Test(options, all)
{
    cr_assert(parse(ARGS("--prompt", "a", "--prompt=--b", "--model", "m.gguf", "-n", "7", "--kv-type",
                         "f8_e4m3_scaled", "--weights=q8_0", "--attention", "mla", "--page-size", "32",
                         "--pages", "9", "--batch", "3", "--chunk", "5", "--temperature", "0.7", "--top-p",
                         "0.9", "--seed", "18446744073709551615", "--device", "cpu", "--json", "--special",
                         "--deterministic", "--nll", "n", "--prompt", "")),
              "%s", error.text);
    cr_assert(o.num_prompts == 3 && !strcmp(o.prompts[1].text, "--b") && o.prompts[2].size == 0);
    cr_assert(!strcmp(o.model, "m.gguf") && !strcmp(o.device, "cpu") && o.json && o.special &&
              o.deterministic && !strcmp(o.nll_file, "n") && o.max_tokens == 7);
    cr_assert(o.kv_type == KV_F8_E4M3_SCALED && o.weights == WEIGHTS_Q8_0 && o.attention == ATTENTION_MLA);
    cr_assert(o.page_size == 32 && o.pages == 9 && o.batch == 3 && o.chunk == 5);
    cr_assert(o.temperature == 0.7 && o.top_p == 0.9 && o.seed == UINT64_MAX);
    options_free(&o);
    cr_assert(parse(ARGS("--help")) && o.help);
    options_free(&o);
}

Test(options, kv_types)
{
    const char *const names[] = { "f32", "f16", "bf16", "f8_e4m3", "f8_e4m3_scaled" };
    for (int i = 0; i < 5; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s", names[i]);
        cr_assert(parse(ARGS("--prompt", "a", "--kv-type", name)) && o.kv_type == (enum options_kv_type) i,
                  "%s", name);
        options_free(&o);
    }
}

static void refused(char *const *args, const char *want)
{
    cr_assert(!parse(args), "was taken, want: %s", want);
    cr_assert_str_eq(error.text, want);
    cr_assert(!o.prompts && !o.texts);
}

Test(options, refused)
{
    refused(ARGS("--json"),
            "0 of --prompt, --prompts and --nll are there, want one, or --prompt beside --nll");
    refused(ARGS("--prompts", "a", "--nll", "b"),
            "2 of --prompt, --prompts and --nll are there, want one, or "
            "--prompt beside --nll");
    refused(ARGS("--prompt"), "--prompt needs a value");
    refused(ARGS("--frob"), "unknown option --frob");
    refused(ARGS("--jsonx"), "unknown option --jsonx");
    refused(ARGS("--promptx", "a"), "unknown option --promptx");
    refused(ARGS("-n7", "a"), "unknown option -n7");
    refused(ARGS("text"), "unknown argument \"text\": texts go after --prompt");
    refused(ARGS("--model", "a", "--model", "b"), "--model is there twice");
    refused(ARGS("-n", "0"), "-n: \"0\" is no whole number from 1 to 2147483647");
    refused(ARGS("-n", "2147483648"), "-n: \"2147483648\" is no whole number from 1 to 2147483647");
    refused(ARGS("-n", "-3"), "-n: \"-3\" is no whole number from 1 to 2147483647");
    refused(ARGS("-n", "3x"), "-n: \"3x\" is no whole number from 1 to 2147483647");
    refused(ARGS("-n", ""), "-n: \"\" is no whole number from 1 to 2147483647");
    refused(ARGS("--seed", "18446744073709551616"),
            "--seed: \"18446744073709551616\" is no whole number from 0 to 18446744073709551615");
    refused(ARGS("--page-size", "99999999999999999999"),
            "--page-size: \"99999999999999999999\" is no whole number from 1 to 2147483647");
    refused(ARGS("--temperature", "-1"), "--temperature: \"-1\" is no number from 0 to 100");
    refused(ARGS("--temperature", "nan"), "--temperature: \"nan\" is no number from 0 to 100");
    refused(ARGS("--temperature", "1.5x"), "--temperature: \"1.5x\" is no number from 0 to 100");
    refused(ARGS("--top-p", "0"), "--top-p: \"0\" is no number from 1e-06 to 1");
    refused(ARGS("--top-p", "1.01"), "--top-p: \"1.01\" is no number from 1e-06 to 1");
    refused(ARGS("--kv-type", "q8"), "--kv-type: \"q8\" is none of f32, f16, bf16, f8_e4m3, f8_e4m3_scaled");
    refused(ARGS("--weights", "f16"), "--weights: \"f16\" is none of f32, bf16, q8_0, f8_e4m3");
    refused(ARGS("--attention", "mha"), "--attention: \"mha\" is none of gqa, mla");
}

static char path[64];
static void put(const char *text, size_t size)
{
    snprintf(path, sizeof path, "/tmp/clinfer-options-XXXXXX");
    const int fd = mkstemp(path);
    cr_assert(fd >= 0 && write(fd, text, size) == (ssize_t) size);
    close(fd);
}

// A prompt a line, as it is; the last may lack its end. For --nll all bytes.
Test(options, files)
{
    put("one\n two \n\nthree\r\nlast\0!", 24);
    cr_assert(parse(ARGS("--prompts", path)) && options_read(&o, &error), "%s", error.text);
    const char *const want[] = { "one", " two ", "", "three\r", "last\0!" };
    const size_t sizes[] = { 3, 5, 0, 6, 6 };
    cr_assert_eq(o.num_prompts, 5);
    for (int i = 0; i < 5; i++)
        cr_assert(o.prompts[i].size == sizes[i] && !memcmp(o.prompts[i].text, want[i], sizes[i]), "line %d",
                  i);
    options_free(&o);
    cr_assert(parse(ARGS("--nll", path)) && options_read(&o, &error), "%s", error.text);
    cr_assert(o.nll.size == 24 && !memcmp(o.nll.text, "one\n two", 8) && !o.num_prompts);
    options_free(&o);
    unlink(path);
    cr_assert(parse(ARGS("--nll", path)) && !options_read(&o, &error));
    cr_assert(strstr(error.text, path) && strstr(error.text, "No such file"), "%s", error.text);
    options_free(&o);
    cr_assert(parse(ARGS("--nll", "/tmp")) && !options_read(&o, &error) &&
                  strstr(error.text, "/tmp: Is a directory"),
              "%s", error.text);
    options_free(&o);
}

Test(options, large_and_empty_files)
{
    enum { SIZE = 200000 };
    char *text = malloc(SIZE);
    for (int i = 0; i < SIZE; i++)
        text[i] = i % 3 == 2 ? '\n' : 'a';
    put(text, SIZE);
    cr_assert(parse(ARGS("--prompts", path)) && options_read(&o, &error), "%s", error.text);
    cr_assert_eq(o.num_prompts, SIZE / 3 + 1);
    cr_assert(o.prompts[SIZE / 3].size == 2 && o.prompts[777].size == 2);
    options_free(&o);
    unlink(path);
    free(text);
    put("", 0);
    cr_assert(parse(ARGS("--prompts", path)) && !options_read(&o, &error) && strstr(error.text, "no lines"));
    options_free(&o);
    cr_assert(parse(ARGS("--nll", path)) && options_read(&o, &error) && o.nll.size == 0 && o.nll.text);
    options_free(&o);
    unlink(path);
}
