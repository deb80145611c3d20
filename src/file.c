// SPDX-License-Identifier: Apache-2.0
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/random.h>
#endif

int clf_file_temporary(int dir, char name[CLF_FILE_TEMPORARY])
{
    int fd = -1;
    for (uint64_t tries = 0; tries < 16 && fd < 0; tries++) {
        uint64_t number = 0;
#if defined(__linux__)
        if (getrandom(&number, sizeof number, GRND_NONBLOCK) != (ssize_t) sizeof number)
#endif
        { // O_EXCL makes a clash harmless: this need not be hard to guess
            struct timespec t = { 0, 0 };
            clock_gettime(CLOCK_REALTIME, &t);
            number =
                (uint64_t) getpid() << 40 ^ (uint64_t) t.tv_sec << 30 ^ (uint64_t) t.tv_nsec ^ tries << 60;
        }
        snprintf(name, CLF_FILE_TEMPORARY, "new-%016" PRIx64 ".tmp", number);
        fd = openat(dir, name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (fd < 0 && errno != EEXIST)
            return -1;
    }
    return fd;
}

static bool write_all(int fd, const unsigned char *data, size_t size)
{
    while (size > 0) {
        const ssize_t n = write(fd, data, size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            errno = n == 0 ? ENOSPC : errno;
            return false;
        }
        data += n;
        size -= (size_t) n;
    }
    return true;
}

// A write past RLIMIT_FSIZE raises SIGXFSZ, which would end the caller's program for the sake of a file:
// the signal is held back in this thread and taken off it again.
bool clf_file_write(int fd, const void *data, size_t size)
{
    sigset_t limit, before;
    sigemptyset(&limit);
    sigaddset(&limit, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &limit, &before);
    const bool written = write_all(fd, data, size);
    const int error = errno;
    if (!written && error == EFBIG)
        sigtimedwait(&limit, NULL, &(struct timespec){ 0, 0 });
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    errno = error;
    return written;
}

bool clf_file_read(int fd, void *data, size_t size, size_t *done)
{
    ssize_t n = 1;
    *done = 0;
    while (*done < size && n != 0) {
        n = read(fd, (unsigned char *) data + *done, size - *done);
        if (n < 0 && errno != EINTR)
            return false;
        *done += n > 0 ? (size_t) n : 0;
    }
    return true;
}

// The folder of a path, opened; what is left of it in *name.
static int folder_of(const char *path, const char **name)
{
    char folder[4096];
    const char *slash = strrchr(path, '/');
    const size_t n = slash ? (size_t) (slash - path) + 1 : 1;
    *name = slash ? slash + 1 : path;
    if (n >= sizeof folder) {
        errno = ENAMETOOLONG;
        return -1;
    }
    memcpy(folder, slash ? path : ".", n);
    folder[n] = 0;
    return open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

bool clf_file_create(struct clf_file *f, const char *path)
{
    f->fd = -1;
    f->dir = folder_of(path, &f->name);
    if (f->dir < 0)
        return false;
    f->fd = clf_file_temporary(f->dir, f->temporary);
    if (f->fd >= 0)
        return true;
    const int error = errno;
    close(f->dir);
    errno = error;
    return false;
}

bool clf_file_finish(struct clf_file *f)
{
    bool good = fsync(f->fd) == 0;
    int error = errno;
    if (close(f->fd) != 0 && good) {
        good = false;
        error = errno;
    }
    if (good && renameat(f->dir, f->temporary, f->dir, f->name) != 0) {
        good = false;
        error = errno;
    }
    if (!good)
        unlinkat(f->dir, f->temporary, 0);
    close(f->dir);
    f->fd = -1;
    errno = error;
    return good;
}

void clf_file_abandon(struct clf_file *f)
{
    if (f->fd < 0)
        return;
    close(f->fd);
    unlinkat(f->dir, f->temporary, 0);
    close(f->dir);
    f->fd = -1;
}

int clf_file_open(const char *path, uint64_t *size)
{
    // Without O_NONBLOCK a FIFO under this name would hold the caller until somebody writes to it.
    const int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    struct stat st;
    if (fd < 0)
        return -1;
    int error = fstat(fd, &st) != 0 ? errno : 0;
    if (!error && !S_ISREG(st.st_mode))
        error = S_ISDIR(st.st_mode) ? EISDIR : EINVAL;
    if (!error) {
        *size = (uint64_t) st.st_size;
        return fd;
    }
    close(fd);
    errno = error;
    return -1;
}

void clf_file_close(int fd)
{
    if (fd >= 0)
        close(fd);
}
