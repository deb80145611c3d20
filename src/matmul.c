// SPDX-License-Identifier: Apache-2.0
#include "matmul.h"
#include "tune.h"

void clf_push_matmul_y(struct clf_launch *l, const struct clf_plan *plan, const struct clf_matmul *m)
{
    if (m->y) {
        clf_push_tensor(l, m->y, 3);
        return;
    }
    clf_push_workspace(l, plan, m->y_workspace);
    clf_push(l, (cl_ulong) m->y_stride[0]);
    clf_push(l, (cl_ulong) m->y_stride[1]);
}

clinfer_status clf_push_matmul(struct clf_plan *plan, const struct clf_matmul *m)
{
    if (clf_matmul_by_clblast(plan, m)) {
        clf_push_matmul_clblast(plan, m);
        return CLINFER_OK;
    }
    const struct clf_matmul_tiles tile = clf_tune_matmul(plan->caps, m->tokens);
    const clinfer_status st = clf_check_local(plan, "matmul", tile.local_bytes);
    if (st)
        return st;
    const bool group = plan->caps->set == CLINFER_SET_GROUP;
    const bool fp8 = m->w->dtype == CLINFER_F8_E4M3;
    struct clf_launch *l = clf_launch_begin(plan, "matmul", "matmul", m->tokens);
    clf_define_type(l, "W_T", m->w->dtype);
    clf_define_type(l, "Y_T", m->y ? m->y->dtype : CLINFER_F32);
    clf_define_type(l, "ROUND_T", m->round);
    clf_define(l, "ROWS", m->rows);
    clf_define(l, "COLUMNS", m->columns);
    clf_define(l, "ROW_BLOCK", fp8 ? m->row_block : 1);
    clf_define(l, "COLUMN_BLOCK", fp8 ? m->column_block : 0);
    clf_define(l, "TOKEN_TILE", tile.token_tile);
    clf_define(l, "ROW_TILE", tile.row_tile);
    clf_define(l, group ? "GROUP_ROWS" : "ITEM_ROWS", tile.block_rows);
    clf_define(l, group ? "GROUP_TOKENS" : "ITEM_TOKENS", tile.block_tokens);

    clf_push_workspace(l, plan, m->x);
    clf_push(l, (cl_ulong) (m->shared_x ? m->columns : m->heads * m->columns));
    clf_push(l, (cl_ulong) (m->shared_x ? 0 : m->columns));
    clf_push_tensor(l, m->w, 3);
    clf_push_tensor(l, m->w_scale, 3);
    clf_push_matmul_y(l, plan, m);
    clf_push_workspace(l, plan, m->valid);
    clf_push(l, m->alpha);
    clf_launch_grid(l, clf_blocks(m->rows, tile.block_rows), m->heads,
                    clf_blocks(m->tokens, tile.block_tokens));
    return CLINFER_OK;
}
