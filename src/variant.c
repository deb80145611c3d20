// SPDX-License-Identifier: Apache-2.0
#include "variant.h"
#include "call.h"
#include "clblast.h"
#include "program.h"
#include "self_check.h"
#include "source.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int id_of(const struct clf_op *op)
{
    int id = 0;
    while (clf_ops[id] != op)
        id++;
    return id;
}

static clinfer_kernel_set usable_set(const clinfer_ctx *ctx, const struct clf_op *op)
{
    const struct clf_variant *v = ctx->variant[id_of(op)];
    for (int i = 0; i < CLF_NUM_SETS; i++)
        if (ctx->order[i] && !v[ctx->order[i] - CLINFER_SET_ROW].disabled)
            return ctx->order[i];
    return CLINFER_SET_AUTO;
}

struct clf_caps clf_variant_caps(const clinfer_ctx *ctx, const struct clf_op *op)
{
    struct clf_caps caps = ctx->caps;
    const clinfer_kernel_set set = usable_set(ctx, op);
    caps.set = set ? set : ctx->order[0];
    return caps;
}

static clinfer_kernel_set set_of(const struct clf_call *c)
{
    return c->plan->caps->set;
}

static struct clf_variant *variant_of(const struct clf_call *c)
{
    return &c->ctx->variant[id_of(c->plan->op)][set_of(c) - CLINFER_SET_ROW];
}

// The key of the record that a variant is disabled: other kernels, another driver or another version of the
// check start afresh. Malloc'd. Lock held.
static char *record_key(struct clf_call *c)
{
    char *text = NULL, why[CLF_ERROR_SIZE];
    size_t size = 0;
    const struct clf_source *source = NULL;
    FILE *f = open_memstream(&text, &size);
    if (!f)
        return NULL;
    fprintf(f, "op=disabled %s\nset=%s\nlibrary=%s\n", c->plan->op->name, clf_set_name(set_of(c)),
            clinfer_version());
    bool ok = true;
    for (int i = 0; ok && i < c->plan->num_launches; i++) {
        const struct clf_spec *spec = &c->plan->launch[i].spec;
        if (c->plan->launch[i].kind == CLF_GEMM || (source && !strcmp(source->stem, spec->source)))
            continue;
        ok = !clf_source_get(c->ctx, spec->set, spec->source, &source, why, sizeof why);
        if (ok)
            fprintf(f, "source=%s\n", source->hash);
    }
    fputs(c->ctx->device_key, f);
    if (fclose(f) || !ok) {
        free(text);
        return NULL;
    }
    return text;
}

static void log_disabled(struct clf_call *c, const struct clf_variant *v)
{
    const clinfer_kernel_set next = usable_set(c->ctx, c->plan->op);
    clf_log(c->ctx, CLINFER_LOG_WARN, "%s: on \"%s\" (%s) the %s set %s%s%s%s", c->plan->op->name,
            c->ctx->info.device, c->ctx->info.driver, clf_set_name(set_of(c)), v->reason,
            next ? "; the " : "", next ? clf_set_name(next) : "", next ? " set takes over" : "");
}

// Once, whichever thread comes first. Lock held.
static void disable(struct clf_call *c, clinfer_status status, const char *reason)
{
    struct clf_variant *v = variant_of(c);
    if (v->disabled)
        return;
    v->status = status;
    snprintf(v->reason, sizeof v->reason, "%s", reason);
    v->disabled = true;
    c->ctx->stats.disabled++;
    log_disabled(c, v);
}

// An earlier context's verdict, asked for once. Lock held, let go of meanwhile.
static void recall(struct clf_call *c)
{
    struct clf_variant *v = variant_of(c);
    struct clf_blob blob = { NULL, 0 };
    char reason[sizeof v->reason], *key = v->known || c->ctx->no_self_check ? NULL : record_key(c);
    if (key) {
        pthread_mutex_unlock(&c->ctx->lock);
        const bool found = clf_cache_get(&c->ctx->cache, key, &blob);
        if (found)
            snprintf(reason, sizeof reason, "%.*s", (int) blob.size, (const char *) blob.data);
        free(blob.data);
        free(key);
        pthread_mutex_lock(&c->ctx->lock);
        if (found)
            disable(c, CLINFER_ERR_UNSUPPORTED, reason);
    }
    v->known = true;
}

