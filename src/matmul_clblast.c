// SPDX-License-Identifier: Apache-2.0
// A projection by CLBlast's f32 product: weights that are not f32 are decoded to scratch before, and what
// comes out is rounded, scaled and stored after.
#include "matmul.h"
#include "tune.h"

// f32 weights serve where they lie. Heads that share x are one product, which wants their rows one after
// another.
static bool in_place(const struct clf_matmul *m)
{
    const bool apart = m->heads > 1 && clf_stride(m->w, 0) != m->rows * clf_stride(m->w, 1);
    return m->w->dtype == CLINFER_F32 && !(m->shared_x && apart);
}

// Bytes of the decoded weights, in whole lines.
static size_t weights_bytes(const struct clf_matmul *m)
{
    const size_t n = (size_t) m->heads * (size_t) m->rows * (size_t) m->columns;
    return in_place(m) ? 0 : (n + 15) / 16 * 64;
}

static struct clf_gemm product_of(const struct clf_plan *plan, const struct clf_matmul *m)
{
    const size_t H = (size_t) m->heads, N = (size_t) m->rows, K = (size_t) m->columns;
    const size_t scratch = plan->workspace_offset + m->scratch;
    struct clf_gemm g = { .m = (size_t) m->tokens, .n = N, .k = K, .batch = H };
    g.x = (struct clf_matrix){ NULL, (plan->workspace_offset + m->x) / 4, H * K, K };
    if (m->x_tensor && !clf_matmul_converts(plan, m, true)) {
        const clinfer_tensor *x = m->x_tensor;
        const size_t row = (size_t) clf_stride(x, 0);
        g.x =
            (struct clf_matrix){ x->mem, x->offset / 4, m->tokens > 1 ? row : K, (size_t) clf_stride(x, 1) };
    }
    g.w = (struct clf_matrix){ NULL, scratch / 4, K, N * K };
    g.y = (struct clf_matrix){ NULL, (scratch + weights_bytes(m)) / 4, H * N, N };
    if (in_place(m)) {
        const size_t row = (size_t) clf_stride(m->w, 1);
        g.w =
            (struct clf_matrix){ m->w->mem, m->w->offset / 4, N > 1 ? row : K, (size_t) clf_stride(m->w, 0) };
    }
    if (m->shared_x) { // the heads' rows of w are columns of one wider y
        g.n = H * N;
        g.batch = 1;
        g.x.row_stride = K;
        if (in_place(m) && H > 1)
            g.w.row_stride = (size_t) clf_stride(m->w, 0) / N;
    }
    return g;
}

// CLBlast counts elements in 32 bits: in a matrix, and in the copy of a batch that it pads to whole tiles.
// Sums in double do not overflow and are exact where it matters.
static bool fits(const struct clf_matrix *x, size_t rows, size_t columns, size_t batch)
{
    enum { LARGEST_TILE = 256 };
    const double end = (double) x->at + (double) (batch - 1) * (double) x->stride +
                       (double) (rows - 1) * (double) x->row_stride + (double) columns;
    const double padded = ((double) rows + LARGEST_TILE) * ((double) columns + LARGEST_TILE) * (double) batch;
    return end <= INT32_MAX && padded <= INT32_MAX;
}

bool clf_matmul_by_clblast(const struct clf_plan *plan, const struct clf_matmul *m)
{
    if (!clf_tune_clblast(plan->caps, m->tokens))
        return false;
    const struct clf_gemm g = product_of(plan, m);
    return fits(&g.x, g.m, g.k, g.batch) && fits(&g.w, g.n, g.k, g.batch) && fits(&g.y, g.m, g.n, g.batch);
}

// Past the indices own kernels serve, but what fewer tokens need, for which CLBlast still does, is reserved.
static int64_t scratch_bytes(const struct clf_plan *plan, const struct clf_matmul *m)
{
    const double weights = (double) m->heads * (double) m->rows * (double) m->columns;
    const double outputs = (double) m->tokens * (double) m->heads * (double) m->rows;
    if (!clf_tune_clblast(plan->caps, m->tokens) || weights < 1 || weights > INT32_MAX)
        return 0;
    return (int64_t) weights_bytes(m) + 4 * (outputs < INT32_MAX ? (int64_t) outputs : (int64_t) INT32_MAX);
}

void clf_reserve_matmul(struct clf_plan *plan, struct clf_matmul *m, int count)
{
    int64_t most = 0;
    for (int i = 0; i < count; i++) {
        const int64_t bytes = scratch_bytes(plan, &m[i]);
        most = bytes > most ? bytes : most;
        if (clf_matmul_converts(plan, &m[i], clf_tune_clblast(plan->caps, m[i].tokens)))
            m[i].x = clf_reserve(plan, m[i].tokens * m[i].heads, 4 * m[i].columns);
    }
    const size_t at = most ? clf_reserve(plan, most, 1) : 0;
    for (int i = 0; i < count; i++)
        m[i].scratch = at;
}

static void push_matrix(struct clf_launch *l, const struct clf_matrix *x)
{
    clf_push_arg(l, (struct clf_arg){ CLF_ARG_WORKSPACE, sizeof(cl_mem), { .mem = NULL } });
    clf_push(l, (cl_ulong) x->at);
    clf_push(l, (cl_ulong) x->row_stride);
    clf_push(l, (cl_ulong) x->stride);
}

static void push_weights(struct clf_plan *plan, const struct clf_matmul *m, const struct clf_gemm *g)
{
    struct clf_launch *l = clf_launch_begin(plan, "weights_f32", "weights_f32", m->heads);
    clf_define_weights(l, m);
    clf_push_tensor(l, m->w, 3);
    clf_push_tensor(l, m->w_scale, 3);
    push_matrix(l, &g->w);
    clf_push(l, (cl_uint) m->columns);
    clf_launch_grid(l, m->heads, m->rows, 1);
}

static void push_product(struct clf_plan *plan, const struct clf_gemm *g)
{
    struct clf_launch *l = clf_launch_begin(plan, NULL, "clblast_sgemm", 0);
    l->kind = CLF_GEMM;
    l->gemm = *g;
    l->num_args = 0;
    clf_launch_grid(l, 1, 1, 1);
}

static void push_finish(struct clf_plan *plan, const struct clf_matmul *m, const struct clf_gemm *g)
{
    struct clf_launch *l = clf_launch_begin(plan, "matmul_finish", "matmul_finish", m->tokens);
    clf_define_outputs(l, m);
    push_matrix(l, &g->y);
    clf_push_outputs(l, plan, m);
    clf_push(l, (cl_uint) m->rows);
    clf_launch_grid(l, m->tokens, m->heads, 1);
}

void clf_push_matmul_clblast(struct clf_plan *plan, const struct clf_matmul *m)
{
    const struct clf_gemm g = product_of(plan, m);
    if (!in_place(m))
        push_weights(plan, m, &g);
    push_product(plan, &g);
    push_finish(plan, m, &g);
}
