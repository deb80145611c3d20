// SPDX-License-Identifier: Apache-2.0
// A test that is left out, and why.
#ifndef CLINFER_TESTS_SKIP_H_
#define CLINFER_TESTS_SKIP_H_

#include <criterion/criterion.h>
#include <stdio.h>

// Criterion says why a test is skipped only where it is asked to say much; summary.py counts these lines.
#define SKIP(suite, ...)                                                                                     \
    do {                                                                                                     \
        (void) fprintf(stderr, "[SKIP] " suite ": " __VA_ARGS__);                                            \
        (void) fputc('\n', stderr);                                                                          \
        cr_skip_test(__VA_ARGS__);                                                                           \
    } while (0)

#endif
