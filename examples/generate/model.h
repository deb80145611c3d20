// SPDX-License-Identifier: Apache-2.0
// A model as its GGUF file describes it: parameters, and every tensor by its role. Architectures:
//
//   llama      RMSNorm, attention with H query and K KV heads of size D, SwiGLU
//   deepseek2  the same around multi-head latent attention with absorbed weights; every layer dense
//
// In both, with x a token's row [width] and W x a product with a stored matrix [out, in]:
//
//   x = token_embd[token];  each layer: x += attention(norm(x, attn_norm));  x += feed_forward(norm(x,
//   ffn_norm)) logits = output norm(x, output_norm) feed_forward(y) = down (silu(gate y) * (up y)) norm(y, g)
//   = y / sqrt(mean(y^2) + epsilon) * g
//
//   llama      q = rope(attn_q y) [H, D], k = rope(attn_k y) [K, D], v = attn_v y [K, D];
//              attention = attn_output softmax(scale q k) v, KV head of query head h: h / (H / K)
//   deepseek2  q = attn_q_b norm(attn_q_a y, attn_q_a_norm) [H, N + R], its last R dims by rope;
//              row = attn_kv_a_mqa y [C + R]: the first C by norm with attn_kv_a_norm, the last R by rope;
//              attention = attn_output of the heads v[h] = attn_v_b[h] softmax(scale [attn_k_b[h] q_nope |
//              q_rope] row) row[0, C)
//
// rope turns pairs of neighbours (2p, 2p + 1) in both: the file's llama rows are stored in that order.
// Sources: Touvron and others, "LLaMA" (2023); DeepSeek-AI, "DeepSeek-V2" (2024), section 2.1.
#ifndef GENERATE_MODEL_H_
#define GENERATE_MODEL_H_

#include "gguf.h"

enum model_arch { MODEL_LLAMA, MODEL_DEEPSEEK2 };

struct model_params {
    enum model_arch arch;
    int64_t layers, width, heads, ffn, vocab;
    int64_t context; // positions that the model was trained for
    double epsilon, rope_base, scale;
    int64_t rope_dims;                   // R; even, and of llama D
    int64_t kv_heads, head_size;         // K and D; of deepseek2 1 and C + R, the row of its cache
    int64_t q_lora, latent, nope, value; // deepseek2 only: q_lora_rank, C, N, V
};

// Norms [n], matrices [out, in]; NULL where the architecture has none.
struct model_layer {
    const struct gguf_tensor *attn_norm, *attn_output, *ffn_norm, *ffn_gate, *ffn_up, *ffn_down;
    const struct gguf_tensor *attn_q, *attn_k, *attn_v; // llama: [H * D, width], [K * D, width] twice
    // deepseek2: [q_lora, width], [q_lora], [H * (N + R), q_lora], [C + R, width], [C], [H, C, N], [H, V, C]
    const struct gguf_tensor *attn_q_a, *attn_q_a_norm, *attn_q_b, *attn_kv_a_mqa, *attn_kv_a_norm, *attn_k_b,
        *attn_v_b;
};

struct model {
    struct model_params params;
    const struct gguf_tensor *token_embd, *output_norm;
    const struct gguf_tensor *output; // token_embd where the file has none: tied
    struct model_layer *layers;
};

// Reads the parameters and finds the tensors, which stay the file's: it must outlive the model. An error
// where a parameter is missing or out of range, says what this program does not do (experts, scaled rope,
// another head size of V), or where a tensor is missing, of another shape, or has no role.
bool model_create(struct model *model, const struct gguf_file *file, struct error *error);
void model_destroy(struct model *model);

// Rows [0, rows) of freqs_cis [rows, R]: cos and sin, in pairs, of position * base^(-2 p / R).
void model_rope_table(const struct model_params *params, int64_t rows, float *table);

#endif
