// SPDX-License-Identifier: Apache-2.0
// Sequences saved and loaded again: into other pages and types, by the reference's rounding.
#include <pthread.h>

#include "seq_file_fixture.h"

TestSuite(kv_seq_file, .init = set_up, .fini = tear_down, .timeout = 300);

static const char *const names[] = { "K", "V" };

// Each head of `to` is that of `from`, bit for bit where types and groups are equal, else as the reference
// stores its values.
static void expect_stored(const struct sequence *from, const struct sequence *to, int64_t layers, bool mla,
                          int which)
{
    static unsigned char want_row[4096], want_scales[4096];
    cr_assert_eq(from->length, to->length);
    for (int64_t layer = 0; layer < layers; layer++)
        for (int part = 0; part < (mla ? 1 : 2); part++) {
            const struct ref_plane a = plane_of(from, layer, part), b = plane_of(to, layer, part);
            struct ref_plane want = b; // one slot of one page
            want.blocks = want_row;
            want.scales = b.scales ? want_scales : NULL;
            want.page_size = 1;
            want.num_heads = 1;
            const size_t size = clinfer_dtype_size(b.dtype) * (size_t) b.head_size;
            for (int64_t t = 0; t < from->length; t++)
                for (int64_t h = 0; h < a.num_heads; h++) {
                    double x[64];
                    const int64_t page_a = from->pages[t / a.page_size], page_b = to->pages[t / b.page_size];
                    ref_read_head(&a, page_a, t % a.page_size, h, x);
                    ref_write_head(&want, 0, 0, 0, x, 0, b.head_size);
                    const unsigned char *expect = want_row;
                    if (a.dtype == b.dtype && a.group == b.group && !a.scales == !b.scales)
                        expect = ref_head_at(&a, page_a, t % a.page_size, h);
                    const unsigned char *got = ref_head_at(&b, page_b, t % b.page_size, h);
                    cr_assert(!memcmp(got, expect, size), "pair %d, layer %d, %s, token %d, head %d", which,
                              (int) layer, names[part], (int) t, (int) h);
                    if (!b.scales)
                        continue;
                    double y[64], z[64];
                    ref_read_head(&b, page_b, t % b.page_size, h, y);
                    ref_read_head(&want, 0, 0, 0, z);
                    for (int64_t i = 0; i < b.head_size; i++)
                        cr_assert((isnan(y[i]) && isnan(z[i])) || y[i] == z[i],
                                  "pair %d, layer %d, %s, token %d: %g, want %g", which, (int) layer,
                                  names[part], (int) t, y[i], z[i]);
                }
        }
}

#define F32  CLINFER_F32
#define F16  CLINFER_F16
#define BF16 CLINFER_BF16
#define F8   CLINFER_F8_E4M3

// Types and pages of a pool; head sizes are 12, and V's 20 where it has a type of its own.
struct kind {
    clinfer_dtype dtype, v_dtype;
    int64_t scale_group, page_size;
};

static struct clinfer_kv_pool_params params_of(const struct kind *k, bool mla, bool apart, int64_t tokens)
{
    return (struct clinfer_kv_pool_params){ .mla = mla,
                                            .num_layers = 2,
                                            .num_heads = mla ? 1 : 2,
                                            .head_size = 12,
                                            .v_head_size = apart ? 20 : 0,
                                            .page_size = k->page_size,
                                            .dtype = k->dtype,
                                            .v_dtype = k->v_dtype,
                                            .scale_group = k->scale_group,
                                            .num_pages = tokens / k->page_size + 8 };
}

Test(kv_seq_file, into_other_pages_and_types)
{
    static const struct {
        struct kind from, to;
        bool mla, apart;
        int64_t length;
    } list[] = {
        { { F32, 0, 0, 16 }, { F32, 0, 0, 7 }, false, false, 300 },
        { { BF16, 0, 0, 3 }, { BF16, 0, 0, 64 }, true, false, 257 },
        { { F8, 0, 8, 5 }, { F8, 0, 8, 16 }, false, false, 256 },
        { { F8, F16, 4, 5 }, { F8, F16, 4, 1 }, false, true, 30 },
        { { F32, 0, 0, 16 }, { BF16, 0, 0, 16 }, false, false, 260 },
        { { F16, 0, 0, 4 }, { F8, 0, 8, 6 }, false, false, 33 },
        { { BF16, 0, 0, 4 }, { F8, 0, 0, 6 }, true, false, 33 },
        { { F8, 0, 8, 4 }, { F8, 0, 4, 6 }, false, false, 33 },
        { { F8, 0, 0, 4 }, { F8, 0, 4, 6 }, true, false, 33 },
        { { F8, 0, 8, 4 }, { F32, 0, 0, 6 }, false, false, 33 },
        { { F8, 0, 0, 4 }, { F16, 0, 0, 6 }, false, false, 33 },
        { { F8, BF16, 8, 4 }, { F16, F8, 8, 6 }, false, true, 33 },
        { { F16, F16, 0, 4 }, { F16, F32, 0, 4 }, false, true, 0 },
    };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++) {
        const struct clinfer_kv_pool_params a = params_of(&list[i].from, list[i].mla, list[i].apart,
                                                          list[i].length),
                                            b = params_of(&list[i].to, list[i].mla, list[i].apart,
                                                          list[i].length);
        clinfer_kv_pool *from = pool_of(&a), *to = pool_of(&b);
        clinfer_kv_seq loaded, other = new_seq(to, 2 * list[i].to.page_size + 1);
        fill(from, 2, list[i].mla);
        clinfer_kv_seq seq = new_seq(from, 0), first = new_seq(from, 1);
        ok(clinfer_kv_seq_extend(from, seq, list[i].length));
        ok(clinfer_kv_seq_save(from, seq, path));
        ok(clinfer_kv_seq_load(to, path, &loaded));
        expect_sound(from);
        expect_sound(to);
        struct sequence s = sequence_of(from, seq), t = sequence_of(to, loaded);
        expect_stored(&s, &t, 2, list[i].mla, (int) i);
        free(s.image);
        free(t.image);
        ok(clinfer_kv_seq_free(from, first));
        ok(clinfer_kv_seq_free(to, other));
        clinfer_kv_pool_destroy(&from);
        clinfer_kv_pool_destroy(&to);
    }
}

