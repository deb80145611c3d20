// SPDX-License-Identifier: Apache-2.0
// Compiled programs on disk and in a caller's store: what is loaded, what is compiled again, and what a
// driver is given of it.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>

#include "layer_use.h"
#include "programs_fixture.h"

TestSuite(programs, .init = set_up, .fini = tear_down, .timeout = 300);

Test(programs, another_process_loads)
{
    cr_assert_eq(end_child(start_child(1, 0, 1)), 0);
    cr_assert_eq(entries(), 1);
    cr_assert_eq(end_child(start_child(0, 1, 0)), 0);
    cr_assert_eq(end_child(start_child(0, 1, 0)), 0);
    cr_assert_eq(entries(), 1);
}

Test(programs, two_cold_processes_at_once)
{
    const pid_t a = start_child(1, 0, 1), b = start_child(1, 0, 1);
    const int x = end_child(a), y = end_child(b);
    // The second may have come late enough to load.
    cr_assert((x == 0 || x == 2) && (y == 0 || y == 2) && x + y < 4, "%d %d", x, y);
    cr_assert_eq(entries(), 1);
    cr_assert_eq(end_child(start_child(0, 1, 0)), 0);
}

// A writer that dies at any moment leaves whole entries or none.
Test(programs, killed_while_saving)
{
    for (int i = 0; i < 8; i++) {
        const pid_t child = fork();
        if (child == 0) {
            struct clinfer_ctx_stats s;
            for (;;) {
                run_in(&(struct clinfer_ctx_params){ .cache_dir = folder }, true, &s);
                clinfer_cache_clear(folder, NULL, NULL, 0);
            }
        }
        usleep(150 * 1000 + 37 * 1000 * (useconds_t) i);
        kill(child, SIGKILL);
        cr_assert_eq(end_child(child), -SIGKILL);
        cr_assert_leq(entries(), 1);
    }
    struct clinfer_ctx_stats s;
    cr_assert(run_in(&(struct clinfer_ctx_params){ .cache_dir = folder }, true, &s));
    cr_assert_eq(s.compiled + s.loaded, 1);
}

// The only entry, damaged or not.
static size_t read_entry(char *path, size_t path_size, unsigned char **data)
{
    struct clinfer_cache_entry entry = { 0 };
    cr_assert_eq(clinfer_cache_list(folder, take_entry, &entry, NULL, 0), CLINFER_OK);
    cr_assert_str_eq(entry.op, entry.ok ? OP : "");
    snprintf(path, path_size, "%s/%s", folder, entry.name);
    FILE *f = fopen(path, "rb");
    cr_assert(f && (*data = malloc(entry.bytes)));
    cr_assert_eq(fread(*data, 1, entry.bytes, f), entry.bytes);
    fclose(f);
    return entry.bytes;
}

static void write_entry(const char *path, const unsigned char *data, size_t size)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    cr_assert_geq(fd, 0);
    cr_assert_eq(write(fd, data, size), (ssize_t) size);
    close(fd);
}

// Cut or flipped anywhere: the driver is given none of it, and the op is compiled.
Test(programs, damaged_entries)
{
    enum { SAMPLES = 12 };
    const struct layer_control *layer;
    unsigned char *good;
    char path[256];
    LAYER_OR_SKIP(layer);
    const struct clinfer_ctx_params params = { .cache_dir = folder },
                                    reader = { .cache_dir = folder, .cache_read_only = 1 };
    expect_run(&params, 1, 0, 1);
    const size_t size = read_entry(path, sizeof path, &good);
    cr_assert_gt(size, 1000);
    layer->enable(1);
    for (int i = 0; i <= 2 * SAMPLES; i++) {
        const bool cut = i < SAMPLES;
        const size_t at = i == 2 * SAMPLES
                              ? size - 1
                              : size / SAMPLES * (size_t) (i % SAMPLES) + (size_t) (i % SAMPLES * 3);
        unsigned char *bad = malloc(size);
        memcpy(bad, good, size);
        bad[at] ^= (unsigned char) (1u << i % 8);
        write_entry(path, bad, cut ? at : size);
        free(bad);
        layer->arm(NULL, 0, 0);
        expect_run(&reader, 1, 0, 0);
        cr_assert_eq(layer->calls("clCreateProgramWithBinary"), 0, "%s at %zu: given to the driver",
                     cut ? "cut" : "flipped", at);
    }
    // A context that may write replaces it.
    expect_run(&params, 1, 0, 1);
    cr_assert_eq(entries(), 1);
    layer->arm(NULL, 0, 0);
    expect_run(&params, 0, 1, 0);
    cr_assert_eq(layer->calls("clCreateProgramWithBinary"), 1);
    free(good);
}

