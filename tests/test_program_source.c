// SPDX-License-Identifier: Apache-2.0
// What a program is made of: the key that names it, kernels from a folder, and builds that fail.
#include "layer_use.h"
#include "programs_fixture.h"

TestSuite(program_source, .init = set_up, .fini = tear_down, .timeout = 300);

// A copy of the library's kernels that the test may change.
static const char *copy_kernels(void)
{
    static char path[128];
    char command[512];
    const char *from = getenv("CLINFER_CL_SRC");
    cr_assert_not_null(from, "CLINFER_CL_SRC does not name the kernels' folder");
    snprintf(path, sizeof path, "%s/cl", root);
    snprintf(command, sizeof command, "rm -rf '%s' && cp -r '%s' '%s'", path, from, path);
    cr_assert_eq(system(command), 0);
    return path;
}

// Puts `text` in front of the first `before` of a kernel file, or at its end.
static void edit(const char *dir, const char *name, const char *text, const char *before)
{
    static char content[1 << 16];
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    cr_assert_not_null(f);
    const size_t n = fread(content, 1, sizeof content - 1, f);
    fclose(f);
    content[n] = 0;
    char *at = before ? strstr(content, before) : content + n;
    cr_assert_not_null(at);
    f = fopen(path, "wb");
    cr_assert_not_null(f);
    fprintf(f, "%.*s%s%s", (int) (at - content), content, text, at);
    cr_assert_eq(fclose(f), 0);
}

struct keys {
    char seen[16][CLINFER_CACHE_KEY_SIZE];
    int count;
};

static size_t note_key(void *priv, const char *key, void **entry)
{
    struct keys *k = priv;
    (void) entry;
    cr_assert_lt(k->count, 16);
    snprintf(k->seen[k->count++], sizeof k->seen[0], "%s", key);
    return 0;
}

static void add_key(struct keys *k, unsigned disable_caps, const char *cl_dir)
{
    const int before = k->count;
    struct clinfer_ctx_stats stats;
    const struct clinfer_ctx_params params = { .disable_caps = disable_caps,
                                               .cl_dir = cl_dir,
                                               .store = { .get = note_key, .priv = k } };
    cr_assert(run_in(&params, false, &stats));
    cr_assert_eq(k->count, before + 1);
}

Test(program_source, keys)
{
    const struct layer_control *layer;
    struct keys k = { .count = 0 };
    LAYER_OR_SKIP(layer);
    add_key(&k, 0, NULL);
    add_key(&k, 0, NULL);
    const char *dir = copy_kernels();
    add_key(&k, 0, dir);
    for (int i = 1; i < 3; i++)
        cr_assert_str_eq(k.seen[i], k.seen[0], "the same text, whatever its place, is the same program");
    k.count = 1;
    struct clinfer_device_info info;
    unsigned count;
    cr_assert_eq(clinfer_devices(&info, 1, &count, NULL, 0), CLINFER_OK);
    if (info.caps & CLINFER_CAP_ROUNDED_DIVIDE)
        add_key(&k, CLINFER_CAP_ROUNDED_DIVIDE, NULL); // another define, another option
    cr_assert_gt(k.count, 1, "no capability changes a program here");
    edit(dir, "row/" OP ".cl", "// a comment\n", NULL);
    add_key(&k, 0, dir);
    edit(dir, "lib/quant.clh", "// a comment in an include\n", NULL);
    add_key(&k, 0, dir);
    layer->lie("driver");
    add_key(&k, 0, NULL);
    layer->lie(NULL);
    setenv("CL_CONFIG_CPU_VECTORIZER_MODE", "4", 1);
    add_key(&k, 0, NULL);
    setenv("CL_CONFIG_CPU_VECTORIZER_MODE", "8", 1);
    add_key(&k, 0, NULL);
    for (int i = 0; i < k.count; i++)
        for (int j = 0; j < i; j++)
            cr_assert_str_neq(k.seen[i], k.seen[j], "%d and %d have one key", i, j);
}

struct log {
    char text[1 << 16];
    size_t size;
};

static void keep(void *priv, clinfer_log_level level, const char *message)
{
    struct log *log = priv;
    (void) level;
    log->size += (size_t) snprintf(log->text + log->size, sizeof log->text - log->size, "%s\n", message);
    cr_assert_lt(log->size, sizeof log->text);
}

