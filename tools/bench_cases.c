// SPDX-License-Identifier: Apache-2.0
// Which calls are timed. A group is every combination of its shapes, types and batches.
#include "bench.h"

#define COUNT(a) (int) (sizeof(a) / sizeof((a)[0]))

// Query heads x KV heads x head size of whole models, and MLA by its heads.
static const struct bench_shape attention_shapes[] = {
    { "llama-32x8x128", 32, 8, 128, 128, false, 0, 0, 0 },
    { "llama-32x8x128-halves", 32, 8, 128, 128, true, 0, 0, 0 },
    { "smollm2-9x3x64-halves", 9, 3, 64, 64, true, 0, 0, 0 },
};
static const struct bench_shape row_shapes[] = {
    { "llama-32x8x128", 32, 8, 128, 0, false, 0, 0, 0 },
    { "smollm2-9x3x64", 9, 3, 64, 0, false, 0, 0, 0 },
};
static const struct bench_shape mla_shapes[] = {
    { "deepseek-lite-16x576", 16, 1, 576, 64, false, 512, 128, 128 },
    { "deepseek-v3-128x576", 128, 1, 576, 64, false, 512, 128, 128 },
};
static const struct bench_shape width_shapes[] = {
    { "2048", 1, 1, 2048, 0, false, 0, 0, 0, false },
    { "8192", 1, 1, 8192, 0, false, 0, 0, 0, false },
};
static const struct bench_shape norm_shapes[] = {
    { "2048", 1, 1, 2048, 0, false, 0, 0, 0, false },
    { "4096", 1, 1, 4096, 0, false, 0, 0, 0, false },
    { "8192", 1, 1, 8192, 0, false, 0, 0, 0, false },
    { "4096-residual", 1, 1, 4096, 0, false, 0, 0, 0, true },
};

// Rows x columns of weights: into the feed-forward layer.
static const struct bench_shape matmul_shapes[] = {
    { .name = "llama-14336x4096", .rows = 14336, .columns = 4096 },
    { .name = "smollm2-1536x576", .rows = 1536, .columns = 576 },
};

#define F32  CLINFER_F32
#define F16  CLINFER_F16
#define BF16 CLINFER_BF16
#define F8   CLINFER_F8_E4M3

static const struct bench_types row_types[] = {
    { "bf16", BF16, BF16, BF16, 0 },
    { "f32", F32, F32, F32, 0 },
    { "bf16+f8cache", BF16, F8, BF16, 0 },
    { "bf16+f8scaled", BF16, F8, BF16, 64 },
};
static const struct bench_types plain_types[] = {
    { "bf16", BF16, BF16, BF16, 0 },
    { "f16", F16, F16, F16, 0 },
    { "f32", F32, F32, F32, 0 },
};
static const struct bench_types decode_types[] = {
    { "bf16", BF16, BF16, BF16, 0 },
    { "f32", F32, F32, F32, 0 },
    { "bf16+f8cache", BF16, F8, BF16, 0 },
    { "bf16+f8cache+f8weights", BF16, F8, F8, 0 },
    { "bf16+f8scaled+f8weights", BF16, F8, F8, 64 },
};
// What the attention launch reads; the weights are not its affair.
static const struct bench_types attention_types[] = {
    { "bf16", BF16, BF16, BF16, 0 },
    { "f32", F32, F32, F32, 0 },
    { "bf16+f8cache", BF16, F8, BF16, 0 },
};

static const struct bench_types matmul_types[] = {
    { "bf16", BF16, BF16, BF16, 0 },
    { "f32", F32, F32, F32, 0 },
    { "bf16+f8weights", BF16, BF16, F8, 0 },
    { "bf16+q8weights", BF16, BF16, CLINFER_I8, 0 },
};

static const struct bench_batch row_batches[] = {
    { "decode1", 1, 1, 127, false },      { "decode16", 16, 1, 127, true },
    { "decode64", 64, 1, 127, true },     { "prefill512", 1, 512, 0, false },
    { "prefill2048", 1, 2048, 0, false },
};
// 4096 keys with the new one.
static const struct bench_batch decode_batches[] = {
    { "decode1", 1, 1, 4095, false },
    { "decode8", 8, 1, 4095, false },
};

// The same for attention, whose caches are twice as wide.
static const struct bench_batch attention_batches[] = {
    { "decode1", 1, 1, 4095, false },
    { "decode16", 16, 1, 4095, false },
    { "decode64", 64, 1, 4095, false },
    { "prefill2048", 1, 2048, 0, false },
    { "prefill2048+2048", 1, 2048, 2048, false },
};

static const struct bench_batch matmul_batches[] = {
    { "decode1", 1, 1, 0, false },
    { "decode4", 4, 1, 0, false },
    { "decode16", 16, 1, 0, false },
    { "prefill64", 1, 64, 0, false },
};

static const struct bench_batch prefill_batches[] = {
    { "prefill512", 1, 512, 0, false },
    { "prefill2048", 1, 2048, 0, false },
};

#define TABLES(shapes, types, batches) shapes, COUNT(shapes), types, COUNT(types), batches, COUNT(batches)
static const struct {
    const char *op, *part, *label;
    const struct bench_shape *shapes;
    int num_shapes;
    const struct bench_types *types;
    int num_types;
    const struct bench_batch *batches;
    int num_batches;
} groups[] = {
    { "fused_qk_rope", NULL, "fused_qk_rope", TABLES(attention_shapes, row_types, row_batches) },
    { "rms_norm_kv_cache", NULL, "rms_norm_kv_cache", TABLES(row_shapes, row_types, row_batches) },
    { "mla_fused_rope_rmsnorm", NULL, "mla_fused_rope_rmsnorm", TABLES(mla_shapes, row_types, row_batches) },
    { "mla_decode_branch", NULL, "mla_decode_branch", TABLES(mla_shapes, decode_types, decode_batches) },
    { "kv_store", NULL, "kv_store", TABLES(row_shapes, row_types, row_batches) },
    { "silu_mul", NULL, "silu_mul", TABLES(width_shapes, plain_types, row_batches) },
    { "rms_norm", NULL, "rms_norm", TABLES(norm_shapes, plain_types, row_batches) },
    { "merge_states", NULL, "merge_states", TABLES(row_shapes, plain_types, row_batches) },
    { "paged_attention", NULL, "paged_attention", TABLES(row_shapes, row_types, attention_batches) },
    { "matmul", NULL, "matmul", TABLES(matmul_shapes, matmul_types, matmul_batches) },
    { "mla_prefill_branch", NULL, "mla_prefill_branch", TABLES(mla_shapes, decode_types, prefill_batches) },
    { "mla_decode_branch", "mla_attention", "mla_decode_branch:attention",
      TABLES(mla_shapes, attention_types, decode_batches) },
};

bool bench_case_at(int index, struct bench_case *c)
{
    for (int g = 0; g < COUNT(groups); g++) {
        const int inner = groups[g].num_types * groups[g].num_batches, count = groups[g].num_shapes * inner;
        if (index < count) {
            *c = (struct bench_case){ groups[g].op,
                                      groups[g].part,
                                      groups[g].label,
                                      &groups[g].shapes[index / inner],
                                      &groups[g].types[index % inner / groups[g].num_batches],
                                      &groups[g].batches[index % groups[g].num_batches] };
            return true;
        }
        index -= count;
    }
    return false;
}

void bench_case_name(const struct bench_case *c, char name[BENCH_NAME_SIZE])
{
    (void) snprintf(name, BENCH_NAME_SIZE, "%s/%s/%s/%s", c->label, c->shape->name, c->types->name,
                    c->batch->name);
}
