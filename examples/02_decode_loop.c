// SPDX-License-Identifier: Apache-2.0
// A decode loop over the engine's page pool: one layer with multi-head latent attention, requests that come
// and go, one token each a step. Nothing waits for the device before the end. Every request gets the same
// inputs, only some steps later and beside others: with a fixed split count its outputs are the same bits.
#include <clinfer/clinfer.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HEADS = 4, LATENT = 64, ROPE = 16, NOPE = 32, VALUE = 32, ROW = LATENT + ROPE, QUERY = NOPE + ROPE };
enum { REQUESTS = 3, TOKENS = 40, LATER = 7, STEPS = TOKENS + LATER * (REQUESTS - 1) };
enum { RESULT = HEADS * VALUE };

static clinfer_ctx *ctx;
static cl_command_queue queue;
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

static cl_mem buffer(size_t count, const float *from)
{
    cl_int err;
    cl_mem mem = clCreateBuffer(clinfer_ctx_cl_context(ctx), from ? CL_MEM_COPY_HOST_PTR : CL_MEM_READ_WRITE,
                                count * sizeof(float), (void *) (uintptr_t) from, &err);
    check(err, "clCreateBuffer");
    return mem;
}

// What other layers would have computed.
static cl_mem made_up(size_t count, float size)
{
    float *x = malloc(count * sizeof *x);
    check(!x, "malloc");
    for (size_t i = 0; i < count; i++)
        x[i] = size * sinf(1.7f * (float) i + 0.3f * (float) (i % 13));
    cl_mem mem = buffer(count, x);
    free(x);
    return mem;
}

static cl_mem rotations(void)
{
    static float table[TOKENS][ROPE];
    for (int position = 0; position < TOKENS; position++)
        for (int p = 0; p < ROPE / 2; p++) {
            const float angle = (float) position * powf(10000.0f, -2.0f * (float) p / ROPE);
            table[position][2 * p] = cosf(angle);
            table[position][2 * p + 1] = sinf(angle);
        }
    return buffer(TOKENS * ROPE, table[0]);
}

static void copy(cl_mem from, size_t from_row, cl_mem to, size_t to_row, size_t count)
{
    const size_t bytes = count * sizeof(float);
    check(clEnqueueCopyBuffer(queue, from, to, from_row * bytes, to_row * bytes, bytes, 0, NULL, NULL),
          "copy");
}

int main(void)
{
    char error[256];
    check(clinfer_ctx_create(&ctx, clinfer_ctx_params(.error = error, .error_size = sizeof error)), error);
    queue = clinfer_ctx_queue(ctx);
    clinfer_kv_pool *pool;
    check(clinfer_kv_pool_create(&pool, ctx,
                                 clinfer_kv_pool_params(.mla = 1, .head_size = ROW, .page_size = 16,
                                                        .dtype = CLINFER_F32, .num_pages = 12)),
          "pool");

    cl_mem rows = made_up(TOKENS * ROW, 1.0f), queries = made_up(TOKENS * HEADS * QUERY, 1.0f);
    cl_mem x = buffer(REQUESTS * ROW, NULL), q = buffer(REQUESTS * HEADS * QUERY, NULL),
           y = buffer(REQUESTS * RESULT, NULL);
    cl_mem results = buffer((size_t) REQUESTS * TOKENS * RESULT, NULL);
    struct clinfer_mla_decode_branch_params layer = {
        .kv_norm_gamma = clinfer_tensor_1d(made_up(LATENT, 1.0f), CLINFER_F32, LATENT),
        .freqs_cis = clinfer_tensor_2d(rotations(), CLINFER_F32, TOKENS, ROPE),
        .w_uk = clinfer_tensor_3d(made_up(HEADS * LATENT * NOPE, 0.2f), CLINFER_F32, HEADS, LATENT, NOPE),
        .w_uv = clinfer_tensor_3d(made_up(HEADS * VALUE * LATENT, 0.2f), CLINFER_F32, HEADS, VALUE, LATENT),
        .kv = clinfer_kv_pool_layer(pool, 0),
        .epsilon = 1e-6f,
        .scale = 0.144f, // 1 / sqrt(QUERY)
        .max_context = TOKENS,
        .num_splits = 2,
    };

    clinfer_kv_seq seq[REQUESTS];
    for (int step = 0; step < STEPS; step++) {
        // The requests of this step, their inputs side by side.
        clinfer_kv_seq live[REQUESTS];
        int64_t one[REQUESTS];
        int request[REQUESTS], token[REQUESTS], n = 0;
        for (int r = 0; r < REQUESTS; r++) {
            const int t = step - LATER * r;
            if (t < 0 || t >= TOKENS)
                continue;
            if (t == 0)
                check(clinfer_kv_seq_create(pool, &seq[r]), "sequence");
            copy(rows, (size_t) t, x, (size_t) n, ROW);
            copy(queries, (size_t) t, q, (size_t) n, HEADS * QUERY);
            live[n] = seq[request[n] = r];
            token[n] = t;
            one[n++] = 1;
        }
        clinfer_kv_pool_batch batch;
        struct clinfer_kv_batch_info info;
        check(clinfer_kv_batch_create(
                  pool, clinfer_kv_batch_params(.num_seqs = n, .seqs = live, .new_tokens = one), &batch),
              "batch");
        check(clinfer_kv_batch_info(pool, batch, &info), "batch");

        check(clinfer_kv_store(ctx,
                               clinfer_kv_store_params(.k = clinfer_tensor_3d(x, CLINFER_F32, n, 1, ROW),
                                                       .kv = layer.kv, .batch = info.tensors),
                               0, NULL, NULL),
              "store");
        layer.q = clinfer_tensor_3d(q, CLINFER_F32, n, HEADS, QUERY);
        layer.output = clinfer_tensor_3d(y, CLINFER_F32, n, HEADS, VALUE);
        layer.batch = info.tensors;
        check(clinfer_mla_decode_branch(ctx, &layer, 0, NULL, NULL), "attention");
        check(clinfer_kv_batch_commit(pool, batch, 0, NULL), "commit");

        for (int i = 0; i < n; i++) {
            copy(y, (size_t) i, results, (size_t) (request[i] * TOKENS + token[i]), RESULT);
            if (token[i] == TOKENS - 1)
                check(clinfer_kv_seq_free(pool, live[i]), "free");
        }
    }

    struct clinfer_fault fault;
    check(clinfer_ctx_fault(ctx, NULL, &fault), "fault");
    static float out[REQUESTS][TOKENS * RESULT];
    check(clEnqueueReadBuffer(queue, results, CL_TRUE, 0, sizeof out, out, 0, NULL, NULL), "read");
    int wrong = fault.code != CLINFER_FAULT_NONE || !(fabsf(out[0][TOKENS * RESULT - 1]) > 0.0f);
    for (int r = 1; r < REQUESTS; r++)
        wrong |= memcmp(out[r], out[0], sizeof out[0]) != 0;
    printf("%d requests of %d tokens in %d steps: %s\n", REQUESTS, TOKENS, STEPS,
           wrong ? "WRONG" : "the same bits each");
    clinfer_kv_pool_destroy(&pool);
    clinfer_ctx_destroy(&ctx);
    return wrong;
}
