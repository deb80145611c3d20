// SPDX-License-Identifier: Apache-2.0
// The tokenizer against tokens.txt, which an independent implementation made (make_tokens.py), and on
// vocabularies made here.
#include "tokenizer.h"
#include "default_model.h"
#include "gguf_writer.h"
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

// A megabyte in one word, or of what no pattern matches, which in n * n steps would not end within the test's
// time.
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

// A vocabulary of a few tokens, of which `change` makes another file.
enum change {
    AS_IS,
    NO_TOKENS,
    NO_TYPES,
    FEWER_TYPES,
    NO_MERGES,
    NO_MODEL,
    OTHER_MODEL,
    NO_PRE,
    OTHER_PRE,
    SPACE_PREFIX,
    SAME_TOKEN,
    EMPTY_TOKEN,
    TYPE_7,
    TYPE_0,
    NO_BYTE,
    MERGE_WITHOUT_BLANK,
    MERGE_OF_NONE,
    MERGE_TO_NONE,
    MERGE_OF_SPECIAL,
    MERGE_TWICE,
    BOS_PAST,
    BOS_NEGATIVE,
    EOS_PAST,
    ADD_WITHOUT_BOS,
    ADD_NO_BOOL
};
static const struct {
    enum change change;
    const char *want;
} refused[] = {
    { NO_TOKENS, "tokenizer.ggml.tokens is missing" },
    { NO_TYPES, "tokenizer.ggml.token_type is missing" },
    { FEWER_TYPES, "9 tokens and 8 types of them" },
    { NO_MERGES, "tokenizer.ggml.merges is missing" },
    { NO_MODEL, "tokenizer.ggml.model is missing" },
    { OTHER_MODEL, "tokenizer.ggml.model is \"llama\", want gpt2" },
    { NO_PRE, "tokenizer.ggml.pre is missing" },
    { OTHER_PRE, "tokenizer.ggml.pre is \"qwen2\", want gpt-2 or smollm" },
    { SPACE_PREFIX, "tokenizer.ggml.add_space_prefix is true, want false" },
    { SAME_TOKEN, "tokens 1 and 3 are the same" },
    { EMPTY_TOKEN, "token 1 has 0 bytes, want 1 to" },
    { TYPE_7, "token 2 is of type 7, want 1 to 6" },
    { TYPE_0, "token 2 is of type 0, want 1 to 6" },
    { NO_BYTE, "token 1 has a character that stands for no byte" },
    { MERGE_WITHOUT_BLANK, "merge 1 has 2 bytes and no blank" },
    { MERGE_OF_NONE, "merge 1, \"a ba\": the second is no token" },
    { MERGE_TO_NONE, "merge 1, \"b b\": what it makes is no token" },
    { MERGE_OF_SPECIAL, "merge 1, \"<s> a\": the first is no token" },
    { MERGE_TWICE, "merge 1, \"a b\", is there twice" },
    { BOS_PAST, "tokenizer.ggml.bos_token_id is 9, want 0 to 8" },
    { BOS_NEGATIVE, "tokenizer.ggml.bos_token_id is -1, want 0 to 8" },
    { EOS_PAST, "tokenizer.ggml.eos_token_id is 99, want 0 to 8" },
    { ADD_WITHOUT_BOS, "tokenizer.ggml.add_bos_token without tokenizer.ggml.bos_token_id" },
    { ADD_NO_BOOL, "tokenizer.ggml.add_bos_token is of type u32, want bool" },
};

static void write_names(struct writer *w, enum change c)
{
    if (c != NO_MODEL)
        writer_string(w, "tokenizer.ggml.model", c == OTHER_MODEL ? "llama" : "gpt2");
    if (c != NO_PRE)
        writer_string(w, "tokenizer.ggml.pre", c == OTHER_PRE ? "qwen2" : "gpt-2");
    if (c == SPACE_PREFIX)
        writer_bool(w, "tokenizer.ggml.add_space_prefix", 1);
    if (c == BOS_NEGATIVE)
        writer_i32(w, "tokenizer.ggml.bos_token_id", -1);
    else if (c != ADD_WITHOUT_BOS)
        writer_u32(w, "tokenizer.ggml.bos_token_id", c == BOS_PAST ? 9 : 5);
    writer_u32(w, "tokenizer.ggml.eos_token_id", c == EOS_PAST ? 99 : 5);
    writer_u32(w, "tokenizer.ggml.eot_token_id", 6);
    if (c == ADD_NO_BOOL)
        writer_u32(w, "tokenizer.ggml.add_bos_token", 1);
    else
        writer_bool(w, "tokenizer.ggml.add_bos_token", c == ADD_WITHOUT_BOS);
}

static const unsigned char *write_vocabulary(struct writer *w, enum change c, size_t *size)
{
    const char *tokens[] = { "a", "b", "ab", "aba", "\xc4\xa0", "<s>", "<s>a", "<s><", "aa" };
    int32_t kinds[] = { 1, 1, 1, 1, 1, 3, 4, 3, 1 };
    const char *merges[] = { "a b", "ab a", "a a" };
    tokens[1] = c == EMPTY_TOKEN ? "" : c == NO_BYTE ? "b b" : "b";
    tokens[3] = c == SAME_TOKEN ? "b" : "aba";
    kinds[2] = c == TYPE_7 ? 7 : c == TYPE_0 ? 0 : 1;
    merges[1] = c == MERGE_WITHOUT_BLANK ? "ab"
                : c == MERGE_OF_NONE     ? "a ba"
                : c == MERGE_TO_NONE     ? "b b"
                : c == MERGE_OF_SPECIAL  ? "<s> a"
                : c == MERGE_TWICE       ? "a b"
                                         : "ab a";
    write_names(w, c);
    if (c != NO_TOKENS)
        writer_strings(w, "tokenizer.ggml.tokens", tokens, 9);
    if (c != NO_TYPES)
        writer_i32s(w, "tokenizer.ggml.token_type", kinds, c == FEWER_TYPES ? 8 : 9);
    if (c != NO_MERGES)
        writer_strings(w, "tokenizer.ggml.merges", merges, 3);
    return writer_finish(w, size);
}

