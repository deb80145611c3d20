// SPDX-License-Identifier: Apache-2.0
#include "cache_dir.h"

#include "env.h"
#include "file.h"
#include "program_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static clinfer_status join(char *path, size_t size, const char *base, const char *rest)
{
    const int length = snprintf(path, size, "%s%s", base, rest);
    if (length < 0 || (size_t) length >= size)
        return CLINFER_ERR_ARGUMENT;
    // "link/" would follow a symbolic link that "link" does not.
    for (size_t n = (size_t) length; n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = 0;
    return CLINFER_OK;
}

clinfer_status clf_dir_path(const char *cache_dir, char *path, size_t size)
{
    if (!cache_dir)
        cache_dir = clf_getenv("CLINFER_CACHE_DIR");
    if (cache_dir)
        return join(path, size, cache_dir, "");
    // The XDG standard has relative paths ignored; one in HOME would scatter caches over working folders.
    const char *base = clf_getenv("XDG_CACHE_HOME");
    if (base && base[0] == '/')
        return join(path, size, base, "/clinfer");
    base = clf_getenv("HOME");
    if (base && base[0] == '/')
        return join(path, size, base, "/.cache/clinfer");
    return CLINFER_ERR_FILE;
}

static bool make_folders(const char *path, char *why, size_t why_size)
{
    char part[CLF_DIR_PATH_SIZE];
    if (join(part, sizeof part, path, "") != CLINFER_OK) {
        snprintf(why, why_size, "the cache folder's path is too long");
        return false;
    }
    for (char *end = part; *end;) {
        end += strspn(end, "/");
        end += strcspn(end, "/");
        const char mark = *end;
        *end = 0;
        if (mkdir(part, 0700) != 0 && errno != EEXIST) {
            snprintf(why, why_size, "cannot create %s: %s", part, strerror(errno));
            return false;
        }
        *end = mark;
    }
    return true;
}

// Whoever can write to the folder can run code in this process: a driver trusts the binaries it is given.
static bool folder_is_private(int dir, const char *path, char *why, size_t why_size)
{
    struct stat st;
    if (fstat(dir, &st) != 0) {
        snprintf(why, why_size, "%s: %s", path, strerror(errno));
        return false;
    }
    const unsigned mode = (unsigned) st.st_mode & 07777;
    if (st.st_uid == geteuid() && !(mode & (S_IWGRP | S_IWOTH)))
        return true;
    snprintf(why, why_size,
             "%s: owner is user %lu and mode %04o; must be user %lu, not writable by group or others (0700)",
             path, (unsigned long) st.st_uid, mode, (unsigned long) geteuid());
    return false;
}

int clf_dir_open(const char *path, bool create, char *why, size_t why_size)
{
    const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int dir = open(path, flags);
    if (dir < 0 && errno == ENOENT && create) {
        if (!make_folders(path, why, why_size))
            return -1;
        dir = open(path, flags);
    }
    if (dir < 0) {
        const int error = errno;
        const bool odd = error == ENOTDIR || error == ELOOP;
        snprintf(why, why_size, "%s: %s", path,
                 odd ? "is not a folder (symbolic links are not followed)" : strerror(error));
        errno = error;
        return -1;
    }
    if (!folder_is_private(dir, path, why, why_size)) {
        close(dir);
        errno = EPERM;
        return -1;
    }
    return dir;
}

void clf_dir_close(int dir)
{
    if (dir >= 0)
        close(dir);
}

static bool file_is_ours(const struct stat *st, size_t least)
{
    return S_ISREG(st->st_mode) && st->st_uid == geteuid() && !(st->st_mode & (S_IWGRP | S_IWOTH)) &&
           st->st_size >= 0 && (uint64_t) st->st_size >= least && (uint64_t) st->st_size <= CLF_DIR_FILE_MAX;
}

static enum clf_dir_found read_all(int fd, size_t size, struct clf_blob *file)
{
    unsigned char *data = malloc(size ? size : 1);
    size_t done;
    if (!data || !clf_file_read(fd, data, size, &done)) {
        free(data);
        return CLF_DIR_ABSENT;
    }
    *file = (struct clf_blob){ data, done };
    return CLF_DIR_FOUND;
}

enum clf_dir_found clf_dir_read(int dir, const char *name, size_t least, struct clf_blob *file)
{
    // Without O_NONBLOCK a FIFO under this name would hold the caller until somebody writes to it.
    const int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    if (fd < 0) // ELOOP: a symbolic link; ENXIO: a socket; EACCES: a mode we never give
        return errno == ELOOP || errno == ENXIO || errno == EACCES ? CLF_DIR_BAD : CLF_DIR_ABSENT;
    struct stat st;
    enum clf_dir_found found = CLF_DIR_ABSENT;
    if (fstat(fd, &st) == 0)
        found = file_is_ours(&st, least) ? read_all(fd, (size_t) st.st_size, file) : CLF_DIR_BAD;
    close(fd);
    return found;
}

static struct timespec now(void)
{
    struct timespec t = { 0, 0 };
    clock_gettime(CLOCK_REALTIME, &t);
    return t;
}

bool clf_dir_write(int dir, const char *name, const void *data, size_t size, char *why, size_t why_size)
{
    char temporary[CLF_FILE_TEMPORARY];
    const int fd = clf_file_temporary(dir, temporary);
    if (fd < 0) {
        snprintf(why, why_size, "cannot create a file in the cache folder: %s", strerror(errno));
        return false;
    }
    bool good = clf_file_write(fd, data, size);
    int error = errno;
    // Kernels stamp files to a tick of some milliseconds; touch() is finer, and the two are compared.
    const struct timespec t = now();
    futimens(fd, (const struct timespec[2]){ t, t });
    // No fsync: what a power cut leaves half-written fails its checksum and costs a compile.
    if (close(fd) != 0 && good) {
        good = false;
        error = errno;
    }
    if (good && renameat(dir, temporary, dir, name) != 0) {
        good = false;
        error = errno;
    }
    if (!good) {
        unlinkat(dir, temporary, 0);
        snprintf(why, why_size, "cannot write %s in the cache folder: %s", name, strerror(error));
    }
    return good;
}

void clf_dir_touch(int dir, const char *name)
{
    const struct timespec t = now();
    utimensat(dir, name, (const struct timespec[2]){ t, t }, AT_SYMLINK_NOFOLLOW);
}

bool clf_dir_remove(int dir, const char *name)
{
    return unlinkat(dir, name, 0) == 0 || errno == ENOENT;
}

static bool has_name(const char *name, const char *prefix, size_t digits, const char *suffix)
{
    const size_t skip = strlen(prefix);
    return strncmp(name, prefix, skip) == 0 && strspn(name + skip, "0123456789abcdef") == digits &&
           strcmp(name + skip + digits, suffix) == 0;
}

static int by_use(const void *a, const void *b)
{
    const struct clf_dir_file *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec)
        return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    if (x->used.tv_nsec != y->used.tv_nsec)
        return x->used.tv_nsec < y->used.tv_nsec ? -1 : 1;
    return strcmp(x->name, y->name);
}

