// SPDX-License-Identifier: Apache-2.0
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kv_pages.h"

TestSuite(kv_pages_edges, .timeout = 30);

static struct clf_kv_pages open_pages(int64_t pages, int64_t page_size, uint64_t seed)
{
    struct clf_kv_pages p;
    cr_assert_eq(clf_pages_init(&p, pages, page_size, seed, NULL, 0), CLINFER_OK);
    return p;
}

static clinfer_status extend(struct clf_kv_pages *p, uint64_t id, int64_t tokens)
{
    uint32_t slot;
    const clinfer_status st = clf_pages_reserve(p, 1, 1, &id, &tokens, NULL, &slot);
    if (!st)
        clf_pages_settle(p, 1, &slot, true);
    return st;
}

static uint64_t new_seq(struct clf_kv_pages *p, int64_t tokens)
{
    uint64_t id;
    cr_assert_eq(clf_seq_create(p, &id), CLINFER_OK);
    cr_assert_eq(extend(p, id, tokens), CLINFER_OK, "%s", p->error);
    return id;
}

static void expect_text(const struct clf_kv_pages *p, const char *a, const char *b)
{
    cr_assert(strstr(p->error, a) && strstr(p->error, b), "want \"%s\" and \"%s\": %s", a, b, p->error);
}

static void expect_sound(const struct clf_kv_pages *p)
{
    char error[256];
    cr_assert(clf_pages_check(p, error, sizeof error), "%s", error);
}

static int64_t pages_for(int64_t tokens, int64_t page_size)
{
    int64_t n = 0;
    for (int64_t first = 0; first < tokens; first += page_size)
        n++;
    return n;
}

// Lengths around the edges of a page, up and down.
Test(kv_pages_edges, lengths_around_pages)
{
    static const int64_t sizes[] = { 1, 3, 16 };
    for (int k = 0; k < 3; k++) {
        const int64_t S = sizes[k], lengths[] = { 0, 1, S - 1, S, S + 1, 2 * S - 1, 2 * S, 2 * S + 1 };
        struct clf_kv_pages p = open_pages(4, S, 1);
        for (int i = 0; i < 8; i++)
            for (int j = 0; j < 8; j++) {
                const uint64_t id = new_seq(&p, lengths[i]);
                cr_assert_eq(p.num_free, 4 - pages_for(lengths[i], S));
                const bool good = lengths[j] <= lengths[i];
                cr_assert_eq(clf_seq_truncate(&p, id, lengths[j]), good ? CLINFER_OK : CLINFER_ERR_ARGUMENT);
                cr_assert_eq(p.num_free, 4 - pages_for(lengths[good ? j : i], S));
                expect_sound(&p);
                cr_assert_eq(clf_seq_free(&p, id), CLINFER_OK);
                cr_assert_eq(p.num_free, 4);
            }
        clf_pages_close(&p);
    }
}

// Pages run out in the third row of four: none is taken, the stack is as it was, and both numbers are said.
Test(kv_pages_edges, all_or_nothing)
{
    struct clf_kv_pages p = open_pages(6, 4, 1);
    uint32_t slot[4], stack[6];
    const uint64_t id[4] = { new_seq(&p, 4), new_seq(&p, 3), new_seq(&p, 0), new_seq(&p, 0) };
    memcpy(stack, p.free, sizeof stack);
    cr_assert_eq(clf_pages_reserve(&p, 9, 4, id, (const int64_t[]){ 5, 1, 12, 1 }, NULL, slot),
                 CLINFER_ERR_PAGES);
    expect_text(&p, "6 pages", "4 of 6 are free");
    cr_assert_eq(p.num_free, 4);
    cr_assert(!memcmp(stack, p.free, sizeof stack));
    expect_sound(&p);
    cr_assert_eq(clf_pages_reserve(&p, 9, 4, id, (const int64_t[]){ 5, 1, 4, 1 }, NULL, slot), CLINFER_OK);
    cr_assert_eq(p.num_free, 0);
    clf_pages_settle(&p, 4, slot, false);
    cr_assert_eq(p.num_free, 4);
    cr_assert(!memcmp(stack, p.free, sizeof stack), "a drop leaves the free pages in another order");
    expect_sound(&p);
    clf_pages_close(&p);
}

Test(kv_pages_edges, numbers_past_the_end)
{
    struct clf_kv_pages p = open_pages(8, 1 << 30, 1);
    const uint64_t id = new_seq(&p, 100);
    uint32_t slot[2];
    cr_assert_eq(clf_seq_truncate(&p, id, 101), CLINFER_ERR_ARGUMENT);
    expect_text(&p, "101", "100");
    cr_assert_eq(clf_seq_truncate(&p, id, -1), CLINFER_ERR_ARGUMENT);
    cr_assert_eq(extend(&p, id, -1), CLINFER_ERR_ARGUMENT);
    cr_assert_eq(extend(&p, id, INT64_MAX), CLINFER_ERR_ARGUMENT);
    expect_text(&p, "9223372036854775807", "2147483647");
    cr_assert_eq(extend(&p, id, INT32_MAX), CLINFER_OK);
    cr_assert_eq(extend(&p, id, INT32_MAX), CLINFER_ERR_ARGUMENT);
    expect_text(&p, "2147483747", "4294967295");
    cr_assert_eq(extend(&p, id, INT32_MAX - 99), CLINFER_OK); // 2^32 - 1
    cr_assert_eq(p.seq[0].length, UINT32_MAX);
    const uint64_t two[2] = { new_seq(&p, 0), new_seq(&p, 0) };
    cr_assert_eq(clf_pages_reserve(&p, 9, 2, two, (const int64_t[]){ INT32_MAX, 1 }, NULL, slot),
                 CLINFER_ERR_ARGUMENT);
    expect_text(&p, "1 new tokens", "0 to 0");
    expect_sound(&p);
    clf_pages_close(&p);
}

