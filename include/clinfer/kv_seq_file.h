// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_KV_SEQ_FILE_H_
#define CLINFER_KV_SEQ_FILE_H_

#include <clinfer/kv_pool.h>

CLINFER_API_BEGIN

// A sequence of a pool in a file: its rows of all layers, in the pool's types and without regard to pages,
// its salt, and the ids of its tokens as far as they are known. Both calls block, on files and on the device,
// for what has been committed before them and for their own work, which is on a queue of their own; other
// threads go on using the pool meanwhile. ERR_FILE: the file, named with what the system says of it.

// The sequence is in no open batch; it may go on meanwhile, and then copies its tail (kv_pool.h). Rows that
// the program stored itself have to be there. The file comes whole, for its owner alone, in place of what has
// that name: it is written under another (new-*.tmp) in the same folder, which on error goes away. Errors:
// ERR_ARGUMENT, ERR_FILE, ERR_MEMORY, OpenCL's.
CLINFER_API clinfer_status clinfer_kv_seq_save(clinfer_kv_pool *pool, clinfer_kv_seq seq, const char *path);

// A new sequence of what a file holds. Layers, heads, head sizes, mla and the pool's salt have to be those of
// the pool that it was saved from. Where type and scale group are too, rows keep their bits; else they are
// stored as clinfer_kv_store would store their values, rounded once. Known tokens become prefixes that can be
// found. Each part of the file is checked against its hash before it is used, and a sequence that is not
// whole goes again: ERR_FILE, "damaged". Against forgery there is nothing: trust the file as much as the
// model. Errors: those, ERR_SHAPE and ERR_ARGUMENT (salt) with both numbers, ERR_PAGES, ERR_MEMORY, OpenCL's,
// and clinfer_kv_store's; *seq is 0.
CLINFER_API clinfer_status clinfer_kv_seq_load(clinfer_kv_pool *pool, const char *path, clinfer_kv_seq *seq);

CLINFER_API_END

#endif
