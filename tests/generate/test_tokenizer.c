// SPDX-License-Identifier: Apache-2.0
// The tokenizer against tokens.txt, which an independent implementation made (make_tokens.py), and on
// vocabularies made here.
#include "tokenizer.h"
#include "default_model.h"
#include "models.h"
#include "utf8.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

TestSuite(tokenizer, .timeout = 120);

static struct error error;

static struct tokenizer *tokenizer_of(const unsigned char *bytes, size_t size)
{
    struct gguf_file file;
    struct tokenizer *t;
    cr_assert(gguf_open_memory(bytes, size, "file", &file, &error), "%s", error.text);
    cr_assert(tokenizer_create(&t, &file, &error), "%s", error.text);
    gguf_close(&file);
    return t;
}

static struct tokenizer *psalter(void)
{
    return tokenizer_of(default_model, (size_t) (default_model_end - default_model));
}

static struct tokenizer *smollm2(void)
{
    struct gguf_file file;
    struct tokenizer *t;
    if (!gguf_open(smollm2_path(), &file, &error))
        return NULL;
    cr_assert(tokenizer_create(&t, &file, &error), "%s", error.text);
    gguf_close(&file);
    return t;
}

static void expect_text(const struct tokenizer *t, const struct token_list *l, const char *text, size_t size)
{
    size_t at = 0;
    for (size_t i = 0; i < l->count; i++) {
        size_t n;
        const char *bytes = tokenizer_bytes(t, l->ids[i], &n);
        cr_assert(bytes && n <= size - at && !memcmp(bytes, text + at, n), "token %zu, %u, is not the text's",
                  i, l->ids[i]);
        at += n;
    }
    cr_assert_eq(at, size);
}

// One line of the file; false where it is of another vocabulary.
static bool known_line(const struct tokenizer *t, const char *prefix, char *line)
{
    struct token_list l = { 0 };
    char text[2048];
    size_t size = 0, i = 0;
    if (strncmp(line, prefix, strlen(prefix)))
        return false;
    char *c = line + strlen(prefix);
    for (unsigned byte; *c != '-' && *c != ' ' && *c != '\n'; c += 2) {
        cr_assert(sscanf(c, "%2x", &byte) == 1 && size < sizeof text);
        text[size++] = (char) byte;
    }
    c += *c == '-';
    cr_assert(tokenizer_encode(t, text, size, 0, &l, &error), "%s: %s", line, error.text);
    for (char *end; *c == ' '; c = end, i++) {
        const unsigned long want = strtoul(c, &end, 10);
        cr_assert(i < l.count && l.ids[i] == want, "token %zu is %u of %zu, want %lu: %s", i,
                  i < l.count ? l.ids[i] : 0, l.count, want, line);
    }
    cr_assert_eq(i, l.count, "%zu tokens, want %zu: %s", l.count, i, line);
    expect_text(t, &l, text, size);
    free(l.ids);
    return true;
}

static void known(struct tokenizer *t, const char *prefix)
{
    char line[8192], path[1024];
    int lines = 0;
    snprintf(path, sizeof path, "%s/tokens.txt", getenv("CLINFER_GENERATE_DATA"));
    FILE *f = fopen(path, "r");
    cr_assert(f, "%s", path);
    while (fgets(line, sizeof line, f))
        lines += known_line(t, prefix, line);
    fclose(f);
    cr_assert_eq(lines, 100, "%d lines", lines);
    tokenizer_destroy(&t);
}

Test(tokenizer, known_psalter)
{
    known(psalter(), "psalter ");
}

Test(tokenizer, known_smollm2)
{
    struct tokenizer *t = smollm2();
    if (!t)
        cr_skip_test("%s; tools/fetch-model.sh fetches it", error.text);
    known(t, "smollm2 ");
}

static uint32_t seed = 3;
static unsigned char random_byte(void)
{
    seed = seed * 1664525 + 1013904223;
    return (unsigned char) (seed >> 24);
}

// Any bytes come back, valid or not, with special tokens or without.
Test(tokenizer, round_trip)
{
    struct tokenizer *t = psalter();
    for (int i = 0; i < 3000; i++) {
        struct token_list l = { 0 };
        char text[300];
        size_t size = random_byte();
        for (size_t k = 0; k < size; k++) {
            const unsigned char b = random_byte();
            text[k] = (char) (i % 3 == 0 ? b : i % 3 == 1 ? b % 96 + 32 : " \nab\xc3\xa9\xf0\x9f"[b >> 5]);
        }
        if (size > 40)
            memcpy(text + 20, "<|endoftext|>", 13);
        cr_assert(tokenizer_encode(t, text, size, i & 2 ? TOKENIZER_SPECIAL : 0, &l, &error), "%s",
                  error.text);
        expect_text(t, &l, text, size);
        bool special = false;
        for (size_t k = 0; k < l.count; k++)
            special |= tokenizer_is_special(t, l.ids[k]);
        cr_assert_eq(special, i & 2 && size > 40);
        free(l.ids);
    }
    tokenizer_destroy(&t);
}

