// SPDX-License-Identifier: Apache-2.0
#include "program_cache.h"

#include "cache_dir.h"
#include "cache_entry.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define STALE_SECONDS 3600 // no writer is at work for this long

static void file_name(char name[CLF_DIR_NAME_SIZE], const char *key, size_t size)
{
    char digits[CLINFER_CACHE_KEY_SIZE];
    clf_entry_digits(digits, key, size);
    snprintf(name, CLF_DIR_NAME_SIZE, "%s.clb", digits);
}

void clf_cache_open(struct clf_cache *cache, const char *dir, bool read_only, uint64_t max_bytes,
                    const clinfer_program_store *store, char *why, size_t why_size)
{
    char path[CLF_DIR_PATH_SIZE];
    snprintf(why, why_size, "%s", "");
    *cache = (struct clf_cache){ .dir_fd = -1,
                                 .read_only = read_only,
                                 .max_bytes = max_bytes ? max_bytes : UINT64_C(256) << 20 };
    if (store && (store->get || store->put)) {
        cache->store = *store;
        return;
    }
    const clinfer_status status = clf_dir_path(dir, path, sizeof path);
    if (status == CLINFER_ERR_ARGUMENT)
        snprintf(why, why_size, "the cache folder's path is too long");
    else if (status != CLINFER_OK)
        snprintf(why, why_size, "no cache folder: neither XDG_CACHE_HOME nor HOME is an absolute path");
    else if (path[0])
        cache->dir_fd = clf_dir_open(path, !read_only, why, why_size);
}

void clf_cache_close(struct clf_cache *cache)
{
    clf_dir_close(cache->dir_fd);
    *cache = (struct clf_cache){ .dir_fd = -1 };
}

bool clf_cache_writable(const struct clf_cache *cache)
{
    return !cache->read_only && (cache->dir_fd >= 0 || cache->store.put);
}

static enum clf_dir_found fetch(struct clf_cache *cache, const char *key, const char *name,
                                struct clf_blob *entry)
{
    if (cache->dir_fd >= 0)
        return clf_dir_read(cache->dir_fd, name, CLF_ENTRY_HEADER_SIZE, entry);
    if (!cache->store.get)
        return CLF_DIR_ABSENT;
    char digits[CLINFER_CACHE_KEY_SIZE];
    void *data = NULL;
    clf_entry_digits(digits, key, strlen(key));
    const size_t size = cache->store.get(cache->store.priv, digits, &data);
    if (data && size > 0) {
        *entry = (struct clf_blob){ data, size };
        return CLF_DIR_FOUND;
    }
    free(data);
    return CLF_DIR_ABSENT;
}

bool clf_cache_get(struct clf_cache *cache, const char *key, struct clf_blob *payload)
{
    const size_t key_size = strlen(key);
    char name[CLF_DIR_NAME_SIZE];
    struct clf_blob entry = { NULL, 0 };
    struct clf_entry view;
    *payload = entry;
    file_name(name, key, key_size);
    enum clf_dir_found found = fetch(cache, key, name, &entry);
    if (found == CLF_DIR_FOUND && !(clf_entry_verify(entry.data, entry.size, &view) &&
                                    view.key_size == key_size && memcmp(view.key, key, key_size) == 0))
        found = CLF_DIR_BAD;
    if (found != CLF_DIR_FOUND) {
        free(entry.data);
        if (found == CLF_DIR_BAD)
            clf_cache_drop(cache, key);
        return false;
    }
    memmove(entry.data, view.payload, view.payload_size); // the caller may free it, and it is aligned
    *payload = (struct clf_blob){ entry.data, view.payload_size };
    if (cache->dir_fd >= 0 && !cache->read_only)
        clf_dir_touch(cache->dir_fd, name);
    return true;
}

