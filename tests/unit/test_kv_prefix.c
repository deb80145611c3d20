// SPDX-License-Identifier: Apache-2.0
// Prefixes, forks and their copies one by one, and what the check sees of them.
#include <criterion/criterion.h>
#include <string.h>

#include "kv_pages.h"

TestSuite(kv_prefix, .timeout = 30);

enum { S = 4 };
static const uint32_t prompt[16] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16 };

static struct clf_kv_pages open_pages(int64_t pages)
{
    struct clf_kv_pages p;
    cr_assert_eq(clf_pages_init(&p, pages, S, 7, "salt", 4), CLINFER_OK);
    return p;
}

static void expect_sound(const struct clf_kv_pages *p)
{
    char error[256];
    cr_assert(clf_pages_check(p, error, sizeof error), "%s", error);
}

static struct clf_kv_seq *find(struct clf_kv_pages *p, uint64_t id)
{
    struct clf_kv_seq *s = NULL;
    cr_assert_eq(clf_seq_find(p, id, false, &s), CLINFER_OK, "%s", p->error);
    return s;
}

static void append(struct clf_kv_pages *p, uint64_t id, const uint32_t *tokens, int64_t n)
{
    uint32_t slot;
    cr_assert_eq(clf_pages_reserve(p, 9, 1, &id, &n, tokens, &slot), CLINFER_OK, "%s", p->error);
    clf_pages_settle(p, 1, &slot, true);
    expect_sound(p);
}

static uint64_t match(struct clf_kv_pages *p, const uint32_t *tokens, int64_t n, int64_t most, uint64_t salt,
                      int64_t want)
{
    uint64_t id;
    int64_t length;
    cr_assert_eq(clf_seq_match(p, tokens, n, most, salt, &id, &length), CLINFER_OK);
    cr_assert_eq(length, want, "%d tokens found, want %d", (int) length, (int) want);
    expect_sound(p);
    return id;
}

static void drop(struct clf_kv_pages *p, uint64_t id)
{
    cr_assert_eq(clf_seq_free(p, id), CLINFER_OK);
    expect_sound(p);
}

// What a prompt leaves is found whole or less its last token, in full pages, under its salt alone.
Test(kv_prefix, found)
{
    struct clf_kv_pages p = open_pages(8);
    const uint64_t id = match(&p, NULL, 0, 0, 5, 0);
    append(&p, id, prompt, 10);
    drop(&p, match(&p, prompt, 10, 9, 5, 8));
    drop(&p, match(&p, prompt, 8, 8, 5, 8));
    drop(&p, match(&p, prompt, 8, 7, 5, 7));
    drop(&p, match(&p, prompt, 7, 7, 5, 4));
    drop(&p, match(&p, prompt, 3, 3, 5, 0));
    drop(&p, match(&p, prompt, 10, 10, 6, 0));
    drop(&p, match(&p, prompt + 4, 8, 8, 5, 0)); // the second page alone is none
    drop(&p, id);
    cr_assert(p.num_free == 6 && p.prefix.num_cached == 2);
    drop(&p, match(&p, prompt, 16, 15, 5, 8));
    clf_pages_forget(&p);
    expect_sound(&p);
    cr_assert(p.num_free == 8 && p.prefix.num_cached == 0);
    drop(&p, match(&p, prompt, 16, 15, 5, 0));
    clf_pages_close(&p);
}

// A hash is of the pool's salt, the sequence's, and all tokens up to the page's end.
Test(kv_prefix, hashes)
{
    static const struct {
        const char *pool;
        uint64_t seq;
        uint32_t first;
    } list[] = { { "salt", 5, 1 }, { "tlas", 5, 1 }, { "salt", 6, 1 }, { "salt", 5, 9 }, { "salt", 5, 1 } };
    struct clf_hash hash[5];
    for (int i = 0; i < 5; i++) {
        struct clf_kv_pages p;
        uint32_t tokens[8];
        cr_assert_eq(clf_pages_init(&p, 4, S, 7, list[i].pool, 4), CLINFER_OK);
        memcpy(tokens, prompt, sizeof tokens);
        tokens[0] = list[i].first;
        const uint64_t id = match(&p, NULL, 0, 0, list[i].seq, 0);
        append(&p, id, tokens, 8);
        hash[i] = p.prefix.page[find(&p, id)->page[1]].hash; // of the second page: equal tokens in all
        for (int k = 0; k < i; k++)
            cr_assert_eq(hash[k].low == hash[i].low && hash[k].high == hash[i].high, k == 0 && i == 4);
        clf_pages_close(&p);
    }
}