// A megabyte in one word, or of what no pattern matches, which in n * n steps would not end in time.
Test(tokenizer, long_texts)
{
    enum { SIZE = 1 << 20 };
    struct tokenizer *t = psalter();
    const char *const units[] = {
        "a", " ", "th", "\xff", "a\xff", "7", "\xe6\x97\xa5", " <|endoftext|", "\n "
    };
    char *text = malloc(SIZE + 16);
    for (size_t i = 0; i < sizeof units / sizeof units[0]; i++) {
        struct token_list l = { 0 };
        const size_t n = strlen(units[i]), size = SIZE / n * n;
        for (size_t at = 0; at < size; at += n)
            memcpy(text + at, units[i], n);
        cr_assert(tokenizer_encode(t, text, size, TOKENIZER_SPECIAL, &l, &error), "%s", error.text);
        expect_text(t, &l, text, size);
        free(l.ids);
    }
    free(text);
    tokenizer_destroy(&t);
}

Test(tokenizer, begin_and_end)
{
    struct tokenizer *t = psalter();
    struct token_list l = { 0 };
    size_t n;
    cr_assert_eq(tokenizer_size(t), 1024);
    cr_assert(tokenizer_encode(t, "a<|endoftext|>", 14, TOKENIZER_BEGIN | TOKENIZER_SPECIAL, &l, &error));
    cr_assert(l.count == 3 && l.ids[0] == 0 && l.ids[2] == 0);
    cr_assert(tokenizer_is_end(t, 0) && tokenizer_is_special(t, 0) && !tokenizer_is_end(t, 1) &&
              !tokenizer_is_special(t, 1));
    cr_assert(!tokenizer_is_end(t, UINT32_MAX) && !tokenizer_is_special(t, UINT32_MAX));
    cr_assert(!strncmp(tokenizer_bytes(t, 0, &n), "<|endoftext|>", 13) && n == 13);
    cr_assert_null(tokenizer_bytes(t, 1024, &n));
    cr_assert(tokenizer_encode(t, "", 0, 0, &l, &error) && l.count == 3, "a text of no bytes has no tokens");
    free(l.ids);
    tokenizer_destroy(&t);
}

Test(tokenizer, utf8)
{
    static const struct {
        const char *text;
        size_t length, incomplete; // of all of it; what its end holds back
    } cases[] = {
        { "a", 1, 0 },
        { "\xc3\xa9", 2, 0 },
        { "\xe6\x97\xa5", 3, 0 },
        { "\xf0\x9f\x99\x82", 4, 0 },
        { "\xc3", 0, 1 },
        { "\xe6\x97", 0, 2 },
        { "\xf0\x9f\x99", 0, 3 },
        { "\xf0\x9f", 0, 2 },
        { "\x80", 0, 0 },
        { "\xc0\x80", 0, 0 },
        { "\xc1", 0, 0 },
        { "\xe0\x9f", 0, 0 },
        { "\xe0\xa0", 0, 2 },
        { "\xed\xa0", 0, 0 },
        { "\xed\x9f", 0, 2 },
        { "\xf0\x8f", 0, 0 },
        { "\xf4\x90", 0, 0 },
        { "\xf4\x8f", 0, 2 },
        { "\xf5", 0, 0 },
        { "\xff", 0, 0 },
        { "a\xc3", 1, 1 },
        { "\xc3\xa9\xe6", 2, 1 },
        { "\xe6\x97\xa5\x97", 3, 0 },
        { "\xc3z", 0, 0 },
        { "\xe6\x97z", 0, 0 },
        { "", 0, 0 },
        { "\xf4\x8f\xbf\xbf", 4, 0 },
        { "\xed\x9f\xbf", 3, 0 },
        { "\xee\x80\x80", 3, 0 },
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const size_t n = strlen(cases[i].text);
        char *exact = malloc(n ? n : 1); // a sanitizer sees what is read past it
        memcpy(exact, cases[i].text, n);
        cr_assert_eq(utf8_length(exact, n), cases[i].length, "length of case %zu", i);
        cr_assert_eq(utf8_incomplete(exact, n), cases[i].incomplete, "end of case %zu", i);
        free(exact);
    }
}
