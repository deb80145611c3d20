// SPDX-License-Identifier: Apache-2.0
// Pages and sequences of a pool without a device: 100,000 random operations beside a model that only counts,
// and the edges one by one.
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kv_pages.h"

TestSuite(kv_pages, .timeout = 60);

enum { PAGES = 61, PAGE_SIZE = 3, SEQS = 20, BATCHES = 3, OPERATIONS = 100000, FORGOTTEN = 64 };

struct model_seq {
    uint64_t id; // 0: none
    int64_t length, fresh;
    int batch; // -1: none
    uint32_t page[PAGES];
    int64_t pages;
};

struct model {
    struct clf_kv_pages p;
    struct model_seq seq[SEQS];
    struct {
        int64_t n; // -1: not open
        uint32_t slot[SEQS];
    } batch[BATCHES];
    uint64_t freed[FORGOTTEN];
    int num_freed;
    uint64_t random;
    long refused, full;
};

static int64_t below(struct model *m, int64_t n)
{
    m->random = m->random * 6364136223846793005u + 1442695040888963407u;
    return (int64_t) ((m->random >> 33) % (uint64_t) n);
}

static int64_t pages_for(int64_t tokens)
{
    return (tokens + PAGE_SIZE - 1) / PAGE_SIZE;
}

static int64_t model_free(const struct model *m)
{
    int64_t n = PAGES;
    for (int i = 0; i < SEQS; i++)
        n -= pages_for(m->seq[i].length + m->seq[i].fresh);
    return n;
}

// The books agree with the model, each page belongs to one, and those that a sequence had it still has.
static void compare(struct model *m, long step)
{
    char error[256];
    int owner[PAGES] = { 0 };
    uint32_t live = 0;
    cr_assert(clf_pages_check(&m->p, error, sizeof error), "operation %ld: %s", step, error);
    cr_assert_eq(m->p.num_free, model_free(m), "operation %ld: %u free pages, want %lld", step, m->p.num_free,
                 (long long) model_free(m));
    for (int i = 0; i < SEQS; i++) {
        struct model_seq *s = &m->seq[i];
        struct clf_kv_seq *got;
        if (!s->id)
            continue;
        live++;
        cr_assert_eq(clf_seq_find(&m->p, s->id, false, &got), CLINFER_OK);
        cr_assert(got->length == s->length && got->fresh == s->fresh && !got->batch == (s->batch < 0),
                  "operation %ld: a sequence of %lld tokens has %lld", step, (long long) s->length,
                  (long long) got->length);
        const int64_t want = pages_for(s->length + s->fresh);
        cr_assert_eq(got->num_pages, want);
        const int64_t kept = want < s->pages ? want : s->pages;
        cr_assert(!kept || !memcmp(got->page, s->page, (size_t) kept * sizeof s->page[0]),
                  "operation %ld: pages moved", step);
        for (int64_t c = 0; c < want; c++)
            cr_assert_eq(owner[got->page[c]]++, 0, "operation %ld: a page of two", step);
        if (want)
            memcpy(s->page, got->page, (size_t) want * sizeof s->page[0]);
        s->pages = want;
    }
    cr_assert_eq(m->p.num_seqs, live);
}

static void expect(struct model *m, clinfer_status got, clinfer_status want, long step, const char *what)
{
    cr_assert_eq(got, want, "operation %ld, %s: %s, want %s (%s)", step, what, clinfer_status_str(got),
                 clinfer_status_str(want), m->p.error);
    m->refused += want == CLINFER_ERR_ARGUMENT;
    m->full += want == CLINFER_ERR_PAGES;
}

// An id that is none: freed long ago, another pool's, or made up.
static uint64_t wrong_id(struct model *m)
{
    const uint64_t good =
        m->num_freed ? m->freed[below(m, m->num_freed < FORGOTTEN ? m->num_freed : FORGOTTEN)] : 0;
    return below(m, 2)   ? good
           : below(m, 2) ? good ^ (uint64_t) 1 << (40 + below(m, 24))
                         : (uint64_t) below(m, 99);
}

static void create_or_free(struct model *m, struct model_seq *s, long step)
{
    if (!s->id) {
        *s = (struct model_seq){ .batch = -1 };
        expect(m, clf_seq_create(&m->p, &s->id), CLINFER_OK, step, "create");
        return;
    }
    const bool busy = s->batch >= 0;
    expect(m, clf_seq_free(&m->p, s->id), busy ? CLINFER_ERR_ARGUMENT : CLINFER_OK, step, "free");
    if (busy)
        return;
    expect(m, clf_seq_free(&m->p, s->id), CLINFER_ERR_ARGUMENT, step, "free again");
    m->freed[m->num_freed++ % FORGOTTEN] = s->id;
    *s = (struct model_seq){ .batch = -1 };
}

