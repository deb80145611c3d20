// SPDX-License-Identifier: Apache-2.0
#include "matmul.h"
#include "tune.h"

enum { Q8_0_BLOCK = 32 };

static bool is_fp8(const struct clf_matmul *m)
{
    return m->w->dtype == CLINFER_F8_E4M3;
}

void clf_define_weights(struct clf_launch *l, const struct clf_matmul *m)
{
    clf_define_type(l, "W_T", m->w->dtype);
    clf_define(l, "ROW_BLOCK", is_fp8(m) ? m->row_block : 1);
    clf_define(l, "COLUMN_BLOCK", is_fp8(m) ? m->column_block : m->w->dtype == CLINFER_I8 ? Q8_0_BLOCK : 0);
}

void clf_define_outputs(struct clf_launch *l, const struct clf_matmul *m)
{
    clf_define_type(l, "Y_T", m->y ? m->y->dtype : CLINFER_F32);
    clf_define_type(l, "ROUND_T", m->round);
    clf_define_type(l, "BIAS_T", m->bias && m->bias->rank ? m->bias->dtype : CLINFER_F32);
}

static void push_no_tensor(struct clf_launch *l)
{
    clf_push_mem(l, NULL);
    clf_push(l, (cl_ulong) 0);
}

void clf_push_outputs(struct clf_launch *l, const struct clf_plan *plan, const struct clf_matmul *m)
{
    if (m->bias)
        clf_push_tensor(l, m->bias, 1);
    else
        push_no_tensor(l);
    if (m->y) {
        clf_push_tensor(l, m->y, 3);
    } else {
        clf_push_workspace(l, plan, m->y_workspace);
        clf_push(l, (cl_ulong) m->y_stride[0]);
        clf_push(l, (cl_ulong) m->y_stride[1]);
    }
    if (m->all_valid)
        push_no_tensor(l);
    else
        clf_push_workspace(l, plan, m->valid);
    clf_push(l, m->alpha);
}

bool clf_matmul_converts(const struct clf_plan *plan, const struct clf_matmul *m, bool by_clblast)
{
    if (!m->x_tensor)
        return false;
    return is_fp8(m) || (m->x_tensor->dtype != CLINFER_F32 &&
                         (by_clblast || clf_tune_matmul(plan->caps, m->tokens).x_is_f32));
}

static void push_x_in_f32(struct clf_plan *plan, const struct clf_matmul *m)
{
    const int64_t block = is_fp8(m) ? m->column_block : 1;
    const int64_t runs = clf_tune_runs(plan->caps, m->tokens * m->heads, m->columns);
    const int64_t run = clf_blocks(clf_blocks(m->columns, runs), block) * block;
    struct clf_launch *l = clf_launch_begin(plan, "matmul_x", "matmul_x", m->tokens);
    clf_define_type(l, "X_T", m->x_tensor->dtype);
    clf_define(l, "COLUMN_BLOCK", is_fp8(m) ? block : 0);
    clf_push_tensor(l, m->x_tensor, 3);
    clf_push_workspace(l, plan, m->x);
    clf_push(l, m->x_scale_bound);
    clf_push(l, (cl_uint) m->columns);
    clf_push(l, (cl_uint) run);
    clf_launch_grid(l, m->tokens, m->heads, clf_blocks(m->columns, run));
}

static void push_x(struct clf_launch *l, const struct clf_plan *plan, const struct clf_matmul *m)
{
    if (m->x_tensor && !clf_matmul_converts(plan, m, false)) {
        clf_push_tensor(l, m->x_tensor, 3);
        return;
    }
    clf_push_workspace(l, plan, m->x);
    clf_push(l, (cl_ulong) (m->shared_x ? m->columns : m->heads * m->columns));
    clf_push(l, (cl_ulong) (m->shared_x ? 0 : m->columns));
}

static void push_own(struct clf_plan *plan, const struct clf_matmul *m)
{
    const struct clf_matmul_tiles tile = clf_tune_matmul(plan->caps, m->tokens);
    const bool group = plan->caps->set == CLINFER_SET_GROUP, f32 = clf_matmul_converts(plan, m, false);
    const int64_t token_blocks = clf_blocks(m->tokens, tile.block_tokens);
    const int64_t block_rows = clf_tune_rows(plan->caps, &tile, m->rows, m->heads * token_blocks);
    struct clf_launch *l = clf_launch_begin(plan, "matmul", "matmul", m->tokens);
    clf_define_weights(l, m);
    clf_define_outputs(l, m);
    clf_define_type(l, "X_T", m->x_tensor && !f32 ? m->x_tensor->dtype : CLINFER_F32);
    clf_define(l, "TOKEN_TILE", tile.token_tile);
    clf_define(l, "ROW_TILE", tile.row_tile);
    if (group)
        clf_define(l, "GROUP_ROWS", block_rows);
    else
        clf_define(l, "STEP", tile.step);
    clf_define(l, group ? "GROUP_TOKENS" : "ITEM_TOKENS", tile.block_tokens);

    push_x(l, plan, m);
    clf_push_tensor(l, m->w, 3);
    clf_push_tensor(l, m->w_scale, 3);
    clf_push_outputs(l, plan, m);
    clf_push(l, (cl_uint) m->rows);
    clf_push(l, (cl_uint) m->columns);
    if (!group)
        clf_push(l, (cl_uint) block_rows);
    clf_launch_grid(l, clf_blocks(m->rows, block_rows), m->heads, token_blocks);
}

clinfer_status clf_push_matmul(struct clf_plan *plan, const struct clf_matmul *m)
{
    const bool by_clblast = clf_matmul_by_clblast(plan, m);
    if (clf_matmul_converts(plan, m, by_clblast))
        push_x_in_f32(plan, m);
    if (by_clblast) {
        clf_push_matmul_clblast(plan, m);
        return CLINFER_OK;
    }
    const clinfer_status st =
        clf_check_local(plan, "matmul", clf_tune_matmul(plan->caps, m->tokens).local_bytes);
    if (!st)
        push_own(plan, m);
    return st;
}
