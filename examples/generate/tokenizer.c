// SPDX-License-Identifier: Apache-2.0
// Reads a tokenizer from its file.
#include "tokenizer.h"
#include "tokenizer_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 1 << 24, MAX_SIZE = 1 << 16, ALPHABET = 0x100 + 0x100 };

struct entry {
    struct gguf_string string;
    uint32_t id;
};

// What is needed while a file is loaded.
struct loading {
    const struct gguf_file *file;
    struct tokenizer *t;
    struct error *error;
    struct gguf_string *strings, *merges; // of the file
    int32_t *kinds;
    size_t num_merges;
    struct entry *sorted;      // by string
    int16_t byte_of[ALPHABET]; // by character; -1: none
};

// The vocabulary writes bytes as characters: the printable ones of Latin-1 stand for themselves, the other
// bytes, in order, for U+0100 and on.
static void fill_alphabet(int16_t *byte_of)
{
    int next = 0x100;
    for (int i = 0; i < ALPHABET; i++)
        byte_of[i] = -1;
    for (int byte = 0; byte < 256; byte++) {
        const bool printable = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
        byte_of[printable ? byte : next++] = (int16_t) byte;
    }
}

// The bytes that a string stands for, to `to`, which has room for its size. Returns how many, or -1 where a
// character is not of the alphabet.
static int64_t decode(const int16_t *byte_of, struct gguf_string s, char *to)
{
    int64_t n = 0;
    for (size_t i = 0; i < s.size; n++) {
        unsigned c = (unsigned char) s.text[i++];
        if (c >= 0xc2 && c < 0xc8 && i < s.size && ((unsigned char) s.text[i] & 0xc0) == 0x80)
            c = (c & 0x1f) << 6 | ((unsigned char) s.text[i++] & 0x3f);
        else if (c >= 0x80)
            return -1;
        if (byte_of[c] < 0)
            return -1;
        to[n] = (char) byte_of[c];
    }
    return n;
}

static int compare_entries(const void *a, const void *b)
{
    const struct gguf_string x = ((const struct entry *) a)->string, y = ((const struct entry *) b)->string;
    const int order = memcmp(x.text, y.text, x.size < y.size ? x.size : y.size);
    return order ? order : (x.size > y.size) - (x.size < y.size);
}

// The normal token of a string, or BPE_NONE.
static uint32_t find(const struct loading *l, const char *text, size_t size)
{
    const struct entry wanted = { { text, size }, 0 };
    const struct entry *e = bsearch(&wanted, l->sorted, l->t->num_tokens, sizeof wanted, compare_entries);
    return e && l->t->tokens[e->id].kind == TOKEN_NORMAL ? e->id : BPE_NONE;
}

static bool sort_strings(struct loading *l)
{
    const size_t n = l->t->num_tokens;
    l->sorted = malloc(n * sizeof *l->sorted);
    if (!l->sorted)
        return fail(l->error, "out of memory for %zu tokens", n);
    for (size_t i = 0; i < n; i++)
        l->sorted[i] = (struct entry){ l->strings[i], (uint32_t) i };
    qsort(l->sorted, n, sizeof *l->sorted, compare_entries);
    for (size_t i = 1; i < n; i++)
        if (!compare_entries(&l->sorted[i - 1], &l->sorted[i]))
            return fail(l->error, "tokens %" PRIu32 " and %" PRIu32 " are the same", l->sorted[i - 1].id,
                        l->sorted[i].id);
    return true;
}

// A token's kind and bytes, the latter to `to`.
static bool read_token(struct loading *l, size_t i, char *to)
{
    const struct gguf_string s = l->strings[i];
    struct token *token = &l->t->tokens[i];
    if (!s.size || s.size > MAX_SIZE)
        return fail(l->error, "token %zu has %zu bytes, want 1 to %d", i, s.size, MAX_SIZE);
    if (l->kinds[i] < TOKEN_NORMAL || l->kinds[i] > TOKEN_BYTE)
        return fail(l->error, "token %zu is of type %" PRId32 ", want %d to %d", i, l->kinds[i], TOKEN_NORMAL,
                    TOKEN_BYTE);
    *token = (struct token){ to, (uint32_t) s.size, (enum token_kind) l->kinds[i] };
    if (token->kind != TOKEN_NORMAL) {
        memcpy(to, s.text, s.size);
        return true;
    }
    const int64_t size = decode(l->byte_of, s, to);
    if (size < 0)
        return fail(l->error, "token %zu has a character that stands for no byte", i);
    token->size = (uint32_t) size;
    if (size == 1)
        l->t->bpe.byte_token[(unsigned char) *to] = (uint32_t) i;
    return true;
}

