// SPDX-License-Identifier: Apache-2.0
// The ends of mla_decode_branch's domain.
#include "optest_mla.h"

#include <criterion/criterion.h>

#include <math.h>
#include <string.h>

// One key has weight 1: with w_uv the identity, the output is the latent part of its row as normalised.
Test(mla_decode_branch, one_key)
{
    static const int64_t latents[] = { 20, 1 };
    struct ot_device d = ot_open(0);
    for (int i = 0; i < 2; i++) {
        struct mla_shape s = mla_plain;
        s.value = s.latent = latents[i];
        const struct ot_batch b = ot_one_request(0, 1, 4);
        struct ot_call c = mla_prepared(&s, &b, "mla one key");
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t v = 0; v < s.value; v++)
                for (int64_t k = 0; k < s.latent; k++)
                    ot_set(&c, "w_uv", h, v, k, v == k);
        ot_check(&c, &d);
        for (int64_t h = 0; h < s.heads; h++)
            for (int64_t v = 0; v < s.value; v++)
                cr_expect_float_eq(ot_get(&c, "output", OT_GOT, 0, h, v), ot_get_row(&c, OT_GOT, 0, 0, 0, v),
                                   1e-6);
        ot_free(&c);
    }
    ot_close(&d);
}

// Rotated past the end of fp8, a new row saturates.
Test(mla_decode_branch, cache_row_saturates)
{
    struct ot_device d = ot_open(0);
    const struct ot_batch b = ot_one_request(0, 1, 2);
    struct mla_shape s = mla_plain;
    s.cache = 3;
    struct ot_call c = mla_prepared(&s, &b, "mla saturates");
    for (int64_t k = 0; k < s.rope; k++) {
        ot_set_row(&c, 0, 0, 0, s.latent + k, 448);
        ot_set(&c, "freqs_cis", 0, k, 0, 1);
    }
    ot_check(&c, &d);
    cr_expect_eq(ot_get_row(&c, OT_GOT, 0, 0, 0, s.latent), 0);
    cr_expect_eq(ot_get_row(&c, OT_GOT, 0, 0, 0, s.latent + 1), 448);
    ot_free(&c);
    ot_close(&d);
}

// Scores of 1e30 leave one key; scores of -inf leave none, and 0 comes out.
Test(mla_decode_branch, extreme_scores)
{
    struct ot_device d = ot_open(0);
    struct ot_call c = mla_prepared(&mla_plain, &mla_mixed, "mla huge");
    mla_params(&c)->scale = 1e30f;
    ot_check(&c, &d);
    ot_free(&c);

    struct mla_shape s = mla_plain;
    s.latent = s.nope = 1;
    s.rope = 0;
    c = mla_prepared(&s, &mla_mixed, "mla no weight");
    const struct ot_batch *b = &c.batch;
    for (int i = 0; i < b->requests; i++)
        for (int64_t pos = 0; b->fresh[i] && pos < b->cached[i] + b->fresh[i]; pos++)
            ot_set_row(&c, i, pos, 0, 0, 0.5);
    for (int64_t t = 0; t < ot_used(b); t++)
        ot_set(&c, "q", t, 0, 0, -HUGE_VAL);
    ot_set(&c, "w_uk", 0, 0, 0, 2);
    ot_set(&c, "kv_norm_gamma", 0, 0, 0, 1);
    ot_check(&c, &d);
    for (int64_t t = 0; t < ot_used(b); t++)
        cr_expect_eq(ot_get(&c, "output", OT_GOT, t, 0, 0), 0);
    ot_free(&c);
    ot_close(&d);
}

static bool is_nan(const struct ot_call *c, int64_t token)
{
    return isnan(ot_get(c, "output", OT_GOT, token, 0, 0));
}

// A window of 40 keys over 100 cached and 2 new ones: positions 61 to 100, and 62 to 101.
Test(mla_decode_branch, nan_key)
{
    static const struct {
        int64_t pos;
        bool first, second;
    } keys[] = { { 0, false, false }, { 60, false, false }, { 61, true, false },
                 { 62, true, true },  { 99, true, true },   { 101, false, true } };
    struct ot_device d = ot_open(0);
    for (int i = 0; i < OT_COUNT(keys); i++) {
        struct mla_shape s = mla_plain;
        s.mask = CLINFER_MASK_SLIDING_WINDOW_CAUSAL;
        s.window = 40;
        const struct ot_batch b = ot_one_request(100, 2, 8);
        struct ot_call c = mla_prepared(&s, &b, "mla nan");
        ot_set_row(&c, 0, keys[i].pos, 0, 3, NAN);
        ot_check(&c, &d);
        cr_expect(is_nan(&c, 0) == keys[i].first && is_nan(&c, 1) == keys[i].second, "NaN at %lld: %d, %d",
                  (long long) keys[i].pos, is_nan(&c, 0), is_nan(&c, 1));
        ot_free(&c);
    }
    ot_close(&d);
}

