// SPDX-License-Identifier: Apache-2.0
// What prepare() functions are written with.
#pragma once
#include <clinfer/norm_cast.h>
#include "op.h"

// Starts a launch of `kernel` in cl/SET/SOURCE.cl; its first argument is `count`, on which 0 returns at once.
struct clf_launch *clf_launch_begin(struct clf_plan *plan, const char *source, const char *kernel,
                                    int64_t count);
// x * y * z work-items in the row set, work-groups in the group set.
void clf_launch_grid(struct clf_launch *l, int64_t x, int64_t y, int64_t z);

// Work-groups of so many items, in place of what clf_tune_group() says; nothing in the row set.
void clf_launch_items(struct clf_launch *l, int items);

// The launches begun between the two are repeated `times` times, 1 or more; a plan has at most one such run.
void clf_loop_begin(struct clf_plan *plan, uint32_t times);
void clf_loop_end(struct clf_plan *plan);

void clf_define(struct clf_launch *l, const char *name, int64_t value);
void clf_define_type(struct clf_launch *l, const char *name, clinfer_dtype dtype);

void clf_push_arg(struct clf_launch *l, struct clf_arg arg);
void clf_push_mem(struct clf_launch *l, cl_mem mem);
void clf_push_i32(struct clf_launch *l, cl_int v);
void clf_push_u32(struct clf_launch *l, cl_uint v);
void clf_push_u64(struct clf_launch *l, cl_ulong v);
void clf_push_f32(struct clf_launch *l, cl_float v);
// The repetition, a u32.
void clf_push_index(struct clf_launch *l);
// The argument's C type picks its size; anything else does not compile.
#define clf_push(l, x)                                                                                       \
    _Generic((x), cl_int                                                                                     \
             : clf_push_i32, cl_uint                                                                         \
             : clf_push_u32, cl_ulong                                                                        \
             : clf_push_u64, cl_float                                                                        \
             : clf_push_f32)((l), (x))

// Buffer, offset in elements, and the strides of all axes but the last, as TENSORn() in cl/lib/format.clh
// takes them. An absent tensor of `rank` axes is a null pointer.
void clf_push_tensor(struct clf_launch *l, const clinfer_tensor *t, int rank);
// The workspace, and a place in it that clf_reserve() gave, in elements of 4 bytes.
void clf_push_workspace(struct clf_launch *l, const struct clf_plan *plan, size_t offset);
// Defines of cl/lib/paged.clh, and the arguments of its PAGED_ARGS, count left out.
void clf_define_paged(struct clf_launch *l, const struct clf_plan *plan, const void *params);
void clf_push_paged(struct clf_launch *l, const struct clf_plan *plan, const void *params);
// The same for V in K's place: the op's own view of it, or plane 1 of the cache.
void clf_define_paged_v(struct clf_launch *l, const struct clf_plan *plan, const void *params);
void clf_push_paged_v(struct clf_launch *l, const struct clf_plan *plan, const void *params);
// V beside K in one kernel: the defines and VALUE_ARGS of cl/lib/paged_values.clh.
void clf_define_values(struct clf_launch *l, const struct clf_plan *plan, const void *params);
void clf_push_values(struct clf_launch *l, const struct clf_plan *plan, const void *params);
// Elements from the K plane to the V plane: of the blocks, then of the scales.
void clf_push_plane_strides(struct clf_launch *l, const struct clf_plan *plan, const void *params);
// Whether the params hold a view, not a zeroed field.
bool clf_kv_given(const clinfer_kv_cache *kv);

// Bytes of local memory in which a work-group stages a row of `elements` values with `groups` scale groups.
uint64_t clf_staged_bytes(const struct clf_plan *plan, int64_t elements, int64_t groups);
// Scale groups of a head; 0 without scales.
int64_t clf_scale_groups(const clinfer_kv_cache *kv);

// Reserves count * size bytes of workspace, 64-byte aligned; returns the offset in bytes. The workspace
// saturates at SIZE_MAX on overflow.
size_t clf_reserve(struct clf_plan *plan, int64_t count, int64_t size);

// Kernels of the row set keep a row in private memory, which lies on a thread's stack on CPUs: the most
// elements of a row, and of an MLA row or a head in attention, which stand beside a tile of keys.
enum { CLF_MAX_ROW = 1 << 17, CLF_MAX_MLA_ROW = 1 << 14, CLF_MAX_ATTENTION_ROW = 1 << 14 };
clinfer_status clf_check_row(struct clf_plan *plan, const char *what, int64_t size, int64_t most);
// The group set keeps them in local memory: what a work-group of `kernel` takes of it, against what the
// device has.
clinfer_status clf_check_local(struct clf_plan *plan, const char *kernel, uint64_t bytes);

// Scalars of an RMSNorm.
clinfer_status clf_check_norm(struct clf_plan *plan, float epsilon, clinfer_norm_cast cast);

// ceil(n / size)
static inline int64_t clf_blocks(int64_t n, int64_t size)
{
    return n / size + (n % size != 0);
}

// Stride of an axis in elements, dense where the tensor says nothing.
int64_t clf_stride(const clinfer_tensor *t, int axis);