// The status of compiling the op with kernels from `dir`; the error text goes to `error`, all messages to
// `log`.
static clinfer_status compile_from(const char *dir, char error[512], struct log *log)
{
    clinfer_ctx *ctx;
    struct rig r;
    log->size = 0;
    cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.kernel_set = CLINFER_SET_ROW, .cl_dir = dir,
                                                             .cache_dir = "", .no_self_check = 1, .log = keep,
                                                             .log_priv = log)),
                 CLINFER_OK);
    rig_make(&r, OP, NULL);
    const clinfer_status st = r.op->compile(ctx, &r.params);
    clinfer_ctx_error(ctx, error, 512);
    cr_assert_eq(rig_run(&r, ctx), st, "the call differs from _compile");
    rig_reference(&r);
    cr_assert(st ? rig_untouched(&r) : rig_same(&r), "%s", r.note);
    rig_free(&r);
    clinfer_ctx_destroy(&ctx);
    return st;
}

Test(program_source, syntax_error)
{
    static struct log log;
    char error[512];
    const char *dir = copy_kernels();
    edit(dir, "row/" OP ".cl", "this_is_no_type x;\n", "__kernel");
    cr_assert_eq(compile_from(dir, error, &log), CLINFER_ERR_BUILD);
    cr_assert(strstr(error, OP ":") && strstr(error, "row/" OP ".cl") && strstr(error, "log"), "%s", error);
    cr_assert(strstr(log.text, "this_is_no_type"), "the log lacks the compiler's words: %s", log.text);
    cr_assert(strstr(log.text, "-DHEAD_SIZE=48"), "the log lacks the options: %s", log.text);
    copy_kernels();
    cr_assert_eq(compile_from(dir, error, &log), CLINFER_OK, "%s", error);
}

Test(program_source, missing_macro)
{
    static struct log log;
    char error[512];
    const char *dir = copy_kernels();
    edit(dir, "row/" OP ".cl", "#undef NORM_SIZE\n", "#if !defined(GAMMA_T)");
    cr_assert_eq(compile_from(dir, error, &log), CLINFER_ERR_BUILD);
    cr_assert(strstr(log.text, OP " wants GAMMA_T, NORM_SIZE"), "%s", log.text);
}

Test(program_source, missing_kernel)
{
    static struct log log;
    char error[512];
    const char *dir = copy_kernels();
    edit(dir, "row/" OP ".cl", "#define rms_norm_kv_cache another_name\n", "__kernel");
    cr_assert_eq((int) compile_from(dir, error, &log), CL_INVALID_KERNEL_NAME);
    cr_assert(strstr(error, "kernel " OP) && strstr(error, "CL_INVALID_KERNEL_NAME"), "%s", error);
}

Test(program_source, missing_files)
{
    static struct log log;
    char error[512], path[256], word[300];
    const char *dir = copy_kernels();
    snprintf(path, sizeof path, "%s/lib/quant.clh", dir);
    cr_assert_eq(unlink(path), 0);
    cr_assert_eq(compile_from(dir, error, &log), CLINFER_ERR_FILE);
    cr_assert(strstr(error, OP ":") && strstr(error, path), "%s", error);
    clinfer_ctx *ctx;
    snprintf(word, sizeof word, "%s/absent", root);
    cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.cl_dir = word, .cache_dir = "", .error = error,
                                                             .error_size = sizeof error)),
                 CLINFER_ERR_FILE);
    cr_assert(!ctx && strstr(error, word), "%s", error);
    edit(copy_kernels(), "row/" OP ".cl", "#include \"lib/unterminated\n", "__kernel");
    cr_assert_eq(compile_from(dir, error, &log), CLINFER_ERR_FILE);
    cr_assert(strstr(error, "bad include") && strstr(error, "lib/unterminated"), "%s", error);
}

// By the environment as by the params, which come first.
Test(program_source, folder_of_kernels)
{
    static struct log log;
    char error[512];
    const char *dir = copy_kernels();
    edit(dir, "row/" OP ".cl", "#error changed\n", NULL);
    setenv("CLINFER_CL_DIR", dir, 1);
    cr_assert_eq(compile_from(NULL, error, &log), CLINFER_ERR_BUILD);
    cr_assert_eq(compile_from(getenv("CLINFER_CL_SRC"), error, &log), CLINFER_OK, "%s", error);
    setenv("CLINFER_CL_DIR", "", 1);
    cr_assert_eq(compile_from(NULL, error, &log), CLINFER_OK, "%s", error);
}
