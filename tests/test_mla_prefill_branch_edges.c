// SPDX-License-Identifier: Apache-2.0
// The ends of mla_prefill_branch's domain.
#include "optest_mla.h"

#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

static bool is_nan(const struct ot_call *c, int64_t token)
{
    return isnan(ot_get(c, "output", OT_GOT, token, 0, 0));
}

// A window of 40 keys over 100 cached and 2 new ones, which share a block: positions 61 to 100, and 62 to
// 101. A key that one of them does not see must not reach it by its value.
Test(mla_prefill_branch, nan_key)
{
    static const struct {
        int64_t pos;
        bool first, second;
    } keys[] = { { 0, false, false }, { 60, false, false }, { 61, true, false },
                 { 62, true, true },  { 99, true, true },   { 101, false, true } };
    struct ot_device d = ot_open(0);
    for (int i = 0; i < OT_COUNT(keys); i++)
        for (int64_t chunk = 0; chunk < 100; chunk += 50) {
            struct mla_shape s = mla_plain;
            s.mask = CLINFER_MASK_SLIDING_WINDOW_CAUSAL;
            s.window = 40;
            const struct ot_batch b = ot_one_request(100, 2, 8);
            struct ot_call c = mla_prefill_prepared(&s, &b, "mla prefill nan", chunk);
            ot_set_row(&c, 0, keys[i].pos, 0, 3, NAN);
            ot_check(&c, &d);
            cr_expect(is_nan(&c, 0) == keys[i].first && is_nan(&c, 1) == keys[i].second,
                      "NaN at %lld: %d, %d", (long long) keys[i].pos, is_nan(&c, 0), is_nan(&c, 1));
            ot_free(&c);
        }
    ot_close(&d);
}

// Scores of 1e30 leave one key.
Test(mla_prefill_branch, extreme_scores)
{
    struct ot_device d = ot_open(0);
    struct ot_call c = mla_prefill_prepared(&mla_plain, &mla_mixed, "mla prefill huge", 300);
    mla_prefill_params(&c)->scale = 1e30f;
    ot_check(&c, &d);
    ot_free(&c);
    ot_close(&d);
}

// Old keys on pages that do not exist are masked, all of them in the second round; a new token on one is left
// alone.
Test(mla_prefill_branch, bad_pages)
{
    struct ot_device d = ot_open(0);
    for (int round = 0; round < 3; round++) {
        const struct ot_batch b = ot_one_request(40, 2, 8);
        struct ot_call c = mla_prefill_prepared(&mla_plain, &b, "mla prefill bad pages", 30);
        const uint32_t bad = (uint32_t) mla_prefill_params(&c)->kv.num_pages + (round ? 0 : 4000000000u);
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

// The last row of the table and the last key planned for serve; the position after it is a fault, of which
// nothing is written.
Test(mla_prefill_branch, ends)
{
    struct ot_device d = ot_open(0);
    for (int what = 0; what < 2; what++)
        for (int64_t end = 42; end >= 41; end--) {
            const struct ot_batch b = ot_one_request(40, 2, 8);
            struct ot_random r = ot_seeded("mla prefill end", 0);
            struct ot_call c;
            struct clinfer_mla_prefill_branch_params *p = mla_prefill_begin(&c, &mla_plain, &b, &r, 16);
            p->mask = CLINFER_MASK_NULL;
            *(what ? &p->max_context : &p->freqs_cis.shape[0]) = end;
            ot_place(&c);
            ot_run(&c, &d);
            ot_reference(&c);
            ot_compare(&c);
            const clinfer_fault_code code = end == 42 ? CLINFER_FAULT_NONE
                                            : what    ? CLINFER_FAULT_LENGTH
                                                      : CLINFER_FAULT_POSITION;
            cr_expect_eq(c.fault.code, code);
            const bool same =
                !memcmp(ot_at(&c, "output", OT_GOT, 1, 0, 0), ot_at(&c, "output", OT_INITIAL, 1, 0, 0), 4) &&
                !memcmp(ot_row(&c, OT_GOT, 0, 41, 0), ot_row(&c, OT_INITIAL, 0, 41, 0), 4);
            cr_expect(same == (end == 41) && (end == 42 || (c.fault.token == 1 && c.fault.value == 41)));
            ot_free(&c);
        }
    ot_close(&d);
}

static void begin_plain(struct ot_call *c, const struct ot_batch *b, const struct ot_random *r)
{
    (void) mla_prefill_begin(c, &mla_plain, b, r, 0);
}

Test(mla_prefill_branch, no_tokens)
{
    ot_check_no_tokens(begin_plain);
}

// A decode step and a prompt, as the context's device has them; test_plan_prefill has more.
Test(mla_prefill_branch, cheaper)
{
    struct ot_device d = ot_open(0);
    struct clinfer_mla_shape s = { 128, 128, 64, 512, 128, 1, 1, 4096 };
    cr_expect_eq(clinfer_mla_prefill_cheaper(d.ctx, &s), 0);
    s.new_tokens = 4096;
    cr_expect_eq(clinfer_mla_prefill_cheaper(d.ctx, &s), 1);
    ot_close(&d);
}

// Without what some devices lack, results stay the same.
Test(mla_prefill_branch, fewer_capabilities)
{
    struct ot_device d =
        ot_open(CLINFER_CAP_DENORMALS | CLINFER_CAP_ROUNDED_DIVIDE | CLINFER_CAP_FMA | CLINFER_CAP_SUBGROUPS);
    struct mla_shape s = mla_plain;
    s.cache = 4;
    s.group = 6;
    s.latent = 40;
    s.weights = CLINFER_F8_E4M3;
    struct ot_call c = mla_prefill_prepared(&s, &mla_mixed, "mla prefill caps", 200);
    ot_check(&c, &d);
    ot_free(&c);
    ot_close(&d);
}

Test(mla_prefill_branch, pages_far_apart)
{
    struct ot_device d = ot_open(0);
    const struct ot_batch b = ot_one_request(1, 4, 2); // new rows on every page
    struct mla_shape s = mla_plain;
    s.cache = 3;
    struct ot_random r = ot_seeded("mla prefill far", 0);
    struct ot_call c;
    mla_prefill_begin(&c, &s, &b, &r, 3);
    ot_check_far(&c, &d);
    ot_free(&c);
    ot_close(&d);
}
