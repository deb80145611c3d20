// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_CONTEXT_H_
#define CLINFER_CONTEXT_H_

#include <clinfer/common.h>
#include <clinfer/program_cache.h>

CLINFER_API_BEGIN

typedef enum clinfer_log_level {
    CLINFER_LOG_ERROR = 1,
    CLINFER_LOG_WARN,
    CLINFER_LOG_INFO,
    CLINFER_LOG_DEBUG
} clinfer_log_level;

// Kernels come in two sets: `row` (CPUs: one work-item a row or tile, explicit vectors) and `group`
// (GPUs: work-groups over local memory). AUTO: group on a GPU, and on any other device but a CPU whose local
// memory is no plain memory; row where disable_caps takes CLINFER_CAP_LOCAL_MEMORY away.
typedef enum clinfer_kernel_set { CLINFER_SET_AUTO, CLINFER_SET_ROW, CLINFER_SET_GROUP } clinfer_kernel_set;

// AUTO and F32: f32 arithmetic whatever the storage types.
typedef enum clinfer_arith { CLINFER_ARITH_AUTO, CLINFER_ARITH_F32, CLINFER_ARITH_BF16 } clinfer_arith;

// Who multiplies the projections. CLBlast, a library, serves where it is installed when the program runs and
// this library was built for it; it computes in f32, in an order of its own. AUTO: CLBlast for 64 tokens and
// more in the group set, else own kernels. OWN: never CLBlast. CLBLAST: whatever the set and the number of
// tokens. A product past CLBlast's 32-bit indices goes to own kernels whichever was asked for.
//
// CLBlast keeps its kernels in the process, not on disk: a context's first call (or _compile) that takes it
// waits for them to compile. It allocates scratch of its own in a call. destroy empties that cache, for all
// users of CLBlast in the process, where the context has used it.
typedef enum clinfer_gemm { CLINFER_GEMM_AUTO, CLINFER_GEMM_OWN, CLINFER_GEMM_CLBLAST } clinfer_gemm;

// What the engine asks a device: X(enumerator, bit, what a variant does with it).
#define CLINFER_CAP_LIST(X)                                                                                  \
    X(FP16, 0, "half arithmetic")                                                                            \
    X(SUBGROUPS, 1, "sub-group functions")                                                                   \
    X(IL, 2, "programs from SPIR-V")                                                                         \
    X(DENORMALS, 3, "f32 denormals")                                                                         \
    X(FMA, 4, "fma() in hardware")                                                                           \
    X(ROUNDED_DIVIDE, 5, "correctly rounded f32 division and root")                                          \
    X(LOCAL_MEMORY, 6, "local memory that is not plain memory")                                              \
    X(INT_DOT, 7, "integer dot product")                                                                     \
    X(SVM, 8, "shared virtual memory")                                                                       \
    X(OUT_OF_ORDER, 9, "out-of-order queues")

typedef enum clinfer_cap {
#define CLINFER_X(name, bit, text) CLINFER_CAP_##name = 1 << bit,
    CLINFER_CAP_LIST(CLINFER_X)
#undef CLINFER_X
} clinfer_cap;

typedef struct clinfer_ctx clinfer_ctx;

// A program as a driver gets it: clCreateProgramWithSource(source), then clBuildProgram(options).
struct clinfer_program_text {
    const char *op;         // "mla_decode_branch"
    const char *name;       // of its kernel file: "matmul"
    clinfer_kernel_set set; // ROW or GROUP
    const char *source;     // with all that it includes; terminated
    size_t source_size;
    const char *options;
    const char *const *kernels; // those that the call launches, in the order of its launches
    int num_kernels;
};

