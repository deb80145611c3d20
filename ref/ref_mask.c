// SPDX-License-Identifier: Apache-2.0
#include "ref.h"

#include <math.h>

bool ref_sees(clinfer_mask mask, int64_t window, int64_t query, int64_t key)
{
    switch (mask) {
    case CLINFER_MASK_CAUSAL:
        return key <= query;
    case CLINFER_MASK_NULL:
        return true;
    case CLINFER_MASK_CHUNKED:
        return key / window == query / window;
    case CLINFER_MASK_CHUNKED_CAUSAL:
        return key / window == query / window && key <= query;
    case CLINFER_MASK_SLIDING_WINDOW_CAUSAL:
        return key <= query && key > query - window;
    }
    return false;
}

// Heads past the largest power of two take every other slope of the series twice as long.
static double alibi_slope(int64_t heads, int64_t h)
{
    int64_t power = 1;
    while (power * 2 <= heads)
        power *= 2;
    return h < power ? exp2(-8.0 * (double) (h + 1) / (double) power)
                     : exp2(-8.0 * (double) (2 * (h - power) + 1) / (double) (2 * power));
}

double ref_score_bias(clinfer_score_mod mod, int64_t heads, int64_t h, int64_t query, int64_t key)
{
    return mod == CLINFER_ALIBI && query > key ? -alibi_slope(heads, h) * (double) (query - key) : 0;
}

int64_t ref_num_keys(const clinfer_kv_batch *batch, const clinfer_kv_cache *kv, int64_t request)
{
    const int64_t reach = batch->lookup_table.shape[1] * kv->page_size;
    const int64_t n = (int64_t) ref_u32(&batch->cache_lengths, request, 0) +
                      ref_u32(&batch->input_row_offsets, request + 1, 0) -
                      ref_u32(&batch->input_row_offsets, request, 0);
    return n < reach ? n : reach;
}
