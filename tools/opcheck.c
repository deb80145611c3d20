// SPDX-License-Identifier: Apache-2.0
// What a case file may hold beyond the tables: relations between extents, and contents that only a device
// would see when a program calls the op.
#include "opcase.h"

#include <string.h>

#include "../ref/ref.h"

typedef long long ll;

static bool check_rope(struct op_load *load, const char *name, char axis)
{
    const int64_t r = load->axis['R'], size = load->axis[(unsigned char) axis];
    if (r % 2)
        return op_load_fail(load, "freqs_cis has %lld columns, an odd number", (ll) r);
    if (r > size)
        return op_load_fail(load, "freqs_cis has %lld columns, %s only %lld", (ll) r, name, (ll) size);
    return true;
}

static bool load_sections(struct op_load *load, struct clinfer_fused_qk_rope_params *p)
{
    const char *text = st_meta_get(&load->c->file, "mrope_section");
    for (const char *at = text; at && *at;) {
        char number[16] = "";
        const size_t n = strcspn(at, ",");
        int64_t end = 0;
        if (p->num_mrope_sections == CLINFER_MAX_MROPE_SECTIONS || n >= sizeof number ||
            (at[n] && !at[n + 1]))
            return op_load_fail(load, "metadata mrope_section: \"%s\" is no list of at most %d numbers", text,
                                CLINFER_MAX_MROPE_SECTIONS);
        memcpy(number, at, n);
        if (!op_load_int(load, "mrope_section", number, &end))
            return false;
        const int last = p->num_mrope_sections ? p->mrope_section[p->num_mrope_sections - 1] : 0;
        if (end <= last || end > INT32_MAX)
            return op_load_fail(load, "metadata mrope_section: %lld does not ascend from %d", (ll) end, last);
        p->mrope_section[p->num_mrope_sections++] = (int) end;
        at += n + (at[n] == ',');
    }
    return true;
}

static bool check_ids(struct op_load *load, const struct clinfer_fused_qk_rope_params *p)
{
    const int64_t used = ref_u32(&p->batch.input_row_offsets, load->axis['B'], 0);
    for (int64_t d = 0; d < p->freqs_cis.shape[1]; d += 2) {
        const int s = ref_section_of(p, d);
        for (int64_t i = 0; i < used && i < p->q_proj.shape[0]; i++)
            if (ref_u32(&p->position_ids, s, i) >= p->freqs_cis.shape[0])
                return op_load_fail(load, "position_ids[%d][%lld] is %lld, freqs_cis has %lld rows", s,
                                    (ll) i, (ll) ref_u32(&p->position_ids, s, i), (ll) p->freqs_cis.shape[0]);
    }
    return true;
}

static bool check_sections(struct op_load *load, const struct clinfer_fused_qk_rope_params *p)
{
    const int64_t sections = p->num_mrope_sections, rows = p->position_ids.shape[0];
    if (!p->position_ids.rank)
        return !sections || op_load_fail(load, "mrope_section without position_ids");
    if (sections ? rows != sections : rows < 1)
        return op_load_fail(load, "position_ids has %lld rows, mrope_section %lld sections", (ll) rows,
                            (ll) sections);
    return check_ids(load, p);
}

bool op_check_fused_qk_rope(struct op_load *load)
{
    struct clinfer_fused_qk_rope_params *p = load->c->params;
    load->c->total = load->axis['T'];
    if (load->axis['H'] % load->axis['K'])
        return op_load_fail(load, "%lld query heads do not divide among %lld KV heads", (ll) load->axis['H'],
                            (ll) load->axis['K']);
    if (!p->interleaved && load->axis['Q'] != load->axis['D'])
        return op_load_fail(load, "split halves: a head of q_proj is %lld wide, of kv_blocks %lld",
                            (ll) load->axis['Q'], (ll) load->axis['D']);
    return check_rope(load, "a head of q_proj", 'Q') && check_rope(load, "a head of kv_blocks", 'D') &&
           load_sections(load, p) && check_sections(load, p);
}

