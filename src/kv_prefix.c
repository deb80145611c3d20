// SPDX-License-Identifier: Apache-2.0
#include "kv_prefix.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

bool clf_prefix_init(struct clf_prefix *f, uint32_t num_pages, int64_t page_size, const void *salt,
                     size_t salt_size)
{
    uint64_t buckets = 1;
    const XXH128_hash_t root = XXH3_128bits(salt, salt_size);
    while (buckets < num_pages)
        buckets *= 2;
    *f = (struct clf_prefix){ .num_pages = num_pages,
                              .bucket_mask = (uint32_t) (buckets - 1),
                              .page_size = page_size,
                              .root = { root.low64, root.high64 },
                              .keep = { UINT64_MAX, UINT64_MAX } };
    f->page = calloc(num_pages, sizeof *f->page);
    f->bucket = calloc(buckets, sizeof *f->bucket);
    if (f->page && f->bucket)
        return true;
    clf_prefix_close(f);
    return false;
}

void clf_prefix_close(struct clf_prefix *f)
{
    for (uint32_t i = 0; f->page && i < f->num_pages; i++)
        free(f->page[i].tokens);
    free(f->page);
    free(f->bucket);
    *f = (struct clf_prefix){ 0 };
}

bool clf_prefix_room(struct clf_prefix *f, uint32_t page)
{
    uint32_t **tokens = &f->page[page].tokens;
    if (!*tokens)
        *tokens = malloc((size_t) f->page_size * sizeof **tokens);
    return *tokens != NULL;
}

static struct clf_hash hash_of(const struct clf_prefix *f, uint32_t parent, uint64_t salt,
                               const uint32_t *tokens)
{
    const struct clf_hash *before = parent ? &f->page[parent - 1].hash : &f->root;
    const XXH128_hash_t own = XXH3_128bits(tokens, (size_t) f->page_size * sizeof *tokens);
    const uint64_t chain[] = { before->low, before->high, own.low64, own.high64, parent ? 0 : salt };
    const XXH128_hash_t hash = XXH3_128bits(chain, sizeof chain);
    return (struct clf_hash){ hash.low64 & f->keep.low, hash.high64 & f->keep.high };
}

static uint32_t *bucket_of(const struct clf_prefix *f, const struct clf_hash *hash)
{
    return &f->bucket[hash->low & f->bucket_mask];
}

uint32_t clf_prefix_find(const struct clf_prefix *f, uint32_t parent, uint64_t salt, const uint32_t *tokens)
{
    const struct clf_hash hash = hash_of(f, parent, salt, tokens);
    uint32_t at = *bucket_of(f, &hash);
    for (; at; at = f->page[at - 1].next) {
        const struct clf_prefix_page *p = &f->page[at - 1];
        if (p->hash.low == hash.low && p->hash.high == hash.high && p->parent == parent &&
            (parent || p->salt == salt) && !memcmp(p->tokens, tokens, (size_t) f->page_size * sizeof *tokens))
            break;
    }
    return at;
}

void clf_prefix_list(struct clf_prefix *f, uint32_t page, uint32_t parent, uint64_t salt)
{
    struct clf_prefix_page *p = &f->page[page];
    p->hash = hash_of(f, parent, salt, p->tokens);
    p->parent = parent;
    p->salt = salt;
    p->listed = true;
    uint32_t *head = bucket_of(f, &p->hash);
    p->next = *head;
    *head = page + 1;
}

void clf_prefix_forget(struct clf_prefix *f, uint32_t page)
{
    struct clf_prefix_page *p = &f->page[page];
    uint32_t *link = bucket_of(f, &p->hash);
    while (*link != page + 1)
        link = &f->page[*link - 1].next;
    *link = p->next;
    p->listed = false;
    p->next = p->parent = 0;
}

void clf_prefix_cache(struct clf_prefix *f, uint32_t page)
{
    struct clf_prefix_page *p = &f->page[page];
    p->newer = 0;
    p->older = f->newest;
    *(f->newest ? &f->page[f->newest - 1].newer : &f->oldest) = page + 1;
    f->newest = page + 1;
    f->num_cached++;
}

