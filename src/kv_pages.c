// SPDX-License-Identifier: Apache-2.0
#include "kv_pages.h"
#include "plan.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

clinfer_status clf_pages_fail(struct clf_kv_pages *p, clinfer_status status, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(p->error, sizeof p->error, fmt, ap);
    va_end(ap);
    return status;
}

clinfer_status clf_pages_init(struct clf_kv_pages *p, int64_t num_pages, int64_t page_size, uint64_t seed)
{
    *p = (struct clf_kv_pages){ .page_size = page_size,
                                .num_pages = (uint32_t) num_pages,
                                .num_free = (uint32_t) num_pages,
                                .tag = seed & 0xFFFF,
                                .first_generation = (uint32_t) (seed >> 16) % CLF_GENERATIONS };
    p->free = malloc(p->num_pages * sizeof *p->free);
    p->refs = calloc(p->num_pages, sizeof *p->refs);
    p->seen = malloc(p->num_pages * sizeof *p->seen);
    if (!p->free || !p->refs || !p->seen) {
        clf_pages_close(p);
        return clf_pages_fail(p, CLINFER_ERR_MEMORY, "no host memory for the books of %" PRId64 " pages",
                              num_pages);
    }
    for (uint32_t i = 0; i < p->num_pages; i++)
        p->free[i] = p->num_pages - 1 - i; // page 0 goes first
    return CLINFER_OK;
}

void clf_pages_close(struct clf_kv_pages *p)
{
    for (uint32_t i = 0; i < p->num_slots; i++)
        free(p->seq[i].page);
    free(p->seq);
    free(p->free_slot);
    free(p->free);
    free(p->refs);
    free(p->seen);
    *p = (struct clf_kv_pages){ 0 };
}

static uint64_t id_of(const struct clf_kv_pages *p, uint32_t slot)
{
    return (uint64_t) p->tag << CLF_ID_TAG | (uint64_t) p->seq[slot].generation << CLF_ID_GENERATION |
           (slot + 1);
}

static bool grow_slots(struct clf_kv_pages *p)
{
    const uint32_t want = p->slot_capacity ? 2 * p->slot_capacity : 16;
    struct clf_kv_seq *seq = realloc(p->seq, want * sizeof *seq);
    if (seq)
        p->seq = seq;
    uint32_t *free_slot = seq ? realloc(p->free_slot, want * sizeof *free_slot) : NULL;
    if (!free_slot)
        return false;
    p->free_slot = free_slot;
    p->slot_capacity = want;
    return true;
}

clinfer_status clf_seq_create(struct clf_kv_pages *p, uint64_t *id)
{
    if (!p->num_free_slots) {
        if (p->num_slots == CLF_MAX_SLOTS)
            return clf_pages_fail(p, CLINFER_ERR_MEMORY, "%u sequences, which is the most",
                                  (unsigned) p->num_seqs);
        if (p->num_slots == p->slot_capacity && !grow_slots(p))
            return clf_pages_fail(p, CLINFER_ERR_MEMORY, "no host memory for sequence %u",
                                  (unsigned) p->num_seqs + 1);
        p->seq[p->num_slots] = (struct clf_kv_seq){ .generation = p->first_generation };
        p->free_slot[p->num_free_slots++] = p->num_slots++;
    }
    const uint32_t slot = p->free_slot[--p->num_free_slots];
    p->seq[slot].live = true;
    p->num_seqs++;
    *id = id_of(p, slot);
    return CLINFER_OK;
}

clinfer_status clf_seq_find(struct clf_kv_pages *p, uint64_t id, bool idle, struct clf_kv_seq **seq)
{
    const uint64_t slot = (id & CLF_MAX_SLOTS) - 1;
    if (id >> CLF_ID_TAG != p->tag || id >> CLF_ID_KIND & 1)
        return clf_pages_fail(p, CLINFER_ERR_ARGUMENT, "sequence 0x%" PRIx64 " is none of this pool's", id);
    if (slot >= p->num_slots || !p->seq[slot].live || id_of(p, (uint32_t) slot) != id)
        return clf_pages_fail(p, CLINFER_ERR_ARGUMENT, "sequence 0x%" PRIx64 " is not there, or was freed",
                              id);
    if (idle && p->seq[slot].batch)
        return clf_pages_fail(p, CLINFER_ERR_ARGUMENT,
                              "sequence 0x%" PRIx64 " is in batch 0x%" PRIx64 ", which is open", id,
                              p->seq[slot].batch);
    *seq = &p->seq[slot];
    return CLINFER_OK;
}

int64_t clf_pages_of(const struct clf_kv_pages *p, int64_t tokens)
{
    return clf_blocks(tokens, p->page_size);
}

// Gives pages back until `keep` are left, the last one first, so that a drop leaves the stack as it was.
static void release(struct clf_kv_pages *p, struct clf_kv_seq *s, int64_t keep)
{
    while (s->num_pages > keep) {
        const uint32_t page = s->page[--s->num_pages];
        if (!--p->refs[page])
            p->free[p->num_free++] = page;
    }
}

static void take(struct clf_kv_pages *p, struct clf_kv_seq *s, int64_t want)
{
    while (s->num_pages < want) {
        const uint32_t page = p->free[--p->num_free];
        p->refs[page] = 1;
        s->page[s->num_pages++] = page;
    }
}