bool op_check_rms_norm_kv_cache(struct op_load *load)
{
    struct clinfer_rms_norm_kv_cache_params *p = load->c->params;
    const int64_t n = load->axis['g'], head = load->axis['D'];
    const int64_t row = p->rows == CLINFER_PER_HEAD ? head : head * load->axis['K'];
    p->total_seq_len = load->c->total = ref_u32(&p->batch.input_row_offsets, load->axis['B'], 0);
    return n <= row || op_load_fail(load, "gamma has %lld elements, a row %lld", (ll) n, (ll) row);
}

static bool check_mla_cache(struct op_load *load)
{
    const int64_t c = load->axis['C'], r = load->axis['R'], d = load->axis['D'];
    if (load->axis['p'] != 1 || load->axis['K'] != 1)
        return op_load_fail(load, "kv_blocks has %lld planes and %lld heads, an MLA cache one of each",
                            (ll) load->axis['p'], (ll) load->axis['K']);
    if (c > d || r != d - c)
        return op_load_fail(load, "a row of kv_blocks is %lld wide, not %lld + %lld", (ll) d, (ll) c, (ll) r);
    return check_rope(load, "a row of kv_blocks", 'D');
}

bool op_check_mla_fused_rope_rmsnorm(struct op_load *load)
{
    load->c->total = load->axis['T'];
    return check_mla_cache(load);
}

static bool load_granularity(struct op_load *load, const char *name, int64_t *value)
{
    const char *text = st_meta_get(&load->c->file, name);
    if (!text)
        return op_load_fail(load, "metadata %s is missing", name);
    if (!op_load_int(load, name, text, value))
        return false;
    return (*value >= 1 && *value <= INT32_MAX) ||
           op_load_fail(load, "metadata %s is %lld", name, (ll) *value);
}

static bool check_blocks(struct op_load *load, const char *name, const int64_t *have, int64_t rows,
                         int64_t cols)
{
    return (have[0] == rows && have[1] == cols) ||
           op_load_fail(load, "%s has %lld x %lld blocks, not %lld x %lld", name, (ll) have[0], (ll) have[1],
                        (ll) rows, (ll) cols);
}

// The two weights of MLA and their scales, as both branches have them; rows and columns are the last axes.
struct weights {
    const char *name, *scale_name;
    clinfer_tensor *w, *scale;
};

static bool check_weights(struct op_load *load, const struct weights pair[2], int64_t *n, int64_t *k)
{
    int64_t m = 1;
    const clinfer_dtype type = pair[0].w->dtype;
    if (type != pair[1].w->dtype)
        return op_load_fail(load, "%s is %s, %s %s", pair[0].name, clinfer_dtype_str(type), pair[1].name,
                            clinfer_dtype_str(pair[1].w->dtype));
    if (type != CLINFER_F8_E4M3) { // scales are then keys that nothing asks for
        *pair[0].scale = *pair[1].scale = (clinfer_tensor){ 0 };
        return true;
    }
    if (!load_granularity(load, "m_scale_granularity", &m) ||
        !load_granularity(load, "n_scale_granularity", n) ||
        !load_granularity(load, "k_scale_granularity", k))
        return false;
    if (m != 1)
        return op_load_fail(load, "metadata m_scale_granularity is %lld, not 1", (ll) m);
    for (int i = 0; i < 2; i++) {
        const clinfer_tensor *w = pair[i].w, *scale = pair[i].scale;
        if (!scale->rank)
            return op_load_fail(load, "tensor %s is missing", pair[i].scale_name);
        if (!check_blocks(load, pair[i].scale_name, scale->shape + scale->rank - 2,
                          op_groups(w->shape[w->rank - 2], *n), op_groups(w->shape[w->rank - 1], *k)))
            return false;
    }
    return true;
}

static bool check_mla_query(struct op_load *load, int64_t nope)
{
    load->c->total = load->axis['T'];
    return (load->axis['R'] <= load->axis['X'] && nope == load->axis['X'] - load->axis['R']) ||
           op_load_fail(load, "a head of q is %lld wide, not %lld + %lld", (ll) load->axis['X'], (ll) nope,
                        (ll) load->axis['R']);
}

