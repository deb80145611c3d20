// SPDX-License-Identifier: Apache-2.0
#include "models.h"

#include <stdio.h>
#include <stdlib.h>

const char *smollm2_path(void)
{
    static char path[4096];
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const int absolute = cache && *cache;
    snprintf(path, sizeof path, "%s%s/clinfer-models/SmolLM2-135M-Instruct.Q4_1.gguf",
             absolute ? cache
             : home   ? home
                      : "",
             absolute ? "" : "/.cache");
    return path;
}
