// SPDX-License-Identifier: Apache-2.0
// The record of the first fault that a kernel saw; cl/lib/paged.clh writes it.
#include "ctx.h"
#include <stdio.h>

// A record without a code is one that a kernel on another queue is still writing.
enum { RECORD_CLAIM, RECORD_OP, RECORD_TOKEN, RECORD_VALUE, RECORD_CODE };
_Static_assert(RECORD_CODE + 1 == CLF_FAULT_WORDS, "the record ends with the code");

clinfer_status clf_fault_init(clinfer_ctx *ctx)
{
    cl_uint zero[CLF_FAULT_WORDS] = { 0 };
    cl_int err;
    ctx->fault = clCreateBuffer(ctx->cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof zero, zero, &err);
    return (clinfer_status) err;
}

// A blocking write has taken its data when it returns, no more: its event says when other queues see it.
// Where that cannot be waited for, the fault that was read is still the caller's to know.
static cl_int clear(clinfer_ctx *ctx, cl_command_queue queue)
{
    static const cl_uint zero[CLF_FAULT_WORDS] = { 0 };
    cl_event written;
    cl_int err = clEnqueueWriteBuffer(queue, ctx->fault, CL_FALSE, 0, sizeof zero, zero, 0, NULL, &written);
    if (err)
        return err;
    err = clWaitForEvents(1, &written);
    clReleaseEvent(written);
    if (err)
        clf_log(ctx, CLINFER_LOG_WARN, "clearing the fault record: clWaitForEvents: %s",
                clinfer_status_str((clinfer_status) err));
    return CL_SUCCESS;
}

clinfer_status clinfer_ctx_fault(clinfer_ctx *ctx, cl_command_queue queue, struct clinfer_fault *fault)
{
    cl_uint record[CLF_FAULT_WORDS] = { 0 };
    *fault = (struct clinfer_fault){ CLINFER_FAULT_NONE, NULL, 0, 0 };
    if (!queue)
        queue = ctx->queue;
    cl_int err = clFinish(queue); // an out-of-order queue has no other order to follow
    pthread_mutex_lock(&ctx->fault_lock);
    if (!err)
        err = clEnqueueReadBuffer(queue, ctx->fault, CL_TRUE, 0, sizeof record, record, 0, NULL, NULL);
    if (!err && record[RECORD_CODE])
        err = clear(ctx, queue);
    pthread_mutex_unlock(&ctx->fault_lock);
    if (err) {
        char text[128];
        snprintf(text, sizeof text, "fault record cannot be read: %s",
                 clinfer_status_str((clinfer_status) err));
        return clf_error(ctx, (clinfer_status) err, text);
    }
    if (record[RECORD_CODE]) {
        fault->code = (clinfer_fault_code) record[RECORD_CODE];
        fault->op = record[RECORD_OP] < CLF_NUM_OPS ? clf_ops[record[RECORD_OP]]->name : "?";
        fault->token = record[RECORD_TOKEN];
        fault->value = record[RECORD_VALUE];
    }
    return CLINFER_OK;
}

const char *clinfer_fault_str(clinfer_fault_code code)
{
    switch (code) {
    case CLINFER_FAULT_NONE:
        return "no fault";
    case CLINFER_FAULT_OFFSETS:
        return "input_row_offsets do not ascend from 0 to at most T";
    case CLINFER_FAULT_PAGE:
        return "a page id past the cache's pages";
    case CLINFER_FAULT_LENGTH:
        return "a position past the lookup table's columns";
    case CLINFER_FAULT_POSITION:
        return "a position past the rows of freqs_cis";
    }
    return "unknown fault";
}
