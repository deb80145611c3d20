// SPDX-License-Identifier: Apache-2.0
// Entries: what is put comes back whole or not at all; what the folder keeps and what it drops.
#include "cache_entry.h"
#include "cache_fixture.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <xxhash.h>

TestSuite(program_cache, .init = set_up, .fini = tear_down, .timeout = 60);

Test(program_cache, round_trip_and_persistence)
{
    struct clf_cache cache = open_cache(folder, false, 0);
    cr_assert_eq(get_text(&cache, KEY, "x"), 0);
    put_text(&cache, KEY, "one");
    put_text(&cache, OTHER_KEY, "two");
    cr_assert_eq(get_text(&cache, KEY, "one"), 1);
    put_text(&cache, KEY, "one again, longer");
    put_text(&cache, "", "");
    clf_cache_close(&cache);
    cr_assert_not(cache_enabled(&cache));

    cache = open_cache(folder, true, 0);
    cr_assert_eq(get_text(&cache, KEY, "one again, longer"), 1);
    cr_assert_eq(get_text(&cache, OTHER_KEY, "two"), 1);
    cr_assert_eq(get_text(&cache, "", ""), 1);
    clf_cache_close(&cache);

    struct stat st;
    char path[256];
    cr_assert_eq(count_files(folder, "", NULL, 0), 3);
    cr_assert_eq(count_files(folder, ".clb", path, sizeof path), 3);
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_mode & 07777, 0600);
    cr_assert_eq(stat(folder, &st), 0);
    cr_assert_eq(st.st_mode & 07777, 0700);
}

Test(program_cache, drop)
{
    struct clf_cache cache = open_cache(folder, false, 0);
    put_text(&cache, KEY, "one");
    clf_cache_drop(&cache, OTHER_KEY);
    cr_assert_eq(get_text(&cache, KEY, "one"), 1);
    clf_cache_drop(&cache, KEY);
    cr_assert_eq(count_files(folder, "", NULL, 0), 0);
    clf_cache_close(&cache);
}

Test(program_cache, truncated_flipped_extended)
{
    struct clf_cache cache = open_cache(folder, false, 0);
    unsigned char good[512], bad[512];
    char path[256];
    put_text(&cache, KEY, "payload");
    cr_assert_eq(count_files(folder, ".clb", path, sizeof path), 1);
    const size_t size = read_file(path, good, sizeof good);
    cr_assert_eq(size, 40 + strlen(KEY) + 7);
    for (size_t n = 0; n < size; n++) {
        write_file(path, good, n);
        cr_assert_eq(get_text(&cache, KEY, "payload"), 0, "cut at %zu", n);
        cr_assert_eq(access(path, F_OK), -1, "a damaged entry stays");
    }
    for (size_t bit = 0; bit < 8 * size; bit++) {
        memcpy(bad, good, size);
        bad[bit / 8] ^= (unsigned char) (1u << bit % 8);
        write_file(path, bad, size);
        cr_assert_eq(get_text(&cache, KEY, "payload"), 0, "bit %zu", bit);
        cr_assert_eq(access(path, F_OK), -1, "a damaged entry stays");
    }
    memcpy(bad, good, size);
    bad[size] = 0;
    write_file(path, bad, size + 1);
    cr_assert_eq(get_text(&cache, KEY, "payload"), 0);
    write_file(path, good, size);
    cr_assert_eq(get_text(&cache, KEY, "payload"), 1);
    clf_cache_close(&cache);
}

static int note_ok(void *priv, const struct clinfer_cache_entry *entry)
{
    int *seen = priv;
    seen[entry->ok != 0]++;
    cr_assert(entry->ok || !(entry->op[0] || entry->device[0]));
    return 0;
}

Test(program_cache, another_keys_entry)
{
    struct clf_cache cache = open_cache(folder, false, 0);
    unsigned char good[512];
    char path[256], other[256];
    int seen[2] = { 0, 0 };
    put_text(&cache, "op=a\n", "payload");
    count_files(folder, ".clb", path, sizeof path);
    const size_t size = read_file(path, good, sizeof good);
    unlink(path);
    put_text(&cache, "op=b\n", "other");
    count_files(folder, ".clb", other, sizeof other);
    cr_assert_str_neq(path, other);
    write_file(other, good, size);
    cr_assert_eq(clinfer_cache_list(folder, note_ok, seen, NULL, 0), CLINFER_OK);
    cr_assert(seen[0] == 1 && seen[1] == 0, "listed as whole under the wrong name");
    cr_assert_eq(get_text(&cache, "op=b\n", "payload"), 0);
    clf_cache_close(&cache);
}

