// SPDX-License-Identifier: Apache-2.0
#define _POSIX_C_SOURCE 200809L
#include "safetensors.h"
#include "safetensors_header.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PREFIX = 8, ALIGN = 64 };
#define MAX_IO ((size_t) 1 << 30) // systems cap one read below 2 GiB

void st_report(const char *path, const char *why, char *error, size_t error_size)
{
    size_t n = strlen(path), cut = n > 100 ? n - 100 : 0;
    snprintf(error, error_size, "%s%s: %s", cut ? "..." : "", path + cut, why);
}

// The descriptor, or -1. Non-blocking, since a FIFO without a writer would wait for ever in open.
static int open_regular(const char *path, uint64_t *size, char *error)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        st_fail(error, "cannot open: %s", strerror(errno));
        return -1;
    }
    if (fstat(fd, &st))
        st_fail(error, "cannot stat: %s", strerror(errno));
    else if (!S_ISREG(st.st_mode))
        st_fail(error, "not a regular file (mode 0%o)", (unsigned) st.st_mode);
    else if ((uint64_t) st.st_size > SIZE_MAX / 2)
        st_fail(error, "%" PRIu64 " bytes, of which memory can hold %zu", (uint64_t) st.st_size,
                SIZE_MAX / 2);
    else {
        *size = (uint64_t) st.st_size;
        return fd;
    }
    close(fd);
    return -1;
}

static bool read_at(int fd, void *buf, size_t size, uint64_t offset, const char *what, char *error)
{
    for (size_t done = 0; done < size;) {
        size_t want = size - done < MAX_IO ? size - done : MAX_IO;
        ssize_t n = pread(fd, (char *) buf + done, want, (off_t) (offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return st_fail(error, "reading %.80s: %s", what, strerror(errno));
        if (n == 0)
            return st_fail(error, "reading %.80s: the file ended after %zu of %zu bytes", what, done, size);
        done += (size_t) n;
    }
    return true;
}

// Each tensor at an aligned place of its own: an unpadded header leaves all of them misaligned in the file.
static bool place(struct st_file *file, char *error)
{
    uint64_t total = 0;
    for (int i = 0; i < file->num_tensors; i++)
        total += file->tensors[i].bytes / ALIGN * ALIGN + ALIGN;
    if (total > SIZE_MAX / 2)
        return st_fail(error, "tensors of %" PRIu64 " bytes, of which memory can hold %zu", total,
                       SIZE_MAX / 2);
    file->blob = aligned_alloc(ALIGN, total ? (size_t) total : ALIGN);
    if (!file->blob)
        return st_fail(error, "out of memory for %" PRIu64 " bytes of data", total);
    unsigned char *next = file->blob;
    for (int i = 0; i < file->num_tensors; i++) {
        file->tensors[i].data = next;
        next += file->tensors[i].bytes / ALIGN * ALIGN + ALIGN;
    }
    return true;
}

static bool read_data(int fd, uint64_t offset, const uint64_t *begin, struct st_file *file, char *error)
{
    if (!place(file, error))
        return false;
    for (int i = 0; i < file->num_tensors; i++) {
        const struct st_tensor *t = &file->tensors[i];
        if (!read_at(fd, t->data, t->bytes, offset + begin[i], t->name, error))
            return false;
    }
    return true;
}

static bool read_file(int fd, uint64_t size, struct st_file *file, char *error)
{
    unsigned char prefix[PREFIX];
    uint64_t length = 0;
    if (size < PREFIX)
        return st_fail(error, "the file has %" PRIu64 " bytes, a header length takes %d", size, PREFIX);
    if (!read_at(fd, prefix, PREFIX, 0, "the header length", error))
        return false;
    for (int i = PREFIX; i-- > 0;)
        length = length << 8 | prefix[i];
    if (length > ST_MAX_HEADER)
        return st_fail(error,
                       "no safetensors file: the header length is %" PRIu64 " bytes, at most %u are allowed",
                       length, ST_MAX_HEADER);
    if (length > size - PREFIX)
        return st_fail(error, "the header length is %" PRIu64 " bytes, %" PRIu64 " follow it", length,
                       size - PREFIX);

    uint64_t *begin = NULL, offset = PREFIX + length;
    char *text = malloc((size_t) length + 1);
    bool ok = text || st_fail(error, "out of memory for a header of %" PRIu64 " bytes", length);
    ok = ok && read_at(fd, text, (size_t) length, PREFIX, "the header", error) &&
         st_header_parse(text, (size_t) length, size - offset, file, &begin, error);
    free(text);
    ok = ok && read_data(fd, offset, begin, file, error);
    free(begin);
    return ok;
}

bool st_read(const char *path, struct st_file *file, char *error, size_t error_size)
{
    char why[ST_ERROR];
    uint64_t size;
    *file = (struct st_file){ 0 };
    int fd = open_regular(path, &size, why);
    bool ok = fd >= 0 && read_file(fd, size, file, why);
    if (fd >= 0)
        close(fd);
    if (!ok) {
        st_free(file);
        st_report(path, why, error, error_size);
    }
    return ok;
}

void st_free(struct st_file *file)
{
    for (int i = 0; i < file->num_tensors; i++)
        free(file->tensors[i].name);
    for (int i = 0; i < file->num_meta; i++) {
        free(file->meta[i].key);
        free(file->meta[i].value);
    }
    free(file->tensors);
    free(file->meta);
    free(file->blob);
    *file = (struct st_file){ 0 };
}

struct st_tensor *st_find(const struct st_file *file, const char *name)
{
    for (int i = 0; i < file->num_tensors; i++) {
        if (!strcmp(file->tensors[i].name, name))
            return &file->tensors[i];
    }
    return NULL;
}

const char *st_meta_get(const struct st_file *file, const char *key)
{
    for (int i = 0; i < file->num_meta; i++) {
        if (!strcmp(file->meta[i].key, key))
            return file->meta[i].value;
    }
    return NULL;
}
