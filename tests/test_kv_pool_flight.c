// SPDX-License-Identifier: Apache-2.0
// Batches whose work the device has not done yet: what comes after them, and whose memory is whose.
#include <criterion/criterion.h>
#include <string.h>
#include <unistd.h>

#include "calls_fixture.h"
#include "pool_rig.h"

TestSuite(kv_pool_flight, .timeout = 120);

static const char op[] = "rms_norm_kv_cache"; // a row that is normalised twice, or never, is seen

struct flight {
    clinfer_ctx *ctx;
    cl_command_queue queue, side;
    clinfer_kv_pool *pool;
    struct pool_rig p;
    struct rig plain;       // all tokens in one batch
    cl_event gate, done[3]; // of the operations
    cl_uint num_done;
};

#define OK(call)                                                                                             \
    do {                                                                                                     \
        char error_[512] = "";                                                                               \
        const clinfer_status st_ = (clinfer_status) (call);                                                  \
        clinfer_ctx_error(f->ctx, error_, sizeof error_);                                                    \
        cr_assert_eq(st_, CLINFER_OK, #call ": %s: %s", clinfer_status_str(st_), error_);                    \
    } while (0)

static void set_fresh(struct flight *f, int64_t a, int64_t b, int64_t c)
{
    f->p.r.batch.fresh[0] = a;
    f->p.r.batch.fresh[1] = b;
    f->p.r.batch.fresh[2] = c;
}

static void open_flight(struct flight *f, cl_command_queue_properties properties)
{
    const struct clinfer_kv_pool_params params = pool_params(op, 9);
    struct rig_batch batch = rig_default, plain;
    cl_int err;
    batch.cached[1] = 1; // new tokens fit into the pages that there are, so their rows can be written now
    plain = batch;
    plain.contiguous = true;
    memset(f, 0, sizeof *f);
    f->ctx = open_ctx(NULL);
    f->queue = new_queue(f->ctx, properties);
    f->side = new_queue(f->ctx, 0);
    f->gate = clCreateUserEvent(clinfer_ctx_cl_context(f->ctx), &err);
    rig_make(&f->plain, op, &plain);
    OK(rig_run(&f->plain, f->ctx));
    OK(clinfer_kv_pool_create(&f->pool, f->ctx, &params));
    OK(pool_poison(f->pool, f->side, RIG_NAN));
    OK(pool_rig_make(&f->p, f->pool, op, &batch));
    OK(rig_open(&f->p.r, clinfer_ctx_cl_context(f->ctx)));
    OK(rig_upload(&f->p.r, f->side));
    f->p.r.params.norm.kv = clinfer_kv_pool_layer(f->pool, 1);
    OK(pool_rig_put_rows(&f->p, f->side));
}

static void close_flight(struct flight *f)
{
    char error[256];
    cr_assert(clinfer_kv_pool_check(f->pool, error, sizeof error), "%s", error);
    pool_rig_free(&f->p);
    rig_free(&f->plain);
    clinfer_kv_pool_destroy(&f->pool);
    for (cl_uint i = 0; i < f->num_done; i++)
        clReleaseEvent(f->done[i]);
    clReleaseEvent(f->gate);
    clReleaseCommandQueue(f->queue);
    clReleaseCommandQueue(f->side);
    clinfer_ctx_destroy(&f->ctx);
}

static cl_int state_of(cl_event event)
{
    cl_int state = -1;
    cr_assert_eq(clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof state, &state, NULL),
                 CL_SUCCESS);
    return state;
}

static cl_mem memory_of(const struct clinfer_kv_batch_info *info)
{
    return info->tensors.lookup_table.mem;
}

