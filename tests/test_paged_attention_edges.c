// SPDX-License-Identifier: Apache-2.0
// The ends of paged_attention's domain.
#include "optest_attention.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

// One key has weight 1: the output is its value.
Test(paged_attention, one_key)
{
    struct ot_device d = ot_open(0);
    const struct ot_batch b = ot_one_request(0, 1, 4);
    struct ot_call c = attention_prepared(&attention_plain, &b, "attention one key");
    ot_check(&c, &d);
    for (int64_t h = 0; h < attention_plain.heads; h++)
        for (int64_t v = 0; v < attention_plain.head_size; v++)
            cr_expect_eq(ot_get(&c, "output", OT_GOT, 0, h, v),
                         ref_load(ot_plane_row(&c, OT_V, OT_INITIAL, 0, 0, h / 2), CLINFER_F32, v));
    ot_free(&c);
    ot_close(&d);
}

// With 5 keys cached and 3 new ones, query 0 sees 6 keys: equal scores make lse the log of their number.
Test(paged_attention, causal_counts_what_is_cached)
{
    struct ot_device d = ot_open(0);
    const struct ot_batch b = ot_one_request(5, 3, 4);
    struct ot_call c = attention_prepared(&attention_plain, &b, "attention causal");
    attention_params(&c)->scale = 0;
    ot_check(&c, &d);
    for (int64_t t = 0; t < 3; t++)
        cr_expect_float_eq(ot_get(&c, "lse", OT_GOT, t, 0, 0), log(6 + (double) t), 1e-6);
    ot_free(&c);
    ot_close(&d);
}

// Scores of 1e30 leave one key; scores of -inf leave none: 0 comes out, and lse is -inf or the sink's.
Test(paged_attention, extreme_scores)
{
    struct ot_device d = ot_open(0);
    struct ot_call c = attention_prepared(&attention_plain, &attention_mixed, "attention huge");
    attention_params(&c)->scale = 1e30f;
    ot_check(&c, &d);
    ot_free(&c);
    for (int sinks = 0; sinks < 2; sinks++)
        for (int splits = 1; splits < 4; splits += 2) {
            struct attention_shape s = attention_plain;
            s.head_size = 1;
            s.sinks = sinks;
            c = attention_prepared(&s, &attention_mixed, "attention no weight");
            attention_params(&c)->num_splits = splits;
            const struct ot_batch *b = &c.batch;
            for (int i = 0; i < b->requests; i++)
                for (int64_t pos = 0; b->fresh[i] && pos < b->cached[i] + b->fresh[i]; pos++)
                    for (int64_t h = 0; h < s.kv_heads; h++)
                        ot_set_row(&c, i, pos, h, 0, 0.5);
            for (int64_t t = 0; t < ot_used(b); t++)
                for (int64_t h = 0; h < s.heads; h++)
                    ot_set(&c, "q", t, h, 0, -HUGE_VAL);
            ot_check(&c, &d);
            for (int64_t t = 0; t < ot_used(b); t++) {
                const double lse = ot_get(&c, "lse", OT_GOT, t, 1, 0);
                cr_expect_eq(ot_get(&c, "output", OT_GOT, t, 0, 0), 0);
                if (sinks)
                    cr_expect_float_eq(lse, ot_get(&c, "sinks", OT_INITIAL, 1, 0, 0), 1e-6);
                else
                    cr_expect(isinf(lse) && lse < 0, "%g", lse);
            }
            ot_free(&c);
        }
    ot_close(&d);
}

// A window of 40 keys over 100 cached and 2 new ones: positions 61 to 100, and 62 to 101. NaN and infinity in
// K and in V reach the queries that see them, and no other.
Test(paged_attention, odd_values)
{
    static const struct {
        int64_t pos;
        bool seen[2];
    } keys[] = { { 0, { false, false } }, { 60, { false, false } }, { 61, { true, false } },
                 { 62, { true, true } },  { 99, { true, true } },   { 101, { false, true } } };
    struct ot_device d = ot_open(0);
    for (int n = 0; n < 3 * OT_COUNT(keys); n++) {
        const int i = n / 3;
        struct attention_shape s = attention_plain;
        s.mask = CLINFER_MASK_SLIDING_WINDOW_CAUSAL;
        s.window = 40;
        const struct ot_batch b = ot_one_request(100, 2, 8);
        struct ot_call c = attention_prepared(&s, &b, "attention nan");
        ref_store(ot_plane_row(&c, n % 3 ? OT_V : OT_K, OT_INITIAL, 0, keys[i].pos, 0), CLINFER_F32, 3,
                  n % 3 == 2 ? HUGE_VAL : NAN);
        ot_check(&c, &d);
        for (int t = 0; t < 2; t++)
            cr_expect(isfinite(ot_get(&c, "output", OT_GOT, t, 0, 3)) == !keys[i].seen[t] &&
                          isfinite(ot_get(&c, "output", OT_GOT, t, 2, 3)),
                      "odd value at %lld, token %d", (long long) keys[i].pos, t);
        ot_free(&c);
    }
    ot_close(&d);
}

