// SPDX-License-Identifier: Apache-2.0
#include "rig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LAYERS = 2, LAYER = 1, HEADS = 2, ROW = 48, ROPE = 16, LATENT = 32, NOPE = 16, VALUES = 16 };

const struct rig_batch rig_default = { .cached = { 5, 0, 9 },
                                       .fresh = { 3, 1, 2 },
                                       .page_size = 4,
                                       .columns = 4,
                                       .freqs = RIG_FREQS,
                                       .poison = RIG_NAN };

int rig_cache_op(int from)
{
    while (from < op_num_descs && !op_descs[from].kv)
        from++;
    return from;
}

static void *get(size_t n)
{
    void *p = malloc(n);
    if (!p) {
        fprintf(stderr, "rig: no memory\n");
        abort();
    }
    return p;
}

// The extent of an axis by the letters of tools/opdesc.c.
static int64_t extent(const struct rig *r, char axis)
{
    const struct {
        char axis;
        int64_t n;
    } list[] = { { 'T', RIG_TOKENS },
                 { 'H', HEADS },
                 { 'Q', ROW },
                 { 'F', r->batch.freqs },
                 { 'R', ROPE },
                 { 'P', RIG_PAGES },
                 { 'p', strncmp(r->op->name, "mla", 3) ? 2 : 1 },
                 { 'L', LAYERS },
                 { 'S', r->batch.page_size },
                 { 'K', 1 },
                 { 'D', ROW },
                 { 'W', ROW },
                 { 'g', ROW },
                 { 'C', LATENT },
                 { 'N', NOPE },
                 { 'Z', HEADS * NOPE },
                 { 'V', VALUES },
                 { 'X', NOPE + ROPE },
                 { 'B', RIG_REQUESTS },
                 { 'O', RIG_REQUESTS + 1 },
                 { 'M', r->batch.columns },
                 { 'Y', 2 * ROW },
                 { 'h', HEADS },
                 { 'E', ROW },
                 { 'U', VALUES },
                 { 'y', ROW },
                 { 'n', r->batch.position_ids } };
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (list[i].axis == axis)
            return list[i].n;
    abort();
}

static clinfer_kv_cache *kv_of(struct rig *r, union rig_params *p)
{
    return (clinfer_kv_cache *) ((char *) p + r->op->kv);
}

static void describe_cache(struct rig *r)
{
    clinfer_kv_cache *kv = kv_of(r, &r->params);
    *kv = (clinfer_kv_cache){ .offset = RIG_GUARD,
                              .dtype = CLINFER_F32,
                              .num_pages = RIG_PAGES,
                              .planes = (int) extent(r, 'p'),
                              .num_layers = LAYERS,
                              .page_size = r->batch.page_size,
                              .num_heads = 1,
                              .head_size = ROW };
    *(int64_t *) ((char *) &r->params + r->op->layer) = LAYER;
}

static void add_buffer(struct rig *r, const struct op_tensor *t)
{
    struct rig_buffer *b = &r->buffer[r->num_buffers++];
    int64_t n = 1;
    b->tensor = t;
    for (const char *c = t->axes; *c; c++)
        n *= extent(r, *c);
    b->size = 2 * RIG_GUARD + (size_t) n * 4;
    b->initial = get(b->size);
    b->want = get(b->size);
    b->got = get(b->size);
    memset(b->initial, r->batch.poison, b->size);
    memset(b->initial, RIG_NAN, RIG_GUARD);
    memset(b->initial + b->size - RIG_GUARD, RIG_NAN, RIG_GUARD);
    if (t->place == OP_BLOCKS) {
        describe_cache(r);
        return;
    }
    clinfer_tensor *v = (clinfer_tensor *) ((char *) &r->params + t->offset);
    *v = (clinfer_tensor){ .offset = RIG_GUARD,
                           .dtype = t->types & 1u << CLINFER_U32 ? CLINFER_U32 : CLINFER_F32,
                           .rank = (int) strlen(t->axes) };
    for (int i = 0; i < v->rank; i++)
        v->shape[i] = extent(r, t->axes[i]);
}

