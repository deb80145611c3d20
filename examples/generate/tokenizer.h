// SPDX-License-Identifier: Apache-2.0
// The byte-level BPE tokenizer that a GGUF file carries (tokenizer.ggml.model "gpt2"), with the split
// patterns of tokenizer.ggml.pre "gpt-2" and "smollm". Any bytes are a text; what is no UTF-8 is split from
// the rest. Threads: any number may use one tokenizer. Sources: Sennrich, Haddow, Birch, "Neural Machine
// Translation of Rare Words with Subword Units" (2016); Radford and others, "Language Models are Unsupervised
// Multitask Learners" (2019).
#ifndef GENERATE_TOKENIZER_H_
#define GENERATE_TOKENIZER_H_

#include "gguf.h"

struct tokenizer;

// Tokens in the caller's list, which grows; all zero is an empty one. free(ids) ends it.
struct token_list {
    uint32_t *ids;
    size_t count, capacity;
};

// Reads tokenizer.ggml.*; the file is not needed afterwards. An error where the file lacks something, or two
// tokens are the same, a merge names what is no token, or the model or split pattern is unknown.
bool tokenizer_create(struct tokenizer **tokenizer, const struct gguf_file *file, struct error *error);
void tokenizer_destroy(struct tokenizer **tokenizer);

enum {
    // Text that spells a control or user-defined token ("<|im_start|>") is that token, not text like any.
    TOKENIZER_SPECIAL = 1,
    // The begin token first, where the file asks for one.
    TOKENIZER_BEGIN = 2,
};

// Appends the tokens of a text. Takes n log n steps, whatever the text. An error where a byte has no token,
// or there is no memory; the list then has some of the tokens.
bool tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t size, unsigned flags,
                      struct token_list *tokens, struct error *error);

// The bytes of a token, which need not be whole characters (see utf8.h); a special token's are its name. NULL
// for an id past the vocabulary.
const char *tokenizer_bytes(const struct tokenizer *tokenizer, uint32_t id, size_t *size);
bool tokenizer_is_special(const struct tokenizer *tokenizer, uint32_t id);
// A token that ends a text: the file's eos or eot.
bool tokenizer_is_end(const struct tokenizer *tokenizer, uint32_t id);
size_t tokenizer_size(const struct tokenizer *tokenizer);

bool token_list_push(struct token_list *tokens, uint32_t id, struct error *error);

#endif
