// SPDX-License-Identifier: Apache-2.0
// Pages of a pool and the sequences that hold them: bookkeeping, without OpenCL and without a lock. A
// function that fails has changed nothing and leaves its text in `error`.
#pragma once
#include "op.h"

struct clf_kv_seq {
    bool live;
    uint32_t generation;
    uint64_t batch; // the open batch that it is in; 0: none
    int64_t length; // tokens cached
    int64_t fresh;  // tokens that the open batch adds: it holds pages for length + fresh
    uint32_t *page;
    uint32_t num_pages, capacity;
};

struct clf_kv_pages {
    int64_t page_size;
    uint32_t num_pages, num_free;
    // A page is free, or held by refs sequences: one, until prefixes are shared. Pages held by none that
    // stand for a prefix will be a third kind, taken when `free` is empty.
    uint32_t *free; // a stack
    uint32_t *refs;
    uint32_t *seen; // scratch of the check
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

// `seed`: its low 16 bits tag the ids; the rest is where generations begin.
clinfer_status clf_pages_init(struct clf_kv_pages *p, int64_t num_pages, int64_t page_size, uint64_t seed);
void clf_pages_close(struct clf_kv_pages *p);
// That `tokens` of one sequence take.
int64_t clf_pages_of(const struct clf_kv_pages *p, int64_t tokens);
clinfer_status clf_pages_fail(struct clf_kv_pages *p, clinfer_status status, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
bool clf_pages_check(const struct clf_kv_pages *p, char *error, size_t size);

clinfer_status clf_seq_create(struct clf_kv_pages *p, uint64_t *id);
// A live sequence, which is in no open batch where `idle` asks for that.
clinfer_status clf_seq_find(struct clf_kv_pages *p, uint64_t id, bool idle, struct clf_kv_seq **seq);
clinfer_status clf_seq_extend(struct clf_kv_pages *p, uint64_t id, int64_t tokens);
clinfer_status clf_seq_truncate(struct clf_kv_pages *p, uint64_t id, int64_t length);
clinfer_status clf_seq_free(struct clf_kv_pages *p, uint64_t id);

// Takes pages for fresh[i] more tokens of each sequence, or for none, and puts all into `batch`; their slots
// go to slot.
clinfer_status clf_pages_reserve(struct clf_kv_pages *p, uint64_t batch, int64_t n, const uint64_t *id,
                                 const int64_t *fresh, uint32_t *slot);
// Takes them out again: longer by their fresh tokens, or as they were.
void clf_pages_settle(struct clf_kv_pages *p, int64_t n, const uint32_t *slot, bool commit);
