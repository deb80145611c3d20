// SPDX-License-Identifier: Apache-2.0
// The file of a saved sequence, without OpenCL. Numbers are little-endian, as all hosts are:
//
//   magic; u64 version and the fields of struct clf_kv_head; XXH3-128 of all that
//   pieces, each followed by its XXH3-128, seeded by the hash before it, so that none takes another's place:
//     the known ids, u32
//     for each CLF_KV_FILE_TOKENS tokens, each layer, K and then V: rows [tokens, heads, head_size], behind
//     them the scales [tokens, heads, groups] of a scaled type
//
// So each bit is compared or hashed, and the fields say how long the file is.
#pragma once
#include "file.h"
#include "op.h"
#include <clinfer/kv_pool.h>

enum { CLF_KV_FILE_TOKENS = 256, CLF_KV_HASH = 16 };

struct clf_kv_head {
    int64_t mla, num_layers, num_heads, head_size[2]; // of K, of V
    int64_t dtype[2], scale_group;
    int64_t length, known; // tokens; those whose ids are there
    uint64_t salt, seq_salt;
};

// K's rows or V's.
struct clf_kv_rows {
    clinfer_dtype dtype;
    int64_t heads, head_size;
    int64_t group, groups;     // of a head; 0: no scales
    size_t bytes, scale_bytes; // of a token
};

// Of a pool's shape; length, known and seq_salt 0.
struct clf_kv_head clf_kv_head_of(const struct clinfer_kv_pool_params *p);
int clf_kv_parts(const struct clf_kv_head *h);
struct clf_kv_rows clf_kv_rows_of(const struct clf_kv_head *h, int part);

struct clf_kv_file {
    const char *path;
    struct clf_kv_head head;
    struct clf_file out;
    int in; // -1: none
    unsigned char hash[CLF_KV_HASH];
};

// All of them: false, or a status, with a line in `error`, of CLF_ERROR_SIZE.
bool clf_kv_file_create(struct clf_kv_file *f, const char *path, const struct clf_kv_head *head, char *error);
bool clf_kv_file_put(struct clf_kv_file *f, const void *data, size_t size, char *error);
bool clf_kv_file_finish(struct clf_kv_file *f, char *error);
// Refuses what is no such file, damaged, or not of `want`'s shape and salt.
clinfer_status clf_kv_file_open(struct clf_kv_file *f, const char *path, const struct clf_kv_head *want,
                                char *error);
bool clf_kv_file_get(struct clf_kv_file *f, void *data, size_t size, char *error);
// Of either kind: closes; an unfinished one leaves nothing.
void clf_kv_file_close(struct clf_kv_file *f);
