// SPDX-License-Identifier: Apache-2.0
// Inside the safetensors reader: file -> header -> text. A function that fails returns false with a message
// in `error`, which has room for ST_ERROR bytes.
#ifndef CLINFER_TOOLS_SAFETENSORS_HEADER_H_
#define CLINFER_TOOLS_SAFETENSORS_HEADER_H_

#include "safetensors.h"

enum { ST_ERROR = 512 };
#define ST_MAX_HEADER 100000000u          // bytes, a limit of the format
#define ST_MAX_NUMBER (UINT64_C(1) << 53) // up to here a double, hence cJSON, is exact
#define ST_METADATA   "__metadata__"

// Formats into `error`, control characters as '?', and returns false.
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
bool st_fail(char *error, const char *format, ...);

// Writes the end of the path, then `why`, for the caller: a long path must not push the reason out.
void st_report(const char *path, const char *why, char *error, size_t error_size);

// Checks that the text is one JSON object of valid UTF-8, then spaces only, in the subset that a header
// needs: objects, arrays, strings without NUL, plain whole numbers up to ST_MAX_NUMBER. *end: where the
// object ends. Duplicate keys are not seen here, since escapes can hide them.
bool st_text_check(const char *text, size_t size, size_t *end, char *error);

// Reads the header of a file with data_size bytes after it. Fills all of *file but `data` and `blob`, and
// a malloc'd array with the offset of each tensor in the data. On failure both hold what was made so far.
bool st_header_parse(const char *text, size_t size, uint64_t data_size, struct st_file *file,
                     uint64_t **begin, char *error);

// Name and size of a type; NULL for a value that is none.
const char *st_dtype_name(clinfer_dtype dtype, uint64_t *bytes);

#endif
