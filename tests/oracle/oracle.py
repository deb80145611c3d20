# SPDX-License-Identifier: Apache-2.0
"""Reference results for the paged KV-cache operations, in float64 numpy.

Every rounding that the operation's definition names is made here, at the place it names; everything
else is float64. Each op takes (tensors, metadata) of a case file and returns the output tensors.
The headers in include/clinfer state the same in words.
"""
import ml_dtypes
import numpy as np

BF16, FP8 = ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn


def f64(a):
    return np.asarray(a).astype(np.float64)


def store(x, dtype):
    """Round to nearest even into `dtype`; fp8 saturates at +-448 and keeps NaN."""
    x = np.asarray(x, np.float64)
    if np.dtype(dtype) == FP8:
        x = np.clip(x, -448.0, 448.0)  # np.clip keeps NaN
    with np.errstate(over="ignore", invalid="ignore"):
        return x.astype(np.float32).astype(dtype) if np.dtype(dtype).itemsize < 4 else x.astype(dtype)


def tokens(t):
    """Yield (token, batch row, position) of every new token of the ragged batch."""
    off, cached = t["input_row_offsets"].astype(np.int64), t["cache_lengths"].astype(np.int64)
    for b in range(len(off) - 1):
        for i in range(off[b], off[b + 1]):
            yield int(i), b, int(cached[b] + i - off[b])