// Each bit of an id counts; another pool's, whose tag differs, names no sequence here; nor does a batch's.
Test(kv_pages_edges, ids)
{
    struct clf_kv_pages p = open_pages(4, 4, 0xABCD000700000011u), q = open_pages(4, 4, 0xABCD000700000012u);
    struct clf_kv_seq *s;
    const uint64_t id = new_seq(&p, 4), foreign = new_seq(&q, 4);
    cr_assert_neq(id, foreign);
    cr_assert_eq(clf_seq_find(&p, id, true, &s), CLINFER_OK);
    for (int bit = 0; bit < 64; bit++)
        cr_assert_eq(clf_seq_find(&p, id ^ UINT64_C(1) << bit, false, &s), CLINFER_ERR_ARGUMENT, "bit %d",
                     bit);
    cr_assert_eq(clf_seq_free(&p, foreign), CLINFER_ERR_ARGUMENT);
    expect_text(&p, "none of this pool's", "sequence 0x");
    cr_assert_eq(clf_seq_free(&p, 0), CLINFER_ERR_ARGUMENT);
    cr_assert_eq(clf_seq_free(&p, id), CLINFER_OK);
    const uint64_t next = new_seq(&p, 0);
    cr_assert_eq(clf_seq_free(&p, id), CLINFER_ERR_ARGUMENT);
    expect_text(&p, "was freed", "sequence 0x");
    cr_assert_eq(clf_seq_free(&p, next), CLINFER_OK);
    clf_pages_close(&p);
    clf_pages_close(&q);
}

// A slot whose ids have all been given is not used again.
Test(kv_pages_edges, generations_end)
{
    struct clf_kv_pages p = open_pages(4, 4, UINT64_C(5) << 16);
    uint64_t first = new_seq(&p, 0), id;
    struct clf_kv_seq *s;
    cr_assert_eq(clf_seq_free(&p, first), CLINFER_OK);
    p.seq[0].generation = CLF_GENERATIONS - 1;
    id = new_seq(&p, 0);
    cr_assert_eq(clf_seq_free(&p, id), CLINFER_OK);
    cr_assert_eq(p.seq[0].generation, 0, "generations go round");
    p.seq[0].generation = 4;
    id = new_seq(&p, 0);
    cr_assert_eq(clf_seq_free(&p, id), CLINFER_OK);
    expect_sound(&p);
    id = new_seq(&p, 0);
    cr_assert_neq(id, first);
    cr_assert_eq(p.num_slots, 2, "the slot is used again");
    cr_assert_eq(clf_seq_find(&p, first, false, &s), CLINFER_ERR_ARGUMENT);
    clf_pages_close(&p);
}

#define BREAK(what, word)                                                                                    \
    do {                                                                                                     \
        struct clf_kv_pages p = open_pages(6, 2, 3);                                                         \
        const uint64_t id_[2] = { new_seq(&p, 3), new_seq(&p, 2) };                                          \
        char error_[256];                                                                                    \
        cr_assert_eq(clf_seq_free(&p, new_seq(&p, 1)), CLINFER_OK);                                          \
        (void) id_;                                                                                          \
        expect_sound(&p);                                                                                    \
        what;                                                                                                \
        cr_assert_not(clf_pages_check(&p, error_, sizeof error_), #what " is not seen");                     \
        cr_assert(strstr(error_, word), #what ": %s", error_);                                               \
        cr_assert_not(clf_pages_check(&p, NULL, 0));                                                         \
        clf_pages_close(&p);                                                                                 \
    } while (0)

// The check sees each way in which the books can be wrong.
Test(kv_pages_edges, check_sees_contradictions)
{
    BREAK(p.seq[0].page[0] = p.seq[1].page[0], "held");
    BREAK(p.seq[0].page[0] = 6, "page 6 of 6");
    BREAK(p.refs[p.seq[0].page[0]] = 2, "counted 2");
    BREAK(p.refs[p.seq[0].page[0]] = 0, "counted 0");
    BREAK(p.num_free--, "are not 6");
    BREAK(p.free[0] = p.free[1], "free twice");
    BREAK(p.free[0] = p.seq[0].page[0], "free and held");
    BREAK(p.seq[0].length = 5, "2 pages of 2 for 5 tokens");
    BREAK(p.seq[0].length = -1, "-1 tokens");
    BREAK(p.seq[0].fresh = 1, "in batch 0x0");
    BREAK(p.seq[2].length = 1, "freed");
    BREAK(p.num_seqs++, "sequences alive");
    BREAK(p.num_free_slots--, "slots free");
    BREAK(p.free_slot[0] = 1, "slot 1 is free and used");
}
