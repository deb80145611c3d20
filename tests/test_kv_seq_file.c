// SPDX-License-Identifier: Apache-2.0
// Sequences saved and loaded again: into other pages and types, by the reference's rounding; files that are
// damaged, and disks that are full.
#include <criterion/criterion.h>
#include <dirent.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "calls_fixture.h"

static char root[64], path[128];
static clinfer_ctx *ctx;

static void set_up(void)
{
    snprintf(root, sizeof root, "/tmp/clinfer-seq-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
    snprintf(path, sizeof path, "%s/seq", root);
    ctx = open_ctx(NULL);
}

static void tear_down(void)
{
    clinfer_ctx_destroy(&ctx);
    unlink(path);
    rmdir(root);
}

TestSuite(kv_seq_file, .init = set_up, .fini = tear_down, .timeout = 300);

static void ok(clinfer_status st)
{
    char error[512];
    clinfer_ctx_error(ctx, error, sizeof error);
    cr_assert_eq(st, CLINFER_OK, "%s: %s", clinfer_status_str(st), error);
}

static clinfer_kv_pool *pool_of(const struct clinfer_kv_pool_params *params)
{
    clinfer_kv_pool *pool;
    ok(clinfer_kv_pool_create(&pool, ctx, params));
    return pool;
}

static void expect_sound(clinfer_kv_pool *pool)
{
    char error[256];
    cr_assert(clinfer_kv_pool_check(pool, error, sizeof error), "%s", error);
}

// A pool on the host: where the reference finds it, and back.
static unsigned char *image_of(clinfer_kv_pool *pool, size_t *bytes)
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

static struct sequence sequence_of(clinfer_kv_pool *pool, clinfer_kv_seq seq)
{
    struct sequence s = { .pool = pool };
    s.image = image_of(pool, &s.bytes);
    ok(clinfer_kv_seq_length(pool, seq, &s.length));
    ok(clinfer_kv_seq_pages(pool, seq, s.pages, 512, &s.count));
    return s;
}

static struct ref_plane plane_of(const struct sequence *s, int64_t layer, bool v)
{
    clinfer_kv_cache kv = v ? clinfer_kv_pool_layer_v(s->pool, layer) : clinfer_kv_pool_layer(s->pool, layer);
    kv.mem = (cl_mem) (void *) s->image;
    kv.scales = kv.scale_group ? kv.mem : NULL;
    return ref_plane_of(&kv, 0, 0);
}

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

// Every row of the pool, drawn from a seed, with a few numbers that are none.
static void fill(clinfer_kv_pool *pool, int64_t layers, bool mla)
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

static clinfer_kv_seq new_seq(clinfer_kv_pool *pool, int64_t tokens)
{
    clinfer_kv_seq seq;
    ok(clinfer_kv_seq_create(pool, &seq));
    ok(clinfer_kv_seq_extend(pool, seq, tokens));
    return seq;
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

static const struct clinfer_kv_pool_params small = { .num_layers = 2,
                                                     .num_heads = 1,
                                                     .head_size = 3,
                                                     .page_size = 2,
                                                     .dtype = CLINFER_F16,
                                                     .num_pages = 8,
                                                     .salt = 0xAB };
static const uint32_t prompt[6] = { 5, 4, 3, 2, 1, 0 };

// Of five tokens, four of them known, with a salt of its own.
static clinfer_kv_seq save_small(clinfer_kv_pool *pool)
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

static size_t read_file(unsigned char *data, size_t size)
{
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f);
    const size_t n = fread(data, 1, size, f);
    fclose(f);
    return n;
}

static void write_file(const unsigned char *data, size_t size)
{
    FILE *f = fopen(path, "wb");
    cr_assert_not_null(f);
    cr_assert_eq(fwrite(data, 1, size, f), size);
    fclose(f);
}

static void expect_refused(clinfer_kv_pool *pool, clinfer_status status, const char *a, const char *b)
{
    struct clinfer_kv_pool_info before, after;
    clinfer_kv_seq seq = 1;
    char error[512];
    clinfer_kv_pool_info(pool, &before);
    const clinfer_status st = clinfer_kv_seq_load(pool, path, &seq);
    clinfer_ctx_error(ctx, error, sizeof error);
    cr_assert_eq(st, status, "%s: %s", clinfer_status_str(st), error);
    cr_assert(seq == 0 && strstr(error, path) && strstr(error, a) && strstr(error, b), "%s, want %s, %s",
              error, a, b);
    clinfer_kv_pool_info(pool, &after);
    before.lookups = after.lookups;
    cr_assert(!memcmp(&before, &after, sizeof before), "%s: the pool has changed", error);
    expect_sound(pool);
}

// Cut at every byte, or one bit flipped, each of the head and one of each later byte: refused, every time.
Test(kv_seq_file, damaged)
{
    static unsigned char data[4096], broken[4096];
    clinfer_kv_pool *pool = pool_of(&small);
    clinfer_kv_seq seq;
    save_small(pool);
    const size_t size = read_file(data, sizeof data);
    cr_assert(size > 200 && size < 600, "%zu bytes", size);
    for (size_t n = 0; n < size; n++) {
        write_file(data, n);
        expect_refused(pool, CLINFER_ERR_FILE, "damaged", "bytes");
    }
    for (size_t bit = 0; bit < size * 8; bit += bit < 128 * 8 ? 1 : 9) {
        memcpy(broken, data, size);
        broken[bit / 8] ^= (unsigned char) (1u << bit % 8);
        write_file(broken, size);
        expect_refused(pool, CLINFER_ERR_FILE,
                       bit < 64    ? "no saved sequence"
                       : bit < 128 ? "version"
                                   : "damaged",
                       "");
    }
    memcpy(broken, data, size);
    write_file(broken, size + 1);
    expect_refused(pool, CLINFER_ERR_FILE, "damaged", "bytes");
    write_file(data, size);
    ok(clinfer_kv_seq_load(pool, path, &seq));
    clinfer_kv_pool_destroy(&pool);
}

// Pieces of one length in each other's place: each is as it was saved, but not where it was.
Test(kv_seq_file, pieces_swapped)
{
    static unsigned char data[4096], broken[4096];
    enum { PIECE = 5 * 3 * 2 + 16 }; // a layer's K: five rows of three f16, and the hash
    clinfer_kv_pool *pool = pool_of(&small);
    save_small(pool);
    const size_t size = read_file(data, sizeof data), first = size - 4 * PIECE;
    memcpy(broken, data, size);
    memcpy(broken + first, data + first + PIECE, PIECE);
    memcpy(broken + first + PIECE, data + first, PIECE);
    write_file(broken, size);
    expect_refused(pool, CLINFER_ERR_FILE, "damaged", "hash");
    clinfer_kv_pool_destroy(&pool);
}

// Pools of another shape or salt, and one that is too small.
Test(kv_seq_file, other_pools)
{
    clinfer_kv_pool *pool = pool_of(&small);
    save_small(pool);
    clinfer_kv_pool_destroy(&pool);
#define OTHER(status, a, b, ...)                                                                             \
    do {                                                                                                     \
        struct clinfer_kv_pool_params other_ = small;                                                        \
        struct clinfer_kv_pool_params *p = &other_;                                                          \
        __VA_ARGS__;                                                                                         \
        pool = pool_of(&other_);                                                                             \
        expect_refused(pool, status, a, b);                                                                  \
        clinfer_kv_pool_destroy(&pool);                                                                      \
    } while (0)
    OTHER(CLINFER_ERR_SHAPE, "mla is 0", "has 1", p->mla = 1);
    OTHER(CLINFER_ERR_SHAPE, "num_layers is 2", "has 3", p->num_layers = 3);
    OTHER(CLINFER_ERR_SHAPE, "num_heads is 1", "has 2", p->num_heads = 2);
    OTHER(CLINFER_ERR_SHAPE, "head_size is 3", "has 4", p->head_size = 4);
    OTHER(CLINFER_ERR_SHAPE, "v_head_size is 3", "has 5", p->v_head_size = 5);
    OTHER(CLINFER_ERR_ARGUMENT, "salt is 0xab", "has 0xac", p->salt++);
    OTHER(CLINFER_ERR_PAGES, "5 tokens want 3 pages", "2 are free", p->num_pages = 2);
}

// Files in the folder whose name is not `seq`.
static int strangers(void)
{
    DIR *dir = opendir(root);
    int n = 0;
    cr_assert_not_null(dir);
    for (const struct dirent *item; (item = readdir(dir));)
        n += item->d_name[0] != '.' && strcmp(item->d_name, "seq") != 0;
    closedir(dir);
    return n;
}

static void expect_unsaved(clinfer_kv_pool *pool, clinfer_kv_seq seq, const char *where,
                           clinfer_status status, const char *text)
{
    struct clinfer_kv_pool_info before, after;
    char error[512];
    clinfer_kv_pool_info(pool, &before);
    const clinfer_status st = clinfer_kv_seq_save(pool, seq, where);
    clinfer_ctx_error(ctx, error, sizeof error);
    cr_assert(st == status && strstr(error, text), "%s: %s", clinfer_status_str(st), error);
    clinfer_kv_pool_info(pool, &after);
    cr_assert(!memcmp(&before, &after, sizeof before));
    cr_assert_eq(strangers(), 0, "half a file stays");
    expect_sound(pool);
}

// A disk that is full leaves the file that was there, and nothing else; places that are none.
Test(kv_seq_file, not_saved)
{
    static unsigned char data[4096], after[4096];
    struct rlimit limit;
    char where[160];
    struct stat st;
    clinfer_kv_pool *pool = pool_of(&small);
    clinfer_kv_pool_batch batch;
    const clinfer_kv_seq seq = save_small(pool);
    const size_t size = read_file(data, sizeof data);
    cr_assert(stat(path, &st) == 0 && (st.st_mode & 0777) == 0600);
    cr_assert_eq(getrlimit(RLIMIT_FSIZE, &limit), 0);
    for (rlim_t most = 0; most < size; most += 37) {
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ most, limit.rlim_max }), 0);
        expect_unsaved(pool, seq, path, CLINFER_ERR_FILE, "too large");
        cr_assert_eq(setrlimit(RLIMIT_FSIZE, &limit), 0);
        cr_assert(read_file(after, sizeof after) == size && !memcmp(data, after, size));
    }
    snprintf(where, sizeof where, "%s/none/seq", root);
    expect_unsaved(pool, seq, where, CLINFER_ERR_FILE, "No such file");
    expect_unsaved(pool, seq, root, CLINFER_ERR_FILE, root);
    expect_unsaved(pool, seq, NULL, CLINFER_ERR_ARGUMENT, "no path");
    expect_unsaved(pool, seq + 1, path, CLINFER_ERR_ARGUMENT, "is not there");
    ok(clinfer_kv_batch_create(
        pool, clinfer_kv_batch_params(.num_seqs = 1, .seqs = &seq, .new_tokens = &(int64_t){ 0 }), &batch));
    expect_unsaved(pool, seq, path, CLINFER_ERR_ARGUMENT, "which is open");
    clinfer_kv_seq loaded;
    cr_assert_eq(clinfer_kv_seq_load(pool, NULL, &loaded), CLINFER_ERR_ARGUMENT);
    cr_assert_eq(clinfer_kv_seq_load(pool, root, &loaded), CLINFER_ERR_FILE);
    cr_assert_eq(clinfer_kv_seq_load(pool, where, &loaded), CLINFER_ERR_FILE);
    clinfer_kv_pool_destroy(&pool);
}
