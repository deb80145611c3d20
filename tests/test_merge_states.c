// SPDX-License-Identifier: Apache-2.0
#include "optest.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>

TestSuite(merge_states, .timeout = 120);

struct shape {
    int64_t tokens, heads, size;
    clinfer_dtype a, b;
    enum ot_pairing pairing;
};

static void shape(struct ot_call *c, const struct shape *s)
{
    const struct ot_batch batch = { .requests = 1, .fresh = { s->tokens }, .page_size = 1, .layers = 1 };
    const struct ot_random r = ot_seeded("merge_states", s->tokens * 100000 + s->heads * 1000 + s->size);
    struct clinfer_merge_states_params *p = ot_begin(c, "merge_states", &batch, &r);
    p->out_a = p->output = clinfer_tensor_3d(NULL, s->a, s->tokens, s->heads, s->size);
    p->out_b = clinfer_tensor_3d(NULL, s->b, s->tokens, s->heads, s->size);
    p->lse_a = p->lse_b = p->lse = clinfer_tensor_2d(NULL, CLINFER_F32, s->tokens, s->heads);
    c->pairing = s->pairing;
    (void) snprintf(c->note, sizeof c->note, "T=%lld H=%lld V=%lld a=%s b=%s place=%d", (long long) s->tokens,
                    (long long) s->heads, (long long) s->size, clinfer_dtype_str(s->a),
                    clinfer_dtype_str(s->b), (int) s->pairing);
}

static void begin(struct ot_call *c, const struct shape *s)
{
    shape(c, s);
    ot_place(c);
}

// Of a state without a key: its row is NaN, as all that nothing wrote.
static void empty_state(struct ot_call *c, const char *out, const char *lse, int64_t t, int64_t h)
{
    const int64_t size = ((const struct clinfer_merge_states_params *) c->params)->output.shape[2];
    ot_set(c, lse, t, h, 0, -INFINITY);
    for (int64_t d = 0; d < size; d++)
        ot_set(c, out, t, h, d, NAN);
}

static void add_empty_states(struct ot_call *c, const struct shape *s)
{
    struct ot_random r = c->random;
    for (int64_t t = 0; t < s->tokens; t++)
        for (int64_t h = 0; h < s->heads; h++) {
            const int64_t kind = ot_between(&r, 0, 9);
            if (kind < 2)
                empty_state(c, "out_a", "lse_a", t, h);
            if (kind == 1 || kind == 2)
                empty_state(c, "out_b", "lse_b", t, h);
        }
}

static void check(const struct ot_device *d, const struct shape *s)
{
    struct ot_call c;
    begin(&c, s);
    add_empty_states(&c, s);
    ot_check(&c, d);
    ot_free(&c);
}

// Every type of a with every type of b, over a, apart from it, and beside it in one row.
Test(merge_states, types)
{
    struct ot_device d = ot_open(0);
    for (int i = 0; i < 9; i++) {
        const struct shape s = {
            4, 5, 64, ot_floats[i % 3], ot_floats[i / 3], (enum ot_pairing)((i + i / 3) % 3)
        };
        if (ot_share() == 1 || i % 3 == i / 3)
            check(&d, &s);
    }
    ot_close(&d);
}

// Head sizes around vectors, and more heads than a work-group has items.
Test(merge_states, shapes)
{
    static const int64_t sizes[] = { 1, 5, 16, 40, 72, 300 }, heads[] = { 1, 3, 64, 65, 9, 130 },
                         tokens[] = { 1, 2, 7 };
    struct ot_device d = ot_open(0);
    for (int64_t k = 0; k < OT_COUNT(sizes); k++)
        for (int64_t i = 0; i < OT_COUNT(heads); i++) {
            const struct shape s = { tokens[(i + k) % 3], heads[i],     sizes[k],
                                     CLINFER_BF16,        CLINFER_BF16, (enum ot_pairing)(i % 3) };
            if ((i + k) % 2 == 0)
                check(&d, &s);
        }
    ot_close(&d);
}

// Two states, in f32: lse and the values of the first two dims of a head.
struct state {
    double lse, value[2];
};

static void merge_two(const struct ot_device *d, struct state a, struct state b, struct state *got)
{
    const struct shape s = { 1, 1, 2, CLINFER_F32, CLINFER_F32, OT_IN_PLACE };
    struct ot_call c;
    begin(&c, &s);
    ot_set(&c, "lse_a", 0, 0, 0, a.lse);
    ot_set(&c, "lse_b", 0, 0, 0, b.lse);
    for (int64_t i = 0; i < 2; i++) {
        ot_set(&c, "out_a", 0, 0, i, a.value[i]);
        ot_set(&c, "out_b", 0, 0, i, b.value[i]);
    }
    ot_check(&c, d);
    got->lse = ot_get(&c, "lse", OT_GOT, 0, 0, 0);
    got->value[0] = ot_get(&c, "output", OT_GOT, 0, 0, 0);
    got->value[1] = ot_get(&c, "output", OT_GOT, 0, 0, 1);
    ot_free(&c);
}

