// SPDX-License-Identifier: Apache-2.0
// The ops as tables, and calls of them read from case files: what the tools and the tests share.
#ifndef CLINFER_TOOLS_OPCASE_H_
#define CLINFER_TOOLS_OPCASE_H_

#include <stdbool.h>

#include <clinfer/clinfer.h>

#include "safetensors.h"

enum { OP_MAX_TENSORS = 16, OP_MAX_SPANS = 2 };

enum op_role { OP_IN, OP_OUT, OP_INOUT };

// What stands at a tensor's offset in the params.
enum op_place { OP_TENSOR, OP_BLOCKS, OP_SCALES };

struct op_tensor {
    const char *name; // in case files
    size_t offset;
    enum op_role role;
    enum op_place place;
    bool optional;
    unsigned types; // a bit for each legal clinfer_dtype, 1u << dtype
    // A letter an axis; equal letters are equal extents, and y is half of Y. h may be left out, of all
    // tensors.
    const char *axes;
    const char *like; // of an output: the tensor whose type it has, BF16 for F8_E4M3; NULL: the params say
};

enum op_kind { OP_INT64, OP_FLOAT, OP_CHOICE, OP_DTYPE };

struct op_scalar {
    const char *name; // in the metadata of case files
    size_t offset;
    enum op_kind kind;
    const char *fallback;       // NULL: required
    const char *const *choices; // by value, NULL at the end
};

struct op_case;
struct op_load;

// How a span of a row that the op wrote is compared.
enum op_sum { OP_NO_SUM, OP_SUM_ROUNDED, OP_SUM_QUANTISED };

struct op_span {
    int64_t first, count; // elements of the tensor's last axis
    clinfer_dtype inner;  // the narrowest type the values were rounded to before they were stored
    int units;            // in the last place
    enum op_sum sum;      // whether they are sums over rounded values
};

struct op_desc {
    const char *name;
    size_t params_size, kv, batch, layer; // offsets in the params; kv 0: the op works on no cache
    bool reads_context;                   // reads tokens cached before the step
    const struct op_tensor *tensors;
    int num_tensors;
    const struct op_scalar *scalars; // one without a name ends them
    clinfer_status (*run)(clinfer_ctx *ctx, const void *params, cl_uint num_events, const cl_event *events,
                          cl_event *event);
    clinfer_status (*compile)(clinfer_ctx *ctx, const void *params);
    void (*ref)(const void *params);
    bool (*check)(struct op_load *load); // what the tables cannot say
    // The spans of one head of a new token's row that the op writes; the count.
    int (*spans)(const struct op_case *c, const char *tensor, int64_t head, struct op_span *spans);
    // Offset of V's own view in the params; 0: the op has none, and of kv it writes the K plane only. Else
    // heads, as `spans` gets them, count on from the K plane to the V plane.
    size_t kv_v;
};

extern const struct op_desc op_descs[];
extern const int op_num_descs;
const struct op_desc *op_find(const char *name); // NULL: no such op

// A tensor of a case, on the host and dense.
struct op_buffer {
    const struct op_tensor *tensor;
    clinfer_dtype dtype;
    int rank;
    int64_t shape[ST_MAX_RANK];
    size_t bytes;
    unsigned char *data;          // what the params point at
    const unsigned char *initial; // contents before the op; NULL: zeros
};

// A call. `params` is the op's params struct with host addresses as its cl_mem.
struct op_case {
    const struct op_desc *op;
    struct st_file file;
    void *params;
    int64_t total; // T
    struct op_buffer buffers[OP_MAX_TENSORS];
    int num_buffers;
};

// Reads a case file and refuses whatever the host can see to be wrong, so that running it, on the
// reference too, stays inside its tensors. False: `error` says why, and *c is empty.
bool op_case_load(const char *path, struct op_case *c, char *error, size_t error_size);
// The same of a call whose `file` is filled and all else zero; messages call it `name`.
bool op_case_take(const char *name, struct op_case *c, char *error, size_t error_size);
void op_case_free(struct op_case *c);
// Outputs to zero, tensors changed in place to what the file holds.
void op_case_reset(struct op_case *c);
const struct op_buffer *op_case_buffer(const struct op_case *c, const char *name); // NULL if absent
const clinfer_kv_cache *op_case_kv(const struct op_case *c);
const clinfer_kv_batch *op_case_batch(const struct op_case *c);

// A case in the buffers of a device.
struct op_device {
    void *params; // with cl_mem
    cl_mem mems[OP_MAX_TENSORS];
};

bool op_device_open(const struct op_case *c, cl_context context, struct op_device *d, char *error,
                    size_t error_size);
void op_device_close(struct op_device *d);
// Copies all buffers of the case to the device. Blocks.
bool op_device_upload(const struct op_case *c, const struct op_device *d, cl_command_queue queue, char *error,
                      size_t error_size);
// Waits for the queue, then copies what the op writes into the case's buffers.
bool op_device_download(struct op_case *c, const struct op_device *d, cl_command_queue queue, char *error,
                        size_t error_size);

// opload.c, for the checks.
struct op_load {
    const char *path;
    struct op_case *c;
    int64_t axis[128];          // extents by letter; -1: not seen
    const char *axis_from[128]; // the tensor that set it
    bool flat;                  // axis h is left out
    char *error;
    size_t error_size;
};

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
bool op_load_fail(struct op_load *load, const char *format, ...); // always false
bool op_load_int(struct op_load *load, const char *name, const char *text, int64_t *value);
// ceil(n / size)
int64_t op_groups(int64_t n, int64_t size);

// opcheck.c
bool op_check_fused_qk_rope(struct op_load *load);
bool op_check_rms_norm_kv_cache(struct op_load *load);
bool op_check_mla_fused_rope_rmsnorm(struct op_load *load);
bool op_check_mla_decode_branch(struct op_load *load);
bool op_check_kv_store(struct op_load *load);
bool op_check_silu_mul(struct op_load *load);
bool op_check_rms_norm(struct op_load *load);
bool op_check_merge_states(struct op_load *load);
bool op_check_paged_attention(struct op_load *load);
bool op_check_matmul(struct op_load *load);
bool op_check_mla_prefill_branch(struct op_load *load);
bool op_check_contents(struct op_load *load); // offsets, positions and page ids

// opspans.c
int op_spans_fused_qk_rope(const struct op_case *c, const char *tensor, int64_t head, struct op_span *spans);
int op_spans_rms_norm_kv_cache(const struct op_case *c, const char *tensor, int64_t head,
                               struct op_span *spans);
int op_spans_mla_fused_rope_rmsnorm(const struct op_case *c, const char *tensor, int64_t head,
                                    struct op_span *spans);
int op_spans_mla_decode_branch(const struct op_case *c, const char *tensor, int64_t head,
                               struct op_span *spans);
int op_spans_kv_store(const struct op_case *c, const char *tensor, int64_t head, struct op_span *spans);
int op_spans_silu_mul(const struct op_case *c, const char *tensor, int64_t head, struct op_span *spans);
int op_spans_rms_norm(const struct op_case *c, const char *tensor, int64_t head, struct op_span *spans);
int op_spans_merge_states(const struct op_case *c, const char *tensor, int64_t head, struct op_span *spans);
int op_spans_paged_attention(const struct op_case *c, const char *tensor, int64_t head,
                             struct op_span *spans);
int op_spans_matmul(const struct op_case *c, const char *tensor, int64_t head, struct op_span *spans);
int op_spans_mla_prefill_branch(const struct op_case *c, const char *tensor, int64_t head,
                                struct op_span *spans);

#endif
