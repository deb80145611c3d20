# SPDX-License-Identifier: Apache-2.0
"""kernel_syntax.py CLANG CL_DIR [KERNEL]: every kernel of both sets, or one, passes clang's checks over its macro matrix, and says
#error without a macro.

One macro at a time takes each of its values, the others keep their first. Ends with the plain closing line.
"""
import os
import shlex
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

clang, cl_dir = sys.argv[1:3]
only = sys.argv[3:]
FLOATS = ["bf16", "f32", "f16"]
CACHE = FLOATS + ["f8_e4m3"]
PAGED = {"ROUNDED_DIVIDE": [1, 0], "CACHE_T": CACHE, "KV_HEADS": [2, 1, 3], "HEAD_SIZE": [64, 40, 13], "SCALE_GROUP": [0]}
MLA = {**PAGED, "KV_HEADS": [1], "HEAD_SIZE": [80], "Q_T": FLOATS, "GAMMA_T": FLOATS, "FREQS_T": FLOATS, "LATENT": [64],
       "ROPE_DIM": [16]}
SCALED = {"CACHE_T": ["f8_e4m3"], "SCALE_GROUP": [16, 20, 128]}
TILES = {"HEAD_BLOCK": [16, 3, 40], "TILE": [32], "QK_HEADS": [1], "QK_KEYS": [16, 4], "PV_HEADS": [4], "PV_VECTORS": [4, 1]}
ATTENTION_TILES = {"ROW_TILE": [4, 3], "VALUE_TILE": [1, 3]}
ATTENTION = {**ATTENTION_TILES, "HEADS": [12], "MASK": range(5), "ALIBI": [0, 1], "SOFTCAP": [0, 1], "HEAD_BLOCK": [4, 6, 1],
             "TOKENS": [2, 1, 32], "TILE": [64, 16], "VALUE_T": CACHE, "VALUE_SIZE": [48, 72, 13], "VALUE_GROUP": [0]}

WEIGHTS = {"W_T": CACHE, "ROW_BLOCK": [1, 128], "COLUMN_BLOCK": [0, 16, 20]}
Q8_0 = {"W_T": ["i8"], "ROW_BLOCK": [1], "COLUMN_BLOCK": [32]}
PRODUCT = {"X_T": FLOATS, "Y_T": FLOATS, "ROUND_T": FLOATS, "BIAS_T": FLOATS}
CHUNK_TILES = {"SOFTCAP": [0], "TOKENS": [64, 16], "TILE": [64, 16], "ROW_TILE": [4], "VALUE_TILE": [4, 1]}