static bool read_tokens(struct loading *l)
{
    void *strings = NULL, *kinds = NULL;
    size_t total = 0, num_kinds;
    struct tokenizer *t = l->t;
    const bool have =
        gguf_get_array(l->file, "tokenizer.ggml.tokens", GGUF_STRING, &strings, &t->num_tokens, l->error) &&
        gguf_get_array(l->file, "tokenizer.ggml.token_type", GGUF_I32, &kinds, &num_kinds, l->error);
    l->strings = strings;
    l->kinds = kinds;
    if (!have)
        return false;
    if (!t->num_tokens || t->num_tokens > MAX_TOKENS || num_kinds != t->num_tokens)
        return fail(l->error, "%zu tokens and %zu types of them, want as many of both, 1 to %d",
                    t->num_tokens, num_kinds, MAX_TOKENS);
    for (size_t i = 0; i < t->num_tokens; i++)
        total += l->strings[i].size;
    t->tokens = calloc(t->num_tokens, sizeof *t->tokens);
    t->text = malloc(total + 1);
    if (!t->tokens || !t->text)
        return fail(l->error, "out of memory for %zu tokens of %zu bytes", t->num_tokens, total);
    fill_alphabet(l->byte_of);
    char *to = t->text;
    for (size_t i = 0; i < t->num_tokens; to += l->strings[i++].size)
        if (!read_token(l, i, to))
            return false;
    return sort_strings(l);
}

// Merge `rank` is "left right"; both, and what they make together, are tokens.
static bool read_merge(struct loading *l, size_t rank, char *joined)
{
    const struct gguf_string s = l->merges[rank];
    const char *blank = s.size ? memchr(s.text, ' ', s.size) : NULL;
    if (!blank || s.size > 2 * MAX_SIZE)
        return fail(l->error, "merge %zu has %zu bytes%s, want two tokens and a blank", rank, s.size,
                    blank ? "" : " and no blank");
    const size_t left = (size_t) (blank - s.text), right = s.size - left - 1;
    memcpy(joined, s.text, left);
    memcpy(joined + left, blank + 1, right);
    const struct bpe_merge merge = { find(l, s.text, left), find(l, blank + 1, right), (uint32_t) rank,
                                     find(l, joined, left + right) };
    if (merge.left == BPE_NONE || merge.right == BPE_NONE || merge.joined == BPE_NONE)
        return fail(l->error, "merge %zu, \"%.*s\": %s is no token", rank, s.size < 80 ? (int) s.size : 80,
                    s.text,
                    merge.left == BPE_NONE    ? "the first"
                    : merge.right == BPE_NONE ? "the second"
                                              : "what it makes");
    return bpe_add(&l->t->bpe, merge) || fail(l->error, "merge %zu, \"%.*s\", is there twice", rank,
                                              s.size < 80 ? (int) s.size : 80, s.text);
}

static bool read_merges(struct loading *l)
{
    char *joined = malloc(2 * MAX_SIZE);
    bool ok = joined || fail(l->error, "out of memory for merges");
    for (size_t rank = 0; ok && rank < l->num_merges; rank++)
        ok = read_merge(l, rank, joined);
    free(joined);
    return ok;
}

// Control and user-defined tokens, in the order of their bytes.
static bool read_special(struct loading *l)
{
    struct tokenizer *t = l->t;
    size_t n = 0;
    t->special = malloc(t->num_tokens * sizeof *t->special);
    if (!t->special)
        return fail(l->error, "out of memory for %zu tokens", t->num_tokens);
    for (size_t i = 0; i < t->num_tokens; i++) {
        const uint32_t id = l->sorted[i].id;
        if (!tokenizer_is_special(t, id))
            continue;
        t->special[n++] = id;
        t->special_end[(unsigned char) t->tokens[id].bytes[0]] = n;
    }
    for (int byte = 1; byte < 256; byte++)
        if (!t->special_end[byte])
            t->special_end[byte] = t->special_end[byte - 1];
    return true;
}

