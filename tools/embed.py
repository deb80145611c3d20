# SPDX-License-Identifier: Apache-2.0
"""embed.py OUT.c CL_DIR IN... : kernel files as byte arrays, since string literals have a length limit."""
import os
import sys

out, root, *paths = sys.argv[1:]
names = []
with open(out, "w") as f:
    f.write('#include "source.h"\n')
    for i, path in enumerate(paths):
        with open(path, "rb") as src:
            data = src.read()
        names.append((os.path.relpath(path, root), len(data)))
        f.write(f"static const unsigned char file{i}[] = {{{','.join(map(str, data))}}};\n")
    f.write("const struct clf_embedded clf_embedded[] = {\n")
    for i, (name, size) in enumerate(names):
        f.write(f'    {{ "{name}", file{i}, {size} }},\n')
    f.write("};\nconst int clf_num_embedded = (int) (sizeof clf_embedded / sizeof clf_embedded[0]);\n")
