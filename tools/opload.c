// SPDX-License-Identifier: Apache-2.0
#include "opcase.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool op_load_fail(struct op_load *load, const char *format, ...)
{
    const char *op = load->c->op ? load->c->op->name : "";
    const int n = snprintf(load->error, load->error_size, "%s: %s%s", load->path, op, *op ? ": " : "");
    va_list args;
    va_start(args, format);
    if (n >= 0 && (size_t) n < load->error_size)
        (void) vsnprintf(load->error + n, load->error_size - (size_t) n, format, args);
    va_end(args);
    return false;
}

int64_t op_groups(int64_t n, int64_t size)
{
    return n / size + (n % size != 0);
}

static void *field(const struct op_load *load, size_t offset)
{
    return (char *) load->c->params + offset;
}

bool op_load_int(struct op_load *load, const char *name, const char *text, int64_t *value)
{
    char *end;
    errno = 0;
    const long long v = strtoll(text, &end, 10);
    if (isspace((unsigned char) *text) || end == text || *end || errno)
        return op_load_fail(load, "metadata %s: \"%s\" is no integer", name, text);
    *value = v;
    return true;
}

static bool load_float(struct op_load *load, const char *name, const char *text, float *value)
{
    char *end;
    const double v = strtod(text, &end);
    if (isspace((unsigned char) *text) || end == text || *end || !isfinite(v) || !isfinite((float) v))
        return op_load_fail(load, "metadata %s: \"%s\" is no finite f32", name, text);
    *value = (float) v;
    return true;
}

static bool load_choice(struct op_load *load, const struct op_scalar *s, const char *text, int *value)
{
    char list[128] = "";
    for (int i = 0; s->choices[i]; i++) {
        if (!strcmp(s->choices[i], text)) {
            *value = i;
            return true;
        }
        const size_t at = strlen(list);
        (void) snprintf(list + at, sizeof list - at, "%s%s", i ? ", " : "", s->choices[i]);
    }
    return op_load_fail(load, "metadata %s: \"%s\" is none of %s", s->name, text, list);
}

static bool load_dtype(struct op_load *load, const char *name, const char *text, clinfer_dtype *value)
{
    for (int i = CLINFER_F32; clinfer_dtype_size((clinfer_dtype) i); i++)
        if (!strcmp(clinfer_dtype_str((clinfer_dtype) i), text)) {
            *value = (clinfer_dtype) i;
            return true;
        }
    return op_load_fail(load, "metadata %s: \"%s\" is no type", name, text);
}

static bool load_scalar(struct op_load *load, const struct op_scalar *s)
{
    const char *text = st_meta_get(&load->c->file, s->name);
    if (!text && !s->fallback)
        return op_load_fail(load, "metadata %s is missing", s->name);
    text = text ? text : s->fallback;
    void *to = field(load, s->offset);
    switch (s->kind) {
    case OP_INT64:
        return op_load_int(load, s->name, text, to);
    case OP_FLOAT:
        return load_float(load, s->name, text, to);
    case OP_CHOICE:
        return load_choice(load, s, text, to);
    case OP_DTYPE:
        return load_dtype(load, s->name, text, to);
    }
    return false;
}

// These may be 0; everything else has a row to work on.
static bool may_be_empty(char axis)
{
    return strchr("TBMPFRNXYZGijkln", axis) != NULL;
}

static bool load_axis(struct op_load *load, const struct op_tensor *t, int i, char axis, int64_t extent)
{
    const unsigned char letter = (unsigned char) axis;
    if (!extent && !may_be_empty(axis))
        return op_load_fail(load, "%s: axis %d is empty", t->name, i);
    if (load->axis[letter] < 0) {
        load->axis[letter] = extent;
        load->axis_from[letter] = t->name;
        if (letter == 'Y')
            load->axis['y'] = extent / 2;
    }
    if (load->axis[letter] != extent)
        return op_load_fail(load, "%s: axis %d is %lld, but %lld in %s", t->name, i, (long long) extent,
                            (long long) load->axis[letter], load->axis_from[letter]);
    return true;
}

// The axes of a tensor, without h where the call has none.
static void axes_of(const struct op_load *load, const struct op_tensor *t, char axes[ST_MAX_RANK + 1])
{
    int n = 0;
    for (const char *axis = t->axes; *axis; axis++)
        if (*axis != 'h' || !load->flat)
            axes[n++] = *axis;
    axes[n] = 0;
}

static struct op_buffer *add_buffer(struct op_load *load, const struct op_tensor *t, clinfer_dtype dtype)
{
    struct op_buffer *b = &load->c->buffers[load->c->num_buffers++];
    b->tensor = t;
    b->dtype = dtype;
    return b;
}

