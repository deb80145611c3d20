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

#include <cjson/cJSON.h>

enum { PREFIX = 8 };
#define MAX_IO ((size_t) 1 << 30) // systems cap one write below 2 GiB

// As raw text: cJSON prints 1e15 and more with an exponent, which no reader takes for an offset.
static bool add_number(cJSON *array, int64_t number)
{
    char text[24];
    snprintf(text, sizeof(text), "%" PRId64, number);
    cJSON *item = cJSON_CreateRaw(text);
    if (cJSON_AddItemToArray(array, item))
        return true;
    cJSON_Delete(item);
    return false;
}

static bool add_tensor(cJSON *root, const struct st_tensor *t, uint64_t begin)
{
    uint64_t size;
    cJSON *item = cJSON_AddObjectToObject(root, t->name);
    cJSON *dtype = cJSON_AddStringToObject(item, "dtype", st_dtype_name(t->dtype, &size));
    cJSON *shape = cJSON_AddArrayToObject(item, "shape");
    cJSON *offsets = cJSON_AddArrayToObject(item, "data_offsets");
    bool ok = dtype && shape && offsets;
    for (int i = 0; ok && i < t->rank; i++)
        ok = add_number(shape, t->shape[i]);
    return ok && add_number(offsets, (int64_t) begin) && add_number(offsets, (int64_t) (begin + t->bytes));
}

static bool add_metadata(cJSON *root, const struct st_file *file)
{
    cJSON *object = file->num_meta > 0 ? cJSON_AddObjectToObject(root, ST_METADATA) : root;
    bool ok = object != NULL;
    for (int i = 0; ok && i < file->num_meta; i++)
        ok = cJSON_AddStringToObject(object, file->meta[i].key, file->meta[i].value) != NULL;
    return ok;
}

// What the text could not express; all else st_header_parse finds in it.
static bool check(const struct st_file *file, uint64_t *data_size, char *error)
{
    uint64_t size;
    *data_size = 0;
    for (int i = 0; i < file->num_meta; i++) {
        if (!file->meta[i].key || !file->meta[i].value)
            return st_fail(error, "metadata %d of %d has no key or no value", i, file->num_meta);
    }
    for (int i = 0; i < file->num_tensors; i++) {
        const struct st_tensor *t = &file->tensors[i];
        if (!t->name)
            return st_fail(error, "tensor %d of %d has no name", i, file->num_tensors);
        if (!st_dtype_name(t->dtype, &size))
            return st_fail(error, "tensor \"%.80s\": type %d is none", t->name, (int) t->dtype);
        if (t->rank < 0 || t->rank > ST_MAX_RANK)
            return st_fail(error, "tensor \"%.80s\": rank %d is not 0 to %d", t->name, t->rank, ST_MAX_RANK);
        if (t->bytes && !t->data)
            return st_fail(error, "tensor \"%.80s\": %zu bytes, but no data", t->name, t->bytes);
        if (t->bytes > ST_MAX_NUMBER - *data_size)
            return st_fail(error, "tensor \"%.80s\": %zu bytes after %" PRIu64 " are past what offsets hold",
                           t->name, t->bytes, *data_size);
        *data_size += t->bytes;
    }
    return true;
}

static char *print_header(const struct st_file *file)
{
    cJSON *root = cJSON_CreateObject();
    bool ok = root && add_metadata(root, file);
    uint64_t begin = 0;
    for (int i = 0; ok && i < file->num_tensors; i++) {
        ok = add_tensor(root, &file->tensors[i], begin);
        begin += file->tensors[i].bytes;
    }
    char *text = ok ? cJSON_PrintUnformatted(root) : NULL;
    cJSON_Delete(root);
    return text;
}

