# SPDX-License-Identifier: Apache-2.0
"""Write case files: random inputs of an op, its metadata, and the oracle's results as `expect.*` tensors.

    python make_cases.py OUT_DIR [SEED]              the published cases, with other numbers for another seed
    python make_cases.py OUT_DIR [SEED] --random N   instead of them, N cases with shapes drawn from the seed

needs numpy and ml_dtypes
"""
import argparse
import os

import ml_dtypes
import numpy as np

import oracle
import safetensors_io

BF16, FP8, F16, F32 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn, np.float16, np.float32


def freqs_table(rows, dim, dtype=F32, theta=10000.0):
    """freqs_cis [rows, dim]: column 2i is cos, 2i + 1 is sin, of position * theta^(-2i / dim)."""
    angle = np.arange(rows)[:, None] * theta ** (-np.arange(0, dim, 2) / max(dim, 1))
    t = np.empty((rows, dim))
    t[:, 0::2], t[:, 1::2] = np.cos(angle), np.sin(angle)
    return oracle.store(t, dtype)


def paged(rng, new, cached, page_size, layers, heads, head_size, dtype, mla=False, spare=1, granularity=0,
          poison=True):
    """A scattered paged cache for rows of `cached` + `new` tokens: live slots random, every other slot NaN."""
    need = [-(-(c + n) // page_size) for c, n in zip(cached, new)]
    pages = sum(need) + spare
    ids = rng.permutation(pages)
    lut = np.full((len(new), max(max(need, default=0), 1)), pages - 1 if not need else ids[-1], np.uint32)
    blocks = np.full((pages, 1 if mla else 2, layers, page_size, heads, head_size), np.nan if poison else 0)
    at = 0
    for b, n in enumerate(need):
        lut[b, :n] = ids[at:at + n]
        at += n
        for pos in range(cached[b] + new[b]):
            blocks[lut[b, pos // page_size], :, :, pos % page_size] = rng.standard_normal(
                (blocks.shape[1], layers, heads, head_size))
    t = {"input_row_offsets": np.concatenate([[0], np.cumsum(new)]).astype(np.uint32),
         "cache_lengths": np.array(cached, np.uint32), "lookup_table": lut}
    return stored(t, "kv", blocks, dtype, granularity)


def stored(t, name, blocks, dtype, granularity):
    """NAME_blocks, and with a granularity NAME_scales, of these values."""
    if not granularity:
        t[name + "_blocks"] = oracle.store(blocks, dtype)
        return t
    groups = -(-blocks.shape[5] // granularity)  # the metadata's granularity says how wide they are
    codes, scales = np.zeros(blocks.shape, FP8), np.zeros((*blocks.shape[:5], groups), F32)
    for g in range(groups):
        span = slice(g * granularity, (g + 1) * granularity)
        codes[..., span], scales[..., g] = oracle.quantize_group(np.nan_to_num(blocks[..., span]).astype(F32))
    t[name + "_blocks"], t[name + "_scales"] = codes, scales
    return t


def rope(rng, new, cached, page_size, hq, hk, dq, dk, r, inter, dtype=BF16, freq=F32, cache=None, layers=2,
         ids=None, mrope="", granularity=0):
    t = paged(rng, new, cached, page_size, layers, hk, dk, cache or dtype, mla=dq != dk, granularity=granularity)
    n = sum(new)
    t["q_proj"] = oracle.store(rng.standard_normal((n, hq, dq)), dtype)
    rows = max((c + k for c, k in zip(cached, new)), default=1) + 8
    t["freqs_cis"] = freqs_table(rows, r, freq)
    if ids:
        t["position_ids"] = rng.integers(0, rows, (ids, n)).astype(np.uint32)
    return t, {"op": "fused_qk_rope", **grouped(granularity), "layer_idx": layers - 1, "interleaved": int(inter),
               "mrope_section": mrope}


def norm(rng, new, cached, page_size, heads, dim, gamma, per_head=1, before=1, offset=0.0, dtype=BF16,
         cache=None, layers=2, eps=1e-5, granularity=0):
    t = paged(rng, new, cached, page_size, layers, heads, dim, cache or dtype, granularity=granularity)
    t["gamma"] = oracle.store(1 + 0.2 * rng.standard_normal(gamma), dtype)
    return t, {"op": "rms_norm_kv_cache", **grouped(granularity), "layer_idx": layers - 1, "epsilon": eps,
               "weight_offset": offset, "multiply_before_cast": before, "per_head_norm": per_head}


def mla_store(rng, new, cached, page_size, heads, c, r, dtype=BF16, cache=BF16, freq=F32, gamma=BF16,
              out="BF16", layers=2, big=1.0, granularity=0, source=BF16):
    t = paged(rng, new, cached, page_size, layers, 1, c + r, cache, mla=True, granularity=granularity)
    n = sum(new)
    t["q_rope"] = oracle.store(big * rng.standard_normal((n, heads, r)), dtype)
    t["kv_input"] = oracle.store(big * rng.standard_normal((n, c + r)), source)
    t["gamma"] = oracle.store(1 + 0.2 * rng.standard_normal(c), gamma)
    t["freqs_cis"] = freqs_table(max((x + y for x, y in zip(cached, new)), default=1) + 4, r, freq)
    return t, {"op": "mla_fused_rope_rmsnorm", **grouped(granularity), "layer_idx": layers - 1, "epsilon": 1e-6,
               "out_rope_dtype": out}


def block_fp8(rng, shape, gn, gk):
    """Random weights [H, N, K] as fp8 codes with one float32 scale per (gn, gk) block."""
    h, n, k = shape
    w = (rng.standard_normal(shape) * max(k, 1) ** -0.5).astype(F32)
    code, scale = np.zeros(shape, FP8), np.zeros((h, -(-n // gn), -(-k // gk)), F32)
    for i in range(scale.shape[1]):
        for j in range(scale.shape[2]):
            blk = (slice(None), slice(i * gn, (i + 1) * gn), slice(j * gk, (j + 1) * gk))
            s = np.abs(w[blk]).max((1, 2)) / F32(448)
            scale[:, i, j] = s
            code[blk] = oracle.store(w[blk] / s[:, None, None], FP8)
    return code, scale


def decode(rng, new, cached, page_size, heads, c, r, nope, dv, cache=BF16, dtype=BF16, layers=2, mask="causal",
           window=-1, score="no_pos", g=128, gk=None, freq=None, gamma=None, weights=FP8, granularity=0,
           op="mla_decode_branch"):
    t = paged(rng, new, cached, page_size, layers, 1, c + r, cache, mla=True, granularity=granularity)
    t["q"] = oracle.store(rng.standard_normal((sum(new), heads, nope + r)), dtype)
    t["kv_norm_gamma"] = oracle.store(1 + 0.2 * rng.standard_normal(c), gamma or dtype)
    t["freqs_cis"] = freqs_table(max((x + y for x, y in zip(cached, new)), default=1) + 4, r, freq or dtype)
    first = ("w_k", (1, heads * nope, c)) if op == "mla_prefill_branch" else ("w_uk", (heads, c, nope))
    for name, shape in (first, ("w_uv", (heads, dv, c))):
        if weights == FP8:
            t[name], t[name + "_scale"] = block_fp8(rng, shape, g, gk or g)
        else:
            t[name] = oracle.store(rng.standard_normal(shape) * max(shape[2], 1) ** -0.5, weights)
    for name in ("w_k", "w_k_scale"):
        if name in t:
            t[name] = t[name][0]
    return t, {"op": op, **grouped(granularity), "layer_idx": layers - 1, "scale": (nope + r) ** -0.5,
               "epsilon": 1e-6, "m_scale_granularity": 1, "n_scale_granularity": g, "k_scale_granularity": gk or g,
               "mask": mask, "local_window_size": window, "score_mod": score}


def grouped(granularity):
    return {"kv_scale_granularity": granularity} if granularity else {}


def kv(rng, new, cached, page_size, heads, d, src=BF16, cache=BF16, layers=2, granularity=0, v_src=None, big=1.0, with_v=True,
       own_v=None):
    """own_v: head size, type and granularity of a V that lies in blocks of its own, beside a cache of one plane."""
    t = paged(rng, new, cached, page_size, layers, heads, d, cache, mla=bool(own_v) or not with_v, granularity=granularity)
    m = {"op": "kv_store", **grouped(granularity), "layer_idx": layers - 1}
    dv, v_cache, v_granularity = own_v or (d, cache, 0)
    for name, dim, dtype in (("k", d, src), ("v", dv, v_src or src))[:1 + with_v]:
        t[name] = oracle.store(big * rng.standard_normal((sum(new), heads, dim)), dtype)
    if own_v:
        blocks = rng.standard_normal((t["kv_blocks"].shape[0], 1, layers, page_size, heads, dv))
        stored(t, "v", blocks, v_cache, v_granularity)
        m.update({"v_scale_granularity": v_granularity} if v_granularity else {})
    return t, m


def attention(rng, new, cached, page_size, hq, hk, d, dtype=BF16, cache=None, layers=2, mask="causal", window=-1,
              score="no_pos", softcap=0.0, sinks=False, granularity=0, own_v=None):
    """own_v: as in kv."""
    t = paged(rng, new, cached, page_size, layers, hk, d, cache or dtype, mla=bool(own_v), granularity=granularity)
    m = {"op": "paged_attention", **grouped(granularity), "layer_idx": layers - 1, "scale": d ** -0.5, "mask": mask,
         "local_window_size": window, "score_mod": score, "softcap": softcap}
    if own_v:
        dv, v_cache, v_granularity = own_v
        stored(t, "v", rng.standard_normal((t["kv_blocks"].shape[0], 1, layers, page_size, hk, dv)), v_cache, v_granularity)
        m.update({"v_scale_granularity": v_granularity} if v_granularity else {})
    t["q"] = oracle.store(rng.standard_normal((sum(new), hq, d)), dtype)
    if sinks:
        t["sinks"] = rng.standard_normal(hq).astype(F32)
    return t, m


def merge(rng, tokens, heads, d, dtype=F32):
    t = {n: oracle.store(rng.standard_normal((tokens, heads, d)), dtype) for n in ("out_a", "out_b")}
    t.update({n: (20 * rng.standard_normal((tokens, heads))).astype(F32) for n in ("lse_a", "lse_b")})
    t["lse_a"][0, 0] = t["lse_b"][0, 0] = t["lse_a"][1, 0] = -np.inf
    t["out_a"][0, 0] = t["out_b"][0, 0] = t["out_a"][1, 0] = 0
    return t, {"op": "merge_states"}


def mm(rng, tokens, n, k, batch=0, dtype=BF16, weights=BF16, bias=False, g=128):
    lead = (batch,) if batch else ()
    t, m = {"x": oracle.store(rng.standard_normal((tokens, *lead, k)), dtype)}, {"op": "matmul"}
    if weights == FP8:
        code, scale = block_fp8(rng, (batch or 1, n, k), g, g)
        t["w"], t["w_scale"] = (code, scale) if batch else (code[0], scale[0])
        m.update(n_scale_granularity=g, k_scale_granularity=g)
    else:
        t["w"] = oracle.store(rng.standard_normal((*lead, n, k)) * k ** -0.5, weights)
    if bias:
        t["bias"] = oracle.store(rng.standard_normal(n), dtype)
    return t, m


def rows_norm(rng, tokens, n, dtype=BF16, residual=False, before=1):
    t = {"x": oracle.store(rng.standard_normal((tokens, n)), dtype), "gamma": oracle.store(1 + 0.2 * rng.standard_normal(n), dtype)}
    if residual:
        t["residual"] = oracle.store(3 * rng.standard_normal((tokens, n)), dtype)
    return t, {"op": "rms_norm", "epsilon": 1e-5, "multiply_before_cast": before}


def share(case):
    """The second request's first page, full in both, becomes the first request's."""
    case[0]["lookup_table"][1, 0] = case[0]["lookup_table"][0, 0]
    return case


def pad(case, *names):
    """Three more rows of `names`, past off[B]: padding, NaN."""
    for n in names:
        a = case[0][n]
        case[0][n] = np.concatenate([a, np.full((3, *a.shape[1:]), np.nan).astype(a.dtype)])
    return case


def zero_rows(case):
    t, m = case
    k = oracle.Cache(t, int(m["layer_idx"]))
    for _, b, pos in oracle.tokens(t):
        k.blocks[k.at(b, pos)] = 0
    return case


def extremes(case):
    """Query groups past the 1200 bound and all zero; one weight block all zero."""
    t, m = case
    t["q"][0] = oracle.store(1500.0 * np.sign(t["q"][0].astype(F32)), t["q"].dtype)
    t["q"][1, :, :32] = 0
    t["w_uk"][:, :32], t["w_uk_scale"][:, 0] = 0, 0
    return t, m


def write(folder, name, case):
    tensors, meta = case
    expect = oracle.run(tensors, {k: str(v) for k, v in meta.items()})
    tensors.update({"expect." + k: v for k, v in expect.items()})
    safetensors_io.save(os.path.join(folder, name + ".safetensors"), tensors, meta)


def cases(rng):
    """The published cases: name -> (tensors, metadata)."""
    new, cached = [3, 1, 0, 4], [0, 14, 3, 5]
    yield "rope_interleaved_bf16", rope(rng, new, cached, 8, 4, 2, 64, 64, 64, True)
    yield "rope_split_bf16", rope(rng, new, cached, 8, 4, 2, 64, 64, 64, False)
    yield "rope_interleaved_f32", rope(rng, new, cached, 8, 6, 2, 32, 32, 32, True, F32)
    yield "rope_split_partial_f16", rope(rng, new, cached, 3, 4, 1, 40, 40, 24, False, F16)
    yield "rope_interleaved_partial", rope(rng, new, cached, 5, 3, 3, 40, 40, 24, True)
    yield "rope_bf16_freqs", rope(rng, new, cached, 8, 4, 2, 64, 64, 64, True, freq=BF16)
    yield "rope_mla_widths", rope(rng, new, cached, 8, 4, 1, 48, 80, 16, True)
    yield "rope_position_ids", rope(rng, new, cached, 8, 4, 2, 32, 32, 32, False, ids=1)
    yield "rope_mrope", rope(rng, new, cached, 8, 4, 2, 32, 32, 32, False, F32, ids=3, mrope="8,20,32")
    yield "rope_mrope_interleaved", rope(rng, new, cached, 8, 4, 2, 32, 32, 32, True, F32, ids=3, mrope="8,20,32")
    yield "rope_fp8_cache", rope(rng, new, cached, 8, 4, 2, 64, 64, 64, True, cache=FP8)
    yield "rope_fp8_scaled_cache", rope(rng, new, cached, 8, 4, 2, 64, 64, 64, True, granularity=32)
    yield "rope_fp8_scaled_partial", rope(rng, new, cached, 8, 4, 2, 64, 64, 24, True, granularity=16)
    yield "rope_shared_pages", share(rope(rng, [1, 2], [17, 20], 8, 4, 2, 32, 32, 32, False))
    yield "rope_padding_rows", pad(rope(rng, new, cached, 8, 4, 2, 32, 32, 32, True), "q_proj")
    yield "norm_per_head", norm(rng, new, cached, 8, 2, 64, 64)
    yield "norm_cast_first", norm(rng, new, cached, 8, 2, 64, 64, before=0, offset=1.0)
    yield "norm_offset_f32", norm(rng, new, cached, 7, 3, 40, 40, offset=1.0, dtype=F32)
    yield "norm_short_gamma", norm(rng, new, cached, 8, 1, 80, 64)
    yield "norm_whole_row", norm(rng, new, cached, 8, 4, 32, 128, per_head=0)
    yield "norm_whole_row_prefix", norm(rng, new, cached, 8, 4, 32, 80, per_head=0, before=0)
    yield "norm_f16", norm(rng, new, cached, 8, 2, 64, 64, dtype=F16)
    yield "norm_fp8_cache", norm(rng, new, cached, 8, 2, 64, 64, cache=FP8)
    yield "norm_fp8_scaled_cache", norm(rng, new, cached, 8, 2, 64, 64, granularity=32)
    yield "norm_fp8_scaled_short_gamma", norm(rng, new, cached, 8, 2, 64, 40, granularity=16)
    yield "norm_zero_rows", zero_rows(norm(rng, new, cached, 8, 2, 64, 64, eps=0.0))
    yield "norm_f32_cache_bf16_gamma", norm(rng, new, cached, 8, 2, 64, 64, cache=F32)
    yield "mla_store_bf16", mla_store(rng, new, cached, 8, 4, 64, 16)
    yield "mla_store_fp8", mla_store(rng, new, cached, 8, 4, 64, 16, cache=FP8, out="F8_E4M3")
    yield "mla_store_saturates", mla_store(rng, new, cached, 8, 2, 32, 16, cache=FP8, out="F8_E4M3", big=300.0)
    yield "mla_store_deepseek", mla_store(rng, [3, 2], [30, 0], 32, 4, 512, 64, cache=FP8, gamma=F32, layers=1)
    yield "mla_store_scaled", mla_store(rng, new, cached, 8, 4, 64, 16, granularity=16)
    yield "mla_decode_small", decode(rng, [1, 1, 0, 1], [17, 0, 5, 40], 16, 4, 128, 32, 64, 64, g=64)
    yield "mla_decode_many_new", decode(rng, [3, 1, 2], [17, 0, 40], 16, 4, 128, 32, 64, 64, g=64)
    yield "mla_decode_fp8_cache", decode(rng, [1, 2], [17, 40], 16, 4, 128, 32, 64, 64, g=64, cache=FP8)
    yield "mla_decode_deepseek", decode(rng, [1, 1], [60, 3], 64, 4, 512, 64, 128, 128, layers=1)
    yield "mla_decode_ragged_blocks", decode(rng, [1, 2], [9, 33], 24, 3, 96, 16, 40, 40, g=32)
    yield "mla_decode_f32", decode(rng, [1, 2], [9, 33], 16, 4, 64, 16, 32, 32, g=32, dtype=F32, cache=F32)
    yield "mla_decode_window", decode(rng, [1, 3], [19, 33], 16, 4, 64, 16, 32, 32, g=32, mask="sliding_window_causal", window=5)
    yield "mla_decode_chunked", decode(rng, [1, 3], [19, 33], 16, 4, 64, 16, 32, 32, g=32, mask="chunked_causal", window=8)
    yield "mla_decode_chunked_both_ways", decode(rng, [1, 3], [19, 33], 8, 4, 64, 16, 32, 32, g=32, mask="chunked", window=8)
    yield "mla_decode_bf16_weights", decode(rng, [1, 2], [9, 33], 8, 4, 64, 16, 32, 32, weights=BF16)
    yield "mla_decode_f32_weights", decode(rng, [1, 2], [9, 33], 8, 4, 64, 16, 32, 32, weights=F32, dtype=F32, cache=F32)
    yield "mla_decode_scaled_cache", decode(rng, [1, 2], [9, 33], 8, 4, 64, 16, 32, 32, g=32, granularity=16)
    yield "mla_decode_no_rope", decode(rng, [1, 2], [9, 33], 8, 4, 64, 0, 32, 32, g=32)
    yield "mla_decode_no_nope", decode(rng, [1, 2], [9, 33], 8, 4, 64, 32, 0, 32, g=32)
    yield "mla_decode_extremes", extremes(decode(rng, [1, 2], [9, 33], 8, 4, 64, 16, 32, 32, g=32))
    yield "mla_store_padding_rows", pad(mla_store(rng, new, cached, 8, 4, 64, 16), "q_rope", "kv_input")
    yield "mla_decode_padding_rows", pad(decode(rng, [1, 2], [9, 33], 8, 4, 64, 16, 32, 32, g=32), "q")
    yield "mla_decode_null_mask", decode(rng, [2, 3], [19, 33], 16, 4, 64, 16, 32, 32, g=32, mask="null")
    yield "mla_decode_alibi", decode(rng, [1, 3], [19, 33], 16, 6, 64, 16, 32, 32, g=32, score="alibi")
    mixed = [1, 12, 0, 1, 5], [37, 0, 3, 15, 9]
    yield "store_kv_bf16", kv(rng, new, cached, 8, 2, 64)
    yield "store_kv_f32_to_fp8", kv(rng, new, cached, 8, 2, 40, src=F32, cache=FP8)
    yield "store_kv_scaled", kv(rng, new, cached, 8, 2, 64, granularity=32)
    yield "attention_gqa_bf16", attention(rng, *mixed, 8, 6, 2, 64)
    yield "attention_mha_f32", attention(rng, *mixed, 8, 3, 3, 40, F32)
    yield "attention_mqa_f16", attention(rng, *mixed, 5, 4, 1, 32, F16)
    yield "attention_fp8_cache", attention(rng, *mixed, 8, 6, 2, 64, cache=FP8)
    yield "attention_scaled_cache", attention(rng, *mixed, 8, 6, 2, 64, granularity=32)
    yield "attention_window_sinks", attention(rng, *mixed, 8, 6, 2, 64, F32, mask="sliding_window_causal", window=6, sinks=True)
    yield "attention_softcap_alibi", attention(rng, *mixed, 8, 6, 2, 64, F32, softcap=5.0, score="alibi")
    yield "attention_chunked", attention(rng, *mixed, 8, 6, 2, 64, mask="chunked", window=8)
    yield "merge_states_f32", merge(rng, 5, 3, 32)
    yield "merge_states_bf16", merge(rng, 5, 3, 40, BF16)
    yield "matmul_bf16", mm(rng, 5, 72, 96, bias=True)
    yield "matmul_f32_one_row", mm(rng, 1, 130, 65, dtype=F32, weights=F32)
    yield "matmul_fp8", mm(rng, 5, 96, 160, weights=FP8, g=64)
    yield "matmul_batched_fp8", mm(rng, 3, 64, 96, batch=4, weights=FP8, g=32)
    yield "rms_norm_residual", rows_norm(rng, 4, 96, residual=True)
    yield "rms_norm_cast_first", rows_norm(rng, 4, 100, F16, before=0)
    yield "silu_mul_bf16", ({"x": oracle.store(4 * rng.standard_normal((5, 144)), BF16)}, {"op": "silu_mul"})
    yield "mla_prefill_bf16_weights", decode(rng, [9, 1, 4], [0, 12, 21], 8, 4, 64, 16, 32, 40, weights=BF16, op="mla_prefill_branch")
    yield "mla_prefill_fp8_weights", decode(rng, [9, 1, 4], [0, 12, 21], 8, 4, 64, 16, 32, 40, g=32, op="mla_prefill_branch")
    yield "mla_prefill_fp8_cache", decode(rng, [9, 1, 4], [0, 12, 21], 8, 4, 64, 16, 32, 40, g=32, cache=FP8, op="mla_prefill_branch")


def main():
    parser = argparse.ArgumentParser(description="Write case files with the oracle's results.")
    parser.add_argument("out_dir")
    parser.add_argument("seed", nargs="?", type=int, default=1)
    parser.add_argument("--random", type=int, metavar="N", help="N cases of random shapes instead of the published ones")
    args = parser.parse_args()
    os.makedirs(args.out_dir, exist_ok=True)
    if args.random is None:
        named = cases(np.random.default_rng(args.seed))
    else:
        import random_cases  # it needs this module's builders
        named = random_cases.cases(args.seed, args.random)
    for name, case in named:
        write(args.out_dir, name, case)
        print(name)


if __name__ == "__main__":
    main()
