// SPDX-License-Identifier: Apache-2.0
#include "compare.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ref/ref.h"

static const double untouched = -1; // in place of a tolerance
static const double least_cosine = 0.9999;

// One comparison.
struct pair {
    const struct op_case *c;
    const struct op_buffer *b;
    const unsigned char *got, *expected;
    int64_t elements, width; // width: of the last axis
    double *tolerance;       // by element
    bool quantised;          // the cosine counts
};

static int mantissa(clinfer_dtype dtype)
{
    static const int bits[] = {
        [CLINFER_F32] = 23, [CLINFER_F16] = 10, [CLINFER_BF16] = 7, [CLINFER_F8_E4M3] = 3
    };
    return bits[dtype];
}

clinfer_dtype cmp_narrower(clinfer_dtype a, clinfer_dtype b)
{
    return mantissa(a) <= mantissa(b) ? a : b;
}

static double expected_at(const struct pair *p, int64_t i)
{
    return ref_load(p->expected, p->b->dtype, i);
}

// Largest magnitude of the finite elements from `at` on, or their root mean square.
static double largest(const struct pair *p, int64_t at, int64_t n)
{
    double top = 0;
    for (int64_t i = at; i < at + n; i++)
        top = isfinite(expected_at(p, i)) ? fmax(top, fabs(expected_at(p, i))) : top;
    return top;
}

static double mean_square(const struct pair *p, int64_t at, int64_t n)
{
    double sum = 0;
    for (int64_t i = at; i < at + n; i++)
        sum += isfinite(expected_at(p, i)) ? expected_at(p, i) * expected_at(p, i) : 0;
    return n ? sum / (double) n : 0;
}

// The contract names no share for sums over fp8 values with plain weights; the widest it has serves.
static double rms_share(clinfer_dtype inner)
{
    return inner == CLINFER_F32 ? 1e-5 : inner == CLINFER_F16 ? 1e-3 : 8e-3;
}

static void rounded_span(struct pair *p, int64_t row, const struct op_span *s)
{
    const clinfer_dtype type = cmp_narrower(s->inner, p->b->dtype);
    const double floor = fmax(1e-6 * largest(p, row + s->first, s->count), 1e-6);
    for (int64_t i = row + s->first; i < row + s->first + s->count; i++) {
        const double x = expected_at(p, i);
        const double magnitude = isfinite(x) ? fabs(x) : 0; // nothing is near an infinity
        p->tolerance[i] = type == CLINFER_F32 ? 1e-5 * (1 + magnitude) : s->units * ref_ulp(x, type) + floor;
    }
}

// Sums over quantised values are given their share of the whole output's RMS when all rows are known.
static void sum_span(struct pair *p, int64_t row, const struct op_span *s)
{
    const double rms = s->sum == OP_SUM_ROUNDED ? sqrt(mean_square(p, row + s->first, s->count)) : 0;
    p->quantised = s->sum == OP_SUM_QUANTISED;
    for (int64_t i = row + s->first; i < row + s->first + s->count; i++)
        p->tolerance[i] = ref_ulp(expected_at(p, i), p->b->dtype) + rms_share(s->inner) * rms;
}

// The view that blocks or scales belong to.
static const clinfer_kv_cache *view_of(const struct pair *p)
{
    return (const void *) ((const char *) p->c->params + p->b->tensor->offset);
}

// A scale is the group's largest value over 448, so a unit of that value's type counts 1 / 448.
static void scale_span(struct pair *p, int64_t row, const struct op_span *s)
{
    const int64_t group = view_of(p)->scale_group;
    for (int64_t g = s->first / group; g < op_groups(s->first + s->count, group); g++) {
        const double x = expected_at(p, row + g);
        const double unit = s->inner == CLINFER_F32 ? 0 : ref_ulp(448 * x, s->inner) / 448;
        p->tolerance[row + g] = fmax(p->tolerance[row + g], fmax(1e-5 * fabs(x), unit));
    }
}

// In a cache with scales the groups that a span cuts are stored again whole. The elements of kv_blocks are
// then codes, and are compared as such: values and scale off by a unit of a 16-bit type move a code by one
// unit of fp8 at most, and a bound in values would be void where the scale is far below 1e-6. What the scale
// is off by, kv_scales answers for.
static void widen_to_groups(const struct pair *p, struct op_span *s)
{
    const int64_t group = p->b->tensor->place == OP_BLOCKS ? view_of(p)->scale_group : 0;
    if (!group)
        return;
    const int64_t first = s->first / group * group, end = op_groups(s->first + s->count, group) * group;
    s->first = first;
    s->count = (end < p->width ? end : p->width) - first;
}

// `head` counts on from the K plane to the V plane.
static void head_row(struct pair *p, int64_t row, int64_t head)
{
    struct op_span spans[OP_MAX_SPANS];
    const int n = p->c->op->spans(p->c, p->b->tensor->name, head, spans);
    for (int i = 0; i < n; i++) {
        if (p->b->tensor->place == OP_SCALES) {
            scale_span(p, row, &spans[i]);
        } else if (spans[i].sum == OP_NO_SUM) {
            widen_to_groups(p, &spans[i]);
            rounded_span(p, row, &spans[i]);
        } else {
            sum_span(p, row, &spans[i]);
        }
    }
}

