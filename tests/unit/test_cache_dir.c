// SPDX-License-Identifier: Apache-2.0
// The cache's folder: which one, when it is refused, and what happens when writers meet, fail or die.
#include "cache_fixture.h"
#include "env.h"

#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>

TestSuite(cache_dir, .init = set_up, .fini = tear_down, .timeout = 120);

// The cache stays off, and the reason mentions `word`.
static void expect_refused(const char *dir, bool read_only, const char *word)
{
    struct clf_cache cache;
    char why[512];
    struct clf_blob blob;
    clf_cache_open(&cache, dir, read_only, 0, NULL, why, sizeof why);
    cr_expect_not(cache_enabled(&cache), "%s", dir);
    cr_expect_not_null(strstr(why, word), "%s: %s", dir, why);
    cr_expect_not(clf_cache_get(&cache, KEY, &blob));
    cr_expect_not(clf_cache_put(&cache, KEY, "x", 1, why, sizeof why));
    clf_cache_drop(&cache, KEY);
    clf_cache_close(&cache);
}

Test(cache_dir, refused)
{
    char path[160], error[256];
    cr_assert_eq(mkdir(folder, 0700), 0);
    snprintf(path, sizeof path, "%s/link", root);
    cr_assert_eq(symlink(folder, path), 0);
    expect_refused(path, false, "symbolic");
    strcat(path, "/");
    expect_refused(path, false, "symbolic");
    snprintf(path, sizeof path, "%s/file", root);
    write_file(path, "x", 1);
    expect_refused(path, false, "not a folder");
    strcat(path, "/below");
    expect_refused(path, false, "not a folder");
    static const mode_t modes[] = { 0720, 0702, 01777 };
    for (size_t i = 0; i < sizeof modes / sizeof modes[0]; i++) {
        char mode[8];
        snprintf(mode, sizeof mode, "%04o", (unsigned) modes[i]);
        cr_assert_eq(chmod(folder, modes[i]), 0);
        expect_refused(folder, false, mode);
        expect_refused(folder, false, folder);
        cr_assert_eq(clinfer_cache_clear(folder, NULL, error, sizeof error), CLINFER_ERR_FILE);
        cr_assert_not_null(strstr(error, mode));
    }
    cr_assert_eq(chmod(folder, 0700), 0);
    if (geteuid() == 0) {
        cr_assert_eq(chown(folder, 65534, 65534), 0);
        expect_refused(folder, false, "65534");
    } else {
        left_out("somebody else's folder left out: only root can make one");
    }
    char longer[5000];
    memset(longer, 'a', sizeof longer);
    longer[0] = '/';
    longer[sizeof longer - 1] = 0;
    expect_refused(longer, false, "too long");
}

Test(cache_dir, parents_are_made)
{
    char path[160];
    struct stat st;
    snprintf(path, sizeof path, "%s/a/b//c/", root);
    expect_refused(path, true, "No such file");
    struct clf_cache cache = open_cache(path, false, 0);
    put_text(&cache, KEY, "one");
    clf_cache_close(&cache);
    snprintf(path, sizeof path, "%s/a", root);
    cr_assert_eq(stat(path, &st), 0);
    cr_assert_eq(st.st_mode & 07777, 0700);
    snprintf(path, sizeof path, "%s/a/b/c", root);
    cr_assert_eq(count_files(path, ".clb", NULL, 0), 1);
}

Test(cache_dir, folder_without_write_permission)
{
    struct clf_cache cache = open_cache(folder, false, 0);
    char why[256];
    put_text(&cache, KEY, "one");
    cr_assert_eq(chmod(folder, 0500), 0);
    if (geteuid() == 0) {
        // permission bits do not bind root
        cr_assert_eq(chown(folder, 65534, 65534), 0);
        cr_assert_eq(chmod(root, 0755), 0);
        char path[256];
        count_files(folder, ".clb", path, sizeof path);
        cr_assert_eq(chown(path, 65534, 65534), 0);
        cr_assert_eq(seteuid(65534), 0);
    }
    cr_assert_eq(get_text(&cache, KEY, "one"), 1);
    cr_assert_not(clf_cache_put(&cache, OTHER_KEY, "two", 3, why, sizeof why));
    cr_assert_not_null(strstr(why, "Permission denied"), "%s", why);
    clf_cache_close(&cache);
    char below[160];
    snprintf(below, sizeof below, "%s/below", folder);
    expect_refused(below, false, "Permission denied");
    if (getuid() == 0)
        cr_assert_eq(seteuid(0), 0);
    chmod(folder, 0700);
}

static char path_now[512];
static const char *path_for(const char *cache_dir)
{
    const clinfer_status status = clinfer_cache_path(cache_dir, path_now, sizeof path_now);
    return status == CLINFER_OK ? path_now : status == CLINFER_ERR_FILE ? "none" : "error";
}

