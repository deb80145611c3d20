// SPDX-License-Identifier: Apache-2.0
// A model on a device: its weights, a pool of pages for the caches of all sequences, and the forward pass of
// a step, made of the library's operations on one in-order queue. A step enqueues everything and blocks once,
// for the logits. Threads: one.
//
// With `mla` a llama model runs through the operations of multi-head latent attention, which is exact: the
// latent of a token is its row of the residual stream (C = width, normalised with attn_norm as the cache's
// rows are), the shared rope key is the KV heads' keys side by side (R = K * D), and a query is zero outside
// its own KV head's part of that. It shows MLA right on real weights, and saves nothing: the row is larger.
#ifndef GENERATE_ENGINE_H_
#define GENERATE_ENGINE_H_

#include "model.h"
#include "scheduler.h"
#include "weights.h"

#include <clinfer/clinfer.h>

struct engine;

struct engine_params {
    const char *device; // NULL: CLINFER_DEVICE's
    bool mla;           // deepseek2 is always
    enum weights_type weights;
    clinfer_dtype kv_type;
    bool kv_scales; // of F8_E4M3
    int64_t page_size, num_pages;
    int64_t context; // positions
    // Most tokens of a step, most of its sequences, and most rows of logits.
    int64_t max_tokens, max_rows, max_logits;
    // A sequence has the same bits whatever runs beside it, however its tokens are cut into steps: keys are
    // never split, no prefill branch, no CLBlast. It is slower where few sequences have many keys.
    bool deterministic;
};

bool engine_create(struct engine **engine, const struct model *model, const struct engine_params *params,
                   struct error *error);
void engine_destroy(struct engine **engine); // *engine may be NULL

// For the scheduler. Errors of the device, after the steps so far: engine_check.
struct executor engine_executor(struct engine *engine);
bool engine_check(struct engine *engine, struct error *error);

struct engine_info {
    char device[256];
    int64_t pages, page_bytes, row_bytes; // of the pool; bytes of a token's cache, all layers
    size_t weight_bytes;
};
void engine_info(struct engine *engine, struct engine_info *info);

#endif
