# SPDX-License-Identifier: Apache-2.0
"""damaged_files.py CLINFER DATA_DIR: damaged and absurd case files end with a message and status 1, never a crash.

Prints a line for each file that does not, and the plain closing line.
"""
import json
import os
import struct
import subprocess
import sys
import tempfile

clinfer, data_dir = sys.argv[1:3]
results = {"passed": 0, "failed": 0}


def read(name):
    with open(os.path.join(data_dir, name + ".safetensors"), "rb") as f:
        raw = f.read()
    n = struct.unpack("<Q", raw[:8])[0]
    return raw, json.loads(raw[8:8 + n]), raw[8 + n:]


def pack(header, data):
    head = json.dumps(header).encode() if isinstance(header, dict) else header
    return struct.pack("<Q", len(head)) + head + data


def edited(name, edit):
    """The case with edit(header, data) applied; data is a bytearray."""
    _, header, data = read(name)
    data = bytearray(data)
    edit(header, data)
    return pack(header, bytes(data))


def meta(key, value):
    return lambda h, d: h["__metadata__"].__setitem__(key, value)


def no_meta(key):
    return lambda h, d: h["__metadata__"].pop(key)


def tensor(name, field, value):
    return lambda h, d: h[name].__setitem__(field, value)


def without(name):
    """The tensor's entry goes, and its bytes with it: a well-formed file that lacks it."""
    def edit(h, d):
        lo, hi = h.pop(name)["data_offsets"]
        del d[lo:hi]
        for t in h.values():
            if "data_offsets" in t and t["data_offsets"][0] >= hi:
                t["data_offsets"] = [v - (hi - lo) for v in t["data_offsets"]]
    return edit


def words(name, values, at=0):
    """u32 values written into a tensor."""
    def edit(h, d):
        lo = h[name]["data_offsets"][0] + 4 * at
        d[lo:lo + 4 * len(values)] = struct.pack(f"<{len(values)}I", *values)
    return edit


def transposed(name):
    return lambda h, d: h[name].__setitem__("shape", h[name]["shape"][::-1])


rope, norm, store, decode = "rope_interleaved_bf16", "norm_fp8_scaled_cache", "mla_store_bf16", "mla_decode_small"
raw = read(rope)[0]
header_end = 8 + struct.unpack("<Q", raw[:8])[0]