// A number in [-1, 1) that tensor and index choose.
static float value_of(const char *name, int64_t i)
{
    uint32_t h = 2166136261u;
    for (; *name; name++)
        h = (h ^ (unsigned char) *name) * 16777619u;
    h = (h ^ (uint32_t) i) * 2654435761u;
    h = (h ^ h >> 15) * 2246822519u;
    h = (h ^ h >> 13) * 3266489917u;
    return (float) (h >> 8) / 8388608.0f - 1.0f;
}

struct rig_buffer *rig_buffer(struct rig *r, const char *tensor)
{
    for (int i = 0; i < r->num_buffers; i++)
        if (!strcmp(r->buffer[i].tensor->name, tensor))
            return &r->buffer[i];
    fprintf(stderr, "rig: %s has no %s\n", r->op->name, tensor);
    abort();
}

uint32_t *rig_u32(struct rig *r, const char *tensor)
{
    return (uint32_t *) (void *) (rig_buffer(r, tensor)->initial + RIG_GUARD);
}

static int64_t used_tokens(const struct rig *r)
{
    return r->op->kv ? r->batch.fresh[0] + r->batch.fresh[1] + r->batch.fresh[2] : RIG_TOKENS;
}

// Physical page of a column: scattered over the cache, or one after another; full cached pages may be shared.
static uint32_t page_of(const struct rig *r, int64_t request, int64_t column)
{
    if (r->batch.share && (column + 1) * r->batch.page_size <= r->batch.cached[request])
        request = 0;
    const int64_t i = request * r->batch.columns + column;
    return (uint32_t) (r->batch.contiguous ? i : (i * 7 + 11) % RIG_PAGES);
}

unsigned char *rig_row(struct rig *r, unsigned char *image, int64_t request, int64_t position)
{
    const int64_t S = r->batch.page_size, page = page_of(r, request, position / S);
    const int64_t slot = ((page * extent(r, 'p')) * LAYERS + LAYER) * S + position % S;
    return image + RIG_GUARD + slot * RIG_ROW_BYTES;
}

int64_t rig_plane_bytes(const struct rig *r)
{
    return LAYERS * r->batch.page_size * RIG_ROW_BYTES;
}

static void fill_batch(struct rig *r)
{
    uint32_t *offsets = rig_u32(r, "input_row_offsets"), *lengths = rig_u32(r, "cache_lengths"),
             *table = rig_u32(r, "lookup_table");
    offsets[0] = 0;
    for (int64_t b = 0; b < RIG_REQUESTS; b++) {
        offsets[b + 1] = offsets[b] + (uint32_t) r->batch.fresh[b];
        lengths[b] = (uint32_t) r->batch.cached[b];
        const int64_t keys = r->batch.cached[b] + r->batch.fresh[b];
        for (int64_t c = 0; c < r->batch.columns && c * r->batch.page_size < keys; c++)
            table[b * r->batch.columns + c] = page_of(r, b, c);
    }
}

// Rows of the cache by position, so that two layouts of one call have the same contents.
static void fill_cache(struct rig *r)
{
    unsigned char *image = rig_buffer(r, "kv_blocks")->initial;
    for (int64_t b = 0; b < RIG_REQUESTS; b++)
        for (int64_t p = 0;
             p < r->batch.cached[b] + r->batch.fresh[b] && p < r->batch.columns * r->batch.page_size; p++) {
            float row[2 * ROW];
            const int64_t whose = r->batch.same_prefix && p < r->batch.cached[b] ? 0 : b;
            for (int i = 0; i < ROW; i++) {
                row[i] = value_of("row", (whose * 1000 + p) * ROW + i);
                row[ROW + i] = value_of("value", (whose * 1000 + p) * ROW + i);
            }
            unsigned char *to = rig_row(r, image, b, p);
            memcpy(to, row, RIG_ROW_BYTES);
            if (r->op->reads_context && r->op->kv_v) // and reads V
                memcpy(to + rig_plane_bytes(r), row + ROW, RIG_ROW_BYTES);
        }
}