class Cache:
    """One layer's K (kv=0) or V (kv=1) of kv_blocks [pages, kv, layers, page_size, heads, head_size], with the optional
    kv_scales [..., ceil(head_size / granularity)]; of v_blocks and v_scales, of one plane, where V has its own."""

    def __init__(self, t, layer, kv=0, granularity=0, blocks="kv_blocks", scales="kv_scales"):
        self.blocks, self.scales = t[blocks], t.get(scales)
        self.lut, self.layer, self.kv = t["lookup_table"], layer, kv
        self.page_size, self.heads, self.head_size = self.blocks.shape[3:]
        if self.scales is not None:
            self.granularity = granularity or -(-self.head_size // self.scales.shape[5])

    def at(self, b, pos):
        return (int(self.lut[b, pos // self.page_size]), self.kv, self.layer, pos % self.page_size)

    def read(self, b, pos):
        """[heads, head_size] float64."""
        x = f64(self.blocks[self.at(b, pos)])
        if self.scales is not None:
            x = x * np.repeat(f64(self.scales[self.at(b, pos)]), self.granularity, 1)[:, :self.head_size]
        return x

    def write(self, b, pos, x, dims=None):
        """Write [heads, head_size] values, or only their dims `dims` (a slice). In a scaled cache every group that
        holds such a dim is stored again with a new scale; the other groups stay as they are."""
        here, dims = self.at(b, pos), dims or slice(0, self.head_size)
        if self.scales is None:
            self.blocks[here][:, dims] = store(x[:, dims], self.blocks.dtype)
            return
        for g in range(dims.start // self.granularity, -(-dims.stop // self.granularity)):
            span = slice(g * self.granularity, (g + 1) * self.granularity)
            code, s = quantize_group(x[:, span].astype(np.float32))
            self.blocks[here][:, span], self.scales[here][:, g] = code, s


def cache(t, m, kv=0):
    if kv and "v_blocks" in t:
        return Cache(t, int(m["layer_idx"]), 0, int(m.get("v_scale_granularity", 0)), "v_blocks", "v_scales")
    return Cache(t, int(m["layer_idx"]), kv, int(m.get("kv_scale_granularity", 0)))


def quantize_group(x, upper=np.inf):
    """Quantise the last axis of float32 `x` to fp8 with one float32 scale each, both divisions in float32.
    scale = min(amax of the finite elements, upper) / 448; code = fp8(x * (1 / scale)). A scale that cannot be
    inverted gives codes 0. Infinities saturate, NaN stays NaN."""
    finite = np.where(np.isfinite(x), np.abs(x), 0).astype(np.float32)
    s = (np.minimum(finite.max(-1), np.float32(upper)) / np.float32(448)).astype(np.float32)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        inv = np.float32(1) / s
        inv = np.where(np.isfinite(inv), inv, np.float32(0)).astype(np.float32)
        y = np.where(inv[..., None] > 0, x * inv[..., None], np.where(np.isnan(x), x, 0)).astype(np.float32)
    return store(np.where(np.isinf(x), x, y), FP8), s


def rotate(x, table, first, interleaved):
    """Rotate dims [first, first + R) of x [..., D] by one table row [R] of (cos, sin) pairs."""
    r = len(table)
    if r == 0:
        return x
    c, s = table[0::2], table[1::2]
    re = first + (np.arange(0, r, 2) if interleaved else np.arange(r // 2))
    im = re + (1 if interleaved else r // 2)
    y = x.copy()
    y[..., re], y[..., im] = x[..., re] * c - x[..., im] * s, x[..., re] * s + x[..., im] * c
    return y


def table_row(t, m, token, pos, interleaved, first):
    """The (cos, sin) row of one token: by position, by position_ids, or by mrope section."""
    freqs = f64(t["freqs_cis"])
    ids = t.get("position_ids")
    bounds = [int(v) for v in m.get("mrope_section", "").split(",") if v]
    if ids is None:
        assert not bounds, "mrope_section without position_ids"
        return freqs[pos]
    ids = ids.reshape(-1, ids.shape[-1]).astype(np.int64)
    if not bounds:
        return freqs[ids[0, token]]
    d = np.arange(freqs.shape[1])  # section of each table column; both columns of a pair share it
    sec = np.array([next((i for i, e in enumerate(bounds) if (v & ~1) < e), 0) for v in d])
    return freqs[ids[sec, token], d]


def fused_qk_rope(t, m):
    """RoPE of Q into `output`, and of the new K rows inside the cache."""
    inter = m["interleaved"] == "1"
    q, out = t["q_proj"], np.zeros_like(t["q_proj"])
    k = cache(t, m)
    r, dq, dk = t["freqs_cis"].shape[1], q.shape[2], k.head_size
    fq, fk = (dq - r, dk - r) if inter else (0, 0)
    for i, b, pos in tokens(t):
        row = table_row(t, m, i, pos, inter, fq)
        span_q, span_k = slice(fq, fq + r), slice(fk, fk + r)
        out[i] = q[i]
        out[i][:, span_q] = store(rotate(f64(q[i]), row, fq, inter)[:, span_q], q.dtype)
        if r:
            k.write(b, pos, rotate(k.read(b, pos), row, fk, inter), span_k)
    return {"output": out, **cache_out(t)}


def rms_norm_rows(x, gamma, eps, offset, before_cast):
    """RMSNorm of float64 rows [..., n]; gamma's dtype is the dtype every named rounding goes to."""
    dt = gamma.dtype
    x = f64(store(x, dt))
    r = 1.0 / np.sqrt((x * x).mean(-1, keepdims=True) + eps) if eps > 0 else \
        np.where((x * x).mean(-1, keepdims=True) > 0, 1.0 / np.sqrt(np.maximum((x * x).mean(-1, keepdims=True), 1e-300)), 0.0)
    if before_cast:
        return store(x * r * (f64(gamma) + float(store(offset, dt))), dt)
    w = f64(store(f64(gamma) + float(store(offset, dt)), dt))
    return store(f64(store(x * r, dt)) * w, dt)


def rms_norm_kv_cache(t, m):
    """RMSNorm, in place, of the new K rows: of each head's first len(gamma) dims, or of the whole row."""
    k, gamma, n = cache(t, m), t["gamma"], len(t["gamma"])
    args = gamma, float(m["epsilon"]), float(m.get("weight_offset", 0)), m.get("multiply_before_cast", "1") == "1"
    for _, b, pos in tokens(t):
        x = k.read(b, pos)
        if m.get("per_head_norm", "1") == "1":
            y = x.copy()
            y[:, :n] = f64(rms_norm_rows(x[:, :n], *args))
            k.write(b, pos, y, slice(0, n))
        else:
            flat = x.reshape(-1)
            flat[:n] = f64(rms_norm_rows(flat[:n], *args))
            for h in range(-(-n // k.head_size)):  # head by head, so that what lies past n stays as it is
                one, stop = flat.reshape(x.shape), min(n - h * k.head_size, k.head_size)
                keep = [(a[k.at(b, pos)].copy() if a is not None else None) for a in (k.blocks, k.scales)]
                k.write(b, pos, one, slice(0, stop))
                for a, old in zip((k.blocks, k.scales), keep):
                    if a is not None:
                        new = a[k.at(b, pos)][h].copy()
                        a[k.at(b, pos)] = old
                        a[k.at(b, pos)][h] = new
    return cache_out(t)


def mla_fused_rope_rmsnorm(t, m):
    """kv_input [T, C + R] -> (norm of C | rope of R) -> cache rows; q_rope -> q_rope_output."""
    k, gamma, q = cache(t, m), t["gamma"], t["q_rope"]
    c, r = len(gamma), q.shape[2]
    out = np.zeros(q.shape, {"F32": np.float32, "F16": np.float16, "BF16": BF16, "F8_E4M3": FP8}[m["out_rope_dtype"]])
    freqs = f64(t["freqs_cis"])
    for i, b, pos in tokens(t):
        row = freqs[pos] if r else np.zeros(0)
        out[i] = store(f64(store(rotate(f64(q[i]), row, 0, True), q.dtype)), out.dtype)
        x = f64(t["kv_input"][i])
        y = np.empty((1, c + r))
        y[0, :c] = f64(rms_norm_rows(x[:c], gamma, float(m["epsilon"]), 0.0, False))
        y[0, c:] = f64(store(rotate(x[c:], row, 0, True), t["kv_input"].dtype))
        k.write(b, pos, y)
    return {"q_rope_output": out, **cache_out(t)}


def mask_allows(name, window, q_pos, k_pos):
    """Boolean [keys]: which key positions a query at q_pos sees."""
    if name == "null":
        return np.ones(len(k_pos), bool)
    if name == "causal":
        return k_pos <= q_pos
    if name == "chunked":
        return k_pos // window == q_pos // window
    if name == "chunked_causal":
        return (k_pos // window == q_pos // window) & (k_pos <= q_pos)
    if name == "sliding_window_causal":
        return (k_pos <= q_pos) & (k_pos > q_pos - window)
    raise ValueError(name)


def alibi_slopes(heads):
    """Slopes of the ALiBi paper, its two-series rule for head counts that are no power of two."""
    def series(n):
        return [2.0 ** (-8.0 * (i + 1) / n) for i in range(n)]
    p = 1 << (heads.bit_length() - 1)
    return np.array(series(p) + series(2 * p)[0::2][:heads - p])


def attend(q, keys, values, q_pos, m, sinks=None):
    """One query token: q [heads, dk], keys [n, kv_heads, dk], values [n, kv_heads, dv] -> [heads, dv], lse [heads]."""
    heads, group = q.shape[0], q.shape[0] // keys.shape[1]
    kv = np.arange(heads) // group
    s = np.einsum("hd,nhd->hn", q, keys[:, kv]) * float(m["scale"])
    cap = float(m.get("softcap", 0))
    if cap:
        s = cap * np.tanh(s / cap)
    k_pos = np.arange(len(keys))
    if m.get("score_mod", "no_pos") == "alibi":
        s = s - alibi_slopes(heads)[:, None] * np.maximum(q_pos - k_pos, 0)
    ok = mask_allows(m.get("mask", "causal"), int(m.get("local_window_size", -1)), q_pos, k_pos)
    s = np.where(ok, s, -np.inf)
    if sinks is not None:
        s = np.concatenate([s, f64(sinks)[:, None]], 1)
    top = s.max(1, keepdims=True, initial=-np.inf)
    shift = np.where(np.isfinite(top), top, 0)
    p = np.exp(s - shift)
    total = p.sum(1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (shift + np.log(total))[:, 0]
    p = (p / np.where(total > 0, total, 1))[:, :len(keys)]
    return np.einsum("hn,nhd->hd", p[:, ok], values[ok][:, kv]), lse


def fp8_batched_matmul(x, w, w_scale, granularity, bound=1200.0):
    """x [T, H, K] @ w [H, N, K]^T -> [T, H, N]; with fp8 w, x is quantised per (1, gk), w is scaled per (gn, gk)."""
    if w.dtype != FP8:
        return np.einsum("thk,hnk->thn", x, f64(w))
    gm, gn, gk = granularity
    assert gm == 1
    heads, n, kk = w.shape
    y = np.zeros((x.shape[0], heads, n))
    for k0 in range(0, kk, gk):
        span = slice(k0, min(k0 + gk, kk))
        code, s = quantize_group(x[..., span].astype(np.float32), upper=bound)
        xs = f64(code) * f64(s)[..., None]
        ws = f64(w[..., span]) * np.repeat(f64(w_scale[:, :, k0 // gk]), gn, 1)[:, :n, None]
        y += np.einsum("thk,hnk->thn", xs, ws)
    return y


def mla_decode_branch(t, m):
    """RoPE + RMSNorm in the cache, q_nope @ w_uk, MLA decode, @ w_uv -> output [T, H, v_head_dim]."""
    k, q, gamma = cache(t, m), t["q"], t["kv_norm_gamma"]
    c, r = len(gamma), t["freqs_cis"].shape[1]
    nope = q.shape[2] - r
    gran = [int(m.get(g, 0)) for g in ("m_scale_granularity", "n_scale_granularity", "k_scale_granularity")]
    freqs = f64(t["freqs_cis"])
    q_full = np.zeros((*q.shape[:2], c + r))
    if nope:
        lat = fp8_batched_matmul(f64(q[..., :nope]), t["w_uk"], t.get("w_uk_scale"), gran)
        q_full[..., :c] = f64(store(lat, q.dtype))
    for i, b, pos in tokens(t):
        q_full[i, :, c:] = f64(store(rotate(f64(q[i][:, nope:]), freqs[pos], 0, True), q.dtype))
        x = rotate(k.read(b, pos), freqs[pos] if r else np.zeros(0), c, True)
        x[0, :c] = f64(rms_norm_rows(x[0, :c], gamma, float(m["epsilon"]), 0.0, False))
        k.write(b, pos, x)
    raw = np.zeros((*q.shape[:2], c))
    off = t["input_row_offsets"].astype(np.int64)
    for b in range(len(off) - 1):
        n = int(t["cache_lengths"][b]) + off[b + 1] - off[b]
        rows = np.stack([k.read(b, p) for p in range(n)]) if n else np.zeros((0, 1, c + r))
        for i in range(off[b], off[b + 1]):
            raw[i], _ = attend(q_full[i], rows, rows[..., :c], int(t["cache_lengths"][b]) + i - off[b], m)
    raw = f64(store(raw, q.dtype))
    y = fp8_batched_matmul(raw, t["w_uv"], t.get("w_uv_scale"), gran)
    return {"output": store(y, q.dtype), **cache_out(t)}


def kv_store(t, m):
    """k [T, K, D] and v [T, K, Dv] into the new tokens' slots."""
    for i, b, pos in tokens(t):
        for kv, name in enumerate(("k", "v")):
            if name in t:
                cache(t, m, kv).write(b, pos, f64(t[name][i]))
    return cache_out(t)


def paged_attention(t, m):
    """Attention of the new tokens over everything cached, themselves included -> output, lse."""
    q, off = t["q"], t["input_row_offsets"].astype(np.int64)
    k, v = cache(t, m, 0), cache(t, m, 1)
    out, lse = np.zeros((*q.shape[:2], v.head_size)), np.zeros(q.shape[:2])
    for b in range(len(off) - 1):
        n = int(t["cache_lengths"][b]) + off[b + 1] - off[b]
        keys = np.stack([k.read(b, p) for p in range(n)]) if n else None
        values = np.stack([v.read(b, p) for p in range(n)]) if n else None
        for i in range(off[b], off[b + 1]):
            out[i], lse[i] = attend(f64(q[i]), keys, values, int(t["cache_lengths"][b]) + i - off[b], m, t.get("sinks"))
    return {"output": store(out, BF16 if q.dtype == FP8 else q.dtype), "lse": lse.astype(np.float32)}


def merge_states(t, m):
    """Two (out, lse) pairs of disjoint key ranges into one."""
    la, lb = f64(t["lse_a"]), f64(t["lse_b"])
    top = np.maximum(la, lb)
    shift = np.where(np.isfinite(top), top, 0)
    wa, wb = np.exp(la - shift), np.exp(lb - shift)
    total = wa + wb
    den = np.where(total > 0, total, 1)
    out = (f64(t["out_a"]) * (wa / den)[..., None] + f64(t["out_b"]) * (wb / den)[..., None])
    with np.errstate(divide="ignore"):
        return {"output": store(out, t["out_a"].dtype), "lse": (shift + np.log(total)).astype(np.float32)}


def matmul(t, m):
    """x [T, K] w [N, K]^T (+ bias), or x [T, Hb, K] w [Hb, N, K]^T."""
    x, w = t["x"], t["w"]
    flat = x.ndim == 2
    if flat:
        x, w = x[:, None], w[None]
    if w.dtype == FP8:
        gran = 1, int(m["n_scale_granularity"]), int(m["k_scale_granularity"])
        scale = t["w_scale"][None] if flat else t["w_scale"]
        y = fp8_batched_matmul(f64(x), w, scale, gran, float(m.get("x_scale_bound", "inf")))
    else:
        y = fp8_batched_matmul(f64(x), w, None, None)
    if "bias" in t:
        y = y + f64(t["bias"])
    return {"output": store(y[:, 0] if flat else y, t["x"].dtype)}


def rms_norm(t, m):
    """RMSNorm of x [T, n], of x + residual where there is one."""
    x, out = t["x"], {}
    if "residual" in t:
        x = store(f64(t["residual"]) + f64(x), t["residual"].dtype)
        out["residual"] = x
    y = rms_norm_rows(f64(x), t["gamma"], float(m["epsilon"]), float(m.get("weight_offset", 0)), m.get("multiply_before_cast", "1") == "1")
    return {"output": store(f64(y), t["x"].dtype), **out}


def silu_mul(t, m):
    """silu of the first half of x [T, 2n], times the second."""
    x = f64(t["x"])
    n = x.shape[1] // 2
    return {"output": store(x[:, :n] / (1 + np.exp(-x[:, :n])) * x[:, n:], t["x"].dtype)}


def mla_prefill_branch(t, m):
    """mla_decode_branch with K and V projected up from the latent instead of the weights absorbed."""
    k, q, gamma = cache(t, m), t["q"], t["kv_norm_gamma"]
    c, r = len(gamma), t["freqs_cis"].shape[1]
    heads, nope = q.shape[1], q.shape[2] - r
    gran = [int(m.get(g, 0)) for g in ("m_scale_granularity", "n_scale_granularity", "k_scale_granularity")]
    freqs, off = f64(t["freqs_cis"]), t["input_row_offsets"].astype(np.int64)
    q_rot, out = f64(q).copy(), np.zeros((*q.shape[:2], t["w_uv"].shape[1]))
    for i, b, pos in tokens(t):
        q_rot[i, :, nope:] = f64(store(rotate(f64(q[i][:, nope:]), freqs[pos], 0, True), q.dtype))
        x = rotate(k.read(b, pos), freqs[pos], c, True)
        x[0, :c] = f64(rms_norm_rows(x[0, :c], gamma, float(m["epsilon"]), 0.0, False))
        k.write(b, pos, x)
    for b in range(len(off) - 1):
        n = int(t["cache_lengths"][b]) + off[b + 1] - off[b]
        if off[b] == off[b + 1]:
            continue
        rows = np.stack([k.read(b, p)[0] for p in range(n)])
        def up(w, scale):  # [n, rows of w]
            s = None if scale is None else scale[None]
            return f64(store(fp8_batched_matmul(rows[:, None, :c], w[None], s, gran)[:, 0], q.dtype))
        kn = up(t["w_k"], t.get("w_k_scale")).reshape(n, heads, nope)
        uv = t["w_uv"]
        v = np.stack([up(uv[h], t["w_uv_scale"][h] if "w_uv_scale" in t else None) for h in range(heads)], 1)
        keys = np.concatenate([kn, np.repeat(rows[:, None, c:], heads, 1)], 2)
        for i in range(off[b], off[b + 1]):
            out[i], _ = attend(q_rot[i], keys, v, int(t["cache_lengths"][b]) + i - off[b], m)
    return {"output": store(out, q.dtype), **cache_out(t)}


def cache_out(t):
    return {k: t[k] for k in ("kv_blocks", "kv_scales", "v_blocks", "v_scales") if k in t}


OPS = {f.__name__: f for f in (
    fused_qk_rope, rms_norm_kv_cache, mla_fused_rope_rmsnorm, mla_decode_branch, mla_prefill_branch, kv_store,
    paged_attention, merge_states, matmul, rms_norm, silu_mul)}


def run(tensors, metadata):
    """Run the op that metadata["op"] names on copies of `tensors`; return its outputs."""
    return OPS[metadata["op"]]({k: v.copy() for k, v in tensors.items()}, metadata)