// The token that a key names, BPE_NONE where the key is not there.
static bool read_id(struct loading *l, const char *key, uint32_t *id)
{
    uint64_t value;
    *id = BPE_NONE;
    if (!gguf_find(l->file, key))
        return true;
    if (!gguf_get_uint(l->file, key, 0, l->t->num_tokens - 1, &value, l->error))
        return false;
    *id = (uint32_t) value;
    return true;
}

static bool read_ids(struct loading *l)
{
    bool add = false;
    if (!read_id(l, "tokenizer.ggml.bos_token_id", &l->t->begin) ||
        !read_id(l, "tokenizer.ggml.eos_token_id", &l->t->ends[0]) ||
        !read_id(l, "tokenizer.ggml.eot_token_id", &l->t->ends[1]))
        return false;
    if (gguf_find(l->file, "tokenizer.ggml.add_bos_token") &&
        !gguf_get_bool(l->file, "tokenizer.ggml.add_bos_token", &add, l->error))
        return false;
    if (add && l->t->begin == BPE_NONE)
        return fail(l->error, "tokenizer.ggml.add_bos_token without tokenizer.ggml.bos_token_id");
    if (!add)
        l->t->begin = BPE_NONE;
    return true;
}

// What would make other tokens of the same text.
static bool check_options(struct loading *l)
{
    struct gguf_string model, pre;
    bool prefix = false;
    const char *add_prefix = "tokenizer.ggml.add_space_prefix";
    if (!gguf_get_string(l->file, "tokenizer.ggml.model", &model, l->error) ||
        !gguf_get_string(l->file, "tokenizer.ggml.pre", &pre, l->error))
        return false;
    if (!gguf_string_is(model, "gpt2"))
        return fail(l->error, "tokenizer.ggml.model is \"%.*s\", want gpt2",
                    model.size < 40 ? (int) model.size : 40, model.text);
    if (gguf_find(l->file, add_prefix) && !gguf_get_bool(l->file, add_prefix, &prefix, l->error))
        return false;
    if (prefix)
        return fail(l->error, "%s is true, want false", add_prefix);
    return tokenizer_compile_patterns(l->t, pre, l->error);
}

static bool load(struct loading *l)
{
    void *merges = NULL;
    if (!check_options(l) ||
        !gguf_get_array(l->file, "tokenizer.ggml.merges", GGUF_STRING, &merges, &l->num_merges, l->error))
        return false;
    l->merges = merges;
    return bpe_create(&l->t->bpe, l->num_merges, l->error) && read_tokens(l) && read_merges(l) &&
           read_special(l) && read_ids(l);
}

bool tokenizer_create(struct tokenizer **tokenizer, const struct gguf_file *file, struct error *error)
{
    struct loading l = { .file = file, .error = error, .t = calloc(1, sizeof *l.t) };
    *tokenizer = l.t;
    const bool ok = l.t ? load(&l) : fail(error, "out of memory for a tokenizer");
    free(l.strings);
    free(l.merges);
    free(l.kinds);
    free(l.sorted);
    if (!ok)
        tokenizer_destroy(tokenizer);
    return ok;
}

void tokenizer_destroy(struct tokenizer **tokenizer)
{
    struct tokenizer *t = *tokenizer;
    *tokenizer = NULL;
    if (!t)
        return;
    for (int p = 0; p < MAX_PATTERNS; p++)
        pcre2_code_free(t->patterns[p]);
    bpe_destroy(&t->bpe);
    free(t->tokens);
    free(t->text);
    free(t->special);
    free(t);
}

const char *tokenizer_bytes(const struct tokenizer *tokenizer, uint32_t id, size_t *size)
{
    if (id >= tokenizer->num_tokens)
        return NULL;
    *size = tokenizer->tokens[id].size;
    return tokenizer->tokens[id].bytes;
}

bool tokenizer_is_special(const struct tokenizer *tokenizer, uint32_t id)
{
    return id < tokenizer->num_tokens &&
           (tokenizer->tokens[id].kind == TOKEN_CONTROL || tokenizer->tokens[id].kind == TOKEN_USER_DEFINED);
}

bool tokenizer_is_end(const struct tokenizer *tokenizer, uint32_t id)
{
    return id != BPE_NONE && (id == tokenizer->ends[0] || id == tokenizer->ends[1]);
}

size_t tokenizer_size(const struct tokenizer *tokenizer)
{
    return tokenizer->num_tokens;
}
