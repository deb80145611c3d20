// SPDX-License-Identifier: Apache-2.0
// C11 has no way to include a file of bytes; the assembler has. DEFAULT_MODEL is its path, from meson.build.
#include "default_model.h"

__asm__(".pushsection .rodata\n"
        ".balign 64\n"
        ".global default_model, default_model_end\n"
        "default_model:\n"
        ".incbin \"" DEFAULT_MODEL "\"\n"
        "default_model_end:\n"
        ".byte 0\n"
        ".popsection\n");
