// SPDX-License-Identifier: Apache-2.0
#include "ctx.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void clf_log(const clinfer_ctx *ctx, clinfer_log_level level, const char *fmt, ...)
{
    if (!ctx->log || level > ctx->log_level)
        return;
    va_list ap;
    va_start(ap, fmt);
    char text[1024], *message = text;
    const int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    // Build logs are long; a message that does not fit and cannot be allocated is cut.
    char *whole = n >= (int) sizeof text ? malloc((size_t) n + 1) : NULL;
    if (whole) {
        va_start(ap, fmt);
        vsnprintf(whole, (size_t) n + 1, fmt, ap);
        va_end(ap);
        message = whole;
    }
    ctx->log(ctx->log_priv, level, message);
    free(whole);
}

// The slot of the calling thread: its own, a free one, or the one that is longest unused.
static struct clf_thread_error *slot_of(clinfer_ctx *ctx, bool create)
{
    struct clf_thread_error **oldest = NULL;
    for (int i = 0; i < CLF_ERROR_SLOTS; i++) {
        struct clf_thread_error **slot = &ctx->errors[i];
        if (*slot && pthread_equal((*slot)->thread, pthread_self()))
            return *slot;
        if (!oldest || (*oldest && (!*slot || (*slot)->stamp < (*oldest)->stamp)))
            oldest = slot;
    }
    if (!create)
        return NULL;
    if (!*oldest)
        *oldest = malloc(sizeof **oldest);
    if (*oldest)
        (*oldest)->thread = pthread_self();
    return *oldest;
}

clinfer_status clf_error(clinfer_ctx *ctx, clinfer_status status, const char *text)
{
    pthread_mutex_lock(&ctx->error_lock);
    struct clf_thread_error *e = slot_of(ctx, true);
    if (e) {
        e->stamp = ++ctx->error_stamp;
        snprintf(e->text, sizeof e->text, "%s", text);
    }
    pthread_mutex_unlock(&ctx->error_lock);
    clf_log(ctx, CLINFER_LOG_ERROR, "%s", text);
    return status;
}

size_t clinfer_ctx_error(clinfer_ctx *ctx, char *buf, size_t size)
{
    pthread_mutex_lock(&ctx->error_lock);
    const struct clf_thread_error *e = slot_of(ctx, false);
    const char *text = e ? e->text : "";
    const size_t n = strlen(text);
    if (buf && size)
        snprintf(buf, size, "%s", text);
    pthread_mutex_unlock(&ctx->error_lock);
    return n;
}

void clf_errors_free(clinfer_ctx *ctx)
{
    for (int i = 0; i < CLF_ERROR_SLOTS; i++)
        free(ctx->errors[i]);
}
