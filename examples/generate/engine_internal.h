// SPDX-License-Identifier: Apache-2.0
// Inside the engine. engine.c: memory and steps; engine_weights.c: weights to the device; engine_forward.c:
// the operations of a step.
#ifndef GENERATE_ENGINE_INTERNAL_H_
#define GENERATE_ENGINE_INTERNAL_H_

#include "engine.h"

// Weights [N, Kd] or [H, N, Kd] as matmul and the MLA operations take them.
struct matrix {
    clinfer_tensor w, scale;
    int64_t granularity; // rows and columns that share a scale, with F8_E4M3
};

struct layer {
    clinfer_tensor attn_norm, ffn_norm, q_norm, kv_norm;
    struct matrix qkv;        // q, k and v one below the other; not with MLA
    struct matrix q_a, q_b;   // MLA; q_a is absent where queries have no latent
    struct matrix kv;         // MLA: the rows of the cache; of llama their rope part
    struct matrix w_uk, w_uv; // MLA, absorbed
    struct matrix w_k;        // MLA, for the prefill branch
    struct matrix attn_output, gate_up, down;
};

enum { STAGES = 2 };

struct engine {
    const struct model *model;
    struct engine_params params;
    clinfer_ctx *ctx;
    cl_command_queue queue; // the context's
    clinfer_kv_pool *pool;

    bool mla;
    int64_t heads, nope, rope, latent, value; // MLA: H N R C V

    cl_mem *buffers; // all of the engine's own
    int num_buffers;
    size_t weight_bytes;
    struct layer *layers;
    clinfer_tensor output_norm, freqs_cis;
    struct matrix output;
    // Activations, f32, a row a token.
    cl_mem residual, normed, delta, qkv, q_latent, q, kv_rows, attention, gate_up, gated, picked, logits;

    // Rows of embeddings on their way; a stage is used again once its upload has ended.
    float *stage[STAGES];
    cl_event staged[STAGES];
    int next_stage;
    float *host_logits;
    // Of a step, by row or by token.
    clinfer_kv_seq *seqs;
    int64_t *new_tokens, *contexts;
    uint32_t *tokens;
};

// A step on its way through the layers.
struct step {
    const struct batch_row *rows;
    int num_rows;
    int64_t T, num_logits;
    struct clinfer_kv_batch_info batch;
    clinfer_attention_plan *plan; // while its layers are enqueued; not with MLA
};

// False where the status is an error; the text says what was tried.
bool engine_ok(struct engine *e, int status, const char *what, struct error *error);
// Device memory, with these bytes where `from` is not NULL; freed with the engine.
bool engine_buffer(struct engine *e, size_t bytes, const void *from, cl_mem *mem, struct error *error);

bool engine_load_weights(struct engine *e, struct error *error);
bool engine_forward(struct engine *e, struct step *step, struct error *error);

#endif