// Ids and salt come along: the prefix is found in the other pool, pages of three.
Test(kv_seq_file, tokens)
{
    struct clinfer_kv_pool_params params = small;
    clinfer_kv_pool *from = pool_of(&small);
    params.page_size = 3;
    clinfer_kv_pool *to = pool_of(&params);
    clinfer_kv_seq seq, found;
    int64_t length;
    uint32_t tokens[6];
    save_small(from);
    ok(clinfer_kv_seq_load(to, path, &seq));
    ok(clinfer_kv_seq_tokens(to, seq, tokens, 6, &length));
    cr_assert(length == 4 && !memcmp(tokens, prompt, 4 * sizeof *tokens));
    ok(clinfer_kv_seq_free(to, seq));
    ok(clinfer_kv_seq_match(to, clinfer_kv_match_params(.tokens = prompt, .count = 6, .salt = 77), &found,
                            &length));
    cr_assert_eq(length, 3);
    ok(clinfer_kv_seq_match(to, clinfer_kv_match_params(.tokens = prompt, .count = 6), &found, &length));
    cr_assert_eq(length, 0);
    expect_sound(to);
    clinfer_kv_pool_destroy(&from);
    clinfer_kv_pool_destroy(&to);
}

static void *open_later(void *gate)
{
    usleep(50 * 1000);
    clSetUserEventStatus(gate, CL_COMPLETE);
    return NULL;
}

// Rows that the device has yet to store when they are saved, and pages that it still uses when others are
// loaded into them: both calls wait.
Test(kv_seq_file, steps_in_flight)
{
    static const cl_half row[] = { 1, 2, 3 };
    clinfer_kv_pool *pool = pool_of(&small);
    const clinfer_kv_seq seq = new_seq(pool, 1);
    cl_command_queue side = new_queue(ctx, 0);
    clinfer_kv_pool_batch batch;
    for (int turn = 0; turn < 2; turn++) {
        cl_int err;
        pthread_t thread;
        cl_event gate = clCreateUserEvent(clinfer_ctx_cl_context(ctx), &err);
        clinfer_kv_seq loaded;
        uint32_t page;
        int64_t n;
        ok(clinfer_kv_seq_pages(pool, seq, &page, 1, &n));
        ok(clinfer_kv_batch_create(pool,
                                   clinfer_kv_batch_params(.queue = side, .num_seqs = 1, .seqs = &seq,
                                                           .new_tokens = &(int64_t){ 0 }),
                                   &batch));
        const clinfer_kv_cache kv = clinfer_kv_pool_layer(pool, 0);
        ok((clinfer_status) clEnqueueWriteBuffer(side, kv.mem, CL_FALSE,
                                                 kv.offset + (size_t) (page * kv.page_stride) * 2, sizeof row,
                                                 row, 1, &gate, NULL));
        ok(clinfer_kv_batch_commit(pool, batch, 0, NULL));
        cr_assert_eq(pthread_create(&thread, NULL, open_later, gate), 0);
        if (!turn)
            ok(clinfer_kv_seq_save(pool, seq, path));
        ok(clinfer_kv_seq_load(pool, path, &loaded));
        struct sequence s = sequence_of(pool, loaded);
        const struct ref_plane k = plane_of(&s, 0, false);
        cr_assert(!memcmp(ref_head_at(&k, s.pages[0], 0, 0), row, sizeof row), "saved before it was stored");
        free(s.image);
        cr_assert_eq(pthread_join(thread, NULL), 0);
        ok((clinfer_status) clFinish(side));
        clReleaseEvent(gate);
    }
    clReleaseCommandQueue(side);
    clinfer_kv_pool_destroy(&pool);
}
