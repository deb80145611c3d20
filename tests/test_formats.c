// SPDX-License-Identifier: Apache-2.0
// The storage formats and the division of cl/lib, on the device, against tables made here in double. The
// kernels include the files that CLINFER_CL_SRC (cl) holds.
#include "optest_kernels.h"
#include "skip.h"

#include <criterion/criterion.h>

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct format {
    const char *name;
    clinfer_dtype dtype;
    int exponent, mantissa;
    uint32_t finite; // codes of one sign that are numbers
};
static const struct format fp8 = { "f8_e4m3", CLINFER_F8_E4M3, 4, 3, 0x7f };
static const struct format f16 = { "f16", CLINFER_F16, 5, 10, 0x7c00 };
static const struct format bf16 = { "bf16", CLINFER_BF16, 8, 7, 0x7f80 };
static const struct format f32 = { "f32", CLINFER_F32, 8, 23, 0x7f800000 };
static const struct format *const formats[] = { &fp8, &f16, &bf16, &f32 };

// Of a code without its sign; past the last finite one, the number that would follow it.
static double value_of(const struct format *f, uint32_t code)
{
    const int bias = (1 << (f->exponent - 1)) - 1, e = (int) (code >> f->mantissa);
    const double fraction = ldexp(code & ((1u << f->mantissa) - 1), -f->mantissa);
    return e ? ldexp(1 + fraction, e - bias) : ldexp(fraction, 1 - bias);
}

// The code nearest to a finite x, ties to the even one; past the end the largest or infinity.
static uint32_t nearest(const struct format *f, float x)
{
    const uint32_t sign = signbit(x) ? 1u << (f->exponent + f->mantissa) : 0;
    const double a = fabs((double) x);
    uint32_t low = 0, high = f->finite; // value(low) <= a < value(high), or high is past the end
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        if (value_of(f, middle) <= a)
            low = middle;
        else
            high = middle;
    }
    const double below = a - value_of(f, low), above = value_of(f, low + 1) - a;
    const uint32_t code = low + (above < below || (above == below && low % 2));
    return sign | (code == f->finite && f->dtype == CLINFER_F8_E4M3 ? code - 1 : code);
}

static bool is_nan_code(const struct format *f, uint32_t code)
{
    const uint32_t magnitude = code & ((1u << (f->exponent + f->mantissa)) - 1);
    return f->dtype == CLINFER_F8_E4M3 ? magnitude == 0x7f : magnitude > f->finite;
}

static void decode_all(const struct format *f, int lanes)
{
    const uint32_t count = 1u << (1 + f->exponent + f->mantissa), top = count / 2;
    const size_t size = clinfer_dtype_size(f->dtype);
    struct fk_program p = fk_build(f->name, lanes, 1);
    unsigned char *codes = fk_allocated(count * size);
    float *values = fk_allocated(count * sizeof *values);
    for (uint32_t i = 0; i < count; i++)
        memcpy(codes + i * size, &i, size);
    struct fk_argument args[] = { { codes, count * size, NULL }, { values, count * sizeof *values, NULL } };
    fk_launch(&p, "decode", args, 2, count, count / (cl_uint) lanes);
    for (uint32_t i = 0; i < count; i++) {
        const uint32_t magnitude = i & (top - 1);
        const double want = magnitude == f->finite ? HUGE_VAL : value_of(f, magnitude);
        if (is_nan_code(f, i))
            cr_assert(isnan(values[i]), "%s: code %#x is %g", f->name, i, (double) values[i]);
        else
            cr_assert(values[i] == (float) (i & top ? -want : want) && !signbit(values[i]) == (i < top),
                      "%s: code %#x is %.9g, not %.9g", f->name, i, (double) values[i], want);
    }
    free(codes);
    free(values);
    fk_release(&p);
}

Test(formats, decode_all_codes)
{
    for (int lanes = 4; lanes <= 16; lanes *= 2) {
        decode_all(&fp8, lanes);
        decode_all(&f16, lanes);
        decode_all(&bf16, lanes);
    }
}

static float from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// Each value, each tie, and their neighbours in f32, of both signs; all bf16 values; ends and NaN of f32.
static uint32_t hard_values(const struct format *f, float *x)
{
    static const uint32_t ends[] = { 0x7f7fffff, 0x7f800000, 0x7f800001, 0x7f80ffff, 0x7fffffff,
                                     0x7fff8000, 0x7fc00000, 1,          0x007fffff };
    uint32_t n = 0;
    for (uint32_t code = 0; code < f->finite; code++) {
        const float here = (float) value_of(f, code),
                    tie = (float) ((value_of(f, code) + value_of(f, code + 1)) / 2);
        const float near[] = { here, nextafterf(here, HUGE_VALF), nextafterf(here, -HUGE_VALF),
                               tie,  nextafterf(tie, HUGE_VALF),  nextafterf(tie, -HUGE_VALF) };
        for (int i = 0; i < 6; i++) {
            x[n++] = near[i];
            x[n++] = -near[i];
        }
    }
    for (uint32_t i = 0; i < 0x10000; i++)
        x[n++] = from_bits(i << 16);
    for (uint32_t i = 0; i < OT_COUNT(ends); i++) {
        x[n++] = from_bits(ends[i]);
        x[n++] = from_bits(ends[i] | 0x80000000u);
    }
    return n;
}

