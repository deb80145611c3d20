// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <clinfer/program_cache.h>

#include <stdbool.h>

// Compiled programs between processes: a folder of files, or the caller's callbacks. Nothing here changes
// after open, and files are only ever replaced whole: any number of threads and processes may get and put.
struct clf_cache {
    int dir_fd; // -1: no folder
    bool read_only;
    uint64_t max_bytes;
    clinfer_program_store store;
};

struct clf_blob {
    unsigned char *data; // malloc'd
    size_t size;
};

// dir as in context.h: NULL is the environment's, "" is off. max_bytes 0 is 256 MiB. A folder that cannot be
// used leaves the cache off, with one line in why (else why is ""). A store with a callback takes the
// folder's place. Always followed by close.
void clf_cache_open(struct clf_cache *cache, const char *dir, bool read_only, uint64_t max_bytes,
                    const clinfer_program_store *store, char *why, size_t why_size);
void clf_cache_close(struct clf_cache *cache);

// Whether put has a place to put to.
bool clf_cache_writable(const struct clf_cache *cache);

// key is text in lines of "name=value\n", with lines op= and device= for clinfer_cache_list().
// The payload is what was put under this very key, bit for bit, or there is none: an entry that fails any
// check is removed.
bool clf_cache_get(struct clf_cache *cache, const char *key, struct clf_blob *payload);
bool clf_cache_put(struct clf_cache *cache, const char *key, const void *payload, size_t size, char *why,
                   size_t why_size);

// Removes the entry: a driver refused its payload. In a caller's store the next put replaces it.
void clf_cache_drop(struct clf_cache *cache, const char *key);