static bool make_room(struct clf_kv_seq *s, int64_t want)
{
    int64_t n = s->capacity ? s->capacity : 8;
    while (n < want)
        n *= 2;
    uint32_t *page = n > s->capacity ? realloc(s->page, (size_t) n * sizeof *page) : s->page;
    if (!page)
        return false;
    s->page = page;
    s->capacity = (uint32_t) n;
    return true;
}

// Puts a sequence into the batch and counts the pages that it lacks.
static clinfer_status admit(struct clf_kv_pages *p, uint64_t batch, uint64_t id, int64_t fresh,
                            int64_t *tokens, int64_t *lacking, uint32_t *slot)
{
    struct clf_kv_seq *s;
    clinfer_status st = clf_seq_find(p, id, false, &s);
    if (!st && s->batch == batch)
        return clf_pages_fail(p, CLINFER_ERR_ARGUMENT, "sequence 0x%" PRIx64 " is in the batch twice", id);
    if (!st)
        st = clf_seq_find(p, id, true, &s);
    if (st)
        return st;
    if (fresh < 0 || fresh > INT32_MAX - *tokens)
        return clf_pages_fail(p, CLINFER_ERR_ARGUMENT,
                              "sequence 0x%" PRIx64 ": %" PRId64 " new tokens, want 0 to %" PRId64, id, fresh,
                              INT32_MAX - *tokens);
    if (fresh > UINT32_MAX - s->length)
        return clf_pages_fail(p, CLINFER_ERR_ARGUMENT,
                              "sequence 0x%" PRIx64 ": %" PRId64 " tokens and %" PRId64
                              " new ones are more than %u",
                              id, s->length, fresh, UINT32_MAX);
    *tokens += fresh;
    *lacking += clf_pages_of(p, s->length + fresh) - s->num_pages;
    *slot = (uint32_t) (s - p->seq);
    s->batch = batch;
    s->fresh = fresh;
    return CLINFER_OK;
}

clinfer_status clf_pages_reserve(struct clf_kv_pages *p, uint64_t batch, int64_t n, const uint64_t *id,
                                 const int64_t *fresh, uint32_t *slot)
{
    clinfer_status st = CLINFER_OK;
    int64_t admitted = 0, tokens = 0, lacking = 0;
    while (!st && admitted < n) {
        st = admit(p, batch, id[admitted], fresh[admitted], &tokens, &lacking, &slot[admitted]);
        admitted += !st;
    }
    if (!st && lacking > p->num_free)
        st = clf_pages_fail(p, CLINFER_ERR_PAGES,
                            "%" PRId64 " new tokens want %" PRId64 " pages, %u of %u are free", tokens,
                            lacking, (unsigned) p->num_free, (unsigned) p->num_pages);
    for (int64_t i = 0; !st && i < n; i++) {
        struct clf_kv_seq *s = &p->seq[slot[i]];
        if (!make_room(s, clf_pages_of(p, s->length + s->fresh)))
            st = clf_pages_fail(p, CLINFER_ERR_MEMORY, "no host memory for the pages of sequence 0x%" PRIx64,
                                id[i]);
    }
    for (int64_t i = 0; !st && i < n; i++)
        take(p, &p->seq[slot[i]], clf_pages_of(p, p->seq[slot[i]].length + fresh[i]));
    if (st)
        clf_pages_settle(p, admitted, slot, false);
    return st;
}

void clf_pages_settle(struct clf_kv_pages *p, int64_t n, const uint32_t *slot, bool commit)
{
    for (int64_t i = n - 1; i >= 0; i--) {
        struct clf_kv_seq *s = &p->seq[slot[i]];
        if (commit)
            s->length += s->fresh;
        s->fresh = 0;
        s->batch = 0;
        release(p, s, clf_pages_of(p, s->length));
    }
}

clinfer_status clf_seq_extend(struct clf_kv_pages *p, uint64_t id, int64_t tokens)
{
    uint32_t slot;
    clinfer_status st = clf_pages_reserve(p, 1, 1, &id, &tokens, &slot);
    if (!st)
        clf_pages_settle(p, 1, &slot, true);
    return st;
}

clinfer_status clf_seq_truncate(struct clf_kv_pages *p, uint64_t id, int64_t length)
{
    struct clf_kv_seq *s;
    clinfer_status st = clf_seq_find(p, id, true, &s);
    if (st)
        return st;
    if (length < 0 || length > s->length)
        return clf_pages_fail(p, CLINFER_ERR_ARGUMENT,
                              "sequence 0x%" PRIx64 ": length %" PRId64 ", want 0 to the %" PRId64
                              " that it has",
                              id, length, s->length);
    s->length = length;
    release(p, s, clf_pages_of(p, length));
    return CLINFER_OK;
}

clinfer_status clf_seq_free(struct clf_kv_pages *p, uint64_t id)
{
    struct clf_kv_seq *s;
    clinfer_status st = clf_seq_find(p, id, true, &s);
    if (st)
        return st;
    release(p, s, 0);
    free(s->page);
    *s = (struct clf_kv_seq){ .generation = (s->generation + 1) % CLF_GENERATIONS };
    p->num_seqs--;
    if (s->generation == p->first_generation) // all of the slot's ids have been given
        p->num_retired++;
    else
        p->free_slot[p->num_free_slots++] = (uint32_t) (s - p->seq);
    return CLINFER_OK;
}