Test(merge_states, values)
{
    const double inf = INFINITY, log2_ = 0.69314718055994531;
    const struct {
        struct state a, b, want;
    } cases[] = {
        { { 5, { 1, 2 } }, { 5, { 3, 6 } }, { 5 + log2_, { 2, 4 } } },           // halves
        { { 0, { 8, 16 } }, { -log2_, { 2, 4 } }, { 0.4054651081, { 6, 12 } } }, // thirds, log(3 / 2)
        { { 1e4, { 1, 2 } }, { -1e4, { 3, 4 } }, { 1e4, { 1, 2 } } },            // exp of neither is a number
        { { 3e38, { 1, 2 } }, { 3e38, { 3, 4 } }, { 3e38, { 2, 3 } } },
        { { 2, { 3e38, -3e38 } },
          { 2, { 3e38, -3e38 } },
          { 2 + log2_, { 3e38, -3e38 } } }, // their sum is none
        { { -inf, { NAN, inf } }, { 7, { 3, 4 } }, { 7, { 3, 4 } } },
        { { 7, { 3, 4 } }, { -inf, { inf, NAN } }, { 7, { 3, 4 } } },
        { { -inf, { NAN, 1 } }, { -inf, { 5, NAN } }, { -inf, { 0, 0 } } },
        { { 0, { NAN, 1 } }, { 0, { 1, inf } }, { log2_, { NAN, inf } } }, // what is there stays
        { { NAN, { 1, 2 } }, { 0, { 3, 4 } }, { NAN, { NAN, NAN } } },
        { { NAN, { 1, 2 } }, { -inf, { 3, 4 } }, { NAN, { NAN, NAN } } },
    };
    struct ot_device d = ot_open(0);
    for (int64_t i = 0; i < OT_COUNT(cases); i++) {
        struct state got;
        merge_two(&d, cases[i].a, cases[i].b, &got);
        const double w[] = { cases[i].want.lse, cases[i].want.value[0], cases[i].want.value[1] },
                     g[] = { got.lse, got.value[0], got.value[1] };
        for (int k = 0; k < 3; k++)
            cr_expect(g[k] == w[k] || (isnan(w[k]) && isnan(g[k])) || fabs(g[k] - w[k]) <= 1e-6 * fabs(w[k]),
                      "case %d: %g, want %g", (int) i, g[k], w[k]);
    }
    ot_close(&d);
}

// Half of two values an odd number of bf16's steps apart is a tie: to even.
Test(merge_states, rounds_to_even)
{
    static const double a[] = { 256, 258, -258, 258 }, b[] = { 258, 260, -260, 264 },
                        want[] = { 256, 260, -260, 260 };
    const struct shape s = { 1, 1, 4, CLINFER_BF16, CLINFER_BF16, OT_SEPARATE };
    struct ot_device d = ot_open(0);
    struct ot_call c;
    begin(&c, &s);
    ot_set(&c, "lse_a", 0, 0, 0, 3);
    ot_set(&c, "lse_b", 0, 0, 0, 3);
    for (int64_t i = 0; i < 4; i++) {
        ot_set(&c, "out_a", 0, 0, i, a[i]);
        ot_set(&c, "out_b", 0, 0, i, b[i]);
    }
    ot_check(&c, &d);
    for (int64_t i = 0; i < 4; i++)
        cr_expect_eq(ot_get(&c, "output", OT_GOT, 0, 0, i), want[i], "%g and %g give %g", a[i], b[i],
                     ot_get(&c, "output", OT_GOT, 0, 0, i));
    ot_free(&c);
    ot_close(&d);
}

Test(merge_states, no_tokens)
{
    const struct shape s = { 0, 3, 16, CLINFER_BF16, CLINFER_BF16, OT_SEPARATE };
    struct ot_device d = ot_open(0);
    struct ot_call c;
    begin(&c, &s);
    ot_check(&c, &d);
    ot_unchanged(&c);
    ot_free(&c);
    ot_close(&d);
}

Test(merge_states, fewer_capabilities)
{
    const struct shape s = { 3, 5, 40, CLINFER_F32, CLINFER_F16, OT_IN_PLACE };
    struct ot_device d =
        ot_open(CLINFER_CAP_DENORMALS | CLINFER_CAP_ROUNDED_DIVIDE | CLINFER_CAP_FMA | CLINFER_CAP_SUBGROUPS);
    check(&d, &s);
    ot_close(&d);
}

Test(merge_states, rows_far_apart)
{
    const struct shape s = { 2, 3, 40, CLINFER_BF16, CLINFER_BF16, OT_SEPARATE };
    struct ot_device d = ot_open(0);
    struct ot_call c;
    shape(&c, &s);
    ot_check_far_rows(&c, &d);
    ot_free(&c);
    ot_close(&d);
}