static bool check_window(struct op_load *load, clinfer_mask mask, int64_t window)
{
    const bool windowed = mask != CLINFER_MASK_CAUSAL && mask != CLINFER_MASK_NULL;
    return !windowed || window >= 1 ||
           op_load_fail(load, "local_window_size is %lld, the mask needs at least 1", (ll) window);
}

bool op_check_mla_decode_branch(struct op_load *load)
{
    struct clinfer_mla_decode_branch_params *p = load->c->params;
    const struct weights pair[] = { { "w_uk", "w_uk_scale", &p->w_uk, &p->w_uk_scale },
                                    { "w_uv", "w_uv_scale", &p->w_uv, &p->w_uv_scale } };
    return check_mla_query(load, load->axis['N']) && check_window(load, p->mask, p->local_window_size) &&
           check_mla_cache(load) && check_weights(load, pair, &p->n_granularity, &p->k_granularity);
}

bool op_check_mla_prefill_branch(struct op_load *load)
{
    struct clinfer_mla_prefill_branch_params *p = load->c->params;
    const struct weights pair[] = { { "w_k", "w_k_scale", &p->w_k, &p->w_k_scale },
                                    { "w_uv", "w_uv_scale", &p->w_uv, &p->w_uv_scale } };
    const int64_t heads = load->axis['H'], rows = load->axis['Z'];
    if (rows % heads)
        return op_load_fail(load, "w_k has %lld rows, which %lld heads do not share", (ll) rows, (ll) heads);
    if (p->chunk_tokens < 0)
        return op_load_fail(load, "chunk_tokens is %lld", (ll) p->chunk_tokens);
    return check_mla_query(load, rows / heads) && check_window(load, p->mask, p->local_window_size) &&
           check_mla_cache(load) && check_weights(load, pair, &p->n_granularity, &p->k_granularity);
}

bool op_check_kv_store(struct op_load *load)
{
    const struct clinfer_kv_store_params *p = load->c->params;
    load->c->total = load->axis['T'];
    if (p->kv_v.dtype)
        return load->axis['u'] == 1 ||
               op_load_fail(load, "v_blocks has %lld planes, not 1", (ll) load->axis['u']);
    if (p->v.rank && load->axis['p'] == 1)
        return op_load_fail(load, "v goes to the second plane, and kv_blocks has 1");
    if (p->v.rank && load->axis['W'] != load->axis['D'])
        return op_load_fail(load, "a head of v is %lld wide, of kv_blocks %lld", (ll) load->axis['W'],
                            (ll) load->axis['D']);
    return true;
}

bool op_check_silu_mul(struct op_load *load)
{
    load->c->total = load->axis['T'];
    return load->axis['Y'] % 2 == 0 ||
           op_load_fail(load, "x has %lld columns, an odd number", (ll) load->axis['Y']);
}

bool op_check_rms_norm(struct op_load *load)
{
    load->c->total = load->axis['T'];
    return true;
}

bool op_check_merge_states(struct op_load *load)
{
    load->c->total = load->axis['T'];
    return true;
}

bool op_check_paged_attention(struct op_load *load)
{
    const struct clinfer_paged_attention_params *p = load->c->params;
    load->c->total = load->axis['T'];
    if (load->axis['H'] % load->axis['K'])
        return op_load_fail(load, "%lld query heads do not divide among %lld KV heads", (ll) load->axis['H'],
                            (ll) load->axis['K']);
    if (p->kv_v.dtype && load->axis['u'] != 1)
        return op_load_fail(load, "v_blocks has %lld planes, not 1", (ll) load->axis['u']);
    if (!p->kv_v.dtype && load->axis['p'] == 1)
        return op_load_fail(load, "V is in the second plane, and kv_blocks has 1");
    if (!(p->softcap >= 0))
        return op_load_fail(load, "softcap is %g, not 0 or more", (double) p->softcap);
    return check_window(load, p->mask, p->local_window_size);
}