// Opens the gate; then every row of the pool, found by its sequence's pages, is the plain one's.
static void expect_plain_rows(struct flight *f)
{
    f->p.batch = 0;
    set_fresh(f, rig_default.fresh[0], rig_default.fresh[1], rig_default.fresh[2]);
    OK(clSetUserEventStatus(f->gate, CL_COMPLETE));
    OK(clWaitForEvents(f->num_done, f->done)); // Intel's CPU runtime: clFinish may come before gated commands
    OK(clFinish(f->queue));
    OK(rig_download(&f->p.r, f->side));
    OK(pool_rig_get_rows(&f->p, f->side));
    cr_assert(rig_equal(&f->plain, &f->p.r), "%s", f->plain.note);
}

// The step that follows is made, enqueued and committed while the device has not begun with the first.
static void next_step_behind_a_gate(cl_command_queue_properties properties)
{
    struct flight flight, *f = &flight;
    struct clinfer_kv_batch_info first, second, third;
    clinfer_kv_pool_batch batch;
    int64_t length;
    open_flight(f, properties);
    set_fresh(f, 2, 0, 1);
    OK(pool_rig_open(&f->p, f->queue, 1));
    first = f->p.info;
    OK(f->p.r.op->run(f->ctx, &f->p.r.params, 2, (cl_event[]){ first.ready, f->gate },
                      &f->done[f->num_done++]));
    OK(clinfer_kv_batch_commit(f->pool, f->p.batch, 0, NULL));
    OK(clinfer_kv_seq_length(f->pool, f->p.seq[0], &length));
    cr_assert_eq(length, 7);

    set_fresh(f, 1, 1, 1);
    OK(pool_rig_open(&f->p, f->queue, 1));
    second = f->p.info;
    OK(clRetainEvent(second.ready));
    cr_assert_neq(memory_of(&second), memory_of(&first), "memory that the device has yet to read");
    OK(f->p.r.op->run(f->ctx, &f->p.r.params, 1, &second.ready, &f->done[f->num_done++]));
    OK(clinfer_kv_batch_commit(f->pool, f->p.batch, 0, NULL));
    usleep(50 * 1000);
    cr_assert(state_of(second.ready) > CL_COMPLETE && state_of(f->done[1]) > CL_COMPLETE,
              "the second step does not wait for the first");
    expect_plain_rows(f);
    OK(clReleaseEvent(second.ready));

    set_fresh(f, 0, 0, 0);
    OK(pool_rig_open(&f->p, f->queue, 1));
    third = f->p.info;
    cr_assert(memory_of(&third) == memory_of(&first) || memory_of(&third) == memory_of(&second),
              "memory that nobody reads any more is not used again");
    batch = f->p.batch;
    OK(clinfer_kv_batch_drop(f->pool, batch, 0, NULL));
    close_flight(f);
}

Test(kv_pool_flight, next_step_in_order)
{
    next_step_behind_a_gate(0);
}

