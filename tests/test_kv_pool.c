// SPDX-License-Identifier: Apache-2.0
// A pool's views and tensors under the operations: the same bits as on a plain cache, in one buffer and in
// one a layer.
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "calls_fixture.h"
#include "layer_use.h"
#include "pool_rig.h"

TestSuite(kv_pool, .timeout = 120);

static clinfer_kv_pool *pool_of(clinfer_ctx *ctx, const struct clinfer_kv_pool_params *params)
{
    clinfer_kv_pool *pool;
    char error[512];
    const clinfer_status st = clinfer_kv_pool_create(&pool, ctx, params);
    clinfer_ctx_error(ctx, error, sizeof error);
    cr_assert_eq(st, CLINFER_OK, "%s", error);
    cr_assert_eq(pool_poison(pool, clinfer_ctx_queue(ctx), RIG_NAN), CL_SUCCESS);
    return pool;
}

static clinfer_kv_pool *new_pool(clinfer_ctx *ctx, const char *op, int64_t pages)
{
    const struct clinfer_kv_pool_params params = pool_params(op, pages);
    return pool_of(ctx, &params);
}

static void expect_sound(clinfer_kv_pool *pool)
{
    char error[256];
    cr_assert(clinfer_kv_pool_check(pool, error, sizeof error), "%s", error);
}

#define OK(call)                                                                                             \
    do {                                                                                                     \
        char error_[512];                                                                                    \
        const clinfer_status st_ = (clinfer_status) (call);                                                  \
        clinfer_ctx_error(ctx, error_, sizeof error_);                                                       \
        cr_assert_eq(st_, CLINFER_OK, #call ": %s: %s", clinfer_status_str(st_), error_);                    \
    } while (0)

// An op over the pool's pages beside the same on a cache whose pages lie in order.
static void run_beside_plain(clinfer_ctx *ctx, clinfer_kv_pool *pool, const char *op, int64_t layer, bool v,
                             const struct rig_batch *given)
{
    struct rig_batch batch = given ? *given : rig_default, plain_batch = batch;
    struct pool_rig p;
    struct rig plain;
    cl_command_queue queue = clinfer_ctx_queue(ctx);
    plain_batch.contiguous = true;
    rig_make(&plain, op, &plain_batch);
    OK(rig_run(&plain, ctx));
    OK(pool_rig_make(&p, pool, op, &batch));
    p.v = v;
    OK(rig_open(&p.r, clinfer_ctx_cl_context(ctx)));
    OK(rig_upload(&p.r, queue));
    OK(pool_rig_open(&p, queue, layer));
    OK(pool_rig_put_rows(&p, queue));
    OK(p.r.op->run(ctx, &p.r.params, 0, NULL, NULL));
    OK(rig_download(&p.r, queue));
    OK(pool_rig_get_rows(&p, queue));
    cr_assert(rig_equal(&plain, &p.r), "%s", plain.note);
    const size_t strays = pool_rig_strays(&p, queue, RIG_NAN);
    cr_assert_eq(strays, 0, "%s: %zu bytes written outside the rows", op, strays);
    OK(clinfer_kv_batch_commit(pool, p.batch, 0, NULL));
    for (int b = 0; b < RIG_REQUESTS; b++) {
        int64_t length;
        OK(clinfer_kv_seq_length(pool, p.seq[b], &length));
        cr_assert_eq(length, batch.cached[b] + batch.fresh[b]);
    }
    expect_sound(pool);
    pool_rig_free(&p);
    rig_free(&plain);
}

Test(kv_pool, operations_on_one_buffer)
{
    clinfer_ctx *ctx = open_ctx(NULL);
    for (EACH_CACHE_OP(i)) {
        struct clinfer_kv_pool_info info;
        if (op_descs[i].kv_v) // the rig has rows of K only
            continue;
        clinfer_kv_pool *pool = new_pool(ctx, op_descs[i].name, 9);
        clinfer_kv_pool_info(pool, &info);
        cr_assert_eq(info.num_buffers, 1);
        run_beside_plain(ctx, pool, op_descs[i].name, i % POOL_LAYERS, false, NULL);
        clinfer_kv_pool_destroy(&pool);
        cr_assert_null(pool);
    }
    clinfer_ctx_destroy(&ctx);
}

// V's plane of two, K beside a narrower V in a narrower type, V beside a wider K: one after another, the rest
// untouched.
Test(kv_pool, planes_of_their_own)
{
    static const struct {
        int64_t head_size, v_head_size;
        clinfer_dtype dtype, v_dtype;
        bool v;
    } list[] = { { POOL_ROW, 0, CLINFER_F32, 0, true },
                 { POOL_ROW, 24, CLINFER_F32, CLINFER_F16, false },
                 { 56, POOL_ROW, CLINFER_F16, CLINFER_F32, true } };
    clinfer_ctx *ctx = open_ctx(NULL);
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        struct clinfer_kv_pool_params params = pool_params("rms_norm_kv_cache", 9);
        params.head_size = list[i].head_size;
        params.v_head_size = list[i].v_head_size;
        params.dtype = list[i].dtype;
        params.v_dtype = list[i].v_dtype;
        clinfer_kv_pool *pool = pool_of(ctx, &params);
        run_beside_plain(ctx, pool, "rms_norm_kv_cache", 1, list[i].v, NULL);
        clinfer_kv_pool_destroy(&pool);
    }
    clinfer_ctx_destroy(&ctx);
}

