// SPDX-License-Identifier: Apache-2.0
#include "synth.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "synth_fill.h"

enum { MAX_META = 24, ALIGNMENT = 64 };

// A call in the making.
struct maker {
    const struct synth *synth;
    const struct op_desc *op;
    const struct synth_batch *batch;
    int64_t axis[128];                   // by letter; -1: not given
    clinfer_dtype dtype[OP_MAX_TENSORS]; // by tensor; 0: not named
    struct st_file *file;
    char *error;
    size_t error_size;
};

static bool fail(const struct maker *m, const char *what, const char *text)
{
    (void) snprintf(m->error, m->error_size, "case %s of %s: %s \"%s\"", m->synth->name, m->synth->op, what,
                    text);
    return false;
}

static bool add_meta(struct maker *m, const char *key, const char *value)
{
    struct st_meta *meta = &m->file->meta[m->file->num_meta];
    if (m->file->num_meta == MAX_META)
        return fail(m, "no room for metadata", key);
    m->file->num_meta++; // a copy that fails is freed as NULL
    meta->key = strdup(key);
    meta->value = strdup(value);
    return (meta->key && meta->value) || fail(m, "no memory for", key);
}

static bool set_type(struct maker *m, int tensor, const char *value)
{
    for (int i = CLINFER_F32; clinfer_dtype_size((clinfer_dtype) i); i++)
        if (!strcmp(clinfer_dtype_str((clinfer_dtype) i), value))
            m->dtype[tensor] = (clinfer_dtype) i;
    return m->dtype[tensor] || fail(m, "no type", value);
}

static bool set_extent(struct maker *m, char letter, const char *value)
{
    char *end;
    m->axis[letter & 127] = strtoll(value, &end, 10);
    return (end != value && !*end) || fail(m, "no extent", value);
}

static bool set_key(struct maker *m, const char *key, const char *value)
{
    for (int i = 0; i < m->op->num_tensors; i++)
        if (!strcmp(m->op->tensors[i].name, key))
            return set_type(m, i, value);
    return key[1] ? add_meta(m, key, value) : set_extent(m, key[0], value);
}

static bool read_text(struct maker *m)
{
    char text[512], *rest = text;
    if (strlen(m->synth->text) >= sizeof text)
        return fail(m, "too long a text", m->synth->text);
    memcpy(text, m->synth->text, strlen(m->synth->text) + 1);
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL;) {
        char *value = strchr(word, '=');
        if (!value || value == word)
            return fail(m, "no KEY=VALUE", word);
        *value++ = 0;
        if (!set_key(m, word, value))
            return false;
    }
    return true;
}

static void set_batch_axes(struct maker *m)
{
    const struct synth_batch *b = m->batch;
    int64_t tokens = b->padding, pages = 2, columns = 1, longest = 1;
    for (int i = 0; i < b->requests; i++) {
        const int64_t keys = b->request[i].fresh ? b->request[i].cached + b->request[i].fresh : 0;
        const int64_t n = op_groups(keys, b->page_size);
        tokens += b->request[i].fresh;
        pages += n;
        columns = n > columns ? n : columns;
        longest = keys > longest ? keys : longest;
    }
    m->axis['T'] = tokens;
    m->axis['B'] = b->requests;
    m->axis['O'] = b->requests + 1;
    m->axis['M'] = columns + 1;
    m->axis['P'] = pages;
    m->axis['S'] = b->page_size;
    m->axis['L'] = b->layers;
    m->axis['F'] = longest; // the last position has the last row
}

static bool add_tensor(struct maker *m, int which, size_t *end)
{
    const struct op_tensor *d = &m->op->tensors[which];
    struct st_tensor *t = &m->file->tensors[m->file->num_tensors];
    const bool whole_number = d->types == 1u << CLINFER_U32;
    if (!m->dtype[which] && d->optional)
        return true;
    if (!(t->name = strdup(d->name)))
        return fail(m, "no memory for", d->name);
    m->file->num_tensors++;
    t->dtype = m->dtype[which] ? m->dtype[which] : whole_number ? CLINFER_U32 : CLINFER_F32;
    t->bytes = clinfer_dtype_size(t->dtype);
    for (const char *axis = d->axes; *axis; axis++) {
        const int64_t extent = m->axis[(unsigned char) *axis];
        if (*axis == 'h' && extent < 0)
            continue;
        if (extent < 0)
            return fail(m, "an axis has no extent:", axis);
        t->shape[t->rank++] = extent;
        t->bytes *= (size_t) extent;
    }
    *end += (t->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    return true;
}

// All inputs, in one block of 0xFF bytes, which are NaN in every type.
static bool add_tensors(struct maker *m)
{
    size_t size = 0, at = 0;
    for (int i = 0; i < m->op->num_tensors; i++)
        if (m->op->tensors[i].role != OP_OUT && !add_tensor(m, i, &size))
            return false;
    m->file->blob = aligned_alloc(ALIGNMENT, size ? size : ALIGNMENT);
    if (!m->file->blob)
        return fail(m, "no memory for the tensors of", m->op->name);
    memset(m->file->blob, 0xFF, size);
    for (int i = 0; i < m->file->num_tensors; i++) {
        struct st_tensor *t = &m->file->tensors[i];
        t->data = m->file->blob + at;
        at += (t->bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    }
    return true;
}

static bool make(struct maker *m)
{
    char layer[24];
    m->file->tensors = calloc(OP_MAX_TENSORS, sizeof *m->file->tensors);
    m->file->meta = calloc(MAX_META, sizeof *m->file->meta);
    if (!m->file->tensors || !m->file->meta)
        return fail(m, "no memory for", m->synth->name);
    if (!(m->op = op_find(m->synth->op)))
        return fail(m, "no op is called", m->synth->op);
    (void) snprintf(layer, sizeof layer, "%lld", (long long) m->batch->layer);
    set_batch_axes(m);
    return add_meta(m, "op", m->op->name) && (!m->op->kv || add_meta(m, "layer_idx", layer)) &&
           read_text(m) && add_tensors(m);
}

bool synth_case(const struct synth *s, const struct synth_batch *batch, struct op_case *c, char *error,
                size_t error_size)
{
    struct maker m = {
        .synth = s, .batch = batch, .file = &c->file, .error = error, .error_size = error_size
    };
    memset(c, 0, sizeof *c);
    for (int i = 0; i < 128; i++)
        m.axis[i] = -1;
    if (!make(&m)) {
        op_case_free(c);
        return false;
    }
    synth_fill(m.op, s, batch, &c->file);
    return op_case_take(s->name, c, error, error_size);
}