// Lengths that lie under a hash that holds must not lead past the entry's end, nor leave bytes over.
Test(program_cache, lengths_that_lie)
{
    static const uint64_t lies[][2] = { { 3, 4 },          { 3, 6 },
                                        { 2, 5 },          { 4, 5 },
                                        { 0, 0 },          { 3, UINT64_MAX },
                                        { 4, UINT64_MAX }, { 9, UINT64_MAX },
                                        { UINT32_MAX, 5 }, { UINT32_MAX, UINT64_MAX },
                                        { 9, 0 } };
    struct clf_blob blob;
    struct clf_entry entry;
    cr_assert(clf_entry_make("key", "12345", 5, &blob));
    for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
        XXH128_canonical_t hash;
        for (unsigned b = 0; b < 8; b++) {
            if (b < 4)
                blob.data[28 + b] = (unsigned char) (lies[i][0] >> 8 * b);
            blob.data[32 + b] = (unsigned char) (lies[i][1] >> 8 * b);
        }
        XXH128_canonicalFromHash(&hash, XXH3_128bits(blob.data + 24, blob.size - 24));
        memcpy(blob.data + 8, hash.digest, sizeof hash.digest);
        cr_assert_not(clf_entry_verify(blob.data, blob.size, &entry), "case %zu", i);
    }
    free(blob.data);
}

static void make_socket(const char *path)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    cr_assert_lt((size_t) snprintf(address.sun_path, sizeof address.sun_path, "%s", path),
                 sizeof address.sun_path);
    const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    cr_assert_eq(bind(fd, (const struct sockaddr *) &address, sizeof address), 0);
    close(fd);
}

enum odd {
    ODD_EMPTY,
    ODD_FOLDER,
    ODD_LINK,
    ODD_FIFO,
    ODD_SOCKET,
    ODD_MODE,
    ODD_UNREADABLE,
    ODD_OWNER,
    ODD_COUNT
};

// Puts something else, or the good bytes under wrong rights, in the place of an entry.
static void make_odd(enum odd kind, const char *path, const unsigned char *good, size_t size)
{
    char target[128];
    snprintf(target, sizeof target, "%s/target", root);
    write_file(target, good, size);
    if (kind >= ODD_MODE)
        write_file(path, good, size);
    switch (kind) {
    case ODD_EMPTY:
        write_file(path, "", 0);
        break;
    case ODD_FOLDER:
        cr_assert_eq(mkdir(path, 0700), 0);
        break;
    case ODD_LINK:
        cr_assert_eq(symlink(target, path), 0);
        break;
    case ODD_FIFO:
        cr_assert_eq(mkfifo(path, 0600), 0);
        break;
    case ODD_SOCKET:
        make_socket(path);
        break;
    case ODD_MODE:
        cr_assert_eq(chmod(path, 0620), 0);
        break;
    case ODD_UNREADABLE:
        cr_assert_eq(chmod(path, 0), 0);
        break;
    default:
        cr_assert_eq(chown(path, 65534, 65534), 0);
        break;
    }
}

Test(program_cache, oddities_in_an_entrys_place)
{
    struct clf_cache cache = open_cache(folder, false, 0);
    unsigned char good[512];
    char path[256], why[256];
    put_text(&cache, KEY, "payload");
    count_files(folder, ".clb", path, sizeof path);
    const size_t size = read_file(path, good, sizeof good);
    for (int kind = 0; kind < ODD_COUNT; kind++) {
        if (geteuid() == 0 ? kind == ODD_UNREADABLE : kind == ODD_OWNER) {
            left_out("kind %d left out for user %lu", kind, (unsigned long) geteuid());
            continue;
        }
        int seen[2] = { 0, 0 };
        unlink(path);
        make_odd((enum odd) kind, path, good, size);
        cr_assert_eq(clinfer_cache_list(folder, note_ok, seen, why, sizeof why), CLINFER_OK, "%s", why);
        cr_assert(seen[0] == 1 && seen[1] == 0, "kind %d listed as whole", kind);
        cr_assert_eq(get_text(&cache, KEY, "payload"), 0, "kind %d", kind);
        if (kind != ODD_FOLDER) {
            put_text(&cache, KEY, "anew");
            cr_assert_eq(get_text(&cache, KEY, "anew"), 1, "kind %d", kind);
            continue;
        }
        cr_assert_not(clf_cache_put(&cache, KEY, "anew", 4, why, sizeof why));
        cr_assert_neq(why[0], 0);
        cr_assert_eq(count_files(folder, ".tmp", NULL, 0), 0);
        cr_assert_eq(clinfer_cache_clear(folder, NULL, why, sizeof why), CLINFER_ERR_FILE);
        cr_assert_eq(rmdir(path), 0);
    }
    clf_cache_close(&cache);
}

