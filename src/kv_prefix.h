// SPDX-License-Identifier: Apache-2.0
// Full pages that are found again by their tokens: a tree, in which a page stands below the page that comes
// before it in a sequence. Bookkeeping, without OpenCL and without a lock; who holds a page is kv_pages'.
#pragma once
#include "op.h"

struct clf_hash {
    uint64_t low, high;
};

// Pages are named by number + 1, 0 is none, so that the books of a page that was never used are zero.
struct clf_prefix_page {
    struct clf_hash hash; // of the tokens to its end, and of what the chain starts from
    uint64_t salt;        // what the chain starts from, of a first page
    uint32_t *tokens;     // of its slots; kept for whoever has the page next
    uint32_t known;       // slots, from the first one, whose tokens those are
    bool listed;          // can be found
    uint32_t parent;      // listed too; 0: a first page
    uint32_t next;        // of its bucket
    uint32_t older, newer;
};

struct clf_prefix {
    struct clf_prefix_page *page;
    uint32_t *bucket;
    uint32_t num_pages, bucket_mask;
    int64_t page_size;
    struct clf_hash root;
    struct clf_hash keep; // bits of a hash that count: all, but in tests that want collisions
    // Listed pages that nobody holds, those given back first first. A child is given back before its parent,
    // so the oldest is a leaf, and no page stays that cannot be found.
    uint32_t oldest, newest, num_cached;
    uint64_t evictions;
};

// `salt`: all that the contents of every page depend on. False: no host memory.
bool clf_prefix_init(struct clf_prefix *f, uint32_t num_pages, int64_t page_size, const void *salt,
                     size_t salt_size);
void clf_prefix_close(struct clf_prefix *f);
// Room for a page's tokens. False: no host memory.
bool clf_prefix_room(struct clf_prefix *f, uint32_t page);

// The page of these page_size tokens below `parent` or, where that is 0, first in a chain of that salt; + 1.
uint32_t clf_prefix_find(const struct clf_prefix *f, uint32_t parent, uint64_t salt, const uint32_t *tokens);
// Lists a page whose tokens are all known and of which there is none yet.
void clf_prefix_list(struct clf_prefix *f, uint32_t page, uint32_t parent, uint64_t salt);
void clf_prefix_forget(struct clf_prefix *f, uint32_t page);

// A listed page that nobody holds any more; that is held again; the oldest, out of it all and forgotten.
void clf_prefix_cache(struct clf_prefix *f, uint32_t page);
void clf_prefix_revive(struct clf_prefix *f, uint32_t page);
uint32_t clf_prefix_evict(struct clf_prefix *f);

// Counts anew. refs: holders of each page; seen: scratch, a word a page.
bool clf_prefix_check(const struct clf_prefix *f, const uint32_t *refs, uint32_t *seen, char *error,
                      size_t size);
