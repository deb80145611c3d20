// SPDX-License-Identifier: Apache-2.0
// The books counted anew.
#include "kv_pages.h"
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct report {
    char *text;
    size_t size;
};

__attribute__((format(printf, 2, 3))) static bool wrong(const struct report *r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    if (r->text && r->size)
        vsnprintf(r->text, r->size, fmt, ap);
    va_end(ap);
    return false;
}

// What is before a page is the same wherever it is held.
static bool count_held(const struct clf_kv_pages *p, uint32_t page, uint32_t before, const struct report *r)
{
    if (p->seen[page]++ && p->before[page] != before)
        return wrong(r, "page %u: comes after page %d here, after page %d there", (unsigned) page,
                     (int) before - 1, (int) p->before[page] - 1);
    p->before[page] = before;
    return true;
}

// A listed page stands below its parent, and tokens are there.
static bool check_held(const struct clf_kv_pages *p, const struct clf_kv_seq *s, uint32_t i,
                       const struct report *r)
{
    const uint32_t page = s->page[i], before = i ? s->page[i - 1] + 1 : 0;
    const struct clf_prefix_page *f = &p->prefix.page[page];
    const int64_t known = s->known - (int64_t) i * p->page_size;
    if (f->listed && (f->parent != before || (!before && f->salt != s->salt)))
        return wrong(r, "page %u: listed below page %d, held after page %d", (unsigned) page,
                     (int) f->parent - 1, (int) before - 1);
    if (known > 0 && f->known < (known < p->page_size ? known : p->page_size))
        return wrong(r, "page %u: %" PRId64 " tokens known to a sequence, %u to the page", (unsigned) page,
                     known, (unsigned) f->known);
    return count_held(p, page, before, r);
}

static bool check_seq(const struct clf_kv_pages *p, uint32_t slot, const struct report *r)
{
    const struct clf_kv_seq *s = &p->seq[slot];
    if (!s->live)
        return (!s->num_pages && !s->length && !s->fresh && !s->batch && !s->known && !s->original) ||
               wrong(r, "slot %u: a sequence that was freed has %u pages, %" PRId64 " tokens",
                     (unsigned) slot, (unsigned) s->num_pages, s->length + s->fresh);
    if (s->length < 0 || s->fresh < 0 || s->length + s->fresh > UINT32_MAX || (s->fresh && !s->batch))
        return wrong(r, "slot %u: %" PRId64 " tokens and %" PRId64 " new ones in batch 0x%" PRIx64,
                     (unsigned) slot, s->length, s->fresh, s->batch);
    if (s->known < 0 || s->known > s->length || (s->told && (!s->batch || s->known != s->length)))
        return wrong(r, "slot %u: ids of %" PRId64 " tokens known of %" PRId64, (unsigned) slot, s->known,
                     s->length);
    if (s->num_pages != clf_pages_of(p, s->length + s->fresh) || s->num_pages > s->capacity)
        return wrong(r, "slot %u: %u pages of %" PRId64 " for %" PRId64 " tokens", (unsigned) slot,
                     (unsigned) s->num_pages, p->page_size, s->length + s->fresh);
    if (s->original && (!s->fresh || s->original > p->num_pages))
        return wrong(r, "slot %u: has a copy of page %u of %u", (unsigned) slot, (unsigned) s->original - 1,
                     (unsigned) p->num_pages);
    for (uint32_t i = 0; i < s->num_pages; i++) {
        if (s->page[i] >= p->num_pages)
            return wrong(r, "slot %u: page %u of %u", (unsigned) slot, (unsigned) s->page[i],
                         (unsigned) p->num_pages);
        if (!check_held(p, s, i, r))
            return false;
    }
    const int64_t tail = s->length / p->page_size;
    return !s->original || count_held(p, s->original - 1, tail ? s->page[tail - 1] + 1 : 0, r);
}

static bool check_pages(const struct clf_kv_pages *p, const struct report *r)
{
    uint32_t used = 0;
    for (uint32_t i = 0; i < p->num_pages; i++) {
        if (p->seen[i] != p->refs[i])
            return wrong(r, "page %u: held %u times, counted %u times", (unsigned) i, (unsigned) p->seen[i],
                         (unsigned) p->refs[i]);
        used += p->refs[i] != 0;
    }
    if (p->num_free > p->num_pages || used + clf_pages_available(p) != p->num_pages)
        return wrong(r, "%u used, %u free and %u cached pages are not %u", (unsigned) used,
                     (unsigned) p->num_free, (unsigned) p->prefix.num_cached, (unsigned) p->num_pages);
    for (uint32_t i = 0; i < p->num_free; i++)
        if (p->free[i] >= p->num_pages || p->prefix.page[p->free[i]].listed || p->seen[p->free[i]]++)
            return wrong(r, "page %u is free and held, or listed, or free twice", (unsigned) p->free[i]);
    return true;
}

bool clf_pages_check(const struct clf_kv_pages *p, char *error, size_t size)
{
    const struct report r = { error, size };
    uint32_t live = 0;
    wrong(&r, "%s", "");
    memset(p->seen, 0, p->num_pages * sizeof *p->seen);
    for (uint32_t i = 0; i < p->num_slots; i++) {
        if (!check_seq(p, i, &r))
            return false;
        live += p->seq[i].live;
    }
    if (live != p->num_seqs || p->num_seqs + p->num_free_slots + p->num_retired != p->num_slots)
        return wrong(&r, "%u sequences alive, %u counted; %u slots free, %u retired, of %u", (unsigned) live,
                     (unsigned) p->num_seqs, (unsigned) p->num_free_slots, (unsigned) p->num_retired,
                     (unsigned) p->num_slots);
    for (uint32_t i = 0; i < p->num_free_slots; i++)
        if (p->free_slot[i] >= p->num_slots || p->seq[p->free_slot[i]].live)
            return wrong(&r, "slot %u is free and used", (unsigned) p->free_slot[i]);
    return check_pages(p, &r) && clf_prefix_check(&p->prefix, p->refs, p->seen, error, size);
}