// What slots past a request's end and spare pages hold, NaN so far, changes no bit.
Test(paged_attention, unused_slots)
{
    struct ot_device d = ot_open(0);
    for (int cache = 0; cache < OT_CACHES; cache += 2) {
        struct attention_shape s = attention_plain;
        s.cache = cache;
        struct ot_call c = attention_prepared(&s, &attention_mixed, "attention unused");
        ot_check(&c, &d);
        const int64_t T = ot_used(&c.batch);
        struct ot_call zeros = attention_prepared(&s, &attention_mixed, "attention unused");
        struct ot_memory *m = &zeros.memory[zeros.of[3]]; // kv_blocks
        const size_t size = clinfer_dtype_size(attention_params(&c)->kv.dtype);
        for (size_t at = attention_params(&c)->kv.offset; at + size <= m->size; at += size)
            if (isnan(ref_load(m->initial + at, attention_params(&c)->kv.dtype, 0)))
                memset(m->initial + at, 0, size);
        ot_run(&zeros, &d);
        attention_same_rows(&c, 0, &zeros, 0, T);
        ot_free(&zeros);
        ot_free(&c);
    }
    ot_close(&d);
}

// Old keys on pages that do not exist are masked, all of them in the second round; new tokens on one are left
// alone.
Test(paged_attention, bad_pages)
{
    struct ot_device d = ot_open(0);
    for (int round = 0; round < 3; round++) {
        const struct ot_batch b = ot_one_request(40, 2, 8);
        struct ot_call c = attention_prepared(&attention_plain, &b, "attention bad pages");
        const uint32_t bad = (uint32_t) attention_params(&c)->kv.num_pages + (round ? 0 : 4000000000u);
        for (int64_t page = 0; page < (round == 0 ? 1 : 5 + (round == 2)); page++)
            ot_set(&c, "lookup_table", 0, page, 0, bad);
        ot_run(&c, &d);
        ot_reference(&c);
        ot_compare(&c);
        cr_expect(c.fault.code == CLINFER_FAULT_PAGE && c.fault.value == bad, "fault %d, value %u",
                  (int) c.fault.code, c.fault.value);
        if (round == 2)
            ot_unchanged(&c);
        ot_free(&c);
    }
    ot_close(&d);
}

// Tokens of one run of which the last few have no place: the others have their results.
Test(paged_attention, run_past_the_table)
{
    struct ot_device d = ot_open(0);
    const struct ot_batch b = ot_one_request(40, 8, 8);
    struct ot_call c = attention_prepared(&attention_plain, &b, "attention past the table");
    attention_params(&c)->batch.lookup_table.shape[1] = 6;
    ot_set(&c, "cache_lengths", 0, 0, 0, 43);
    ot_run(&c, &d);
    ot_reference(&c);
    ot_compare(&c);
    cr_expect(c.fault.code == CLINFER_FAULT_LENGTH && c.fault.value >= 48 && c.fault.token >= 5,
              "fault %d, value %u", (int) c.fault.code, c.fault.value);
    ot_free(&c);
    ot_close(&d);
}

static void begin_plain(struct ot_call *c, const struct ot_batch *b, const struct ot_random *r)
{
    (void) attention_begin(c, &attention_plain, b, r);
}

Test(paged_attention, no_tokens)
{
    ot_check_no_tokens(begin_plain);
}

// Without what some devices lack, results stay the same.
Test(paged_attention, fewer_capabilities)
{
    struct ot_device d =
        ot_open(CLINFER_CAP_DENORMALS | CLINFER_CAP_ROUNDED_DIVIDE | CLINFER_CAP_FMA | CLINFER_CAP_SUBGROUPS);
    for (int cache = 3; cache < OT_CACHES; cache++) {
        struct attention_shape s = attention_plain;
        s.cache = cache;
        struct ot_call c = attention_prepared(&s, &attention_mixed, "attention caps");
        ot_check(&c, &d);
        ot_free(&c);
    }
    ot_close(&d);
}

Test(paged_attention, pages_far_apart)
{
    struct ot_device d = ot_open(0);
    const struct ot_batch b = ot_one_request(1, 4, 2);
    struct attention_shape s = attention_plain;
    s.cache = 3;
    struct ot_random r = ot_seeded("attention far", 0);
    struct ot_call c;
    attention_begin(&c, &s, &b, &r);
    ot_check_far(&c, &d);
    ot_free(&c);
    ot_close(&d);
}
