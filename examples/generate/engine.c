// SPDX-License-Identifier: Apache-2.0
#include "engine_internal.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

bool engine_ok(struct engine *e, int status, const char *what, struct error *error)
{
    char text[400] = "";
    if (!status)
        return true;
    (void) clinfer_ctx_error(e->ctx, text, sizeof text);
    return fail(error, "%s: %s", what, *text ? text : clinfer_status_str((clinfer_status) status));
}

bool engine_buffer(struct engine *e, size_t bytes, const void *from, cl_mem *mem, struct error *error)
{
    cl_mem *buffers = realloc(e->buffers, (size_t) (e->num_buffers + 1) * sizeof *buffers);
    if (!buffers)
        return fail(error, "out of memory for %d buffers", e->num_buffers + 1);
    e->buffers = buffers;
    cl_int err;
    *mem =
        clCreateBuffer(clinfer_ctx_cl_context(e->ctx), CL_MEM_READ_WRITE | (from ? CL_MEM_COPY_HOST_PTR : 0),
                       bytes, (void *) (uintptr_t) from, &err);
    if (err)
        return fail(error, "%zu bytes of device memory: %s", bytes, clinfer_status_str((clinfer_status) err));
    e->buffers[e->num_buffers++] = *mem;
    return true;
}

static bool rows_buffer(struct engine *e, int64_t rows, int64_t columns, cl_mem *mem, struct error *error)
{
    return columns == 0 || engine_buffer(e, (size_t) (rows * columns) * sizeof(float), NULL, mem, error);
}

static bool make_activations(struct engine *e, struct error *error)
{
    const struct model_params *p = &e->model->params;
    const int64_t T = e->params.max_tokens, H = e->heads, row = e->mla ? e->latent + e->rope : 0;
    return rows_buffer(e, T, p->width, &e->residual, error) &&
           rows_buffer(e, T, p->width, &e->normed, error) && rows_buffer(e, T, p->width, &e->delta, error) &&
           rows_buffer(e, T, e->mla ? 0 : (H + 2 * p->kv_heads) * p->head_size, &e->qkv, error) &&
           rows_buffer(e, T, p->q_lora, &e->q_latent, error) &&
           rows_buffer(e, T, e->mla ? H * (e->nope + e->rope) : 0, &e->q, error) &&
           rows_buffer(e, T, row, &e->kv_rows, error) &&
           rows_buffer(e, T, H * e->value, &e->attention, error) &&
           rows_buffer(e, T, 2 * p->ffn, &e->gate_up, error) && rows_buffer(e, T, p->ffn, &e->gated, error) &&
           rows_buffer(e, e->params.max_logits, p->width, &e->picked, error) &&
           rows_buffer(e, e->params.max_logits, p->vocab, &e->logits, error);
}

static bool make_host_memory(struct engine *e, struct error *error)
{
    const struct model_params *p = &e->model->params;
    const size_t T = (size_t) e->params.max_tokens, rows = (size_t) e->params.max_rows;
    bool ok = true;
    for (int i = 0; i < STAGES; i++)
        ok = (e->stage[i] = malloc(T * (size_t) p->width * sizeof(float))) && ok;
    e->host_logits = malloc((size_t) (e->params.max_logits * p->vocab) * sizeof(float));
    e->seqs = malloc(rows * sizeof *e->seqs);
    e->new_tokens = malloc(rows * sizeof *e->new_tokens);
    e->contexts = malloc(rows * sizeof *e->contexts);
    e->tokens = malloc(T * sizeof *e->tokens);
    return (ok && e->host_logits && e->seqs && e->new_tokens && e->contexts && e->tokens) ||
           fail(error, "out of memory for a step of %zu tokens", T);
}

// The shapes of the attention, whichever model and operations.
static void choose_shapes(struct engine *e)
{
    const struct model_params *p = &e->model->params;
    e->mla = p->arch == MODEL_DEEPSEEK2 || e->params.mla;
    e->heads = p->heads;
    if (p->arch == MODEL_DEEPSEEK2) {
        e->nope = p->nope, e->rope = p->rope_dims, e->latent = p->latent, e->value = p->value;
    } else {
        e->rope = e->mla ? p->kv_heads * p->head_size : p->rope_dims;
        e->latent = p->width, e->value = p->head_size;
    }
}

// Elements of a row that share a scale; the parts of an MLA row are multiples of it in most models.
enum { KV_SCALE_GROUP = 64 };