Test(cache_dir, environment)
{
    struct clf_cache cache;
    char why[256], small[8];
    setenv("CLINFER_CACHE_DIR", "/given/", 1);
    setenv("XDG_CACHE_HOME", "/xdg", 1);
    setenv("HOME", "/home/me", 1);
    cr_expect_str_eq(path_for("/argument"), "/argument");
    cr_expect_str_eq(path_for(""), "none");
    cr_expect_str_eq(path_for(NULL), "/given");
    setenv("CLINFER_CACHE_DIR", "", 1);
    cr_expect_str_eq(path_for(NULL), "none");
    clf_cache_open(&cache, NULL, false, 0, NULL, why, sizeof why);
    cr_expect(!cache_enabled(&cache) && why[0] == 0, "off is no fault: %s", why);
    unsetenv("CLINFER_CACHE_DIR");
    cr_expect_str_eq(path_for(NULL), "/xdg/clinfer");
    cr_expect_eq(clinfer_cache_path(NULL, small, sizeof small), CLINFER_ERR_ARGUMENT);
    cr_expect_eq(clinfer_cache_path(NULL, NULL, 0), CLINFER_ERR_ARGUMENT);
    setenv("XDG_CACHE_HOME", "relative", 1);
    cr_expect_str_eq(path_for(NULL), "/home/me/.cache/clinfer");
    setenv("XDG_CACHE_HOME", "", 1);
    cr_expect_str_eq(path_for(NULL), "/home/me/.cache/clinfer");
    unsetenv("XDG_CACHE_HOME");
    setenv("HOME", "me", 1);
    cr_expect_str_eq(path_for(NULL), "none");
    unsetenv("HOME");
    clf_cache_open(&cache, NULL, false, 0, NULL, why, sizeof why);
    cr_expect(!cache_enabled(&cache) && strstr(why, "HOME"), "%s", why);
    setenv("XDG_CACHE_HOME", root, 1);
    cache = open_cache(NULL, false, 0);
    put_text(&cache, KEY, "one");
    clf_cache_close(&cache);
    cr_expect_eq(count_files(path_for(NULL), ".clb", NULL, 0), 1);
}

// Run as a set-user-id program (below), this file answers by its exit status before Criterion starts.
__attribute__((constructor)) static void answer_as_raised(void)
{
    if (getenv("CLINFER_TEST_RAISED"))
        _exit(clf_getenv("CLINFER_TEST_RAISED") ? 41 : 42);
}

Test(cache_dir, setuid_program_has_no_environment)
{
    setenv("CLINFER_TEST_RAISED", "1", 1);
    cr_assert_not_null(clf_getenv("CLINFER_TEST_RAISED"));
    if (geteuid() != 0) {
        left_out("only root can make somebody else's program");
        return;
    }
    char command[512];
    snprintf(command, sizeof command,
             "cp /proc/%ld/exe %s/x && chown 65534 %s/x && chmod 4755 %s/x && %s/x 2>/dev/null",
             (long) getpid(), root, root, root, root);
    const int status = system(command); // NOLINT: a fixed command
    cr_assert(WIFEXITED(status));
    if (WEXITSTATUS(status) != 41 && WEXITSTATUS(status) != 42)
        left_out("the program does not start (%d)", WEXITSTATUS(status));
    else
        cr_assert_eq(WEXITSTATUS(status), 42);
}

static void put_too_much(void)
{
    static const char large[1 << 20];
    struct clf_cache cache = open_cache(folder, false, 0);
    char why[256];
    put_text(&cache, KEY, "one");
    cr_assert_not(clf_cache_put(&cache, OTHER_KEY, large, sizeof large, why, sizeof why));
    cr_assert(strstr(why, "too large") || strstr(why, "No space"), "%s", why);
    cr_assert_eq(count_files(folder, "", NULL, 0), 1, "half an entry stays");
    cr_assert_eq(get_text(&cache, KEY, "one"), 1);
    clf_cache_close(&cache);
}

static void limit_files(void)
{
    cr_assert_eq(setrlimit(RLIMIT_FSIZE, &(struct rlimit){ 65536, 65536 }), 0);
}

Test(cache_dir, file_limit_with_its_signal_ignored)
{
    signal(SIGXFSZ, SIG_IGN);
    limit_files();
    put_too_much();
}

// The signal's default is to end the process.
Test(cache_dir, file_limit_does_not_kill)
{
    signal(SIGXFSZ, SIG_DFL);
    limit_files();
    put_too_much();
    sigset_t blocked;
    sigprocmask(SIG_SETMASK, NULL, &blocked);
    cr_assert_not(sigismember(&blocked, SIGXFSZ));
}

Test(cache_dir, full_disk)
{
    // In a mount namespace of this process alone, so that nobody else sees the disk.
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("none", root, "tmpfs", 0, "size=256k,mode=0700") != 0) {
        left_out("no right to mount a small disk");
        return;
    }
    put_too_much();
    cr_assert_eq(umount2(root, MNT_DETACH), 0);
}

// Payloads of 4 to 64 KiB that give themselves away when torn or mixed.
enum { LARGEST = 65536 };
static size_t fill(unsigned char *data, unsigned seed)
{
    const size_t size = 4096 + seed * 7919u % (LARGEST - 4096);
    for (size_t i = 0; i < size; i++)
        data[i] = (unsigned char) (seed + i);
    return size;
}