Test(programs, read_only)
{
    struct stat before, after;
    unsigned char *data, *again;
    char path[256];
    const struct clinfer_ctx_params reader = { .cache_dir = folder, .cache_read_only = 1 };
    expect_run(&reader, 1, 0, 0);
    cr_assert_eq(access(folder, F_OK), -1, "the folder was made");
    expect_run(&(struct clinfer_ctx_params){ .cache_dir = folder }, 1, 0, 1);
    const size_t size = read_entry(path, sizeof path, &data);
    cr_assert_eq(stat(path, &before), 0);
    expect_run(&reader, 0, 1, 0);
    cr_assert_eq(stat(path, &after), 0);
    cr_assert(before.st_mtim.tv_sec == after.st_mtim.tv_sec &&
              before.st_mtim.tv_nsec == after.st_mtim.tv_nsec);
    data[size / 2] ^= 1;
    write_entry(path, data, size);
    expect_run(&reader, 1, 0, 0); // and the damaged entry stays
    cr_assert_eq(read_entry(path, sizeof path, &again), size);
    cr_assert_arr_eq(again, data, size);
    free(data);
    free(again);
}

Test(programs, off_and_too_small)
{
    setenv("CLINFER_CACHE_DIR", folder, 1);
    expect_run(&(struct clinfer_ctx_params){ .cache_dir = "" }, 1, 0, 0);
    cr_assert_eq(access(folder, F_OK), -1);
    expect_run(&(struct clinfer_ctx_params){ .cache_max_bytes = 100 }, 1, 0, 0);
    cr_assert_eq(entries(), 0);
    expect_run(&(struct clinfer_ctx_params){ 0 }, 1, 0, 1); // the environment's folder
    cr_assert_eq(entries(), 1);
    setenv("CLINFER_CACHE_DIR", "", 1);
    expect_run(&(struct clinfer_ctx_params){ 0 }, 1, 0, 0);
}

// A caller's store: one entry, and what it hands out in its place.
struct store {
    char key[CLINFER_CACHE_KEY_SIZE], asked[CLINFER_CACHE_KEY_SIZE];
    unsigned char *entry;
    size_t size, cut, flip; // handed out with so many bytes less, or with the byte before this one flipped
    int gets, puts;
};

static size_t store_get(void *priv, const char *key, void **entry)
{
    struct store *s = priv;
    s->gets++;
    snprintf(s->asked, sizeof s->asked, "%s", key);
    if (!s->entry || s->cut >= s->size)
        return 0;
    *entry = malloc(s->size);
    memcpy(*entry, s->entry, s->size);
    if (s->flip)
        ((unsigned char *) *entry)[s->flip - 1] ^= 0x40;
    return s->size - s->cut;
}

static void store_put(void *priv, const char *key, const void *entry, size_t size)
{
    struct store *s = priv;
    s->puts++;
    snprintf(s->key, sizeof s->key, "%s", key);
    free(s->entry);
    s->entry = malloc(size);
    memcpy(s->entry, entry, size);
    s->size = size;
}

Test(programs, callers_store)
{
    const struct layer_control *layer;
    struct store store = { .gets = 0 };
    LAYER_OR_SKIP(layer);
    const struct clinfer_ctx_params params = { .cache_dir = folder,
                                               .kernel_set = CLINFER_SET_ROW,
                                               .store = { store_get, store_put, &store } };
    expect_run(&params, 1, 0, 1);
    cr_assert_eq(store.gets, 1);
    cr_assert_eq(store.puts, 1);
    cr_assert_str_eq(store.key, store.asked);
    cr_assert_eq(strspn(store.key, "0123456789abcdef"), 32);
    cr_assert_eq(access(folder, F_OK), -1, "a store takes the folder's place");
    expect_run(&params, 0, 1, 0);
    cr_assert_eq(store.puts, 1);
    struct clinfer_ctx_params reader = params;
    reader.cache_read_only = 1;
    layer->enable(1);
    for (size_t i = 0; i < 12; i++) {
        layer->arm(NULL, 0, 0);
        store.cut = i % 2 ? 1 + i * store.size / 13 : 0;
        store.flip = i % 2 ? 0 : 1 + i * store.size / 13;
        expect_run(&reader, 1, 0, 0);
        cr_assert_eq(layer->calls("clCreateProgramWithBinary"), 0, "cut %zu, flip %zu", store.cut,
                     store.flip);
    }
    // A whole entry, of another program: its key is not the one asked for.
    store.cut = store.flip = 0;
    reader.kernel_set = CLINFER_SET_GROUP;
    layer->arm(NULL, 0, 0);
    expect_run(&reader, 1, 0, 0);
    cr_assert_str_neq(store.key, store.asked);
    cr_assert_eq(layer->calls("clCreateProgramWithBinary"), 0);
    cr_assert_eq(store.puts, 1, "read-only");
    free(store.entry);
}

// A store of one half: it can be filled without being read, and read without being filled.
Test(programs, half_a_store)
{
    struct store store = { .gets = 0 };
    expect_run(&(struct clinfer_ctx_params){ .store = { NULL, store_put, &store } }, 1, 0, 1);
    cr_assert_eq(store.puts, 1);
    expect_run(&(struct clinfer_ctx_params){ .store = { store_get, NULL, &store } }, 0, 1, 0);
    cr_assert_eq(store.gets, 1);
    free(store.entry);
}
