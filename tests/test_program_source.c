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

// Of the op in a context of these params.
static void add_key(struct keys *k, struct clinfer_ctx_params params)
{
    const int before = k->count;
    struct clinfer_ctx_stats stats;
    params.store = (clinfer_program_store){ .get = note_key, .priv = k };
    cr_assert(run_in(&params, false, &stats));
    cr_assert_eq(k->count, before + 1);
}

Test(program_source, keys)
{
    const struct layer_control *layer;
    struct keys k = { .count = 0 };
    LAYER_OR_SKIP(layer);
    struct clinfer_ctx_params params = { .kernel_set = CLINFER_SET_ROW };
    add_key(&k, params);
    add_key(&k, params);
    params.cl_dir = copy_kernels();
    add_key(&k, params);
    for (int i = 1; i < 3; i++)
        cr_assert_str_eq(k.seen[i], k.seen[0], "the same text, whatever its place, is the same program");
    k.count = 1;
    edit(params.cl_dir, "row/" OP ".cl", "// a comment\n", NULL);
    add_key(&k, params);
    edit(params.cl_dir, "lib/quant.clh", "// a comment in an include\n", NULL);
    add_key(&k, params);
    params.cl_dir = NULL;
    struct clinfer_device_info info;
    unsigned count;
    cr_assert_eq(clinfer_devices(&info, 1, &count, NULL, 0), CLINFER_OK);
    if (info.caps & CLINFER_CAP_ROUNDED_DIVIDE) { // a define and an option, where the device has it
        params.disable_caps = CLINFER_CAP_ROUNDED_DIVIDE;
        add_key(&k, params);
        params.disable_caps = 0;
    }
    layer->lie("driver");
    add_key(&k, params);
    layer->lie(NULL);
    setenv("CL_CONFIG_CPU_VECTORIZER_MODE", "4", 1);
    add_key(&k, params);
    setenv("CL_CONFIG_CPU_VECTORIZER_MODE", "8", 1);
    add_key(&k, params);
    params.kernel_set = CLINFER_SET_GROUP;
    add_key(&k, params);
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
    edit(dir, "row/" OP ".cl", "#undef NORM_SIZE\n", "#if !defined(NORM_SIZE)");
    cr_assert_eq(compile_from(dir, error, &log), CLINFER_ERR_BUILD);
    cr_assert(strstr(log.text, OP " wants NORM_SIZE, WHOLE_ROW"), "%s", log.text);
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

struct seen {
    struct clinfer_program_text text[4]; // source and options are copies
    char kernels[256];                   // of all programs
    int count;
};

static void note_program(void *priv, const struct clinfer_program_text *p)
{
    struct seen *s = priv;
    cr_assert_lt(s->count, 4);
    struct clinfer_program_text *to = &s->text[s->count++];
    *to = *p;
    to->source = strdup(p->source);
    to->options = strdup(p->options);
    cr_assert(to->source && to->options);
    cr_assert_eq(strlen(p->source), p->source_size);
    for (int i = 0; i < p->num_kernels; i++) {
        const size_t n = strlen(s->kernels);
        snprintf(s->kernels + n, sizeof s->kernels - n, "%s ", p->kernels[i]);
    }
}

// What `_compile` of an op shows, without a build.
static clinfer_status inspect(const char *op, const char *cl_dir, struct seen *s)
{
    struct rig r;
    struct clinfer_ctx_stats stats;
    clinfer_ctx *ctx;
    *s = (struct seen){ .count = 0 };
    cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.kernel_set = CLINFER_SET_ROW, .cl_dir = cl_dir,
                                                             .cache_dir = "", .inspect = note_program,
                                                             .inspect_priv = s)),
                 CLINFER_OK);
    rig_make(&r, op, NULL);
    const clinfer_status st = r.op->compile(ctx, &r.params);
    clinfer_ctx_stats(ctx, &stats);
    cr_assert_eq(stats.programs + stats.compiled + stats.loaded, 0);
    if (!st) { // the same context still runs calls
        cr_assert_eq(rig_run(&r, ctx), CLINFER_OK);
        clinfer_ctx_stats(ctx, &stats);
        cr_assert_eq((int) stats.compiled, s->count, "a call compiles what was shown");
    }
    rig_free(&r);
    clinfer_ctx_destroy(&ctx);
    return st;
}

static void forget(struct seen *s)
{
    for (int i = 0; i < s->count; i++) {
        free((char *) s->text[i].source);
        free((char *) s->text[i].options);
    }
}

// The text is all that a build takes.
static void build_text(const struct clinfer_program_text *text, const char *kernel)
{
    clinfer_ctx *ctx;
    cl_int err;
    cr_assert_eq(clinfer_ctx_create(&ctx, clinfer_ctx_params(.cache_dir = "")), CLINFER_OK);
    const cl_device_id device = clinfer_ctx_device(ctx);
    const char *source = text->source;
    const cl_program program =
        clCreateProgramWithSource(clinfer_ctx_cl_context(ctx), 1, &source, &text->source_size, &err);
    cr_assert_eq(err, CL_SUCCESS);
    cr_assert_eq(clBuildProgram(program, 1, &device, text->options, NULL, NULL), CL_SUCCESS);
    const cl_kernel k = clCreateKernel(program, kernel, &err);
    cr_assert_eq(err, CL_SUCCESS);
    cr_assert_eq(clReleaseKernel(k), CL_SUCCESS);
    cr_assert_eq(clReleaseProgram(program), CL_SUCCESS);
    clinfer_ctx_destroy(&ctx);
}

Test(program_source, inspect)
{
    struct seen s;
    cr_assert_eq(inspect("rms_norm_kv_cache", NULL, &s), CLINFER_OK);
    cr_assert_eq(s.count, 1);
    cr_expect_str_eq(s.text[0].op, "rms_norm_kv_cache");
    cr_expect_str_eq(s.text[0].name, "rms_norm_kv_cache");
    cr_expect_eq(s.text[0].set, CLINFER_SET_ROW);
    cr_expect_str_eq(s.kernels, "rms_norm_kv_cache ");
    cr_expect_null(strstr(s.text[0].source, "#include"));
    cr_expect_not_null(strstr(s.text[0].options, " -DGAMMA_T=f32"));
    build_text(&s.text[0], "rms_norm_kv_cache");
    forget(&s);

    // Launches that share a program show it once.
    cr_assert_eq(inspect("mla_decode_branch", NULL, &s), CLINFER_OK);
    cr_expect_str_eq(s.kernels, "mla_cache_rows mla_queries mla_attention mla_combine matmul matmul ");
    cr_expect_eq(s.count, 2);
    forget(&s);

    const char *dir = copy_kernels();
    char gone[256];
    snprintf(gone, sizeof gone, "%s/row/matmul.cl", dir);
    cr_assert_eq(remove(gone), 0);
    cr_expect_eq(inspect("mla_decode_branch", dir, &s), CLINFER_ERR_FILE);
    cr_expect_eq(s.count, 1, "what comes before the error is shown");
    forget(&s);
}
