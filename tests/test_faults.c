// SPDX-License-Identifier: Apache-2.0
// What only the device can see: no access outside a buffer, nothing written for the token, the rest right,
// and the first fault on record.
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "rig.h"

TestSuite(faults, .timeout = 120);

// NULL where the op has no table of angles.
static clinfer_tensor *freqs_of(struct rig *r)
{
    for (int i = 0; i < r->op->num_tensors; i++)
        if (!strcmp(r->op->tensors[i].name, "freqs_cis"))
            return (clinfer_tensor *) ((char *) &r->params + r->op->tensors[i].offset);
    return NULL;
}

static clinfer_ctx *ctx;

static void open_ctx(void)
{
    cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.cache_dir = "")), CLINFER_OK);
}

static void close_ctx(void)
{
    clinfer_ctx_destroy(&ctx);
}

static struct clinfer_fault read_fault(void)
{
    struct clinfer_fault fault;
    cr_assert_eq(clinfer_ctx_fault(ctx, NULL, &fault), CLINFER_OK);
    return fault;
}

// The record is of this op and code, of a token in [first, last] and this value; reading has cleared it.
static void expect_fault(const char *op, clinfer_fault_code code, uint32_t first, uint32_t last,
                         uint32_t value)
{
    const struct clinfer_fault f = read_fault(), none = read_fault();
    cr_assert_eq(f.code, code, "%s: %s, want %s", op, clinfer_fault_str(f.code), clinfer_fault_str(code));
    cr_assert_str_eq(f.op, op);
    cr_assert(f.token >= first && f.token <= last, "%s: token %u, want %u to %u", op, f.token, first, last);
    cr_assert_eq(f.value, value, "%s: value %u, want %u", op, f.value, value);
    cr_assert_eq(none.code, CLINFER_FAULT_NONE);
    cr_assert(!none.op && none.token == 0 && none.value == 0);
}

static void run_same(struct rig *r)
{
    cr_assert_eq(rig_run(r, ctx), CLINFER_OK);
    rig_reference(r);
    cr_assert(rig_same(r), "%s", r->note);
}

Test(faults, none, .init = open_ctx, .fini = close_ctx)
{
    cr_assert_eq(read_fault().code, CLINFER_FAULT_NONE);
    for (int i = 0; i < op_num_descs; i++) {
        struct rig r;
        rig_make(&r, op_descs[i].name, NULL);
        run_same(&r);
        cr_assert_eq(read_fault().code, CLINFER_FAULT_NONE, "%s", op_descs[i].name);
        rig_free(&r);
    }
}

// Tokens 0 to 2 of request 0 stand on a page that is none.
Test(faults, page_of_a_new_token, .init = open_ctx, .fini = close_ctx)
{
    static const uint32_t pages[] = { RIG_PAGES, 0x7fffffff, 0x80000000, 0xffffffff };
    for (EACH_CACHE_OP(i))
        for (size_t k = 0; k < sizeof pages / sizeof pages[0]; k++) {
            struct rig r;
            rig_make(&r, op_descs[i].name, NULL);
            rig_u32(&r, "lookup_table")[1] = pages[k];
            run_same(&r);
            expect_fault(op_descs[i].name, CLINFER_FAULT_PAGE, 0, 2, pages[k]);
            rig_free(&r);
        }
}

// Request 2's first page is bad, its new tokens 4 and 5 are not there: only attention looks, and masks its
// keys.
Test(faults, page_of_an_old_key, .init = open_ctx, .fini = close_ctx)
{
    for (EACH_CACHE_OP(i)) {
        struct rig r;
        rig_make(&r, op_descs[i].name, NULL);
        rig_u32(&r, "lookup_table")[2 * r.batch.columns] = RIG_PAGES + 5;
        run_same(&r);
        if (op_descs[i].reads_context)
            expect_fault(op_descs[i].name, CLINFER_FAULT_PAGE, 4, 5, RIG_PAGES + 5);
        cr_assert_eq(read_fault().code, CLINFER_FAULT_NONE, "%s", op_descs[i].name);
        rig_free(&r);
    }
}