// A batch that is dropped leaves nothing to find; its tokens come again with the next.
Test(kv_prefix, dropped_batch)
{
    struct clf_kv_pages p = open_pages(8);
    uint64_t id;
    uint32_t slot;
    cr_assert_eq(clf_seq_create(&p, &id), CLINFER_OK);
    append(&p, id, prompt, 3);
    cr_assert_eq(clf_pages_reserve(&p, 9, 1, &id, (const int64_t[]){ 6 }, prompt + 8, &slot), CLINFER_OK);
    drop(&p, match(&p, prompt, 4, 4, 0, 0));
    clf_pages_settle(&p, 1, &slot, false);
    expect_sound(&p);
    append(&p, id, prompt + 3, 5);
    drop(&p, match(&p, prompt, 8, 8, 0, 8));
    clf_pages_close(&p);
}

// Cached pages go when nothing is free: the end of the chain that was given back longest ago, then the one
// before it; never one whose child stays.
Test(kv_prefix, eviction)
{
    struct clf_kv_pages p = open_pages(5);
    const uint32_t other[4] = { 90, 91, 92, 93 };
    uint64_t a, b, c;
    cr_assert_eq(clf_seq_create(&p, &a), CLINFER_OK);
    append(&p, a, prompt, 12);
    cr_assert_eq(clf_seq_create(&p, &b), CLINFER_OK);
    append(&p, b, other, 4);
    drop(&p, a);
    drop(&p, b);
    cr_assert(p.num_free == 1 && p.prefix.num_cached == 4);
    cr_assert_eq(clf_seq_create(&p, &c), CLINFER_OK);
    append(&p, c, NULL, 8);
    cr_assert_eq(p.prefix.evictions, 1);
    drop(&p, match(&p, prompt, 12, 12, 0, 8)); // and now the other one is the oldest
    append(&p, c, NULL, 4);
    drop(&p, match(&p, other, 4, 4, 0, 0));
    drop(&p, match(&p, prompt, 12, 12, 0, 8));
    append(&p, c, NULL, 8);
    cr_assert(p.num_free == 0 && p.prefix.num_cached == 0 && p.prefix.evictions == 4);
    cr_assert_eq(clf_pages_reserve(&p, 9, 1, &c, (const int64_t[]){ 1 }, NULL, (uint32_t[1]){ 0 }),
                 CLINFER_ERR_PAGES);
    cr_assert(strstr(p.error, "1 pages, 0 of 5 are free"), "%s", p.error);
    clf_pages_close(&p);
}

// Prompts that are computed twice at once end as one.
Test(kv_prefix, twins)
{
    struct clf_kv_pages p = open_pages(8);
    const uint64_t id[2] = { match(&p, prompt, 8, 7, 0, 0), match(&p, prompt, 8, 7, 0, 0) };
    append(&p, id[0], prompt, 9);
    append(&p, id[1], prompt, 9);
    cr_assert(!memcmp(find(&p, id[0])->page, find(&p, id[1])->page, 2 * sizeof(uint32_t)));
    cr_assert_eq(p.num_free, 4);
    append(&p, id[1], prompt + 9, 3);
    drop(&p, match(&p, prompt, 12, 12, 0, 12));
    clf_pages_close(&p);
}

// Both that share a tail copy it while the other may still go back to it; a full page that can be found is
// never written again.
Test(kv_prefix, copies)
{
    struct clf_kv_pages p = open_pages(8);
    uint64_t id[2];
    uint32_t slot[2];
    cr_assert_eq(clf_seq_create(&p, &id[0]), CLINFER_OK);
    append(&p, id[0], prompt, 6);
    cr_assert_eq(clf_seq_fork(&p, id[0], &id[1]), CLINFER_OK);
    expect_sound(&p);
    const uint32_t tail = find(&p, id[0])->page[1];
    cr_assert_eq(clf_pages_reserve(&p, 9, 2, id, (const int64_t[]){ 1, 1 }, NULL, slot), CLINFER_OK);
    expect_sound(&p);
    for (int i = 0; i < 2; i++)
        cr_assert(p.seq[slot[i]].original == tail + 1 && p.seq[slot[i]].page[1] != tail);
    cr_assert_eq(clf_seq_fork(&p, id[0], &(uint64_t){ 0 }), CLINFER_ERR_ARGUMENT);
    clf_pages_settle(&p, 2, slot, false);
    cr_assert(p.seq[slot[0]].page[1] == tail && p.seq[slot[1]].page[1] == tail && p.copies == 0);
    append(&p, id[0], prompt + 6, 1);
    cr_assert(p.seq[slot[0]].page[1] != tail && p.copies == 1);
    append(&p, id[1], prompt + 6, 2); // has it for itself
    cr_assert(p.seq[slot[1]].page[1] == tail && p.copies == 1);
    cr_assert_eq(clf_seq_truncate(&p, id[1], 7), CLINFER_OK);
    append(&p, id[1], prompt, 1);
    cr_assert(p.seq[slot[1]].page[1] != tail && p.copies == 2);
    drop(&p, match(&p, prompt, 8, 8, 0, 8));
    clf_pages_close(&p);
}

