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

clinfer_status clf_pages_init(struct clf_kv_pages *p, int64_t num_pages, int64_t page_size, uint64_t seed,
                              const void *salt, size_t salt_size)
{
    *p = (struct clf_kv_pages){ .page_size = page_size,
                                .num_pages = (uint32_t) num_pages,
                                .num_free = (uint32_t) num_pages,
                                .tag = seed & 0xFFFF,
                                .first_generation = (uint32_t) (seed >> 16) % CLF_GENERATIONS };
    p->free = malloc(p->num_pages * sizeof *p->free);
    p->refs = calloc(p->num_pages, sizeof *p->refs);
    p->seen = malloc(p->num_pages * sizeof *p->seen);
    p->before = malloc(p->num_pages * sizeof *p->before);
    const bool prefix = clf_prefix_init(&p->prefix, p->num_pages, page_size, salt, salt_size);
    if (!p->free || !p->refs || !p->seen || !p->before || !prefix) {
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
    free(p->before);
    clf_prefix_close(&p->prefix);
    *p = (struct clf_kv_pages){ 0 };
}

int64_t clf_pages_of(const struct clf_kv_pages *p, int64_t tokens)
{
    return clf_blocks(tokens, p->page_size);
}

uint32_t clf_pages_available(const struct clf_kv_pages *p)
{
    return p->num_free + p->prefix.num_cached;
}

void clf_page_hold(struct clf_kv_pages *p, uint32_t page)
{
    if (!p->refs[page]++)
        clf_prefix_revive(&p->prefix, page);
}

void clf_page_give(struct clf_kv_pages *p, uint32_t page)
{
    if (--p->refs[page])
        return;
    if (p->prefix.page[page].listed)
        clf_prefix_cache(&p->prefix, page);
    else
        p->free[p->num_free++] = page;
}

void clf_seq_release(struct clf_kv_pages *p, struct clf_kv_seq *s, int64_t keep)
{
    while (s->num_pages > keep)
        clf_page_give(p, s->page[--s->num_pages]);
}

static uint32_t take(struct clf_kv_pages *p)
{
    const uint32_t page = p->num_free ? p->free[--p->num_free] : clf_prefix_evict(&p->prefix);
    p->refs[page] = 1;
    p->prefix.page[page].known = 0;
    return page;
}

// Whether new tokens go into a page that others read too, or that is listed.
static bool must_copy(const struct clf_kv_pages *p, const struct clf_kv_seq *s)
{
    if (!s->fresh || s->length % p->page_size == 0)
        return false;
    const uint32_t tail = s->page[s->num_pages - 1];
    return p->refs[tail] > 1 || p->prefix.page[tail].listed;
}

static void take_pages(struct clf_kv_pages *p, struct clf_kv_seq *s)
{
    const int64_t want = clf_pages_of(p, s->length + s->fresh);
    if (must_copy(p, s)) {
        uint32_t *tail = &s->page[s->num_pages - 1];
        s->original = *tail + 1;
        *tail = take(p);
    }
    while (s->num_pages < want)
        s->page[s->num_pages++] = take(p);
}

// The ids of what the tail holds go with a copy of it, and those of the batch behind them. They count once
// the batch is committed.
static bool put_tokens(struct clf_kv_pages *p, struct clf_kv_seq *s, const uint32_t *tokens)
{
    struct clf_prefix_page *page = p->prefix.page;
    const int64_t rest = s->length % p->page_size, first = s->length / p->page_size;
    if (rest && s->fresh) {
        const struct clf_prefix_page *from = &page[s->original ? s->original - 1 : s->page[first]];
        struct clf_prefix_page *tail = &page[s->page[first]];
        const uint32_t known = from->known < rest ? from->known : (uint32_t) rest;
        if (known && !clf_prefix_room(&p->prefix, s->page[first]))
            return false;
        if (known && from != tail)
            memcpy(tail->tokens, from->tokens, known * sizeof *tokens);
        tail->known = known;
    }
    s->told = tokens && s->fresh && s->known == s->length;
    for (int64_t i = first; s->told && i < s->num_pages; i++)
        if (!clf_prefix_room(&p->prefix, s->page[i]))
            return false;
    for (int64_t i = s->length; s->told && i < s->length + s->fresh; i++)
        page[s->page[i / p->page_size]].tokens[i % p->page_size] = *tokens++;
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
    s->batch = batch;
    s->fresh = fresh;
    *tokens += fresh;
    *lacking += clf_pages_of(p, s->length + fresh) - s->num_pages + must_copy(p, s);
    *slot = (uint32_t) (s - p->seq);
    return CLINFER_OK;
}

clinfer_status clf_pages_reserve(struct clf_kv_pages *p, uint64_t batch, int64_t n, const uint64_t *id,
                                 const int64_t *fresh, const uint32_t *tokens, uint32_t *slot)
{
    clinfer_status st = CLINFER_OK;
    int64_t admitted = 0, all = 0, lacking = 0;
    while (!st && admitted < n) {
        st = admit(p, batch, id[admitted], fresh[admitted], &all, &lacking, &slot[admitted]);
        admitted += !st;
    }
    if (!st && lacking > clf_pages_available(p))
        st = clf_pages_fail(p, CLINFER_ERR_PAGES,
                            "%" PRId64 " new tokens want %" PRId64 " pages, %u of %u are free", all, lacking,
                            (unsigned) clf_pages_available(p), (unsigned) p->num_pages);
    bool room = true;
    for (int64_t i = 0; !st && room && i < n; i++)
        room = clf_seq_room(&p->seq[slot[i]], clf_pages_of(p, p->seq[slot[i]].length + fresh[i]));
    for (int64_t i = 0; !st && room && i < n; i++)
        take_pages(p, &p->seq[slot[i]]);
    for (int64_t i = 0; !st && room && i < n; i++) {
        room = put_tokens(p, &p->seq[slot[i]], tokens);
        tokens = tokens ? tokens + fresh[i] : NULL;
    }
    if (!room)
        st = clf_pages_fail(p, CLINFER_ERR_MEMORY, "no host memory for the pages of %" PRId64 " new tokens",
                            all);
    if (st)
        clf_pages_settle(p, admitted, slot, false);
    return st;
}

static void commit_seq(struct clf_kv_pages *p, struct clf_kv_seq *s)
{
    const int64_t S = p->page_size, first = s->length / S;
    s->length += s->fresh;
    if (s->told)
        s->known = s->length;
    for (int64_t i = first; s->told && i < s->num_pages; i++)
        p->prefix.page[s->page[i]].known = (uint32_t) (s->length - i * S < S ? s->length - i * S : S);
    p->copies += s->original != 0;
    if (s->original)
        clf_page_give(p, s->original - 1);
    if (s->told)
        clf_seq_list(p, s, first);
}

static void drop_seq(struct clf_kv_pages *p, struct clf_kv_seq *s)
{
    clf_seq_release(p, s, clf_pages_of(p, s->length));
    if (!s->original)
        return;
    clf_page_give(p, s->page[s->num_pages - 1]);
    s->page[s->num_pages - 1] = s->original - 1;
}

void clf_pages_settle(struct clf_kv_pages *p, int64_t n, const uint32_t *slot, bool commit)
{
    for (int64_t i = n - 1; i >= 0; i--) {
        struct clf_kv_seq *s = &p->seq[slot[i]];
        (commit ? commit_seq : drop_seq)(p, s);
        s->original = 0;
        s->told = false;
        s->fresh = 0;
        s->batch = 0;
    }
}
