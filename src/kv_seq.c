// SPDX-License-Identifier: Apache-2.0
// Sequences of a pool, and how they come to share pages: by their tokens, and as forks.
#include "kv_pages.h"
#include "plan.h"
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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

bool clf_seq_room(struct clf_kv_seq *s, int64_t pages)
{
    int64_t n = s->capacity ? s->capacity : 8;
    while (n < pages)
        n *= 2;
    uint32_t *page = n > s->capacity ? realloc(s->page, (size_t) n * sizeof *page) : s->page;
    if (!page)
        return false;
    s->page = page;
    s->capacity = (uint32_t) n;
    return true;
}

clinfer_status clf_seq_truncate(struct clf_kv_pages *p, uint64_t id, int64_t length)
{
    struct clf_kv_seq *s = NULL;
    clinfer_status st = clf_seq_find(p, id, true, &s);
    if (st)
        return st;
    if (length < 0 || length > s->length)
        return clf_pages_fail(p, CLINFER_ERR_ARGUMENT,
                              "sequence 0x%" PRIx64 ": length %" PRId64 ", want 0 to the %" PRId64
                              " that it has",
                              id, length, s->length);
    s->length = length;
    s->known = s->known < length ? s->known : length;
    clf_seq_release(p, s, clf_pages_of(p, length));
    return CLINFER_OK;
}

clinfer_status clf_seq_free(struct clf_kv_pages *p, uint64_t id)
{
    struct clf_kv_seq *s = NULL;
    clinfer_status st = clf_seq_find(p, id, true, &s);
    if (st)
        return st;
    clf_seq_release(p, s, 0);
    free(s->page);
    *s = (struct clf_kv_seq){ .generation = (s->generation + 1) % CLF_GENERATIONS };
    p->num_seqs--;
    if (s->generation == p->first_generation) // all of the slot's ids have been given
        p->num_retired++;
    else
        p->free_slot[p->num_free_slots++] = (uint32_t) (s - p->seq);
    return CLINFER_OK;
}

static struct clf_kv_seq *seq_of(struct clf_kv_pages *p, uint64_t id)
{
    return &p->seq[(id & CLF_MAX_SLOTS) - 1];
}

clinfer_status clf_seq_match(struct clf_kv_pages *p, const uint32_t *tokens, int64_t count, int64_t most,
                             uint64_t salt, uint64_t *id, int64_t *length)
{
    const int64_t S = p->page_size;
    int64_t pages = 0;
    uint32_t last = 0, next;
    const clinfer_status st = clf_seq_create(p, id);
    if (st)
        return st;
    struct clf_kv_seq *s = seq_of(p, *id);
    s->salt = salt;
    while (pages * S < most && (pages + 1) * S <= count &&
           (next = clf_prefix_find(&p->prefix, last, salt, tokens + pages * S))) {
        last = next;
        pages++;
    }
    if (!clf_seq_room(s, pages)) {
        clf_seq_free(p, *id);
        *id = 0;
        return clf_pages_fail(p, CLINFER_ERR_MEMORY, "no host memory for %" PRId64 " pages of a prefix",
                              pages);
    }
    s->num_pages = (uint32_t) pages;
    s->length = s->known = pages * S < most ? pages * S : most;
    for (; last; last = p->prefix.page[last - 1].parent) {
        clf_page_hold(p, last - 1);
        s->page[--pages] = last - 1;
    }
    p->lookups += count > 0;
    p->lookup_tokens += (uint64_t) count;
    p->hit_tokens += (uint64_t) s->length;
    *length = s->length;
    return CLINFER_OK;
}

