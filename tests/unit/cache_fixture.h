// SPDX-License-Identifier: Apache-2.0
#ifndef CACHE_FIXTURE_H_
#define CACHE_FIXTURE_H_

#include "program_cache.h"

#include <criterion/criterion.h>
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

// Each test runs in a process of its own, hence in a folder of its own.
static char root[64];
static char folder[96]; // root/cache, not made yet

#define KEY       "format=1\nop=fused_qk_rope\nkernel=rope_row\ndevice=A CPU, fast\n"
#define OTHER_KEY "format=1\nop=kv_copy\nkernel=copy_row\ndevice=A CPU, slow\n"

// A case that this process cannot make, and why; the runner's own warnings would count as failures.
#define left_out(...) (fprintf(stderr, "SKIPPED: " __VA_ARGS__), fputc('\n', stderr))

static inline bool cache_enabled(const struct clf_cache *cache)
{
    return cache->dir_fd >= 0 || cache->store.get;
}

static inline void set_up(void)
{
    snprintf(root, sizeof root, "/tmp/clinfer-test-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
    snprintf(folder, sizeof folder, "%s/cache", root);
}

static inline int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void) st, (void) type, (void) ftw;
    return remove(path);
}

static inline void tear_down(void)
{
    nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline struct clf_cache open_cache(const char *dir, bool read_only, uint64_t max_bytes)
{
    struct clf_cache cache;
    char why[256];
    clf_cache_open(&cache, dir, read_only, max_bytes, NULL, why, sizeof why);
    cr_assert(cache_enabled(&cache), "%s", why);
    cr_assert_str_eq(why, "");
    return cache;
}

static inline void put_text(struct clf_cache *cache, const char *key, const char *payload)
{
    char why[256];
    cr_assert(clf_cache_put(cache, key, payload, strlen(payload), why, sizeof why), "%s", why);
    cr_assert_str_eq(why, "");
}

// 1: found and equal to `payload`; 0: not found; -1: found, but something else.
static inline int get_text(struct clf_cache *cache, const char *key, const char *payload)
{
    struct clf_blob blob;
    if (!clf_cache_get(cache, key, &blob)) {
        cr_assert_null(blob.data);
        return 0;
    }
    const bool same = blob.size == strlen(payload) && memcmp(blob.data, payload, blob.size) == 0;
    free(blob.data);
    return same ? 1 : -1;
}

// How many files of `dir` end in `suffix`; the path of the last one goes to `path` (may be NULL).
static inline unsigned count_files(const char *dir, const char *suffix, char *path, size_t size)
{
    unsigned count = 0;
    DIR *stream = opendir(dir);
    cr_assert_not_null(stream);
    for (const struct dirent *item; (item = readdir(stream));) {
        const size_t n = strlen(item->d_name), m = strlen(suffix);
        if (item->d_name[0] == '.' || n < m || strcmp(item->d_name + n - m, suffix) != 0)
            continue;
        count++;
        if (path)
            cr_assert_lt((size_t) snprintf(path, size, "%s/%s", dir, item->d_name), size);
    }
    closedir(stream);
    return count;
}

static inline void write_file(const char *path, const void *data, size_t size)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, data, size), (ssize_t) size);
    close(fd);
}

static inline size_t read_file(const char *path, unsigned char *data, size_t room)
{
    const int fd = open(path, O_RDONLY);
    cr_assert_geq(fd, 0);
    const ssize_t n = read(fd, data, room);
    cr_assert(n >= 0 && (size_t) n < room);
    close(fd);
    return (size_t) n;
}

#endif