// Zero means the default in every field; a zeroed struct takes the device that CLINFER_DEVICE names,
// else the first one.
//
// The macro below, as those of the operations, makes a C compound literal. C++ fills a struct:
//   clinfer_ctx_params p{}; p.queue = queue; clinfer_ctx_create(&ctx, &p);
struct clinfer_ctx_params {
    // The caller's OpenCL: its queue (which brings context and device). Retained, released by destroy.
    // NULL: the engine makes a context and an in-order queue on the device that `device` chooses.
    cl_command_queue queue;
    const char *device; // index of clinfer_devices(), "cpu", "gpu", or a part of a device's name

    clinfer_kernel_set kernel_set;
    clinfer_arith arith;
    clinfer_gemm gemm;
    unsigned disable_caps; // clinfer_cap bits that the engine is to do without

    // Kernels are read from row/, group/ and lib/ in here. NULL: CLINFER_CL_DIR, else those in the library.
    const char *cl_dir;

    // The program cache on disk. NULL: CLINFER_CACHE_DIR, else $XDG_CACHE_HOME/clinfer, else
    // $HOME/.cache/clinfer. "": off. A folder that cannot be used costs a warning and compiles.
    const char *cache_dir;
    int cache_read_only;         // 1: nothing is written, touched or removed
    uint64_t cache_max_bytes;    // least recently used entries go past this; 0: 256 MiB
    clinfer_program_store store; // callbacks instead of a folder; both NULL: the folder

    // A program fresh from the compiler first runs a small call of known answer, on a queue of the engine's
    // own; the call that compiles it blocks for that. Where it fails, its kernel set is disabled for the
    // operation on this device and driver, which the cache remembers; under AUTO the other set takes over,
    // else calls fail with ERR_UNSUPPORTED. 1: nothing is checked, and what the cache remembers does not
    // count.
    int no_self_check;

    // Called for each message up to log_level, from whichever thread it arises in, at times under the
    // context's lock: it must not call back into the context, nor wait for a thread that does. NULL: silent.
    void (*log)(void *priv, clinfer_log_level level, const char *message);
    void *log_priv;
    clinfer_log_level log_level; // 0: CLINFER_LOG, else WARN

    // Called for each launch after it has run, from a thread of the driver's, with the device's own times;
    // needs queues with CL_QUEUE_PROFILING_ENABLE. A product by CLBlast is "clblast_sgemm", with the time of
    // the last kernel that it ran. Must not call back into the context. A launch may end
    // after destroy: profile_priv has to outlive the work of the queues.
    void (*profile)(void *priv, const char *op, const char *kernel, uint64_t nanoseconds);
    void *profile_priv;

    // In a context with this, the `_compile` of an operation builds nothing: it calls back, from its own
    // thread, once for each program that it would have built. The texts are valid during the call, which must
    // not call back into the context. For bug reports to a driver's authors, and for offline compilers.
    void (*inspect)(void *priv, const struct clinfer_program_text *program);
    void *inspect_priv;

    char *error; // where create writes why it failed; may be NULL
    size_t error_size;
};
#define clinfer_ctx_params(...) (&(struct clinfer_ctx_params){ __VA_ARGS__ })

// Errors: ERR_NO_DEVICE (no loader's platform, no device, none of that name, or one that lacks a
// compiler, little-endian order or OpenCL 1.2), ERR_UNSUPPORTED (an arithmetic that this version has
// not, or CLBlast forced where it is not there), ERR_ARGUMENT, ERR_FILE (cl_dir), ERR_MEMORY, OpenCL's
// own. On error *ctx is NULL. Threads: contexts are independent; one context may be used from any number of
// threads at once, except that destroy must come last. Calls that share the context's arena (those with a
// workspace, given none) run one after another, whatever their queues; where an event that one waits for
// fails, so may those behind it. A workspace of one's own keeps them apart.
CLINFER_API clinfer_status clinfer_ctx_create(clinfer_ctx **ctx, const struct clinfer_ctx_params *params);

// Saves what clinfer_ctx_save() would, waits for what the engine itself enqueued, frees, sets *ctx to
// NULL. *ctx may be NULL.
CLINFER_API void clinfer_ctx_destroy(clinfer_ctx **ctx);