clinfer_status clf_seq_fork(struct clf_kv_pages *p, uint64_t id, uint64_t *fork)
{
    struct clf_kv_seq *s;
    clinfer_status st = clf_seq_find(p, id, true, &s);
    if (!st)
        st = clf_seq_create(p, fork);
    if (st)
        return st;
    s = seq_of(p, id); // creation may have moved it
    struct clf_kv_seq *f = seq_of(p, *fork);
    if (!clf_seq_room(f, s->num_pages)) {
        clf_seq_free(p, *fork);
        *fork = 0;
        return clf_pages_fail(p, CLINFER_ERR_MEMORY, "no host memory for the pages of a fork of 0x%" PRIx64,
                              id);
    }
    f->length = s->length;
    f->known = s->known;
    f->salt = s->salt;
    f->num_pages = s->num_pages;
    for (uint32_t i = 0; i < s->num_pages; i++)
        clf_page_hold(p, f->page[i] = s->page[i]);
    return CLINFER_OK;
}

uint32_t clf_seq_token(const struct clf_kv_pages *p, const struct clf_kv_seq *s, int64_t i)
{
    return p->prefix.page[s->page[i / p->page_size]].tokens[i % p->page_size];
}

void clf_seq_list(struct clf_kv_pages *p, struct clf_kv_seq *s, int64_t first)
{
    struct clf_prefix *f = &p->prefix;
    for (int64_t i = first; i < s->known / p->page_size; i++) {
        const uint32_t page = s->page[i], parent = i ? s->page[i - 1] + 1 : 0;
        if (f->page[page].listed)
            continue;
        if (parent && !f->page[parent - 1].listed)
            return;
        const uint32_t twin = clf_prefix_find(f, parent, s->salt, f->page[page].tokens);
        if (!twin) {
            clf_prefix_list(f, page, parent, s->salt);
        } else if (p->refs[page] == 1) {
            clf_page_hold(p, s->page[i] = twin - 1);
            clf_page_give(p, page);
        } else { // its other holders would not hold the parents of what follows
            return;
        }
    }
}

clinfer_status clf_seq_set_tokens(struct clf_kv_pages *p, uint64_t id, const uint32_t *tokens, int64_t count)
{
    const int64_t S = p->page_size;
    struct clf_kv_seq *s;
    const clinfer_status st = clf_seq_find(p, id, true, &s);
    if (st)
        return st;
    if (count < 0 || count > s->length || (count && !tokens))
        return clf_pages_fail(p, CLINFER_ERR_ARGUMENT,
                              "sequence 0x%" PRIx64 ": ids of %" PRId64 " tokens, want 0 to the %" PRId64
                              " that it has",
                              id, count, s->length);
    for (int64_t i = 0; i < count; i++)
        if (i % S < p->prefix.page[s->page[i / S]].known && clf_seq_token(p, s, i) != tokens[i])
            return clf_pages_fail(p, CLINFER_ERR_ARGUMENT,
                                  "sequence 0x%" PRIx64 ": token %" PRId64 " is %" PRIu32
                                  ", but was said to be %" PRIu32,
                                  id, i, tokens[i], clf_seq_token(p, s, i));
    for (int64_t i = 0; i < clf_pages_of(p, count); i++)
        if (!clf_prefix_room(&p->prefix, s->page[i]))
            return clf_pages_fail(p, CLINFER_ERR_MEMORY, "no host memory for the ids of %" PRId64 " tokens",
                                  count);
    for (int64_t first = 0; first < count; first += S) {
        struct clf_prefix_page *page = &p->prefix.page[s->page[first / S]];
        const uint32_t n = (uint32_t) (count - first < S ? count - first : S);
        memcpy(page->tokens, tokens + first, n * sizeof *tokens);
        page->known = page->known > n ? page->known : n;
    }
    s->known = s->known > count ? s->known : count;
    clf_seq_list(p, s, 0);
    return CLINFER_OK;
}

void clf_pages_forget(struct clf_kv_pages *p)
{
    struct clf_prefix *f = &p->prefix;
    while (f->num_cached) {
        const uint32_t page = f->oldest - 1;
        clf_prefix_revive(f, page);
        clf_prefix_forget(f, page);
        p->free[p->num_free++] = page;
    }
    for (uint32_t i = 0; i < p->num_pages; i++) {
        if (f->page[i].listed)
            clf_prefix_forget(f, i);
        f->page[i].known = 0;
    }
    for (uint32_t i = 0; i < p->num_slots; i++) {
        p->seq[i].known = 0;
        p->seq[i].told = false;
    }
}
