// SPDX-License-Identifier: Apache-2.0
// Results depend on what the call names and on nothing else: not on unused memory, not on where pages lie.
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"

TestSuite(poison, .timeout = 120);

static clinfer_ctx *ctx;

static void open_ctx(void)
{
    cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.cache_dir = "")), CLINFER_OK);
}

static void close_ctx(void)
{
    struct clinfer_fault fault;
    cr_assert_eq(clinfer_ctx_fault(ctx, NULL, &fault), CLINFER_OK);
    cr_assert_eq(fault.code, CLINFER_FAULT_NONE, "%s", clinfer_fault_str(fault.code));
    clinfer_ctx_destroy(&ctx);
}

static void run_same(struct rig *r, const char *op, const struct rig_batch *batch)
{
    rig_make(r, op, batch);
    cr_assert_eq(rig_run(r, ctx), CLINFER_OK);
    rig_reference(r);
    cr_assert(rig_same(r), "%s", r->note);
}

static void expect_equal(const struct rig_batch *one, const struct rig_batch *other)
{
    for (EACH_CACHE_OP(i)) {
        struct rig a, b;
        run_same(&a, op_descs[i].name, one);
        run_same(&b, op_descs[i].name, other);
        cr_assert(rig_equal(&a, &b), "%s", a.note);
        rig_free(&a);
        rig_free(&b);
    }
}

// Unwritten slots, spare pages, ends of the table, padding rows.
Test(poison, nan_or_zero, .init = open_ctx, .fini = close_ctx)
{
    struct rig_batch zeros = rig_default;
    zeros.poison = 0;
    expect_equal(&rig_default, &zeros);
}

Test(poison, scattered_or_contiguous, .init = open_ctx, .fini = close_ctx)
{
    struct rig_batch contiguous = rig_default;
    contiguous.contiguous = true;
    expect_equal(&rig_default, &contiguous);
}

// Requests with an equal prefix of two full pages, stored once or thrice.
Test(poison, shared_prefix, .init = open_ctx, .fini = close_ctx)
{
    struct rig_batch own = rig_default, shared;
    own.cached[0] = own.cached[1] = 8;
    own.cached[2] = 9;
    own.same_prefix = true;
    shared = own;
    shared.share = true;
    expect_equal(&own, &shared);
}

// Scratch that a call finds full of NaN.
Test(poison, workspace, .init = open_ctx, .fini = close_ctx)
{
    struct rig plain, r;
    size_t bytes;
    cl_int err;
    run_same(&plain, "mla_decode_branch", NULL);
    rig_make(&r, "mla_decode_branch", NULL);
    r.params.decode.num_splits = 5; // more than there are tiles: most write no partial sums
    cr_assert_eq(clinfer_mla_decode_branch_workspace(ctx, &r.params.decode, &bytes), CLINFER_OK);
    for (int fill = 0; fill < 256; fill += 255) {
        unsigned char *scratch = malloc(bytes);
        memset(scratch, fill, bytes);
        cl_mem mem = clCreateBuffer(clinfer_ctx_cl_context(ctx), CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR,
                                    bytes, scratch, &err);
        cr_assert_eq(err, CL_SUCCESS);
        r.params.decode.workspace = mem;
        cr_assert_eq(rig_run(&r, ctx), CLINFER_OK);
        rig_reference(&r);
        cr_assert(rig_same(&r), "%s", r.note);
        cr_assert(rig_equal(&plain, &r), "%s", plain.note); // all keys of a request fit one tile
        clReleaseMemObject(mem);
        free(scratch);
    }
    rig_free(&plain);
    rig_free(&r);
}

// Requests that end before, at and after the ends of pages, and new tokens that cross two of them.
Test(poison, page_edges, .init = open_ctx, .fini = close_ctx)
{
    static const int64_t sizes[] = { 1, 3, 4, 16 };
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        const int64_t S = sizes[k];
        const struct {
            int64_t cached[3], fresh[3];
        } cases[] = {
            { { S - 1, S, S + 1 }, { 1, 1, 1 } },     { { 2 * S - 1, 2 * S, 0 }, { 1, 1, 1 } },
            { { S - 1, 0, 2 * S - 1 }, { 2, 0, 5 } }, { { 0, 0, 0 }, { 0, 7, 0 } },
            { { 2 * S, 2 * S - 1, S }, { 0, 6, 1 } }, { { 0, 0, 0 }, { 0, 0, 0 } },
        };
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++)
            for (EACH_CACHE_OP(i)) {
                struct rig_batch batch = rig_default;
                struct rig r;
                batch.page_size = S;
                batch.columns = (2 * S + 7 + S - 1) / S;
                memcpy(batch.cached, cases[c].cached, sizeof batch.cached);
                memcpy(batch.fresh, cases[c].fresh, sizeof batch.fresh);
                run_same(&r, op_descs[i].name, &batch);
                rig_free(&r);
            }
    }
}

// A table that ends with the last page in use.
Test(poison, exact_table, .init = open_ctx, .fini = close_ctx)
{
    for (EACH_CACHE_OP(i)) {
        struct rig_batch batch = rig_default;
        struct rig r;
        batch.cached[2] = 10;
        batch.columns = 3;
        run_same(&r, op_descs[i].name, &batch);
        rig_free(&r);
    }
}