cases = {
    "empty": b"", "seven bytes": b"\0" * 7, "length only": struct.pack("<Q", 2), "text": b"not a tensor file at all",
    "huge length": struct.pack("<Q", 2**63) + raw[8:], "length past the end": struct.pack("<Q", len(raw)) + raw[8:],
    "zero length": struct.pack("<Q", 0) + raw[8:], "no json": pack(b"hello", b""), "an array": pack(b"[1]", b""),
    "deep": pack(b'{"a":' * 20000 + b"1" + b"}" * 20000, b""), "only a brace": pack(b"{", b""),
    "no tensors": pack({"__metadata__": {"op": "fused_qk_rope"}}, b""), "no metadata": pack({}, b""),
    "cut in the header": raw[:header_end // 2], "cut before the data": raw[:header_end], "cut in the data": raw[:-1],
    "one byte more": raw + b"x", "nul in the header": raw[:20] + b"\0" + raw[21:], "not utf-8": pack(b'{"\xff\xfe":1}', b""),
    "unknown op": edited(rope, meta("op", "frobnicate")), "no op": edited(rope, no_meta("op")),
    "empty op": edited(rope, meta("op", "")), "op of another case": edited(rope, meta("op", "mla_decode_branch")),
    "layer past the end": edited(rope, meta("layer_idx", "2")), "negative layer": edited(rope, meta("layer_idx", "-1")),
    "layer no number": edited(rope, meta("layer_idx", "one")), "layer huge": edited(rope, meta("layer_idx", "9" * 40)),
    "layer with a tail": edited(rope, meta("layer_idx", "1x")), "no layer": edited(rope, no_meta("layer_idx")),
    "interleaved 2": edited(rope, meta("interleaved", "2")), "metadata no string": edited(rope, meta("layer_idx", 1)),
    "sections without ids": edited(rope, meta("mrope_section", "8,16")),
    "sections descending": edited("rope_mrope", meta("mrope_section", "32,20,8")),
    "sections no numbers": edited("rope_mrope", meta("mrope_section", "a,b,c")),
    "too many sections": edited("rope_mrope", meta("mrope_section", ",".join(str(i) for i in range(2, 40, 2)))),
    "rank too small": edited(rope, tensor("q_proj", "shape", [8, 256])),
    "rank nine": edited(rope, tensor("q_proj", "shape", [8, 4, 64, 1, 1, 1, 1, 1, 1])),
    "negative extent": edited(rope, tensor("q_proj", "shape", [-8, 4, -64])),
    "fractional extent": edited(rope, tensor("q_proj", "shape", [8, 4.5, 64])),
    "extent 2^62": edited(rope, tensor("q_proj", "shape", [2**62, 4, 64])),
    "product overflows": edited(rope, tensor("q_proj", "shape", [2**32, 2**32, 1])),
    "offsets reversed": edited(rope, lambda h, d: h["q_proj"]["data_offsets"].reverse()),
    "offsets past the end": edited(rope, tensor("q_proj", "data_offsets", [len(raw), len(raw) + 4096])),
    "offsets overlap": edited(rope, lambda h, d: h["freqs_cis"].__setitem__("data_offsets", h["q_proj"]["data_offsets"])),
    "type unknown": edited(rope, tensor("q_proj", "dtype", "F12")), "type fnuz": edited(rope, tensor("kv_blocks", "dtype", "F8_E4M3FNUZ")),
    "type u32 q": edited("rope_interleaved_f32", tensor("q_proj", "dtype", "U32")),
    "offsets as floats": edited(rope, lambda h, d: h["input_row_offsets"].__setitem__("dtype", "F32")),
    "q transposed": edited(rope, transposed("q_proj")), "freqs transposed": edited(rope, transposed("freqs_cis")),
    "blocks transposed": edited(rope, transposed("kv_blocks")),
    "page id past the end": edited(rope, words("lookup_table", [10**6])),
    "page id 2^32 - 1": edited(decode, words("lookup_table", [2**32 - 1])),
    "length past the table": edited(rope, words("cache_lengths", [10**6])),
    "length 2^32 - 1": edited(norm, words("cache_lengths", [2**32 - 1])),
    "row offsets descend": edited(rope, words("input_row_offsets", [5], 1)),
    "row offsets from one": edited(rope, words("input_row_offsets", [1])),
    "row offsets past T": edited(rope, words("input_row_offsets", [1000], 4)),
    "ids past the rows": edited("rope_position_ids", words("position_ids", [10**6])),
    "epsilon no number": edited(norm, meta("epsilon", "tiny")), "epsilon nan": edited(norm, meta("epsilon", "nan")),
    "epsilon negative": edited(norm, meta("epsilon", "-1")), "no epsilon": edited(norm, no_meta("epsilon")),
    "group 0": edited(norm, meta("kv_scale_granularity", "0")), "group negative": edited(norm, meta("kv_scale_granularity", "-32")),
    "group of another size": edited(norm, meta("kv_scale_granularity", "7")),
    "per_head_norm yes": edited(norm, meta("per_head_norm", "yes")),
    "out type unknown": edited(store, meta("out_rope_dtype", "I8")), "no out type": edited(store, no_meta("out_rope_dtype")),
    "mask unknown": edited(decode, meta("mask", "diagonal")), "window 0": edited("mla_decode_window", meta("local_window_size", "0")),
    "score_mod unknown": edited(decode, meta("score_mod", "rope")), "m granularity 2": edited(decode, meta("m_scale_granularity", "2")),
    "k granularity 0": edited(decode, meta("k_scale_granularity", "0")), "n granularity huge": edited(decode, meta("n_scale_granularity", str(2**62))),
    "scale inf": edited(decode, meta("scale", "inf")), "no scale": edited(decode, no_meta("scale")),
}
for name, edit in {"q": "q_proj", "freqs": "freqs_cis", "blocks": "kv_blocks", "lengths": "cache_lengths", "table": "lookup_table",
                   "row offsets": "input_row_offsets"}.items():
    cases[f"{name} missing"] = edited(rope, without(edit))
kv = "store_kv_bf16"
cases |= {
    "k missing": edited(kv, without("k")), "v of other tokens": edited(kv, tensor("v", "shape", [4, 4, 64])),
    "v of other heads": edited(kv, tensor("v", "shape", [8, 1, 128])),
    "v for one plane": edited(kv, lambda h, d: h["kv_blocks"]["shape"].__setitem__(slice(1, 3), [1, 4])),
    "v blocks of two planes": edited(kv, lambda h, d: h.__setitem__("v_blocks", h.pop("expect.kv_blocks"))),
    "v blocks of other pages": edited(kv, lambda h, d: h.__setitem__("v_blocks", {**h.pop("expect.kv_blocks"), "shape": [14, 1, 2, 8, 2, 64]})),
    "v blocks of another size": edited(kv, lambda h, d: h.__setitem__("v_blocks", {**h.pop("expect.kv_blocks"), "shape": [7, 1, 2, 8, 2, 128]})),
    "v scales without blocks": edited("store_kv_scaled", lambda h, d: h.__setitem__("v_scales", h.pop("expect.kv_scales"))),
}
silu, rows, merge = "silu_mul_bf16", "rms_norm_residual", "merge_states_bf16"
cases |= {
    "silu x missing": edited(silu, without("x")), "silu x odd": edited(silu, tensor("x", "shape", [80, 9])),
    "silu x of three axes": edited(silu, tensor("x", "shape", [5, 12, 12])), "silu x u32": edited(silu, tensor("x", "dtype", "U32")),
    "silu expects other columns": edited(silu, tensor("expect.output", "shape", [4, 90])),
    "rms gamma missing": edited(rows, without("gamma")), "rms gamma of two axes": edited(rows, tensor("gamma", "shape", [1, 96])),
    "rms gamma of other columns": edited("rms_norm_cast_first", lambda h, d: h.__setitem__("gamma", {**h["x"], "shape": [400]})),
    "rms residual of other rows": edited(rows, tensor("residual", "shape", [8, 48])), "rms residual fp8": edited(
        rows, lambda h, d: (h["residual"].__setitem__("dtype", "F8_E4M3"), h["residual"].__setitem__("shape", [8, 96]))),
    "rms epsilon negative": edited(rows, meta("epsilon", "-1")), "rms no epsilon": edited(rows, no_meta("epsilon")),
    "rms cast 2": edited(rows, meta("multiply_before_cast", "2")), "rms offset text": edited(rows, meta("weight_offset", "one")),
    "lse_b missing": edited(merge, without("lse_b")), "lse_a of other heads": edited(merge, tensor("lse_a", "shape", [3, 5])),
    "lse_b as bf16": edited(merge, lambda h, d: h["lse_b"].update(dtype="BF16", shape=[5, 6])),
    "out_b of other tokens": edited(merge, tensor("out_b", "shape", [3, 5, 40])),
}

mm, mm8, mmb = "matmul_bf16", "matmul_fp8", "matmul_batched_fp8"
cases |= {
    "x missing": edited(mm, without("x")), "w missing": edited(mm, without("w")), "w of other columns": edited(mm, tensor("w", "shape", [96, 72])),
    "x of rank 3": edited(mm, tensor("x", "shape", [5, 1, 96])), "x of rank 1": edited(mm, tensor("x", "shape", [480])),
    "bias of other rows": edited(mm, tensor("bias", "shape", [36, 2])), "w of codes without scales": edited(mm8, without("w_scale")),
    "scales of another shape": edited(mm8, tensor("w_scale", "shape", [3, 2])), "n granularity 0 of matmul": edited(mm8, meta("n_scale_granularity", "0")),
    "k granularity of another size": edited(mm8, meta("k_scale_granularity", "16")),
    "no k granularity": edited(mm8, no_meta("k_scale_granularity")), "bound negative": edited(mm8, meta("x_scale_bound", "-1")),
    "bound no number": edited(mm8, meta("x_scale_bound", "much")), "w int8 with f32 scales": edited(mm8, tensor("w", "dtype", "I8")),
    "batch of other heads": edited(mmb, tensor("w", "shape", [2, 128, 96])), "w of rank 2 in a batch": edited(mmb, tensor("w", "shape", [256, 96])),
    "no rows of w": edited(mm, tensor("w", "shape", [0, 96])),
}
attention = "attention_gqa_bf16"
cases |= {
    "heads not divided": edited(attention, tensor("q", "shape", [21, 4, 64])), "q of another size": edited(attention, tensor("q", "shape", [14, 3, 128])),
    "softcap negative": edited(attention, meta("softcap", "-1")), "softcap nan": edited(attention, meta("softcap", "nan")),
    "attention window 0": edited("attention_window_sinks", meta("local_window_size", "0")),
    "sinks of other heads": edited("attention_window_sinks", lambda h, d: h["sinks"].__setitem__("shape", [3, 2])),
    "no plane for v": edited(attention, lambda h, d: h["kv_blocks"]["shape"].__setitem__(slice(1, 3), [1, 4])),
    "page id of an old key": edited(attention, words("lookup_table", [10**6])),
}
cases["weight scales missing"] = edited(decode, without("w_uk_scale"))
prefill = "mla_prefill_fp8_weights"
cases |= {
    "scales of w_k missing": edited(prefill, without("w_k_scale")),
    "chunk of -1 keys": edited(prefill, meta("chunk_tokens", "-1")),
    "chunk no number": edited(prefill, meta("chunk_tokens", "all")),
}
cases["gamma missing"] = edited(norm, without("gamma"))


def run(path):
    """True: a message and status 1 within a minute."""
    p = subprocess.run([clinfer, "run", path], capture_output=True, timeout=60, text=True, errors="replace")
    ok = p.returncode == 1 and p.stderr.startswith("clinfer: ") and "ERROR:" not in p.stderr and "runtime error" not in p.stderr
    return ok, f"status {p.returncode}, stderr: {p.stderr[:400]!r}"


def check(name, path):
    ok, text = run(path)
    results["passed" if ok else "failed"] += 1
    if not ok:
        print(f"FAILED {name}: {text}")


with tempfile.TemporaryDirectory() as folder:
    for i, (name, content) in enumerate(cases.items()):
        path = os.path.join(folder, f"{i}.safetensors")
        with open(path, "wb") as f:
            f.write(content)
        check(name, path)
    check("a folder", folder)
    check("no file", os.path.join(folder, "nothing"))
    fifo = os.path.join(folder, "fifo")
    os.mkfifo(fifo)
    check("a fifo", fifo)
print(f"{results['passed']} passed, {results['failed']} failed")
sys.exit(results["failed"] != 0 or not results["passed"])
