// SPDX-License-Identifier: Apache-2.0
// Names and sizes of the types in a GGUF file.
#include "gguf_parse.h"

#include <string.h>

static const struct {
    const char *name;
    size_t size;
} kinds[GGUF_NUM_KINDS] = {
    [GGUF_U8] = { "u8", 1 },       [GGUF_I8] = { "i8", 1 },     [GGUF_U16] = { "u16", 2 },
    [GGUF_I16] = { "i16", 2 },     [GGUF_U32] = { "u32", 4 },   [GGUF_I32] = { "i32", 4 },
    [GGUF_FLOAT32] = { "f32", 4 }, [GGUF_BOOL] = { "bool", 1 }, [GGUF_STRING] = { "string", 0 },
    [GGUF_ARRAY] = { "array", 0 }, [GGUF_U64] = { "u64", 8 },   [GGUF_I64] = { "i64", 8 },
    [GGUF_FLOAT64] = { "f64", 8 },
};

static const struct {
    enum gguf_type type;
    const char *name;
    int64_t block; // elements
    size_t bytes;  // of a block
} types[] = {
    { GGUF_F32, "F32", 1, 4 },
    { GGUF_F16, "F16", 1, 2 },
    { GGUF_BF16, "BF16", 1, 2 },
    { GGUF_Q8_0, "Q8_0", GGUF_BLOCK, 2 + GGUF_BLOCK },
    { GGUF_Q4_0, "Q4_0", GGUF_BLOCK, 2 + GGUF_BLOCK / 2 },
    { GGUF_Q4_1, "Q4_1", GGUF_BLOCK, 4 + GGUF_BLOCK / 2 },
};
enum { NUM_TYPES = sizeof types / sizeof types[0] };

size_t gguf_kind_size(enum gguf_kind kind)
{
    return kinds[kind].size;
}

const char *gguf_kind_name(enum gguf_kind kind)
{
    return kinds[kind].name;
}

size_t gguf_block_bytes(uint32_t type, int64_t *elements)
{
    for (int i = 0; i < NUM_TYPES; i++)
        if ((uint32_t) types[i].type == type) {
            *elements = types[i].block;
            return types[i].bytes;
        }
    return 0;
}

const char *gguf_type_name(enum gguf_type type)
{
    for (int i = 0; i < NUM_TYPES; i++)
        if (types[i].type == type)
            return types[i].name;
    return "?";
}

uint32_t gguf_u32(const unsigned char *at)
{
    uint32_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

uint64_t gguf_u64(const unsigned char *at)
{
    uint64_t x;
    memcpy(&x, at, sizeof x);
    return x;
}
