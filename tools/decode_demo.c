// SPDX-License-Identifier: Apache-2.0
// decode_demo CASE STEPS: the weights of an mla_decode_branch case file in a decode loop over the page pool:
// two requests, kv_store and mla_decode_branch a step, one wait at the end. Every step is then done again by
// the scalar reference, on a cache of its own.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../ref/ref.h"
#include "cli.h"
#include "opcase.h"

enum { REQUESTS = 2, PAGE_SIZE = 16 };

// The second request starts later.
static int64_t late(int64_t steps)
{
    return steps / 4;
}

struct demo {
    struct op_case c;
    struct op_device weights;
    struct clinfer_mla_decode_branch_params like, params; // of the case, on the host and on the device
    clinfer_ctx *ctx;
    cl_command_queue queue;
    clinfer_kv_pool *pool;
    int64_t steps, tokens, columns;   // columns: R, of the table
    int64_t heads, query, row, width; // elements of a token: query, cache row, outputs
    float *table;                     // [steps, R]
    uint16_t *x, *q, *want, *got;     // bf16: rows and queries of each token, outputs
    cl_mem table_mem, x_mem, q_mem, y_mem;
};

static bool check(struct demo *d, int status, const char *what)
{
    char text[512] = "";
    if (!status)
        return true;
    if (d->ctx)
        (void) clinfer_ctx_error(d->ctx, text, sizeof text);
    cli_error("%s: %s %s", what, clinfer_status_str((clinfer_status) status), text);
    return false;
}

// The case's table is short; the angle of a pair is that of position 1, times the position.
static void fill_table(struct demo *d)
{
    for (int64_t position = 0; position < d->steps; position++)
        for (int64_t p = 0; p < d->columns; p += 2) {
            const double angle = (double) position * atan2(ref_get(&d->like.freqs_cis, 1, p + 1, 0),
                                                           ref_get(&d->like.freqs_cis, 1, p, 0));
            d->table[position * d->columns + p] = (float) cos(angle);
            d->table[position * d->columns + p + 1] = (float) sin(angle);
        }
}

// Rows and a query of the case, each time a little different.
static void fill_tokens(struct demo *d)
{
    const uint16_t *blocks = (const uint16_t *) (void *) d->like.kv.mem,
                   *q = (const uint16_t *) (void *) d->like.q.mem;
    const int64_t cached = ref_u32(&d->like.batch.cache_lengths, 0, 0);
    for (int64_t t = 0; t < d->tokens; t++) {
        const int64_t page = ref_page(&d->like.batch, &d->like.kv, 0, t % cached),
                      slot = t % cached % d->like.kv.page_size;
        for (int64_t i = 0; i < d->row; i++)
            ref_store(d->x, CLINFER_BF16, t * d->row + i,
                      ref_load(blocks + (page * d->like.kv.page_size + slot) * d->row, CLINFER_BF16, i) +
                          0.1 * sin((double) (t + i)));
        for (int64_t i = 0; i < d->query; i++)
            ref_store(d->q, CLINFER_BF16, t * d->query + i,
                      ref_load(q, CLINFER_BF16, i) * (1.0 + 0.2 * sin((double) (3 * t + i))));
    }
}

static cl_mem buffer(struct demo *d, size_t bytes, void *from, bool *ok)
{
    cl_int err;
    cl_mem mem = clCreateBuffer(clinfer_ctx_cl_context(d->ctx),
                                CL_MEM_READ_WRITE | (from ? CL_MEM_COPY_HOST_PTR : 0), bytes, from, &err);
    *ok = *ok && check(d, err, "buffer");
    return mem;
}

static bool load(struct demo *d, const char *path)
{
    char error[1024];
    if (!op_case_load(path, &d->c, error, sizeof error)) {
        cli_error("%s", error);
        return false;
    }
    op_case_reset(&d->c);
    d->like = *(struct clinfer_mla_decode_branch_params *) d->c.params;
    if (strcmp(d->c.op->name, "mla_decode_branch") || d->like.q.dtype != CLINFER_BF16 ||
        d->like.kv.dtype != CLINFER_BF16 || d->like.freqs_cis.dtype != CLINFER_F32) {
        cli_error("%s is no mla_decode_branch case in bf16 with a table in f32", path);
        return false;
    }
    d->heads = d->like.q.shape[1];
    d->query = d->heads * d->like.q.shape[2];
    d->row = d->like.kv.head_size;
    d->width = d->heads * d->like.output.shape[2];
    d->columns = d->like.freqs_cis.shape[1];
    d->tokens = REQUESTS * d->steps;
    d->table = calloc((size_t) (d->steps * d->columns), sizeof *d->table);
    d->x = calloc((size_t) (d->tokens * d->row), 2);
    d->q = calloc((size_t) (d->tokens * d->query), 2);
    d->want = calloc((size_t) (d->tokens * d->width), 2);
    d->got = calloc((size_t) (d->tokens * d->width), 2);
    return d->table && d->x && d->q && d->want && d->got;
}