static bool make_pool(struct engine *e, struct error *error)
{
    const struct model_params *p = &e->model->params;
    const struct clinfer_kv_pool_params pool = {
        .mla = e->mla,
        .num_layers = p->layers,
        .num_heads = e->mla ? 1 : p->kv_heads,
        .head_size = e->mla ? e->latent + e->rope : p->head_size,
        .page_size = e->params.page_size,
        .dtype = e->params.kv_type,
        .scale_group = e->params.kv_scales ? KV_SCALE_GROUP : 0,
        .num_pages = e->params.num_pages,
    };
    return engine_ok(e, clinfer_kv_pool_create(&e->pool, e->ctx, &pool), "the pool", error);
}

bool engine_create(struct engine **engine, const struct model *model, const struct engine_params *params,
                   struct error *error)
{
    struct engine *e = *engine = calloc(1, sizeof *e);
    char why[400] = "";
    if (!e)
        return fail(error, "out of memory for the engine");
    e->model = model;
    e->params = *params;
    choose_shapes(e);
    const struct clinfer_ctx_params ctx = { .device = params->device,
                                            .gemm =
                                                params->deterministic ? CLINFER_GEMM_OWN : CLINFER_GEMM_AUTO,
                                            .error = why,
                                            .error_size = sizeof why };
    bool ok = !clinfer_ctx_create(&e->ctx, &ctx) || fail(error, "%s", why);
    if (ok) {
        e->queue = clinfer_ctx_queue(e->ctx);
        ok = make_pool(e, error) && make_host_memory(e, error) && make_activations(e, error) &&
             engine_load_weights(e, error);
    }
    if (!ok)
        engine_destroy(engine);
    return ok;
}

static void wait_for_stage(struct engine *e, int i)
{
    if (!e->staged[i])
        return;
    (void) clWaitForEvents(1, &e->staged[i]); // of a failure the next command tells
    clReleaseEvent(e->staged[i]);
    e->staged[i] = NULL;
}

void engine_destroy(struct engine **engine)
{
    struct engine *e = *engine;
    if (!e)
        return;
    if (e->queue)
        (void) clFinish(e->queue);
    for (int i = 0; i < STAGES; i++) {
        wait_for_stage(e, i);
        free(e->stage[i]);
    }
    for (int i = 0; i < e->num_buffers; i++)
        clReleaseMemObject(e->buffers[i]);
    clinfer_kv_pool_destroy(&e->pool);
    clinfer_ctx_destroy(&e->ctx); // stores the compiled kernels
    free(e->buffers);
    free(e->layers);
    free(e->host_logits);
    free(e->seqs);
    free(e->new_tokens);
    free(e->contexts);
    free(e->tokens);
    free(e);
    *engine = NULL;
}

static bool begin(void *self, const uint32_t *tokens, int64_t count, bool share, uint64_t *seq,
                  int64_t *cached, struct error *error)
{
    struct engine *e = self;
    *cached = 0;
    if (!share)
        return engine_ok(e, clinfer_kv_seq_create(e->pool, seq), "a sequence", error);
    const struct clinfer_kv_match_params match = { .tokens = tokens, .count = count };
    return engine_ok(e, clinfer_kv_seq_match(e->pool, &match, seq, cached), "a prefix", error);
}

static void end(void *self, uint64_t seq)
{
    struct engine *e = self;
    (void) clinfer_kv_seq_free(e->pool, seq); // it fails for what is no sequence only
}

static int64_t free_pages(void *self)
{
    struct engine *e = self;
    struct clinfer_kv_pool_info info;
    clinfer_kv_pool_info(e->pool, &info);
    return info.free_pages + info.cached_pages;
}

// The tokens' rows of the embedding become the residual stream.
static bool upload_embeddings(struct engine *e, const struct step *s, struct error *error)
{
    const int64_t width = e->model->params.width;
    const int i = e->next_stage;
    e->next_stage = (i + 1) % STAGES;
    wait_for_stage(e, i);
    for (int64_t t = 0; t < s->T; t++)
        weights_rows(e->model->token_embd, e->tokens[t], 1, e->stage[i] + t * width);
    return engine_ok(e,
                     clEnqueueWriteBuffer(e->queue, e->residual, CL_FALSE, 0,
                                          (size_t) (s->T * width) * sizeof(float), e->stage[i], 0, NULL,
                                          &e->staged[i]),
                     "clEnqueueWriteBuffer", error);
}

