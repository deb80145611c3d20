// SPDX-License-Identifier: Apache-2.0
// Calls made up from a line of text: what `clinfer check` and `clinfer dump` call the ops with.
#ifndef CLINFER_TOOLS_SYNTH_H_
#define CLINFER_TOOLS_SYNTH_H_

#include "opcase.h"

enum { SYNTH_MAX_REQUESTS = 8 };

// The requests of a call and the cache around them.
struct synth_batch {
    const char *name;
    int64_t page_size, layers, layer;
    int64_t padding; // rows of T past the last request
    int requests;
    struct {
        int64_t cached, fresh; // tokens
    } request[SYNTH_MAX_REQUESTS];
    bool loose; // on the device: at odd offsets, with gaps between rows and between pages
};

// `text` is "KEY=VALUE ..." in any order. The name of a tensor gives its type: a required one is F32 where
// nothing is said, an optional one is there where it is named. Another letter is the extent of an axis of the
// op's table; the batch brings T, B, O, M, P, S, L and F. Other keys are the metadata of a case file.
struct synth {
    const char *op, *name, *text;
};

// A call as a case file with these contents would give it; op_case_free() ends it. The data is random, but
// the same for the same names. What the op may not read, padding and unused slots, is NaN. False: `error`
// says why.
bool synth_case(const struct synth *s, const struct synth_batch *batch, struct op_case *c, char *error,
                size_t error_size);

#endif
