// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <clinfer/common.h>

#include <stdbool.h>
#include <time.h>

// The cache's folder: with file.c all that touches the file system, so that another system is another of
// both. What a file holds is program_cache.c's affair. A folder is a descriptor; names are relative to it.

struct clf_blob;

#define CLF_DIR_PATH_SIZE 4096
#define CLF_DIR_NAME_SIZE 40 // an entry is 32 hex digits and ".clb"
#define CLF_DIR_FILE_MAX  (UINT64_C(256) << 20)

struct clf_dir_file {
    char name[CLF_DIR_NAME_SIZE];
    uint64_t bytes;
    struct timespec used;
    bool regular;
    bool temporary; // of a writer at work, or of one that was killed
};

struct clf_dir_list {
    struct clf_dir_file *files; // free() it
    size_t count;
};

// CLF_DIR_BAD: not a file of ours (type, owner, mode, size), best removed. CLF_DIR_ABSENT covers passing
// failures too (no memory, no descriptors, a disk error).
enum clf_dir_found { CLF_DIR_FOUND, CLF_DIR_ABSENT, CLF_DIR_BAD };

// The folder for a cache_dir as context.h describes it; path is "" where the cache is switched off.
// Errors: ERR_FILE where no folder is named, ERR_ARGUMENT where path is too small.
clinfer_status clf_dir_path(const char *cache_dir, char *path, size_t size);

// A descriptor for the folder once owner and mode are found right, else -1 with one line in why. With
// `create` the folder and its parents are made; without it, errno is ENOENT where there is none.
int clf_dir_open(const char *path, bool create, char *why, size_t why_size);
void clf_dir_close(int dir); // -1 is no folder

// Reads a whole file of at least `least` bytes; *file is malloc'd.
enum clf_dir_found clf_dir_read(int dir, const char *name, size_t least, struct clf_blob *file);

// Puts a whole file under `name` or, with a line in why, nothing at all.
bool clf_dir_write(int dir, const char *name, const void *data, size_t size, char *why, size_t why_size);

void clf_dir_touch(int dir, const char *name); // most recently used, from now on
bool clf_dir_remove(int dir, const char *name);

// What in the folder bears a name of ours, least recently used first. False: errno says why.
bool clf_dir_scan(int dir, struct clf_dir_list *list);
