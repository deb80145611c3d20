# SPDX-License-Identifier: Apache-2.0
"""The table of sabotage.py: what breaks in each kernel, and who has to see it.

A cell is (file under cl/, text that is in it once, what takes its place, judge), or says why there is nothing of that kind. A
change may lie in cl/lib, where that piece of the kernel lies; the judge is a test of the kernel.
"""
from sabotage_group import GROUP
from sabotage_row import ROW

KINDS = ("sign", "index + 1", "< for <=", "scale", "rounding", "saturation", "64-bit cast", "mask", "barrier", "tail loop")
CELLS = {(f"{name}/{kernel}", kind): cell
         for name, kernels in (("row", ROW), ("group", GROUP)) for kernel, cells in kernels.items() for kind, cell in cells.items()}
KERNELS = [f"{name}/{kernel}" for name, kernels in (("row", ROW), ("group", GROUP)) for kernel in kernels]
