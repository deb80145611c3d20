# SPDX-License-Identifier: Apache-2.0
"""Changes to pieces of cl/lib that several kernels share, and reasons that several give."""

# lib/paged.clh
FIND_TOKEN = ("lib/paged.clh", "c->row_offsets[middle + 1] > t", "c->row_offsets[middle + 1] >= t")
FIND_ROW = ("lib/paged.clh", "*row = page * c->page_stride", "*row = (uint) (page * c->page_stride)")
PADDING = ("lib/paged.clh", "if (low >= c->requests || c->row_offsets[low] > t)\n        return false;",
           "low = min(low, c->requests - 1u);")
TABLE_END = ("lib/paged.clh", "if (position < rows)", "if (position <= rows)")
# lib/paged_values.clh
FIND_KEY = ("lib/paged_values.clh", "p->key = page * c->page_stride", "p->key = (uint) (page * c->page_stride)")

# lib/rotate.clh, lib/rope.clh, lib/sections.clh
ROTATE_RE = ("lib/rotate.clh", "*re = fma(x, c, -(y * s));", "*re = fma(x, c, y * s);")
ROTATE_IM = ("lib/rotate.clh", "*im = fma(x, s, y * c);", "*im = fma(x, s, -(y * c));")
PRIVATE_RE = ("lib/rope.clh", "fma(x, cosine[p], -(y * sine[p]))", "fma(x, cosine[p], y * sine[p])")
PRIVATE_IM = ("lib/rope.clh", "fma(x, sine[p], y * cosine[p])", "fma(x, sine[p], -(y * cosine[p]))")
ANGLES = ("lib/rope.clh", "freqs + position * stride", "freqs + (position + 1) * stride")
SECTION = ("lib/sections.clh", "if (2 * p < section_end(s))", "if (2 * p <= section_end(s))")

# Formats and quantisation
F8_SIGN = ("lib/f8_e4m3.clh", "sign = (u >> 24) & 0x80u", "sign = (u >> 24) & 0x00u")
F8_DECODED_SIGN = ("lib/f8_e4m3.clh", "as_floatn(x | (u & 0x80000000u))", "as_floatn(x)")
F8_ROUND = ("lib/f8_e4m3.clh", "(a + 0x7ffffu + ((a >> 20) & 1u)) >> 20", "a >> 20")
F8_TIES = ("lib/f8_e4m3.clh", "(a + 0x7ffffu + ((a >> 20) & 1u)) >> 20", "(a + 0x80000u) >> 20")
F8_BOUND = ("lib/f8_e4m3.clh", "min(magnitude, (uintn) 0x43e00000u)", "magnitude")
BF16_ROUND = ("lib/bf16.clh", "select(u + 0x7fffu + ((u >> 16) & 1u),", "select(u,")
PUT_TAIL = ("lib/format.clh", "            p[i] = lane[i];", "            if (i < n - 1) p[i] = lane[i];")
ROW_AMAX = ("lib/quant.clh", "divide(amax_of(x, n), 448.0f)", "divide(amax_of(x, n), 440.0f)")
GROUP_AMAX = ("lib/local_row.clh", "min(as_float(scales[g]), bound), 448.0f", "min(as_float(scales[g]), bound), 440.0f")
WEIGHT_SCALE = ("lib/weights.clh", "first_lanes(w * lanes_of_weight_scales(m->scales + row / ROW_BLOCK * m->scales_stride, k, k + n, COLUMN_BLOCK), n)", "w")

# lib/norm_cast.clh, lib/norm_rows.clh, lib/silu.clh, lib/merge.clh
NORM_OFFSET = ("lib/norm_cast.clh", "(gamma, n) + FORMAT(GAMMA_T, round)", "(gamma, n) - FORMAT(GAMMA_T, round)")
NORM_CAST = ("lib/norm_cast.clh", "CAST_FIRST ? FORMAT(GAMMA_T, round)(x * r) : x * r", "x * r")
NORM_WEIGHT = ("lib/norm_rows.clh", "norm_weight(gamma + i,", "norm_weight(gamma + i + 1,")
SILU_SIGN = ("lib/silu.clh", "exp2_lanes(-fabs(x)", "exp2_lanes(fabs(x)")
SILU_BASE = ("lib/silu.clh", "1.44269504088896340736f", "1.0f")
MERGE_SIGN = ("lib/merge.clh", "exp(lse_a - shift)", "exp(shift - lse_a)")
MERGE_SHARE = ("lib/merge.clh", "s.a = a / sum;", "s.a = a;")
MERGE_EMPTY = ("lib/merge.clh", "(s.seen_a ? a * s.a : (floatn) 0.0f)", "(a * s.a)")

# Reductions of a work-group
REDUCTION = ("lib/group.clh", "            barrier(CLK_LOCAL_MEM_FENCE);" + 59 * " " + "\\\n        }", "        }")
SCALES_BARRIER = ("lib/local_row.clh",
                  "    barrier(CLK_LOCAL_MEM_FENCE);\n    for (int g = ITEM; g < groups; g += GROUP_ITEMS) {\n",
                  "    for (int g = ITEM; g < groups; g += GROUP_ITEMS) {\n")

NO_BARRIER = "no barriers in the row set"
ALONE = "no barrier: its items share nothing"
NOT_FP8 = "nothing saturates: the output is f32, f16 or bf16"
WORKSPACE = "its own indices pass 32 bits only in a workspace of 2^32 floats"
CLBLAST_32 = "CLBlast counts in 32 bits: the engine gives larger products to matmul"
NO_LANES_LEFT = "with <= for < the last step has no lane, and does nothing"
TWICE = "find_token and `valid` agree on padding: either alone keeps it out"
EXACT = "decoding is exact, and nothing else rounds"
IN_F32 = "f32 throughout: what is cached is decoded exactly"
