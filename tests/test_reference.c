// SPDX-License-Identifier: Apache-2.0
// The reference against the oracle's results, and the comparison against results that are wrong on purpose.
// Needs no device.
#include <criterion/criterion.h>

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../ref/ref.h"
#include "../tools/compare.h"

static const char *data_dir(void)
{
    const char *dir = getenv("CLINFER_TEST_DATA");
    return dir ? dir : "tests/data";
}

static void load(struct op_case *c, const char *name)
{
    char path[1024], error[1024] = "";
    (void) snprintf(path, sizeof path, "%s/%s", data_dir(), name);
    cr_assert(op_case_load(path, c, error, sizeof error), "%s", error);
}

static void check_file(const char *name)
{
    struct op_case c;
    struct cmp_result results[OP_MAX_TENSORS];
    char error[1024] = "";
    load(&c, name);
    c.op->ref(c.params);
    const int n = cmp_expected(&c, results, error, sizeof error);
    cr_expect(n > 0, "%s: nothing to compare: %s", name, error);
    for (int i = 0; i < n; i++)
        cr_expect(results[i].ok, "%s: %s is off by %g, tolerance %g, cosine %g", name, results[i].tensor,
                  results[i].max_err, results[i].tolerance, results[i].cosine);
    op_case_free(&c);
}

Test(reference, agrees_with_every_case)
{
    int files = 0;
    DIR *dir = opendir(data_dir());
    cr_assert(dir, "%s cannot be read", data_dir());
    for (const struct dirent *entry; (entry = readdir(dir));)
        if (strstr(entry->d_name, ".safetensors")) {
            check_file(entry->d_name);
            files++;
        }
    (void) closedir(dir);
    cr_assert(files > 0, "%s holds no case", data_dir());
}

// One tensor of a case, its expected contents, and a copy to spoil.
struct subject {
    struct op_case c;
    const struct op_buffer *b;
    const unsigned char *expected;
    unsigned char *got;
    int64_t elements;
};

static void take(struct subject *s, const char *file, const char *tensor)
{
    char name[128];
    (void) snprintf(name, sizeof name, "%s.safetensors", file);
    load(&s->c, name);
    (void) snprintf(name, sizeof name, "expect.%s", tensor);
    s->b = op_case_buffer(&s->c, tensor);
    s->expected = st_find(&s->c.file, name)->data;
    s->got = malloc(s->b->bytes);
    cr_assert(s->got);
    memcpy(s->got, s->expected, s->b->bytes);
    s->elements = (int64_t) (s->b->bytes / clinfer_dtype_size(s->b->dtype));
}

static void drop(struct subject *s)
{
    free(s->got);
    op_case_free(&s->c);
}

static bool accepted(const struct subject *s)
{
    struct cmp_result result;
    cr_assert(cmp_compare(&s->c, s->b, s->got, s->expected, &result));
    return result.ok;
}

static double expected_at(const struct subject *s, int64_t i)
{
    return ref_load(s->expected, s->b->dtype, i);
}

static double before(const struct subject *s, int64_t i)
{
    return s->b->initial ? ref_load(s->b->initial, s->b->dtype, i) : 0;
}

// The largest element among those that the op changed: there the floor of a tolerance counts least.
static int64_t changed_element(const struct subject *s)
{
    int64_t best = -1;
    for (int64_t i = 0; i < s->elements; i++) {
        const double x = expected_at(s, i);
        if (!isfinite(x) || x == before(s, i))
            continue;
        if (best < 0 || fabs(x) > fabs(expected_at(s, best)))
            best = i;
    }
    cr_assert(best >= 0);
    return best;
}

static double root_mean_square(const struct subject *s)
{
    double sum = 0;
    for (int64_t i = 0; i < s->elements; i++)
        sum += expected_at(s, i) * expected_at(s, i);
    return sqrt(sum / (double) s->elements);
}

enum unit { ULP, SCALE_ULP, RELATIVE, OF_RMS };

