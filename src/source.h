// SPDX-License-Identifier: Apache-2.0
#pragma once
#include "ctx.h"

// The kernel files of the library, written by tools/embed.py; names relative to cl/.
struct clf_embedded {
    const char *name;
    const unsigned char *data;
    size_t size;
};
extern const struct clf_embedded clf_embedded[];
extern const int clf_num_embedded;

// cl/SET/STEM.cl with its includes expanded, read once a context.
struct clf_source {
    struct clf_source *next;
    const char *stem;
    clinfer_kernel_set set;
    char *text;
    size_t size;
    char hash[33]; // XXH3-128 of the text, hexadecimal
};

// Call with the lock held. Errors go to `error`.
clinfer_status clf_source_get(clinfer_ctx *ctx, clinfer_kernel_set set, const char *stem,
                              const struct clf_source **source, char *error, size_t error_size);
void clf_sources_free(clinfer_ctx *ctx);