// Stores each compiled program that the cache does not hold yet. Blocks: on CPU drivers, which compile
// at a kernel's first launch, it launches each kernel with nothing to do and waits for it.
// A cache that is off, full or read-only is no error.
CLINFER_API clinfer_status clinfer_ctx_save(clinfer_ctx *ctx);

// The calling thread's last error in this context, as text ("" if none): copied to buf, always
// terminated. Returns the length of the whole text. Texts are kept for the last 64 threads that had one.
CLINFER_API size_t clinfer_ctx_error(clinfer_ctx *ctx, char *buf, size_t size);

// The OpenCL objects of the context; owned by it.
CLINFER_API cl_context clinfer_ctx_cl_context(const clinfer_ctx *ctx);
CLINFER_API cl_command_queue clinfer_ctx_queue(const clinfer_ctx *ctx);
CLINFER_API cl_device_id clinfer_ctx_device(const clinfer_ctx *ctx);

// What the device reports, less what disable_caps took away.
struct clinfer_device_info {
    cl_device_id id;
    char platform[128], device[256], driver[128], version[128];
    char type[16];          // "cpu", "gpu", "accelerator" or "other"
    unsigned caps;          // clinfer_cap bits
    clinfer_kernel_set set; // the set that AUTO takes here
    unsigned compute_units, max_work_group;
    uint64_t local_bytes, max_alloc, global_bytes;
};
CLINFER_API void clinfer_ctx_device_info(const clinfer_ctx *ctx, struct clinfer_device_info *info);

// Every device of every platform: up to `capacity` of them go to `infos`, *count is how many there are.
// Errors: ERR_NO_DEVICE when there is no platform or no device, with the reason in error (may be NULL).
CLINFER_API clinfer_status clinfer_devices(struct clinfer_device_info *infos, unsigned capacity,
                                           unsigned *count, char *error, size_t error_size);

// A fault that only the device could see. Nothing is written for a new token with a fault; an old key on
// a bad page counts as masked; nothing outside a buffer is touched.
typedef enum clinfer_fault_code {
    CLINFER_FAULT_NONE,
    CLINFER_FAULT_OFFSETS, // input_row_offsets not ascending from 0 to at most T; value: the offset
    CLINFER_FAULT_PAGE,    // a page id past the cache's pages; value: the id
    CLINFER_FAULT_LENGTH,  // a position past the lookup table's columns; value: the position
    CLINFER_FAULT_POSITION // a position past the rows of freqs_cis; value: the position
} clinfer_fault_code;

struct clinfer_fault {
    clinfer_fault_code code;
    const char *op; // "fused_qk_rope"; NULL where code is NONE
    uint32_t token, value;
};

// Waits for all that `queue` (NULL: the context's) holds, then reads and clears the context's first
// fault since the last call. fault->code is CLINFER_FAULT_NONE where there was none. Blocks.
CLINFER_API clinfer_status clinfer_ctx_fault(clinfer_ctx *ctx, cl_command_queue queue,
                                             struct clinfer_fault *fault);

// Text for a fault code. Never NULL.
CLINFER_API const char *clinfer_fault_str(clinfer_fault_code code);

// What the context has done, for tests and monitoring.
struct clinfer_ctx_stats {
    uint64_t programs;    // specialisations in memory
    uint64_t compiled;    // built from source
    uint64_t loaded;      // built from a stored binary
    uint64_t rejected;    // stored binaries that were not usable
    uint64_t stored;      // binaries handed to the cache
    uint64_t launches;    // kernels enqueued, CLBlast's not counted
    uint64_t gemm_calls;  // products given to CLBlast
    uint64_t arena_bytes; // size of the workspace arena
    uint64_t self_checks; // runs of a fresh program against its known answer
    uint64_t disabled;    // kernel sets that an operation no longer uses
};
CLINFER_API void clinfer_ctx_stats(clinfer_ctx *ctx, struct clinfer_ctx_stats *stats);

CLINFER_API_END

#endif