// Masked means masked: the keys on the bad page weigh nothing, as if they had never been cached elsewhere.
Test(faults, all_old_keys_bad, .init = open_ctx, .fini = close_ctx)
{
    struct rig r;
    rig_make(&r, "mla_decode_branch", NULL);
    for (int c = 0; c < 2; c++)
        rig_u32(&r, "lookup_table")[2 * r.batch.columns + c] = 0xfffffff0u;
    run_same(&r);
    expect_fault("mla_decode_branch", CLINFER_FAULT_PAGE, 4, 5, 0xfffffff0u);
    rig_free(&r);
}

// 16 positions a request: token 4 has the last one, token 5 none.
Test(faults, position_past_the_table, .init = open_ctx, .fini = close_ctx)
{
    for (EACH_CACHE_OP(i)) {
        struct rig_batch batch = rig_default;
        struct rig r;
        batch.cached[2] = 15;
        rig_make(&r, op_descs[i].name, &batch);
        run_same(&r);
        expect_fault(op_descs[i].name, CLINFER_FAULT_LENGTH, 5, 5, 16);
        rig_free(&r);
    }
}

// Lengths from nowhere, up to where 32 bits of position wrap.
Test(faults, lengths_from_nowhere, .init = open_ctx, .fini = close_ctx)
{
    static const uint32_t lengths[] = { 16, 0x7fffffff, 0x80000000, 0xfffffffe, 0xffffffff };
    for (EACH_CACHE_OP(i))
        for (size_t k = 0; k < sizeof lengths / sizeof lengths[0]; k++) {
            struct rig r;
            rig_make(&r, op_descs[i].name, NULL);
            rig_u32(&r, "cache_lengths")[2] = lengths[k];
            run_same(&r);
            const struct clinfer_fault f = read_fault();
            const uint32_t next = lengths[k] == 0xffffffff ? lengths[k] : lengths[k] + 1; // saturated
            cr_assert_eq(f.code, CLINFER_FAULT_LENGTH, "%s: %s", op_descs[i].name, clinfer_fault_str(f.code));
            cr_assert(f.value == (f.token == 4 ? lengths[k] : next) && f.token >= 4 && f.token <= 5,
                      "%s: token %u value %u", op_descs[i].name, f.token, f.value);
            rig_free(&r);
        }
}

// The table has 10 rows: token 4 at position 9 takes the last one, token 5 has none.
Test(faults, position_past_freqs, .init = open_ctx, .fini = close_ctx)
{
    for (EACH_CACHE_OP(i)) {
        struct rig_batch batch = rig_default;
        struct rig r;
        batch.freqs = 10;
        rig_make(&r, op_descs[i].name, &batch);
        run_same(&r);
        if (freqs_of(&r))
            expect_fault(op_descs[i].name, CLINFER_FAULT_POSITION, 5, 5, 10);
        cr_assert_eq(read_fault().code, CLINFER_FAULT_NONE, "%s", op_descs[i].name);
        rig_free(&r);
    }
}