// Lock held, let go of meanwhile.
static void store_record(struct clf_call *c, const char *reason)
{
    char why[CLF_ERROR_SIZE], *key = clf_cache_writable(&c->ctx->cache) ? record_key(c) : NULL;
    if (!key)
        return;
    pthread_mutex_unlock(&c->ctx->lock);
    if (!clf_cache_put(&c->ctx->cache, key, reason, strlen(reason), why, sizeof why))
        clf_log(c->ctx, CLINFER_LOG_WARN, "%s: disabled variant not stored: %s", c->plan->op->name, why);
    free(key);
    pthread_mutex_lock(&c->ctx->lock);
}

// The error of a call whose every variant is disabled.
static clinfer_status refuse(struct clf_call *c)
{
    const clinfer_ctx *ctx = c->ctx;
    const struct clf_variant *v = ctx->variant[id_of(c->plan->op)];
    char text[2 * CLF_ERROR_SIZE];
    size_t n = (size_t) snprintf(text, sizeof text, "%s: on \"%.64s\" (%.64s)", c->plan->op->name,
                                 ctx->info.device, ctx->info.driver);
    for (int i = 0; i < CLF_NUM_SETS && ctx->order[i]; i++)
        n += (size_t) snprintf(text + n, sizeof text - n, "%s the %s set %s", i ? ";" : "",
                               clf_set_name(ctx->order[i]), v[ctx->order[i] - CLINFER_SET_ROW].reason);
    return clf_error(c->ctx, v[ctx->order[0] - CLINFER_SET_ROW].status, text);
}

// Where another set may take over, one that the device cannot take is disabled. A set that steps in also
// where its files are missing: it has not been asked for.
static bool is_verdict(const struct clf_call *c, clinfer_status st)
{
    return c->ctx->order[1] && (st == CLINFER_ERR_BUILD || (int) st == CL_INVALID_WORK_GROUP_SIZE ||
                                (st == CLINFER_ERR_FILE && set_of(c) != c->ctx->order[0]));
}

static clinfer_status build(struct clf_call *c, bool *fresh)
{
    clinfer_status st = CLINFER_OK;
    for (int i = 0; !st && i < c->plan->num_launches; i++) {
        const struct clf_launch *l = &c->plan->launch[i];
        bool checked = true;
        st = l->kind == CLF_GEMM ? clf_clblast_ready(c->ctx, c->plan->op->name)
                                 : clf_program_kernel(c->ctx, l, c->plan->op->name, &c->kernel[i], &checked);
        *fresh = *fresh || !checked;
    }
    return st;
}

// Nobody waits for another thread's check: what two find unchecked at once is checked twice.
static clinfer_status check(struct clf_call *c, const void *params)
{
    struct clf_verdict verdict;
    c->ctx->stats.self_checks++;
    pthread_mutex_unlock(&c->ctx->lock);
    const clinfer_status st = clf_self_check(c, params, &verdict);
    pthread_mutex_lock(&c->ctx->lock);
    if (st)
        return st;
    for (int i = 0; verdict.good && i < c->plan->num_launches; i++)
        if (c->plan->launch[i].kind == CLF_KERNEL)
            clf_program_checked(c->ctx, &c->plan->launch[i], c->kernel[i]);
    if (!verdict.good) {
        disable(c, CLINFER_ERR_UNSUPPORTED, verdict.reason);
        store_record(c, verdict.reason);
    }
    return CLINFER_OK;
}

clinfer_status clf_variant_kernels(struct clf_call *c, const void *params, bool *again)
{
    bool fresh = false;
    clinfer_status st = CLINFER_OK;
    *again = false;
    recall(c);
    if (!variant_of(c)->disabled) {
        st = build(c, &fresh);
        if (!st && fresh)
            st = check(c, params);
        if (is_verdict(c, st)) {
            char error[CLF_ERROR_SIZE], reason[CLF_ERROR_SIZE + 32];
            clinfer_ctx_error(c->ctx, error, sizeof error);
            snprintf(reason, sizeof reason, "cannot be used (%s)", error);
            disable(c, st, reason);
        } else if (st || !variant_of(c)->disabled) {
            return st;
        }
    }
    *again = usable_set(c->ctx, c->plan->op) != CLINFER_SET_AUTO;
    return *again ? CLINFER_OK : refuse(c);
}
