// SPDX-License-Identifier: Apache-2.0
// Numbers of 8 and 16 bits.
#include "weights.h"

#include <math.h>
#include <string.h>

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

uint16_t weights_to_bf16(float x)
{
    const uint32_t bits = bits_of(x);
    if (isnan(x))
        return (uint16_t) (bits >> 16 | 0x40);
    return (uint16_t) ((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// |x| in a format of this many mantissa bits whose smallest normal number is 2^least: the code counts steps
// of the format from 0, so that a mantissa which rounds up past its end carries into the exponent.
static uint32_t narrow(float x, int mantissa, int least)
{
    int exponent;
    (void) frexpf(x, &exponent); // x = fraction * 2^exponent with a fraction in [1/2, 1)
    exponent = x == 0 || exponent - 1 < least ? least : exponent - 1;
    const uint32_t steps = (uint32_t) nearbyintf(ldexpf(fabsf(x), mantissa - exponent)); // to nearest even
    return steps + ((uint32_t) (exponent - least) << mantissa);
}

uint16_t weights_to_f16(float x)
{
    enum { INFINITY_CODE = 0x7c00 };
    const uint32_t sign = bits_of(x) >> 16 & 0x8000;
    if (isnan(x))
        return (uint16_t) (sign | 0x7e00);
    const uint32_t code = fabsf(x) < 65536 ? narrow(x, 10, -14) : INFINITY_CODE;
    return (uint16_t) (sign | code);
}

uint8_t weights_to_e4m3(float x)
{
    enum { NAN_CODE = 0x7f, LARGEST_CODE = 0x7e }; // 448
    const uint32_t sign = bits_of(x) >> 24 & 0x80;
    if (isnan(x))
        return (uint8_t) (sign | NAN_CODE);
    return (uint8_t) (sign | (fabsf(x) < 448 ? narrow(x, 3, -6) : LARGEST_CODE));
}

float weights_from_f16(uint16_t code)
{
    const int exponent = code >> 10 & 0x1f, fraction = code & 0x3ff;
    const float sign = code & 0x8000 ? -1 : 1;
    if (exponent == 0x1f)
        return fraction ? NAN : sign * INFINITY;
    return sign * ldexpf((float) (exponent ? fraction | 0x400 : fraction), (exponent ? exponent : 1) - 25);
}
