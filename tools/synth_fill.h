// SPDX-License-Identifier: Apache-2.0
// The contents of a call that was made up.
#ifndef CLINFER_TOOLS_SYNTH_FILL_H_
#define CLINFER_TOOLS_SYNTH_FILL_H_

#include "synth.h"

// Fills what the op may read of the file's tensors, and leaves all else as it is.
void synth_fill(const struct op_desc *op, const struct synth *s, const struct synth_batch *batch,
                const struct st_file *file);

#endif