// Ids that were told apart from batches; those that contradict what is known.
Test(kv_prefix, told_later)
{
    struct clf_kv_pages p = open_pages(8);
    uint64_t id;
    cr_assert_eq(clf_seq_create(&p, &id), CLINFER_OK);
    append(&p, id, NULL, 6);
    append(&p, id, prompt + 6, 6); // those before are not known
    drop(&p, match(&p, prompt, 12, 12, 0, 0));
    cr_assert_eq(clf_seq_set_tokens(&p, id, prompt, 13), CLINFER_ERR_ARGUMENT);
    cr_assert(strstr(p.error, "ids of 13 tokens") && strstr(p.error, "0 to the 12"), "%s", p.error);
    cr_assert_eq(clf_seq_set_tokens(&p, id, NULL, 1), CLINFER_ERR_ARGUMENT);
    cr_assert_eq(clf_seq_set_tokens(&p, id, prompt, 9), CLINFER_OK);
    drop(&p, match(&p, prompt, 12, 12, 0, 8));
    cr_assert_eq(clf_seq_set_tokens(&p, id, (const uint32_t[]){ 1, 2, 99 }, 3), CLINFER_ERR_ARGUMENT);
    cr_assert(strstr(p.error, "token 2 is 99, but was said to be 3"), "%s", p.error);
    cr_assert_eq(clf_seq_set_tokens(&p, id, prompt, 12), CLINFER_OK);
    drop(&p, match(&p, prompt, 12, 12, 0, 12));
    clf_pages_close(&p);
}

#define BREAK(what, word)                                                                                    \
    do {                                                                                                     \
        struct clf_kv_pages p = open_pages(8);                                                               \
        struct clf_prefix *f = &p.prefix;                                                                    \
        uint64_t id_;                                                                                        \
        char error_[256];                                                                                    \
        (void) f;                                                                                            \
        drop(&p, match(&p, prompt, 0, 0, 0, 0));                                                             \
        append(&p, id_ = match(&p, prompt, 0, 0, 0, 0), prompt, 14); /* pages 0 to 3 */                      \
        drop(&p, id_);                                                                                       \
        match(&p, prompt, 4, 4, 0, 4); /* 0 held, 2 and 1 cached, 3 free */                                  \
        what;                                                                                                \
        cr_assert_not(clf_pages_check(&p, error_, sizeof error_), #what " is not seen");                     \
        cr_assert(strstr(error_, word), #what ": %s", error_);                                               \
        cr_assert_not(clf_pages_check(&p, NULL, 0));                                                         \
        clf_pages_close(&p);                                                                                 \
    } while (0)

Test(kv_prefix, check_sees_contradictions)
{
    BREAK(f->page[0].tokens[1] = 7, "find page -1");
    BREAK(f->page[0].known = 5, "5 slots");
    BREAK(f->page[1].known = 3, "3 known tokens");
    BREAK(f->page[1].listed = false, "parent");
    BREAK(f->page[2].parent = 1, "page 2: its tokens find page -1");
    BREAK(f->page[0].salt = 1, "listed below");
    BREAK(clf_prefix_forget(f, 0), "its parent 0 is not listed");
    BREAK(clf_prefix_forget(f, 2), "held by none, 2 cached");
    BREAK(f->num_cached = 1, "are not 8");
    BREAK(f->oldest = f->newest, "neighbour");
    BREAK(clf_prefix_revive(f, 2); clf_prefix_cache(f, 2), "would outlive its parent 1");
    BREAK(p.free[0] = 1, "free and held");
    BREAK(p.seq[0].known = 5, "ids of 5 tokens known of 4");
    BREAK(p.seq[0].original = 2, "has a copy");
    BREAK(p.seq[0].told = true, "ids of 4");
}
