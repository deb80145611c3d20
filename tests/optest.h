// SPDX-License-Identifier: Apache-2.0
// The harness of the op tests. A test says which shapes and types a call has; the harness lays the tensors
// out in buffers with strides, offsets and guards, fills what the op may read and leaves NaN in all the rest,
// runs reference and library on copies, and compares: what the op writes with the contract's tolerance, every
// other byte of every buffer exactly.
#ifndef CLINFER_TESTS_OPTEST_H_
#define CLINFER_TESTS_OPTEST_H_

#include <stdbool.h>

#include <clinfer/clinfer.h>

#include "../ref/ref.h"
#include "../tools/compare.h"

enum { OT_MAX_REQUESTS = 24, OT_NOTE = 320 };

// A sequence of random numbers that a name and the environment's OPTEST_SEED (0) choose.
struct ot_random {
    uint64_t state;
};
struct ot_random ot_seeded(const char *name, int64_t number);
uint64_t ot_bits(struct ot_random *r);
int64_t ot_between(struct ot_random *r, int64_t low, int64_t high); // both included
double ot_gauss(struct ot_random *r);
// N of the environment's OPTEST_SHARE (1): a test runs every N-th of its random specialisations, and of the
// rest as many as show each value of each axis.
int ot_share(void);
#define OT_COUNT(array)   (int64_t)(sizeof(array) / sizeof((array)[0]))
#define OT_PICK(r, array) ((array)[ot_between(r, 0, OT_COUNT(array) - 1)])

extern const clinfer_dtype ot_floats[3]; // F32 F16 BF16

// Cache types with a group size each: F32 F16 BF16 F8_E4M3, and F8_E4M3 with scales.
enum { OT_CACHES = 5 };
void ot_cache_type(clinfer_kv_cache *kv, int which, int64_t group);
// Whether a table of caches times `values` has this one in a share: all with scales, one of each other cache.
bool ot_in_share(int cache, int64_t i, int64_t values);
void ot_describe_cache(const clinfer_kv_cache *kv, char *text, size_t size);

struct ot_device {
    clinfer_ctx *ctx;
    cl_context cl;
    cl_command_queue queue;
};
struct ot_device ot_open(unsigned disable_caps); // without self-checks: it is kernels that are tested
struct ot_device ot_open_checked(void);
void ot_close(struct ot_device *d);

// The requests, and the cache around them.
struct ot_batch {
    int requests;
    int64_t cached[OT_MAX_REQUESTS], fresh[OT_MAX_REQUESTS];
    int64_t padding; // rows of T past the last request
    int64_t page_size;
    int64_t layers, layer;
    bool share; // requests share the full pages of their common prefix with request 0
};
int64_t ot_used(const struct ot_batch *b);    // tokens of all requests
int64_t ot_total(const struct ot_batch *b);   // T
int64_t ot_longest(const struct ot_batch *b); // keys of the longest request
// Ragged lengths, some requests empty, at most `longest` keys each and `tokens` new ones together, at least
// one.
struct ot_batch ot_random_batch(struct ot_random *r, int64_t longest, int64_t tokens);
struct ot_batch ot_one_request(int64_t cached, int64_t fresh, int64_t page_size);

// Where q and an output of its type stand.
enum ot_pairing { OT_SEPARATE, OT_IN_PLACE, OT_ONE_ROW };

struct ot_memory {
    size_t size;
    unsigned char *initial, *ref, *got; // before the op; after it, by the reference and by the library
    unsigned char *inside;              // 1 for bytes of a tensor that the op writes
    cl_mem mem;
};

struct ot_call {
    const struct op_desc *op;
    struct ot_batch batch;
    struct ot_random random;
    enum ot_pairing pairing;
    void *params; // host addresses: of `ref` in each memory
    struct ot_memory memory[OP_MAX_TENSORS];
    int num_memories;
    int of[OP_MAX_TENSORS]; // the memory of a tensor of the op; -1: absent
    // Elements between the cache's pages on the device, or without a cache between rows of tokens, for
    // offsets past 32 bits: ot_check_far gives it, and the buffer is hardly touched. 0: as placed.
    int64_t far_stride;
    // Last touch on the params that the library gets; may be NULL.
    void (*adjust)(struct ot_call *c, void *params);
    void *adjust_priv;
    struct clinfer_fault fault; // what the device recorded in the last run
    char note[OT_NOTE];         // for messages
};