KERNELS = {
    "fused_qk_rope": [
        {**PAGED, "Q_T": FLOATS, "FREQS_T": FLOATS, "HEADS": [4], "Q_SIZE": [64], "ROPE_DIM": [32, 0, 6, 64], "INTERLEAVED": [1, 0],
         "POSITION_IDS": [0, 1], "MROPE_SECTIONS": [0]},
        {**PAGED, "HEAD_SIZE": [64], "Q_T": ["bf16"], "FREQS_T": FLOATS, "HEADS": [4], "Q_SIZE": [64], "ROPE_DIM": [32],
         "INTERLEAVED": [1, 0], "POSITION_IDS": [1], "MROPE_SECTIONS": range(1, 9), **{f"MROPE_END{i}": [4 * i + 4] for i in range(8)}},
        {**PAGED, **SCALED, "HEAD_SIZE": [64], "Q_T": ["bf16"], "FREQS_T": ["f32"], "HEADS": [4], "Q_SIZE": [64], "ROPE_DIM": [32],
         "INTERLEAVED": [1, 0], "POSITION_IDS": [0], "MROPE_SECTIONS": [0]},
    ],
    "rms_norm_kv_cache": [
        {**PAGED, "GAMMA_T": FLOATS, "NORM_SIZE": [13, 1], "WHOLE_ROW": [0, 1], "CAST_FIRST": [0, 1]},
        {**PAGED, **SCALED, "GAMMA_T": FLOATS, "NORM_SIZE": [13], "WHOLE_ROW": [0, 1], "CAST_FIRST": [0, 1]},
    ],
    "mla_fused_rope_rmsnorm": [
        {**MLA, "OUT_T": CACHE, "KV_INPUT_T": FLOATS, "HEADS": [4]},
        {**MLA, **SCALED, "OUT_T": ["f8_e4m3"], "KV_INPUT_T": FLOATS, "HEADS": [4]},
        {**MLA, "ROPE_DIM": [0], "HEAD_SIZE": [64], "OUT_T": ["bf16"], "KV_INPUT_T": ["bf16"], "HEADS": [4]},
    ],
    "mla_decode_branch": [
        {**MLA, **TILES, "HEADS": [40], "NOPE": [32, 0, 7], "MASK": range(5), "ALIBI": [0, 1], "QUANT_BLOCK": [0, 32, 20]},
        {**MLA, **TILES, **SCALED, "HEADS": [3], "NOPE": [32], "MASK": [0], "ALIBI": [0], "QUANT_BLOCK": [32]},
        {**MLA, **TILES, "ROPE_DIM": [0], "HEAD_SIZE": [64], "HEADS": [3], "NOPE": [32], "MASK": [0], "ALIBI": [0], "QUANT_BLOCK": [32]},
    ],
    "mla_prefill_branch": [
        {**MLA, **CHUNK_TILES, "HEADS": [40], "NOPE": [32, 0, 7], "VALUE_SIZE": [40, 7], "MASK": range(5), "ALIBI": [0, 1],
         "QUANT_BLOCK": [0, 32, 20]},
        {**MLA, **CHUNK_TILES, **SCALED, "HEADS": [3], "NOPE": [32], "VALUE_SIZE": [40], "MASK": [0], "ALIBI": [0], "QUANT_BLOCK": [32]},
        {**MLA, **CHUNK_TILES, "ROPE_DIM": [0], "HEAD_SIZE": [64], "HEADS": [3], "NOPE": [32], "VALUE_SIZE": [40], "MASK": [0],
         "ALIBI": [0], "QUANT_BLOCK": [32]},
    ],
    "kv_store": [
        {**PAGED, "SOURCE_T": FLOATS},
        {**PAGED, **SCALED, "KV_HEADS": [2, 1, 3], "HEAD_SIZE": [64, 40, 13], "SOURCE_T": FLOATS},
    ],
    "silu_mul": [{"X_T": FLOATS}],
    "rms_norm": [
        {"X_T": FLOATS, "GAMMA_T": FLOATS, "CAST_FIRST": [0, 1], "RESIDUAL": [0]},
        {"X_T": FLOATS, "GAMMA_T": FLOATS, "CAST_FIRST": [0, 1], "RESIDUAL": [1], "RESIDUAL_T": FLOATS},
    ],
    "paged_attention": [
        {**PAGED, **ATTENTION, "Q_T": CACHE, "OUT_T": FLOATS},
        {**PAGED, **ATTENTION, **SCALED, "VALUE_T": ["f8_e4m3"], "VALUE_GROUP": [16, 20, 128], "Q_T": ["bf16"], "OUT_T": ["bf16"]},
    ],
    "merge_states": [{"A_T": FLOATS, "B_T": FLOATS, "VALUE_SIZE": [64, 13, 1]}],
    "matmul": [
        {**PRODUCT, **WEIGHTS, "TOKEN_TILE": [4, 2], "ROW_TILE": [6, 4], "ITEM_TOKENS": [64], "STEP": [512, 16]},
        {**PRODUCT, **WEIGHTS, "TOKEN_TILE": [1], "ROW_TILE": [8, 16], "ITEM_TOKENS": [1], "STEP": [0]},
        {**PRODUCT, **Q8_0, "TOKEN_TILE": [2], "ROW_TILE": [8], "ITEM_TOKENS": [2], "STEP": [0]},
    ],
    "matmul_x": [{"ROUNDED_DIVIDE": [1, 0], "X_T": FLOATS, "COLUMN_BLOCK": [0, 128, 7]}],
    "weights_f32": [WEIGHTS, Q8_0],
    "matmul_finish": [{"Y_T": FLOATS, "ROUND_T": FLOATS, "BIAS_T": FLOATS}],
}


def in_group(name, tiles=(), **macros):
    """The sets of a kernel of the group set: its macros of the row set, but for the tiles, and these."""
    group = {"GROUP_ITEMS": [64, 32], "LANES": [4, 8], "SUBGROUPS": [0, 30], **macros}
    return [{**{k: v for k, v in row.items() if k not in tiles}, **group} for row in KERNELS[name]]


