// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_PROGRAM_CACHE_H_
#define CLINFER_PROGRAM_CACHE_H_

#include <clinfer/common.h>

CLINFER_API_BEGIN

#define CLINFER_CACHE_KEY_SIZE 33 // 32 hex digits and the 0

// Where compiled programs live between processes. By default a private folder; a program that has its own
// store gives callbacks instead. They get a key of 32 hex digits (XXH3-128 of all that the program depends
// on) and an entry of opaque bytes, which carries the full key and a checksum: it is verified before a driver
// sees any of it, and may be lost at any time. Called from any thread that uses the context, several at once;
// must not call back into the context. With cache_read_only, put is not called.
typedef struct clinfer_program_store {
    // Hands out the entry last put under the key in memory from malloc (*entry), which the engine frees, and
    // returns its size; 0 where there is none.
    size_t (*get)(void *priv, const char *key, void **entry);
    // Keeps a copy of the entry in place of any earlier one. Failure is the store's own affair.
    void (*put)(void *priv, const char *key, const void *entry, size_t size);
    void *priv;
} clinfer_program_store;

// One entry of a cache folder.
struct clinfer_cache_entry {
    char name[40]; // file name
    char op[48]; // source the program was made of; "" when the entry is damaged; "disabled OP" where it says
                 // that a kernel set of the operation failed its self-check
    char device[256];
    uint64_t bytes; // of the file
    int ok;         // a file of ours whose name, header, key and checksum hold
};

// The folder that a context with this cache_dir would use, into buf; it need not exist. Errors: ERR_FILE when
// there is none ("", or no home folder), ERR_ARGUMENT when buf is too small.
CLINFER_API clinfer_status clinfer_cache_path(const char *cache_dir, char *buf, size_t size);

// Calls `visit` for each entry of the folder, least recently used first and damaged ones included, until it
// returns nonzero. Changes nothing. Errors: ERR_ARGUMENT without visit, ERR_FILE when the folder is not
// usable, with the reason in error (may be NULL); a folder that does not exist has no entries.
CLINFER_API clinfer_status clinfer_cache_list(const char *cache_dir,
                                              int (*visit)(void *priv,
                                                           const struct clinfer_cache_entry *entry),
                                              void *priv, char *error, size_t error_size);

// Removes every entry of the folder, unfinished ones too, and nothing else; *removed (may be NULL) counts the
// finished ones. A context that is using the folder compiles again what it misses. Errors: ERR_FILE as above,
// or when an entry could not be removed.
CLINFER_API clinfer_status clinfer_cache_clear(const char *cache_dir, unsigned *removed, char *error,
                                               size_t error_size);

CLINFER_API_END

#endif
