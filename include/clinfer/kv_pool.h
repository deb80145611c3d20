// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_KV_POOL_H_
#define CLINFER_KV_POOL_H_

#include <clinfer/context.h>
#include <clinfer/kv_cache.h>

CLINFER_API_BEGIN

// A paged KV cache that the engine keeps: device memory cut into pages, sequences that hold pages, and
// batches, which are the tensors of one step. A program with buffers of its own needs none of this: the
// operations take the plain structs of kv_cache.h.
//
//   clinfer_kv_pool_create(&pool, ctx, clinfer_kv_pool_params(.num_layers = 30, .num_heads = 3,
//       .head_size = 64, .page_size = 16, .dtype = CLINFER_BF16, .max_bytes = 1 << 30));
//   clinfer_kv_seq_create(pool, &seq);
//
//   clinfer_kv_batch_create(pool, clinfer_kv_batch_params(.num_seqs = 1, .seqs = &seq,  // each step
//       .new_tokens = &n), &batch);
//   clinfer_kv_batch_info(pool, batch, &info);
//   ... for each layer l, operations with .kv = clinfer_kv_pool_layer(pool, l), .batch = info.tensors ...
//   clinfer_kv_batch_commit(pool, batch, 0, NULL);  // enqueued is enough: nothing here waits for the device
//
// Prefixes that come again and forks are in kv_prefix.h, sequences in files in kv_seq_file.h.
//
// Sequences and batches are numbers that a pool never gives twice. One that has ended, that another pool of
// the context gave (of another context's, all but one in 2^39), or that is made up is refused: ERR_ARGUMENT;
// 0 is none. A call that returns an error has changed nothing (though it may have cost cached prefixes), and
// clinfer_ctx_error() of the pool's context has the text. Threads: any, one lock a pool; destroy comes last.
// The log callback is called without the lock.
typedef struct clinfer_kv_pool clinfer_kv_pool;
typedef uint64_t clinfer_kv_seq;
typedef uint64_t clinfer_kv_pool_batch;

struct clinfer_kv_pool_params {
    int mla;               // 1: one plane of one head, rows of head_size = C + R; 0: a K and a V plane
    int64_t num_layers;    // 0: 1
    int64_t num_heads;     // K; with mla 0 or 1
    int64_t head_size;     // of K, or of an MLA row
    int64_t v_head_size;   // 0: head_size
    int64_t page_size;     // S >= 1 tokens
    clinfer_dtype dtype;   // of K: F32 F16 BF16 F8_E4M3
    clinfer_dtype v_dtype; // 0: dtype
    int64_t scale_group;   // elements that share a scale, of those of K and V that are F8_E4M3; 0: no scales
    // One of the two. A page holds its S tokens for all layers, K, V and scales.
    int64_t num_pages;  // at most 2^31 - 1
    uint64_t max_bytes; // as many pages as fit into this much device memory
    // Names what else the contents of a row depend on, the model and its rotations say: prefixes of another
    // salt are others, and a saved sequence is loaded only where it is the same.
    uint64_t salt;
};
#define clinfer_kv_pool_params(...) (&(struct clinfer_kv_pool_params){ __VA_ARGS__ })

// One buffer holds everything; where it would pass the device's largest allocation, each layer has its own.
// Contents are not initialised: slots that no operation wrote may hold NaN, and none is read.
// Errors: ERR_ARGUMENT, ERR_SHAPE, ERR_TYPE; ERR_UNSUPPORTED where one layer passes the largest allocation
// too; ERR_MEMORY, OpenCL's. On error *pool is NULL.
CLINFER_API clinfer_status clinfer_kv_pool_create(clinfer_kv_pool **pool, clinfer_ctx *ctx,
                                                  const struct clinfer_kv_pool_params *params);

// Waits for the uploads of its batches, frees, sets *pool to NULL; open batches and sequences end with it.
// Before the context's destroy. Work already enqueued keeps the buffers alive. *pool may be NULL.
CLINFER_API void clinfer_kv_pool_destroy(clinfer_kv_pool **pool);

// A view with layer l chosen: num_layers 1, so the operations' layer_idx is 0. Where K and V have one head
// size and type it has both planes, else K's alone; with mla the one plane. Valid until destroy. A layer that
// is none gives a zeroed view, which every operation refuses, and the error text.
CLINFER_API clinfer_kv_cache clinfer_kv_pool_layer(clinfer_kv_pool *pool, int64_t l);
// V's plane alone (planes 1), in its own head size and type. With mla zeroed, as above.
CLINFER_API clinfer_kv_cache clinfer_kv_pool_layer_v(clinfer_kv_pool *pool, int64_t l);

struct clinfer_kv_pool_info {
    int64_t num_pages;             // = free + used + cached
    int64_t free_pages;            // sequences can take these and the cached ones
    int64_t used_pages;            // held by sequences, open batches included
    int64_t cached_pages;          // held by none, kept for a prefix that comes again (kv_prefix.h)
    int64_t num_seqs, num_batches; // alive, open
    int64_t num_buffers;           // 1, or one a layer
    uint64_t page_bytes;           // of one page, all layers
    uint64_t bytes;                // device memory of all buffers
    // Since create:
    uint64_t lookups, lookup_tokens; // clinfer_kv_seq_match, and the tokens looked for
    uint64_t hit_tokens;             // of those, the ones found
    uint64_t evictions;              // cached pages that were taken for something else
    uint64_t copies;                 // pages that a sequence copied before it appended
};
CLINFER_API void clinfer_kv_pool_info(clinfer_kv_pool *pool, struct clinfer_kv_pool_info *info);

