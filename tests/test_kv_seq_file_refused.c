// SPDX-License-Identifier: Apache-2.0
// Files of sequences that are damaged or of another pool, and disks that are full: an error, and nothing
// changed.
#include <dirent.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include "seq_file_fixture.h"

TestSuite(kv_seq_file_refused, .init = set_up, .fini = tear_down, .timeout = 300);

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
    cr_assert(!memcmp(&before, &after, sizeof before), "%s: the pool has changed", error);
    expect_sound(pool);
}

// Cut at every byte, or one bit flipped, each of the head and one of each later byte: refused, every time.
Test(kv_seq_file_refused, damaged)
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
Test(kv_seq_file_refused, pieces_swapped)
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
Test(kv_seq_file_refused, other_pools)
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
Test(kv_seq_file_refused, not_saved)
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
