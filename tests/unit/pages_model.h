// SPDX-License-Identifier: Apache-2.0
// What a pool's books should say, kept beside them: lists that are searched from end to end, prefixes by the
// tokens themselves, and a memory in which each row is a number that stands for all tokens up to it.
#ifndef CLINFER_TESTS_PAGES_MODEL_H_
#define CLINFER_TESTS_PAGES_MODEL_H_

#include "kv_pages.h"

enum { PAGES = 61, PAGE_SIZE = 3, SEQS = 20, BATCHES = 3, MAX_TOKENS = 256, POISON = 0 };

struct model_seq {
    uint64_t id; // 0: none
    uint64_t salt;
    int64_t length, fresh, known;
    int batch; // -1: none
    bool told;
    uint32_t token[MAX_TOKENS]; // of all rows, known to the books or not
    uint32_t page[PAGES];
    int64_t pages;
    uint32_t original; // + 1
};

// A prefix that is to be found.
struct model_entry {
    bool there;
    uint64_t salt, stamp; // stamp: when its page was given back
    int64_t length;
    uint32_t token[MAX_TOKENS];
};

struct model {
    struct clf_kv_pages p;
    struct model_seq seq[SEQS];
    struct model_entry entry[PAGES]; // of each page
    uint64_t memory[PAGES][PAGE_SIZE];
    int64_t page_known[PAGES];
    uint64_t clock;
    uint64_t lookups, lookup_tokens, hit_tokens, evictions, copies;
};

int64_t pages_for(int64_t tokens);
int model_holders(const struct model *m, uint32_t page);
int64_t model_cached(const struct model *m);
int64_t model_free(const struct model *m); // without the cached ones
// Pages that a sequence would take for fresh tokens.
int64_t model_lacking(const struct model *m, const struct model_seq *s, int64_t fresh);

// What calls do that the books have let pass. Pages that are taken are the books' choice; of cached ones it
// is the model's.
void model_reserve(struct model *m, struct model_seq *s, bool told, long step);
void model_settle(struct model *m, struct model_seq *s, bool commit);
void model_truncate(struct model *m, struct model_seq *s, int64_t length);
void model_free_seq(struct model *m, struct model_seq *s);
void model_fork(struct model *m, const struct model_seq *s, struct model_seq *fork);
void model_match(struct model *m, struct model_seq *s, const uint32_t *tokens, int64_t count, int64_t most);
void model_set_tokens(struct model *m, struct model_seq *s, int64_t count);
void model_forget(struct model *m);

// The books agree with the model, and every row of every sequence is the one that was stored for it.
void model_compare(struct model *m, long step);

#endif