// Points the params at the buffer; a cache's extents come from its blocks.
static void place(struct op_load *load, const struct op_buffer *b)
{
    clinfer_kv_cache *kv = field(load, b->tensor->offset);
    clinfer_tensor *t = field(load, b->tensor->offset);
    if (b->tensor->place == OP_SCALES) {
        kv->scales = (cl_mem) b->data;
        return;
    }
    if (b->tensor->place == OP_BLOCKS) {
        kv->mem = (cl_mem) b->data;
        kv->dtype = b->dtype;
        kv->num_pages = b->shape[0];
        kv->planes = (int) b->shape[1];
        kv->num_layers = b->shape[2];
        kv->page_size = b->shape[3];
        kv->num_heads = b->shape[4];
        kv->head_size = b->shape[5];
        return;
    }
    t->mem = (cl_mem) b->data;
    t->dtype = b->dtype;
    t->rank = b->rank;
    memcpy(t->shape, b->shape, sizeof t->shape);
}

static bool load_input(struct op_load *load, const struct op_tensor *t)
{
    struct st_tensor *s = st_find(&load->c->file, t->name);
    if (!s)
        return t->optional || op_load_fail(load, "tensor %s is missing", t->name);
    if (s->rank + 1 == (int) strlen(t->axes) && t->axes[0] == 'n') { // one row of ids may come as a vector
        memmove(s->shape + 1, s->shape, (size_t) s->rank++ * sizeof *s->shape);
        s->shape[0] = 1;
    }
    char axes[ST_MAX_RANK + 1];
    if (load->axis['h'] < 0 && strchr(t->axes, 'h')) { // the first that may have it
        load->flat = s->rank < (int) strlen(t->axes);
        load->axis['h'] = load->flat ? 1 : load->axis['h'];
    }
    axes_of(load, t, axes);
    if (s->rank != (int) strlen(axes))
        return op_load_fail(load, "%s has %d axes, not %d", t->name, s->rank, (int) strlen(axes));
    if (!(t->types >> s->dtype & 1))
        return op_load_fail(load, "%s is %s, which it cannot be", t->name, clinfer_dtype_str(s->dtype));
    struct op_buffer *b = add_buffer(load, t, s->dtype);
    for (int i = 0; i < s->rank; i++)
        if (!load_axis(load, t, i, axes[i], s->shape[i]))
            return false;
    b->rank = s->rank;
    memcpy(b->shape, s->shape, sizeof b->shape);
    b->bytes = s->bytes;
    b->initial = s->data;
    b->data = s->data;
    if (t->role == OP_INOUT && !(b->data = malloc(b->bytes ? b->bytes : 1)))
        return op_load_fail(load, "no memory for %s", t->name);
    place(load, b);
    return true;
}

static bool load_output(struct op_load *load, const struct op_tensor *t)
{
    clinfer_dtype dtype = ((clinfer_tensor *) field(load, t->offset))->dtype;
    if (t->types == 1u << CLINFER_F32) // its only type
        dtype = CLINFER_F32;
    if (t->like)
        dtype = op_case_buffer(load->c, t->like)->dtype;
    if (t->like && dtype == CLINFER_F8_E4M3)
        dtype = CLINFER_BF16;
    if (load->axis['W'] < 0) // V lies beside K
        load->axis['W'] = load->axis['D'];
    if (!(t->types >> dtype & 1))
        return op_load_fail(load, "%s is %s, which it cannot be", t->name, clinfer_dtype_str(dtype));
    struct op_buffer *b = add_buffer(load, t, dtype);
    char axes[ST_MAX_RANK + 1];
    axes_of(load, t, axes);
    b->rank = (int) strlen(axes);
    b->bytes = clinfer_dtype_size(dtype);
    for (int i = 0; i < b->rank; i++) {
        b->shape[i] = load->axis[(unsigned char) axes[i]];
        if (b->shape[i] && b->bytes > SIZE_MAX / 2 / (size_t) b->shape[i])
            return op_load_fail(load, "%s is too large", t->name);
        b->bytes *= (size_t) b->shape[i];
    }
    if (!(b->data = calloc(b->bytes ? b->bytes : 1, 1)))
        return op_load_fail(load, "no memory for %s", t->name);
    place(load, b);
    return true;
}

// The tensors of K's and V's caches, and the letters of a page's extents and of the groups of a head.
struct cache_names {
    const char *blocks, *scales, *granularity, *page;
    char groups;
};
static const struct cache_names kv_names = { "kv_blocks", "kv_scales", "kv_scale_granularity", "pLSKD", 'G' };
static const struct cache_names v_names = { "v_blocks", "v_scales", "v_scale_granularity", "uLSKW", 'w' };

