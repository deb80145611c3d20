// SPDX-License-Identifier: Apache-2.0
// Pages of a pool and the sequences that hold them: bookkeeping, without OpenCL and without a lock. A
// function that fails has changed nothing and leaves its text in `error`.
#pragma once
#include "kv_prefix.h"

struct clf_kv_seq {
    bool live;
    bool told; // the open batch's tokens stand in its pages
    uint32_t generation;
    uint64_t batch; // the open batch that it is in; 0: none
    int64_t length; // tokens cached
    int64_t fresh;  // tokens that the open batch adds: it holds pages for length + fresh
    int64_t known;  // of its tokens, from the first one, whose ids stand in its pages
    uint64_t salt;
    // The page, + 1, that the open batch replaced by one of the sequence's own, since others have it or it is
    // listed: held too, until the batch ends. 0: none.
    uint32_t original;
    uint32_t *page;
    uint32_t num_pages, capacity;
};

struct clf_kv_pages {
    int64_t page_size;
    uint32_t num_pages, num_free;
    // A page is free, or held by refs sequences, or held by none and cached, since it is listed: those are
    // taken when `free` is empty. Whoever holds a page holds all that come before it in any sequence that has
    // it, at the same places; so whoever holds a listed page holds its parent.
    uint32_t *free; // a stack
    uint32_t *refs;
    uint32_t *seen, *before; // scratch of the check
    struct clf_prefix prefix;
    uint64_t lookups, lookup_tokens, hit_tokens, copies;
    struct clf_kv_seq *seq;
    uint32_t num_slots, slot_capacity; // of seq, used at least once
    uint32_t *free_slot;               // a stack, of slot_capacity
    uint32_t num_free_slots, num_retired, num_seqs;
    uint32_t tag, first_generation;
    char error[CLF_ERROR_SIZE];
};

// Ids: tag 16 bits, kind 1, then the number: a sequence's is generation 23 and slot + 1 in 24 bits, so
// that one is never given twice; a batch's is a count.
enum { CLF_ID_TAG = 48, CLF_ID_KIND = 47, CLF_ID_GENERATION = 24 };
enum {
    CLF_GENERATIONS = 1 << (CLF_ID_KIND - CLF_ID_GENERATION),
    CLF_MAX_SLOTS = (1 << CLF_ID_GENERATION) - 1
};

// `seed`: its low 16 bits tag the ids; the rest is where generations begin. `salt`: see clf_prefix_init.
clinfer_status clf_pages_init(struct clf_kv_pages *p, int64_t num_pages, int64_t page_size, uint64_t seed,
                              const void *salt, size_t salt_size);
void clf_pages_close(struct clf_kv_pages *p);
// Free and cached.
uint32_t clf_pages_available(const struct clf_kv_pages *p);
// That `tokens` of one sequence take.
int64_t clf_pages_of(const struct clf_kv_pages *p, int64_t tokens);
clinfer_status clf_pages_fail(struct clf_kv_pages *p, clinfer_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool clf_pages_check(const struct clf_kv_pages *p, char *error, size_t size);

// Takes pages for fresh[i] more tokens of each sequence, or for none, and puts all into `batch`; their slots
// go to slot. Ids of the new tokens of all, one after another, in `tokens`; NULL: not known. Where a sequence
// then has an `original`, the rows of its tokens are to be copied from there, before anything else is stored.
// On error sequences are as they were, but cached pages may have become free.
clinfer_status clf_pages_reserve(struct clf_kv_pages *p, uint64_t batch, int64_t n, const uint64_t *id,
                                 const int64_t *fresh, const uint32_t *tokens, uint32_t *slot);
// Takes them out again: longer by their fresh tokens, or as they were.
void clf_pages_settle(struct clf_kv_pages *p, int64_t n, const uint32_t *slot, bool commit);

// Pages that there are: one more holder, one less.
void clf_page_hold(struct clf_kv_pages *p, uint32_t page);
void clf_page_give(struct clf_kv_pages *p, uint32_t page);
// Gives pages back until `keep` are left, the last one first: a drop leaves the stack as it was, and a child
// goes before its parent.
void clf_seq_release(struct clf_kv_pages *p, struct clf_kv_seq *s, int64_t keep);

// kv_seq.c
clinfer_status clf_seq_create(struct clf_kv_pages *p, uint64_t *id);
// A live sequence, which is in no open batch where `idle` asks for that.
clinfer_status clf_seq_find(struct clf_kv_pages *p, uint64_t id, bool idle, struct clf_kv_seq **seq);
clinfer_status clf_seq_truncate(struct clf_kv_pages *p, uint64_t id, int64_t length);
clinfer_status clf_seq_free(struct clf_kv_pages *p, uint64_t id);
// Room for so many pages. False: no host memory.
bool clf_seq_room(struct clf_kv_seq *s, int64_t pages);
// A sequence of the longest prefix of `tokens` that is listed under that salt, at most `most` tokens.
clinfer_status clf_seq_match(struct clf_kv_pages *p, const uint32_t *tokens, int64_t count, int64_t most,
                             uint64_t salt, uint64_t *id, int64_t *length);
clinfer_status clf_seq_fork(struct clf_kv_pages *p, uint64_t id, uint64_t *fork);
// The ids of its first `count` tokens; lists its full pages.
clinfer_status clf_seq_set_tokens(struct clf_kv_pages *p, uint64_t id, const uint32_t *tokens, int64_t count);
uint32_t clf_seq_token(const struct clf_kv_pages *p, const struct clf_kv_seq *s, int64_t i);
// Lists the full pages, from page `first` on, whose tokens are known, or takes those that are listed already
// in their place.
void clf_seq_list(struct clf_kv_pages *p, struct clf_kv_seq *s, int64_t first);
// Lists none any more, nor knows any token; what is cached becomes free.
void clf_pages_forget(struct clf_kv_pages *p);