Test(tokenizer, refused)
{
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        struct writer w = { 0 };
        struct gguf_file file;
        struct tokenizer *t;
        size_t size;
        const unsigned char *bytes = write_vocabulary(&w, refused[i].change, &size);
        cr_assert(gguf_open_memory(bytes, size, "file", &file, &error), "%s", error.text);
        cr_assert(!tokenizer_create(&t, &file, &error), "want: %s", refused[i].want);
        cr_assert_null(t);
        cr_assert(strstr(error.text, refused[i].want), "\"%s\" does not say \"%s\"", error.text,
                  refused[i].want);
        gguf_close(&file);
        writer_free(&w);
    }
}

static void expect_ids(const struct tokenizer *t, const char *text, unsigned flags, size_t n,
                       const uint32_t *want)
{
    struct token_list l = { 0 };
    cr_assert(tokenizer_encode(t, text, strlen(text), flags, &l, &error), "%s: %s", text, error.text);
    cr_assert(l.count == n && !memcmp(l.ids, want, n * sizeof *want), "%s: %zu tokens, want %zu", text,
              l.count, n);
    free(l.ids);
}
#define IDS(...)                                                                                             \
    sizeof((uint32_t[]){ __VA_ARGS__ }) / sizeof(uint32_t), (uint32_t[])                                     \
    {                                                                                                        \
        __VA_ARGS__                                                                                          \
    }

Test(tokenizer, small)
{
    struct writer w = { 0 };
    size_t size;
    struct token_list l = { 0 };
    const unsigned char *bytes = write_vocabulary(&w, AS_IS, &size);
    struct tokenizer *t = tokenizer_of(bytes, size);
    writer_free(&w);                     // a tokenizer needs no file
    expect_ids(t, "abab", 0, IDS(2, 2)); // both merges of rank 0 come before the one of rank 1
    expect_ids(t, "aba", 0, IDS(3));
    expect_ids(t, "aab", 0, IDS(0, 2));
    expect_ids(t, " ab", 0, IDS(4, 2));
    expect_ids(t, "aaa", 0, IDS(8, 0)); // of equals the first
    // The longest special token that begins here; the begin token only where the file asks for one.
    expect_ids(t, "ab<s>b", TOKENIZER_SPECIAL | TOKENIZER_BEGIN, IDS(2, 5, 1));
    expect_ids(t, "<s>ab<s>", TOKENIZER_SPECIAL, IDS(6, 1, 5));
    expect_ids(t, "a<s><", TOKENIZER_SPECIAL, IDS(0, 7));
    cr_assert(!tokenizer_encode(t, "ab<s>", 5, 0, &l, &error));
    cr_assert_str_eq(error.text, "the byte 0x3c has no token");
    cr_assert(tokenizer_is_end(t, 5) && tokenizer_is_end(t, 6) && !tokenizer_is_end(t, 7));
    cr_assert(tokenizer_is_special(t, 6) && tokenizer_is_special(t, 7));
    free(l.ids);
    tokenizer_destroy(&t);
}

// Digits are alone in "smollm", and what is before them ends there, so that white space keeps its last
// character.
Test(tokenizer, splits)
{
    static const char *const tokens[] = { "1",
                                          "2",
                                          "\xc4\xa0",
                                          "12",
                                          "\xc4\xa0"
                                          "1",
                                          "\xc4\xa0\xc4\xa0",
                                          "a",
                                          "\xc4\xa0"
                                          "a" };
    static const char *const merges[] = { "\xc4\xa0 \xc4\xa0", "\xc4\xa0 1", "1 2", "\xc4\xa0 a" };
    static const int32_t kinds[] = { 1, 1, 1, 1, 1, 1, 1, 1 };
    struct tokenizer *t[2];
    for (int i = 0; i < 2; i++) {
        struct writer w = { 0 };
        size_t size;
        writer_string(&w, "tokenizer.ggml.model", "gpt2");
        writer_string(&w, "tokenizer.ggml.pre", i ? "smollm" : "gpt-2");
        writer_strings(&w, "tokenizer.ggml.tokens", tokens, 8);
        writer_strings(&w, "tokenizer.ggml.merges", merges, 4);
        writer_i32s(&w, "tokenizer.ggml.token_type", kinds, 8);
        const unsigned char *bytes = writer_finish(&w, &size);
        t[i] = tokenizer_of(bytes, size);
        writer_free(&w);
    }
    expect_ids(t[0], "12", 0, IDS(3));
    expect_ids(t[1], "12", 0, IDS(0, 1));
    expect_ids(t[0], "a 12", 0, IDS(6, 4, 1));
    expect_ids(t[1], "a 12", 0, IDS(6, 2, 0, 1));
    expect_ids(t[0], "  1", 0, IDS(2, 4));
    expect_ids(t[1], "  1", 0, IDS(5, 0));
    expect_ids(t[0], "  a  ", 0, IDS(2, 7, 5));
    expect_ids(t[1], "  a  ", 0, IDS(2, 7, 5));
    tokenizer_destroy(&t[0]);
    tokenizer_destroy(&t[1]);
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
