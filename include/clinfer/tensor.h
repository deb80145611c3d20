// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_TENSOR_H_
#define CLINFER_TENSOR_H_

#include <clinfer/common.h>

CLINFER_API_BEGIN

// Element types: X(enumerator, value, name in safetensors files, bytes).
// F8_E4M3 is the OCP "fn" form: no infinity, largest 448, NaN 0x7F and 0xFF. I8: codes of Q8_0, for weights.
#define CLINFER_DTYPE_LIST(X)                                                                                \
    X(F32, 1, "F32", 4)                                                                                      \
    X(F16, 2, "F16", 2)                                                                                      \
    X(BF16, 3, "BF16", 2)                                                                                    \
    X(F8_E4M3, 4, "F8_E4M3", 1)                                                                              \
    X(U32, 5, "U32", 4)                                                                                      \
    X(I8, 6, "I8", 1)

typedef enum clinfer_dtype {
#define CLINFER_X(name, value, text, bytes) CLINFER_##name = value,
    CLINFER_DTYPE_LIST(CLINFER_X)
#undef CLINFER_X
} clinfer_dtype;

// Name ("BF16") and size in bytes of a type; "?" and 0 for a value that is none.
CLINFER_API const char *clinfer_dtype_str(clinfer_dtype dtype);
CLINFER_API size_t clinfer_dtype_size(clinfer_dtype dtype);

enum { CLINFER_MAX_RANK = 4 };

// A view of device memory: plain data, copied freely, owns nothing. The caller keeps `mem` alive
// until the work that uses it has finished. A tensor of rank 0 is absent.
// `mem` may be NULL where the tensor has no elements, and in calls that only compile or measure.
typedef struct clinfer_tensor {
    cl_mem mem;
    size_t offset; // bytes from the start of `mem`; a multiple of the element size
    clinfer_dtype dtype;
    int rank;                         // 1..CLINFER_MAX_RANK; 0: absent
    int64_t shape[CLINFER_MAX_RANK];  // outermost first
    int64_t stride[CLINFER_MAX_RANK]; // elements, the last one 1; all zero: dense row-major
} clinfer_tensor;

// A dense tensor of `rank` axes; unused extents are ignored.
static inline clinfer_tensor clinfer_tensor_of(cl_mem mem, clinfer_dtype dtype, int rank, int64_t n0,
                                               int64_t n1, int64_t n2)
{
    clinfer_tensor t = { mem, 0, dtype, rank, { n0, n1, n2, 0 }, { 0, 0, 0, 0 } };
    return t;
}
static inline clinfer_tensor clinfer_tensor_1d(cl_mem mem, clinfer_dtype dtype, int64_t n0)
{
    return clinfer_tensor_of(mem, dtype, 1, n0, 0, 0);
}
static inline clinfer_tensor clinfer_tensor_2d(cl_mem mem, clinfer_dtype dtype, int64_t n0, int64_t n1)
{
    return clinfer_tensor_of(mem, dtype, 2, n0, n1, 0);
}
static inline clinfer_tensor clinfer_tensor_3d(cl_mem mem, clinfer_dtype dtype, int64_t n0, int64_t n1,
                                               int64_t n2)
{
    return clinfer_tensor_of(mem, dtype, 3, n0, n1, n2);
}

CLINFER_API_END

#endif