// All commands of a step but the read at its end.
static bool enqueue(struct engine *e, clinfer_kv_pool_batch batch, struct step *s, struct error *error)
{
    return engine_ok(e, clinfer_kv_batch_info(e->pool, batch, &s->batch), "the batch", error) &&
           upload_embeddings(e, s, error) && engine_forward(e, s, error) &&
           engine_ok(e, clinfer_kv_batch_commit(e->pool, batch, 0, NULL), "the batch", error);
}

static bool gather(struct engine *e, struct step *s, struct error *error)
{
    if (s->num_rows > e->params.max_rows)
        return fail(error, "a step of %d sequences, want at most %" PRId64, s->num_rows, e->params.max_rows);
    for (int i = 0; i < s->num_rows; i++) {
        const struct batch_row *row = &s->rows[i];
        if (s->T + row->count > e->params.max_tokens || s->num_logits + row->want > e->params.max_logits)
            return fail(
                error,
                "a step of %" PRId64 " tokens and %" PRId64 " logits, want at most %" PRId64 " and %" PRId64,
                s->T + row->count, s->num_logits + row->want, e->params.max_tokens, e->params.max_logits);
        for (int64_t t = 0; t < row->count; t++)
            if (row->tokens[t] >= e->model->params.vocab)
                return fail(error, "token %" PRIu32 ", want less than %" PRId64, row->tokens[t],
                            e->model->params.vocab);
        memcpy(e->tokens + s->T, row->tokens, (size_t) row->count * sizeof *row->tokens);
        e->seqs[i] = row->seq;
        e->new_tokens[i] = row->count;
        s->T += row->count;
        s->num_logits += row->want;
    }
    return true;
}

static enum step_result step(void *self, const struct batch_row *rows, int num_rows, const float **logits,
                             struct error *error)
{
    struct engine *e = self;
    struct step s = { .rows = rows, .num_rows = num_rows };
    if (!gather(e, &s, error))
        return STEP_FAILED;
    const struct clinfer_kv_batch_params params = {
        .num_seqs = num_rows, .seqs = e->seqs, .new_tokens = e->new_tokens, .tokens = e->tokens
    };
    clinfer_kv_pool_batch batch;
    const clinfer_status status = clinfer_kv_batch_create(e->pool, &params, &batch);
    if (status == CLINFER_ERR_PAGES)
        return STEP_NO_PAGES;
    if (!engine_ok(e, status, "the batch", error))
        return STEP_FAILED;
    if (!enqueue(e, batch, &s, error)) {
        (void) clinfer_kv_batch_drop(e->pool, batch, 0, NULL);
        return STEP_FAILED;
    }
    *logits = e->host_logits;
    const size_t bytes = (size_t) (s.num_logits * e->model->params.vocab) * sizeof(float);
    const cl_int err = s.num_logits ? clEnqueueReadBuffer(e->queue, e->logits, CL_TRUE, 0, bytes,
                                                          e->host_logits, 0, NULL, NULL)
                                    : clFlush(e->queue);
    return engine_ok(e, err, "the end of a step", error) ? STEP_DONE : STEP_FAILED;
}

struct executor engine_executor(struct engine *engine)
{
    return (struct executor){ engine, begin, end, free_pages, step };
}

bool engine_check(struct engine *e, struct error *error)
{
    struct clinfer_fault fault;
    if (!engine_ok(e, clinfer_ctx_fault(e->ctx, NULL, &fault), "the device", error))
        return false;
    return fault.code == CLINFER_FAULT_NONE || fail(error, "%s: %s %" PRIu32 " at token %" PRIu32, fault.op,
                                                    clinfer_fault_str(fault.code), fault.value, fault.token);
}

void engine_info(struct engine *e, struct engine_info *info)
{
    struct clinfer_device_info device;
    struct clinfer_kv_pool_info pool;
    clinfer_ctx_device_info(e->ctx, &device);
    clinfer_kv_pool_info(e->pool, &pool);
    *info = (struct engine_info){ .pages = pool.num_pages,
                                  .page_bytes = (int64_t) pool.page_bytes,
                                  .row_bytes = (int64_t) pool.page_bytes / e->params.page_size,
                                  .weight_bytes = e->weight_bytes };
    memcpy(info->device, device.device, sizeof info->device - 1);
}
