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
#include "decode_demo.h"

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

static bool take_case(struct demo *d)
{
    if (strcmp(d->c.op->name, "mla_decode_branch"))
        return false;
    d->like = *(struct clinfer_mla_decode_branch_params *) d->c.params;
    return d->like.q.dtype == CLINFER_BF16 && d->like.kv.dtype == CLINFER_BF16 &&
           d->like.freqs_cis.dtype == CLINFER_F32 && d->like.freqs_cis.shape[0] > 1 &&
           d->like.batch.cache_lengths.shape[0] > 0 && ref_u32(&d->like.batch.cache_lengths, 0, 0) > 0;
}

static bool load(struct demo *d, const char *path)
{
    char error[1024];
    if (!op_case_load(path, &d->c, error, sizeof error)) {
        cli_error("%s", error);
        return false;
    }
    op_case_reset(&d->c);
    if (!take_case(d)) {
        cli_error("%s is no mla_decode_branch case in bf16 with cached tokens and a table of two rows in f32",
                  path);
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
    d->again = calloc((size_t) (d->tokens * d->width), 2);
    d->got = calloc((size_t) (d->tokens * d->width), 2);
    const bool ok = d->table && d->x && d->q && d->want && d->again && d->got;
    if (!ok)
        cli_error("no memory for %lld steps", (long long) d->steps);
    return ok;
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

static bool device_step(struct demo *d, int64_t step, const clinfer_kv_seq *seqs)
{
    static const int64_t one[REQUESTS] = { 1, 1 };
    const int64_t n = step < demo_late(d->steps) ? 1 : REQUESTS;
    clinfer_kv_pool_batch batch;
    struct clinfer_kv_batch_info info;
    if (!check(d,
               clinfer_kv_batch_create(
                   d->pool, clinfer_kv_batch_params(.num_seqs = n, .seqs = seqs, .new_tokens = one), &batch),
               "batch") ||
        !check(d, clinfer_kv_batch_info(d->pool, batch, &info), "batch"))
        return false;
    struct clinfer_kv_store_params store = { .kv = clinfer_kv_pool_layer(d->pool, 0), .batch = info.tensors };
    demo_set_step(d, step, n, d->x_mem, d->q_mem, d->y_mem, &store, &d->params);
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
        if (step == demo_late(d->steps)) {
            if (!check(d, clFinish(d->queue), "clFinish"))
                return false;
            start = now();
        }
    }
    struct clinfer_fault fault;
    if (!check(d, clinfer_ctx_fault(d->ctx, NULL, &fault), "fault"))
        return false;
    *ms = 1e3 * (now() - start) / (double) (d->steps - demo_late(d->steps) - 1);
    if (fault.code != CLINFER_FAULT_NONE)
        cli_error("the device recorded a fault: %s", clinfer_fault_str(fault.code));
    return fault.code == CLINFER_FAULT_NONE &&
           check(d,
                 clEnqueueReadBuffer(d->queue, d->y_mem, CL_TRUE, 0, (size_t) (d->tokens * d->width) * 2,
                                     d->got, 0, NULL, NULL),
                 "reading results");
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
    void *memory[] = { d->table, d->x, d->q, d->want, d->again, d->got };
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++)
        free(memory[i]);
}

static int run(struct demo *d, const struct cli_options *options)
{
    struct demo_verdict v;
    double ms = 0;
    if (!load(d, options->operands[0]))
        return CLI_WRONG;
    fill_table(d);
    fill_tokens(d);
    if (!open_device(d, options) || !run_device(d, &ms) || !demo_judge(d, &v))
        return CLI_WRONG;
    struct clinfer_device_info info;
    clinfer_ctx_device_info(d->ctx, &info);
    const bool ok = v.rms <= DEMO_RMS_LIMIT && !v.wrong;
    printf("%s: %lld decode steps, %d requests: %.3f ms a step; off by %.3f %% (RMS, limit %.1f %%), "
           "an element by %.2f %% (limit %.0f %%), %lld elements excused beside a tie, %lld wrong: %s\n",
           info.platform, (long long) d->steps, REQUESTS, ms, 100 * v.rms, 100 * DEMO_RMS_LIMIT,
           100 * v.worst, 100 * DEMO_ELEMENT_LIMIT, (long long) v.excused, (long long) v.wrong,
           ok ? "ok" : "WRONG");
    return ok ? CLI_RIGHT : CLI_WRONG;
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
    char *end;
    d.steps = strtol(options.operands[1], &end, 10);
    if (*end || d.steps < 8 || d.steps > 100000) {
        cli_error("STEPS is %s, want 8 to 100000", options.operands[1]);
        return CLI_USAGE;
    }
    status = run(&d, &options);
    close_demo(&d);
    return cli_finish(status);
}