void clf_prefix_revive(struct clf_prefix *f, uint32_t page)
{
    struct clf_prefix_page *p = &f->page[page];
    *(p->older ? &f->page[p->older - 1].newer : &f->oldest) = p->newer;
    *(p->newer ? &f->page[p->newer - 1].older : &f->newest) = p->older;
    p->older = p->newer = 0;
    f->num_cached--;
}

uint32_t clf_prefix_evict(struct clf_prefix *f)
{
    const uint32_t page = f->oldest - 1;
    clf_prefix_revive(f, page);
    clf_prefix_forget(f, page);
    f->evictions++;
    return page;
}

#define WRONG(...) (error && size ? (void) snprintf(error, size, __VA_ARGS__) : (void) 0, false)

static bool check_page(const struct clf_prefix *f, const uint32_t *refs, uint32_t i, char *error, size_t size)
{
    const struct clf_prefix_page *p = &f->page[i];
    if (p->known > f->page_size || (p->known && !p->tokens))
        return WRONG("page %u: tokens of %u slots are known", (unsigned) i, (unsigned) p->known);
    if (!p->listed)
        return !p->parent || WRONG("page %u: has a parent, but is not listed", (unsigned) i);
    if (p->known != f->page_size)
        return WRONG("page %u: listed with %u known tokens", (unsigned) i, (unsigned) p->known);
    if (p->parent && (p->parent > f->num_pages || !f->page[p->parent - 1].listed))
        return WRONG("page %u: its parent %u is not listed", (unsigned) i, (unsigned) p->parent - 1);
    if (p->parent && refs[p->parent - 1] < refs[i])
        return WRONG("page %u: held %u times, its parent %u times", (unsigned) i, (unsigned) refs[i],
                     (unsigned) refs[p->parent - 1]);
    const uint32_t found = clf_prefix_find(f, p->parent, p->salt, p->tokens);
    return found == i + 1 || WRONG("page %u: its tokens find page %d", (unsigned) i, (int) found - 1);
}

// The order of the cached ones: children before parents.
static bool check_order(const struct clf_prefix *f, const uint32_t *refs, uint32_t *seen, char *error,
                        size_t size)
{
    uint32_t n = 0, before = 0;
    memset(seen, 0, f->num_pages * sizeof *seen);
    for (uint32_t at = f->oldest; at; before = at, at = f->page[at - 1].newer) {
        const struct clf_prefix_page *p = &f->page[at - 1];
        if (++n > f->num_cached || p->older != before)
            return WRONG("page %u: is cached twice, or its neighbour is not page %d", (unsigned) at - 1,
                         (int) before - 1);
        if (!p->listed || refs[at - 1])
            return WRONG("page %u: cached, but held %u times or not listed", (unsigned) at - 1,
                         (unsigned) refs[at - 1]);
        if (p->parent && seen[p->parent - 1])
            return WRONG("page %u: would outlive its parent %u", (unsigned) at - 1, (unsigned) p->parent - 1);
        seen[at - 1] = 1;
    }
    return (n == f->num_cached && before == f->newest) ||
           WRONG("%u pages are cached, %u counted", (unsigned) n, (unsigned) f->num_cached);
}

bool clf_prefix_check(const struct clf_prefix *f, const uint32_t *refs, uint32_t *seen, char *error,
                      size_t size)
{
    uint32_t listed = 0, chained = 0, idle = 0;
    for (uint32_t i = 0; i < f->num_pages; i++) {
        if (!check_page(f, refs, i, error, size))
            return false;
        listed += f->page[i].listed;
        idle += f->page[i].listed && !refs[i];
    }
    for (uint64_t b = 0; b <= f->bucket_mask; b++)
        for (uint32_t at = f->bucket[b]; at && chained <= listed; at = f->page[at - 1].next)
            chained++;
    if (chained != listed || idle != f->num_cached)
        return WRONG("%u pages listed, %u in buckets; %u held by none, %u cached", (unsigned) listed,
                     (unsigned) chained, (unsigned) idle, (unsigned) f->num_cached);
    return check_order(f, refs, seen, error, size);
}
