// SPDX-License-Identifier: Apache-2.0
// What a pool refuses: an error with a text, and nothing changed.
#include <criterion/criterion.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "calls_fixture.h"
#include "pool_rig.h"

TestSuite(kv_pool_misuse, .timeout = 60);

enum { PAGES = 6, SEQS = 3 };

static clinfer_ctx *ctx;
static clinfer_kv_pool *pool, *other;
static clinfer_kv_seq seq[SEQS], foreign, freed;
static clinfer_kv_pool_batch open, foreign_open, ended;
static const int64_t zero[8], one[8] = { 1, 1, 1, 1, 1, 1, 1, 1 };

static void ok(clinfer_status st)
{
    char error[512];
    clinfer_ctx_error(ctx, error, sizeof error);
    cr_assert_eq(st, CLINFER_OK, "%s: %s", clinfer_status_str(st), error);
}

static clinfer_kv_pool_batch open_batch(clinfer_kv_pool *of, const clinfer_kv_seq *seqs, int64_t n)
{
    clinfer_kv_pool_batch batch;
    ok(clinfer_kv_batch_create(of, clinfer_kv_batch_params(.num_seqs = n, .seqs = seqs, .new_tokens = one),
                               &batch));
    return batch;
}

// Six pages of four tokens: seq[0] has 5 tokens, seq[1] 3 and one more in an open batch, seq[2] none.
static void set_up(void)
{
    struct clinfer_kv_pool_params params = pool_params("rms_norm_kv_cache", PAGES);
    ctx = open_ctx(NULL);
    ok(clinfer_kv_pool_create(&pool, ctx, &params));
    ok(clinfer_kv_pool_create(&other, ctx, &params));
    for (int i = 0; i < SEQS; i++)
        ok(clinfer_kv_seq_create(pool, &seq[i]));
    ok(clinfer_kv_seq_create(pool, &freed));
    ok(clinfer_kv_seq_create(other, &foreign));
    ok(clinfer_kv_seq_extend(pool, seq[0], 5));
    ok(clinfer_kv_seq_extend(pool, seq[1], 2));
    ok(clinfer_kv_seq_free(pool, freed));
    ended = open_batch(pool, &seq[1], 1);
    ok(clinfer_kv_batch_commit(pool, ended, 0, NULL));
    open = open_batch(pool, &seq[1], 1);
    foreign_open = open_batch(other, &foreign, 1);
}

static void tear_down(void)
{
    clinfer_kv_pool_destroy(&pool);
    clinfer_kv_pool_destroy(&pool); // NULL
    clinfer_kv_pool_destroy(&other);
    clinfer_ctx_destroy(&ctx);
}

struct state {
    struct clinfer_kv_pool_info info;
    int64_t length[SEQS], count[SEQS];
    uint32_t pages[SEQS][PAGES];
    struct clinfer_kv_batch_info batch;
};

static struct state state_of(void)
{
    struct state s;
    char error[256];
    memset(&s, 0, sizeof s);
    clinfer_kv_pool_info(pool, &s.info);
    for (int i = 0; i < SEQS; i++) {
        ok(clinfer_kv_seq_length(pool, seq[i], &s.length[i]));
        ok(clinfer_kv_seq_pages(pool, seq[i], s.pages[i], PAGES, &s.count[i]));
    }
    ok(clinfer_kv_batch_info(pool, open, &s.batch));
    cr_assert(clinfer_kv_pool_check(pool, error, sizeof error), "%s", error);
    return s;
}

