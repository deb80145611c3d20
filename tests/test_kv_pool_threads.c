// SPDX-License-Identifier: Apache-2.0
// One pool from several threads: requests that begin alike, forks, a file that is saved and loaded meanwhile.
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calls_fixture.h"
#include "pool_rig.h"

TestSuite(kv_pool_threads, .timeout = 120);

enum { THREADS = 4, ROUNDS = 60, PAGES = 40, PROMPT = 10 };

struct user {
    clinfer_kv_pool *pool;
    char path[64];
    int number, rounds; // rounds: that came to their end
    long found;
};

// A request: its prompt in one step, a fork that goes another way, then both end. False: no pages just now.
static bool request(struct user *u, uint32_t *tokens)
{
    clinfer_kv_seq seq[2] = { 0, 0 };
    clinfer_kv_pool_batch batch = 0;
    int64_t length, fresh[2];
    bool good = !clinfer_kv_seq_match(u->pool, clinfer_kv_match_params(.tokens = tokens, .count = PROMPT),
                                      &seq[0], &length);
    fresh[0] = PROMPT - length;
    u->found += length;
    for (int step = 0; good && step < 2; step++) {
        good = !clinfer_kv_batch_create(u->pool,
                                        clinfer_kv_batch_params(.num_seqs = 1 + step, .seqs = seq,
                                                                .new_tokens = fresh,
                                                                .tokens = tokens + (step ? 0 : length)),
                                        &batch) &&
               !clinfer_kv_batch_commit(u->pool, batch, 0, NULL);
        fresh[0] = fresh[1] = 3;
        good = good && (step || !clinfer_kv_seq_fork(u->pool, seq[0], &seq[1]));
    }
    if (good && u->number == 0) {
        clinfer_kv_seq loaded;
        good = !clinfer_kv_seq_save(u->pool, seq[1], u->path) &&
               !clinfer_kv_seq_load(u->pool, u->path, &loaded) && !clinfer_kv_seq_free(u->pool, loaded);
    }
    for (int i = 0; i < 2; i++)
        if (seq[i] && clinfer_kv_seq_free(u->pool, seq[i]))
            abort();
    return good;
}

static void *serve(void *priv)
{
    struct user *u = priv;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        uint32_t tokens[PROMPT];
        for (uint32_t k = 0; k < PROMPT; k++)
            tokens[k] = k < 5 ? k : k * (i % 3 + 1);
        u->rounds += request(u, tokens);
    }
    return NULL;
}

Test(kv_pool_threads, requests)
{
    const struct clinfer_kv_pool_params params = pool_params("mla_decode_branch", PAGES);
    clinfer_ctx *ctx = open_ctx(NULL);
    struct clinfer_kv_pool_info info;
    struct user user[THREADS];
    pthread_t thread[THREADS];
    char error[256];
    clinfer_kv_pool *pool;
    cr_assert_eq(clinfer_kv_pool_create(&pool, ctx, &params), CLINFER_OK);
    for (int i = 0; i < THREADS; i++) {
        user[i] = (struct user){ .pool = pool, .number = i };
        snprintf(user[i].path, sizeof user[i].path, "/tmp/clinfer-threads-%ld", (long) getpid());
        cr_assert_eq(pthread_create(&thread[i], NULL, serve, &user[i]), 0);
    }
    for (int i = 0; i < 100; i++) {
        cr_assert(clinfer_kv_pool_check(pool, error, sizeof error), "%s", error);
        usleep(500);
    }
    int rounds = 0;
    long found = 0;
    for (int i = 0; i < THREADS; i++) {
        cr_assert_eq(pthread_join(thread[i], NULL), 0);
        rounds += user[i].rounds;
        found += user[i].found;
    }
    unlink(user[0].path);
    cr_assert(clinfer_kv_pool_check(pool, error, sizeof error), "%s", error);
    clinfer_kv_pool_info(pool, &info);
    cr_assert(info.num_seqs == 0 && info.num_batches == 0 && info.used_pages == 0 &&
                  info.free_pages + info.cached_pages == PAGES && info.hit_tokens >= (uint64_t) found,
              "%d sequences, %d pages in use", (int) info.num_seqs, (int) info.used_pages);
    cr_assert(rounds > THREADS * ROUNDS / 2 && found > rounds, "%d rounds, %ld tokens found", rounds, found);
    clinfer_kv_pool_destroy(&pool);
    clinfer_ctx_destroy(&ctx);
}
