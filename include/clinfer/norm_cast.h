// SPDX-License-Identifier: Apache-2.0
#ifndef CLINFER_NORM_CAST_H_
#define CLINFER_NORM_CAST_H_

#include <clinfer/common.h>

CLINFER_API_BEGIN

// Where the rounding to gamma's type t falls, with x = t(value), r = 1 / sqrt(sum(x^2) / n + epsilon):
typedef enum clinfer_norm_cast {
    CLINFER_MULTIPLY_THEN_CAST, // y = t(x * r * (gamma + w))
    CLINFER_CAST_THEN_MULTIPLY  // y = t(t(x * r) * t(gamma + w))
} clinfer_norm_cast;

CLINFER_API_END

#endif
