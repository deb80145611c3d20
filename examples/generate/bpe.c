// SPDX-License-Identifier: Apache-2.0
#include "bpe.h"

#include <stdlib.h>

// The tokens of a word so far, a list in the order of the word.
struct bpe_symbol {
    uint32_t id; // BPE_NONE: joined to the one before
    uint32_t previous, next;
};

// A pair that had a merge when it was seen; what has changed since shows in the ids.
struct bpe_candidate {
    uint32_t rank, at, left, right;
    uint32_t joined;
};

bool bpe_create(struct bpe *bpe, size_t num_merges, struct error *error)
{
    bpe->places = 2;
    while (bpe->places / 2 < num_merges)
        bpe->places *= 2;
    bpe->merges = malloc(bpe->places * sizeof *bpe->merges);
    if (!bpe->merges)
        return fail(error, "out of memory for %zu merges", num_merges);
    for (size_t i = 0; i < bpe->places; i++)
        bpe->merges[i].left = BPE_NONE;
    for (int i = 0; i < 256; i++)
        bpe->byte_token[i] = BPE_NONE;
    return true;
}

void bpe_destroy(struct bpe *bpe)
{
    free(bpe->merges);
    bpe->merges = NULL;
}

void bpe_scratch_free(struct bpe_scratch *scratch)
{
    free(scratch->symbols);
    free(scratch->heap);
    *scratch = (struct bpe_scratch){ 0 };
}

// The pair's place, or the free one where it would be.
static struct bpe_merge *find(const struct bpe *bpe, uint32_t left, uint32_t right)
{
    uint64_t hash = ((uint64_t) left << 32 | right) * UINT64_C(0x9e3779b97f4a7c15);
    size_t at = (size_t) (hash ^ hash >> 32) & (bpe->places - 1);
    while (bpe->merges[at].left != BPE_NONE &&
           (bpe->merges[at].left != left || bpe->merges[at].right != right))
        at = (at + 1) & (bpe->places - 1);
    return &bpe->merges[at];
}

bool bpe_add(struct bpe *bpe, struct bpe_merge merge)
{
    struct bpe_merge *place = find(bpe, merge.left, merge.right);
    if (place->left != BPE_NONE)
        return false;
    *place = merge;
    return true;
}

// *array for `count` entries at least; false where there is no memory, the array as it was.
static bool grow(void **array, size_t *capacity, size_t count, size_t entry)
{
    if (count <= *capacity)
        return true;
    const size_t larger = count > 2 * *capacity ? count : 2 * *capacity;
    void *moved = larger <= SIZE_MAX / entry ? realloc(*array, larger * entry) : NULL;
    if (moved) {
        *array = moved;
        *capacity = larger;
    }
    return moved != NULL;
}

bool token_list_push(struct token_list *tokens, uint32_t id, struct error *error)
{
    void *ids = tokens->ids;
    if (tokens->count == tokens->capacity &&
        !grow(&ids, &tokens->capacity, tokens->count + 64, sizeof *tokens->ids))
        return fail(error, "out of memory for %zu tokens", tokens->count + 1);
    tokens->ids = ids;
    tokens->ids[tokens->count++] = id;
    return true;
}

static bool before(const struct bpe_candidate *a, const struct bpe_candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->at < b->at;
}

// The pair of `at` and its next to the heap, where it has a merge: at most 3 n in a word of n bytes.
static void consider(const struct bpe *bpe, struct bpe_scratch *s, uint32_t at)
{
    const uint32_t next = s->symbols[at].next;
    if (next == BPE_NONE)
        return;
    const struct bpe_merge *m = find(bpe, s->symbols[at].id, s->symbols[next].id);
    if (m->left == BPE_NONE)
        return;
    const struct bpe_candidate c = { m->rank, at, m->left, m->right, m->joined };
    size_t i = s->heap_count++;
    for (; i && before(&c, &s->heap[(i - 1) / 2]); i = (i - 1) / 2)
        s->heap[i] = s->heap[(i - 1) / 2];
    s->heap[i] = c;
}

static struct bpe_candidate pop(struct bpe_scratch *s)
{
    const struct bpe_candidate top = s->heap[0], last = s->heap[--s->heap_count];
    size_t i = 0;
    for (size_t child = 1; child < s->heap_count; child = 2 * i + 1) {
        child += child + 1 < s->heap_count && before(&s->heap[child + 1], &s->heap[child]);
        if (!before(&s->heap[child], &last))
            break;
        s->heap[i] = s->heap[child];
        i = child;
    }
    s->heap[i] = last;
    return top;
}

static bool start(const struct bpe *bpe, const char *word, uint32_t n, struct bpe_scratch *s,
                  struct error *error)
{
    void *symbols = s->symbols, *heap = s->heap;
    const bool have = grow(&symbols, &s->symbol_capacity, n, sizeof *s->symbols) &&
                      grow(&heap, &s->heap_capacity, 3 * (size_t) n, sizeof *s->heap);
    s->symbols = symbols;
    s->heap = heap;
    if (!have)
        return fail(error, "out of memory for a word of %u bytes", n);
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t id = bpe->byte_token[(unsigned char) word[i]];
        if (id == BPE_NONE)
            return fail(error, "the byte 0x%02x has no token", (unsigned char) word[i]);
        s->symbols[i] = (struct bpe_symbol){ id, i ? i - 1 : BPE_NONE, i + 1 < n ? i + 1 : BPE_NONE };
    }
    s->heap_count = 0;
    for (uint32_t i = 0; i < n; i++)
        consider(bpe, s, i);
    return true;
}

static void join(const struct bpe *bpe, struct bpe_scratch *s, const struct bpe_candidate *c)
{
    struct bpe_symbol *left = &s->symbols[c->at];
    if (left->id != c->left || left->next == BPE_NONE || s->symbols[left->next].id != c->right)
        return; // one of the two has been joined to another
    struct bpe_symbol *right = &s->symbols[left->next];
    left->id = c->joined;
    left->next = right->next;
    right->id = BPE_NONE;
    if (left->next != BPE_NONE)
        s->symbols[left->next].previous = c->at;
    consider(bpe, s, c->at);
    if (left->previous != BPE_NONE)
        consider(bpe, s, left->previous);
}

bool bpe_encode(const struct bpe *bpe, const char *word, size_t size, struct bpe_scratch *scratch,
                struct token_list *tokens, struct error *error)
{
    if (!start(bpe, word, (uint32_t) size, scratch, error))
        return false;
    while (scratch->heap_count) {
        const struct bpe_candidate c = pop(scratch);
        join(bpe, scratch, &c);
    }
    for (uint32_t i = 0; i != BPE_NONE; i = scratch->symbols[i].next)
        if (!token_list_push(tokens, scratch->symbols[i].id, error))
            return false;
    return true;
}