static bool open_device(struct demo *d, const struct cli_options *options)
{
    char error[1024];
    if (!(d->ctx = cli_context(options)))
        return false;
    d->queue = clinfer_ctx_queue(d->ctx);
    if (!op_device_open(&d->c, clinfer_ctx_cl_context(d->ctx), &d->weights, error, sizeof error) ||
        !op_device_upload(&d->c, &d->weights, d->queue, error, sizeof error)) {
        cli_error("%s", error);
        return false;
    }
    bool ok = true;
    d->table_mem = buffer(d, (size_t) (d->steps * d->columns) * 4, d->table, &ok);
    d->x_mem = buffer(d, (size_t) (d->tokens * d->row) * 2, d->x, &ok);
    d->q_mem = buffer(d, (size_t) (d->tokens * d->query) * 2, d->q, &ok);
    d->y_mem = buffer(d, (size_t) (d->tokens * d->width) * 2, d->got, &ok);
    d->params = *(struct clinfer_mla_decode_branch_params *) d->weights.params;
    d->params.freqs_cis = clinfer_tensor_2d(d->table_mem, CLINFER_F32, d->steps, d->columns);
    d->params.max_context = d->steps;
    const struct clinfer_kv_pool_params pool = { .mla = 1,
                                                 .head_size = d->row,
                                                 .page_size = PAGE_SIZE,
                                                 .dtype = CLINFER_BF16,
                                                 .num_pages = REQUESTS * (d->steps / PAGE_SIZE + 1) };
    return ok && check(d, clinfer_kv_pool_create(&d->pool, d->ctx, &pool), "pool");
}

// Tokens of a step are neighbours in every tensor: token 0 of it is 2 * step.
static clinfer_tensor part(clinfer_tensor like, cl_mem mem, int64_t tokens, int64_t first, int64_t elements)
{
    like.mem = mem;
    like.offset = (size_t) (first * elements) * 2;
    like.shape[0] = tokens;
    return like;
}

static void set_step(const struct demo *d, int64_t step, int64_t tokens, cl_mem x, cl_mem q, cl_mem y,
                     struct clinfer_kv_store_params *store, struct clinfer_mla_decode_branch_params *decode)
{
    const int64_t first = REQUESTS * step;
    store->k = part(clinfer_tensor_3d(NULL, CLINFER_BF16, 0, 1, d->row), x, tokens, first, d->row);
    decode->q = part(d->like.q, q, tokens, first, d->query);
    decode->output = part(d->like.output, y, tokens, first, d->width);
}

static bool device_step(struct demo *d, int64_t step, const clinfer_kv_seq *seqs)
{
    static const int64_t one[REQUESTS] = { 1, 1 };
    const int64_t n = step < late(d->steps) ? 1 : REQUESTS;
    clinfer_kv_pool_batch batch;
    struct clinfer_kv_batch_info info;
    if (!check(d,
               clinfer_kv_batch_create(
                   d->pool, clinfer_kv_batch_params(.num_seqs = n, .seqs = seqs, .new_tokens = one), &batch),
               "batch") ||
        !check(d, clinfer_kv_batch_info(d->pool, batch, &info), "batch"))
        return false;
    struct clinfer_kv_store_params store = { .kv = clinfer_kv_pool_layer(d->pool, 0), .batch = info.tensors };
    set_step(d, step, n, d->x_mem, d->q_mem, d->y_mem, &store, &d->params);
    d->params.kv = store.kv;
    d->params.batch = info.tensors;
    return check(d, clinfer_kv_store(d->ctx, &store, 0, NULL, NULL), "kv_store") &&
           check(d, clinfer_mla_decode_branch(d->ctx, &d->params, 0, NULL, NULL), "mla_decode_branch") &&
           check(d, clinfer_kv_batch_commit(d->pool, batch, 0, NULL), "commit");
}

static double now(void)
{
    struct timespec t;
    (void) clock_gettime(CLOCK_MONOTONIC, &t);
    return (double) t.tv_sec + 1e-9 * (double) t.tv_nsec;
}

// All steps; *ms is the time of one, those left out that are the first of their kind and compile.
static bool run_device(struct demo *d, double *ms)
{
    clinfer_kv_seq seqs[REQUESTS];
    double start = 0;
    for (int r = 0; r < REQUESTS; r++)
        if (!check(d, clinfer_kv_seq_create(d->pool, &seqs[r]), "sequence"))
            return false;
    for (int64_t step = 0; step < d->steps; step++) {
        if (!device_step(d, step, seqs))
            return false;
        if (step == late(d->steps)) {
            if (!check(d, clFinish(d->queue), "clFinish"))
                return false;
            start = now();
        }
    }
    struct clinfer_fault fault;
    if (!check(d, clinfer_ctx_fault(d->ctx, NULL, &fault), "fault"))
        return false;
    *ms = 1e3 * (now() - start) / (double) (d->steps - late(d->steps) - 1);
    if (fault.code != CLINFER_FAULT_NONE)
        cli_error("the device recorded a fault: %s", clinfer_fault_str(fault.code));
    return fault.code == CLINFER_FAULT_NONE &&
           check(d,
                 clEnqueueReadBuffer(d->queue, d->y_mem, CL_TRUE, 0, (size_t) (d->tokens * d->width) * 2,
                                     d->got, 0, NULL, NULL),
                 "reading results");
}

