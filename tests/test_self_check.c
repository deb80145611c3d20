// SPDX-License-Identifier: Apache-2.0
// Fresh programs against their known answer: what a wrong kernel set costs, who takes over, and what is
// remembered of it.
#include <pthread.h>
#include <stdatomic.h>

#include "layer_use.h"
#include "programs_fixture.h"

static const char *first, *second; // the device's set, and the one that takes over
static char device[256], dir[128]; // dir: a copy of the kernels
static const struct layer_control *layer;
static const char *no_layer;

static void set_up_sets(void)
{
    struct clinfer_device_info info;
    unsigned count;
    set_up();
    layer = layer_load(&no_layer);
    cr_assert_eq(clinfer_devices(&info, 1, &count, NULL, 0), CLINFER_OK);
    snprintf(device, sizeof device, "%s", info.device);
    first = info.set == CLINFER_SET_GROUP ? "group" : "row";
    second = info.set == CLINFER_SET_GROUP ? "row" : "group";
}

TestSuite(self_check, .init = set_up_sets, .fini = tear_down, .timeout = 300);

// Wrong signs in a rotation, and a wrong scale in a norm.
static const char *const mutation[][2] = { { "fused_qk_rope", "#define fma(a, b, c) ((a) * (b) - (c))" },
                                           { OP, "#define fma(a, b, c) (2.0f * (a) * (b) + (c))" } };

static void copy_kernels(void)
{
    char command[512];
    const char *from = getenv("CLINFER_CL_SRC");
    cr_assert_not_null(from, "CLINFER_CL_SRC does not name the kernels' folder");
    snprintf(dir, sizeof dir, "%s/cl", root);
    snprintf(command, sizeof command, "rm -rf '%s' && cp -r '%s' '%s'", dir, from, dir);
    cr_assert_eq(system(command), 0);
}

// Puts a line in front of the kernel that an op has in a set.
static void mutate(const char *set, const char *op, const char *line)
{
    char command[512];
    snprintf(command, sizeof command, "sed -i '1i %s' '%s/%s/%s.cl'", line, dir, set, op);
    cr_assert_eq(system(command), 0);
}

struct log {
    atomic_int warnings;
    char last[1024];
};

static void keep(void *priv, clinfer_log_level level, const char *message)
{
    struct log *log = priv;
    if (level != CLINFER_LOG_WARN)
        return;
    log->warnings++;
    snprintf(log->last, sizeof log->last, "%s", message);
}

struct outcome {
    clinfer_status st;
    struct clinfer_ctx_stats stats;
    struct log log;
    char error[512];
};

// The op twice in a context: right results, or nothing written.
static struct outcome run_op(const char *op, struct clinfer_ctx_params params)
{
    struct outcome o = { .st = CLINFER_OK };
    clinfer_ctx *ctx;
    struct rig r;
    params.cl_dir = dir;
    params.log = keep;
    params.log_priv = &o.log;
    if (!params.cache_dir)
        params.cache_dir = folder;
    cr_assert_eq(clinfer_ctx_create(&ctx, &params), CLINFER_OK);
    rig_make(&r, op, NULL);
    for (int i = 0; i < 2; i++) {
        o.st = rig_run(&r, ctx);
        rig_reference(&r);
        cr_assert(o.st ? rig_untouched(&r) : rig_same(&r), "%s", r.note);
    }
    clinfer_ctx_error(ctx, o.error, sizeof o.error);
    clinfer_ctx_stats(ctx, &o.stats);
    struct clinfer_fault fault;
    cr_assert_eq(clinfer_ctx_fault(ctx, NULL, &fault), CLINFER_OK);
    cr_assert_eq(fault.code, CLINFER_FAULT_NONE);
    rig_free(&r);
    clinfer_ctx_destroy(&ctx);
    return o;
}

static void expect(const struct outcome *o, int compiled, int loaded, int checks, int disabled)
{
    const struct clinfer_ctx_stats *s = &o->stats;
    cr_assert((int) s->compiled == compiled && (int) s->loaded == loaded && (int) s->self_checks == checks &&
                  (int) s->disabled == disabled,
              "compiled %d loaded %d checked %d disabled %d, want %d %d %d %d: %s", (int) s->compiled,
              (int) s->loaded, (int) s->self_checks, (int) s->disabled, compiled, loaded, checks, disabled,
              o->error);
    cr_assert_eq(o->log.warnings, disabled, "%d warnings: %s", o->log.warnings, o->log.last);
}