static bool load_scales(struct op_load *load, clinfer_kv_cache *kv, const struct cache_names *names)
{
    const char *text = st_meta_get(&load->c->file, names->granularity);
    const int64_t groups = load->axis[(unsigned char) names->groups];
    if (!kv->scales)
        return true;
    if (kv->dtype != CLINFER_F8_E4M3)
        return op_load_fail(load, "%s goes with F8_E4M3 blocks, and %s is %s", names->scales, names->blocks,
                            kv->dtype ? clinfer_dtype_str(kv->dtype) : "missing");
    if (groups < 1)
        return op_load_fail(load, "%s: axis 5 is empty", names->scales);
    kv->scale_group = op_groups(kv->head_size, groups);
    if (text && !op_load_int(load, names->granularity, text, &kv->scale_group))
        return false;
    if (kv->scale_group < 1 || kv->scale_group > INT32_MAX ||
        op_groups(kv->head_size, kv->scale_group) != groups)
        return op_load_fail(load, "%s has %lld groups of %lld for a head of %lld", names->scales,
                            (long long) groups, (long long) kv->scale_group, (long long) kv->head_size);
    return true;
}

// An empty cache may claim any extents; products of these are used without a check.
static bool check_page(struct op_load *load, const struct cache_names *names)
{
    int64_t elements = 1;
    for (const char *axis = names->page; *axis; axis++) {
        const int64_t extent = load->axis[(unsigned char) *axis];
        if (extent > ((int64_t) 1 << 48) / elements)
            return op_load_fail(load, "%s: a page is too large", names->blocks);
        elements *= extent;
    }
    return true;
}

// V's own view, where the op may have one and the file has its blocks.
static bool load_v_cache(struct op_load *load)
{
    clinfer_kv_cache *v = field(load, load->c->op->kv_v);
    if (!load->c->op->kv_v || (!v->dtype && !v->scales))
        return true;
    return (!v->dtype || check_page(load, &v_names)) && load_scales(load, v, &v_names);
}

static bool load_cache(struct op_load *load)
{
    clinfer_kv_cache *kv = field(load, load->c->op->kv);
    const int64_t layer = *(const int64_t *) field(load, load->c->op->layer);
    if (load->axis['p'] > 2)
        return op_load_fail(load, "kv_blocks: axis 1 is %lld, not 1 or 2", (long long) load->axis['p']);
    if (layer < 0 || layer >= kv->num_layers)
        return op_load_fail(load, "layer_idx is %lld, the cache has %lld layers", (long long) layer,
                            (long long) kv->num_layers);
    if (load->axis['O'] != load->axis['B'] + 1)
        return op_load_fail(load, "input_row_offsets has %lld entries for %lld requests",
                            (long long) load->axis['O'], (long long) load->axis['B']);
    return check_page(load, &kv_names) && load_scales(load, kv, &kv_names) && load_v_cache(load);
}

static bool load_op(struct op_load *load)
{
    const struct op_desc *op = load->c->op;
    if (!(load->c->params = calloc(1, op->params_size)))
        return op_load_fail(load, "no memory");
    for (const struct op_scalar *s = op->scalars; s->name; s++)
        if (!load_scalar(load, s))
            return false;
    for (int i = 0; i < op->num_tensors; i++)
        if (!(op->tensors[i].role == OP_OUT ? load_output : load_input)(load, &op->tensors[i]))
            return false;
    op_case_reset(load->c);
    return op->kv ? load_cache(load) && op->check(load) && op_check_contents(load) : op->check(load);
}

bool op_case_take(const char *name, struct op_case *c, char *error, size_t error_size)
{
    struct op_load load = { 0 };
    load.path = name;
    load.c = c;
    load.error = error;
    load.error_size = error_size;
    for (int i = 0; i < 128; i++)
        load.axis[i] = -1;
    const char *op = st_meta_get(&c->file, "op");
    bool ok = op ? (c->op = op_find(op)) != NULL || op_load_fail(&load, "no op is called \"%s\"", op)
                 : op_load_fail(&load, "metadata op is missing");
    if (!(ok = ok && load_op(&load)))
        op_case_free(c);
    return ok;
}

bool op_case_load(const char *path, struct op_case *c, char *error, size_t error_size)
{
    memset(c, 0, sizeof *c);
    return st_read(path, &c->file, error, error_size) && op_case_take(path, c, error, error_size);
}