static bool run_reference(struct demo *d)
{
    const int64_t pages = d->steps / PAGE_SIZE + 1;
    uint16_t *cache = calloc((size_t) (REQUESTS * pages * PAGE_SIZE * d->row), 2);
    uint32_t *table = calloc((size_t) (REQUESTS * pages), 4), offsets[REQUESTS + 1] = { 0 },
             lengths[REQUESTS] = { 0 };
    if (!cache || !table) {
        free(cache);
        free(table);
        return false;
    }
    for (int64_t i = 0; i < REQUESTS * pages; i++)
        table[i] = (uint32_t) i;
    clinfer_kv_cache kv = { .mem = (cl_mem) (void *) cache,
                            .dtype = CLINFER_BF16,
                            .num_pages = REQUESTS * pages,
                            .planes = 1,
                            .page_size = PAGE_SIZE,
                            .num_heads = 1,
                            .head_size = d->row };
    struct clinfer_mla_decode_branch_params decode = d->like;
    decode.freqs_cis = clinfer_tensor_2d((cl_mem) (void *) d->table, CLINFER_F32, d->steps, d->columns);
    for (int64_t step = 0; step < d->steps; step++) {
        const int64_t n = step < late(d->steps) ? 1 : REQUESTS;
        struct clinfer_kv_store_params store = { .kv = kv };
        for (int64_t r = 0; r < n; r++) {
            offsets[r + 1] = (uint32_t) (r + 1);
            lengths[r] = (uint32_t) (step - (r ? late(d->steps) : 0));
        }
        store.batch = (clinfer_kv_batch){ clinfer_tensor_1d((cl_mem) (void *) offsets, CLINFER_U32, n + 1),
                                          clinfer_tensor_1d((cl_mem) (void *) lengths, CLINFER_U32, n),
                                          clinfer_tensor_2d((cl_mem) (void *) table, CLINFER_U32, n, pages) };
        set_step(d, step, n, (cl_mem) (void *) d->x, (cl_mem) (void *) d->q, (cl_mem) (void *) d->want,
                 &store, &decode);
        decode.kv = kv;
        decode.batch = store.batch;
        ref_kv_store(&store);
        ref_mla_decode_branch(&decode);
    }
    free(cache);
    free(table);
    return true;
}

// Root mean square of the differences as a part of the outputs'. Single outputs differ by more where a code
// of fp8 falls to the other side of a tie.
static double difference(const struct demo *d)
{
    double sum = 0, off = 0;
    for (int64_t i = 0; i < d->tokens * d->width; i++) {
        const double want = ref_load(d->want, CLINFER_BF16, i), got = ref_load(d->got, CLINFER_BF16, i);
        sum += want * want;
        off += (got - want) * (got - want);
    }
    return sqrt(off / sum);
}

static void close_demo(struct demo *d)
{
    cl_mem mems[] = { d->table_mem, d->x_mem, d->q_mem, d->y_mem };
    for (size_t i = 0; i < sizeof mems / sizeof mems[0]; i++)
        if (mems[i])
            (void) clReleaseMemObject(mems[i]);
    op_device_close(&d->weights);
    clinfer_kv_pool_destroy(&d->pool);
    clinfer_ctx_destroy(&d->ctx);
    op_case_free(&d->c);
    void *memory[] = { d->table, d->x, d->q, d->want, d->got };
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        free(memory[i]);
}

static int run(struct demo *d, const struct cli_options *options)
{
    const double limit = 0.005;
    double ms = 0;
    if (!load(d, options->operands[0]))
        return CLI_WRONG;
    fill_table(d);
    fill_tokens(d);
    if (!open_device(d, options) || !run_device(d, &ms) || !run_reference(d))
        return CLI_WRONG;
    struct clinfer_device_info info;
    clinfer_ctx_device_info(d->ctx, &info);
    const double off = difference(d);
    printf("%s: %lld decode steps, %d requests: %.3f ms a step; off by %.3f %% (RMS, limit %.1f %%): %s\n",
           info.platform, (long long) d->steps, REQUESTS, ms, 100 * off, 100 * limit,
           off <= limit ? "ok" : "WRONG");
    return off <= limit ? CLI_RIGHT : CLI_WRONG;
}

int main(int argc, char **argv)
{
    static const struct cli_command command = { "decode_demo CASE STEPS [--device D] [--set row|group]",
                                                CLI_DEVICE | CLI_VARIANT, 2, 2 };
    struct cli_options options;
    struct demo d = { .steps = 0 };
    int status;
    if (!cli_parse(argc, argv, &command, &options, &status))
        return status;
    d.steps = strtol(options.operands[1], NULL, 10);
    if (d.steps < 8 || d.steps > 100000) {
        cli_error("STEPS is %s, want 8 to 100000", options.operands[1]);
        return CLI_USAGE;
    }
    status = run(&d, &options);
    close_demo(&d);
    return cli_finish(status);
}
