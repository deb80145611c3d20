// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_ATTENTION_MASK_H_
#define CLINFER_ATTENTION_MASK_H_

#include <clinfer/common.h>

CLINFER_API_BEGIN

// Which keys k a query at position p sees, W = local_window_size.
typedef enum clinfer_mask {
    CLINFER_MASK_CAUSAL,               // k <= p
    CLINFER_MASK_NULL,                 // every cached and new key
    CLINFER_MASK_CHUNKED,              // k / W == p / W
    CLINFER_MASK_CHUNKED_CAUSAL,       // both of the above
    CLINFER_MASK_SLIDING_WINDOW_CAUSAL // p - W < k <= p
} clinfer_mask;

typedef enum clinfer_score_mod {
    CLINFER_NO_POS,
    CLINFER_ALIBI // adds -slope(h) * max(p - k, 0) to the scaled score; slopes of the ALiBi paper
} clinfer_score_mod;

CLINFER_API_END

#endif