// Counts everything anew: 1 where each page is free, held as often as the books say, or cached and found by
// its tokens, and every sequence has the pages that its length asks for. Else 0, the first contradiction in
// `error` (may be NULL). For tests: it takes time by the page.
CLINFER_API int clinfer_kv_pool_check(clinfer_kv_pool *pool, char *error, size_t error_size);

// A sequence has a length, the tokens that the cache holds for it, at most 2^32 - 1, and just the pages for
// them. A new one is empty. While it is in an open batch it can be read, but neither extended, truncated nor
// freed; it never waits for the device. Pages that it gives back go to whoever asks next, while the device
// may still be working on them: clinfer_kv_batch_info.ready keeps a batch's work behind that, and what the
// program writes itself after extend must be so by its queue or events.
//
// What appends to a partly filled page that others have too, or that can be found as a prefix, first takes a
// page of its own and copies the rows: on the batch's queue, before `ready`; of extend on the context's. That
// page counts among those that are wanted. The copy comes after all batches that have ended; rows that the
// program stored itself have to be there by then, or be before it on that queue. No row that was stored ever
// changes for another sequence.
// Errors of all: ERR_ARGUMENT, ERR_MEMORY; of extend also ERR_PAGES, OpenCL's.
CLINFER_API clinfer_status clinfer_kv_seq_create(clinfer_kv_pool *pool, clinfer_kv_seq *seq);
CLINFER_API clinfer_status clinfer_kv_seq_free(clinfer_kv_pool *pool, clinfer_kv_seq seq);

// Lengthens it by `tokens` whose rows the program stores itself (a prompt that was saved): it takes pages and
// advances at once. What a step computes comes through a batch instead. ERR_PAGES: too few are free
// or cached.
CLINFER_API clinfer_status clinfer_kv_seq_extend(clinfer_kv_pool *pool, clinfer_kv_seq seq, int64_t tokens);
// Shortens it to `length` tokens, at most what it has; pages that hold none of them go back.
CLINFER_API clinfer_status clinfer_kv_seq_truncate(clinfer_kv_pool *pool, clinfer_kv_seq seq, int64_t length);

CLINFER_API clinfer_status clinfer_kv_seq_length(clinfer_kv_pool *pool, clinfer_kv_seq seq, int64_t *length);
// The pages that hold its tokens, in order: *count of them, the first `capacity` into pages. Token i is in
// pages[i / S], slot i % S.
CLINFER_API clinfer_status clinfer_kv_seq_pages(clinfer_kv_pool *pool, clinfer_kv_seq seq, uint32_t *pages,
                                                int64_t capacity, int64_t *count);

struct clinfer_kv_batch_params {
    cl_command_queue queue;     // that the tensors are uploaded on; NULL: the context's
    int64_t num_seqs;           // B; may be 0
    const clinfer_kv_seq *seqs; // row b of the batch is seqs[b]; none twice, none in another open batch
    const int64_t *new_tokens;  // of each, >= 0
    // Ids of the new tokens, row after row; NULL: not known. On commit they make pages that are full by then
    // a prefix that can be found, for sequences whose tokens before them are known too (kv_prefix.h).
    const uint32_t *tokens;
};
#define clinfer_kv_batch_params(...) (&(struct clinfer_kv_batch_params){ __VA_ARGS__ })

// Opens a batch: takes pages for all its new tokens, or none at all, writes the tensors and enqueues their
// upload. Nothing blocks. Any number may be open at once; the lengths of its sequences stay as they are until
// commit. Errors: ERR_PAGES (more pages are wanted than are free or cached), ERR_ARGUMENT, ERR_MEMORY,
// OpenCL's.
CLINFER_API clinfer_status clinfer_kv_batch_create(clinfer_kv_pool *pool,
                                                   const struct clinfer_kv_batch_params *params,
                                                   clinfer_kv_pool_batch *batch);

// What operations need of an open batch. Tensors and event belong to it: they are for commands enqueued
// before commit or drop.
struct clinfer_kv_batch_info {
    // The last column is that of the longest row; what a shorter row does not use is 0xFFFFFFFF, a page
    // that is none.
    clinfer_kv_batch tensors;
    // The upload's event. It comes after all work of the batches that have ended before this one was
    // created, so what waits for it also reads the rows that they stored, and has the pages that they gave
    // back for itself. The first operation of each chain takes it as its wait list; it may be left out
    // on the batch's own queue, if that is in order and batches end without wait lists.
    cl_event ready;
    int64_t num_seqs;
    int64_t total_tokens; // new ones: input_row_offsets[B], the least T
    int64_t max_context;  // tokens of the longest row, new ones included
};
CLINFER_API clinfer_status clinfer_kv_batch_info(clinfer_kv_pool *pool, clinfer_kv_pool_batch batch,
                                                 struct clinfer_kv_batch_info *info);

// Ends a batch once its operations are enqueued, which is enough: its sequences have their new lengths, and
// may be in the next batch. Its tensors are kept for as long as the device reads them: until all that its
// queue holds by now has ended or, where a wait list is given, exactly what that says; so if any work is on
// another queue, the list names all of it. Where an event of the list fails, the batches that follow do not
// wait for the rest. Errors: ERR_ARGUMENT, OpenCL's; the batch stays open.
CLINFER_API clinfer_status clinfer_kv_batch_commit(clinfer_kv_pool *pool, clinfer_kv_pool_batch batch,
                                                   cl_uint num_events_in_wait_list,
                                                   const cl_event *event_wait_list);
// Ends a batch as if it had never been: its sequences keep the lengths from before, its pages go back. What
// was enqueued with it still runs: the wait list is commit's.
CLINFER_API clinfer_status clinfer_kv_batch_drop(clinfer_kv_pool *pool, clinfer_kv_pool_batch batch,
                                                 cl_uint num_events_in_wait_list,
                                                 const cl_event *event_wait_list);

CLINFER_API_END

#endif
