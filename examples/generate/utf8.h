// SPDX-License-Identifier: Apache-2.0
// UTF-8 as the Unicode standard has it (table 3-7): no overlong forms, no surrogates, nothing past U+10FFFF.
#ifndef GENERATE_UTF8_H_
#define GENERATE_UTF8_H_

#include <stddef.h>

// Bytes of the character at `text`, 1 to 4; 0 where the n bytes there begin with none.
size_t utf8_length(const char *text, size_t n);

// How many of the last bytes, at most 3, are the begin of a character that more bytes could end. A text that
// grows is printed without them until it does, or ends itself.
size_t utf8_incomplete(const char *text, size_t n);

#endif