// What w_scale must be with weights of a type that has scales.
static bool check_matmul_scale(struct op_load *load, const struct clinfer_matmul_params *p)
{
    const bool fp8 = p->w.dtype == CLINFER_F8_E4M3;
    const int64_t gn = fp8 ? p->n_granularity : 1, gk = fp8 ? p->k_granularity : 32;
    if (!p->w_scale.rank || p->w_scale.dtype != (fp8 ? CLINFER_F32 : CLINFER_F16))
        return op_load_fail(load, "w is %s and wants a w_scale of type %s", clinfer_dtype_str(p->w.dtype),
                            fp8 ? "F32" : "F16");
    if (gn < 1 || gk < 1 || gn > INT32_MAX || gk > INT32_MAX)
        return op_load_fail(load, "n_scale_granularity is %lld, k_scale_granularity %lld", (ll) gn, (ll) gk);
    if (load->axis['i'] != op_groups(load->axis['U'], gn) ||
        load->axis['j'] != op_groups(load->axis['E'], gk))
        return op_load_fail(load, "w_scale is %lld x %lld, blocks of %lld x %lld want %lld x %lld",
                            (ll) load->axis['i'], (ll) load->axis['j'], (ll) gn, (ll) gk,
                            (ll) op_groups(load->axis['U'], gn), (ll) op_groups(load->axis['E'], gk));
    return true;
}

bool op_check_matmul(struct op_load *load)
{
    const struct clinfer_matmul_params *p = load->c->params;
    load->c->total = load->axis['T'];
    if (p->bias.rank && !load->flat)
        return op_load_fail(load, "bias does not go with a batch");
    if (p->x_scale_bound < 0)
        return op_load_fail(load, "x_scale_bound is %g", (double) p->x_scale_bound);
    if (p->w.dtype == CLINFER_F8_E4M3 || p->w.dtype == CLINFER_I8)
        return check_matmul_scale(load, p);
    return !p->w_scale.rank || op_load_fail(load, "w_scale with w of type %s", clinfer_dtype_str(p->w.dtype));
}

static bool check_offsets(struct op_load *load, const clinfer_tensor *offsets)
{
    uint32_t last = 0;
    for (int64_t b = 0; b <= load->axis['B']; b++) {
        const uint32_t at = ref_u32(offsets, b, 0);
        if (b ? at < last : at != 0)
            return op_load_fail(load, "input_row_offsets[%lld] is %lld: they do not ascend from 0", (ll) b,
                                (ll) at);
        last = at;
    }
    return last <= load->c->total ||
           op_load_fail(load, "input_row_offsets ends at %lld, there are %lld tokens", (ll) last,
                        (ll) load->c->total);
}

static bool check_pages(struct op_load *load, const clinfer_tensor *table, int64_t b, int64_t from,
                        int64_t to)
{
    const clinfer_kv_cache *kv = op_case_kv(load->c);
    if (op_groups(to, kv->page_size) > table->shape[1])
        return op_load_fail(
            load, "request %lld reaches position %lld, lookup_table has %lld columns of %lld tokens", (ll) b,
            (ll) to - 1, (ll) table->shape[1], (ll) kv->page_size);
    for (int64_t column = from / kv->page_size; column <= (to - 1) / kv->page_size; column++)
        if (ref_u32(table, b, column) >= kv->num_pages)
            return op_load_fail(load, "lookup_table[%lld][%lld] is page %lld, the cache has %lld", (ll) b,
                                (ll) column, (ll) ref_u32(table, b, column), (ll) kv->num_pages);
    return true;
}

bool op_check_contents(struct op_load *load)
{
    const clinfer_kv_batch *batch = op_case_batch(load->c);
    const bool by_position = load->axis['R'] > 0 && !op_case_buffer(load->c, "position_ids");
    if (!check_offsets(load, &batch->input_row_offsets))
        return false;
    for (int64_t b = 0; b < load->axis['B']; b++) {
        const int64_t cached = ref_u32(&batch->cache_lengths, b, 0);
        const int64_t end =
            cached + ref_u32(&batch->input_row_offsets, b + 1, 0) - ref_u32(&batch->input_row_offsets, b, 0);
        if (end == cached)
            continue;
        if (by_position && end > load->axis['F'])
            return op_load_fail(load, "request %lld reaches position %lld, freqs_cis has %lld rows", (ll) b,
                                (ll) end - 1, (ll) load->axis['F']);
        if (!check_pages(load, &batch->lookup_table, b, load->c->op->reads_context ? 0 : cached, end))
            return false;
    }
    return true;
}
