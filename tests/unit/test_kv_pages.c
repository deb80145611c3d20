// SPDX-License-Identifier: Apache-2.0
// Pages and sequences of a pool without a device: 100,000 random operations beside a model; fewer with hashes
// that collide.
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "pages_model.h"

TestSuite(kv_pages, .timeout = 60);

enum { OPERATIONS = 100000, FORGOTTEN = 64 };

struct play {
    struct model m;
    struct {
        int64_t n; // -1: not open
        uint32_t slot[SEQS];
        int row[SEQS];
    } batch[BATCHES];
    uint64_t freed[FORGOTTEN];
    int num_freed;
    uint64_t random;
    long refused, full;
};

static int64_t below(struct play *g, int64_t n)
{
    g->random = g->random * 6364136223846793005u + 1442695040888963407u;
    return (int64_t) ((g->random >> 33) % (uint64_t) n);
}

static void expect(struct play *g, clinfer_status got, clinfer_status want, long step, const char *what)
{
    cr_assert_eq(got, want, "operation %ld, %s: %s, want %s (%s)", step, what, clinfer_status_str(got),
                 clinfer_status_str(want), g->m.p.error);
    g->refused += want == CLINFER_ERR_ARGUMENT;
    g->full += want == CLINFER_ERR_PAGES;
}

static int64_t available(const struct play *g)
{
    return model_free(&g->m) + model_cached(&g->m);
}

// An id that is none: freed long ago, another pool's, or made up.
static uint64_t wrong_id(struct play *g)
{
    const uint64_t good =
        g->num_freed ? g->freed[below(g, g->num_freed < FORGOTTEN ? g->num_freed : FORGOTTEN)] : 0;
    return below(g, 2)   ? good
           : below(g, 2) ? good ^ (uint64_t) 1 << (40 + below(g, 24))
                         : (uint64_t) below(g, 99);
}

// Few tokens, so that prompts begin alike.
static void draw_tokens(struct play *g, uint32_t *tokens, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        tokens[i] = (uint32_t) !below(g, 4);
}

static void create(struct play *g, struct model_seq *s, long step)
{
    const struct model_seq *from = &g->m.seq[below(&g[0], SEQS)];
    uint32_t tokens[MAX_TOKENS];
    const int64_t count = below(g, 8 * PAGE_SIZE), most = count - (count && below(g, 2));
    *s = (struct model_seq){ .batch = -1 };
    if (from->id && below(g, 2)) {
        const bool busy = from->batch >= 0;
        uint64_t id = 0;
        expect(g, clf_seq_fork(&g->m.p, from->id, &id), busy ? CLINFER_ERR_ARGUMENT : CLINFER_OK, step,
               "fork");
        s->id = busy ? 0 : id;
        if (!busy)
            model_fork(&g->m, from, s);
    } else if (below(g, 4)) {
        int64_t length;
        draw_tokens(g, tokens, count);
        s->salt = (uint64_t) !below(g, 5);
        expect(g, clf_seq_match(&g->m.p, tokens, count, most, s->salt, &s->id, &length), CLINFER_OK, step,
               "match");
        model_match(&g->m, s, tokens, count, most);
        cr_assert_eq(length, s->length, "operation %ld: found %lld tokens, want %lld", step,
                     (long long) length, (long long) s->length);
    } else {
        expect(g, clf_seq_create(&g->m.p, &s->id), CLINFER_OK, step, "create");
    }
}

static void free_seq(struct play *g, struct model_seq *s, long step)
{
    const bool busy = s->batch >= 0;
    expect(g, clf_seq_free(&g->m.p, s->id), busy ? CLINFER_ERR_ARGUMENT : CLINFER_OK, step, "free");
    if (busy)
        return;
    expect(g, clf_seq_free(&g->m.p, s->id), CLINFER_ERR_ARGUMENT, step, "free again");
    g->freed[g->num_freed++ % FORGOTTEN] = s->id;
    model_free_seq(&g->m, s);
}

