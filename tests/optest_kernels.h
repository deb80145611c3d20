// SPDX-License-Identifier: Apache-2.0
// Small kernels over the files of cl/lib, which stand in the folder that CLINFER_CL_SRC (cl) names.
#ifndef CLINFER_TESTS_OPTEST_KERNELS_H_
#define CLINFER_TESTS_OPTEST_KERNELS_H_

#include "optest.h"

struct fk_program {
    struct ot_device d;
    cl_program program;
};

struct fk_argument {
    void *data;
    size_t bytes;
    cl_mem mem;
};

// decode, encode, tails, pairs, copies and quotients for one format, on vectors of 4, 8 or 16 lanes: an item
// takes one.
struct fk_program fk_build(const char *format, int lanes, int rounded);
void fk_release(struct fk_program *p);
// Buffers are written, passed in order and followed by n, and read back.
void fk_launch(const struct fk_program *p, const char *name, struct fk_argument *args, cl_uint num_args,
               cl_uint n, size_t items);
void *fk_allocated(size_t bytes); // of 0xFF

#endif