MATMUL_TILES = ["TOKEN_TILE", "ROW_TILE", "ITEM_TOKENS", "STEP"]
GROUP_KERNELS = {name: in_group(name) for name in KERNELS} | {
    "mla_decode_branch": in_group("mla_decode_branch", TILES, LANES=[4], HEAD_BLOCK=[16, 4, 40], TILE=[32, 8], TILE_T=["bf16", "f32"]),
    "paged_attention": in_group("paged_attention", [*ATTENTION_TILES, "ROUNDED_DIVIDE"], LANES=[4], TILE=[32, 4], TILE_T=["bf16", "f32"]),
    "mla_prefill_branch": in_group("mla_prefill_branch", ["ROW_TILE", "VALUE_TILE"], LANES=[4], TOKENS=[16, 1], TILE=[32, 4], TILE_T=["bf16", "f32"]),
    "matmul": in_group("matmul", MATMUL_TILES, GROUP_ITEMS=[64], LANES=[4], TOKEN_TILE=[4], ROW_TILE=[4], GROUP_ROWS=[64], GROUP_TOKENS=[16])
    + in_group("matmul", MATMUL_TILES, GROUP_ITEMS=[32], TOKEN_TILE=[1], ROW_TILE=[1], GROUP_ROWS=[32], GROUP_TOKENS=[1]),
}
SETS = {"row": KERNELS, "group": GROUP_KERNELS}
# Wanted only as far as MROPE_SECTIONS says; 16 where nothing says.
OPTIONAL = {f"MROPE_END{i}" for i in range(8)} | {"LANES"}

BATCH = 24


def has_subgroups(macros):
    return bool(macros.get("SUBGROUPS"))


def language(macros):
    if has_subgroups(macros):
        return ["-cl-std=CL3.0", "-Xclang", "-cl-ext=+cl_khr_subgroups,+__opencl_c_subgroups"]
    return ["-cl-std=CL1.2"]


def frontend(standard):
    """What clang's driver would run, up to the file names: one process takes any number of files, and starting costs more than
    checking one."""
    p = subprocess.run([clang, "-###", "-fsyntax-only", "-Werror", "-Wall", "-Wextra", "-Wno-unused-parameter", "-Wno-unused-function",
                        "-Wundef", "-Wdouble-promotion", "-target", "spir64", "-x", "cl", *standard, "-Xclang",
                        "-finclude-default-header", "-I", cl_dir, os.devnull], capture_output=True, text=True)
    words = shlex.split(p.stderr.splitlines()[-1])
    assert "-cc1" in words and words[-1] == os.devnull, p.stderr
    return words[:-1]


def compile_(batch):
    """(whether all pass, errors)"""
    with tempfile.TemporaryDirectory() as folder:
        names = [os.path.join(folder, f"{i}.cl") for i in range(len(batch))]
        for name, (_, path, macros, _) in zip(names, batch):
            with open(name, "w") as f:
                f.writelines(f"#define {k} {v}\n" for k, v in macros.items())
                f.write(f'#include "{path}.cl"\n')
        p = subprocess.run(frontends[has_subgroups(batch[0][2])] + names, capture_output=True, text=True)
    return p.returncode == 0, p.stderr


def jobs():
    """(what, path, macros, whether it is to pass)"""
    for path, sets in ((f"{s}/{kernel}", sets) for s, kernels in SETS.items() for kernel, sets in kernels.items()
                       if kernel in (only or kernels)):
        for macros in sets:
            base = {k: list(v)[0] for k, v in macros.items()}
            yield "base", path, base, True
            for k, values in macros.items():
                for v in list(values)[1:]:
                    yield f"{k}={v}", path, {**base, k: v}, True
        first = {k: list(v)[0] for k, v in sets[0].items()}
        for k in first:
            if k not in OPTIONAL:
                yield f"without {k}", path, {n: v for n, v in first.items() if n != k}, False


def batches():
    """Jobs of one language that are to pass, some at a time; each of the others alone."""
    waiting = {}
    for job in jobs():
        if not job[3]:
            yield [job]
            continue
        key = has_subgroups(job[2])
        waiting.setdefault(key, []).append(job)
        if len(waiting[key]) == BATCH:
            yield waiting.pop(key)
    yield from waiting.values()


def check(batch):
    """[(whether it is as wanted, else why not)]"""
    ok, errors = compile_(batch)
    what, path, _, want = batch[0]
    if not ok and len(batch) > 1:
        return [result for job in batch for result in check([job])]
    good = ok == want and (want or "must be defined" in errors or " wants " in errors)
    return [(good, f"FAILED {path} {what}: {errors[:1500] or 'passes the check'}")] * len(batch)


def unlisted():
    """Kernel files that no table has."""
    return [(False, f"FAILED {s}/{f}: not in SETS") for s, kernels in SETS.items()
            for f in sorted(os.listdir(os.path.join(cl_dir, s))) if f.endswith(".cl") and f[:-3] not in kernels]


frontends = [frontend(language({"SUBGROUPS": n})) for n in (0, 30)]  # by has_subgroups
with ThreadPoolExecutor(os.cpu_count()) as pool:
    results = [result for batch in pool.map(check, batches()) for result in batch] + unlisted()
for good, text in results:
    if not good:
        print(text)
passed = sum(good for good, _ in results)
print(f"{passed} passed, {len(results) - passed} failed")
sys.exit(passed != len(results) or not passed)
