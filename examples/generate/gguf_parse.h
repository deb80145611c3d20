// SPDX-License-Identifier: Apache-2.0
// Inside the GGUF reader: from the bytes of a file to its tables.
#ifndef GENERATE_GGUF_PARSE_H_
#define GENERATE_GGUF_PARSE_H_

#include "gguf.h"

// Fills the tables of *file from its `bytes` and `size`. On failure they hold what was made so far.
bool gguf_parse(struct gguf_file *file, struct error *error);

// Bytes of an element of metadata; 0 where the kind has no fixed size.
size_t gguf_kind_size(enum gguf_kind kind);
const char *gguf_kind_name(enum gguf_kind kind);

// Bytes of a block of a tensor's type, and its elements; 0 where the reader does not know the type.
size_t gguf_block_bytes(uint32_t type, int64_t *elements);

// All supported hosts are little-endian, as the file is.
uint32_t gguf_u32(const unsigned char *at);
uint64_t gguf_u64(const unsigned char *at);

#endif
