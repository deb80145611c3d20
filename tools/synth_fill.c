// SPDX-License-Identifier: Apache-2.0
#include "synth_fill.h"

#include <math.h>
#include <string.h>

#include "../ref/ref.h"

enum { MAX_PAGES = 1024 };

struct filler {
    const struct op_desc *op;
    const struct synth_batch *batch;
    const struct st_file *file;
    uint64_t random;
};

static uint64_t bits(struct filler *f)
{
    uint64_t z = f->random += UINT64_C(0x9e3779b97f4a7c15); // splitmix64
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static uint32_t below(struct filler *f, int64_t n)
{
    return (uint32_t) (bits(f) % (uint64_t) n);
}

// Mean 0, variance 1, by sums alone: the same on every host.
static double noise(struct filler *f)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += (double) (bits(f) >> 11) * 0x1p-53;
    return sum;
}

// One in eight is small: subnormal in a narrow type, perhaps.
static double uneven_noise(struct filler *f)
{
    const double x = noise(f);
    return bits(f) % 8 ? x : ldexp(x, -(int) below(f, 20));
}

static void set_u32(struct st_tensor *t, int64_t i, uint32_t x)
{
    memcpy(t->data + (size_t) i * sizeof x, &x, sizeof x);
}

static uint32_t get_u32(const struct st_tensor *t, int64_t i)
{
    uint32_t x;
    memcpy(&x, t->data + (size_t) i * sizeof x, sizeof x);
    return x;
}

static int64_t keys_of(const struct filler *f, int request)
{
    const int64_t fresh = f->batch->request[request].fresh;
    return fresh ? f->batch->request[request].cached + fresh : 0;
}

// The first position that the op may touch.
static int64_t first_of(const struct filler *f, int request)
{
    return f->op->reads_context ? 0 : f->batch->request[request].cached;
}

// Pages in any order, and in the table only those that the op may need.
static void fill_table(struct filler *f, struct st_tensor *t, int64_t pages)
{
    uint32_t order[MAX_PAGES];
    int64_t next = 0;
    pages = pages < MAX_PAGES ? pages : MAX_PAGES;
    for (int64_t i = 0; i < pages; i++) {
        const uint32_t j = below(f, i + 1);
        order[i] = order[j];
        order[j] = (uint32_t) i;
    }
    for (int i = 0; i < f->batch->requests; i++)
        for (int64_t page = first_of(f, i) / f->batch->page_size;
             page < op_groups(keys_of(f, i), f->batch->page_size) && next < pages; page++)
            set_u32(t, i * t->shape[1] + page, order[next++]);
}

static void fill_batch(struct filler *f)
{
    struct st_tensor *offsets = st_find(f->file, "input_row_offsets"),
                     *lengths = st_find(f->file, "cache_lengths"), *table = st_find(f->file, "lookup_table");
    const struct st_tensor *blocks = st_find(f->file, "kv_blocks");
    uint32_t offset = 0;
    if (!offsets || !lengths || !table || !blocks)
        return;
    set_u32(offsets, 0, 0);
    for (int i = 0; i < f->batch->requests; i++) {
        set_u32(offsets, i + 1, offset += (uint32_t) f->batch->request[i].fresh);
        set_u32(lengths, i, (uint32_t) f->batch->request[i].cached);
    }
    fill_table(f, table, blocks->shape[0]);
}

static const struct content {
    const char *name;
    double mean, spread;
    double codes; // the spread of fp8 and of int8
} contents[] = {
    { "gamma", 1, 0.3, 0 },          { "kv_norm_gamma", 1, 0.3, 0 },
    { "w_uk", 0, 0.1, 60 },          { "w_uv", 0, 0.1, 60 },
    { "w_uk_scale", 2e-3, 4e-4, 0 }, { "w_uv_scale", 2e-3, 4e-4, 0 },
    { "kv_input", 0.1, 1.5, 0 },     { "w", 0, 0.1, 60 },
    { "w_scale", 2e-3, 4e-4, 0 },    { "w_k", 0, 0.1, 60 },
    { "w_k_scale", 2e-3, 4e-4, 0 },
};