static bool append(struct clf_dir_list *list, int dir, const char *name)
{
    const bool temporary = has_name(name, "new-", 16, ".tmp");
    struct stat st;
    if (!temporary && !has_name(name, "", 32, ".clb"))
        return true;
    if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return true;                              // gone since
    if ((list->count & (list->count - 1)) == 0) { // full at each power of two
        struct clf_dir_file *more = realloc(list->files, (list->count ? 2 * list->count : 1) * sizeof *more);
        if (!more)
            return false;
        list->files = more;
    }
    struct clf_dir_file *file = &list->files[list->count++];
    *file = (struct clf_dir_file){ .bytes = st.st_size > 0 ? (uint64_t) st.st_size : 0,
                                   .used = st.st_mtim, // atime is moved by backups and held by noatime
                                   .regular = S_ISREG(st.st_mode),
                                   .temporary = temporary };
    memcpy(file->name, name, strlen(name) + 1);
    return true;
}

bool clf_dir_scan(int dir, struct clf_dir_list *list)
{
    *list = (struct clf_dir_list){ NULL, 0 };
    // A descriptor of its own: one that is shared (by threads, by fork) has one read position.
    const int fd = openat(dir, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (!stream) {
        const int error = errno;
        if (fd >= 0)
            close(fd);
        errno = error;
        return false;
    }
    const struct dirent *item = NULL;
    bool good = true;
    do {
        errno = 0;
        item = readdir(stream);
        good = item ? append(list, dir, item->d_name) : errno == 0;
    } while (item && good);
    const int error = errno;
    closedir(stream);
    if (good && list->count > 0)
        qsort(list->files, list->count, sizeof *list->files, by_use);
    if (!good) {
        free(list->files);
        *list = (struct clf_dir_list){ NULL, 0 };
    }
    errno = error;
    return good;
}