static void encode_hard_values(const struct format *f, int lanes)
{
    const size_t size = clinfer_dtype_size(f->dtype);
    struct fk_program p = fk_build(f->name, lanes, 1);
    float *x = fk_allocated((12 * (size_t) f->finite + 0x11000) * sizeof *x);
    const uint32_t n = hard_values(f, x), infinity = f->dtype == CLINFER_F8_E4M3 ? f->finite - 1 : f->finite;
    unsigned char *codes = fk_allocated(n * size);
    struct fk_argument args[] = { { x, n * sizeof *x, NULL }, { codes, n * size, NULL } };
    fk_launch(&p, "encode", args, 2, n, (n + (cl_uint) lanes - 1) / (cl_uint) lanes);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t code = 0;
        memcpy(&code, codes + i * size, size);
        const uint32_t sign = signbit(x[i]) ? 1u << (f->exponent + f->mantissa) : 0;
        if (isnan(x[i]))
            cr_assert(is_nan_code(f, code), "%s: NaN becomes %#x", f->name, code);
        else
            cr_assert_eq(code, isinf(x[i]) ? sign | infinity : nearest(f, x[i]),
                         "%s: %.9g becomes %#x, not %#x", f->name, (double) x[i], code, nearest(f, x[i]));
    }
    free(x);
    free(codes);
    fk_release(&p);
}

Test(formats, encode_fp8)
{
    for (int lanes = 4; lanes <= 16; lanes *= 2)
        encode_hard_values(&fp8, lanes);
}
Test(formats, encode_f16)
{
    for (int lanes = 4; lanes <= 16; lanes *= 2)
        encode_hard_values(&f16, lanes);
}
Test(formats, encode_bf16)
{
    for (int lanes = 4; lanes <= 16; lanes *= 2)
        encode_hard_values(&bf16, lanes);
}

enum { ROOM = 64 }; // elements of the buffers below

// Elements of `out` other than [1, 1 + n) are as they were, and those are the ones of `in`.
static void expect_copied(const struct format *f, const char *what, const unsigned char *in,
                          const unsigned char *out, size_t n)
{
    const size_t size = clinfer_dtype_size(f->dtype);
    cr_expect(!memcmp(in + size, out + size, n * size), "%s: %s of %zu: other values", f->name, what, n);
    for (size_t i = 0; i < ROOM * size; i++)
        cr_expect(out[i] == 0xff || (i >= size && i < (1 + n) * size), "%s: %s of %zu writes byte %zu",
                  f->name, what, n, i);
}

static void expect_lanes(const struct format *f, const float *lane, int lanes, const unsigned char *in, int n,
                         int step, int first)
{
    for (int i = 0; i < lanes; i++) {
        const double want = i < n ? ref_load(in, f->dtype, 1 + i * step + first) : 0;
        cr_expect_eq((double) lane[i], want, "%s: lane %d of %d is %g", f->name, i, n, (double) lane[i]);
    }
}

static void check_tails(const struct format *f, int lanes)
{
    const size_t size = clinfer_dtype_size(f->dtype);
    struct fk_program p = fk_build(f->name, lanes, 1);
    unsigned char in[ROOM * 4], out[ROOM * 4];
    float lane[32];
    for (int n = 1; n <= 40; n++) {
        struct fk_argument args[] = { { in, ROOM * size, NULL },
                                      { lane, sizeof lane, NULL },
                                      { out, ROOM * size, NULL } };
        struct fk_argument copied[] = { args[0], args[2] };
        for (int kind = 0; kind < 3; kind++) {
            const int used = kind == 1 ? 2 * n : n; // what lies behind is NaN
            memset(in, 0xff, sizeof in);
            memset(out, 0xff, sizeof out);
            for (int i = 0; i < used && used <= 40; i++)
                ref_store(in, f->dtype, 1 + i, i % 5 + 0.25 * i);
            if (kind == 0 && n <= lanes)
                fk_launch(&p, "tails", args, 3, (cl_uint) n, 1);
            else if (kind == 1 && n <= lanes)
                fk_launch(&p, "pairs", args, 3, (cl_uint) n, 1);
            else if (kind == 2)
                fk_launch(&p, "copies", copied, 2, (cl_uint) n, 1);
            else
                continue;
            expect_copied(f, kind == 0 ? "store" : kind == 1 ? "pairs" : "copy", in, out, (size_t) used);
            if (kind < 2)
                expect_lanes(f, lane, lanes, in, n, 1 + kind, 0);
            if (kind == 1)
                expect_lanes(f, lane + lanes, lanes, in, n, 2, 1);
        }
    }
    fk_release(&p);
}

