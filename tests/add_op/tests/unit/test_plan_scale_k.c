// SPDX-License-Identifier: Apache-2.0
#include <criterion/criterion.h>

#include "plan_fixture.h"

#define IN(field, v) SET(clinfer_scale_k_params, field, v)

Test(plan_scale_k, params)
{
    const struct clinfer_scale_k_params p = good_scale_k();
    const struct breakage rows[] = {
        { { IN(factors.rank, 2) }, CLINFER_ERR_SHAPE, { "factors: want rank 1", "rank 2" } },
        { { IN(factors.shape[0], 3) }, CLINFER_ERR_SHAPE, { "factors: axis 0 is 3", "K is 2" } },
        { { IN(factors.dtype, CLINFER_F16) }, CLINFER_ERR_TYPE, { "factors: type F16", "F32" } },
        { { IN(total_seq_len, -1) }, CLINFER_ERR_ARGUMENT, { "total_seq_len is -1" } },
        { { IN(layer_idx, 3) }, CLINFER_ERR_ARGUMENT, { "layer_idx is 3", "3 layers" } },
    };
    expect_breakages(&clf_op_scale_k, &p, sizeof p, rows, COUNT_OF(rows));
}