static const char *why_not_put(const struct clf_cache *cache, size_t key_size, size_t size)
{
    const uint64_t limit =
        cache->dir_fd >= 0 && cache->max_bytes < CLF_DIR_FILE_MAX ? cache->max_bytes : CLF_DIR_FILE_MAX;
    if (cache->dir_fd < 0 && !cache->store.put)
        return "the program cache is off";
    if (cache->read_only)
        return "the program cache is read-only";
    if (key_size > limit || size > limit || CLF_ENTRY_HEADER_SIZE + key_size + size > limit)
        return "the program is larger than the cache may get";
    return NULL;
}

// Removes the least recently used entries until the rest take max_bytes at most, sparing `keep`, and what
// killed writers left behind.
static void trim(int dir, uint64_t max_bytes, const char *keep)
{
    struct clf_dir_list list;
    if (!clf_dir_scan(dir, &list))
        return;
    uint64_t total = 0;
    const time_t stale = time(NULL) - STALE_SECONDS;
    for (size_t i = 0; i < list.count; i++) {
        const struct clf_dir_file *file = &list.files[i];
        if (!file->temporary)
            total += file->regular ? file->bytes : 0;
        else if (file->used.tv_sec < stale)
            clf_dir_remove(dir, file->name);
    }
    for (size_t i = 0; i < list.count && total > max_bytes; i++) {
        const struct clf_dir_file *file = &list.files[i];
        if (!file->temporary && file->regular && strcmp(file->name, keep) != 0 &&
            clf_dir_remove(dir, file->name))
            total -= file->bytes;
    }
    free(list.files);
}

bool clf_cache_put(struct clf_cache *cache, const char *key, const void *payload, size_t size, char *why,
                   size_t why_size)
{
    struct clf_blob entry = { NULL, 0 };
    const char *reason = why_not_put(cache, strlen(key), size);
    if (!reason && !clf_entry_make(key, payload, size, &entry))
        reason = "out of memory";
    snprintf(why, why_size, "%s", reason ? reason : "");
    if (reason)
        return false;
    bool stored = true;
    if (cache->dir_fd >= 0) {
        char name[CLF_DIR_NAME_SIZE];
        file_name(name, key, strlen(key));
        stored = clf_dir_write(cache->dir_fd, name, entry.data, entry.size, why, why_size);
        // After a failure too: the disk may be full of us.
        trim(cache->dir_fd, cache->max_bytes, name);
    } else {
        char digits[CLINFER_CACHE_KEY_SIZE];
        clf_entry_digits(digits, key, strlen(key));
        cache->store.put(cache->store.priv, digits, entry.data, entry.size);
    }
    free(entry.data);
    return stored;
}

void clf_cache_drop(struct clf_cache *cache, const char *key)
{
    char name[CLF_DIR_NAME_SIZE];
    file_name(name, key, strlen(key));
    if (cache->dir_fd >= 0 && !cache->read_only)
        clf_dir_remove(cache->dir_fd, name);
}

clinfer_status clinfer_cache_path(const char *cache_dir, char *buf, size_t size)
{
    if (!buf || size == 0)
        return CLINFER_ERR_ARGUMENT;
    const clinfer_status status = clf_dir_path(cache_dir, buf, size);
    if (status != CLINFER_OK)
        buf[0] = 0;
    return status == CLINFER_OK && !buf[0] ? CLINFER_ERR_FILE : status;
}

// Opens and lists the folder; *dir is -1, and the list empty, where it does not exist.
static clinfer_status scan(const char *cache_dir, int *dir, struct clf_dir_list *list, char *error,
                           size_t error_size)
{
    char path[CLF_DIR_PATH_SIZE];
    *list = (struct clf_dir_list){ NULL, 0 };
    *dir = -1;
    const clinfer_status status = clinfer_cache_path(cache_dir, path, sizeof path);
    if (status != CLINFER_OK) {
        snprintf(error, error_size, "%s",
                 status == CLINFER_ERR_FILE ? "there is no cache folder"
                                            : "the cache folder's path is too long");
        return status;
    }
    *dir = clf_dir_open(path, false, error, error_size);
    if (*dir < 0 && errno != ENOENT)
        return CLINFER_ERR_FILE;
    if (*dir >= 0 && !clf_dir_scan(*dir, list)) {
        snprintf(error, error_size, "%s: %s", path, strerror(errno));
        clf_dir_close(*dir);
        *dir = -1;
        return CLINFER_ERR_FILE;
    }
    snprintf(error, error_size, "%s", "");
    return CLINFER_OK;
}

