// SPDX-License-Identifier: Apache-2.0
// The small call: a few tokens and keys. What is structural is the caller's; tokens, lengths, pages and
// values are not.
#include "self_check_internal.h"
#include "plan.h"
#include "program.h"
#include "validate.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { REQUESTS = 2, PAGE_SIZE = 4, LAYERS = 2, LAYER = 1 };
// The first request has new rows on both sides of a page's end and more keys than one tile, the second ends
// inside a page.
static const int64_t cached[REQUESTS] = { 35, 6 };

static int64_t fresh_of(int64_t tokens, int request)
{
    return request ? tokens / 2 : tokens - tokens / 2;
}

static int64_t columns_of(int64_t tokens, int request)
{
    return (cached[request] + fresh_of(tokens, request) - 1) / PAGE_SIZE + 1;
}

clinfer_kv_cache *clf_check_kv(const struct clf_check *k)
{
    return (clinfer_kv_cache *) (k->params + k->op->kv);
}

static struct clf_check_buffer *add_buffer(struct clf_check *k, const char *name, size_t field,
                                           clinfer_dtype dtype, int64_t count, int64_t width)
{
    struct clf_check_buffer *b = &k->buffer[k->num_buffers++];
    *b = (struct clf_check_buffer){ .name = name,
                                    .field = field,
                                    .dtype = dtype,
                                    .count = count,
                                    .width = width,
                                    .low = -1.7320508,
                                    .high = 1.7320508 };
    return b;
}

static int64_t extent_of(const struct clf_check *k, const struct clf_axis *axis)
{
    int64_t n = 0;
    for (size_t i = 0; i < axis->length; i++)
        if (axis->term[i] >= 'A')
            n += k->dim[axis->term[i] - 'A'];
    return n;
}

static void shape_tensor(struct clf_check *k, const struct clf_tensor_rule *r)
{
    clinfer_tensor *t = (clinfer_tensor *) (k->params + r->field);
    struct clf_axis axis[CLINFER_MAX_RANK];
    char left_out;
    int64_t count = 1;
    if (!t->rank)
        return;
    *t = (clinfer_tensor){ .dtype = t->dtype, .rank = t->rank };
    (void) clf_axes(r, t->rank, axis, &left_out);
    for (int i = 0; i < t->rank; i++)
        count *= t->shape[i] = extent_of(k, &axis[i]);
    const int64_t width = t->shape[t->rank - 1];
    struct clf_check_buffer *b =
        add_buffer(k, r->name, r->field + offsetof(clinfer_tensor, mem), t->dtype, count, width);
    b->role = !(r->flags & CLF_OUT)                     ? CLF_CHECK_IN
              : (r->flags & CLF_CHANGED) == CLF_CHANGED ? CLF_CHECK_CHANGED
                                                        : CLF_CHECK_OUT;
    if (r->types == CLF_U32) { // rows of the table
        b->low = 0;
        b->high = (double) k->dim['F' - 'A'];
    } else if (r->types == CLF_F32) { // scales
        b->low = 0.5;
        b->high = 1.5;
    } else if (t->dtype == CLINFER_I8) { // codes, whose scales are weights
        b->low = -127;
        b->high = 127;
    } else if (r->flags & CLF_WEIGHT && width) {
        b->low /= sqrt((double) width);
        b->high /= sqrt((double) width);
    }
}

// The view at `field` of the params, the cache's or V's own.
static void shape_cache(struct clf_check *k, size_t field)
{
    clinfer_kv_cache *kv = (clinfer_kv_cache *) (k->params + field);
    const clinfer_kv_cache like = *kv;
    const int64_t planes = like.planes ? like.planes : 2;
    *kv = (clinfer_kv_cache){ .dtype = like.dtype,
                              .num_pages = columns_of(k->tokens, 0) + columns_of(k->tokens, 1) + 1,
                              .planes = like.planes,
                              .num_layers = LAYERS,
                              .page_size = PAGE_SIZE,
                              .num_heads = like.num_heads,
                              .head_size = like.head_size,
                              .scale_group = like.scale_group };
    const int64_t rows = kv->num_pages * planes * LAYERS * PAGE_SIZE * kv->num_heads;
    struct clf_check_buffer *b = add_buffer(k, "kv", field + offsetof(clinfer_kv_cache, mem), kv->dtype,
                                            rows * kv->head_size, kv->head_size);
    b->role = CLF_CHECK_CACHE;
    b->cache = field;
    if (!kv->scale_group)
        return;
    const int64_t groups = clf_scale_groups(kv);
    b = add_buffer(k, "kv scales", field + offsetof(clinfer_kv_cache, scales), CLINFER_F32, rows * groups,
                   groups);
    b->role = CLF_CHECK_CACHE;
    b->cache = field;
    b->low = 0.5;
    b->high = 1.5;
}

static void shape_batch(struct clf_check *k)
{
    clinfer_kv_batch *batch = (clinfer_kv_batch *) (k->params + k->op->batch);
    const int64_t columns = columns_of(k->tokens, 0);
    const size_t mem = k->op->batch + offsetof(clinfer_tensor, mem);
    batch->input_row_offsets = clinfer_tensor_1d(NULL, CLINFER_U32, REQUESTS + 1);
    batch->cache_lengths = clinfer_tensor_1d(NULL, CLINFER_U32, REQUESTS);
    batch->lookup_table = clinfer_tensor_2d(NULL, CLINFER_U32, REQUESTS, columns);
    add_buffer(k, "input_row_offsets", mem + offsetof(clinfer_kv_batch, input_row_offsets), CLINFER_U32,
               REQUESTS + 1, 1);
    add_buffer(k, "cache_lengths", mem + offsetof(clinfer_kv_batch, cache_lengths), CLINFER_U32, REQUESTS, 1);
    add_buffer(k, "lookup_table", mem + offsetof(clinfer_kv_batch, lookup_table), CLINFER_U32,
               REQUESTS * columns, columns);
}

