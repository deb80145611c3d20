// SPDX-License-Identifier: Apache-2.0
// A strict reader and writer of safetensors files: 8 bytes of header length, a JSON header, data.
// Everything in the file is little-endian and is kept so in memory: on a big-endian host the caller swaps.
// Threads: any, as long as a struct st_file is used by one at a time.
#ifndef CLINFER_TOOLS_SAFETENSORS_H_
#define CLINFER_TOOLS_SAFETENSORS_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <clinfer/tensor.h>

enum { ST_MAX_RANK = 8 };

struct st_tensor {
    char *name;
    clinfer_dtype dtype;
    int rank;                   // 0: one element
    int64_t shape[ST_MAX_RANK]; // outermost first
    size_t bytes;               // the product of the shape times the element size
    unsigned char *data;        // dense; after st_read at a multiple of 64 bytes and never NULL
};

struct st_meta {
    char *key, *value;
};

// Tensors and metadata in the order of the header.
struct st_file {
    struct st_tensor *tensors;
    int num_tensors;
    struct st_meta *meta;
    int num_meta;
    unsigned char *blob; // what st_read points every `data` into
};

// Reads a whole file. False: `error` says which file, which thing in it and what was expected and found;
// *file is empty then. Refused is whatever another reader might take differently: unknown types, duplicate or
// unknown keys, numbers that are not plain, overlaps, gaps, bytes left over.
bool st_read(const char *path, struct st_file *file, char *error, size_t error_size);

// Writes tensors and metadata in the order given, to a temporary in the same folder that is then renamed:
// `path` is whole or as it was. Refuses what st_read would refuse. `blob` is ignored.
bool st_write(const char *path, const struct st_file *file, char *error, size_t error_size);

// Frees names, metadata, both tables and `blob`, and empties *file. A `data` outside `blob` is the caller's.
void st_free(struct st_file *file);

struct st_tensor *st_find(const struct st_file *file, const char *name); // NULL if absent
const char *st_meta_get(const struct st_file *file, const char *key);    // NULL if absent

#endif
