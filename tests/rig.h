// SPDX-License-Identifier: Apache-2.0
// One tiny call of each op, all f32 and always of the same specialisation, so that tests of what lies around
// the kernels compile little. Every buffer has guards; whatever the op must not read holds poison.
#ifndef CLINFER_TESTS_RIG_H_
#define CLINFER_TESTS_RIG_H_

#include <stdbool.h>

#include <clinfer/clinfer.h>

#include "../ref/ref.h"
#include "../tools/opcase.h"

enum { RIG_GUARD = 64, RIG_TOKENS = 7, RIG_REQUESTS = 3, RIG_PAGES = 40, RIG_FREQS = 40, RIG_NAN = 0xFF };

// T is RIG_TOKENS: rows past the requests' are padding. An op without a cache has T rows, and nothing else of
// this.
struct rig_batch {
    int64_t cached[RIG_REQUESTS], fresh[RIG_REQUESTS];
    int64_t page_size, columns;
    int64_t freqs;    // rows of the table, at most RIG_FREQS
    bool contiguous;  // pages in order, else scattered
    bool same_prefix; // what is cached is equal in all requests ...
    bool share;       // ... and its full pages are one request's
    int position_ids; // rows of position_ids (fused_qk_rope), a section each; 0: none
    int poison;       // the byte that fills all that may not be read
};
extern const struct rig_batch rig_default;

struct rig_buffer {
    const struct op_tensor *tensor;
    size_t size; // with guards
    unsigned char *initial, *want, *got;
    cl_mem mem;
};

union rig_params {
    struct clinfer_fused_qk_rope_params rope;
    struct clinfer_rms_norm_kv_cache_params norm;
    struct clinfer_mla_fused_rope_rmsnorm_params store;
    struct clinfer_mla_decode_branch_params decode;
    struct clinfer_kv_store_params kv_store;
    struct clinfer_silu_mul_params silu_mul;
    struct clinfer_rms_norm_params rms_norm;
    struct clinfer_merge_states_params merge_states;
    struct clinfer_paged_attention_params attention;
    struct clinfer_matmul_params matmul;
    struct clinfer_mla_prefill_branch_params prefill;
};

struct rig {
    const struct op_desc *op;
    struct rig_batch batch;
    union rig_params params; // for the library, with cl_mem
    struct rig_buffer buffer[OP_MAX_TENSORS];
    int num_buffers;
    char note[256]; // the first difference that rig_same found
};

// for (EACH_CACHE_OP(i)): indices into op_descs of those that work on a cache.
int rig_cache_op(int from); // the first at or past it
#define EACH_CACHE_OP(i)                                                                                     \
    int i = rig_cache_op(0);                                                                                 \
    i < op_num_descs;                                                                                        \
    i = rig_cache_op(i + 1)

// op: the name of one; batch NULL: rig_default. Aborts when there is no memory.
void rig_make(struct rig *r, const char *op, const struct rig_batch *batch);
void rig_free(struct rig *r);

// The initial contents, past the guard.
struct rig_buffer *rig_buffer(struct rig *r, const char *tensor);
uint32_t *rig_u32(struct rig *r, const char *tensor);
// Bytes of a cache row (K plane) in one of a buffer's images, and from a plane to the next.
unsigned char *rig_row(struct rig *r, unsigned char *image, int64_t request, int64_t position);
int64_t rig_plane_bytes(const struct rig *r);
enum { RIG_ROW_BYTES = 48 * 4 };

// Buffers on a device, and the initial contents into them (blocks). A status of OpenCL's.
cl_int rig_open(struct rig *r, cl_context context);
cl_int rig_upload(struct rig *r, cl_command_queue queue);
// All buffers into `got`. Blocks.
cl_int rig_download(struct rig *r, cl_command_queue queue);
void rig_close(struct rig *r);

// open, upload, run, download, close on the context's queue.
clinfer_status rig_run(struct rig *r, clinfer_ctx *ctx);

// The scalar reference into `want`; tokens with a fault are skipped.
void rig_reference(struct rig *r);
// Whether `got` is `want`: what the reference wrote within 2e-5 * (1 + abs), all else bit for bit.
bool rig_same(struct rig *r);
// Whether nothing was written at all.
bool rig_untouched(struct rig *r);
// Whether two rigs of one shape got the same bits in everything that the op writes, cache rows by position.
bool rig_equal(struct rig *a, struct rig *b);

#endif
