# SPDX-License-Identifier: Apache-2.0
"""What docs/adding-an-op.md has one change in files that are there, for the operation scale_k: (step, file, text that it has once, what
stands after that text then). Step 0 is the beginning of the document."""

EDITS = [
    (0, "meson.build", "'kv_store', 'paged_attention'", ", 'scale_k'"),
    (1, "include/clinfer/clinfer.h", "#include <clinfer/rms_norm_kv_cache.h>\n", "#include <clinfer/scale_k.h>\n"),
    (2, "ref/ref.h", "void ref_kv_store(const struct clinfer_kv_store_params *p);\n",
     "void ref_scale_k(const struct clinfer_scale_k_params *p);\n"),
    (3, "tools/opdesc.c", '    { "layer_idx", FIELD(kv_store, layer_idx), OP_INT64, NULL, NULL },\n};\n', """
static const struct op_tensor scale_k_tensors[] = {
    CACHE_TENSORS(scale_k),
    INPUT(scale_k, factors, F32, "K"),
};
static const struct op_scalar scale_k_scalars[] = {
    { "layer_idx", FIELD(scale_k, layer_idx), OP_INT64, NULL, NULL },
    { "scale", FIELD(scale_k, scale), OP_FLOAT, NULL, NULL },
};
"""),
    (3, "tools/opdesc.c", "    { DESC_FIELDS(kv_store, false), FIELD(kv_store, kv_v) },\n", "    DESC(scale_k, false),\n"),
    (3, "tools/opcheck.c", """                            (ll) load->axis['D']);
    return true;
}
""", """
bool op_check_scale_k(struct op_load *load)
{
    struct clinfer_scale_k_params *p = load->c->params;
    p->total_seq_len = load->c->total = ref_u32(&p->batch.input_row_offsets, load->axis['B'], 0);
    return true;
}
"""),
    (3, "tools/opspans.c", """    return span(spans, 0, own ? p->kv_v.head_size : p->kv.head_size, CLINFER_F32, 1);
}
""", """
int op_spans_scale_k(const struct op_case *c, const char *tensor, int64_t head, struct op_span *spans)
{
    const struct clinfer_scale_k_params *p = c->params;
    (void) tensor, (void) head;
    return span(spans, 0, p->kv.head_size, CLINFER_F32, 1);
}
"""),
    (3, "tools/opcase.h", "bool op_check_kv_store(struct op_load *load);\n", "bool op_check_scale_k(struct op_load *load);\n"),
    (3, "tools/opcase.h", "int op_spans_kv_store(const struct op_case *c, const char *tensor, int64_t head, struct op_span *spans);\n",
     "int op_spans_scale_k(const struct op_case *c, const char *tensor, int64_t head, struct op_span *spans);\n"),
    (3, "tests/test_reference.c", '    { "store_kv_scaled", "kv_scales", RELATIVE, CLINFER_F32, 1e-4, false },\n',
     '    { "scale_k_f32", "kv_blocks", RELATIVE, CLINFER_F32, 1e-4, false },\n'),
    (3, "tests/damaged_files.py", 'cases["gamma missing"] = edited(norm, without("gamma"))\n',
     'cases["factors missing"] = edited("scale_k_f32", without("factors"))\n'),
    (4, "tests/unit/plan_fixture.h", "struct clinfer_kv_store_params good_kv_store(void);\n",
     "struct clinfer_scale_k_params good_scale_k(void);\n"),
    (4, "tests/unit/plan_fixture.c", """                                             .batch = batch_of(),
                                             .layer_idx = 2 };
}
""", """
struct clinfer_scale_k_params good_scale_k(void)
{
    return (struct clinfer_scale_k_params){ .factors = clinfer_tensor_1d(MEM(6), CLINFER_F32, 2),
                                            .kv = cache_of(2, 2, 16),
                                            .batch = batch_of(),
                                            .layer_idx = 2,
                                            .total_seq_len = 5,
                                            .scale = 2 };
}
"""),
    (4, "tests/meson.build", "  'plan_kv_store': [files('unit/test_plan_kv_store.c', 'unit/plan_fixture.c'), [internals, criterion]],\n",
     "  'plan_scale_k': [files('unit/test_plan_scale_k.c', 'unit/plan_fixture.c'), [internals, criterion]],\n"),
    (4, "tests/unit/test_plan_pure.c", "    ADD(kv_store, good_kv_store, CLINFER_GEMM_OWN);\n",
     "    ADD(scale_k, good_scale_k, CLINFER_GEMM_OWN);\n"),
    (5, "tests/kernel_syntax.py", 'KERNELS = {\n', '    "scale_k": [PAGED, {**PAGED, **SCALED}],\n'),
    (6, "tests/optest_fill.c", '    { "kv_input", 0.1, 1.5 },\n', '    { "factors", 1, 0.5 },\n'),
    (6, "tests/rig.h", "    struct clinfer_kv_store_params kv_store;\n", "    struct clinfer_scale_k_params scale_k;\n"),
    (6, "tests/rig.c", "        r->params.decode.scale = 0.2f;\n", """    } else if (!strcmp(r->op->name, "scale_k")) {
        r->params.scale_k.total_seq_len = RIG_TOKENS;
        r->params.scale_k.scale = 0.75f;
"""),
    (6, "tests/test_calls.c", "        r->params.norm.total_seq_len = tokens;\n", """    if (!strcmp(r->op->name, "scale_k"))
        r->params.scale_k.total_seq_len = tokens;
"""),
    (6, "tests/test_calls.c", "    cr_assert_eq(after.compiled, 10", " + 1"),
    (6, "tests/test_calls.c", "    cr_assert_eq(after.programs, 10", " + 1"),
    (7, "tools/bench.h", "        struct clinfer_kv_store_params kv_store;\n", "        struct clinfer_scale_k_params scale_k;\n"),
    (7, "tools/bench_ops.c", """                             rows * cache_row_bytes(c), 0, 0 };
}
""", """
static void make_scale_k(struct bench_maker *m, const struct bench_case *c)
{
    struct clinfer_scale_k_params *p = &m->call->params.scale_k;
    const struct bench_shape *s = c->shape;
    const int64_t T = tokens_of(c->batch);
    p->factors = bench_tensor(m, BENCH_SIGNS, 0, CLINFER_F32, s->kv_heads, 0, 0);
    p->kv = bench_cache(m, c, 2, s->kv_heads, s->head_size);
    p->batch = bench_batch_of(m, c->batch);
    p->total_seq_len = T;
    p->scale = 1;
    m->call->work = (struct bench_work){ 4.0 * s->kv_heads + batch_bytes(c->batch), 0, (double) T * cache_row_bytes(c),
                                         (double) T * s->kv_heads * s->head_size };
}
"""),
    (7, "tools/bench_ops.c", '    { "kv_store", make_kv_store },\n', '    { "scale_k", make_scale_k },\n'),
    (7, "tools/bench_cases.c", '    { "kv_store", NULL, "kv_store", TABLES(row_shapes, row_types, row_batches) },\n',
     '    { "scale_k", NULL, "scale_k", TABLES(row_shapes, row_types, row_batches) },\n'),
    (7, "tools/check_cases.c", '    ROW("both-scaled", "p=1 " K_ROWS(F32, 5, 27) V_ROWS(F32, 64) SCALED(8, 4) OWN_V_SCALED(32, 2)),\n#undef ROW\n', """
#define ROW(name, text)                                                                                      \\
    {                                                                                                        \\
        { "scale_k", name, text }, rows, false                                                               \\
    }
    ROW("bf16", "scale=0.7 p=2 K=3 D=13 " BF16),
    ROW("f32-mla", "scale=0.7 p=1 K=1 D=56 " F32),
    ROW("scaled-tail", "scale=0.7 p=2 K=3 D=56 " SCALED(24, 3)),
#undef ROW
"""),
]
