// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_KV_PREFIX_H_
#define CLINFER_KV_PREFIX_H_

#include <clinfer/kv_pool.h>

CLINFER_API_BEGIN

// Sequences of a pool that share pages: prompts that begin alike, and forks.
//
// Once a page is full and the pool knows the ids of its tokens and of all before it, it is found again by
// them. It stays when its last sequence gives it back, as a cached page, until a page is wanted and none is
// free; then the cached ones go, those given back longest ago first, the end of a prefix before its start.
// A serving loop needs two lines for it:
//
//   clinfer_kv_seq_match(pool, clinfer_kv_match_params(.tokens = prompt, .count = n), &seq, &length);
//   ... tokens length .. n - 1 through the model, and each step's batch with .tokens ...
//
// Pages are looked for by a hash of all tokens up to their end, of the pool's shape and salt, and of the
// sequence's salt, and then by the tokens themselves: pages whose hashes are equal are not taken for each
// other. A page that fills up with the tokens of one that can be found is given up for that one, so
// clinfer_kv_seq_pages may name another page after a commit. Pages are found whole: a prefix of S - 1 tokens
// is not. Errors, threads and names: see kv_pool.h. Source: PagedAttention (Kwon et al. 2023); the tree of
// prefixes: SGLang (Zheng et al. 2024).

struct clinfer_kv_match_params {
    const uint32_t *tokens; // ids
    int64_t count;
    // What rows depend on beyond the pool's salt and the tokens, an adapter or an image say; 0: nothing. The
    // sequence keeps it, as do its forks.
    uint64_t salt;
    int whole; // 1: all tokens may be found; 0: all but the last, so that a step has one to compute
};
#define clinfer_kv_match_params(...) (&(struct clinfer_kv_match_params){ __VA_ARGS__ })

// A new sequence that holds the longest prefix of these tokens which the pool has, *length tokens, in one
// step: nothing can take its pages in between. Where all but the last token are found and that is in a full
// page, its step copies the page (kv_pool.h). 0 tokens: an empty one, as clinfer_kv_seq_create makes, with
// that salt. What stored the rows has been committed, so what waits for a later batch's `ready` reads them
// whole; a sequence that the program stored itself (extend) is found from set_tokens on, and its rows have to
// be there for what is enqueued after that. Errors: ERR_ARGUMENT, ERR_MEMORY; *seq is 0.
CLINFER_API clinfer_status clinfer_kv_seq_match(clinfer_kv_pool *pool,
                                                const struct clinfer_kv_match_params *params,
                                                clinfer_kv_seq *seq, int64_t *length);

// The ids of the first `count` tokens of a sequence in no open batch, where no batch had them (rows stored
// after extend): it is as if their batches had. ERR_ARGUMENT: more than it has, or not the ids known already.
CLINFER_API clinfer_status clinfer_kv_seq_set_tokens(clinfer_kv_pool *pool, clinfer_kv_seq seq,
                                                     const uint32_t *tokens, int64_t count);
// What is known of them: *count ids, from the first token on, the first `capacity` into tokens. Those of an
// open batch are not among them.
CLINFER_API clinfer_status clinfer_kv_seq_tokens(clinfer_kv_pool *pool, clinfer_kv_seq seq, uint32_t *tokens,
                                                 int64_t capacity, int64_t *count);

// A new sequence of the same tokens that shares all pages, the partly filled one too. Whichever of the two
// appends to that first gets a copy of it then (kv_pool.h), the last one left has the page for itself. The
// source is in no open batch; it may then be truncated or freed.
CLINFER_API clinfer_status clinfer_kv_seq_fork(clinfer_kv_pool *pool, clinfer_kv_seq seq,
                                               clinfer_kv_seq *fork);

// Forgets all prefixes and all ids of tokens: cached pages become free, and sequences that are there keep
// theirs, but are found no more. For when what stored the rows has changed.
CLINFER_API void clinfer_kv_pool_forget(clinfer_kv_pool *pool);

CLINFER_API_END

#endif