// The value of the key's line `name` ("op="), "" where there is none.
static void copy_line(char *to, size_t size, const struct clf_entry *view, const char *name)
{
    const char *at = view->key, *end = view->key + view->key_size;
    const size_t skip = strlen(name);
    to[0] = 0;
    while (at < end) {
        const char *stop = memchr(at, '\n', (size_t) (end - at));
        stop = stop ? stop : end;
        if ((size_t) (stop - at) >= skip && memcmp(at, name, skip) == 0) {
            snprintf(to, size, "%.*s", (int) (stop - at - (ptrdiff_t) skip), at + skip);
            return;
        }
        at = stop < end ? stop + 1 : end;
    }
}

// False: the file is gone since it was listed.
static bool describe(int dir, const struct clf_dir_file *file, struct clinfer_cache_entry *entry)
{
    struct clf_blob blob = { NULL, 0 };
    struct clf_entry view = { .key = NULL };
    char name[CLF_DIR_NAME_SIZE];
    *entry = (struct clinfer_cache_entry){ .bytes = file->bytes };
    memcpy(entry->name, file->name, sizeof entry->name);
    const enum clf_dir_found found = clf_dir_read(dir, file->name, CLF_ENTRY_HEADER_SIZE, &blob);
    if (found == CLF_DIR_FOUND && clf_entry_verify(blob.data, blob.size, &view)) {
        file_name(name, view.key, view.key_size);
        entry->ok = strcmp(name, file->name) == 0;
    }
    if (entry->ok) {
        copy_line(entry->op, sizeof entry->op, &view, "op=");
        copy_line(entry->device, sizeof entry->device, &view, "device=");
    }
    free(blob.data);
    return found != CLF_DIR_ABSENT;
}

clinfer_status clinfer_cache_list(const char *cache_dir,
                                  int (*visit)(void *priv, const struct clinfer_cache_entry *entry),
                                  void *priv, char *error, size_t error_size)
{
    struct clf_dir_list list;
    struct clinfer_cache_entry entry;
    int dir = -1;
    error_size = error ? error_size : 0;
    if (!visit)
        return CLINFER_ERR_ARGUMENT;
    const clinfer_status status = scan(cache_dir, &dir, &list, error, error_size);
    if (status != CLINFER_OK)
        return status;
    for (size_t i = 0; i < list.count; i++) {
        if (list.files[i].temporary || !describe(dir, &list.files[i], &entry))
            continue;
        if (visit(priv, &entry))
            break;
    }
    free(list.files);
    clf_dir_close(dir);
    return CLINFER_OK;
}

clinfer_status clinfer_cache_clear(const char *cache_dir, unsigned *removed, char *error, size_t error_size)
{
    struct clf_dir_list list;
    int dir = -1;
    unsigned count = 0;
    error_size = error ? error_size : 0;
    clinfer_status status = scan(cache_dir, &dir, &list, error, error_size);
    for (size_t i = 0; i < list.count; i++) {
        const struct clf_dir_file *file = &list.files[i];
        if (!clf_dir_remove(dir, file->name)) {
            snprintf(error, error_size, "cannot remove %s: %s", file->name, strerror(errno));
            status = CLINFER_ERR_FILE;
        } else if (!file->temporary) {
            count++;
        }
    }
    if (removed)
        *removed = count;
    free(list.files);
    clf_dir_close(dir);
    return status;
}
