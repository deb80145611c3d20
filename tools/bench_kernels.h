// SPDX-License-Identifier: Apache-2.0
// Kernels that find out what a device can do. Data come from memory and go back to it, so that a compiler can
// drop nothing; vectors are under-aligned, since some CPU compilers split vloadn and vstoren.
#ifndef CLINFER_TOOLS_BENCH_KERNELS_H_
#define CLINFER_TOOLS_BENCH_KERNELS_H_

// An item moves `run` vectors, `step` apart, from vector `item * item_step` on: one piece an item on CPUs,
// neighbours in neighbouring items on GPUs.
static const char bench_bandwidth_source[] =
    "typedef float16 __attribute__((aligned(4))) vec;\n"
    "__kernel void copy(__global const vec *from, __global vec *to, ulong run, ulong step, ulong item_step)\n"
    "{\n"
    "    ulong at = get_global_id(0) * item_step;\n"
    "    for (ulong i = 0; i < run; i++, at += step)\n"
    "        to[at] = from[at];\n"
    "}\n"
    "__kernel void read(__global const vec *from, __global vec *to, ulong run, ulong step, ulong item_step)\n"
    "{\n"
    "    ulong at = get_global_id(0) * item_step;\n"
    "    float16 a = 0.0f, b = 0.0f, c = 0.0f, d = 0.0f;\n"
    "    for (ulong i = 0; i < run; i += 4, at += 4 * step) {\n"
    "        a += from[at];\n"
    "        b += from[at + step];\n"
    "        c += from[at + 2 * step];\n"
    "        d += from[at + 3 * step];\n"
    "    }\n"
    "    to[get_global_id(0)] = a + b + c + d;\n"
    "}\n"
    "__kernel void nothing(uint count) {}\n";

// Twelve chains keep two pipes of latency 4 to 6 busy; six fit where a vector takes two of 16 registers. They
// start from memory of their own, or a compiler would see that they are equal. A step of `cycles` is two
// operations that wait for each other and that no compiler can merge.
static const char bench_arithmetic_source[] =
    "typedef float16 __attribute__((aligned(4))) vec;\n"
    "#define SIX(F, n) F(n##0) F(n##1) F(n##2) F(n##3) F(n##4) F(n##5)\n"
    "#define ONCE(F) SIX(F, 0)\n"
    "#define TWICE(F) SIX(F, 0) SIX(F, 1)\n"
    "#define START(i) float16 c##i = x[i];\n"
    "#define FMA(i) c##i = fma(c##i, (float16) m, (float16) a);\n"
    "#define STORE(i) x[i] = c##i;\n"
    "#define KERNEL(name, CHAINS)                                             \\\n"
    "    __kernel void name(__global vec *data, uint rounds, float m, float a) \\\n"
    "    {                                                                    \\\n"
    "        __global vec *x = data + 16 * get_global_id(0);                  \\\n"
    "        CHAINS(START)                                                    \\\n"
    "        for (uint i = 0; i < rounds; i++) {                              \\\n"
    "            CHAINS(FMA)                                                  \\\n"
    "        }                                                                \\\n"
    "        CHAINS(STORE)                                                    \\\n"
    "    }\n"
    "KERNEL(fma6, ONCE)\n"
    "KERNEL(fma12, TWICE)\n"
    "__kernel void cycles(__global uint *data, uint rounds, uint y, uint z)\n"
    "{\n"
    "    uint x = data[0];\n"
    "    for (uint i = 0; i < rounds; i++) {\n"
    "        x = (x + y) ^ z; x = (x + y) ^ z; x = (x + y) ^ z; x = (x + y) ^ z;\n"
    "        x = (x + y) ^ z; x = (x + y) ^ z; x = (x + y) ^ z; x = (x + y) ^ z;\n"
    "    }\n"
    "    data[0] = x;\n"
    "}\n";

#endif