// A device whose largest allocation is smaller than the pool; then one that is smaller than a layer.
Test(kv_pool, operations_on_a_buffer_a_layer)
{
    const struct layer_control *layer;
    LAYER_OR_SKIP(layer);
    clinfer_ctx *ctx = open_ctx(NULL), *small;
    layer->lie("small_alloc");
    small = open_ctx(clinfer_ctx_queue(ctx));
    layer->lie(NULL);
    for (EACH_CACHE_OP(i)) {
        struct clinfer_kv_pool_info info;
        if (op_descs[i].kv_v) // the rig has rows of K only
            continue;
        const bool mla = !strncmp(op_descs[i].name, "mla", 3);
        clinfer_kv_pool *pool = new_pool(small, op_descs[i].name, mla ? 20 : 10);
        clinfer_kv_pool_info(pool, &info);
        cr_assert_eq(info.num_buffers, POOL_LAYERS);
        cr_assert_neq(clinfer_kv_pool_layer(pool, 0).mem, clinfer_kv_pool_layer(pool, 1).mem);
        run_beside_plain(ctx, pool, op_descs[i].name, (i + 1) % POOL_LAYERS, false, NULL);
        clinfer_kv_pool_destroy(&pool);
        char error[512];
        const struct clinfer_kv_pool_params large = pool_params(op_descs[i].name, mla ? 22 : 11);
        cr_assert_eq(clinfer_kv_pool_create(&pool, small, &large), CLINFER_ERR_UNSUPPORTED);
        cr_assert_null(pool);
        clinfer_ctx_error(small, error, sizeof error);
        cr_assert(strstr(error, "16896 bytes a layer") && strstr(error, "at most 16384"), "%s", error);
    }
    clinfer_ctx_destroy(&small);
    clinfer_ctx_destroy(&ctx);
}

// Pages full of NaN, freed, given again, one token written into them: decoded as if they had been zero.
Test(kv_pool, freed_page_of_nan)
{
    const struct rig_batch one = { .fresh = { 1, 0, 0 }, .page_size = 4, .columns = 4, .freqs = RIG_FREQS };
    clinfer_ctx *ctx = open_ctx(NULL);
    clinfer_kv_pool *pool = new_pool(ctx, "mla_decode_branch", 2);
    clinfer_kv_seq seq, again;
    uint32_t old, now;
    int64_t count;
    OK(clinfer_kv_seq_create(pool, &seq));
    OK(clinfer_kv_seq_extend(pool, seq, 2 * POOL_PAGE));
    OK(clinfer_kv_seq_pages(pool, seq, &old, 1, &count));
    cr_assert_eq(count, 2);
    OK(pool_poison(pool, clinfer_ctx_queue(ctx), RIG_NAN));
    OK(clinfer_kv_seq_free(pool, seq));
    OK(clinfer_kv_seq_create(pool, &again));
    OK(clinfer_kv_seq_extend(pool, again, 1));
    OK(clinfer_kv_seq_pages(pool, again, &now, 1, &count));
    cr_assert_eq(old, now, "the page is not the one that was freed");
    OK(clinfer_kv_seq_free(pool, again));
    run_beside_plain(ctx, pool, "mla_decode_branch", 1, false, &one);
    clinfer_kv_pool_destroy(&pool);
    clinfer_ctx_destroy(&ctx);
}

