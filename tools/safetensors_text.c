// SPDX-License-Identifier: Apache-2.0
// cJSON takes more than JSON, reads numbers as doubles and stops at a NUL. So the text is checked first,
// and cJSON sees nothing it could read in two ways.
#include "safetensors_header.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 16 }; // a header needs 3

struct scan {
    const unsigned char *text;
    size_t at, size;
    size_t key, key_size; // the last key of the outermost object, for messages
    char *error;
};

static bool value(struct scan *s, int depth);

bool st_fail(char *error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error, ST_ERROR, format, args);
    va_end(args);
    // Names come from the file: none of them may drive the terminal.
    for (char *c = error; *c; c++) {
        if ((unsigned char) *c < 0x20 || *c == 0x7f)
            *c = '?';
    }
    return false;
}

static bool bad(const struct scan *s, const char *what)
{
    const char *key = (const char *) s->text + s->key;
    int key_size = s->key_size < 80 ? (int) s->key_size : 80;
    if (key_size > 0)
        return st_fail(s->error, "\"%.*s\": %s, at byte %zu of %zu of the header", key_size, key, what, s->at,
                       s->size);
    return st_fail(s->error, "%s, at byte %zu of %zu of the header", what, s->at, s->size);
}

// The byte at `at` + n; past the end a NUL, which no rule accepts.
static unsigned char peek(const struct scan *s, size_t n)
{
    return n < s->size - s->at ? s->text[s->at + n] : 0;
}

static bool take(struct scan *s, unsigned char c)
{
    if (peek(s, 0) != c)
        return false;
    s->at++;
    return true;
}

static void skip_space(struct scan *s)
{
    while (peek(s, 0) == ' ' || peek(s, 0) == '\t' || peek(s, 0) == '\n' || peek(s, 0) == '\r')
        s->at++;
}

static bool is_digit(unsigned char c)
{
    return c >= '0' && c <= '9';
}

// Length of the UTF-8 sequence at `at`; 0: none. Refuses overlong forms, surrogates, past U+10FFFF.
static size_t utf8_size(const struct scan *s)
{
    unsigned char c = peek(s, 0), low = 0x80, high = 0xBF;
    if (c < 0x80)
        return 1;
    if (c < 0xC2 || c > 0xF4)
        return 0;
    size_t n = c < 0xE0 ? 2 : c < 0xF0 ? 3 : 4;
    if (c == 0xE0)
        low = 0xA0;
    else if (c == 0xED)
        high = 0x9F;
    else if (c == 0xF0)
        low = 0x90;
    else if (c == 0xF4)
        high = 0x8F;
    if (peek(s, 1) < low || peek(s, 1) > high)
        return 0;
    for (size_t i = 2; i < n; i++) {
        if ((peek(s, i) & 0xC0) != 0x80)
            return 0;
    }
    return n;
}

// The four digits of a \u escape; -1 where they are not hexadecimal.
static int hex4(struct scan *s)
{
    int code = 0;
    for (int i = 0; i < 4; i++, s->at++) {
        unsigned char c = peek(s, 0), lower = c | 0x20;
        if (is_digit(c))
            code = code * 16 + (c - '0');
        else if (lower >= 'a' && lower <= 'f')
            code = code * 16 + (lower - 'a' + 10);
        else
            return -1;
    }
    return code;
}

static bool escape(struct scan *s)
{
    s->at++;
    unsigned char c = peek(s, 0);
    if (!c || !strchr("\"\\/bfnrtu", c))
        return bad(s, "unknown escape in a string");
    s->at++;
    if (c != 'u')
        return true;
    int code = hex4(s);
    if (code < 0)
        return bad(s, "\\u without four hexadecimal digits");
    if (code == 0)
        return bad(s, "a NUL in a string");
    if (code < 0xD800 || code > 0xDFFF)
        return true;
    bool pair = code < 0xDC00 && take(s, '\\') && take(s, 'u');
    int low = pair ? hex4(s) : -1;
    return (low >= 0xDC00 && low <= 0xDFFF) || bad(s, "half of a surrogate pair");
}

static bool string(struct scan *s)
{
    if (!take(s, '"'))
        return bad(s, "a string in quotes was expected");
    while (!take(s, '"')) {
        if (s->at == s->size)
            return bad(s, "a string without an end");
        if (peek(s, 0) < 0x20)
            return bad(s, peek(s, 0) ? "a control character in a string" : "a NUL in a string");
        size_t n = utf8_size(s);
        if (!n)
            return bad(s, "invalid UTF-8");
        if (peek(s, 0) == '\\') {
            if (!escape(s))
                return false;
        } else {
            s->at += n;
        }
    }
    return true;
}

static bool number(struct scan *s)
{
    size_t n = 0;
    uint64_t v = 0;
    bool plain = true;
    for (; peek(s, n) && strchr("0123456789+-.eE", peek(s, n)); n++) {
        plain = plain && n < 16 && is_digit(peek(s, n));
        if (plain)
            v = v * 10 + (uint64_t) (peek(s, n) - '0');
    }
    if (plain && (n == 1 || peek(s, 0) != '0') && v <= ST_MAX_NUMBER) {
        s->at += n;
        return true;
    }
    char what[120];
    snprintf(what, sizeof(what), "number %.*s is not a plain whole number from 0 to %llu",
             n < 24 ? (int) n : 24, (const char *) s->text + s->at, (unsigned long long) ST_MAX_NUMBER);
    return bad(s, what);
}

static bool member(struct scan *s, int depth)
{
    size_t start = s->at;
    if (!string(s))
        return false;
    if (depth == 1) {
        s->key = start + 1;
        s->key_size = s->at - start - 2;
    }
    skip_space(s);
    if (!take(s, ':'))
        return bad(s, "a colon was expected");
    return value(s, depth);
}

// An object or an array, from its bracket on.
static bool list(struct scan *s, int depth)
{
    bool object = peek(s, 0) == '{';
    unsigned char close = object ? '}' : ']';
    if (depth > MAX_DEPTH)
        return bad(s, "nested too deep");
    s->at++;
    skip_space(s);
    if (take(s, close))
        return true;
    do {
        skip_space(s);
        if (object ? !member(s, depth) : !value(s, depth))
            return false;
        skip_space(s);
    } while (take(s, ','));
    return take(s, close) || bad(s, object ? "a comma or } was expected" : "a comma or ] was expected");
}

static bool value(struct scan *s, int depth)
{
    skip_space(s);
    unsigned char c = peek(s, 0);
    if (c == '{' || c == '[')
        return list(s, depth + 1);
    if (c == '"')
        return string(s);
    if (is_digit(c) || c == '-' || c == '+' || c == '.')
        return number(s);
    return bad(s, "an object, array, string or whole number was expected");
}

bool st_text_check(const char *text, size_t size, size_t *end, char *error)
{
    struct scan s = { (const unsigned char *) text, 0, size, 0, 0, error };
    if (peek(&s, 0) != '{')
        return st_fail(error, "the header of %zu bytes starts with byte 0x%02x, not 0x7b, an opening brace",
                       size, (unsigned) peek(&s, 0));
    if (!value(&s, 0))
        return false;
    *end = s.at;
    s.key_size = 0;
    while (take(&s, ' '))
        ;
    return s.at == s.size || bad(&s, "something other than spaces after the JSON");
}
