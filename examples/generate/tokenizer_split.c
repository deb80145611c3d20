// SPDX-License-Identifier: Apache-2.0
// From a text to words: special tokens, then the split patterns, then each word to its merges.
#include "tokenizer_internal.h"
#include "utf8.h"

#include <string.h>

// White space as Unicode has it; PCRE2's own \s has one character more.
#define SPACE                                                                                                \
    "\\t-\\r \\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

// Contractions, words, numbers and other runs, each with the blank before it; white space, but for its last
// character where a word follows.
#define GPT2                                                                                                 \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACE "\\p{L}\\p{N}]+|[" SPACE "]+(?![^" SPACE "])|"  \
    "[" SPACE "]+"

static const struct {
    const char *pre, *patterns[MAX_PATTERNS];
} splits[] = {
    { "gpt-2", { GPT2 } }, { "smollm", { "\\p{N}", GPT2 } }, // every digit alone
};

bool tokenizer_compile_patterns(struct tokenizer *t, struct gguf_string pre, struct error *error)
{
    for (size_t i = 0; i < sizeof splits / sizeof splits[0]; i++) {
        if (!gguf_string_is(pre, splits[i].pre))
            continue;
        for (int p = 0; p < MAX_PATTERNS && splits[i].patterns[p]; p++) {
            int code;
            PCRE2_SIZE at;
            t->patterns[p] = pcre2_compile((PCRE2_SPTR) splits[i].patterns[p], PCRE2_ZERO_TERMINATED,
                                           PCRE2_UTF, &code, &at, NULL);
            if (!t->patterns[p])
                return fail(error, "PCRE2 refuses a split pattern at character %zu, error %d", (size_t) at,
                            code);
        }
        return true;
    }
    return fail(error, "tokenizer.ggml.pre is \"%.*s\", want gpt-2 or smollm",
                pre.size < 40 ? (int) pre.size : 40, pre.text);
}

struct encoder {
    const struct tokenizer *t;
    struct bpe_scratch scratch;
    pcre2_match_data *match;
    struct token_list *tokens;
    struct error *error;
};

static bool word(struct encoder *e, const char *text, size_t size)
{
    return !size || bpe_encode(&e->t->bpe, text, size, &e->scratch, e->tokens, e->error);
}

// Valid UTF-8 by the patterns from `level` on. What a pattern does not match is a part too.
static bool split(struct encoder *e, int level, const char *text, size_t size)
{
    if (level == MAX_PATTERNS || !e->t->patterns[level])
        return word(e, text, size);
    for (size_t at = 0; at < size;) {
        // PCRE2 would check all of the text for each word.
        const int found = pcre2_match(e->t->patterns[level], (PCRE2_SPTR) text, size, at, PCRE2_NO_UTF_CHECK,
                                      e->match, NULL);
        const PCRE2_SIZE *range = pcre2_get_ovector_pointer(e->match);
        size_t begin = size, end = size;
        if (found > 0) {
            begin = range[0];
            end = range[1];
        }
        if ((found < 0 && found != PCRE2_ERROR_NOMATCH) || (found > 0 && end <= begin))
            return fail(e->error, "PCRE2 fails to split a text of %zu bytes, error %d", size, found);
        if (begin > at && !split(e, level + 1, text + at, begin - at))
            return false;
        if (end > begin && !split(e, level + 1, text + begin, end - begin))
            return false;
        at = end;
    }
    return true;
}

// Runs of valid UTF-8 go through the patterns, each run of other bytes is a word.
static bool plain(struct encoder *e, const char *text, size_t size)
{
    for (size_t at = 0; at < size;) {
        size_t n, valid = at, other;
        while (valid < size && (n = utf8_length(text + valid, size - valid)) != 0)
            valid += n;
        for (other = valid; other < size && !utf8_length(text + other, size - other);)
            other++;
        if ((valid > at && !split(e, 0, text + at, valid - at)) || !word(e, text + valid, other - valid))
            return false;
        at = other;
    }
    return true;
}

// The longest special token that the text begins with, or BPE_NONE.
static uint32_t special_at(const struct tokenizer *t, const char *text, size_t size)
{
    const unsigned char first = (unsigned char) text[0];
    for (size_t i = t->special_end[first], begin = first ? t->special_end[first - 1] : 0; i-- > begin;) {
        const struct token *token = &t->tokens[t->special[i]];
        if (token->size <= size && !memcmp(token->bytes, text, token->size))
            return t->special[i];
    }
    return BPE_NONE;
}

static bool with_special(struct encoder *e, const char *text, size_t size)
{
    size_t begin = 0;
    for (size_t at = 0; at < size;) {
        const uint32_t id = special_at(e->t, text + at, size - at);
        if (id == BPE_NONE) {
            at++;
            continue;
        }
        if (!plain(e, text + begin, at - begin) || !token_list_push(e->tokens, id, e->error))
            return false;
        begin = at += e->t->tokens[id].size;
    }
    return plain(e, text + begin, size - begin);
}

bool tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t size, unsigned flags,
                      struct token_list *tokens, struct error *error)
{
    enum { MAX_TEXT = 1 << 30 }; // positions have 32 bits
    struct encoder e = { .t = tokenizer, .tokens = tokens, .error = error };
    if (size > MAX_TEXT)
        return fail(error, "a text of %zu bytes, want at most %d", size, MAX_TEXT);
    if (flags & TOKENIZER_BEGIN && tokenizer->begin != BPE_NONE &&
        !token_list_push(tokens, tokenizer->begin, error))
        return false;
    e.match = pcre2_match_data_create(1, NULL);
    if (!e.match)
        return fail(error, "out of memory for PCRE2");
    const bool ok = flags & TOKENIZER_SPECIAL ? with_special(&e, text, size) : plain(&e, text, size);
    pcre2_match_data_free(e.match);
    bpe_scratch_free(&e.scratch);
    return ok;
}
