// SPDX-License-Identifier: Apache-2.0
// Kernel text: embedded, or from a folder so that editing a kernel needs no rebuild.
#include "source.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MAX_INCLUDES = 32, MAX_FILE = 1 << 20 };

struct expansion {
    const clinfer_ctx *ctx;
    FILE *out;
    char seen[MAX_INCLUDES][64];
    int num_seen;
    char *error;
    size_t error_size;
};

static char *read_file(struct expansion *x, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", x->ctx->cl_dir, name);
    FILE *f = fopen(path, "rb");
    char *text = f ? malloc(MAX_FILE + 1) : NULL;
    const size_t n = text ? fread(text, 1, MAX_FILE + 1, f) : 0;
    const bool bad = !text || ferror(f) || n > MAX_FILE;
    if (f)
        fclose(f);
    if (bad) {
        snprintf(x->error, x->error_size, "kernel file %s cannot be read (at most %d bytes)", path, MAX_FILE);
        free(text);
        return NULL;
    }
    text[n] = 0;
    return text;
}

static char *embedded_copy(struct expansion *x, const char *name)
{
    for (int i = 0; i < clf_num_embedded; i++)
        if (!strcmp(clf_embedded[i].name, name)) {
            char *text = malloc(clf_embedded[i].size + 1);
            if (text) {
                memcpy(text, clf_embedded[i].data, clf_embedded[i].size);
                text[clf_embedded[i].size] = 0;
            }
            return text;
        }
    snprintf(x->error, x->error_size, "the library has no kernel file %s", name);
    return NULL;
}

static bool expand(struct expansion *x, const char *name);

// An include is `#include "lib/x.clh"` at the start of a line; each file counts once.
static bool expand_line(struct expansion *x, const char *line, size_t length)
{
    static const char start[] = "#include \"";
    char name[64];
    const size_t n = sizeof start - 1;
    if (length <= n || memcmp(line, start, n)) {
        fwrite(line, 1, length, x->out);
        fputc('\n', x->out);
        return true;
    }
    const char *close = memchr(line + n, '"', length - n);
    if (!close || (size_t) (close - line) - n >= sizeof name) {
        snprintf(x->error, x->error_size, "bad include: %.*s", (int) length, line);
        return false;
    }
    snprintf(name, sizeof name, "%.*s", (int) (close - line - (ptrdiff_t) n), line + n);
    return expand(x, name);
}

static bool expand(struct expansion *x, const char *name)
{
    for (int i = 0; i < x->num_seen; i++)
        if (!strcmp(x->seen[i], name))
            return true;
    if (x->num_seen == MAX_INCLUDES) {
        snprintf(x->error, x->error_size, "more than %d kernel files at %s", MAX_INCLUDES, name);
        return false;
    }
    snprintf(x->seen[x->num_seen++], sizeof x->seen[0], "%s", name);
    char *text = x->ctx->cl_dir ? read_file(x, name) : embedded_copy(x, name);
    bool ok = text != NULL;
    for (const char *line = text; ok && line && *line;) {
        const size_t n = strcspn(line, "\n");
        ok = expand_line(x, line, n);
        line += n + (line[n] == '\n');
    }
    free(text);
    return ok;
}

static struct clf_source *load(const clinfer_ctx *ctx, clinfer_kernel_set set, const char *stem, char *error,
                               size_t error_size)
{
    struct clf_source *s = calloc(1, sizeof *s);
    struct expansion x = { .ctx = ctx, .error = error, .error_size = error_size };
    char name[64];
    snprintf(error, error_size, "out of host memory for kernel source %s", stem);
    if (!s || !(x.out = open_memstream(&s->text, &s->size))) {
        free(s);
        return NULL;
    }
    snprintf(name, sizeof name, "%s/%s.cl", clf_set_name(set), stem);
    const bool ok = expand(&x, name);
    if (fclose(x.out) || !ok) {
        free(s->text);
        free(s);
        return NULL;
    }
    const XXH128_hash_t h = XXH3_128bits(s->text, s->size);
    snprintf(s->hash, sizeof s->hash, "%016llx%016llx", (unsigned long long) h.high64,
             (unsigned long long) h.low64);
    s->stem = stem;
    s->set = set;
    return s;
}

clinfer_status clf_source_get(clinfer_ctx *ctx, clinfer_kernel_set set, const char *stem,
                              const struct clf_source **source, char *error, size_t error_size)
{
    for (struct clf_source *s = ctx->sources; s; s = s->next)
        if (s->set == set && !strcmp(s->stem, stem)) {
            *source = s;
            return CLINFER_OK;
        }
    struct clf_source *s = load(ctx, set, stem, error, error_size);
    if (!s)
        return CLINFER_ERR_FILE;
    s->next = ctx->sources;
    ctx->sources = s;
    *source = s;
    return CLINFER_OK;
}

void clf_sources_free(clinfer_ctx *ctx)
{
    for (struct clf_source *s = ctx->sources, *next; s; s = next) {
        next = s->next;
        free(s->text);
        free(s);
    }
}
