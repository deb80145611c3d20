// SPDX-License-Identifier: Apache-2.0
// Buffers of a call: bounds, sub-buffers, the arena and the caller's workspace.
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "rig.h"

TestSuite(memory, .timeout = 120);

static clinfer_ctx *open_ctx(void)
{
    clinfer_ctx *ctx;
    cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.cache_dir = "")), CLINFER_OK);
    return ctx;
}

static void ready(struct rig *r, clinfer_ctx *ctx, const char *op)
{
    rig_make(r, op, NULL);
    cr_assert_eq(rig_open(r, clinfer_ctx_cl_context(ctx)), CL_SUCCESS);
    cr_assert_eq(rig_upload(r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
}

static void run_right(struct rig *r, clinfer_ctx *ctx)
{
    char error[512];
    const clinfer_status st = r->op->run(ctx, &r->params, 0, NULL, NULL);
    clinfer_ctx_error(ctx, error, sizeof error);
    cr_assert_eq(st, CLINFER_OK, "%s", error);
    cr_assert_eq(rig_download(r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
    rig_reference(r);
    cr_assert(rig_same(r), "%s", r->note);
}

// Refused, the message has the words, nothing launched and nothing written.
static void expect_refused(struct rig *r, clinfer_ctx *ctx, clinfer_status status, const char *const words[4])
{
    struct clinfer_ctx_stats before, after;
    char error[512];
    cl_event event = NULL;
    clinfer_ctx_stats(ctx, &before);
    cr_assert_eq(r->op->run(ctx, &r->params, 0, NULL, &event), status);
    cr_assert_null(event);
    clinfer_ctx_stats(ctx, &after);
    cr_assert_eq(after.launches, before.launches);
    clinfer_ctx_error(ctx, error, sizeof error);
    for (int i = 0; i < 4 && words[i]; i++)
        cr_assert(strstr(error, words[i]), "no \"%s\": %s", words[i], error);
    cr_assert_eq(rig_download(r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
    cr_assert(rig_untouched(r), "%s", r->note);
}

// Each tensor in turn reaches one element past its buffer.
Test(memory, views_past_their_buffers)
{
    clinfer_ctx *ctx = open_ctx();
    for (int o = 0; o < op_num_descs; o++) {
        struct rig r;
        ready(&r, ctx, op_descs[o].name);
        for (int i = 0; i < r.num_buffers; i++) {
            const struct op_tensor *t = r.buffer[i].tensor;
            size_t *offset = t->place == OP_BLOCKS
                                 ? &((clinfer_kv_cache *) ((char *) &r.params + t->offset))->offset
                                 : &((clinfer_tensor *) ((char *) &r.params + t->offset))->offset;
            char end[32], size[32];
            snprintf(end, sizeof end, "byte %zu", r.buffer[i].size + 4);
            snprintf(size, sizeof size, "of %zu bytes", r.buffer[i].size);
            *offset += RIG_GUARD + 4;
            expect_refused(
                &r, ctx, CLINFER_ERR_BOUNDS,
                (const char *const[]){ op_descs[o].name, t->place == OP_BLOCKS ? "kv" : t->name, end, size });
            *offset -= RIG_GUARD + 4;
        }
        run_right(&r, ctx);
        rig_free(&r);
    }
    clinfer_ctx_destroy(&ctx);
}

static size_t alignment(clinfer_ctx *ctx)
{
    cl_uint bits = 0;
    cr_assert_eq(
        clGetDeviceInfo(clinfer_ctx_device(ctx), CL_DEVICE_MEM_BASE_ADDR_ALIGN, sizeof bits, &bits, NULL),
        CL_SUCCESS);
    return bits / 8;
}

static cl_mem part_of(cl_mem whole, size_t origin, size_t size)
{
    const cl_buffer_region region = { origin, size };
    cl_int err;
    cl_mem part = clCreateSubBuffer(whole, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &err);
    cr_assert_eq(err, CL_SUCCESS);
    return part;
}

static void use(struct rig *r, const char *tensor, cl_mem mem)
{
    struct rig_buffer *b = rig_buffer(r, tensor);
    clReleaseMemObject(b->mem);
    b->mem = mem;
    clinfer_tensor *t = (clinfer_tensor *) ((char *) &r->params + b->tensor->offset);
    t->mem = mem;
}

// q, the table and the output in one allocation, each a sub-buffer of it.
Test(memory, sub_buffers)
{
    clinfer_ctx *ctx = open_ctx();
    struct rig r;
    cl_int err;
    const size_t step = alignment(ctx) * ((1 << 16) / alignment(ctx));
    cl_mem whole = clCreateBuffer(clinfer_ctx_cl_context(ctx), CL_MEM_READ_WRITE, 4 * step, NULL, &err);
    cr_assert_eq(err, CL_SUCCESS);
    ready(&r, ctx, "fused_qk_rope");
    static const char *const names[] = { "output", "q_proj", "freqs_cis" };
    for (size_t i = 0; i < 3; i++)
        use(&r, names[i], part_of(whole, (i + 1) * step, rig_buffer(&r, names[i])->size));
    cr_assert_eq(rig_upload(&r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
    run_right(&r, ctx);
    clReleaseMemObject(whole); // the parts keep it
    cr_assert_eq(rig_upload(&r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
    run_right(&r, ctx);
    rig_free(&r);
    clinfer_ctx_destroy(&ctx);
}

// Two sub-buffers may share bytes; that is seen through their common parent.
Test(memory, aliasing_through_sub_buffers)
{
    clinfer_ctx *ctx = open_ctx();
    struct rig r;
    cl_int err;
    ready(&r, ctx, "fused_qk_rope");
    const size_t size = rig_buffer(&r, "output")->size, step = alignment(ctx);
    cl_mem whole =
        clCreateBuffer(clinfer_ctx_cl_context(ctx), CL_MEM_READ_WRITE, 8 * (size + step), NULL, &err);
    cr_assert_eq(err, CL_SUCCESS);
    use(&r, "q_proj", part_of(whole, 0, size));
    use(&r, "output", part_of(whole, step, size));
    // The images overlap too: what matters here is that nothing is launched.
    struct clinfer_ctx_stats stats;
    char error[512];
    cr_assert_eq(r.op->run(ctx, &r.params, 0, NULL, NULL), CLINFER_ERR_ALIAS);
    clinfer_ctx_error(ctx, error, sizeof error);
    cr_assert(strstr(error, "output") && strstr(error, "q_proj"), "%s", error);
    clinfer_ctx_stats(ctx, &stats);
    cr_assert_eq(stats.launches, 0);
    // Exactly the same bytes, through two handles: in place.
    use(&r, "output", part_of(whole, 0, size));
    cr_assert_eq(r.op->run(ctx, &r.params, 0, NULL, NULL), CLINFER_OK);
    // One byte range by handle and offset: the whole buffer and a part of it.
    clRetainMemObject(whole);
    use(&r, "output", whole);
    r.params.rope.output.offset = RIG_GUARD + 4;
    cr_assert_eq(r.op->run(ctx, &r.params, 0, NULL, NULL), CLINFER_ERR_ALIAS);
    clFinish(clinfer_ctx_queue(ctx));
    clReleaseMemObject(whole);
    rig_free(&r);
    clinfer_ctx_destroy(&ctx);
}

static size_t measure(clinfer_ctx *ctx, const struct rig *r)
{
    size_t bytes = 1;
    cr_assert_eq(clinfer_mla_decode_branch_workspace(ctx, &r->params.decode, &bytes), CLINFER_OK);
    cr_assert_gt(bytes, 0);
    return bytes;
}

static uint64_t arena(clinfer_ctx *ctx)
{
    struct clinfer_ctx_stats stats;
    clinfer_ctx_stats(ctx, &stats);
    return stats.arena_bytes;
}

// The arena is as large as the largest call so far; commands in flight keep the one they were given.
Test(memory, arena_grows)
{
    clinfer_ctx *ctx = open_ctx();
    cl_int err;
    struct rig small, large;
    ready(&small, ctx, "mla_decode_branch");
    ready(&large, ctx, "mla_decode_branch");
    small.params.decode.num_splits = 1;
    large.params.decode.num_splits = 9;
    cr_assert_eq(arena(ctx), 0);
    cl_event gate = clCreateUserEvent(clinfer_ctx_cl_context(ctx), &err);
    cr_assert_eq(small.op->run(ctx, &small.params, 1, &gate, NULL), CLINFER_OK);
    cr_assert_eq(arena(ctx), measure(ctx, &small));
    cr_assert_eq(large.op->run(ctx, &large.params, 0, NULL, NULL), CLINFER_OK);
    cr_assert_eq(arena(ctx), measure(ctx, &large));
    cr_assert_gt(measure(ctx, &large), measure(ctx, &small));
    clSetUserEventStatus(gate, CL_COMPLETE);
    struct rig *const both[] = { &small, &large };
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(rig_download(both[i], clinfer_ctx_queue(ctx)), CL_SUCCESS);
        rig_reference(both[i]);
        cr_assert(rig_same(both[i]), "%s", both[i]->note);
    }
    cr_assert_eq(rig_upload(&small, clinfer_ctx_queue(ctx)), CL_SUCCESS);
    run_right(&small, ctx);
    cr_assert_eq(arena(ctx), measure(ctx, &large), "the arena shrank");
    clReleaseEvent(gate);
    rig_free(&small);
    rig_free(&large);
    clinfer_ctx_destroy(&ctx);
}

// Calls on two queues use one arena, one after another, whatever queue is ready first.
Test(memory, two_queues_one_arena)
{
    clinfer_ctx *ctx = open_ctx();
    cl_int err, state;
    struct rig a, b;
    cl_event gate = clCreateUserEvent(clinfer_ctx_cl_context(ctx), &err), event[2];
    cl_command_queue other =
        clCreateCommandQueue(clinfer_ctx_cl_context(ctx), clinfer_ctx_device(ctx), 0, &err);
    cr_assert_eq(err, CL_SUCCESS);
    ready(&a, ctx, "mla_decode_branch");
    ready(&b, ctx, "mla_decode_branch");
    b.params.decode.queue = other;
    b.params.decode.scale = 0.7f;
    cr_assert_eq(a.op->run(ctx, &a.params, 1, &gate, &event[0]), CLINFER_OK);
    cr_assert_eq(b.op->run(ctx, &b.params, 0, NULL, &event[1]), CLINFER_OK);
    usleep(50 * 1000);
    clGetEventInfo(event[1], CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL);
    cr_assert_neq(state, CL_COMPLETE, "two calls in one arena at once");
    clSetUserEventStatus(gate, CL_COMPLETE);
    cr_assert_eq(clWaitForEvents(2, event), CL_SUCCESS);
    struct rig *const both[] = { &a, &b };
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(rig_download(both[i], clinfer_ctx_queue(ctx)), CL_SUCCESS);
        rig_reference(both[i]);
        cr_assert(rig_same(both[i]), "%s", both[i]->note);
        clReleaseEvent(event[i]);
        rig_free(both[i]);
    }
    clReleaseEvent(gate);
    clReleaseCommandQueue(other);
    clinfer_ctx_destroy(&ctx);
}

// Exactly the bytes that the query names are enough, one less is refused; the arena stays empty.
Test(memory, callers_workspace)
{
    clinfer_ctx *ctx = open_ctx();
    struct rig r;
    cl_int err;
    ready(&r, ctx, "mla_decode_branch");
    const size_t bytes = measure(ctx, &r);
    char need[32], have[32];
    for (size_t offset = 0; offset <= 128; offset += 128) {
        cl_mem tight =
            clCreateBuffer(clinfer_ctx_cl_context(ctx), CL_MEM_READ_WRITE, offset + bytes - 1, NULL, &err);
        cl_mem exact =
            clCreateBuffer(clinfer_ctx_cl_context(ctx), CL_MEM_READ_WRITE, offset + bytes, NULL, &err);
        r.params.decode.workspace = tight;
        r.params.decode.workspace_offset = offset;
        snprintf(need, sizeof need, "byte %zu", offset + bytes);
        snprintf(have, sizeof have, "of %zu bytes", offset + bytes - 1);
        cr_assert_eq(measure(ctx, &r), bytes, "the query depends on the buffer");
        cr_assert_eq(rig_upload(&r, clinfer_ctx_queue(ctx)), CL_SUCCESS);
        expect_refused(&r, ctx, CLINFER_ERR_BOUNDS,
                       (const char *const[]){ "mla_decode_branch", "workspace", need, have });
        r.params.decode.workspace = exact;
        run_right(&r, ctx);
        clReleaseMemObject(tight);
        clReleaseMemObject(exact);
    }
    cr_assert_eq(arena(ctx), 0);
    rig_free(&r);
    clinfer_ctx_destroy(&ctx);
}
