// SPDX-License-Identifier: Apache-2.0
#include "utf8.h"

// Bytes of a character that begins with this one; 0 where none does.
static size_t length_of(unsigned char first)
{
    if (first < 0x80)
        return 1;
    if (first < 0xc2 || first > 0xf4)
        return 0;
    return first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
}

// The bytes of a character that are there, from the second on, may stand in it.
static int may_follow(const unsigned char *c, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if ((c[i] & 0xc0) != 0x80)
            return 0;
    if (n < 2)
        return 1;
    return !((c[0] == 0xe0 && c[1] < 0xa0) || (c[0] == 0xed && c[1] > 0x9f) ||
             (c[0] == 0xf0 && c[1] < 0x90) || (c[0] == 0xf4 && c[1] > 0x8f));
}

size_t utf8_length(const char *text, size_t n)
{
    const unsigned char *c = (const unsigned char *) text;
    const size_t length = n ? length_of(c[0]) : 0;
    return length <= n && may_follow(c, length) ? length : 0;
}

size_t utf8_incomplete(const char *text, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; back++) {
        const unsigned char *c = (const unsigned char *) text + n - back;
        if (length_of(*c))
            return length_of(*c) > back && may_follow(c, back) ? back : 0;
    }
    return 0;
}