static void expect_words(const char *text, const char *op, const char *set)
{
    char words[64];
    snprintf(words, sizeof words, "the %s set failed its self-check (", set);
    cr_assert(strstr(text, op) && strstr(text, words) && strstr(text, device), "%s", text);
}

Test(self_check, only_what_is_compiled)
{
    copy_kernels();
    struct outcome o = run_op("mla_decode_branch", (struct clinfer_ctx_params){ 0 });
    expect(&o, 2, 0, 1, 0); // both projections are one
    cr_assert_eq(o.stats.launches, 12, "the check's launches were counted");
    o = run_op("mla_decode_branch", (struct clinfer_ctx_params){ .cache_read_only = 1 });
    expect(&o, 0, 2, 0, 0);
    o = run_op("mla_decode_branch", (struct clinfer_ctx_params){ .cache_dir = "", .no_self_check = 1 });
    expect(&o, 2, 0, 0, 0);
}

static int visit_record(void *priv, const struct clinfer_cache_entry *e)
{
    if (!strncmp(e->op, "disabled ", 9))
        snprintf(priv, 256, "%s/%s", folder, e->name);
    return 0;
}

static void damage_record(void)
{
    char path[256] = "";
    cr_assert_eq(clinfer_cache_list(folder, visit_record, path, NULL, 0), CLINFER_OK);
    FILE *f = fopen(path, "r+b");
    cr_assert_not_null(f, "no record \"%s\"", path);
    cr_assert(!fseek(f, -1, SEEK_END) && fputc('~', f) == '~' && !fclose(f));
}

// A wrong set gives way, and the verdict outlives the context, but not its file, the driver or the kernels.
Test(self_check, another_set_takes_over)
{
    if (no_layer)
        cr_skip_test("%s", no_layer);
    for (int i = 0; i < 2; i++) {
        const char *op = mutation[i][0];
        copy_kernels();
        mutate(first, op, mutation[i][1]);
        clinfer_cache_clear(folder, NULL, NULL, 0);
        struct outcome o = run_op(op, (struct clinfer_ctx_params){ 0 });
        expect(&o, 2, 0, 2, 1);
        expect_words(o.log.last, op, first);
        cr_assert(strstr(o.log.last, "takes over"), "%s", o.log.last);
        cr_assert_eq(entries(), 2, "a program and a record");
        o = run_op(op, (struct clinfer_ctx_params){ .cache_read_only = 1 });
        expect(&o, 0, 1, 0, 1);
        expect_words(o.log.last, op, first);
    }
    const char *op = mutation[1][0];
    damage_record();
    struct outcome o = run_op(op, (struct clinfer_ctx_params){ 0 });
    expect(&o, 1, 1, 1, 1);
    cr_assert_eq(entries(), 2);
    layer->lie("driver");
    o = run_op(op, (struct clinfer_ctx_params){ 0 });
    layer->lie(NULL);
    expect(&o, 2, 0, 2, 1);
    copy_kernels();
    o = run_op(op, (struct clinfer_ctx_params){ 0 });
    expect(&o, 1, 0, 1, 0);
    unsigned removed;
    const int count = entries();
    cr_assert_eq(clinfer_cache_clear(folder, &removed, NULL, 0), CLINFER_OK);
    cr_assert_eq(removed, (unsigned) count);
}

// A set that is asked for is not replaced; nor is it compiled again once it is known.
Test(self_check, forced_set)
{
    const struct clinfer_ctx_params params = { .kernel_set =
                                                   first[0] == 'g' ? CLINFER_SET_GROUP : CLINFER_SET_ROW };
    copy_kernels();
    mutate(first, OP, mutation[1][1]);
    for (int known = 0; known < 2; known++) {
        struct outcome o = run_op(OP, params);
        cr_assert_eq(o.st, CLINFER_ERR_UNSUPPORTED);
        expect(&o, !known, 0, !known, 1);
        expect_words(o.error, OP, first);
        cr_assert_eq(entries(), 1, "a record");
    }
}