static void fill_floats(struct filler *f, struct st_tensor *t, int64_t tokens)
{
    static const struct content other = { NULL, 0, 1, 1 };
    const struct content *c = &other;
    int64_t count = (int64_t) (t->bytes / clinfer_dtype_size(t->dtype));
    for (size_t i = 0; i < sizeof contents / sizeof contents[0]; i++)
        if (!strcmp(contents[i].name, t->name))
            c = &contents[i];
    const bool codes = t->dtype == CLINFER_F8_E4M3 || t->dtype == CLINFER_I8;
    const double spread = codes ? c->codes : c->spread;
    if (tokens >= 0 && t->shape[0])
        count = count / t->shape[0] * tokens;
    for (int64_t i = 0; i < count; i++)
        ref_store(t->data, t->dtype, i, c == &other ? uneven_noise(f) : c->mean + spread * noise(f));
}

static void fill_angles(struct st_tensor *t)
{
    for (int64_t i = 0; i < t->shape[0]; i++)
        for (int64_t j = 0; j < t->shape[1]; j++) {
            const double angle = (double) i * pow(10000, -(double) (j / 2 * 2) / (double) t->shape[1]);
            ref_store(t->data, t->dtype, i * t->shape[1] + j, j % 2 ? sin(angle) : cos(angle));
        }
}

static void fill_ids(struct filler *f, struct st_tensor *t, int64_t tokens)
{
    const struct st_tensor *angles = st_find(f->file, "freqs_cis");
    for (int64_t i = 0; angles && i < t->shape[0]; i++)
        for (int64_t j = 0; j < tokens; j++)
            set_u32(t, i * t->shape[1] + j, below(f, angles->shape[0]));
}

// A position's heads in both planes of the layer, or their scales.
static void fill_row(struct filler *f, struct st_tensor *t, int64_t page, int64_t slot, bool scales,
                     bool scaled)
{
    const int64_t *n = t->shape, heads = n[4] * n[5];
    for (int64_t plane = 0; plane < n[1]; plane++) {
        const int64_t at = (((page * n[1] + plane) * n[2] + f->batch->layer) * n[3] + slot) * heads;
        for (int64_t i = at; i < at + heads; i++)
            ref_store(t->data, t->dtype, i,
                      scales   ? exp2(noise(f)) / 60
                      : scaled ? 60 * noise(f)
                               : uneven_noise(f));
    }
}

static void fill_cache(struct filler *f, struct st_tensor *t, bool scales)
{
    const struct st_tensor *table = st_find(f->file, "lookup_table");
    const int64_t size = f->batch->page_size;
    for (int i = 0; table && i < f->batch->requests; i++)
        for (int64_t pos = first_of(f, i); pos < keys_of(f, i); pos++)
            fill_row(f, t, get_u32(table, i * table->shape[1] + pos / size), pos % size, scales,
                     st_find(f->file, "kv_scales") != NULL);
}

static void fill_tensor(struct filler *f, const struct op_tensor *d, struct st_tensor *t, int64_t tokens)
{
    if (d->place != OP_TENSOR)
        fill_cache(f, t, d->place == OP_SCALES);
    else if (!strcmp(d->name, "freqs_cis"))
        fill_angles(t);
    else if (!strcmp(d->name, "position_ids"))
        fill_ids(f, t, tokens);
    else if (t->dtype != CLINFER_U32)
        fill_floats(f, t, f->op->kv && d->axes[0] == 'T' ? tokens : -1);
}

void synth_fill(const struct op_desc *op, const struct synth *s, const struct synth_batch *batch,
                const struct st_file *file)
{
    struct filler f = { op, batch, file, 1 };
    int64_t tokens = 0;
    for (const char *c = s->name; *c; c++)
        f.random = (f.random ^ (unsigned char) *c) * UINT64_C(0x100000001b3);
    for (int i = 0; i < batch->requests; i++)
        tokens += batch->request[i].fresh;
    fill_batch(&f);
    for (int i = 0; i < op->num_tensors; i++) {
        struct st_tensor *t = op->tensors[i].role == OP_OUT ? NULL : st_find(file, op->tensors[i].name);
        if (t)
            fill_tensor(&f, &op->tensors[i], t, tokens);
    }
}
