// SPDX-License-Identifier: Apache-2.0
// Inside the tokenizer: what loading fills and encoding reads.
#ifndef GENERATE_TOKENIZER_INTERNAL_H_
#define GENERATE_TOKENIZER_INTERNAL_H_

#include "bpe.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

// The file's numbers.
enum token_kind {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN,
    TOKEN_CONTROL,
    TOKEN_USER_DEFINED,
    TOKEN_UNUSED,
    TOKEN_BYTE
};

struct token {
    const char *bytes; // in `text`
    uint32_t size;
    enum token_kind kind;
};

enum { MAX_PATTERNS = 2 };

struct tokenizer {
    struct token *tokens;
    size_t num_tokens;
    char *text; // all their bytes
    struct bpe bpe;
    pcre2_code *patterns[MAX_PATTERNS]; // a text is split by the first, each part by the next, if any
    // Control and user-defined tokens in the order of their bytes: of two that begin alike the longer is the
    // later one. Those that begin with byte b end before special_end[b], where those with b + 1 begin.
    uint32_t *special;
    size_t special_end[256];
    uint32_t begin, ends[2]; // BPE_NONE: none; `begin` also where the file asks for none
};

// tokenizer_split.c: compiles the patterns of a tokenizer.ggml.pre.
bool tokenizer_compile_patterns(struct tokenizer *t, struct gguf_string pre, struct error *error);

#endif