Test(program_cache, read_only_changes_nothing)
{
    struct clf_cache cache = open_cache(folder, false, 0);
    char path[256], why[256];
    struct stat before, after;
    put_text(&cache, KEY, "payload");
    clf_cache_close(&cache);
    count_files(folder, ".clb", path, sizeof path);
    cr_assert_eq(stat(path, &before), 0);
    cache = open_cache(folder, true, 0);
    cr_assert_eq(get_text(&cache, KEY, "payload"), 1);
    cr_assert_not(clf_cache_put(&cache, OTHER_KEY, "x", 1, why, sizeof why));
    cr_assert_not_null(strstr(why, "read-only"));
    clf_cache_drop(&cache, KEY);
    cr_assert_eq(stat(path, &after), 0);
    cr_assert_eq(memcmp(&before.st_mtim, &after.st_mtim, sizeof before.st_mtim), 0);
    write_file(path, "damaged", 7);
    cr_assert_eq(get_text(&cache, KEY, "payload"), 0);
    cr_assert_eq(count_files(folder, "", NULL, 0), 1);
    clf_cache_close(&cache);
}

static void put_sized(struct clf_cache *cache, const char *key, size_t size, bool stored)
{
    static const char zeros[4096];
    char why[256];
    cr_assert_eq(clf_cache_put(cache, key, zeros, size, why, sizeof why), stored, "%s", why);
    cr_assert_eq(why[0] == 0, stored);
}

static bool has(struct clf_cache *cache, const char *key)
{
    struct clf_blob blob;
    const bool found = clf_cache_get(cache, key, &blob);
    free(blob.data);
    return found;
}

Test(program_cache, least_recently_used_goes_first)
{
    // Entries of 1041 bytes each: header 40, key 1, payload 1000.
    struct clf_cache cache = open_cache(folder, false, 3 * 1041);
    put_sized(&cache, "a", 1000, true);
    put_sized(&cache, "b", 1000, true);
    put_sized(&cache, "c", 1000, true);
    cr_assert_eq(count_files(folder, "", NULL, 0), 3, "a full cache is within its bounds");
    cr_assert(has(&cache, "a")); // now the order is b c a
    put_sized(&cache, "d", 1000, true);
    cr_assert(!has(&cache, "b") && has(&cache, "c") && has(&cache, "a") && has(&cache, "d"));
    put_sized(&cache, "c", 1000, true); // replaced, not added: a d c
    cr_assert_eq(count_files(folder, "", NULL, 0), 3);
    put_sized(&cache, "e", 2000, true);
    cr_assert(!has(&cache, "a") && !has(&cache, "d") && has(&cache, "c") && has(&cache, "e"));
    put_sized(&cache, "f", 3 * 1041 - 41, true);
    cr_assert(has(&cache, "f"));
    cr_assert_eq(count_files(folder, "", NULL, 0), 1);
    put_sized(&cache, "g", 3 * 1041 - 40, false);
    cr_assert(has(&cache, "f") && !has(&cache, "g"));
    clf_cache_close(&cache);
}

// A clock that was set back must not cost the entry just written.
Test(program_cache, the_new_entry_stays)
{
    struct clf_cache cache = open_cache(folder, false, 1041);
    const struct timespec later = { .tv_sec = time(NULL) + 3600 };
    char path[256];
    put_sized(&cache, "a", 1000, true);
    count_files(folder, ".clb", path, sizeof path);
    cr_assert_eq(utimensat(AT_FDCWD, path, (const struct timespec[2]){ later, later }, 0), 0);
    put_sized(&cache, "b", 1000, true);
    cr_assert(has(&cache, "b") && !has(&cache, "a"));
    clf_cache_close(&cache);
}

static int note_text(void *priv, const struct clinfer_cache_entry *entry)
{
    char *text = priv;
    snprintf(text + strlen(text), 512 - strlen(text), "%s|%s|%d;", entry->op, entry->device, entry->ok);
    return strcmp(entry->op, "kv_copy") == 0;
}