static void change_length(struct model *m, struct model_seq *s, long step)
{
    const int64_t n = below(m, 4 * PAGE_SIZE) - 1, length = below(m, s->length + 3) - 1;
    if (!s->id || s->batch >= 0) {
        const uint64_t id = s->id ? s->id : wrong_id(m);
        expect(m, clf_seq_extend(&m->p, id, 1), CLINFER_ERR_ARGUMENT, step, "extend of none");
        expect(m, clf_seq_truncate(&m->p, id, 0), CLINFER_ERR_ARGUMENT, step, "truncate of none");
    } else if (below(m, 2)) {
        const bool fits = pages_for(s->length + n) - pages_for(s->length) <= model_free(m);
        expect(m, clf_seq_extend(&m->p, s->id, n),
               n < 0  ? CLINFER_ERR_ARGUMENT
               : fits ? CLINFER_OK
                      : CLINFER_ERR_PAGES,
               step, "extend");
        s->length += n >= 0 && fits ? n : 0;
    } else {
        const bool good = length >= 0 && length <= s->length;
        expect(m, clf_seq_truncate(&m->p, s->id, length), good ? CLINFER_OK : CLINFER_ERR_ARGUMENT, step,
               "truncate");
        s->length = good ? length : s->length;
    }
}

// Rows of a batch: some sequences, now and then one that may not be in it.
static void open_batch(struct model *m, int b, long step)
{
    uint64_t id[SEQS + 1];
    int64_t fresh[SEQS + 1], n = 0, lacking = 0;
    int row[SEQS + 1];
    clinfer_status want = CLINFER_OK;
    for (int i = 0; i < SEQS; i++)
        if (m->seq[i].id && (m->seq[i].batch < 0 || !below(m, 12)) && below(m, 2)) {
            row[n] = i;
            id[n] = m->seq[i].id;
            fresh[n] = below(m, 3) ? below(m, 3) : below(m, 3 * PAGE_SIZE);
            lacking += pages_for(m->seq[i].length + fresh[n]) - pages_for(m->seq[i].length);
            want = m->seq[i].batch >= 0 ? CLINFER_ERR_ARGUMENT : want;
            n++;
        }
    if (n < SEQS && !below(m, 8)) {
        row[n] = -1;
        id[n] = n && below(m, 2) ? id[below(m, n)] : wrong_id(m);
        fresh[n++] = 0;
        want = CLINFER_ERR_ARGUMENT;
    }
    want = !want && lacking > model_free(m) ? CLINFER_ERR_PAGES : want;
    uint32_t slot[SEQS + 1];
    expect(m, clf_pages_reserve(&m->p, 1000 + (uint64_t) b, n, id, fresh, slot), want, step, "reserve");
    if (want)
        return;
    m->batch[b].n = n;
    memcpy(m->batch[b].slot, slot, (size_t) n * sizeof slot[0]);
    for (int64_t i = 0; i < n; i++) {
        m->seq[row[i]].batch = b;
        m->seq[row[i]].fresh = fresh[i];
    }
}

static void settle_batch(struct model *m, int b)
{
    const bool commit = below(m, 3) != 0;
    clf_pages_settle(&m->p, m->batch[b].n, m->batch[b].slot, commit);
    m->batch[b].n = -1;
    for (int i = 0; i < SEQS; i++)
        if (m->seq[i].id && m->seq[i].batch == b) {
            m->seq[i].length += commit ? m->seq[i].fresh : 0;
            m->seq[i].fresh = 0;
            m->seq[i].batch = -1;
        }
}

Test(kv_pages, random_operations)
{
    static struct model m;
    m.random = 5;
    cr_assert_eq(clf_pages_init(&m.p, PAGES, PAGE_SIZE, 0x1234567890ABCDEFu), CLINFER_OK);
    for (int i = 0; i < SEQS; i++)
        m.seq[i].batch = -1;
    for (int b = 0; b < BATCHES; b++)
        m.batch[b].n = -1;
    for (long step = 0; step < OPERATIONS; step++) {
        struct model_seq *s = &m.seq[below(&m, SEQS)];
        const int b = (int) below(&m, BATCHES), what = (int) below(&m, 8);
        if (what == 0)
            create_or_free(&m, s, step);
        else if (what < 3)
            change_length(&m, s, step);
        else if (m.batch[b].n < 0)
            open_batch(&m, b, step);
        else if (what < 6)
            settle_batch(&m, b);
        compare(&m, step);
    }
    cr_assert(m.refused > 5000 && m.full > 1000, "only %ld calls refused, and %ld for lack of pages",
              m.refused, m.full);
    clf_pages_close(&m.p);
}
