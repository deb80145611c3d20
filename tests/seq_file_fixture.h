// SPDX-License-Identifier: Apache-2.0
// A folder for saved sequences, and pools whose rows the reference can read and write.
#ifndef CLINFER_TESTS_SEQ_FILE_FIXTURE_H_
#define CLINFER_TESTS_SEQ_FILE_FIXTURE_H_

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "calls_fixture.h"

static char root[64], path[128];
static clinfer_ctx *ctx;

static inline void set_up(void)
{
    snprintf(root, sizeof root, "/tmp/clinfer-seq-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
    snprintf(path, sizeof path, "%s/seq", root);
    ctx = open_ctx(NULL);
}

static inline void tear_down(void)
{
    clinfer_ctx_destroy(&ctx);
    unlink(path);
    rmdir(root);
}

static inline void ok(clinfer_status st)
{
    char error[512];
    clinfer_ctx_error(ctx, error, sizeof error);
    cr_assert_eq(st, CLINFER_OK, "%s: %s", clinfer_status_str(st), error);
}

static inline clinfer_kv_pool *pool_of(const struct clinfer_kv_pool_params *params)
{
    clinfer_kv_pool *pool;
    ok(clinfer_kv_pool_create(&pool, ctx, params));
    return pool;
}

static inline void expect_sound(clinfer_kv_pool *pool)
{
    char error[256];
    cr_assert(clinfer_kv_pool_check(pool, error, sizeof error), "%s", error);
}

// A pool on the host: where the reference finds it, and back.
static inline unsigned char *image_of(clinfer_kv_pool *pool, size_t *bytes)
{
    struct clinfer_kv_pool_info info;
    clinfer_kv_pool_info(pool, &info);
    unsigned char *image = malloc(info.bytes);
    cr_assert(image && info.num_buffers == 1);
    ok((clinfer_status) clEnqueueReadBuffer(clinfer_ctx_queue(ctx), clinfer_kv_pool_layer(pool, 0).mem,
                                            CL_TRUE, 0, info.bytes, image, 0, NULL, NULL));
    *bytes = info.bytes;
    return image;
}

struct sequence {
    clinfer_kv_pool *pool;
    unsigned char *image;
    size_t bytes;
    uint32_t pages[512];
    int64_t length, count;
};

static inline struct sequence sequence_of(clinfer_kv_pool *pool, clinfer_kv_seq seq)
{
    struct sequence s = { .pool = pool };
    s.image = image_of(pool, &s.bytes);
    ok(clinfer_kv_seq_length(pool, seq, &s.length));
    ok(clinfer_kv_seq_pages(pool, seq, s.pages, 512, &s.count));
    return s;
}

static inline struct ref_plane plane_of(const struct sequence *s, int64_t layer, bool v)
{
    clinfer_kv_cache kv = v ? clinfer_kv_pool_layer_v(s->pool, layer) : clinfer_kv_pool_layer(s->pool, layer);
    kv.mem = (cl_mem) (void *) s->image;
    kv.scales = kv.scale_group ? kv.mem : NULL;
    return ref_plane_of(&kv, 0, 0);
}

// Every row of the pool, drawn from a seed, with a few numbers that are none.
static inline void fill(clinfer_kv_pool *pool, int64_t layers, bool mla)
{
    struct sequence s = { .pool = pool };
    uint64_t random = 9;
    s.image = image_of(pool, &s.bytes);
    for (int64_t layer = 0; layer < layers; layer++)
        for (int part = 0; part < (mla ? 1 : 2); part++) {
            const struct ref_plane plane = plane_of(&s, layer, part);
            for (int64_t slot = 0; slot < plane.num_pages * plane.page_size; slot++)
                for (int64_t h = 0; h < plane.num_heads; h++) {
                    double x[64];
                    for (int64_t i = 0; i < plane.head_size; i++) {
                        random = random * 6364136223846793005u + 1442695040888963407u;
                        x[i] = (double) (int32_t) (random >> 32) * 0x1p-30;
                        x[i] = random >> 20 & 255 ? x[i] : random >> 28 & 1 ? NAN : 1000 * x[i];
                    }
                    ref_write_head(&plane, slot / plane.page_size, slot % plane.page_size, h, x, 0,
                                   plane.head_size);
                }
        }
    ok((clinfer_status) clEnqueueWriteBuffer(clinfer_ctx_queue(ctx), clinfer_kv_pool_layer(pool, 0).mem,
                                             CL_TRUE, 0, s.bytes, s.image, 0, NULL, NULL));
    free(s.image);
}

static inline clinfer_kv_seq new_seq(clinfer_kv_pool *pool, int64_t tokens)
{
    clinfer_kv_seq seq;
    ok(clinfer_kv_seq_create(pool, &seq));
    ok(clinfer_kv_seq_extend(pool, seq, tokens));
    return seq;
}

static const struct clinfer_kv_pool_params small = { .num_layers = 2,
                                                     .num_heads = 1,
                                                     .head_size = 3,
                                                     .page_size = 2,
                                                     .dtype = CLINFER_F16,
                                                     .num_pages = 8,
                                                     .salt = 0xAB };
static const uint32_t prompt[6] = { 5, 4, 3, 2, 1, 0 };

// Of five tokens, four of them known, with a salt of its own.
static inline clinfer_kv_seq save_small(clinfer_kv_pool *pool)
{
    clinfer_kv_seq seq;
    int64_t length;
    fill(pool, 2, false);
    ok(clinfer_kv_seq_match(pool, clinfer_kv_match_params(.salt = 77), &seq, &length));
    ok(clinfer_kv_seq_extend(pool, seq, 5));
    ok(clinfer_kv_seq_set_tokens(pool, seq, prompt, 4));
    ok(clinfer_kv_seq_save(pool, seq, path));
    return seq;
}

#endif