Test(program_cache, list_and_clear)
{
    char text[512] = "", path[256], error[256];
    unsigned removed = 7;
    cr_assert_eq(clinfer_cache_list(folder, note_text, text, NULL, 0), CLINFER_OK);
    cr_assert_eq(clinfer_cache_clear(folder, &removed, NULL, 0), CLINFER_OK);
    cr_assert_eq(removed, 0);
    cr_assert_eq(access(folder, F_OK), -1, "a look makes no folder");
    struct clf_cache cache = open_cache(folder, false, 0);
    put_text(&cache, KEY, "one");
    put_text(&cache, OTHER_KEY, "two");
    put_text(&cache, "op=third", "past the end of the visit");
    cr_assert_eq(clinfer_cache_list(folder, note_text, text, error, sizeof error), CLINFER_OK);
    cr_assert_str_eq(text, "fused_qk_rope|A CPU, fast|1;kv_copy|A CPU, slow|1;");
    cr_assert_eq(clinfer_cache_list(folder, NULL, NULL, NULL, 0), CLINFER_ERR_ARGUMENT);

    static const char *const ours[] = { "new-0123456789abcdef.tmp", "0123456789abcdef0123456789abcdef.clb" };
    static const char *const others[] = { "notes.txt", "new-0123.tmp", "0123456789abcdef0123456789abcde.clb",
                                          "0123456789ABCDEF0123456789ABCDEF.clb",
                                          "0123456789abcdef0123456789abcdef.clb.bak" };
    for (size_t i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, ours[i]);
        write_file(path, "x", 1);
    }
    for (size_t i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s/%s", folder, others[i]);
        write_file(path, "x", 1);
    }
    cr_assert_eq(clinfer_cache_clear(folder, &removed, error, sizeof error), CLINFER_OK);
    cr_assert_eq(removed, 4);
    cr_assert_eq(count_files(folder, "", NULL, 0), 5);
    clf_cache_close(&cache);
}

struct box {
    char key[64];
    unsigned char entry[512];
    size_t size;
};

static size_t box_get(void *priv, const char *key, void **entry)
{
    const struct box *box = priv;
    if (box->size == 0 || strcmp(key, box->key) != 0)
        return 0;
    *entry = malloc(box->size);
    memcpy(*entry, box->entry, box->size);
    return box->size;
}

static void box_put(void *priv, const char *key, const void *entry, size_t size)
{
    struct box *box = priv;
    cr_assert_leq(size, sizeof box->entry);
    snprintf(box->key, sizeof box->key, "%s", key);
    memcpy(box->entry, entry, size);
    box->size = size;
}

Test(program_cache, callbacks)
{
    struct box box = { .size = 0 };
    struct clf_cache cache;
    char why[256];
    clf_cache_open(&cache, folder, false, 16, &(clinfer_program_store){ box_get, box_put, &box }, why,
                   sizeof why);
    cr_assert(cache_enabled(&cache));
    cr_assert_eq(access(folder, F_OK), -1, "callbacks and a folder");
    cr_assert_eq(get_text(&cache, KEY, "one"), 0);
    put_text(&cache, KEY, "one");
    cr_assert_eq(strlen(box.key), CLINFER_CACHE_KEY_SIZE - 1);
    cr_assert_eq(get_text(&cache, KEY, "one"), 1);
    cr_assert_eq(get_text(&cache, OTHER_KEY, "one"), 0);
    for (size_t bit = 0; bit < 8 * box.size; bit++) {
        box.entry[bit / 8] ^= (unsigned char) (1u << bit % 8);
        cr_assert_eq(get_text(&cache, KEY, "one"), 0, "bit %zu", bit);
        box.entry[bit / 8] ^= (unsigned char) (1u << bit % 8);
    }
    for (const size_t size = box.size; box.size-- > 0;)
        cr_assert_eq(get_text(&cache, KEY, "one"), 0, "%zu of %zu bytes", box.size, size);
    clf_cache_drop(&cache, KEY);
    clf_cache_close(&cache);

    box.size = 0;
    clf_cache_open(&cache, folder, true, 0, &(clinfer_program_store){ box_get, box_put, &box }, why,
                   sizeof why);
    cr_assert_not(clf_cache_put(&cache, KEY, "one", 3, why, sizeof why));
    cr_assert_eq(box.size, 0);
    clf_cache_close(&cache);
    clf_cache_open(&cache, folder, false, 0, &(clinfer_program_store){ .put = box_put, .priv = &box }, why,
                   sizeof why);
    cr_assert_not(cache_enabled(&cache));
    put_text(&cache, KEY, "one");
    cr_assert_eq(get_text(&cache, KEY, "one"), 0);
    clf_cache_close(&cache);
}