// The call is refused with that status, the text has both words, and all is as it was.
#define REFUSED(call, status, a, b)                                                                          \
    do {                                                                                                     \
        const struct state before_ = state_of();                                                             \
        char error_[512];                                                                                    \
        const clinfer_status st_ = (call);                                                                   \
        cr_assert_eq((int) st_, (int) (status), #call ": %s", clinfer_status_str(st_));                      \
        clinfer_ctx_error(ctx, error_, sizeof error_);                                                       \
        cr_assert(strstr(error_, "kv_pool: ") && strstr(error_, a) && strstr(error_, b), #call ": %s",       \
                  error_);                                                                                   \
        const struct state after_ = state_of();                                                              \
        cr_assert(!memcmp(&before_.info, &after_.info, sizeof before_.info), #call);                         \
        cr_assert(!memcmp(before_.length, after_.length, sizeof before_.length), #call);                     \
        cr_assert(!memcmp(before_.pages, after_.pages, sizeof before_.pages), #call);                        \
        cr_assert(before_.batch.ready == after_.batch.ready, #call);                                         \
    } while (0)

static const char *hex(uint64_t id)
{
    static char text[2][32];
    static int turn;
    turn = !turn;
    snprintf(text[turn], sizeof text[0], "0x%" PRIx64, id);
    return text[turn];
}

#define ARGUMENT CLINFER_ERR_ARGUMENT

// Every way to name a sequence or a batch that is none, through every function that takes one.
Test(kv_pool_misuse, ids, .init = set_up, .fini = tear_down)
{
    const struct {
        uint64_t id;
        const char *why;
    } bad_seq[] = { { 0, "none of this pool's" },       { freed, "was freed" },
                    { foreign, "none of this pool's" }, { open, "none of this pool's" },
                    { ~seq[0], "none of this pool's" }, { seq[0] + 1000, "is not there" } },
      bad_batch[] = { { 0, "none of this pool's" },
                      { ended, "has ended" },
                      { foreign_open, "none of this pool's" },
                      { seq[0], "none of this pool's" },
                      { open + 1, "is not there" } };
    int64_t n;
    uint32_t page;
    struct clinfer_kv_batch_info info;
    clinfer_kv_pool_batch batch;
    for (size_t i = 0; i < sizeof bad_seq / sizeof bad_seq[0]; i++) {
        const uint64_t id = bad_seq[i].id, rows[2] = { seq[0], id };
        REFUSED(clinfer_kv_seq_free(pool, id), ARGUMENT, hex(id), bad_seq[i].why);
        REFUSED(clinfer_kv_seq_extend(pool, id, 1), ARGUMENT, hex(id), bad_seq[i].why);
        REFUSED(clinfer_kv_seq_truncate(pool, id, 0), ARGUMENT, hex(id), bad_seq[i].why);
        REFUSED(clinfer_kv_seq_length(pool, id, &n), ARGUMENT, hex(id), bad_seq[i].why);
        REFUSED(clinfer_kv_seq_pages(pool, id, &page, 1, &n), ARGUMENT, hex(id), bad_seq[i].why);
        REFUSED(clinfer_kv_batch_create(
                    pool, clinfer_kv_batch_params(.num_seqs = 2, .seqs = rows, .new_tokens = one), &batch),
                ARGUMENT, hex(id), bad_seq[i].why);
        cr_assert_eq(batch, 0);
    }
    for (size_t i = 0; i < sizeof bad_batch / sizeof bad_batch[0]; i++) {
        const uint64_t id = bad_batch[i].id;
        REFUSED(clinfer_kv_batch_info(pool, id, &info), ARGUMENT, hex(id), bad_batch[i].why);
        REFUSED(clinfer_kv_batch_commit(pool, id, 0, NULL), ARGUMENT, hex(id), bad_batch[i].why);
        REFUSED(clinfer_kv_batch_drop(pool, id, 0, NULL), ARGUMENT, hex(id), bad_batch[i].why);
        cr_assert_null(info.ready);
    }
}

#define BATCH(...)                                                                                           \
    clinfer_kv_batch_create(pool, clinfer_kv_batch_params(__VA_ARGS__), &(clinfer_kv_pool_batch){ 0 })

// A sequence in an open batch; one listed twice; numbers past the end; too few pages.
Test(kv_pool_misuse, values, .init = set_up, .fini = tear_down)
{
    const clinfer_kv_seq twice[2] = { seq[0], seq[0] }, all[SEQS] = { seq[0], seq[2], seq[1] };
    const int64_t negative[2] = { 1, -1 }, many[2] = { 3, 13 };
    REFUSED(clinfer_kv_seq_free(pool, seq[1]), ARGUMENT, hex(seq[1]), hex(open));
    REFUSED(clinfer_kv_seq_extend(pool, seq[1], 1), ARGUMENT, hex(seq[1]), hex(open));
    REFUSED(clinfer_kv_seq_truncate(pool, seq[1], 0), ARGUMENT, hex(seq[1]), hex(open));
    REFUSED(BATCH(.num_seqs = 3, .seqs = all, .new_tokens = one), ARGUMENT, hex(seq[1]), hex(open));
    REFUSED(BATCH(.num_seqs = 2, .seqs = twice, .new_tokens = zero), ARGUMENT, hex(seq[0]), "twice");
    REFUSED(BATCH(.num_seqs = 2, .seqs = all, .new_tokens = negative), ARGUMENT, "-1 new tokens",
            hex(seq[2]));
    REFUSED(BATCH(.num_seqs = -1), ARGUMENT, "-1 sequences", "want 0");
    REFUSED(BATCH(.num_seqs = 1, .seqs = all), ARGUMENT, "1 sequences", "arrays");
    REFUSED(BATCH(.num_seqs = 1, .new_tokens = one), ARGUMENT, "1 sequences", "arrays");
    REFUSED(clinfer_kv_batch_create(pool, NULL, &(clinfer_kv_pool_batch){ 0 }), ARGUMENT, "batch", "want");
    REFUSED(BATCH(.num_seqs = 2, .seqs = all, .new_tokens = many), CLINFER_ERR_PAGES,
            "16 new tokens want 4 pages", "of 6 are free");
    REFUSED(clinfer_kv_seq_extend(pool, seq[2], 13), CLINFER_ERR_PAGES, "4 pages", "3 of 6 are free");
    REFUSED(clinfer_kv_seq_extend(pool, seq[2], -1), ARGUMENT, "-1", hex(seq[2]));
    REFUSED(clinfer_kv_seq_truncate(pool, seq[0], 6), ARGUMENT, "length 6", "the 5 that");
    REFUSED(clinfer_kv_seq_truncate(pool, seq[0], -1), ARGUMENT, "length -1", "the 5 that");
    REFUSED(clinfer_kv_batch_commit(pool, open, 1, NULL), CL_INVALID_EVENT_WAIT_LIST, hex(open), "WAIT_LIST");
    REFUSED(clinfer_kv_batch_drop(pool, open, 1, NULL), CL_INVALID_EVENT_WAIT_LIST, hex(open), "WAIT_LIST");
}

// Views of layers that are none: zeroed, explained, and refused by an operation.
Test(kv_pool_misuse, layers, .init = set_up, .fini = tear_down)
{
    static const struct {
        int64_t layer;
        bool v, mla;
        const char *text;
    } bad[] = { { -1, false, false, "layer is -1, but the pool has 2" },
                { 2, false, false, "layer is 2, but the pool has 2" },
                { 2, true, false, "layer is 2" },
                { 0, true, true, "no V plane" } };
    struct clinfer_kv_pool_params params = pool_params("mla_decode_branch", PAGES);
    clinfer_kv_pool *mla;
    char error[512];
    ok(clinfer_kv_pool_create(&mla, ctx, &params));
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        clinfer_kv_pool *of = bad[i].mla ? mla : pool;
        const clinfer_kv_cache kv =
            bad[i].v ? clinfer_kv_pool_layer_v(of, bad[i].layer) : clinfer_kv_pool_layer(of, bad[i].layer);
        clinfer_ctx_error(ctx, error, sizeof error);
        cr_assert(strstr(error, bad[i].text), "%s", error);
        cr_assert(!kv.mem && !kv.num_pages && !kv.page_size);
        struct rig r;
        rig_make(&r, "rms_norm_kv_cache", NULL);
        r.params.norm.kv = kv;
        cr_assert_eq(r.op->compile(ctx, &r.params), CLINFER_ERR_SHAPE);
        rig_free(&r);
    }
    clinfer_kv_pool_destroy(&mla);
    struct clinfer_kv_pool_params none = params;
    none.page_size = 0;
    cr_assert_eq(clinfer_kv_pool_create(&mla, ctx, &none), CLINFER_ERR_SHAPE);
    clinfer_ctx_error(ctx, error, sizeof error);
    cr_assert(!mla && strstr(error, "kv_pool: page_size is 0"), "%s", error);
    cr_assert_eq(clinfer_kv_pool_create(&mla, ctx, NULL), ARGUMENT);
    cr_assert_null(mla);
}
