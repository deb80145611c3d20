// SPDX-License-Identifier: Apache-2.0
#include "cache_entry.h"

#include "program_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum {
    HASH_AT = 8,
    VERSION_AT = 24,
    KEY_SIZE_AT = 28,
    PAYLOAD_SIZE_AT = 32,
    MAGIC_SIZE = 8,
    FORMAT_VERSION = 1
};
static const unsigned char magic[MAGIC_SIZE] = { 0x89, 'C', 'L', 'F', 'P', 'R', 'G', '\n' };

static void store_le(unsigned char *at, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        at[i] = (unsigned char) (value >> 8 * i);
}

static uint64_t load_le(const unsigned char *at, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t) at[i] << 8 * i;
    return value;
}

static XXH128_canonical_t hash_of(const void *data, size_t size)
{
    XXH128_canonical_t hash;
    XXH128_canonicalFromHash(&hash, XXH3_128bits(data, size));
    return hash;
}

void clf_entry_digits(char digits[CLINFER_CACHE_KEY_SIZE], const char *key, size_t size)
{
    const XXH128_canonical_t hash = hash_of(key, size);
    for (size_t i = 0; i < sizeof hash.digest; i++)
        snprintf(digits + 2 * i, 3, "%02x", hash.digest[i]);
}

bool clf_entry_make(const char *key, const void *payload, size_t size, struct clf_blob *entry)
{
    const size_t key_size = strlen(key), total = CLF_ENTRY_HEADER_SIZE + key_size + size;
    unsigned char *data = malloc(total);
    if (!data)
        return false;
    memcpy(data, magic, MAGIC_SIZE);
    store_le(data + VERSION_AT, FORMAT_VERSION, 4);
    store_le(data + KEY_SIZE_AT, key_size, 4);
    store_le(data + PAYLOAD_SIZE_AT, size, 8);
    memcpy(data + CLF_ENTRY_HEADER_SIZE, key, key_size);
    if (size > 0)
        memcpy(data + CLF_ENTRY_HEADER_SIZE + key_size, payload, size);
    const XXH128_canonical_t hash = hash_of(data + VERSION_AT, total - VERSION_AT);
    memcpy(data + HASH_AT, hash.digest, sizeof hash.digest);
    *entry = (struct clf_blob){ data, total };
    return true;
}

bool clf_entry_verify(const unsigned char *data, size_t size, struct clf_entry *view)
{
    if (size < CLF_ENTRY_HEADER_SIZE || memcmp(data, magic, MAGIC_SIZE) != 0 ||
        load_le(data + VERSION_AT, 4) != FORMAT_VERSION)
        return false;
    const uint64_t key_size = load_le(data + KEY_SIZE_AT, 4), room = size - CLF_ENTRY_HEADER_SIZE;
    const uint64_t payload_size = load_le(data + PAYLOAD_SIZE_AT, 8);
    if (key_size > room || payload_size != room - key_size)
        return false;
    const XXH128_canonical_t hash = hash_of(data + VERSION_AT, size - VERSION_AT);
    if (memcmp(data + HASH_AT, hash.digest, sizeof hash.digest) != 0)
        return false;
    *view = (struct clf_entry){ .key = (const char *) data + CLF_ENTRY_HEADER_SIZE,
                                .payload = data + CLF_ENTRY_HEADER_SIZE + key_size,
                                .key_size = (size_t) key_size,
                                .payload_size = (size_t) payload_size };
    return true;
}