Test(kv_pool_flight, next_step_out_of_order)
{
    next_step_behind_a_gate(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
}

static clinfer_kv_pool_batch open_rows(struct flight *f, int first, int count,
                                       struct clinfer_kv_batch_info *info)
{
    clinfer_kv_pool_batch batch;
    OK(clinfer_kv_batch_create(f->pool,
                               clinfer_kv_batch_params(.queue = f->queue, .num_seqs = count,
                                                       .seqs = f->p.seq + first,
                                                       .new_tokens = rig_default.fresh + first),
                               &batch));
    OK(clinfer_kv_batch_info(f->pool, batch, info));
    return batch;
}

// Behind the gate.
static void run_rows(struct flight *f, cl_command_queue queue, const struct clinfer_kv_batch_info *info)
{
    f->p.r.params.norm.queue = queue;
    f->p.r.params.norm.kv = clinfer_kv_pool_layer(f->pool, 1);
    f->p.r.params.norm.batch = info->tensors;
    f->p.r.params.norm.layer_idx = 0;
    OK(f->p.r.op->run(f->ctx, &f->p.r.params, 2, (cl_event[]){ info->ready, f->gate },
                      &f->done[f->num_done++]));
}

// Two batches open at once on an out-of-order queue, one of them dropped and made again.
Test(kv_pool_flight, two_open_batches)
{
    struct flight flight, *f = &flight;
    struct clinfer_kv_batch_info a, b, again;
    struct clinfer_kv_pool_info before, after;
    open_flight(f, CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
    clinfer_kv_pool_info(f->pool, &before);
    clinfer_kv_pool_batch batch_a = open_rows(f, 0, 1, &a), batch_b = open_rows(f, 1, 2, &b);
    clinfer_kv_pool_info(f->pool, &after);
    cr_assert_eq(after.num_batches, 2);
    cr_assert_eq(after.free_pages, before.free_pages);
    run_rows(f, f->queue, &b);
    OK(clinfer_kv_batch_drop(f->pool, batch_a, 0, NULL));
    batch_a = open_rows(f, 0, 1, &again);
    cr_assert(memory_of(&again) != memory_of(&a) && memory_of(&again) != memory_of(&b));
    run_rows(f, f->queue, &again);
    OK(clinfer_kv_batch_commit(f->pool, batch_b, 0, NULL));
    OK(clinfer_kv_batch_commit(f->pool, batch_a, 0, NULL));
    expect_plain_rows(f);
    close_flight(f);
}

// The work is on another queue than the batch: its event, at commit, keeps the memory.
Test(kv_pool_flight, work_on_another_queue)
{
    struct flight flight, *f = &flight;
    struct clinfer_kv_batch_info first, second;
    open_flight(f, 0);
    clinfer_kv_pool_batch batch = open_rows(f, 0, 3, &first);
    cl_command_queue other = new_queue(f->ctx, 0);
    run_rows(f, other, &first);
    OK(clFlush(other));
    OK(clinfer_kv_batch_commit(f->pool, batch, 1, &f->done[0]));
    const int64_t none[3] = { 0, 0, 0 };
    OK(clinfer_kv_batch_create(
        f->pool,
        clinfer_kv_batch_params(.queue = f->queue, .num_seqs = 3, .seqs = f->p.seq, .new_tokens = none),
        &batch));
    OK(clinfer_kv_batch_info(f->pool, batch, &second));
    cr_assert_neq(memory_of(&second), memory_of(&first), "memory that the other queue has yet to read");
    usleep(50 * 1000);
    cr_assert(state_of(second.ready) > CL_COMPLETE, "the next batch does not wait for the other queue");
    OK(clinfer_kv_batch_drop(f->pool, batch, 0, NULL));
    expect_plain_rows(f);
    OK(clFinish(other));
    clReleaseCommandQueue(other);
    close_flight(f);
}

// An event that fails ends its batch; the next one is not drawn in, nor does it take that one's memory.
Test(kv_pool_flight, failed_work)
{
    struct flight flight, *f = &flight;
    struct clinfer_kv_batch_info first, second;
    cl_event marker;
    cl_int err;
    open_flight(f, 0);
    clinfer_kv_pool_batch batch = open_rows(f, 0, 3, &first);
    cl_event failing = clCreateUserEvent(clinfer_ctx_cl_context(f->ctx), &err);
    OK(clWaitForEvents(1, &first.ready));
    OK(clRetainMemObject(memory_of(&first)));
    OK(clEnqueueMarkerWithWaitList(f->side, 1, &failing, &marker));
    OK(clinfer_kv_batch_drop(f->pool, batch, 1, &failing));
    OK(clSetUserEventStatus(failing, -5));
    usleep(50 * 1000);
    batch = open_rows(f, 0, 3, &second);
    // Intel's CPU runtime calls a marker complete whose event failed.
    cr_assert(state_of(marker) == CL_COMPLETE || memory_of(&second) != memory_of(&first));
    OK(clWaitForEvents(1, &second.ready));
    OK(clinfer_kv_batch_drop(f->pool, batch, 0, NULL));
    OK(clReleaseMemObject(memory_of(&first)));
    clReleaseEvent(failing);
    clReleaseEvent(marker);
    close_flight(f);
}
