// SPDX-License-Identifier: Apache-2.0
// The public functions of kv_prefix.h.
#include "kv_pool.h"
#include <clinfer/kv_prefix.h>
#include <inttypes.h>

clinfer_status clinfer_kv_seq_match(clinfer_kv_pool *pool, const struct clinfer_kv_match_params *params,
                                    clinfer_kv_seq *seq, int64_t *length)
{
    const struct clinfer_kv_match_params *p = params;
    *seq = 0;
    *length = 0;
    pthread_mutex_lock(&pool->lock);
    if (!p || p->count < 0 || p->count > UINT32_MAX || (p->count && !p->tokens))
        return clf_pool_leave(pool,
                              clf_pages_fail(&pool->pages, CLINFER_ERR_ARGUMENT,
                                             "a prefix of %" PRId64 " tokens, want 0 to %u and their ids",
                                             p ? p->count : 0, UINT32_MAX));
    const int64_t most = p->whole || !p->count ? p->count : p->count - 1;
    return clf_pool_leave(pool, clf_seq_match(&pool->pages, p->tokens, p->count, most, p->salt, seq, length));
}

clinfer_status clinfer_kv_seq_set_tokens(clinfer_kv_pool *pool, clinfer_kv_seq seq, const uint32_t *tokens,
                                         int64_t count)
{
    pthread_mutex_lock(&pool->lock);
    return clf_pool_leave(pool, clf_seq_set_tokens(&pool->pages, seq, tokens, count));
}

clinfer_status clinfer_kv_seq_tokens(clinfer_kv_pool *pool, clinfer_kv_seq seq, uint32_t *tokens,
                                     int64_t capacity, int64_t *count)
{
    struct clf_kv_seq *s;
    pthread_mutex_lock(&pool->lock);
    const clinfer_status st = clf_seq_find(&pool->pages, seq, false, &s);
    *count = st ? 0 : s->known;
    for (int64_t i = 0; i < *count && i < capacity; i++)
        tokens[i] = clf_seq_token(&pool->pages, s, i);
    return clf_pool_leave(pool, st);
}

clinfer_status clinfer_kv_seq_fork(clinfer_kv_pool *pool, clinfer_kv_seq seq, clinfer_kv_seq *fork)
{
    *fork = 0;
    pthread_mutex_lock(&pool->lock);
    return clf_pool_leave(pool, clf_seq_fork(&pool->pages, seq, fork));
}

void clinfer_kv_pool_forget(clinfer_kv_pool *pool)
{
    pthread_mutex_lock(&pool->lock);
    clf_pages_forget(&pool->pages);
    pthread_mutex_unlock(&pool->lock);
}