Test(self_check, no_set_is_left)
{
    copy_kernels();
    mutate(first, OP, mutation[1][1]);
    mutate(second, OP, mutation[1][1]);
    struct outcome o = run_op(OP, (struct clinfer_ctx_params){ 0 });
    cr_assert_eq(o.st, CLINFER_ERR_UNSUPPORTED);
    expect(&o, 2, 0, 2, 2);
    expect_words(o.error, OP, first);
    expect_words(o.error, OP, second);
    cr_assert_eq(entries(), 2, "two records");
}

// What does not build gives way too, but only in the context that tried.
Test(self_check, broken_builds)
{
    copy_kernels();
    mutate(first, OP, "#error broken");
    struct outcome o = run_op(OP, (struct clinfer_ctx_params){ 0 });
    cr_assert_eq(o.st, CLINFER_OK);
    expect(&o, 1, 0, 1, 1);
    cr_assert(strstr(o.log.last, "does not build") && strstr(o.log.last, "takes over"), "%s", o.log.last);
    cr_assert_eq(entries(), 1, "a program");
    mutate(second, OP, "#error broken");
    o = run_op(OP, (struct clinfer_ctx_params){ 0 });
    cr_assert_eq(o.st, CLINFER_ERR_BUILD);
    cr_assert(strstr(o.error, "row/" OP ".cl") && strstr(o.error, "group/" OP ".cl"), "%s", o.error);
}

// The device refuses the check's launch: work-groups of that size are a verdict, too little of anything is
// none.
Test(self_check, launch_refused)
{
    if (no_layer)
        cr_skip_test("%s", no_layer);
    copy_kernels();
    layer->enable(1);
    layer->arm("clEnqueueNDRangeKernel", 1, CL_INVALID_WORK_GROUP_SIZE);
    struct outcome o = run_op(OP, (struct clinfer_ctx_params){ .cache_dir = "" });
    cr_assert_eq(o.st, CLINFER_OK);
    expect(&o, 2, 0, 2, 1);
    layer->arm("clEnqueueNDRangeKernel", 1, CL_OUT_OF_RESOURCES);
    o = run_op(OP, (struct clinfer_ctx_params){ .cache_dir = "" });
    cr_assert_eq(o.st, CLINFER_OK, "the second call");
    expect(&o, 1, 0, 2, 0);
    cr_assert(strstr(o.error, OP) && strstr(o.error, "CL_OUT_OF_RESOURCES"), "%s", o.error);
}

enum { THREADS = 8 };
struct worker {
    clinfer_ctx *ctx;
    pthread_barrier_t *start;
    char note[320];
};

static void *work(void *priv)
{
    struct worker *w = priv;
    struct rig r;
    rig_make(&r, OP, NULL);
    pthread_barrier_wait(w->start);
    const clinfer_status st = rig_run(&r, w->ctx);
    rig_reference(&r);
    if (st || !rig_same(&r))
        snprintf(w->note, sizeof w->note, "%s: %s", clinfer_status_str(st), r.note);
    rig_free(&r);
    return NULL;
}

Test(self_check, threads_of_a_cold_context)
{
    struct log log = { .warnings = 0 };
    struct worker w[THREADS];
    struct clinfer_ctx_stats stats;
    pthread_t thread[THREADS];
    pthread_barrier_t start;
    clinfer_ctx *ctx;
    copy_kernels();
    mutate(first, OP, mutation[1][1]);
    cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.cl_dir = dir, .cache_dir = folder, .log = keep,
                                                             .log_priv = &log)),
                 CLINFER_OK);
    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        w[i] = (struct worker){ ctx, &start, "" };
        cr_assert_eq(pthread_create(&thread[i], NULL, work, &w[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(thread[i], NULL);
    for (int i = 0; i < THREADS; i++)
        cr_assert_str_empty(w[i].note);
    pthread_barrier_destroy(&start);
    clinfer_ctx_stats(ctx, &stats);
    cr_assert_eq(stats.disabled, 1);
    cr_assert_eq(stats.compiled, 2);
    cr_assert(stats.self_checks >= 2 && stats.self_checks <= 2 * THREADS);
    cr_assert_eq(log.warnings, 1);
    clinfer_ctx_destroy(&ctx);
}
