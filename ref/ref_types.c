// SPDX-License-Identifier: Apache-2.0
#include "ref.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct format {
    int mantissa, exponent; // bits
};

static struct format format_of(clinfer_dtype dtype)
{
    switch (dtype) {
    case CLINFER_F16:
        return (struct format){ 10, 5 };
    case CLINFER_BF16:
        return (struct format){ 7, 8 };
    case CLINFER_F8_E4M3:
    case CLINFER_I8:
        return (struct format){ 3, 4 };
    default:
        return (struct format){ 23, 8 };
    }
}

static int bias_of(struct format f)
{
    return (1 << (f.exponent - 1)) - 1;
}

// Exponent of x > 0, that of the smallest normal number for anything below it.
static int exponent_at(double x, struct format f)
{
    int e;
    (void) frexp(x, &e);
    return e - 1 > 1 - bias_of(f) ? e - 1 : 1 - bias_of(f);
}

double ref_ulp(double x, clinfer_dtype dtype)
{
    const struct format f = format_of(dtype);
    const int e = x != 0 && isfinite(x) ? exponent_at(fabs(x), f) : 1 - bias_of(f);
    return ldexp(1, e - f.mantissa);
}

// Codes count upwards with the value, so a mantissa that rounds up past its end carries into the exponent.
static uint32_t encode_narrow(double x, clinfer_dtype dtype)
{
    const struct format f = format_of(dtype);
    const bool fp8 = dtype == CLINFER_F8_E4M3;
    const uint32_t sign = signbit(x) ? 1u << (f.mantissa + f.exponent) : 0;
    const uint32_t infinity = ((1u << f.exponent) - 1) << f.mantissa;
    if (isnan(x))
        return sign | (fp8 ? 0x7f : infinity | 1u << (f.mantissa - 1));
    x = (double) (float) fmin(fabs(x), fp8 ? 448 : HUGE_VAL);
    if (x == 0)
        return sign;
    if (isinf(x))
        return sign | infinity;
    const int e = exponent_at(x, f);
    const uint32_t n = (uint32_t) nearbyint(ldexp(x, f.mantissa - e)); // the default mode: to nearest even
    const uint32_t code = n + ((uint32_t) (e + bias_of(f) - 1) << f.mantissa);
    return sign | (fp8 || code < infinity ? code : infinity);
}

// 2^e of a normal double, for ldexp() takes most of the time of a decoded row.
static double power_of_two(int e)
{
    const uint64_t bits = (uint64_t) (e + 1023) << 52;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static double decode_narrow(uint32_t bits, clinfer_dtype dtype)
{
    const struct format f = format_of(dtype);
    const uint32_t mask = (1u << f.exponent) - 1, fraction = bits & ((1u << f.mantissa) - 1);
    const int e = (int) (bits >> f.mantissa & mask);
    const double sign = bits >> (f.mantissa + f.exponent) & 1 ? -1 : 1;
    if (dtype == CLINFER_F8_E4M3 ? (bits & 0x7f) == 0x7f : (uint32_t) e == mask && fraction)
        return NAN;
    if (dtype != CLINFER_F8_E4M3 && (uint32_t) e == mask)
        return sign * HUGE_VAL;
    const uint32_t whole = fraction + (e ? 1u << f.mantissa : 0);
    return sign * whole * power_of_two((e ? e : 1) - bias_of(f) - f.mantissa);
}

uint32_t ref_encode(double x, clinfer_dtype dtype)
{
    if (dtype == CLINFER_I8)
        return (uint8_t) (int) nearbyint(fmin(fmax(x, -128), 127));
    if (dtype != CLINFER_F32)
        return encode_narrow(x, dtype);
    const float f = (float) x;
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

double ref_decode(uint32_t bits, clinfer_dtype dtype)
{
    if (dtype == CLINFER_U32)
        return bits;
    if (dtype == CLINFER_I8)
        return (int8_t) bits;
    if (dtype == CLINFER_F16 || dtype == CLINFER_F8_E4M3)
        return decode_narrow(bits, dtype);
    if (dtype == CLINFER_BF16) // the upper half of an f32
        bits <<= 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

double ref_round(double x, clinfer_dtype dtype)
{
    return dtype == CLINFER_F32 ? (double) (float) x : decode_narrow(encode_narrow(x, dtype), dtype);
}

// All supported hosts are little-endian, as the files and the devices are.
double ref_load(const void *base, clinfer_dtype dtype, int64_t index)
{
    const struct format f = format_of(dtype);
    const int size = (1 + f.mantissa + f.exponent) / 8; // u32 counts as f32, i8 as f8_e4m3
    const unsigned char *at = (const unsigned char *) base + index * size;
    uint32_t bits = at[0];
    if (size > 1)
        bits |= (uint32_t) at[1] << 8;
    if (size > 2)
        bits |= (uint32_t) at[2] << 16 | (uint32_t) at[3] << 24;
    return ref_decode(bits, dtype);
}

void ref_store(void *base, clinfer_dtype dtype, int64_t index, double x)
{
    const size_t size = clinfer_dtype_size(dtype);
    const uint32_t bits = ref_encode(x, dtype);
    memcpy((unsigned char *) base + (size_t) index * size, &bits, size);
}

float ref_quantize_group(const float *x, int64_t n, float upper, double *codes)
{
    float amax = 0;
    for (int64_t i = 0; i < n; i++)
        amax = isfinite(x[i]) && fabsf(x[i]) > amax ? fabsf(x[i]) : amax;
    const float scale = (amax < upper ? amax : upper) / 448.0f;
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    for (int64_t i = 0; i < n; i++) {
        float y = x[i];  // infinities saturate, NaN stays
        if (isfinite(y)) // an overflowing 1 / scale counts as none
            y = isfinite(inverse) && inverse > 0 ? y * inverse : 0.0f;
        codes[i] = ref_round(y, CLINFER_F8_E4M3);
    }
    return scale;
}

unsigned char *ref_at(const clinfer_tensor *t, int64_t i, int64_t j, int64_t k)
{
    const int64_t index[CLINFER_MAX_RANK] = { i, j, k, 0 };
    int64_t at = 0, dense = 1;
    for (int axis = t->rank - 1; axis >= 0; axis--) {
        // The last stride is 1, so a last stride of 0 says that all are left to us.
        at += index[axis] * (t->stride[t->rank - 1] ? t->stride[axis] : dense);
        dense *= t->shape[axis];
    }
    if (!t->mem) // it has no elements
        return NULL;
    return (unsigned char *) t->mem + t->offset + (size_t) at * clinfer_dtype_size(t->dtype);
}

double ref_get(const clinfer_tensor *t, int64_t i, int64_t j, int64_t k)
{
    return ref_load(ref_at(t, i, j, k), t->dtype, 0);
}

uint32_t ref_u32(const clinfer_tensor *t, int64_t i, int64_t j)
{
    uint32_t value;
    memcpy(&value, ref_at(t, i, j, 0), sizeof value);
    return value;
}

double *ref_alloc(int64_t n)
{
    double *p = calloc(n > 0 ? (size_t) n : 1, sizeof *p);
    if (!p)
        abort();
    return p;
}
