// SPDX-License-Identifier: Apache-2.0
// One operation in a program that already has its OpenCL: its context, queue and buffers, an event, no
// copies. Two requests add one token each to a paged KV cache in bf16; RMSNorm runs over their new K rows, in
// place.
#include <clinfer/clinfer.h>
#include <stdio.h>
#include <stdlib.h>

enum { PAGES = 4, PAGE_SIZE = 16, HEADS = 2, HEAD_SIZE = 64, REQUESTS = 2 };
enum { ROW = HEADS * HEAD_SIZE, PLANE = PAGE_SIZE * ROW, CACHE = PAGES * 2 * PLANE };

static void check(int status, const char *what)
{
    if (status) {
        fprintf(stderr, "%s: %s\n", what, clinfer_status_str((clinfer_status) status));
        exit(1);
    }
}

static cl_mem buffer(cl_context cl, size_t bytes, const void *from)
{
    cl_int err;
    cl_mem mem =
        clCreateBuffer(cl, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, bytes, (void *) (uintptr_t) from, &err);
    check(err, "clCreateBuffer");
    return mem;
}

int main(void)
{
    // What the program has anyway.
    cl_platform_id platform;
    cl_device_id device;
    cl_int err;
    check(clGetPlatformIDs(1, &platform, NULL), "clGetPlatformIDs");
    check(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL), "clGetDeviceIDs");
    cl_context cl = clCreateContext(NULL, 1, &device, NULL, NULL, &err);
    check(err, "clCreateContext");
    cl_command_queue queue = clCreateCommandQueue(cl, device, 0, &err);
    check(err, "clCreateCommandQueue");

    // A cache full of 3.0, and which slots are new: request 0 has 20 tokens on pages 3 and 0, request 1 none.
    static uint16_t blocks[CACHE];
    for (int i = 0; i < CACHE; i++)
        blocks[i] = 0x4040; // 3.0 in bf16
    static float gamma[HEAD_SIZE];
    for (int i = 0; i < HEAD_SIZE; i++)
        gamma[i] = 0.5f;
    const uint32_t offsets[REQUESTS + 1] = { 0, 1, 2 }, lengths[REQUESTS] = { 20, 0 },
                                      table[REQUESTS][2] = { { 3, 0 }, { 1, 0 } };
    cl_mem kv = buffer(cl, sizeof blocks, blocks), g = buffer(cl, sizeof gamma, gamma),
           o = buffer(cl, sizeof offsets, offsets), l = buffer(cl, sizeof lengths, lengths),
           t = buffer(cl, sizeof table, table);

    // The engine on that queue, and the call.
    clinfer_ctx *ctx;
    char error[256];
    if (clinfer_ctx_create(&ctx,
                           clinfer_ctx_params(.queue = queue, .error = error, .error_size = sizeof error))) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    cl_event done;
    clinfer_status st = clinfer_rms_norm_kv_cache(
        ctx,
        clinfer_rms_norm_kv_cache_params(
                .gamma = clinfer_tensor_1d(g, CLINFER_F32, HEAD_SIZE),
                .kv = { .mem = kv,
                        .dtype = CLINFER_BF16,
                        .num_pages = PAGES,
                        .page_size = PAGE_SIZE,
                        .num_heads = HEADS,
                        .head_size = HEAD_SIZE },
                .batch = { .input_row_offsets = clinfer_tensor_1d(o, CLINFER_U32, REQUESTS + 1),
                           .cache_lengths = clinfer_tensor_1d(l, CLINFER_U32, REQUESTS),
                           .lookup_table = clinfer_tensor_2d(t, CLINFER_U32, REQUESTS, 2) },
                .total_seq_len = 2, .epsilon = 1e-6f),
        0, NULL, &done);
    if (st) {
        clinfer_ctx_error(ctx, error, sizeof error);
        fprintf(stderr, "%s\n", error);
        return 1;
    }
    check(clEnqueueReadBuffer(queue, kv, CL_TRUE, 0, sizeof blocks, blocks, 1, &done, NULL),
          "clEnqueueReadBuffer");

    // A row of equal values has an RMS of that value: the new rows are gamma, all else is as before.
    int wrong = 0;
    for (int page = 0; page < PAGES; page++)
        for (int i = 0; i < 2 * PLANE; i++) {
            const int is_new = (page == 0 && i / ROW == 20 - PAGE_SIZE) || (page == 1 && i / ROW == 0);
            wrong += blocks[page * 2 * PLANE + i] != (is_new ? 0x3f00 : 0x4040);
        }
    printf("%d new K rows normalised in place, %d of %d elements wrong\n", REQUESTS, wrong, CACHE);

    clinfer_ctx_destroy(&ctx); // stores the compiled kernels for the next start
    clReleaseEvent(done);
    clReleaseMemObject(kv), clReleaseMemObject(g), clReleaseMemObject(o), clReleaseMemObject(l),
        clReleaseMemObject(t);
    clReleaseCommandQueue(queue);
    clReleaseContext(cl);
    return wrong != 0;
}
