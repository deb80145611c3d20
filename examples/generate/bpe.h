// SPDX-License-Identifier: Apache-2.0
// Inside the tokenizer: the merges of byte-pair encoding, on token ids.
#ifndef GENERATE_BPE_H_
#define GENERATE_BPE_H_

#include "tokenizer.h"

#define BPE_NONE UINT32_MAX

struct bpe_merge {
    uint32_t left, right, rank, joined; // left BPE_NONE: a free place
};

struct bpe {
    uint32_t byte_token[256]; // BPE_NONE: the vocabulary has none
    struct bpe_merge *merges; // open addressing: a power of two of places, half of them free
    size_t places;
};

// The scratch that words share; all zero at first.
struct bpe_scratch {
    struct bpe_symbol *symbols;
    struct bpe_candidate *heap;
    size_t symbol_capacity, heap_capacity, heap_count;
};

bool bpe_create(struct bpe *bpe, size_t num_merges, struct error *error); // byte_token is all BPE_NONE
void bpe_destroy(struct bpe *bpe);
void bpe_scratch_free(struct bpe_scratch *scratch);

// False where the pair is there already. At most num_merges.
bool bpe_add(struct bpe *bpe, struct bpe_merge merge);

// Appends the tokens of one word: of the adjacent pairs that have a merge the one of the lowest rank, the
// first of equals, is joined until none is left.
bool bpe_encode(const struct bpe *bpe, const char *word, size_t size, struct bpe_scratch *scratch,
                struct token_list *tokens, struct error *error);

#endif