// The length and the padded header, malloc'd; NULL on failure. Read back by the reader's own rules.
static char *make_header(const struct st_file *file, size_t *size, char *error)
{
    struct st_file parsed = { 0 };
    uint64_t data_size, *begin = NULL;
    if (!check(file, &data_size, error))
        return NULL;
    char *text = print_header(file), *header = NULL;
    size_t used = text ? strlen(text) : 0, length = (used + 7) / 8 * 8;
    if (text)
        header = malloc(PREFIX + length);
    bool ok = header || st_fail(error, "out of memory for the header");
    if (ok) {
        for (int i = 0; i < PREFIX; i++)
            header[i] = (char) ((uint64_t) length >> (8 * i) & 0xFF);
        memcpy(header + PREFIX, text, used);
        memset(header + PREFIX + used, ' ', length - used);
        ok = length <= ST_MAX_HEADER ||
             st_fail(error, "the header has %zu bytes, at most %u are allowed", length, ST_MAX_HEADER);
        ok = ok && st_header_parse(header + PREFIX, length, data_size, &parsed, &begin, error);
    }
    cJSON_free(text);
    st_free(&parsed);
    free(begin);
    if (!ok) {
        free(header);
        return NULL;
    }
    *size = PREFIX + length;
    return header;
}

static bool write_all(int fd, const void *buf, size_t size, const char *what, char *error)
{
    for (size_t done = 0; done < size;) {
        size_t want = size - done < MAX_IO ? size - done : MAX_IO;
        ssize_t n = write(fd, (const char *) buf + done, want);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return st_fail(error, "writing %.80s: %s after %zu of %zu bytes", what, strerror(n ? errno : EIO),
                           done, size);
        done += (size_t) n;
    }
    return true;
}

static bool random_bits(uint64_t *bits, char *error)
{
    int fd = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, bits, sizeof(*bits)) : -1;
    if (fd >= 0)
        close(fd);
    return n == (ssize_t) sizeof(*bits) ||
           st_fail(error, "no random name: /dev/urandom: %s", strerror(errno));
}

// Creates a file beside `path` that was not there before; its name goes to `temp`. Not mkstemp, which ignores
// the umask. The name does not contain that of `path`, which may be as long as names get.
static int create_temporary(const char *path, char *temp, size_t temp_size, char *error)
{
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int) (slash - path) + 1 : 0, fd = -1;
    for (int tries = 0; tries < 16 && fd < 0; tries++) {
        uint64_t bits;
        if (!random_bits(&bits, error))
            return -1;
        snprintf(temp, temp_size, "%.*s.safetensors-%016" PRIx64 ".tmp", folder, path, bits);
        fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd < 0 && errno != EEXIST)
            break;
    }
    if (fd < 0)
        st_fail(error, "cannot create a file in its folder: %s", strerror(errno));
    return fd;
}

static bool write_file(int fd, const char *header, size_t size, const struct st_file *file, char *error)
{
    bool ok = write_all(fd, header, size, "the header", error);
    for (int i = 0; ok && i < file->num_tensors; i++)
        ok = write_all(fd, file->tensors[i].data, file->tensors[i].bytes, file->tensors[i].name, error);
    // Before the rename, or a crash could leave the new name with old or no contents.
    if (ok && fsync(fd))
        ok = st_fail(error, "writing: %s", strerror(errno));
    if (close(fd) && ok)
        ok = st_fail(error, "closing: %s", strerror(errno));
    return ok;
}

static bool replace(const char *path, const char *header, size_t size, const struct st_file *file,
                    char *error)
{
    struct stat st;
    // Renaming over a device would succeed for root, and break the system.
    if (!stat(path, &st) && !S_ISREG(st.st_mode))
        return st_fail(error, "exists and is not a regular file (mode 0%o)", (unsigned) st.st_mode);
    size_t temp_size = strlen(path) + 40;
    char *temp = malloc(temp_size);
    if (!temp)
        return st_fail(error, "out of memory for a name of %zu bytes", temp_size);
    int fd = create_temporary(path, temp, temp_size, error);
    bool ok = fd >= 0 && write_file(fd, header, size, file, error);
    if (ok && rename(temp, path))
        ok = st_fail(error, "cannot rename to it: %s", strerror(errno));
    if (fd >= 0 && !ok)
        unlink(temp);
    free(temp);
    return ok;
}

bool st_write(const char *path, const struct st_file *file, char *error, size_t error_size)
{
    char why[ST_ERROR];
    size_t size;
    char *header = make_header(file, &size, why);
    bool ok = header && replace(path, header, size, file, why);
    free(header);
    if (!ok)
        st_report(path, why, error, error_size);
    return ok;
}
