// SPDX-License-Identifier: Apache-2.0
// Pages that sequences share, on a device: the bits of a plain cache, copies before either appends, and what
// waits for what.
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calls_fixture.h"
#include "pool_rig.h"

TestSuite(kv_pool_prefix, .timeout = 120);

#define OK(call)                                                                                             \
    do {                                                                                                     \
        char error_[512] = "";                                                                               \
        const clinfer_status st_ = (clinfer_status) (call);                                                  \
        clinfer_ctx_error(ctx, error_, sizeof error_);                                                       \
        cr_assert_eq(st_, CLINFER_OK, #call ": %s: %s", clinfer_status_str(st_), error_);                    \
    } while (0)

static const uint32_t prompt[12] = { 3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8 };

static void expect_sound(clinfer_kv_pool *pool)
{
    char error[256];
    cr_assert(clinfer_kv_pool_check(pool, error, sizeof error), "%s", error);
}

static clinfer_kv_seq new_seq(clinfer_ctx *ctx, clinfer_kv_pool *pool, int64_t tokens)
{
    clinfer_kv_seq seq;
    OK(clinfer_kv_seq_create(pool, &seq));
    OK(clinfer_kv_seq_extend(pool, seq, tokens));
    return seq;
}

static uint32_t page_of(clinfer_ctx *ctx, clinfer_kv_pool *pool, clinfer_kv_seq seq, int64_t i)
{
    uint32_t pages[16];
    int64_t count;
    OK(clinfer_kv_seq_pages(pool, seq, pages, 16, &count));
    cr_assert(i < count && count <= 16);
    return pages[i];
}

// Where the f32 row of a token lies in layer `layer`.
static size_t row_at(clinfer_ctx *ctx, clinfer_kv_pool *pool, clinfer_kv_seq seq, int64_t layer, int64_t i)
{
    const clinfer_kv_cache kv = clinfer_kv_pool_layer(pool, layer);
    return kv.offset +
           (size_t) (page_of(ctx, pool, seq, i / POOL_PAGE) * kv.page_stride + i % POOL_PAGE * POOL_ROW) * 4;
}

// Three requests that begin alike: the second is a fork of the first, the third has two full pages by their
// tokens and goes back into the second of them. All append in one batch, and what was the tail is poisoned.
static void shared_beside_plain(const char *op, cl_command_queue_properties properties)
{
    const struct rig_batch batch = { .cached = { 9, 9, 6 },
                                     .fresh = { 1, 2, 1 },
                                     .page_size = POOL_PAGE,
                                     .columns = 4,
                                     .freqs = RIG_FREQS,
                                     .same_prefix = true,
                                     .poison = RIG_NAN };
    struct rig_batch plain_batch = batch;
    const struct clinfer_kv_pool_params params = pool_params(op, 8);
    clinfer_ctx *ctx = open_ctx(NULL);
    cl_command_queue queue = new_queue(ctx, properties), side = clinfer_ctx_queue(ctx);
    struct clinfer_kv_pool_info info;
    struct pool_rig p;
    struct rig plain;
    int64_t length;
    plain_batch.contiguous = true;
    rig_make(&plain, op, &plain_batch);
    OK(rig_run(&plain, ctx));
    memset(&p, 0, sizeof p);
    rig_make(&p.r, op, &batch);
    OK(clinfer_kv_pool_create(&p.pool, ctx, &params));
    OK(pool_poison(p.pool, side, RIG_NAN));

    p.seq[0] = new_seq(ctx, p.pool, 9);
    const cl_mem mem = clinfer_kv_pool_layer(p.pool, 1).mem;
    for (int64_t i = 0; i < 9; i++)
        OK(clEnqueueWriteBuffer(side, mem, CL_TRUE, row_at(ctx, p.pool, p.seq[0], 1, i), RIG_ROW_BYTES,
                                rig_row(&p.r, rig_buffer(&p.r, "kv_blocks")->initial, 0, i), 0, NULL, NULL));
    OK(clinfer_kv_seq_set_tokens(p.pool, p.seq[0], prompt, 9));
    OK(clinfer_kv_seq_fork(p.pool, p.seq[0], &p.seq[1]));
    OK(clinfer_kv_seq_match(p.pool, clinfer_kv_match_params(.tokens = prompt, .count = 9), &p.seq[2],
                            &length));
    cr_assert_eq(length, 8);
    OK(clinfer_kv_seq_truncate(p.pool, p.seq[2], 6));
    clinfer_kv_pool_info(p.pool, &info);
    cr_assert(info.used_pages == 3 && info.lookups == 1 && info.lookup_tokens == 9 && info.hit_tokens == 8);

    const uint32_t tail = page_of(ctx, p.pool, p.seq[0], 2);
    OK(rig_open(&p.r, clinfer_ctx_cl_context(ctx)));
    OK(rig_upload(&p.r, side));
    OK(pool_rig_open(&p, queue, 1));
    p.new_rows = true;
    OK(pool_rig_put_rows(&p, queue));
    OK(clWaitForEvents(1, &p.info.ready));
    const clinfer_kv_cache kv = clinfer_kv_pool_layer(p.pool, 0);
    const size_t page_bytes = (size_t) kv.page_stride * 4;
    OK(clEnqueueFillBuffer(side, mem, &(cl_uint){ ~0u }, 4, kv.offset + tail * page_bytes, page_bytes, 0,
                           NULL, NULL));
    OK(clFinish(side));
    OK(p.r.op->run(ctx, &p.r.params, 1, &p.info.ready, NULL));
    OK(rig_download(&p.r, queue));
    OK(pool_rig_get_rows(&p, queue));
    cr_assert(rig_equal(&plain, &p.r), "%s: %s", op, plain.note);
    OK(clinfer_kv_batch_commit(p.pool, p.batch, 0, NULL));
    clinfer_kv_pool_info(p.pool, &info);
    cr_assert(info.copies == 3 && info.used_pages == 5 && info.free_pages == 3, "%d copies, %d pages",
              (int) info.copies, (int) info.used_pages);
    expect_sound(p.pool);
    pool_rig_free(&p);
    clinfer_kv_pool_info(p.pool, &info);
    cr_assert(info.cached_pages == 2 && info.used_pages == 0);
    expect_sound(p.pool);
    rig_free(&plain);
    clinfer_kv_pool_destroy(&p.pool);
    clReleaseCommandQueue(queue);
    clinfer_ctx_destroy(&ctx);
}

Test(kv_pool_prefix, mla_decode_branch)
{
    shared_beside_plain("mla_decode_branch", 0);
}

Test(kv_pool_prefix, mla_decode_branch_out_of_order)
{
    shared_beside_plain("mla_decode_branch", CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
}

Test(kv_pool_prefix, fused_qk_rope)
{
    shared_beside_plain("fused_qk_rope", 0);
}

static void copy_view(const clinfer_kv_cache *kv, unsigned char *image, uint32_t from, uint32_t to,
                      int64_t rows)
{
    const size_t size = clinfer_dtype_size(kv->dtype);
    const int64_t groups = kv->scale_group ? (kv->head_size + kv->scale_group - 1) / kv->scale_group : 0;
    for (int64_t plane = 0; plane < kv->planes; plane++) {
        unsigned char *at = image + kv->offset + (size_t) (plane * kv->kv_stride) * size;
        const size_t page = (size_t) kv->page_stride * size;
        memcpy(at + to * page, at + from * page, (size_t) (rows * kv->num_heads * kv->head_size) * size);
        if (!groups)
            continue;
        at = image + kv->scales_offset + (size_t) (plane * kv->scales_kv_stride) * 4;
        memcpy(at + to * (size_t) kv->scales_page_stride * 4, at + from * (size_t) kv->scales_page_stride * 4,
               (size_t) (rows * kv->num_heads * groups) * 4);
    }
}

// All rows of all layers, planes and scales, and no other byte of the pool.
Test(kv_pool_prefix, copies_all_sections)
{
    static const struct clinfer_kv_pool_params list[] = {
        { .mla = 1, .num_layers = 2, .head_size = 20, .page_size = 4, .dtype = CLINFER_F32, .num_pages = 5 },
        { .num_layers = 3,
          .num_heads = 2,
          .head_size = 6,
          .v_head_size = 10,
          .page_size = 4,
          .dtype = CLINFER_F16,
          .v_dtype = CLINFER_F8_E4M3,
          .scale_group = 4,
          .num_pages = 5 },
        { .num_layers = 2,
          .num_heads = 3,
          .head_size = 10,
          .page_size = 4,
          .dtype = CLINFER_F8_E4M3,
          .scale_group = 8,
          .num_pages = 5 },
    };
    clinfer_ctx *ctx = open_ctx(NULL);
    cl_command_queue queue = clinfer_ctx_queue(ctx);
    for (size_t k = 0; k < sizeof list / sizeof list[0]; k++) {
        struct clinfer_kv_pool_info info;
        clinfer_kv_pool *pool;
        clinfer_kv_seq fork;
        OK(clinfer_kv_pool_create(&pool, ctx, &list[k]));
        clinfer_kv_pool_info(pool, &info);
        unsigned char *image = malloc(info.bytes), *got = malloc(info.bytes);
        cr_assert(image && got && info.num_buffers == 1);
        for (size_t i = 0; i < info.bytes; i++)
            image[i] = (unsigned char) (i * 2654435761u >> 24);
        const cl_mem mem = clinfer_kv_pool_layer(pool, 0).mem;
        OK(clEnqueueWriteBuffer(queue, mem, CL_TRUE, 0, info.bytes, image, 0, NULL, NULL));
        const clinfer_kv_seq seq = new_seq(ctx, pool, 7);
        OK(clinfer_kv_seq_fork(pool, seq, &fork));
        const uint32_t from = page_of(ctx, pool, seq, 1);
        OK(clinfer_kv_seq_extend(pool, fork, 3));
        const uint32_t to = page_of(ctx, pool, fork, 1);
        cr_assert(from != to && page_of(ctx, pool, seq, 1) == from);
        for (int64_t l = 0; l < list[k].num_layers; l++) {
            const clinfer_kv_cache kv = clinfer_kv_pool_layer(pool, l);
            copy_view(&kv, image, from, to, 3);
            if (list[k].v_head_size) {
                const clinfer_kv_cache v = clinfer_kv_pool_layer_v(pool, l);
                copy_view(&v, image, from, to, 3);
            }
        }
        OK(clEnqueueReadBuffer(queue, mem, CL_TRUE, 0, info.bytes, got, 0, NULL, NULL));
        for (size_t i = 0; i < info.bytes; i++)
            cr_assert_eq(got[i], image[i], "pool %d: byte %d of %d", (int) k, (int) i, (int) info.bytes);
        free(image);
        free(got);
        expect_sound(pool);
        clinfer_kv_pool_destroy(&pool);
    }
    clinfer_ctx_destroy(&ctx);
}

// A step that the device has not begun: its pages are found at once, its rows copied only once they are
// there, and what reads either waits.
static void behind_a_gate(cl_command_queue_properties properties)
{
    const struct clinfer_kv_pool_params params = pool_params("mla_decode_branch", 8);
    const int64_t six = 6, one = 1;
    clinfer_ctx *ctx = open_ctx(NULL);
    cl_command_queue queue = new_queue(ctx, properties), side = new_queue(ctx, properties);
    cl_int err, state;
    cl_event gate = clCreateUserEvent(clinfer_ctx_cl_context(ctx), &err), written, ready;
    float row[POOL_ROW], got[POOL_ROW];
    struct clinfer_kv_batch_info info;
    clinfer_kv_pool *pool;
    clinfer_kv_pool_batch batch;
    clinfer_kv_seq seq[3];
    int64_t length;
    OK(clinfer_kv_pool_create(&pool, ctx, &params));
    OK(pool_poison(pool, side, RIG_NAN));
    OK(clinfer_kv_seq_create(pool, &seq[0]));
    OK(clinfer_kv_batch_create(pool,
                               clinfer_kv_batch_params(.queue = queue, .num_seqs = 1, .seqs = seq,
                                                       .new_tokens = &six, .tokens = prompt),
                               &batch));
    OK(clinfer_kv_batch_info(pool, batch, &info));
    for (int i = 0; i < POOL_ROW; i++)
        row[i] = (float) i + 0.5f;
    // The second page, row 5: its place is known once the batch has ended.
    OK(clinfer_kv_batch_commit(pool, batch, 1, &gate));
    const cl_mem mem = clinfer_kv_pool_layer(pool, 1).mem;
    OK(clEnqueueWriteBuffer(queue, mem, CL_FALSE, row_at(ctx, pool, seq[0], 1, 5), sizeof row, row, 1, &gate,
                            &written));
    OK(clFlush(queue));
    const int64_t zero = 0;
    OK(clinfer_kv_batch_create(
        pool, clinfer_kv_batch_params(.queue = queue, .num_seqs = 1, .seqs = seq, .new_tokens = &zero),
        &batch));
    OK(clinfer_kv_batch_commit(pool, batch, 1, &written));

    OK(clinfer_kv_seq_match(pool, clinfer_kv_match_params(.tokens = prompt, .count = 6), &seq[1], &length));
    cr_assert_eq(length, 4);
    OK(clinfer_kv_seq_fork(pool, seq[0], &seq[2]));
    OK(clinfer_kv_seq_extend(pool, seq[2], 1)); // a copy on the context's queue
    OK(clinfer_kv_batch_create(
        pool, clinfer_kv_batch_params(.queue = side, .num_seqs = 1, .seqs = &seq[1], .new_tokens = &one),
        &batch));
    OK(clinfer_kv_batch_info(pool, batch, &info));
    ready = info.ready;
    OK(clRetainEvent(ready));
    usleep(50 * 1000);
    OK(clGetEventInfo(ready, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL));
    cr_assert_gt(state, CL_COMPLETE, "what reads the prefix does not wait for what stores it");
    OK(clSetUserEventStatus(gate, CL_COMPLETE));
    OK(clWaitForEvents(1, &ready)); // behind the copy too
    OK(clEnqueueReadBuffer(side, mem, CL_TRUE, row_at(ctx, pool, seq[2], 1, 5), sizeof got, got, 1, &ready,
                           NULL));
    cr_assert(row_at(ctx, pool, seq[2], 1, 5) != row_at(ctx, pool, seq[0], 1, 5));
    cr_assert(!memcmp(row, got, sizeof row), "copied before it was stored");
    OK(clinfer_kv_batch_drop(pool, batch, 0, NULL));
    expect_sound(pool);
    OK(clReleaseEvent(ready));
    OK(clReleaseEvent(written));
    OK(clReleaseEvent(gate));
    clinfer_kv_pool_destroy(&pool);
    OK(clFinish(queue));
    clReleaseCommandQueue(queue);
    clReleaseCommandQueue(side);
    clinfer_ctx_destroy(&ctx);
}

Test(kv_pool_prefix, behind_a_gate)
{
    behind_a_gate(0);
}

Test(kv_pool_prefix, behind_a_gate_out_of_order)
{
    behind_a_gate(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
}

// What is refused, with its text.
Test(kv_pool_prefix, misuse)
{
    const struct clinfer_kv_pool_params params = pool_params("mla_decode_branch", 4);
    clinfer_ctx *ctx = open_ctx(NULL);
    clinfer_kv_pool *pool;
    clinfer_kv_pool_batch batch;
    clinfer_kv_seq fork = 7;
    char error[512];
    int64_t n;
    OK(clinfer_kv_pool_create(&pool, ctx, &params));
    const clinfer_kv_seq seq = new_seq(ctx, pool, 3);
#define REFUSED(call, text)                                                                                  \
    do {                                                                                                     \
        cr_assert_eq(call, CLINFER_ERR_ARGUMENT);                                                            \
        clinfer_ctx_error(ctx, error, sizeof error);                                                         \
        cr_assert(strstr(error, "kv_pool: ") && strstr(error, text), "%s", error);                           \
        expect_sound(pool);                                                                                  \
    } while (0)
    REFUSED(clinfer_kv_seq_match(pool, NULL, &fork, &n), "a prefix of 0 tokens");
    REFUSED(clinfer_kv_seq_match(pool, clinfer_kv_match_params(.count = 3), &fork, &n),
            "3 tokens, want 0 to");
    REFUSED(clinfer_kv_seq_match(pool, clinfer_kv_match_params(.tokens = prompt, .count = -1), &fork, &n),
            "-1 tokens");
    REFUSED(clinfer_kv_seq_fork(pool, seq + 1, &fork), "is not there");
    cr_assert_eq(fork, 0);
    REFUSED(clinfer_kv_seq_set_tokens(pool, 0, prompt, 0), "none of this pool's");
    REFUSED(clinfer_kv_seq_set_tokens(pool, seq, prompt, 4), "4 tokens, want 0 to the 3");
    REFUSED(clinfer_kv_seq_tokens(pool, seq + 1, NULL, 0, &n), "is not there");
    OK(clinfer_kv_seq_set_tokens(pool, seq, prompt, 3));
    uint32_t tokens[3];
    OK(clinfer_kv_seq_tokens(pool, seq, tokens, 2, &n));
    cr_assert(n == 3 && tokens[0] == prompt[0] && tokens[1] == prompt[1]);
    OK(clinfer_kv_batch_create(
        pool, clinfer_kv_batch_params(.num_seqs = 1, .seqs = &seq, .new_tokens = &(int64_t){ 1 }), &batch));
    REFUSED(clinfer_kv_seq_fork(pool, seq, &fork), "which is open");
    REFUSED(clinfer_kv_seq_set_tokens(pool, seq, prompt, 1), "which is open");
    OK(clinfer_kv_batch_drop(pool, batch, 0, NULL));
    clinfer_kv_pool_forget(pool);
    OK(clinfer_kv_seq_tokens(pool, seq, tokens, 2, &n));
    cr_assert_eq(n, 0);
    clinfer_kv_pool_destroy(&pool);
    clinfer_ctx_destroy(&ctx);
}
