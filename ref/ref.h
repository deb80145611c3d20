// SPDX-License-Identifier: Apache-2.0
// The ops in scalar C: what each one means. Sums and products are double; a value is rounded where the
// contract names a rounding, and nowhere else. The params are those of the library's calls, with the host
// address of the data in place of each cl_mem. Tokens with a fault that a device would record are skipped.
#ifndef CLINFER_REF_H_
#define CLINFER_REF_H_

#include <stdbool.h>

#include <clinfer/clinfer.h>

void ref_fused_qk_rope(const struct clinfer_fused_qk_rope_params *p);
void ref_rms_norm_kv_cache(const struct clinfer_rms_norm_kv_cache_params *p);
void ref_mla_fused_rope_rmsnorm(const struct clinfer_mla_fused_rope_rmsnorm_params *p);
void ref_mla_decode_branch(const struct clinfer_mla_decode_branch_params *p);
void ref_kv_store(const struct clinfer_kv_store_params *p);
void ref_silu_mul(const struct clinfer_silu_mul_params *p);
void ref_rms_norm(const struct clinfer_rms_norm_params *p);
void ref_merge_states(const struct clinfer_merge_states_params *p);
void ref_paged_attention(const struct clinfer_paged_attention_params *p);
void ref_matmul(const struct clinfer_matmul_params *p);
void ref_mla_prefill_branch(const struct clinfer_mla_prefill_branch_params *p);

// ref_types.c: element types. Addresses need no alignment.

// Rounds to f32, then to the type, to nearest even; f8_e4m3 and i8 saturate, the others overflow to infinity.
double ref_round(double x, clinfer_dtype dtype);
// The step between neighbours of `dtype` at x, subnormals included.
double ref_ulp(double x, clinfer_dtype dtype);
double ref_load(const void *base, clinfer_dtype dtype, int64_t index);
void ref_store(void *base, clinfer_dtype dtype, int64_t index, double x);
uint32_t ref_encode(double x, clinfer_dtype dtype);
double ref_decode(uint32_t bits, clinfer_dtype dtype);

// codes[i] = f8(x[i] / scale), scale = min(largest finite |x|, upper) / 448, which is returned.
float ref_quantize_group(const float *x, int64_t n, float upper, double *codes);

// Address of element [i][j][k], of the first axes only where there are fewer.
unsigned char *ref_at(const clinfer_tensor *t, int64_t i, int64_t j, int64_t k);
double ref_get(const clinfer_tensor *t, int64_t i, int64_t j, int64_t k);
uint32_t ref_u32(const clinfer_tensor *t, int64_t i, int64_t j);
// n doubles; aborts when there is no memory.
double *ref_alloc(int64_t n);

// ref_kv.c: the paged cache and the ragged batch.

// One plane of one layer.
struct ref_plane {
    unsigned char *blocks, *scales; // scales NULL: none
    clinfer_dtype dtype;
    int64_t num_pages, page_size, num_heads, head_size;
    int64_t group, num_groups;
    int64_t page_stride, scales_page_stride; // elements
};
struct ref_plane ref_plane_of(const clinfer_kv_cache *kv, int64_t layer, int plane);

struct ref_token {
    int64_t request, pos; // pos: its position, and its cache slot
    int64_t page, slot;
};
// The page of a position of a request; -1 where the table or the cache ends before it.
int64_t ref_page(const clinfer_kv_batch *batch, const clinfer_kv_cache *kv, int64_t request, int64_t pos);
// False for padding, and for a token that a device would record a fault for.
bool ref_token_at(const clinfer_kv_batch *batch, const clinfer_kv_cache *kv, int64_t total, int64_t token,
                  struct ref_token *out);

// Where the elements of a head lie.
unsigned char *ref_head_at(const struct ref_plane *plane, int64_t page, int64_t slot, int64_t head);
void ref_read_head(const struct ref_plane *plane, int64_t page, int64_t slot, int64_t head, double *x);
// Stores dims [first, first + count) of x; with scales, every group that holds one of them, whole.
void ref_write_head(const struct ref_plane *plane, int64_t page, int64_t slot, int64_t head, const double *x,
                    int64_t first, int64_t count);

// ref_mask.c: which keys a query sees, and what that adds to their scores.

bool ref_sees(clinfer_mask mask, int64_t window, int64_t query, int64_t key);
double ref_score_bias(clinfer_score_mod mod, int64_t heads, int64_t h, int64_t query, int64_t key);
// Keys of a request, cached and new, as far as the table reaches.
int64_t ref_num_keys(const clinfer_kv_batch *batch, const clinfer_kv_cache *kv, int64_t request);

// ref_mla.c: what both branches of MLA share.

// The rows of an MLA cache that a request has, old and new, at most `most`.
struct ref_rows {
    int64_t n;
    double *row; // [n][head_size]
    bool *there; // false: on a bad page
};
struct ref_rows ref_read_rows(const clinfer_kv_batch *batch, const clinfer_kv_cache *kv, int64_t layer,
                              int64_t request, int64_t most);
void ref_free_rows(const struct ref_rows *rows);

// The row of a new token in place: RMSNorm of the latent part, RoPE of the rest by a row of the table.
void ref_mla_cache_row(const clinfer_kv_cache *kv, int64_t layer, const struct ref_token *at,
                       const clinfer_tensor *gamma, double epsilon, const double *table);
// y[i][n] = sum over k of x[i][k] w[h][n][k] for `count` rows x; with fp8 weights each is quantised per gk
// columns.
void ref_project(const clinfer_tensor *w, const clinfer_tensor *w_scale, int64_t gn, int64_t gk, int64_t h,
                 int64_t count, const double *x, int64_t x_stride, double *y, int64_t y_stride);

// Pieces that ops share, each in the file of the op it is named for.

// Rotates x[0, r) by a table row of (cos, sin) pairs.
void ref_rotate(double *x, const double *table, int64_t r, bool interleaved);
// The row of position_ids that a column of the table takes; both columns of a pair take the even one's.
int ref_section_of(const struct clinfer_fused_qk_rope_params *p, int64_t column);
// A row of freqs_cis into `table`; false where there is none.
bool ref_table_row(const clinfer_tensor *freqs_cis, int64_t row, double *table);
// RMSNorm of x[0, n) to y; y may be x. Every rounding goes to gamma's type.
void ref_rms_norm_row(const double *x, int64_t n, const clinfer_tensor *gamma, double epsilon,
                      double weight_offset, clinfer_norm_cast cast, double *y);

#endif
