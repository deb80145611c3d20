// SPDX-License-Identifier: Apache-2.0
// The tokenizer on small vocabularies made here, right and wrong.
#include "tokenizer.h"
#include "gguf_writer.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

TestSuite(tokenizer_small, .timeout = 60);

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

Test(tokenizer_small, refused)
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

Test(tokenizer_small, small)
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

// Digits are alone in "smollm", and what is before them ends there, so white space keeps its last character.
Test(tokenizer_small, splits)
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
