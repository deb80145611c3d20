// SPDX-License-Identifier: Apache-2.0
// A folder of its own for each test, and the smallest op run in contexts that say what became of its program.
#ifndef CLINFER_TESTS_PROGRAMS_FIXTURE_H_
#define CLINFER_TESTS_PROGRAMS_FIXTURE_H_

#include <criterion/criterion.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rig.h"

#define OP "rms_norm_kv_cache"

static char root[64], folder[96]; // root/cache

static inline void set_up(void)
{
    snprintf(root, sizeof root, "/tmp/clinfer-test-XXXXXX");
    cr_assert_not_null(mkdtemp(root));
    snprintf(folder, sizeof folder, "%s/cache", root);
    unsetenv("CLINFER_CL_DIR");
}

static inline int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void) st, (void) type, (void) ftw;
    return remove(path);
}

static inline void tear_down(void)
{
    nftw(root, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline int take_entry(void *priv, const struct clinfer_cache_entry *entry)
{
    *(struct clinfer_cache_entry *) priv = *entry;
    return 0;
}

static inline int count_entry(void *priv, const struct clinfer_cache_entry *entry)
{
    ((int *) priv)[entry->ok != 0]++;
    return 0;
}

// Entries of the folder that are whole; none may be damaged.
static inline int entries(void)
{
    int count[2] = { 0, 0 };
    cr_assert_eq(clinfer_cache_list(folder, count_entry, count, NULL, 0), CLINFER_OK);
    cr_assert_eq(count[0], 0, "%d damaged entries", count[0]);
    return count[1];
}

// The op in a context of these params: right results, and the statistics before destroy saves. False:
// something is not right; for children too, hence without assertions.
static inline bool run_in(const struct clinfer_ctx_params *params, bool save, struct clinfer_ctx_stats *stats)
{
    clinfer_ctx *ctx;
    struct rig r;
    struct clinfer_ctx_params unchecked = *params;
    unchecked.no_self_check = 1;
    if (clinfer_ctx_create(&ctx, &unchecked))
        return false;
    rig_make(&r, OP, NULL);
    bool ok = !rig_run(&r, ctx) && (!save || !clinfer_ctx_save(ctx));
    rig_reference(&r);
    ok = ok && rig_same(&r);
    clinfer_ctx_stats(ctx, stats);
    rig_free(&r);
    clinfer_ctx_destroy(&ctx);
    return ok;
}

static inline void expect_run(const struct clinfer_ctx_params *params, uint64_t compiled, uint64_t loaded,
                              uint64_t stored)
{
    struct clinfer_ctx_stats s;
    cr_assert(run_in(params, true, &s), "the op fails");
    cr_assert(s.compiled == compiled && s.loaded == loaded && s.stored == stored,
              "compiled %d loaded %d stored %d, want %d %d %d", (int) s.compiled, (int) s.loaded,
              (int) s.stored, (int) compiled, (int) loaded, (int) stored);
}

// In a process of its own, started before this one has seen OpenCL.
static inline pid_t start_child(uint64_t compiled, uint64_t loaded, uint64_t stored)
{
    const pid_t child = fork();
    if (child == 0) {
        struct clinfer_ctx_stats s;
        const bool ok = run_in(&(struct clinfer_ctx_params){ .cache_dir = folder }, true, &s);
        _exit(!ok ? 1 : s.compiled != compiled ? 2 : s.loaded != loaded ? 3 : s.stored != stored ? 4 : 0);
    }
    return child;
}

static inline int end_child(pid_t child)
{
    int status = -1;
    cr_assert_eq(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#endif
