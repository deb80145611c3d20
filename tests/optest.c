// SPDX-License-Identifier: Apache-2.0
// Random numbers, batches and the device.
#include "optest.h"

#include <criterion/criterion.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const clinfer_dtype ot_floats[3] = { CLINFER_F32, CLINFER_F16, CLINFER_BF16 };

uint64_t ot_bits(struct ot_random *r)
{
    uint64_t z = r->state += UINT64_C(0x9e3779b97f4a7c15); // splitmix64
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

struct ot_random ot_seeded(const char *name, int64_t number)
{
    const char *text = getenv("OPTEST_SEED");
    struct ot_random r = { text ? strtoull(text, NULL, 0) : 0 };
    r.state += ot_bits(&r) + (uint64_t) number;
    for (const char *p = name; *p; p++)
        r.state = (r.state ^ (unsigned char) *p) * UINT64_C(0x100000001b3);
    cr_log_info("%s %lld: OPTEST_SEED=%s", name, (long long) number, text ? text : "0");
    return r;
}

int ot_share(void)
{
    const char *text = getenv("OPTEST_SHARE");
    const int n = text && *text ? atoi(text) : 1;
    cr_assert(n >= 1, "OPTEST_SHARE is \"%s\", want 1 or more", text);
    return n;
}

bool ot_in_share(int cache, int64_t i, int64_t values)
{
    return ot_share() == 1 || cache == OT_CACHES - 1 || i == cache % values;
}

int64_t ot_between(struct ot_random *r, int64_t low, int64_t high)
{
    return high <= low ? low : low + (int64_t) (ot_bits(r) % (uint64_t) (high - low + 1));
}

double ot_gauss(struct ot_random *r)
{
    const double u = ((double) (ot_bits(r) >> 11) + 0.5) * 0x1p-53;
    const double v = (double) (ot_bits(r) >> 11) * 0x1p-53;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

void ot_cache_type(clinfer_kv_cache *kv, int which, int64_t group)
{
    static const clinfer_dtype types[OT_CACHES] = { CLINFER_F32, CLINFER_F16, CLINFER_BF16, CLINFER_F8_E4M3,
                                                    CLINFER_F8_E4M3 };
    kv->dtype = types[which];
    kv->scale_group = which == 4 ? group : 0;
}

void ot_describe_cache(const clinfer_kv_cache *kv, char *text, size_t size)
{
    (void) snprintf(text, size, "%s cache K=%lld D=%lld S=%lld g=%lld", clinfer_dtype_str(kv->dtype),
                    (long long) kv->num_heads, (long long) kv->head_size, (long long) kv->page_size,
                    (long long) kv->scale_group);
}

int64_t ot_used(const struct ot_batch *b)
{
    int64_t n = 0;
    for (int i = 0; i < b->requests; i++)
        n += b->fresh[i];
    return n;
}

int64_t ot_total(const struct ot_batch *b)
{
    return ot_used(b) + b->padding;
}

int64_t ot_longest(const struct ot_batch *b)
{
    int64_t n = 0;
    for (int i = 0; i < b->requests; i++)
        n = b->fresh[i] && b->cached[i] + b->fresh[i] > n ? b->cached[i] + b->fresh[i] : n;
    return n;
}

// Lengths around page edges as often as any other.
static int64_t random_length(struct ot_random *r, int64_t page_size, int64_t most)
{
    const int64_t pages = most / page_size;
    int64_t n = ot_between(r, 0, most);
    if (pages && ot_between(r, 0, 1))
        n = ot_between(r, 1, pages) * page_size + ot_between(r, -1, 1);
    return n < 0 ? 0 : n > most ? most : n;
}

struct ot_batch ot_random_batch(struct ot_random *r, int64_t longest, int64_t tokens)
{
    static const int64_t page_sizes[] = { 1, 3, 8, 16, 100 };
    struct ot_batch b = { 0 };
    b.requests = (int) ot_between(r, 1, 17);
    b.page_size = OT_PICK(r, page_sizes);
    b.padding = ot_between(r, 0, 1) * ot_between(r, 1, 4);
    b.layers = ot_between(r, 1, 3);
    b.layer = ot_between(r, 0, b.layers - 1);
    b.share = ot_between(r, 0, 2) == 0;
    for (int i = 0; i < b.requests; i++) {
        b.fresh[i] = ot_between(r, 0, 3) ? ot_between(r, 1, 2) : 0;
        if (ot_between(r, 0, 3) == 0) // from the middle of a page across two edges
            b.fresh[i] = b.page_size < 16 ? b.page_size + ot_between(r, 1, 3) : 5;
        b.fresh[i] = b.fresh[i] < tokens ? b.fresh[i] : tokens;
        tokens -= b.fresh[i];
        b.cached[i] = random_length(r, b.page_size, longest - b.fresh[i]);
    }
    if (!ot_used(&b))
        b.fresh[b.requests / 2] = 1;
    return b;
}

struct ot_batch ot_one_request(int64_t cached, int64_t fresh, int64_t page_size)
{
    return (struct ot_batch){ .requests = 1,
                              .cached = { cached },
                              .fresh = { fresh },
                              .page_size = page_size,
                              .layers = 2,
                              .layer = 1 };
}

static void on_log(void *priv, clinfer_log_level level, const char *message)
{
    (void) priv;
    // An error is also a call's status, which the tests judge; a warning makes the program's run a failure.
    if (level == CLINFER_LOG_ERROR)
        cr_log_info("library: %s", message);
    else
        cr_log_warn("library (level %d): %s", (int) level, message);
}

// The kernel set that OPTEST_SET names; "" and none: the one that the device gets.
static clinfer_kernel_set set_under_test(void)
{
    const char *name = getenv("OPTEST_SET");
    if (!name || !*name)
        return CLINFER_SET_AUTO;
    cr_assert(!strcmp(name, "row") || !strcmp(name, "group"), "OPTEST_SET is \"%s\", want row or group",
              name);
    return strcmp(name, "row") ? CLINFER_SET_GROUP : CLINFER_SET_ROW;
}

static struct ot_device open_device(unsigned disable_caps, int no_self_check)
{
    struct ot_device d = { 0 };
    char error[512] = "";
    const clinfer_status st = clinfer_ctx_create(
        &d.ctx, clinfer_ctx_params(.kernel_set = set_under_test(), .disable_caps = disable_caps,
                                   .gemm = CLINFER_GEMM_OWN, // CLBlast has tests of its own
                                   .cache_dir = "", .no_self_check = no_self_check, .log = on_log,
                                   .error = error, .error_size = sizeof error));
    cr_assert_eq(st, CLINFER_OK, "no context: %s", error);
    d.cl = clinfer_ctx_cl_context(d.ctx);
    d.queue = clinfer_ctx_queue(d.ctx);
    return d;
}

struct ot_device ot_open(unsigned disable_caps)
{
    return open_device(disable_caps, 1);
}

struct ot_device ot_open_checked(void)
{
    return open_device(0, 0);
}

void ot_close(struct ot_device *d)
{
    clinfer_ctx_destroy(&d->ctx);
}
