// SPDX-License-Identifier: Apache-2.0
// What an app ships with: a folder of its own for compiled programs, so that its second start compiles
// nothing, and a workspace of its own, so that a step allocates nothing. `03_own_cache_and_workspace FOLDER`,
// twice.
#include <clinfer/clinfer.h>
#include <stdio.h>
#include <stdlib.h>

enum { HEADS = 16, LATENT = 64, ROPE = 16, NOPE = 32, VALUE = 32, MAX_TOKENS = 8, PAGES = 4, PAGE_SIZE = 16 };

static clinfer_ctx *ctx;

static void check(int status, const char *what)
{
    char text[256] = "";
    if (!status)
        return;
    if (ctx)
        clinfer_ctx_error(ctx, text, sizeof text);
    fprintf(stderr, "%s: %s %s\n", what, clinfer_status_str((clinfer_status) status), text);
    exit(1);
}

static cl_mem buffer(size_t bytes)
{
    cl_int err;
    cl_mem mem = clCreateBuffer(clinfer_ctx_cl_context(ctx), CL_MEM_READ_WRITE, bytes, NULL, &err);
    check(err, "clCreateBuffer");
    const cl_uint zero = 0;
    check(clEnqueueFillBuffer(clinfer_ctx_queue(ctx), mem, &zero, sizeof zero, 0, bytes, 0, NULL, NULL),
          "fill");
    return mem;
}

static clinfer_tensor tensor(int rank, int64_t n0, int64_t n1, int64_t n2)
{
    const int64_t n = n0 * (rank > 1 ? n1 : 1) * (rank > 2 ? n2 : 1);
    return clinfer_tensor_of(buffer((size_t) n * 4), CLINFER_F32, rank, n0, n1, n2);
}

int main(int argc, char **argv)
{
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    char error[256];
    if (clinfer_ctx_create(&ctx, clinfer_ctx_params(.cache_dir = argv[1], .cache_max_bytes = 32 << 20,
                                                    .error = error, .error_size = sizeof error))) {
        fprintf(stderr, "%s\n", error);
        return 1;
    }

    // One request; zeros everywhere are a legal call: its one token sees a zero row, and gives zeros.
    static const cl_uint offsets[2] = { 0, 1 };
    struct clinfer_mla_decode_branch_params layer = {
        .q = tensor(3, MAX_TOKENS, HEADS, NOPE + ROPE),
        .kv_norm_gamma = tensor(1, LATENT, 0, 0),
        .freqs_cis = tensor(2, PAGES * PAGE_SIZE, ROPE, 0),
        .w_uk = tensor(3, HEADS, LATENT, NOPE),
        .w_uv = tensor(3, HEADS, VALUE, LATENT),
        .output = tensor(3, MAX_TOKENS, HEADS, VALUE),
        .kv = { .mem = buffer((size_t) PAGES * PAGE_SIZE * (LATENT + ROPE) * 4),
                .dtype = CLINFER_F32,
                .num_pages = PAGES,
                .planes = 1,
                .page_size = PAGE_SIZE,
                .num_heads = 1,
                .head_size = LATENT + ROPE },
        .batch = { .input_row_offsets = clinfer_tensor_1d(buffer(8), CLINFER_U32, 2),
                   .cache_lengths = clinfer_tensor_1d(buffer(4), CLINFER_U32, 1),
                   .lookup_table = clinfer_tensor_2d(buffer(PAGES * 4), CLINFER_U32, 1, PAGES) },
        .epsilon = 1e-6f,
        .scale = 0.144f,
    };
    check(clEnqueueWriteBuffer(clinfer_ctx_queue(ctx), layer.batch.input_row_offsets.mem, CL_TRUE, 0,
                               sizeof offsets, offsets, 0, NULL, NULL),
          "offsets");

    // Before the first request: programs from the folder or the compiler, scratch for the largest step.
    check(clinfer_mla_decode_branch_compile(ctx, &layer), "compile");
    size_t bytes;
    check(clinfer_mla_decode_branch_workspace(ctx, &layer, &bytes), "workspace");
    layer.workspace = buffer(bytes);

    check(clinfer_mla_decode_branch(ctx, &layer, 0, NULL, NULL), "attention");
    check(clinfer_ctx_save(ctx), "save"); // at a quiet moment: it blocks

    struct clinfer_fault fault;
    struct clinfer_ctx_stats stats;
    check(clinfer_ctx_fault(ctx, NULL, &fault), "fault");
    clinfer_ctx_stats(ctx, &stats);
    printf("%llu programs compiled, %llu from %s, %llu stored; workspace %zu bytes, arena %llu\n",
           (unsigned long long) stats.compiled, (unsigned long long) stats.loaded, argv[1],
           (unsigned long long) stats.stored, bytes, (unsigned long long) stats.arena_bytes);
    clinfer_ctx_destroy(&ctx);
    return fault.code != CLINFER_FAULT_NONE || stats.arena_bytes != 0;
}