static void extend(struct play *g, struct model_seq *s, int64_t n, long step)
{
    const bool fits = n >= 0 && model_lacking(&g->m, s, n) <= available(g);
    uint32_t slot;
    expect(g, clf_pages_reserve(&g->m.p, 1, 1, &s->id, &n, NULL, &slot),
           n < 0  ? CLINFER_ERR_ARGUMENT
           : fits ? CLINFER_OK
                  : CLINFER_ERR_PAGES,
           step, "extend");
    if (!fits)
        return;
    draw_tokens(g, s->token + s->length, n);
    s->fresh = n;
    model_reserve(&g->m, s, false, step);
    clf_pages_settle(&g->m.p, 1, &slot, true);
    model_settle(&g->m, s, true);
}

// Now and then one wrong id among those that are known.
static void set_tokens(struct play *g, struct model_seq *s, long step)
{
    const int64_t count = below(g, s->length + 3), at = below(g, count + 1);
    uint32_t tokens[MAX_TOKENS];
    bool good = count <= s->length;
    memcpy(tokens, s->token, sizeof tokens);
    if (good && at < count && at % PAGE_SIZE < g->m.page_known[s->page[at / PAGE_SIZE]] && !below(g, 3)) {
        tokens[at] ^= 1;
        good = false;
    }
    expect(g, clf_seq_set_tokens(&g->m.p, s->id, tokens, count), good ? CLINFER_OK : CLINFER_ERR_ARGUMENT,
           step, "set_tokens");
    if (good)
        model_set_tokens(&g->m, s, count);
}

static void change(struct play *g, struct model_seq *s, long step)
{
    const int64_t n = below(g, 4 * PAGE_SIZE) - 1, length = below(g, s->length + 3) - 1;
    const int what = (int) below(g, 3);
    if (!s->id || s->batch >= 0) {
        const uint64_t id = s->id ? s->id : wrong_id(g);
        uint32_t slot;
        expect(g, clf_pages_reserve(&g->m.p, 1, 1, &id, (const int64_t[]){ 1 }, NULL, &slot),
               CLINFER_ERR_ARGUMENT, step, "extend of none");
        expect(g, clf_seq_truncate(&g->m.p, id, 0), CLINFER_ERR_ARGUMENT, step, "truncate of none");
        expect(g, clf_seq_set_tokens(&g->m.p, id, NULL, 0), CLINFER_ERR_ARGUMENT, step, "tokens of none");
    } else if (what == 0) {
        extend(g, s, n, step);
    } else if (what == 1) {
        set_tokens(g, s, step);
    } else {
        const bool good = length >= 0 && length <= s->length;
        expect(g, clf_seq_truncate(&g->m.p, s->id, length), good ? CLINFER_OK : CLINFER_ERR_ARGUMENT, step,
               "truncate");
        if (good)
            model_truncate(&g->m, s, length);
    }
}

