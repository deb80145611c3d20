// SPDX-License-Identifier: Apache-2.0
// Files that are written whole or not at all.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CLF_FILE_TEMPORARY = 40 }; // bytes of such a name: "new-", 16 hex digits, ".tmp"

// A new file of a random name in the folder, for its owner alone; -1: errno says why.
int clf_file_temporary(int dir, char name[CLF_FILE_TEMPORARY]);
// All of it; false: errno says why. A file past RLIMIT_FSIZE is such a failure, no signal.
bool clf_file_write(int fd, const void *data, size_t size);
// As much as there is of it, in *done; false: errno says why.
bool clf_file_read(int fd, void *data, size_t size, size_t *done);

// A file that takes the place of `path` once it is whole.
struct clf_file {
    int dir, fd; // fd -1: none
    const char *name;
    char temporary[CLF_FILE_TEMPORARY];
};
// path is kept until the end. False: errno says why.
bool clf_file_create(struct clf_file *f, const char *path);
// On disk, and under its name. False: errno says why, and there is none of it.
bool clf_file_finish(struct clf_file *f);
void clf_file_abandon(struct clf_file *f);

// A regular file to read; -1: errno says why.
int clf_file_open(const char *path, uint64_t *size);
void clf_file_close(int fd);