static double amount(const struct subject *s, double x, enum unit unit, clinfer_dtype type)
{
    switch (unit) {
    case ULP:
        return ref_ulp(x, type);
    case SCALE_ULP:
        return ref_ulp(448 * x, type) / 448;
    case RELATIVE:
        return fabs(x);
    case OF_RMS:
        return root_mean_square(s);
    }
    return 0;
}

static const struct {
    const char *file, *tensor;
    enum unit unit;
    clinfer_dtype type;
    double by;
    bool right;
} changes[] = {
    { "rope_interleaved_bf16", "output", ULP, CLINFER_BF16, 1, true },
    { "rope_interleaved_bf16", "output", ULP, CLINFER_BF16, 3, false },
    { "rope_interleaved_bf16", "kv_blocks", ULP, CLINFER_BF16, 3, false },
    { "rope_split_partial_f16", "output", ULP, CLINFER_F16, 1, true },
    { "rope_split_partial_f16", "output", ULP, CLINFER_F16, 3, false },
    { "rope_interleaved_f32", "output", RELATIVE, CLINFER_F32, 5e-6, true },
    { "rope_interleaved_f32", "output", RELATIVE, CLINFER_F32, 5e-5, false },
    { "rope_fp8_cache", "kv_blocks", ULP, CLINFER_F8_E4M3, 1, true },
    { "rope_fp8_cache", "kv_blocks", ULP, CLINFER_F8_E4M3, 3, false },
    { "rope_fp8_scaled_cache", "kv_blocks", ULP, CLINFER_F8_E4M3, 1, true },
    { "rope_fp8_scaled_cache", "kv_blocks", ULP, CLINFER_F8_E4M3, 3, false },
    { "rope_fp8_scaled_cache", "kv_scales", RELATIVE, CLINFER_F32, 5e-6, true },
    { "rope_fp8_scaled_cache", "kv_scales", RELATIVE, CLINFER_F32, 1e-4, false },
    { "norm_per_head", "kv_blocks", ULP, CLINFER_BF16, 1, true },
    { "norm_per_head", "kv_blocks", ULP, CLINFER_BF16, 2, false },
    { "norm_cast_first", "kv_blocks", ULP, CLINFER_BF16, 2, true },
    { "norm_cast_first", "kv_blocks", ULP, CLINFER_BF16, 3, false },
    { "norm_f32_cache_bf16_gamma", "kv_blocks", ULP, CLINFER_BF16, 2, true },
    { "norm_f32_cache_bf16_gamma", "kv_blocks", ULP, CLINFER_BF16, 3, false },
    { "norm_fp8_scaled_cache", "kv_blocks", ULP, CLINFER_F8_E4M3, 3, false },
    { "norm_fp8_scaled_cache", "kv_scales", SCALE_ULP, CLINFER_BF16, 1, true },
    { "norm_fp8_scaled_cache", "kv_scales", SCALE_ULP, CLINFER_BF16, 3, false },
    { "mla_store_fp8", "q_rope_output", ULP, CLINFER_F8_E4M3, 2, true },
    { "mla_store_fp8", "q_rope_output", ULP, CLINFER_F8_E4M3, 3, false },
    { "mla_store_bf16", "kv_blocks", ULP, CLINFER_BF16, 3, false },
    { "mla_decode_bf16_weights", "output", ULP, CLINFER_BF16, 1, true },
    { "mla_decode_bf16_weights", "output", OF_RMS, CLINFER_BF16, 0.2, false },
    { "mla_decode_f32_weights", "output", RELATIVE, CLINFER_F32, 5e-7, true },
    { "mla_decode_f32_weights", "output", RELATIVE, CLINFER_F32, 1e-4, false },
    { "mla_decode_small", "output", ULP, CLINFER_BF16, 1, true },
    { "mla_decode_small", "output", OF_RMS, CLINFER_BF16, 0.2, false },
    { "mla_decode_small", "kv_blocks", ULP, CLINFER_BF16, 3, false },
    { "matmul_bf16", "output", ULP, CLINFER_BF16, 1, true },
    { "matmul_bf16", "output", OF_RMS, CLINFER_BF16, 0.2, false },
    { "matmul_f32_one_row", "output", RELATIVE, CLINFER_F32, 1e-6, true },
    { "matmul_f32_one_row", "output", RELATIVE, CLINFER_F32, 1e-4, false },
    { "matmul_fp8", "output", OF_RMS, CLINFER_BF16, 0.2, false },
    { "matmul_batched_fp8", "output", OF_RMS, CLINFER_BF16, 0.2, false },
    { "mla_prefill_bf16_weights", "output", ULP, CLINFER_BF16, 1, true },
    { "mla_prefill_bf16_weights", "output", OF_RMS, CLINFER_BF16, 0.2, false },
    { "mla_prefill_bf16_weights", "kv_blocks", ULP, CLINFER_BF16, 3, false },
    { "mla_prefill_fp8_weights", "output", OF_RMS, CLINFER_BF16, 0.2, false },
    { "store_kv_bf16", "kv_blocks", ULP, CLINFER_BF16, 2, false },
    { "store_kv_f32_to_fp8", "kv_blocks", ULP, CLINFER_F8_E4M3, 2, false },
    { "store_kv_scaled", "kv_blocks", ULP, CLINFER_F8_E4M3, 2, false },
    { "store_kv_scaled", "kv_scales", RELATIVE, CLINFER_F32, 1e-4, false },
    { "silu_mul_bf16", "output", ULP, CLINFER_BF16, 1, true },
    { "silu_mul_bf16", "output", ULP, CLINFER_BF16, 2, false },
    { "rms_norm_residual", "output", ULP, CLINFER_BF16, 1, true },
    { "rms_norm_residual", "output", ULP, CLINFER_BF16, 2, false },
    { "rms_norm_residual", "residual", ULP, CLINFER_BF16, 2, false },
    { "rms_norm_cast_first", "output", ULP, CLINFER_F16, 2, true },
    { "rms_norm_cast_first", "output", ULP, CLINFER_F16, 3, false },
    { "merge_states_bf16", "output", ULP, CLINFER_BF16, 1, true },
    { "merge_states_bf16", "output", OF_RMS, CLINFER_BF16, 0.2, false },
    { "merge_states_f32", "output", RELATIVE, CLINFER_F32, 5e-7, true },
    { "merge_states_f32", "output", RELATIVE, CLINFER_F32, 1e-4, false },
    { "merge_states_f32", "lse", RELATIVE, CLINFER_F32, 5e-6, true },
    { "merge_states_f32", "lse", RELATIVE, CLINFER_F32, 5e-5, false },
    { "attention_gqa_bf16", "output", ULP, CLINFER_BF16, 1, true },
    { "attention_gqa_bf16", "output", OF_RMS, CLINFER_BF16, 0.2, false },
    { "attention_gqa_bf16", "lse", RELATIVE, CLINFER_F32, 5e-5, false },
    { "attention_mha_f32", "output", RELATIVE, CLINFER_F32, 5e-7, true },
    { "attention_mha_f32", "output", RELATIVE, CLINFER_F32, 1e-4, false },
    { "attention_window_sinks", "lse", RELATIVE, CLINFER_F32, 5e-6, true },
};