Test(poison, twenty_repeats, .init = open_ctx, .fini = close_ctx)
{
    for (int i = 0; i < op_num_descs; i++) {
        struct rig first, r;
        run_same(&first, op_descs[i].name, NULL);
        for (int n = 0; n < 20; n++) {
            rig_make(&r, op_descs[i].name, NULL);
            cr_assert_eq(rig_run(&r, ctx), CLINFER_OK);
            for (int b = 0; b < r.num_buffers; b++)
                cr_assert(!memcmp(r.buffer[b].got, first.buffer[b].got, r.buffer[b].size), "%s: repeat %d",
                          op_descs[i].name, n);
            rig_free(&r);
        }
        rig_free(&first);
    }
}

// The rig's cache read as fp8, pages `stride` elements apart, copied to and from the dense image.
static cl_int copy_pages(struct rig *r, cl_command_queue queue, cl_mem mem, int64_t stride, bool to_device)
{
    clinfer_kv_cache *kv = (clinfer_kv_cache *) ((char *) &r->params + r->op->kv);
    struct rig_buffer *b = rig_buffer(r, "kv_blocks");
    const size_t page = (size_t) (kv->planes * kv->num_layers * kv->page_size * kv->head_size);
    cl_int err = CL_SUCCESS;
    for (int64_t p = 0; !err && p < 12; p++) {
        const size_t at = RIG_GUARD + (size_t) (p * stride), from = RIG_GUARD + (size_t) p * page;
        err = to_device
                  ? clEnqueueWriteBuffer(queue, mem, CL_TRUE, at, page, b->initial + from, 0, NULL, NULL)
                  : clEnqueueReadBuffer(queue, mem, CL_TRUE, at, page, b->got + from, 0, NULL, NULL);
    }
    return err;
}

static void run_strided(struct rig *r, const char *op, int64_t stride, cl_mem sparse)
{
    struct rig_batch batch = rig_default;
    cl_command_queue queue = clinfer_ctx_queue(ctx);
    batch.contiguous = true;
    batch.cached[2] = 13; // on page 11, the last of the twelve
    rig_make(r, op, &batch);
    struct rig_buffer *b = rig_buffer(r, "kv_blocks");
    for (size_t i = RIG_GUARD; i < b->size - RIG_GUARD; i++)
        b->initial[i] = (unsigned char) (i * 2654435761u >> 13 & 0xb7); // no NaN, below 1 in magnitude
    cr_assert_eq(rig_open(r, clinfer_ctx_cl_context(ctx)), CL_SUCCESS);
    cr_assert_eq(rig_upload(r, queue), CL_SUCCESS);
    clinfer_kv_cache *kv = (clinfer_kv_cache *) ((char *) &r->params + r->op->kv);
    kv->dtype = CLINFER_F8_E4M3;
    kv->num_pages = 12;
    if (sparse) {
        kv->mem = sparse;
        kv->page_stride = stride;
        cr_assert_eq(copy_pages(r, queue, sparse, stride, true), CL_SUCCESS);
    }
    cr_assert_eq(r->op->run(ctx, &r->params, 0, NULL, NULL), CLINFER_OK);
    cr_assert_eq(rig_download(r, queue), CL_SUCCESS);
    if (sparse)
        cr_assert_eq(copy_pages(r, queue, sparse, stride, false), CL_SUCCESS);
    rig_close(r);
}

// Pages past 2^31 and 2^32 elements, in a buffer that is never filled: the same bits as in a dense cache.
Test(poison, pages_past_32_bits)
{
    // A driver that sizes its device by the machine's memory is told of more; pages never touched cost none.
    setenv("HWLOC_SYNTHETIC", "NUMANode:1(memory=64GB) core:2 PU:1", 0);
    open_ctx();
    struct clinfer_device_info info;
    const int64_t stride = ((INT64_C(1) << 32) + 10) / 11 + 64;
    const size_t size = (size_t) (11 * stride) + (1 << 16);
    cl_int err = CL_INVALID_BUFFER_SIZE;
    cl_mem sparse = NULL;
    clinfer_ctx_device_info(ctx, &info);
    if (info.max_alloc >= size)
        sparse = clCreateBuffer(clinfer_ctx_cl_context(ctx), CL_MEM_READ_WRITE, size, NULL, &err);
    if (err) {
        clinfer_ctx_destroy(&ctx);
        cr_skip_test("no buffer of %zu bytes: %s, the device allocates at most %llu", size,
                     clinfer_status_str((clinfer_status) err), (unsigned long long) info.max_alloc);
    }
    for (EACH_CACHE_OP(i)) {
        struct rig dense, apart;
        run_strided(&dense, op_descs[i].name, 0, NULL);
        run_strided(&apart, op_descs[i].name, stride, sparse);
        bool wrote = false;
        for (int b = 0; b < dense.num_buffers; b++)
            wrote |= memcmp(dense.buffer[b].got, dense.buffer[b].initial, dense.buffer[b].size) != 0;
        cr_assert(wrote, "%s wrote nothing", op_descs[i].name);
        for (int b = 0; b < dense.num_buffers; b++)
            cr_assert(!memcmp(dense.buffer[b].got, apart.buffer[b].got, dense.buffer[b].size),
                      "%s: %s differs", op_descs[i].name, dense.buffer[b].tensor->name);
        rig_free(&dense);
        rig_free(&apart);
    }
    clReleaseMemObject(sparse);
    close_ctx();
}