// Old keys on pages that do not exist are masked, all of them in the second round; a new token on one is left
// alone.
Test(mla_decode_branch, bad_pages)
{
    struct ot_device d = ot_open(0);
    for (int round = 0; round < 3; round++) {
        const struct ot_batch b = ot_one_request(40, 2, 8);
        struct ot_call c = mla_prepared(&mla_plain, &b, "mla bad pages");
        const uint32_t bad = (uint32_t) mla_params(&c)->kv.num_pages + (round ? 0 : 4000000000u);
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

// The last row of the table serves, the position after it is a fault.
Test(mla_decode_branch, end_of_the_table)
{
    struct ot_device d = ot_open(0);
    for (int64_t rows = 42; rows >= 41; rows--) {
        const struct ot_batch b = ot_one_request(40, 2, 8);
        struct ot_random r = ot_seeded("mla end", 0);
        struct ot_call c;
        mla_begin(&c, &mla_plain, &b, &r)->freqs_cis.shape[0] = rows;
        ot_place(&c);
        ot_run(&c, &d);
        ot_reference(&c);
        ot_compare(&c);
        cr_expect(c.fault.code == (rows == 42 ? CLINFER_FAULT_NONE : CLINFER_FAULT_POSITION));
        const bool same =
            !memcmp(ot_at(&c, "output", OT_GOT, 1, 0, 0), ot_at(&c, "output", OT_INITIAL, 1, 0, 0), 4);
        cr_expect(same == (rows == 41) && (rows == 42 || (c.fault.token == 1 && c.fault.value == 41)));
        ot_free(&c);
    }
    ot_close(&d);
}

static void begin_plain(struct ot_call *c, const struct ot_batch *b, const struct ot_random *r)
{
    (void) mla_begin(c, &mla_plain, b, r);
}

Test(mla_decode_branch, no_tokens)
{
    ot_check_no_tokens(begin_plain);
}

// Without what some devices lack, results stay the same.
Test(mla_decode_branch, fewer_capabilities)
{
    struct ot_device d =
        ot_open(CLINFER_CAP_DENORMALS | CLINFER_CAP_ROUNDED_DIVIDE | CLINFER_CAP_FMA | CLINFER_CAP_SUBGROUPS);
    for (int cache = 3; cache < OT_CACHES; cache++) {
        struct mla_shape s = mla_plain;
        s.cache = cache;
        s.group = 6;
        s.weights = CLINFER_F8_E4M3;
        struct ot_call c = mla_prepared(&s, &mla_mixed, "mla caps");
        mla_check(&c, &d);
        ot_free(&c);
    }
    ot_close(&d);
}

Test(mla_decode_branch, pages_far_apart)
{
    struct ot_device d = ot_open(0);
    const struct ot_batch b = ot_one_request(1, 4, 2); // new rows on every page
    struct mla_shape s = mla_plain;
    s.cache = 3;
    struct ot_random r = ot_seeded("mla far", 0);
    struct ot_call c;
    mla_begin(&c, &s, &b, &r);
    ot_check_far(&c, &d);
    ot_free(&c);
    ot_close(&d);
}

struct far_weights {
    const struct ot_device *d;
    cl_mem mem; // heads of w_uk, `far` elements apart
};
enum { WEIGHT_BYTES = 20 * 64 }; // of a head, at most
static const int64_t far = (INT64_C(1) << 32) + 64;

static void use_far_weights(struct ot_call *c, void *params)
{
    const struct far_weights *f = c->adjust_priv;
    clinfer_tensor *w = &((struct clinfer_mla_decode_branch_params *) params)->w_uk;
    const size_t bytes = (size_t) ((w->shape[1] - 1) * w->stride[1] + w->shape[2]);
    cr_assert(bytes <= WEIGHT_BYTES && w->stride[1] && w->dtype == CLINFER_F8_E4M3);
    for (int64_t h = 0; h < w->shape[0]; h++)
        cr_assert_eq(clEnqueueCopyBuffer(f->d->queue, w->mem, f->mem, w->offset + (size_t) (h * w->stride[0]),
                                         (size_t) (h * far), bytes, 0, NULL, NULL),
                     CL_SUCCESS);
    w->mem = f->mem;
    w->offset = 0;
    w->stride[0] = far;
}

Test(mla_decode_branch, weights_far_apart)
{
    struct ot_device d = ot_open(0);
    struct clinfer_device_info info;
    struct far_weights f = { .d = &d };
    const size_t bytes = (size_t) far + WEIGHT_BYTES;
    struct mla_shape s = mla_plain;
    s.weights = CLINFER_F8_E4M3;
    clinfer_ctx_device_info(d.ctx, &info);
    if (info.max_alloc < bytes)
        cr_skip_test("the device allocates at most %llu bytes at once, %zu are needed",
                     (unsigned long long) info.max_alloc, bytes);
    cl_int err;
    f.mem = clCreateBuffer(d.cl, CL_MEM_READ_WRITE, bytes, NULL, &err);
    cr_assert_eq(err, CL_SUCCESS);
    const struct ot_batch b = ot_one_request(3, 2, 2);
    struct ot_call c = mla_prepared(&s, &b, "mla far weights");
    c.adjust = use_far_weights;
    c.adjust_priv = &f;
    mla_check(&c, &d);
    ot_free(&c);
    (void) clReleaseMemObject(f.mem);
    ot_close(&d);
}