static void read_words(clinfer_ctx *ctx, const clinfer_tensor *t, int64_t n, cl_uint *words)
{
    cr_assert_eq(clEnqueueReadBuffer(clinfer_ctx_queue(ctx), t->mem, CL_TRUE, t->offset,
                                     (size_t) n * sizeof *words, words, 0, NULL, NULL),
                 CL_SUCCESS);
}

// What stands on the device, word for word: a row without a token, a new sequence, a page that is just full.
Test(kv_pool, tensors_of_a_batch)
{
    static const int64_t cached[4] = { 8, 3, 0, 0 }, fresh[4] = { 0, 6, 4, 0 };
    static const cl_uint offsets[5] = { 0, 0, 6, 10, 10 }, lengths[4] = { 8, 3, 0, 0 };
    static const int64_t held[4] = { 2, 3, 1, 0 };
    clinfer_ctx *ctx = open_ctx(NULL);
    clinfer_kv_pool *pool = new_pool(ctx, "rms_norm_kv_cache", 9);
    struct clinfer_kv_batch_info info;
    clinfer_kv_pool_batch batch;
    clinfer_kv_seq seq[4];
    cl_uint words[16];
    uint32_t pages[3];
    int64_t count;
    for (int b = 0; b < 4; b++) {
        OK(clinfer_kv_seq_create(pool, &seq[b]));
        OK(clinfer_kv_seq_extend(pool, seq[b], cached[b]));
    }
    OK(clinfer_kv_batch_create(pool, clinfer_kv_batch_params(.num_seqs = 4, .seqs = seq, .new_tokens = fresh),
                               &batch));
    OK(clinfer_kv_batch_info(pool, batch, &info));
    cr_assert(info.num_seqs == 4 && info.total_tokens == 10 && info.max_context == 9);
    cr_assert(info.tensors.lookup_table.shape[0] == 4 && info.tensors.lookup_table.shape[1] == 3);
    read_words(ctx, &info.tensors.input_row_offsets, 5, words);
    cr_assert(!memcmp(words, offsets, sizeof offsets), "input_row_offsets");
    read_words(ctx, &info.tensors.cache_lengths, 4, words);
    cr_assert(!memcmp(words, lengths, sizeof lengths), "cache_lengths");
    read_words(ctx, &info.tensors.lookup_table, 12, words);
    OK(clinfer_kv_batch_commit(pool, batch, 0, NULL));
    for (int b = 0; b < 4; b++) {
        OK(clinfer_kv_seq_pages(pool, seq[b], pages, 3, &count));
        cr_assert_eq(count, held[b]);
        for (int c = 0; c < 3; c++)
            cr_assert_eq(words[b * 3 + c], c < count ? pages[c] : 0xFFFFFFFFu, "row %d, column %d", b, c);
    }
    OK(clinfer_kv_batch_create(pool, clinfer_kv_batch_params(.num_seqs = 0), &batch));
    OK(clinfer_kv_batch_info(pool, batch, &info));
    read_words(ctx, &info.tensors.input_row_offsets, 1, words);
    cr_assert(words[0] == 0 && info.tensors.input_row_offsets.shape[0] == 1 && info.total_tokens == 0);
    clinfer_kv_pool_destroy(&pool); // with a batch open
    clinfer_ctx_destroy(&ctx);
}
