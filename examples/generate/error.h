// SPDX-License-Identifier: Apache-2.0
// Why something failed. Functions that take one return false with its text set, and leave it alone otherwise.
#ifndef GENERATE_ERROR_H_
#define GENERATE_ERROR_H_

#include <stdbool.h>

struct error {
    char text[512];
};

// Formats the text, control characters as '?' since it may quote a file, and returns false.
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
bool fail(struct error *error, const char *format, ...);

#endif