static bool is_whole(const struct clf_blob *blob, unsigned seeds)
{
    static unsigned char data[LARGEST];
    for (unsigned seed = 0; seed < seeds; seed++)
        if (fill(data, seed) == blob->size && memcmp(data, blob->data, blob->size) == 0)
            return true;
    return false;
}

static const char *key_of(unsigned number)
{
    static char key[64];
    snprintf(key, sizeof key, "op=test\nnumber=%u\n", number);
    return key;
}

// A writer: puts the shared key 0 and its own; returns the number of failures.
static int write_many(unsigned own, unsigned times)
{
    static unsigned char data[LARGEST];
    struct clf_cache cache = open_cache(folder, false, 0);
    int failures = 0;
    char why[256];
    for (unsigned i = 0; i < times; i++) {
        const size_t size = fill(data, i % 10);
        failures += !clf_cache_put(&cache, key_of(0), data, size, why, sizeof why);
        failures += !clf_cache_put(&cache, key_of(own), data, size, why, sizeof why);
    }
    clf_cache_close(&cache);
    return failures;
}

static pid_t start_writer(unsigned own, unsigned times)
{
    const pid_t pid = fork();
    if (pid == 0)
        _exit(write_many(own, times) ? 1 : 0);
    cr_assert_gt(pid, 0);
    return pid;
}

// Reads the three keys; returns how many were there. Each file that is there must be whole.
static unsigned read_round(struct clf_cache *cache)
{
    unsigned found = 0;
    for (unsigned k = 0; k < 3; k++) {
        struct clf_blob blob;
        if (!clf_cache_get(cache, key_of(k), &blob))
            continue;
        cr_assert(is_whole(&blob, 10), "key %u: a payload that nobody wrote", k);
        free(blob.data);
        found++;
    }
    return found;
}

static int count_damaged(void *priv, const struct clinfer_cache_entry *entry)
{
    *(unsigned *) priv += !entry->ok;
    return 0;
}

Test(cache_dir, writers_and_a_reader_at_once)
{
    struct clf_cache cache = open_cache(folder, false, 0);
    pid_t writers[2] = { start_writer(1, 200), start_writer(2, 200) };
    int status = 0, running = 2;
    unsigned damaged = 0, seen = 0;
    while (running > 0) {
        const unsigned found = read_round(&cache);
        cr_assert_geq(found, seen, "an entry was taken for damaged and removed");
        seen = found;
        cr_assert_eq(clinfer_cache_list(folder, count_damaged, &damaged, NULL, 0), CLINFER_OK);
        for (int i = 0; i < 2; i++) {
            if (writers[i] == 0 || waitpid(writers[i], &status, WNOHANG) == 0)
                continue;
            cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a put failed");
            writers[i] = 0;
            running--;
        }
    }
    cr_assert_eq(damaged, 0);
    cr_assert_eq(read_round(&cache), 3);
    cr_assert_eq(count_files(folder, "", NULL, 0), 3, "temporaries are left");
    clf_cache_close(&cache);
}

// Ages the temporaries as if their writers had died two hours ago.
static unsigned age_temporaries(void)
{
    char path[256];
    unsigned aged = 0;
    const struct timespec old = { .tv_sec = time(NULL) - 7200 };
    DIR *stream = opendir(folder);
    for (const struct dirent *item; (item = readdir(stream));) {
        if (!strstr(item->d_name, ".tmp"))
            continue;
        snprintf(path, sizeof path, "%s/%.64s", folder, item->d_name);
        cr_assert_eq(utimensat(AT_FDCWD, path, (const struct timespec[2]){ old, old }, 0), 0);
        aged++;
    }
    closedir(stream);
    return aged;
}

Test(cache_dir, killed_writers)
{
    struct clf_cache cache = open_cache(folder, false, 0);
    unsigned damaged = 0;
    for (unsigned i = 0; i < 100; i++) {
        const pid_t pid = start_writer(1, 1000000);
        nanosleep(&(struct timespec){ 0, (long) (1000000 + i * 37000) }, NULL);
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
        read_round(&cache);
        cr_assert_eq(clinfer_cache_list(folder, count_damaged, &damaged, NULL, 0), CLINFER_OK);
        cr_assert_eq(damaged, 0);
    }
    // One for certain, whatever the timing above left behind.
    char path[256];
    snprintf(path, sizeof path, "%s/new-0123456789abcdef.tmp", folder);
    write_file(path, "half", 4);
    const unsigned left = count_files(folder, ".tmp", NULL, 0);
    put_text(&cache, KEY, "one");
    cr_assert_eq(count_files(folder, ".tmp", NULL, 0), left, "a writer at work lost its file");
    cr_assert_eq(age_temporaries(), left);
    put_text(&cache, KEY, "two");
    cr_assert_eq(count_files(folder, ".tmp", NULL, 0), 0);
    cr_log_info("%u temporaries of killed writers", left - 1);
    clf_cache_close(&cache);
}
