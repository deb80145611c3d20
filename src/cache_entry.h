// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <clinfer/program_cache.h>

#include <stdbool.h>

// An entry, as a file or in a caller's store; numbers are little-endian:
//    0  magic
//    8  XXH3-128 of all that follows it, in canonical order
//   24  u32 format version
//   28  u32 bytes of the key
//   32  u64 bytes of the payload
//   40  key, payload, end
// Each bit is either compared (magic, hash) or hashed, and the lengths must give the entry's own size.
// The hash is for integrity; against tampering there are the folder's owner and mode.
#define CLF_ENTRY_HEADER_SIZE 40

struct clf_blob;

// The parts of an entry, inside its bytes.
struct clf_entry {
    const char *key; // not terminated
    const unsigned char *payload;
    size_t key_size, payload_size;
};

// The hash of a key's text in hexadecimal: a store's key, and the stem of a file's name.
void clf_entry_digits(char digits[CLINFER_CACHE_KEY_SIZE], const char *key, size_t size);

// False: out of memory. Key and payload are of less than 4 GiB together.
bool clf_entry_make(const char *key, const void *payload, size_t size, struct clf_blob *entry);

// False unless each bit is as it was made. Whether it is the right key is left to the caller.
bool clf_entry_verify(const unsigned char *data, size_t size, struct clf_entry *entry);