// Inputs by token end at the last request's; ids name rows of the table.
static void fill_tensor(struct rig *r, struct rig_buffer *b)
{
    const int64_t all = (int64_t) (b->size - 2 * RIG_GUARD) / 4;
    const int64_t rows = b->tensor->axes[0] == 'T' ? used_tokens(r) : 1,
                  of = b->tensor->axes[0] == 'T' ? RIG_TOKENS : 1;
    float *to = (float *) (void *) (b->initial + RIG_GUARD);
    if (b->tensor->role == OP_OUT)
        return;
    for (int64_t i = 0; i < all / of * rows; i++)
        to[i] = strstr(b->tensor->name, "gamma") ? 1.0f + 0.2f * value_of(b->tensor->name, i)
                                                 : value_of(b->tensor->name, i);
    if (!strcmp(b->tensor->name, "position_ids"))
        for (int64_t i = 0; i < all; i++)
            rig_u32(r, "position_ids")[i] = (uint32_t) (i * 5 % r->batch.freqs);
}

static void set_scalars(struct rig *r)
{
    if (!strcmp(r->op->name, "fused_qk_rope")) {
        r->params.rope.interleaved = 1;
        r->params.rope.num_mrope_sections = r->batch.position_ids > 1 ? r->batch.position_ids : 0;
        for (int i = 0; i < r->params.rope.num_mrope_sections; i++)
            r->params.rope.mrope_section[i] = ROPE * (i + 1) / r->batch.position_ids;
    } else if (!strcmp(r->op->name, "rms_norm_kv_cache")) {
        r->params.norm.epsilon = 1e-5f;
        r->params.norm.total_seq_len = RIG_TOKENS;
    } else if (!strcmp(r->op->name, "mla_fused_rope_rmsnorm")) {
        r->params.store.epsilon = 1e-5f;
    } else if (!strcmp(r->op->name, "mla_decode_branch")) {
        r->params.decode.epsilon = 1e-5f;
        r->params.decode.scale = 0.2f;
    } else if (!strcmp(r->op->name, "rms_norm")) {
        r->params.rms_norm.epsilon = 1e-5f;
    } else if (!strcmp(r->op->name, "paged_attention")) {
        r->params.attention.scale = 0.2f;
    } else if (!strcmp(r->op->name, "mla_prefill_branch")) {
        r->params.prefill.epsilon = 1e-5f;
        r->params.prefill.scale = 0.2f;
        r->params.prefill.chunk_tokens = 6; // three of them
    }
}

void rig_make(struct rig *r, const char *op, const struct rig_batch *batch)
{
    memset(r, 0, sizeof *r);
    r->op = op_find(op);
    r->batch = batch ? *batch : rig_default;
    if (!r->op)
        abort();
    for (int i = 0; i < r->op->num_tensors; i++) {
        const struct op_tensor *t = &r->op->tensors[i];
        if (!t->optional || !strcmp(t->name, "v") || !strcmp(t->name, "residual") ||
            (!strcmp(t->name, "position_ids") && r->batch.position_ids))
            add_buffer(r, t);
    }
    if (r->op->kv) {
        fill_batch(r);
        fill_cache(r);
    }
    for (int i = 0; i < r->num_buffers; i++)
        if (r->buffer[i].tensor->place == OP_TENSOR && !strchr("OB", r->buffer[i].tensor->axes[0]))
            fill_tensor(r, &r->buffer[i]);
    set_scalars(r);
}

void rig_free(struct rig *r)
{
    rig_close(r);
    for (int i = 0; i < r->num_buffers; i++) {
        free(r->buffer[i].initial);
        free(r->buffer[i].want);
        free(r->buffer[i].got);
    }
    r->num_buffers = 0;
}
