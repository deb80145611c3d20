// SPDX-License-Identifier: Apache-2.0
#include "pages_model.h"
#include <criterion/criterion.h>
#include <string.h>

int64_t pages_for(int64_t tokens)
{
    return (tokens + PAGE_SIZE - 1) / PAGE_SIZE;
}

int model_holders(const struct model *m, uint32_t page)
{
    int n = 0;
    for (int i = 0; i < SEQS; i++) {
        for (int64_t c = 0; c < m->seq[i].pages; c++)
            n += m->seq[i].page[c] == page;
        n += m->seq[i].original == page + 1;
    }
    return n;
}

int64_t model_cached(const struct model *m)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < PAGES; i++)
        n += m->entry[i].there && !model_holders(m, i);
    return n;
}

static bool is_free(const struct model *m, uint32_t page)
{
    return !m->entry[page].there && !model_holders(m, page);
}

int64_t model_free(const struct model *m)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < PAGES; i++)
        n += is_free(m, i);
    return n;
}

static bool must_copy(const struct model *m, const struct model_seq *s, int64_t fresh)
{
    const uint32_t tail = s->page[s->length / PAGE_SIZE];
    return fresh && s->length % PAGE_SIZE && (m->entry[tail].there || model_holders(m, tail) > 1);
}

int64_t model_lacking(const struct model *m, const struct model_seq *s, int64_t fresh)
{
    return pages_for(s->length + fresh) - pages_for(s->length) + must_copy(m, s, fresh);
}

// Stands for all tokens up to a row.
static uint64_t row_of(const struct model_seq *s, int64_t i)
{
    uint64_t h = 1469598103934665603u ^ s->salt;
    for (int64_t k = 0; k <= i; k++)
        h = (h ^ (s->token[k] + 1)) * 1099511628211u;
    return h ? h : 1;
}

static bool below(const struct model_entry *e, const struct model_entry *parent)
{
    return e->there && e->salt == parent->salt && e->length > parent->length &&
           !memcmp(e->token, parent->token, (size_t) parent->length * sizeof e->token[0]);
}

// Of those that nobody holds and that nothing is below of, the one given back first.
static uint32_t victim(const struct model *m)
{
    uint32_t best = PAGES;
    for (uint32_t i = 0; i < PAGES; i++) {
        bool leaf = m->entry[i].there && !model_holders(m, i);
        for (uint32_t k = 0; leaf && k < PAGES; k++)
            leaf = !below(&m->entry[k], &m->entry[i]);
        if (leaf && (best == PAGES || m->entry[i].stamp < m->entry[best].stamp))
            best = i;
    }
    return best;
}

static void take(struct model *m, uint32_t page, long step)
{
    if (!model_free(m)) {
        cr_assert_eq(page, victim(m), "operation %ld: page %u is taken, not the oldest, %u", step,
                     (unsigned) page, (unsigned) victim(m));
        m->entry[page].there = false;
        m->evictions++;
    }
    cr_assert(is_free(m, page), "operation %ld: page %u is taken, but not free", step, (unsigned) page);
    for (int i = 0; i < PAGE_SIZE; i++)
        m->memory[page][i] = POISON;
    m->page_known[page] = 0;
}

static void gave(struct model *m, uint32_t page)
{
    if (!model_holders(m, page))
        m->entry[page].stamp = ++m->clock;
}