static bool same_programs(const struct clf_plan *a, const struct clf_plan *b)
{
    bool same = a->num_launches == b->num_launches;
    for (int i = 0; same && i < a->num_launches; i++)
        same = a->launch[i].kind == b->launch[i].kind &&
               (a->launch[i].kind == CLF_GEMM || (clf_same_spec(&a->launch[i].spec, &b->launch[i].spec) &&
                                                  !strcmp(a->launch[i].kernel, b->launch[i].kernel)));
    return same;
}

static bool has_gemm(const struct clf_plan *plan)
{
    for (int i = 0; i < plan->num_launches; i++)
        if (plan->launch[i].kind == CLF_GEMM)
            return true;
    return false;
}

// Shapes the small call for `tokens` tokens; whether it takes the programs of the caller's.
static bool shape(struct clf_check *k, const struct clf_plan *plan, const void *params, int64_t tokens)
{
    memcpy(k->params, params, k->op->params_size);
    memcpy(k->dim, plan->dim, sizeof k->dim);
    k->num_buffers = 0;
    k->tokens = tokens;
    k->dim['T' - 'A'] = tokens;
    k->dim['F' - 'A'] = cached[0] + fresh_of(tokens, 0);
    if (k->op->shrink)
        k->op->shrink(k->params, tokens);
    if (k->op->shrink_dims)
        k->op->shrink_dims(k->dim, k->params);
    if (k->op->kv) {
        *(int64_t *) (k->params + k->op->layer_idx) = LAYER;
        shape_cache(k, k->op->kv);
        shape_batch(k);
    }
    if (k->op->kv_v && clf_kv_given((const clinfer_kv_cache *) (k->params + k->op->kv_v)))
        shape_cache(k, k->op->kv_v);
    for (int i = 0; i < k->op->num_tensors; i++)
        shape_tensor(k, &k->op->tensors[i]);
    // The tokens that CLBlast takes of itself are more than these.
    k->caps = *plan->caps;
    if (has_gemm(plan))
        k->caps.gemm = CLINFER_GEMM_CLBLAST;
    return !clf_plan(&k->plan, k->op, k->params, &k->caps, CLF_COMPILE) && same_programs(&k->plan, plan);
}

bool clf_check_shape(struct clf_check *k, const struct clf_plan *plan, const void *params)
{
    // Tiles go by the number of tokens: the fewest that take the caller's.
    const int64_t most = CLF_DIM(plan, 'T') < 3 ? CLF_DIM(plan, 'T') : CLF_CHECK_TOKENS;
    for (int64_t tokens = most < 3 ? most : 3; tokens <= most; tokens = tokens < 8 ? 8 : 2 * tokens)
        if (shape(k, plan, params, tokens))
            return true;
    return false;
}

static double next_random(struct clf_check *k)
{
    k->seed = k->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double) (k->seed >> 11) * 0x1p-53;
}

// Random values, which weights of any size repeat: no row length divides the period, so rows differ.
static void fill(struct clf_check *k, const struct clf_check_buffer *b)
{
    enum { PERIOD = 4093 };
    const size_t size = clinfer_dtype_size(b->dtype), bytes = (size_t) b->count * size;
    const int64_t n = b->count < PERIOD ? b->count : PERIOD;
    for (int64_t i = 0; i < n; i++) {
        const double x = b->low + (b->high - b->low) * next_random(k);
        if (b->dtype == CLINFER_U32)
            memcpy(b->want + (size_t) i * size, &(uint32_t){ (uint32_t) fabs(x) }, size);
        else
            ref_store(b->want, b->dtype, i, x);
    }
    for (size_t done = (size_t) n * size; done < bytes; done += (size_t) n * size)
        memcpy(b->want + done, b->want, bytes - done < (size_t) n * size ? bytes - done : (size_t) n * size);
    if (b->role == CLF_CHECK_OUT)
        memset(b->want, 0xFF, bytes); // NaN
}

static void *data_of(const struct clf_check *k, const clinfer_tensor *t)
{
    for (int i = 0; i < k->num_buffers; i++)
        if (k->buffer[i].field == (size_t) ((const char *) &t->mem - k->params))
            return k->buffer[i].want;
    return NULL;
}

// Pages of a request lie in descending order, the two requests' next to each other; page 0 is nobody's.
static void fill_batch(struct clf_check *k)
{
    const clinfer_kv_batch *batch = (const clinfer_kv_batch *) (k->params + k->op->batch);
    uint32_t *offsets = data_of(k, &batch->input_row_offsets), *lengths = data_of(k, &batch->cache_lengths),
             *table = data_of(k, &batch->lookup_table), page = (uint32_t) clf_check_kv(k)->num_pages;
    const int64_t columns = batch->lookup_table.shape[1];
    offsets[0] = 0;
    for (int r = 0; r < REQUESTS; r++) {
        lengths[r] = (uint32_t) cached[r];
        offsets[r + 1] = offsets[r] + (uint32_t) fresh_of(k->tokens, r);
        for (int64_t c = 0; c < columns; c++)
            table[r * columns + c] = c < columns_of(k->tokens, r) ? --page : 0;
    }
}

void clf_check_fill(struct clf_check *k)
{
    for (int i = 0; i < k->num_buffers; i++)
        if (k->buffer[i].want)
            fill(k, &k->buffer[i]);
    if (k->op->kv)
        fill_batch(k);
}
