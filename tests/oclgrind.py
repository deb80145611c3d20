# SPDX-License-Identifier: Apache-2.0
"""oclgrind.py CLINFER SOURCE_DIR: every kernel of both sets in a simulator that sees accesses outside buffers and races of work-items.

The simulator's exit status says nothing: its log has to stay empty. A copy of the kernels that reads past a tensor
shows that it does not stay so by itself. Exit status 77 (skipped) where there is no oclgrind.
"""
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

clinfer, source = sys.argv[1:3]
# Small files that between them launch every kernel, with and without scales. `--device oclgrind` finds no other device.
CASES = ["rope_split_partial_f16", "rope_fp8_scaled_partial", "norm_fp8_scaled_cache", "norm_short_gamma", "mla_store_scaled",
         "mla_store_saturates", "mla_decode_scaled_cache", "mla_decode_bf16_weights", "store_kv_scaled",
         "mla_prefill_fp8_cache"]


def run(case, kernel_set, kernels, folder):
    """(the command's output, or None where it failed; the simulator's log)"""
    log = os.path.join(folder, f"{case}.{kernel_set}.log")
    p = subprocess.run(["oclgrind", "--log", log, "--data-races", clinfer, "run", f"{source}/tests/data/{case}.safetensors",
                        "--set", kernel_set, "--gemm", "own", "--device", "oclgrind"], capture_output=True, text=True, errors="replace", timeout=120,
                       env={**os.environ, "CLINFER_CACHE_DIR": "", "CLINFER_CL_DIR": kernels})
    text = open(log, errors="replace").read() if os.path.exists(log) else "no log"
    return (p.stdout if p.returncode == 0 else None), text + (p.stderr if p.returncode else "")


def check(job):
    case, kernel_set, folder = job
    output, log = run(case, kernel_set, f"{source}/cl", folder)
    good = output is not None and " ok" in output and not log
    return good, f"FAILED {case} --set {kernel_set}: {log[:1500] or output}"


def reads_outside(folder):
    """Kernels that read a byte a megabyte into a tensor of less: results stay right, the log does not stay empty."""
    kernels = os.path.join(folder, "cl")
    shutil.copytree(f"{source}/cl", kernels)
    path = os.path.join(kernels, "row", "rms_norm_kv_cache.cl")
    text = open(path).read()
    end = text.index("PAGED_INIT(c);")
    open(path, "w").write(text[:end] + "if (((__global const uchar *) gamma)[1 << 20] == 1) return;\n    " + text[end:])
    output, log = run("norm_short_gamma", "row", kernels, folder)
    good = output is not None and "Invalid read" in log and "rms_norm_kv_cache" in log
    return good, f"FAILED: a read past a tensor goes unseen: {log[:1500] or output}"


if not shutil.which("oclgrind"):
    print("SKIPPED: no oclgrind here")
    sys.exit(77)
with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(os.cpu_count()) as pool:
    results = list(pool.map(check, [(case, kernel_set, folder) for kernel_set in ["row", "group"] for case in CASES]))
    results.append(reads_outside(folder))
for good, text in results:
    if not good:
        print(text)
passed = sum(good for good, _ in results)
print(f"{passed} passed, {len(results) - passed} failed")
sys.exit(passed != len(results))