static void shrink(struct model *m, struct model_seq *s, int64_t keep)
{
    while (s->pages > keep)
        gave(m, s->page[--s->pages]);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

void model_reserve(struct model *m, struct model_seq *s, bool told, long step)
{
    const int64_t rest = s->length % PAGE_SIZE, tail = s->length / PAGE_SIZE;
    struct clf_kv_seq *got;
    cr_assert_eq(clf_seq_find(&m->p, s->id, false, &got), CLINFER_OK);
    if (must_copy(m, s, s->fresh)) {
        const uint32_t from = s->page[tail], to = got->page[tail];
        cr_assert_eq(got->original, from + 1, "operation %ld: no copy of page %u", step, (unsigned) from);
        take(m, to, step);
        memcpy(m->memory[to], m->memory[from], (size_t) rest * sizeof m->memory[0][0]);
        m->page_known[to] = least(m->page_known[from], rest);
        s->original = from + 1;
        s->page[tail] = to;
    } else if (s->fresh && rest) {
        m->page_known[s->page[tail]] = least(m->page_known[s->page[tail]], rest);
    }
    for (; s->pages < pages_for(s->length + s->fresh); s->pages++) {
        take(m, got->page[s->pages], step);
        s->page[s->pages] = got->page[s->pages];
    }
    for (int64_t i = s->length; i < s->length + s->fresh; i++)
        m->memory[s->page[i / PAGE_SIZE]][i % PAGE_SIZE] = row_of(s, i);
    s->told = told && s->fresh && s->known == s->length;
}

static void list(struct model *m, struct model_seq *s, int64_t first)
{
    for (int64_t i = first; (i + 1) * PAGE_SIZE <= s->known; i++) {
        const uint32_t page = s->page[i];
        struct model_entry e = { .there = true, .salt = s->salt, .length = (i + 1) * PAGE_SIZE };
        memcpy(e.token, s->token, (size_t) e.length * sizeof e.token[0]);
        uint32_t twin = 0;
        while (twin < PAGES &&
               !(m->entry[twin].there && m->entry[twin].salt == e.salt && m->entry[twin].length == e.length &&
                 !memcmp(m->entry[twin].token, e.token, sizeof e.token)))
            twin++;
        if (twin == page)
            continue;
        if (i && !m->entry[s->page[i - 1]].there)
            return;
        if (twin == PAGES) {
            m->entry[page] = e;
        } else if (model_holders(m, page) == 1) {
            s->page[i] = twin;
        } else {
            return;
        }
    }
}

void model_settle(struct model *m, struct model_seq *s, bool commit)
{
    const int64_t first = s->length / PAGE_SIZE;
    const uint32_t original = s->original;
    s->original = 0;
    if (commit) {
        s->length += s->fresh;
        s->known = s->told ? s->length : s->known;
        for (int64_t i = first; s->told && i < s->pages; i++)
            m->page_known[s->page[i]] = least(s->length - i * PAGE_SIZE, PAGE_SIZE);
        m->copies += original != 0;
        if (original)
            gave(m, original - 1);
        if (s->told)
            list(m, s, first);
    } else {
        shrink(m, s, pages_for(s->length));
        if (original)
            s->page[s->pages - 1] = original - 1;
    }
    s->fresh = 0;
    s->told = false;
    s->batch = -1;
}

void model_truncate(struct model *m, struct model_seq *s, int64_t length)
{
    s->length = length;
    s->known = least(s->known, length);
    shrink(m, s, pages_for(length));
}

void model_free_seq(struct model *m, struct model_seq *s)
{
    shrink(m, s, 0);
    *s = (struct model_seq){ .batch = -1 };
}

void model_fork(struct model *m, const struct model_seq *s, struct model_seq *fork)
{
    const uint64_t id = fork->id;
    (void) m;
    *fork = *s;
    fork->id = id;
}

void model_match(struct model *m, struct model_seq *s, const uint32_t *tokens, int64_t count, int64_t most)
{
    for (int64_t length = PAGE_SIZE; length <= count && s->pages * PAGE_SIZE < most; length += PAGE_SIZE) {
        uint32_t page = 0;
        while (page < PAGES &&
               !(m->entry[page].there && m->entry[page].salt == s->salt && m->entry[page].length == length &&
                 !memcmp(m->entry[page].token, tokens, (size_t) length * sizeof *tokens)))
            page++;
        if (page == PAGES)
            break;
        s->page[s->pages++] = page;
    }
    s->length = s->known = least(s->pages * PAGE_SIZE, most);
    memcpy(s->token, tokens, (size_t) s->length * sizeof *tokens);
    m->lookups += count > 0;
    m->lookup_tokens += (uint64_t) count;
    m->hit_tokens += (uint64_t) s->length;
}

void model_set_tokens(struct model *m, struct model_seq *s, int64_t count)
{
    for (int64_t i = 0; i * PAGE_SIZE < count; i++) {
        const int64_t n = least(count - i * PAGE_SIZE, PAGE_SIZE);
        int64_t *known = &m->page_known[s->page[i]];
        *known = *known > n ? *known : n;
    }
    s->known = s->known > count ? s->known : count;
    list(m, s, 0);
}

void model_forget(struct model *m)
{
    for (uint32_t i = 0; i < PAGES; i++) {
        m->entry[i].there = false;
        m->page_known[i] = 0;
    }
    for (int i = 0; i < SEQS; i++) {
        m->seq[i].known = 0;
        m->seq[i].told = false;
    }
}

static void compare_seq(struct model *m, const struct model_seq *s, long step)
{
    struct clf_kv_seq *got;
    cr_assert_eq(clf_seq_find(&m->p, s->id, false, &got), CLINFER_OK);
    cr_assert(got->length == s->length && got->fresh == s->fresh && !got->batch == (s->batch < 0),
              "operation %ld: a sequence of %lld tokens has %lld", step, (long long) s->length,
              (long long) got->length);
    cr_assert_eq(got->known, s->known, "operation %ld: %lld tokens known, want %lld", step,
                 (long long) got->known, (long long) s->known);
    cr_assert_eq(got->num_pages, s->pages);
    cr_assert(!s->pages || !memcmp(got->page, s->page, (size_t) s->pages * sizeof s->page[0]),
              "operation %ld: pages moved", step);
    uint64_t h = 1469598103934665603u ^ s->salt;
    for (int64_t i = 0; i < s->length; i++) {
        h = (h ^ (s->token[i] + 1)) * 1099511628211u;
        cr_assert_eq(m->memory[s->page[i / PAGE_SIZE]][i % PAGE_SIZE], h, "operation %ld: row %lld of %lld",
                     step, (long long) i, (long long) s->length);
        cr_assert(i >= s->known || clf_seq_token(&m->p, got, i) == s->token[i], "operation %ld: token %lld",
                  step, (long long) i);
    }
}

void model_compare(struct model *m, long step)
{
    char error[256];
    uint32_t live = 0;
    const int64_t cached = model_cached(m), free_pages = model_free(m);
    cr_assert(clf_pages_check(&m->p, error, sizeof error), "operation %ld: %s", step, error);
    cr_assert(m->p.num_free == free_pages && m->p.prefix.num_cached == cached,
              "operation %ld: %u free and %u cached pages, want %lld and %lld", step, m->p.num_free,
              m->p.prefix.num_cached, (long long) free_pages, (long long) cached);
    for (uint32_t i = 0; i < m->p.num_free; i++)
        memset(m->memory[m->p.free[i]], POISON, sizeof m->memory[0]);
    for (int i = 0; i < SEQS; i++)
        if (m->seq[i].id) {
            live++;
            compare_seq(m, &m->seq[i], step);
        }
    cr_assert_eq(m->p.num_seqs, live);
    cr_assert(m->p.lookups == m->lookups && m->p.lookup_tokens == m->lookup_tokens &&
                  m->p.hit_tokens == m->hit_tokens && m->p.prefix.evictions == m->evictions &&
                  m->p.copies == m->copies,
              "operation %ld: counts", step);
}