Test(compare, bounds_what_the_op_wrote)
{
    for (size_t i = 0; i < sizeof changes / sizeof changes[0]; i++) {
        struct subject s;
        take(&s, changes[i].file, changes[i].tensor);
        const int64_t at = changed_element(&s);
        const double x = expected_at(&s, at);
        const double off = changes[i].by * amount(&s, x, changes[i].unit, changes[i].type);
        ref_store(s.got, s.b->dtype, at, x > 0 ? x - off : x + off); // towards 0: it stays representable
        cr_expect_eq(accepted(&s), changes[i].right, "%s: %s: element %lld, %g, off by %g", changes[i].file,
                     changes[i].tensor, (long long) at, x, off);
        drop(&s);
    }
}

Test(compare, bounds_the_cosine_after_quantisation)
{
    struct subject s;
    take(&s, "mla_decode_f32", "output");
    const double step = 0.019 * root_mean_square(&s); // each element passes, the direction does not
    for (int64_t i = 0; i < s.elements; i++)
        ref_store(s.got, s.b->dtype, i, expected_at(&s, i) + (i % 2 ? step : -step));
    struct cmp_result result;
    cr_assert(cmp_compare(&s.c, s.b, s.got, s.expected, &result));
    cr_expect(result.bad == 0 && result.cosine < 0.9999 && !result.ok, "%lld bad, cosine %g",
              (long long) result.bad, result.cosine);
    drop(&s);
}