// A table without a single row, in place of a buffer nothing.
Test(faults, no_freqs_at_all, .init = open_ctx, .fini = close_ctx)
{
    for (EACH_CACHE_OP(i)) {
        struct rig r;
        rig_make(&r, op_descs[i].name, NULL);
        clinfer_tensor *freqs = freqs_of(&r);
        if (!freqs) {
            rig_free(&r);
            continue;
        }
        cr_assert_eq(rig_open(&r, clinfer_ctx_cl_context(ctx)), CL_SUCCESS);
        cr_assert_eq(rig_upload(&r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
        freqs->shape[0] = 0;
        freqs->mem = NULL;
        cr_assert_eq(r.op->run(ctx, &r.params, 0, NULL, NULL), CLINFER_OK);
        cr_assert_eq(rig_download(&r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
        cr_assert(rig_untouched(&r), "%s", r.note);
        cr_assert_eq(read_fault().code, CLINFER_FAULT_POSITION);
        rig_free(&r);
    }
}

// position_ids, alone and by section: an id past the table's rows is its token's fault, not its neighbours'.
Test(faults, position_ids_past_freqs, .init = open_ctx, .fini = close_ctx)
{
    for (int n = 1; n <= 2; n++) {
        struct rig_batch batch = rig_default;
        struct rig r;
        batch.position_ids = n;
        rig_make(&r, "fused_qk_rope", &batch);
        run_same(&r);
        cr_assert_eq(read_fault().code, CLINFER_FAULT_NONE);
        rig_free(&r);
        rig_make(&r, "fused_qk_rope", &batch);
        rig_u32(&r, "position_ids")[(n - 1) * RIG_TOKENS + 2] = RIG_FREQS;
        rig_u32(&r, "position_ids")[(n - 1) * RIG_TOKENS + 6] = 0xffffffff; // of a padding row: nobody's
        run_same(&r);
        expect_fault("fused_qk_rope", CLINFER_FAULT_POSITION, 2, 2, RIG_FREQS);
        rig_free(&r);
    }
}

// Guards, inputs, other layers and planes are as they were.
static void expect_contained(struct rig *r)
{
    const size_t plane = (size_t) (r->batch.page_size * RIG_ROW_BYTES);
    const size_t page = plane * 2 * (strncmp(r->op->name, "mla", 3) ? 2 : 1);
    for (int i = 0; i < r->num_buffers; i++) {
        const struct rig_buffer *b = &r->buffer[i];
        for (size_t at = 0; at < b->size; at += 4) {
            const size_t in = at - RIG_GUARD;
            const bool guard = at < RIG_GUARD || at >= b->size - RIG_GUARD;
            // The K plane of layer 1, and the V plane where the op writes V.
            const size_t nth = in % page / plane;
            const bool layer = b->tensor->place == OP_BLOCKS && (nth == 1 || (nth == 3 && r->op->kv_v));
            if (guard || b->tensor->role == OP_IN || (b->tensor->place == OP_BLOCKS && !layer))
                cr_assert(!memcmp(b->got + at, b->initial + at, 4), "%s: byte %zu of %s was written",
                          r->op->name, at, b->tensor->name);
        }
    }
}

Test(faults, offsets, .init = open_ctx, .fini = close_ctx)
{
    static const struct {
        uint32_t offsets[4], value, last; // the value on record, and the last token that may report it
    } cases[] = {
        { { 0, 5, 3, 6 }, 3, 6 }, // does not ascend
        { { 0, 0xffffffff, 4, 6 }, 4, 6 },
        { { 1, 3, 4, 6 }, 1, 0 },          // does not start at 0
        { { 0xfffffff0, 3, 4, 6 }, 3, 6 }, // that, and does not ascend: whichever comes first
        { { 0, 3, 4, 8 }, 8, 0 },          // ends past T
        { { 0, 3, 4, 0xffffffff }, 0xffffffff, 0 },
        { { 0, 3, 0x80000000, 0xffffffff }, 0xffffffff, 0 },
    };
    for (EACH_CACHE_OP(i))
        for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
            struct rig r;
            rig_make(&r, op_descs[i].name, NULL);
            memcpy(rig_u32(&r, "input_row_offsets"), cases[k].offsets, sizeof cases[k].offsets);
            cr_assert_eq(rig_run(&r, ctx), CLINFER_OK);
            expect_contained(&r);
            const struct clinfer_fault f = read_fault();
            cr_assert(f.code != CLINFER_FAULT_NONE, "%s: case %zu went unseen", op_descs[i].name, k);
            // A token whose position leaves the table through such offsets may have come first.
            cr_assert(f.code == CLINFER_FAULT_OFFSETS || f.code == CLINFER_FAULT_PAGE ||
                          f.code == CLINFER_FAULT_LENGTH,
                      "%s: %s", op_descs[i].name, clinfer_fault_str(f.code));
            if (f.code == CLINFER_FAULT_OFFSETS)
                cr_assert(f.token <= cases[k].last &&
                              (f.value == cases[k].value || f.value == cases[k].offsets[0]),
                          "%s: case %zu: token %u value %u", op_descs[i].name, k, f.token, f.value);
            rig_free(&r);
        }
}

// With offsets that end past T, the tokens there are have their results.
Test(faults, offsets_past_the_tokens, .init = open_ctx, .fini = close_ctx)
{
    for (EACH_CACHE_OP(i)) {
        struct rig_batch batch = rig_default;
        struct rig r;
        batch.fresh[2] = 3; // seven tokens: no padding
        rig_make(&r, op_descs[i].name, &batch);
        rig_u32(&r, "input_row_offsets")[RIG_REQUESTS] = 9;
        run_same(&r);
        expect_fault(op_descs[i].name, CLINFER_FAULT_OFFSETS, 0, 0, 9);
        rig_free(&r);
    }
}

// Nobody reads the record in between: the first fault stays, of whatever op, until it is read.
Test(faults, the_first_one_stays, .init = open_ctx, .fini = close_ctx)
{
    for (EACH_CACHE_OP(i)) {
        struct rig_batch batch = rig_default;
        struct rig first, second;
        const int next = rig_cache_op(i + 1) < op_num_descs ? rig_cache_op(i + 1) : rig_cache_op(0);
        rig_make(&first, op_descs[i].name, NULL);
        rig_u32(&first, "lookup_table")[1] = 1234;
        batch.cached[2] = 15;
        rig_make(&second, op_descs[next].name, &batch);
        run_same(&first);
        run_same(&second);
        expect_fault(op_descs[i].name, CLINFER_FAULT_PAGE, 0, 2, 1234);
        run_same(&second);
        expect_fault(op_descs[next].name, CLINFER_FAULT_LENGTH, 5, 5, 16);
        rig_free(&first);
        rig_free(&second);
    }
}

// The record is read through any queue of the context, after all that the queue holds.
Test(faults, read_through_a_queue, .init = open_ctx, .fini = close_ctx)
{
    cl_int err;
    struct rig r;
    struct clinfer_fault fault;
    cl_command_queue queue = clCreateCommandQueue(clinfer_ctx_cl_context(ctx), clinfer_ctx_device(ctx),
                                                  CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE, &err);
    cr_assert_eq(err, CL_SUCCESS);
    rig_make(&r, "rms_norm_kv_cache", NULL);
    rig_u32(&r, "lookup_table")[1] = 99;
    cr_assert_eq(rig_open(&r, clinfer_ctx_cl_context(ctx)), CL_SUCCESS);
    cr_assert_eq(rig_upload(&r, queue), CL_SUCCESS);
    r.params.norm.queue = queue;
    cr_assert_eq(r.op->run(ctx, &r.params, 0, NULL, NULL), CLINFER_OK);
    cr_assert_eq(clinfer_ctx_fault(ctx, queue, &fault), CLINFER_OK);
    cr_assert_eq(fault.code, CLINFER_FAULT_PAGE);
    cr_assert_eq(fault.value, 99);
    rig_free(&r);
    clReleaseCommandQueue(queue);
    for (int code = CLINFER_FAULT_NONE; code <= CLINFER_FAULT_POSITION + 1; code++)
        cr_assert(clinfer_fault_str((clinfer_fault_code) code)[0]);
}

// Read through one queue, the record is free for what another one runs next.
Test(faults, cleared_for_all_queues, .init = open_ctx, .fini = close_ctx)
{
    cl_command_queue queues[2];
    cl_int err;
    struct rig r;
    rig_make(&r, "rms_norm_kv_cache", NULL);
    rig_u32(&r, "lookup_table")[1] = 99;
    cr_assert_eq(rig_open(&r, clinfer_ctx_cl_context(ctx)), CL_SUCCESS);
    cr_assert_eq(rig_upload(&r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
    for (int i = 0; i < 2; i++) {
        queues[i] = clCreateCommandQueue(clinfer_ctx_cl_context(ctx), clinfer_ctx_device(ctx), 0, &err);
        cr_assert_eq(err, CL_SUCCESS);
    }
    for (int i = 0; i < 100; i++) {
        struct clinfer_fault fault;
        r.params.norm.queue = queues[i % 2];
        cr_assert_eq(r.op->run(ctx, &r.params, 0, NULL, NULL), CLINFER_OK);
        cr_assert_eq(clinfer_ctx_fault(ctx, queues[i % 2], &fault), CLINFER_OK);
        cr_assert_eq(fault.code, CLINFER_FAULT_PAGE, "fault %d", i);
    }
    rig_free(&r);
    for (int i = 0; i < 2; i++)
        clReleaseCommandQueue(queues[i]);
}