static void token_rows(struct pair *p, int64_t token, const struct ref_token *at)
{
    const int64_t *shape = p->b->shape;
    const int64_t layer = *(const int64_t *) (const void *) ((const char *) p->c->params + p->c->op->layer);
    const bool cache = p->b->tensor->place != OP_TENSOR;
    const int64_t heads = cache            ? shape[4]
                          : p->b->rank > 2 ? shape[1]
                                           : 1,
                  planes = cache && p->c->op->kv_v ? shape[1] : 1;
    for (int64_t plane = 0; plane < planes; plane++) {
        const int64_t of_layer = (at->page * (cache ? shape[1] : 1) + plane) * (cache ? shape[2] : 1) + layer;
        const int64_t row = cache ? (of_layer * shape[3] + at->slot) * heads : token * heads;
        for (int64_t h = 0; h < heads; h++)
            head_row(p, (row + h) * p->width, plane * heads + h);
    }
}

static void set_tolerances(struct pair *p)
{
    for (int64_t i = 0; i < p->elements; i++)
        p->tolerance[i] = untouched;
    for (int64_t i = 0; i < p->c->total; i++) {
        struct ref_token at;
        if (ref_token_at(op_case_batch(p->c), op_case_kv(p->c), p->c->total, i, &at))
            token_rows(p, i, &at);
    }
    if (!p->quantised)
        return;
    double sum = 0, count = 0;
    for (int64_t i = 0; i < p->elements; i++)
        if (p->tolerance[i] >= 0) {
            sum += mean_square(p, i, 1);
            count++;
        }
    for (int64_t i = 0; i < p->elements; i++)
        if (p->tolerance[i] >= 0)
            p->tolerance[i] += 0.02 * sqrt(sum / count);
}

static bool same_bits(const struct pair *p, int64_t i)
{
    const size_t size = clinfer_dtype_size(p->b->dtype);
    return !memcmp(p->got + (size_t) i * size, p->expected + (size_t) i * size, size);
}

static double error_at(const struct pair *p, int64_t i)
{
    const double got = ref_load(p->got, p->b->dtype, i), expected = expected_at(p, i);
    if (same_bits(p, i) || (isnan(got) && isnan(expected)))
        return 0;
    if (!isfinite(got) || !isfinite(expected)) // not the same infinity, as the bits differ
        return HUGE_VAL;
    return fabs(got - expected);
}

static double cosine(const struct pair *p)
{
    double dot = 0, got2 = 0, expected2 = 0;
    for (int64_t i = 0; i < p->elements; i++) {
        const double got = ref_load(p->got, p->b->dtype, i), expected = expected_at(p, i);
        if (p->tolerance[i] < 0 || !isfinite(got) || !isfinite(expected))
            continue;
        dot += got * expected;
        got2 += got * got;
        expected2 += expected * expected;
    }
    return got2 > 0 && expected2 > 0 ? dot / sqrt(got2 * expected2) : 1; // zeros have no direction
}

static void compare_elements(const struct pair *p, struct cmp_result *result)
{
    double worst = -1;
    for (int64_t i = 0; i < p->elements; i++) {
        const double tolerance = fmax(p->tolerance[i], 0);
        double err = error_at(p, i);
        // Of what is left alone the bits count, a sign of zero too; only NaN has many.
        if (p->tolerance[i] < 0 && err == 0 && !same_bits(p, i) && !isnan(expected_at(p, i)))
            err = HUGE_VAL;
        const double used = err > tolerance ? HUGE_VAL : tolerance > 0 ? err / tolerance : 0;
        result->bad += err > tolerance;
        if (used > worst || (used == worst && err > result->max_err)) {
            worst = used;
            result->max_err = err;
            result->tolerance = tolerance;
            result->index = i;
        }
    }
}

bool cmp_compare(const struct op_case *c, const struct op_buffer *b, const unsigned char *got,
                 const unsigned char *expected, struct cmp_result *result)
{
    struct pair p = { c, b, got, expected, 0, 0, NULL, false };
    p.elements = (int64_t) (b->bytes / clinfer_dtype_size(b->dtype));
    p.width = b->shape[b->rank - 1];
    p.tolerance = malloc(b->bytes ? (size_t) p.elements * sizeof *p.tolerance : 1);
    *result = (struct cmp_result){ .tensor = b->tensor->name, .cosine = 1 };
    if (!p.tolerance)
        return false;
    set_tolerances(&p);
    compare_elements(&p, result);
    if (p.quantised)
        result->cosine = cosine(&p);
    result->ok = !result->bad && result->cosine >= least_cosine;
    free(p.tolerance);
    return true;
}

static bool same_shape(const struct op_buffer *b, const struct st_tensor *t)
{
    return t->dtype == b->dtype && t->rank == b->rank &&
           !memcmp(t->shape, b->shape, (size_t) b->rank * sizeof *b->shape);
}

int cmp_expected(const struct op_case *c, struct cmp_result *results, char *error, size_t error_size)
{
    int n = 0;
    for (int i = 0; i < c->num_buffers; i++) {
        const struct op_buffer *b = &c->buffers[i];
        char name[64];
        (void) snprintf(name, sizeof name, "expect.%s", b->tensor->name);
        const struct st_tensor *t = st_find(&c->file, name);
        if (!t || b->tensor->role == OP_IN)
            continue;
        if (!same_shape(b, t)) {
            (void) snprintf(error, error_size, "%s has another type or shape than %s", name, b->tensor->name);
            return -1;
        }
        if (!cmp_compare(c, b, b->data, t->data, &results[n++])) {
            (void) snprintf(error, error_size, "no memory to compare %s", b->tensor->name);
            return -1;
        }
    }
    return n;
}