Test(formats, tails)
{
    for (int64_t i = 0; i < OT_COUNT(formats); i++)
        for (int lanes = 4; lanes <= 16; lanes *= 2)
            check_tails(formats[i], lanes);
}

// Pairs for the device to divide.
struct quotients {
    float *in;
    size_t n;
};

static void add_quotient(struct quotients *q, float a, float b)
{
    q->in[2 * q->n] = a;
    q->in[2 * q->n++ + 1] = b;
}

// A scale, x / 448, and an inverse, 1 / x.
static void add_scale(struct quotients *q, uint32_t bits)
{
    add_quotient(q, from_bits(bits), 448);
    add_quotient(q, 1, from_bits(bits));
}

// Every exponent, with mantissas from both ends and random ones between; every tie that a subnormal scale can
// be.
static void add_scales(struct quotients *q, struct ot_random *r)
{
    for (uint32_t e = 0; e < 255; e++)
        for (uint32_t m = 0; m < 1024; m++) {
            add_scale(q, e << 23 | m);
            add_scale(q, e << 23 | (0x7fffff - m));
            add_scale(q, e << 23 | (uint32_t) ot_between(r, 0, 0x7fffff));
        }
    for (int64_t k = 0; k < 1 << 17; k++) {
        const int64_t odd = k < 1 << 16 ? 2 * k + 1 : 2 * ot_between(r, 0, 1 << 20) + 1;
        add_quotient(q, ldexpf((float) (7 * odd), 5 - 149), 448);
    }
}

static void add_others(struct quotients *q, struct ot_random *r)
{
    static const float special[][2] = {
        { 0, 448 },           { 1, 0 },         { -0.0f, 448 },      { HUGE_VALF, 448 },
        { 1, HUGE_VALF },     { FLT_MAX, 448 }, { FLT_MAX, 1e-40f }, { 1e-40f, 1e30f },
        { -1e-40f, -3e-45f }, { FLT_MIN, 2 },   { FLT_MAX, FLT_MAX }
    };
    for (int64_t i = 0; i < OT_COUNT(special); i++)
        add_quotient(q, special[i][0], special[i][1]);
    for (int i = 0; i < 500000; i++) {
        const uint64_t bits = ot_bits(r);
        const float a = from_bits((uint32_t) bits), b = from_bits((uint32_t) (bits >> 32));
        if (isfinite(a) && isfinite(b) && b != 0)
            add_quotient(q, a, b);
    }
}

static void check_divide(int rounded)
{
    enum { MOST = 2 * 3 * 255 * 1024 + (1 << 17) + 500100 };
    struct fk_program p = fk_build(f32.name, 16, rounded);
    struct ot_random r = ot_seeded("divide", 0);
    struct quotients q = { fk_allocated(2 * MOST * sizeof(float)), 0 };
    float *out = fk_allocated(MOST * sizeof *out);
    add_scales(&q, &r);
    add_others(&q, &r);
    cr_assert(q.n <= MOST);
    struct fk_argument args[] = { { q.in, 2 * q.n * sizeof(float), NULL }, { out, q.n * sizeof *out, NULL } };
    fk_launch(&p, "quotients", args, 2, (cl_uint) q.n, (q.n + 15) / 16);
    for (size_t i = 0; i < q.n; i++) {
        const float want = q.in[2 * i] / q.in[2 * i + 1];
        cr_assert(!memcmp(&out[i], &want, sizeof want), "%a / %a is %a, not %a (build option: %d)",
                  (double) q.in[2 * i], (double) q.in[2 * i + 1], (double) out[i], (double) want, rounded);
    }
    free(q.in);
    free(out);
    fk_release(&p);
}

// The device's own division is the kernels' only where it rounds correctly and keeps subnormals.
Test(formats, divide_of_the_device)
{
    const unsigned exact = CLINFER_CAP_ROUNDED_DIVIDE | CLINFER_CAP_DENORMALS;
    struct ot_device d = ot_open(0);
    struct clinfer_device_info info;
    clinfer_ctx_device_info(d.ctx, &info);
    ot_close(&d);
    if ((info.caps & exact) != exact)
        SKIP("formats", "the device promises no correctly rounded division");
    check_divide(1);
}
Test(formats, divide_in_integers)
{
    check_divide(0);
}