// Empties *c and returns the params, in which the test sets types and shapes (not those of the batch, nor
// pages; of V's own view the type, head size and scales), then calls ot_place.
void *ot_begin(struct ot_call *c, const char *op, const struct ot_batch *batch,
               const struct ot_random *random);
void ot_place(struct ot_call *c);
void ot_fill(struct ot_call *c);                         // part of ot_place
int64_t ot_pages(const struct ot_batch *b, int request); // that it needs
void ot_free(struct ot_call *c);

// Where a tensor's element, and a cache row's head, lie in one of a memory's copies.
enum ot_copy { OT_INITIAL, OT_REF, OT_GOT };
unsigned char *ot_at(const struct ot_call *c, const char *tensor, enum ot_copy copy, int64_t i, int64_t j,
                     int64_t k);
double ot_get(const struct ot_call *c, const char *tensor, enum ot_copy copy, int64_t i, int64_t j,
              int64_t k);
void ot_set(const struct ot_call *c, const char *tensor, int64_t i, int64_t j, int64_t k, double x);
unsigned char *ot_row(const struct ot_call *c, enum ot_copy copy, int64_t request, int64_t pos, int64_t head);
float *ot_row_scales(const struct ot_call *c, enum ot_copy copy, int64_t request, int64_t pos, int64_t head);
// The same of either plane, V's wherever it lies.
enum ot_plane { OT_K, OT_V };
unsigned char *ot_plane_row(const struct ot_call *c, enum ot_plane which, enum ot_copy copy, int64_t request,
                            int64_t pos, int64_t head);
float *ot_plane_scales(const struct ot_call *c, enum ot_plane which, enum ot_copy copy, int64_t request,
                       int64_t pos, int64_t head);
// Sets an element of a cache row, of the head's code where the cache has scales.
void ot_set_row(const struct ot_call *c, int64_t request, int64_t pos, int64_t head, int64_t d, double x);
double ot_get_row(const struct ot_call *c, enum ot_copy copy, int64_t request, int64_t pos, int64_t head,
                  int64_t d);

// The library on the initial contents. The result stands in `got`, the fault in c->fault.
clinfer_status ot_try(struct ot_call *c, const struct ot_device *d);
void ot_run(struct ot_call *c, const struct ot_device *d); // ... which must succeed
void ot_reference(struct ot_call *c);
void ot_compare(const struct ot_call *c);
// All of it, with pages of a small cache past 2^32 elements; skips, saying so, where no buffer is that large.
void ot_check_far(struct ot_call *c, const struct ot_device *d);
// ... of an op without a cache: both tokens' rows in one buffer, of two bytes an element 2^32 elements apart.
void ot_check_far_rows(struct ot_call *c, const struct ot_device *d);
// All of it, without a fault.
void ot_check(struct ot_call *c, const struct ot_device *d);
// Batches without a request, or without a token, with and without padding rows: success, and nothing written.
void ot_check_no_tokens(void (*begin)(struct ot_call *c, const struct ot_batch *b,
                                      const struct ot_random *r));
// optest_far.c: moves the cache to a buffer of its own with far_stride, and back.
cl_mem ot_far_open(const struct ot_call *c, const struct ot_device *d, void *params);
void ot_far_close(const struct ot_call *c, const struct ot_device *d, cl_mem far);
// optest_case.c: a file of the folder that CLINFER_TEST_DATA (tests/data) names, run and compared with the
// results in it. The library's stand in *c, which the caller frees.
const char *ot_data_dir(void);
void ot_check_case(const struct ot_device *d, const char *name, struct op_case *c);
// Nothing at all was written.
void ot_unchanged(const struct ot_call *c);

#endif