// Rows of a batch: some sequences, now and then one that may not be in it.
static void open_batch(struct play *g, int b, long step)
{
    uint64_t id[SEQS + 1];
    int64_t fresh[SEQS + 1], n = 0, all = 0, lacking = 0;
    uint32_t tokens[SEQS * 3 * PAGE_SIZE], slot[SEQS + 1];
    const bool told = below(g, 4);
    clinfer_status want = CLINFER_OK;
    for (int i = 0; i < SEQS; i++)
        if (g->m.seq[i].id && (g->m.seq[i].batch < 0 || !below(g, 12)) && below(g, 2)) {
            g->batch[b].row[n] = i;
            id[n] = g->m.seq[i].id;
            fresh[n] = below(g, 3) ? below(g, 3) : below(g, 3 * PAGE_SIZE);
            lacking += model_lacking(&g->m, &g->m.seq[i], fresh[n]);
            want = g->m.seq[i].batch >= 0 ? CLINFER_ERR_ARGUMENT : want;
            all += fresh[n++];
        }
    if (n < SEQS && !below(g, 8)) {
        id[n] = n && below(g, 2) ? id[below(g, n)] : wrong_id(g);
        fresh[n++] = 0;
        want = CLINFER_ERR_ARGUMENT;
    }
    draw_tokens(g, tokens, all);
    want = !want && lacking > available(g) ? CLINFER_ERR_PAGES : want;
    expect(g, clf_pages_reserve(&g->m.p, 1000 + (uint64_t) b, n, id, fresh, told ? tokens : NULL, slot), want,
           step, "reserve");
    if (want)
        return;
    g->batch[b].n = n;
    memcpy(g->batch[b].slot, slot, (size_t) n * sizeof slot[0]);
    for (int64_t i = 0, first = 0; i < n; first += fresh[i++]) {
        struct model_seq *s = &g->m.seq[g->batch[b].row[i]];
        memcpy(s->token + s->length, tokens + first, (size_t) fresh[i] * sizeof *tokens);
        s->batch = b;
        s->fresh = fresh[i];
    }
    for (int64_t i = 0; i < n; i++) // whether a tail is shared does not depend on those before it
        model_reserve(&g->m, &g->m.seq[g->batch[b].row[i]], told, step);
}

static void settle_batch(struct play *g, int b)
{
    const bool commit = below(g, 3) != 0;
    clf_pages_settle(&g->m.p, g->batch[b].n, g->batch[b].slot, commit);
    for (int64_t i = g->batch[b].n - 1; i >= 0; i--)
        model_settle(&g->m, &g->m.seq[g->batch[b].row[i]], commit);
    g->batch[b].n = -1;
}

static void play(struct play *g, long operations, struct clf_hash keep)
{
    g->random = 5;
    cr_assert_eq(clf_pages_init(&g->m.p, PAGES, PAGE_SIZE, 0x1234567890ABCDEFu, "salt", 4), CLINFER_OK);
    g->m.p.prefix.keep = keep;
    for (int i = 0; i < SEQS; i++)
        g->m.seq[i].batch = -1;
    for (int b = 0; b < BATCHES; b++)
        g->batch[b].n = -1;
    for (long step = 0; step < operations; step++) {
        struct model_seq *s = &g->m.seq[below(g, SEQS)];
        const int b = (int) below(g, BATCHES), what = (int) below(g, 9);
        if (what == 0 && !below(g, 100)) {
            clf_pages_forget(&g->m.p);
            model_forget(&g->m);
        } else if (what < 2) {
            (s->id ? free_seq : create)(g, s, step);
        } else if (what < 4) {
            change(g, s, step);
        } else if (g->batch[b].n < 0) {
            open_batch(g, b, step);
        } else if (what < 7) {
            settle_batch(g, b);
        }
        model_compare(&g->m, step);
    }
    clf_pages_close(&g->m.p);
}

Test(kv_pages, random_operations)
{
    static struct play g;
    play(&g, OPERATIONS, (struct clf_hash){ UINT64_MAX, UINT64_MAX });
    cr_assert(g.refused > 5000 && g.full > 1000, "only %ld calls refused, and %ld for lack of pages",
              g.refused, g.full);
    cr_assert(g.m.hit_tokens > 5000 && g.m.evictions > 1000 && g.m.copies > 500,
              "only %ld tokens found, %ld pages evicted, %ld copied", (long) g.m.hit_tokens,
              (long) g.m.evictions, (long) g.m.copies);
}

// All hashes are equal, or there are four: tokens decide.
Test(kv_pages, colliding_hashes)
{
    static struct play g[2];
    play(&g[0], OPERATIONS / 10, (struct clf_hash){ 0, 0 });
    play(&g[1], OPERATIONS / 10, (struct clf_hash){ 1, 1 });
    cr_assert(g[0].m.hit_tokens > 500 && g[1].m.hit_tokens == g[0].m.hit_tokens);
}
