# SPDX-License-Identifier: Apache-2.0
"""Cases whose shapes, types and options are drawn from a seed. Case i of a seed is the same for any count."""
import numpy as np

import make_cases as make
import oracle
from make_cases import BF16, F16, F32, FP8

FLOATS = (F32, F16, BF16)
PAGE_SIZES = (1, 2, 3, 5, 7, 8, 16, 24, 32)


def pick(rng, options):
    return options[rng.integers(len(options))]


def batch(rng):
    """New and cached tokens of each request, page size: lengths around page edges are as likely as others."""
    size = pick(rng, PAGE_SIZES)
    new = [int(n) for n in rng.choice([0, 1, 1, 1, 2, 3, 5, 9], rng.integers(1, 6))]
    edge = [max(0, k * size + d) for k in (0, 1, 2) for d in (-1, 0, 1)]
    cached = [int(pick(rng, edge)) if rng.random() < 0.6 else int(rng.integers(0, 50)) for _ in new]
    return new, cached, size


def even(rng, low, high):
    return 2 * int(rng.integers(low // 2, high // 2 + 1))


def storage(rng, width):
    """Cache type and scale group: dict of the builders' arguments."""
    if rng.random() < 0.3:
        return {"granularity": int(pick(rng, (width, width + 3, 16, 32, 10, int(rng.integers(1, width + 1)))))}
    return {"cache": pick(rng, (F32, F16, BF16, FP8))}


def maybe_padded(rng, case, *names):
    """Padding rows past the last request, where the op has tokens as an axis."""
    return make.pad(case, *names) if rng.random() < 0.25 else case


def rope(rng):
    kv_heads, inter = int(pick(rng, (1, 1, 2, 3, 5))), bool(rng.integers(2))
    dk = int(pick(rng, (2, 12, 40, 64, 80, 96, 128, int(rng.integers(2, 90)))))
    dq = int(rng.integers(2, 100)) if inter and rng.random() < 0.3 else dk
    kv_heads = 1 if dq != dk else kv_heads  # an MLA cache then
    r = min(dq, dk) & ~1 if rng.random() < 0.5 else even(rng, 0, min(dq, dk))
    ids, mrope = 0, ""
    if rng.random() < 0.4:
        ids = 1
        if r >= 4 and rng.random() < 0.7:
            ids = int(rng.integers(1, 4))
            mrope = ",".join(str(e) for e in sorted(rng.choice(np.arange(1, r + 1), ids, replace=False)))
    case = make.rope(rng, *batch(rng), kv_heads * int(rng.integers(1, 6)), kv_heads, dq, dk, r, inter,
                     dtype=pick(rng, FLOATS), freq=pick(rng, FLOATS), layers=int(rng.integers(1, 4)), ids=ids,
                     mrope=mrope, **storage(rng, dk))
    return maybe_padded(rng, case, "q_proj") if not ids else case


def norm(rng):
    heads, dim, per_head = int(rng.integers(1, 6)), int(pick(rng, (1, 33, 40, 64, 96, 128))), int(rng.integers(2))
    row = dim if per_head else heads * dim
    n = row if rng.random() < 0.5 else int(rng.integers(1, row + 1))
    return make.norm(rng, *batch(rng), heads, dim, n, per_head, int(rng.integers(2)), float(pick(rng, (0.0, 1.0, 0.3))),
                     pick(rng, FLOATS), layers=int(rng.integers(1, 4)), eps=pick(rng, (1e-5, 1e-6, 0.0)),
                     **storage(rng, dim))


def mla_store(rng):
    c, r = int(pick(rng, (1, 33, 64, 128, 200))), even(rng, 0, 40)
    case = make.mla_store(rng, *batch(rng), int(rng.integers(1, 6)), c, r, pick(rng, FLOATS), freq=pick(rng, FLOATS),
                          gamma=pick(rng, FLOATS), out=pick(rng, ("F32", "F16", "BF16", "F8_E4M3")),
                          layers=int(rng.integers(1, 4)), big=float(pick(rng, (0.01, 1.0, 1.0, 300.0))),
                          source=pick(rng, FLOATS), **storage(rng, c + r))
    return maybe_padded(rng, case, "q_rope", "kv_input")


def mla_decode(rng):
    c, r = int(pick(rng, (16, 33, 64, 96, 128))), even(rng, 0, 32)
    nope, dv = int(rng.integers(0 if r else 1, 65)), int(rng.integers(1, 65))
    mask = pick(rng, ("causal", "causal", "null", "chunked", "chunked_causal", "sliding_window_causal"))
    case = make.decode(rng, *batch(rng), int(rng.integers(1, 8)), c, r, nope, dv, dtype=pick(rng, FLOATS),
                       layers=int(rng.integers(1, 4)), mask=mask, window=int(rng.integers(1, 20)),
                       score=pick(rng, ("no_pos", "no_pos", "alibi")), g=int(pick(rng, (16, 32, 64, 128))),
                       gk=int(pick(rng, (7, 32, 64, 128))), freq=pick(rng, FLOATS), gamma=pick(rng, FLOATS),
                       weights=pick(rng, (FP8, FP8, BF16, F16, F32)), **storage(rng, c + r))
    return maybe_padded(rng, case, "q")


def mla_prefill(rng):
    c, r = int(pick(rng, (16, 33, 64, 96))), even(rng, 0, 32)
    nope, dv = int(rng.integers(0 if r else 1, 65)), int(rng.integers(1, 65))
    mask = pick(rng, ("causal", "causal", "null", "chunked", "chunked_causal", "sliding_window_causal"))
    t, m = make.decode(rng, *batch(rng), int(rng.integers(1, 6)), c, r, nope, dv, dtype=pick(rng, FLOATS),
                       layers=int(rng.integers(1, 4)), mask=mask, window=int(rng.integers(1, 20)),
                       score=pick(rng, ("no_pos", "no_pos", "alibi")), g=int(pick(rng, (16, 32, 64, 128))),
                       gk=int(pick(rng, (7, 32, 64, 128))), freq=pick(rng, FLOATS), gamma=pick(rng, FLOATS),
                       weights=pick(rng, (FP8, FP8, BF16, F16, F32)), op="mla_prefill_branch", **storage(rng, c + r))
    m["chunk_tokens"] = int(pick(rng, (0, 1, 7, 16, 100)))
    return maybe_padded(rng, (t, m), "q")


def kv_store(rng):
    d, own_v, with_v = int(pick(rng, (1, 33, 40, 64, 80, 128))), None, rng.random() < 0.8
    if with_v and rng.random() < 0.4:
        dv = int(rng.integers(1, 100))
        v = storage(rng, dv)
        own_v = dv, v.get("cache", FP8), v.get("granularity", 0)
    case = make.kv(rng, *batch(rng), int(rng.integers(1, 6)), d, pick(rng, FLOATS), layers=int(rng.integers(1, 4)),
                   v_src=pick(rng, FLOATS), big=float(pick(rng, (0.001, 1.0, 1.0, 300.0))), with_v=with_v, own_v=own_v,
                   **storage(rng, d))
    return maybe_padded(rng, case, *("k", "v")[:1 + with_v])


def silu_mul(rng):
    shape = int(rng.integers(1, 9)), 2 * int(pick(rng, (1, 15, 64, 100, int(rng.integers(1, 700)))))
    return {"x": oracle.store(4 * rng.standard_normal(shape), pick(rng, FLOATS))}, {"op": "silu_mul"}


def rms_norm(rng):
    t, m = make.rows_norm(rng, int(rng.integers(1, 9)), int(pick(rng, (1, 33, 64, 100, int(rng.integers(1, 1500))))), pick(rng, FLOATS),
                          before=int(rng.integers(2)))
    t["gamma"] = oracle.store(t["gamma"], pick(rng, FLOATS))
    if rng.random() < 0.6:
        t["residual"] = oracle.store(3 * rng.standard_normal(t["x"].shape), pick(rng, FLOATS))
    return t, {**m, "epsilon": pick(rng, (1e-5, 1e-6, 0.0)), "weight_offset": float(pick(rng, (0.0, 1.0, 0.3)))}


def merge_states(rng):
    heads, size = int(pick(rng, (1, 3, 8, 40, 70))), int(pick(rng, (8, 33, 64, 128)))
    t, m = make.merge(rng, int(rng.integers(2, 7)), heads, size, pick(rng, FLOATS))
    t["out_b"] = oracle.store(t["out_b"], pick(rng, FLOATS))
    return t, m


def matmul(rng):
    weights, batch = pick(rng, (F32, F16, BF16, FP8, FP8)), int(pick(rng, (0, 0, 1, 3)))
    case = make.mm(rng, int(rng.integers(1, 40)), int(rng.integers(1, 150)), int(rng.integers(1, 300)), batch, pick(rng, FLOATS), weights,
                   bias=not batch and rng.random() < 0.5, g=int(pick(rng, (7, 32, 64, 128))))
    if weights == FP8 and rng.random() < 0.5:
        case[1]["x_scale_bound"] = float(pick(rng, (1200.0, 1.0)))
    return case


def attention(rng):
    kv_heads, d, own_v = int(pick(rng, (1, 1, 2, 3, 5))), int(pick(rng, (1, 33, 40, 64, 80, 128))), None
    if rng.random() < 0.4:
        dv = int(rng.integers(1, 100))
        v = storage(rng, dv)
        own_v = dv, v.get("cache", FP8), v.get("granularity", 0)
    case = make.attention(rng, *batch(rng), kv_heads * int(rng.integers(1, 9)), kv_heads, d, pick(rng, (*FLOATS, FP8)),
                          layers=int(rng.integers(1, 4)), mask=pick(rng, ("causal", "causal", "null", "chunked", "chunked_causal",
                                                                          "sliding_window_causal")),
                          window=int(rng.integers(1, 20)), score=pick(rng, ("no_pos", "no_pos", "alibi")),
                          softcap=float(pick(rng, (0.0, 0.0, 2.0, 30.0))), sinks=bool(rng.integers(2)), own_v=own_v, **storage(rng, d))
    return maybe_padded(rng, case, "q")


BUILDERS = (rope, norm, mla_store, mla_decode, kv_store, silu_mul, rms_norm, merge_states, matmul, attention, mla_prefill)


def cases(seed, count):
    """name -> (tensors, metadata), the ops in turn."""
    for i in range(count):
        build = BUILDERS[i % len(BUILDERS)]
        yield f"random_{build.__name__}_{i:03}", build(np.random.default_rng([seed, i]))