static void expect_bits_guarded(const char *file, const char *tensor)
{
    struct subject s;
    take(&s, file, tensor);
    const size_t size = clinfer_dtype_size(s.b->dtype);
    const int64_t layer = s.b->shape[3] * s.b->shape[4] * s.b->shape[5];
    int64_t at = 0; // the cases write to layer 1 of 2
    while (at / layer % 2 || !isfinite(expected_at(&s, at)))
        at++;
    s.got[(size_t) at * size] ^= 1;
    cr_expect_not(accepted(&s), "%s: %s: a flipped bit passes", file, tensor);
    drop(&s);
}

Test(compare, wants_the_rest_bit_for_bit)
{
    expect_bits_guarded("rope_interleaved_f32", "kv_blocks");
    expect_bits_guarded("norm_per_head", "kv_blocks");
    expect_bits_guarded("norm_f16", "kv_blocks");
    expect_bits_guarded("mla_store_fp8", "kv_blocks");
    expect_bits_guarded("mla_decode_scaled_cache", "kv_blocks");
    expect_bits_guarded("store_kv_scaled", "kv_blocks");
    expect_bits_guarded("mla_decode_scaled_cache", "kv_scales");
}

Test(compare, guards_copied_dims_and_padding)
{
    struct subject s;
    take(&s, "rope_interleaved_partial", "output");
    s.got[0] ^= 1; // before the last R dims
    cr_expect_not(accepted(&s));
    drop(&s);
    take(&s, "rope_padding_rows", "output");
    s.got[s.b->bytes - 1] ^= 1;
    cr_expect_not(accepted(&s));
    drop(&s);
}

static void expect_nan_guarded(const char *file, const char *tensor)
{
    struct subject s;
    take(&s, file, tensor);
    const int64_t at = changed_element(&s);
    ref_store(s.got, s.b->dtype, at, NAN);
    cr_expect_not(accepted(&s), "%s: %s: NaN in place of a number passes", file, tensor);
    ref_store(s.got, s.b->dtype, at, s.b->dtype == CLINFER_F8_E4M3 ? -expected_at(&s, at) : HUGE_VAL);
    cr_expect_not(accepted(&s), "%s: %s: infinity in place of a number passes", file, tensor);
    drop(&s);
}

Test(compare, tells_nan_from_numbers)
{
    expect_nan_guarded("rope_interleaved_bf16", "output");
    expect_nan_guarded("rope_interleaved_f32", "output");
    expect_nan_guarded("mla_store_fp8", "q_rope_output");
    expect_nan_guarded("mla_decode_small", "output");
    expect_nan_guarded("mla_decode_bf16_weights", "output");
    expect_nan_guarded("norm_fp8_scaled_cache", "kv_scales");
    struct subject s;
    take(&s, "merge_states_f32", "lse"); // its first is -inf
    cr_assert_eq(expected_at(&s, 0), -HUGE_VAL);
    ref_store(s.got, s.b->dtype, 0, -3e38);
    cr_expect_not(accepted(&s), "a number in place of infinity passes");
    drop(&s);
    take(&s, "norm_per_head", "kv_blocks");
    int64_t at = 0;
    while (!isnan(expected_at(&s, at)))
        at++;
    ref_store(s.got, s.b->dtype, at, -NAN);
    cr_expect(accepted(&s), "NaN has many codes");
    ref_store(s.got, s.b->dtype, at, 0);
    cr_expect_not(accepted(&s), "a number in place of NaN passes");
    drop(&s);
}
