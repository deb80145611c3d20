# SPDX-License-Identifier: Apache-2.0
"""check_and_dump.py CLINFER DATA_DIR CL_DIR [CLANG]: `clinfer check` is green on the kernels as they are and red, naming the op,
on kernels that were broken on purpose; `clinfer dump` writes what a driver gets, which clang accepts.
"""
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile

clinfer, data_dir, cl_dir = sys.argv[1:4]
clang = sys.argv[4] if len(sys.argv) > 4 else None
passed, failed = 0, 0


def run(*args, cl=None, out=None):
    env = dict(os.environ, CLINFER_LOG="warn")
    if cl:
        env["CLINFER_CL_DIR"] = cl
    p = subprocess.run([clinfer, *args], stdout=out or subprocess.PIPE, stderr=subprocess.PIPE, timeout=300, env=env)
    return p.returncode, (p.stdout or b"").decode(errors="replace"), p.stderr.decode(errors="replace")


def expect(name, ok, seen):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print(f"FAILED {name}: {seen}")


def green():
    code, out, err = run("check", "rms_norm_kv_cache", "--filter", "odd", "--json")
    try:
        lines = [json.loads(line) for line in out.splitlines()]
    except ValueError as e:
        return expect("json lines", False, f"{e}: {out}")
    rows = [line for line in lines if line["variant"] == "row"]
    expect("status of a right op", code == 0, (code, out, err))
    expect("fields", all(list(line) == ["op", "case", "variant", "ok", "max_err"] for line in lines), lines)
    expect("cases", sorted(line["case"] for line in rows) == sorted(f"{c}/{b}" for c in ("odd", "odd-bf16")
                                                                     for b in ("ragged", "one", "two", "pages3")), rows)
    expect("verdicts", all(line["ok"] is True and line["op"] == "rms_norm_kv_cache" and 0 <= line["max_err"] < 0.1 for line in lines), lines)
    code, out, err = run("check", "rms_norm_kv_cache", "--filter", "odd/", "--set", "row")
    expect("summary", code == 0 and re.search(r"^rms_norm_kv_cache +row +4 cases, 0 wrong; 1 programs compiled; ", out, re.M), (code, out, err))


# What is done to a kernel file, and what `check` says of it.
MUTATIONS = {
    "a value": ("lib/norm.clh", "/ sqrt(mean)", "/ (1.001f * sqrt(mean))", r"kv_blocks: \d+ elements are wrong"),
    "a fault": ("row/rms_norm_kv_cache.cl", "check_offsets(&c, t);", "check_offsets(&c, t); report(&c, FAULT_PAGE, t, 77);", r"the device recorded a fault at token 0: .*\(77\)"),
    "a write into an input": ("row/rms_norm_kv_cache.cl", "float16 weight[NORM_VECTORS];",
                              "((__global ELEM(GAMMA_T) *) gamma)[gamma_at + NORM_SIZE] = 0; float16 weight[NORM_VECTORS];",
                              r"byte \d+ of \d+ in the buffer of gamma was written"),
    "no build": ("row/rms_norm_kv_cache.cl", "__kernel void", "this is no C\n__kernel void", "does not build"),
}


def red(name, folder):
    file, old, new, reason = MUTATIONS[name]
    copy = os.path.join(folder, name)
    shutil.copytree(cl_dir, copy)
    path = os.path.join(copy, file)
    with open(path) as f:
        text = f.read()
    assert old in text, f"{file} has no {old!r} to break"
    with open(path, "w") as f:
        f.write(text.replace(old, new))
    code, out, err = run("check", "rms_norm_kv_cache", "--filter", "odd/one", "--set", "row", cl=copy)
    expect(f"{name} broken", code == 1 and re.search(r"^WRONG rms_norm_kv_cache odd/one row: .*" + reason, out, re.M) and
           "1 wrong" in out, (code, out, err))
    code, out, err = run("check", "rms_norm_kv_cache", "--filter", "odd/one", "--set", "row", "--json", cl=copy)
    expect(f"{name} broken, json", code == 1 and json.loads(out)["ok"] is False and re.search(reason, err), (code, out, err))


def usage():
    for args, status, words in ((("check", "frobnicate"), 2, "no op"), (("check", "--filter", "nothing"), 1, "no case"),
                                (("check", "a", "b"), 2, "one argument too many"), (("dump",), 2, "an argument is missing"),
                                (("dump", "fused_qk_rope", "--case", "none"), 2, "no case"),
                                (("dump", "/nothing.safetensors"), 1, "/nothing.safetensors"),
                                (("dump", os.path.join(data_dir, "norm_f16.safetensors"), "--case", "f32"), 2, "--case"),
                                (("check", "--device", "no such device"), 1, "no such device")):
        code, out, err = run(*args)
        expect(" ".join(args), code == status and words in err, (code, out, err))


def compiles(name, path, options):
    """The dumped text as it stands: no include, no define but its own options."""
    defines = [o for o in options if not o.startswith("-cl-fp32")]
    p = subprocess.run([clang, "-x", "cl", "-fsyntax-only", "-target", "spir64", "-Xclang", "-finclude-default-header", *defines, path],
                       capture_output=True, text=True)
    expect(f"clang on {name}", p.returncode == 0, p.stderr[:2000])


def dump(folder):
    out_dir = os.path.join(folder, "dumped")
    code, out, err = run("dump", "mla_decode_branch", "--case", "bf16", "--set", "row", "-o", out_dir)
    names = [f"{i}-{stem}-row" for i, stem in enumerate(("mla_decode_branch", "matmul", "matmul"), 1)]
    expect("dump -o", code == 0 and out.split() == [f"{out_dir}/{n}.{e}" for n in names for e in ("cl", "options")], (code, out, err))
    for n in names:
        with open(os.path.join(out_dir, n + ".cl")) as f:
            source = f.read()
        with open(os.path.join(out_dir, n + ".options")) as f:
            options = f.read().strip()
        expect(f"header of {n}", f"// options: {options}\n" in source and "// device: " in source and "// driver: " in source and
               "#include" not in source and "__kernel void" in source, source[:1000])
        expect(f"options of {n}", options.startswith("-cl-std=CL") and re.search(r" -D(Q_T|W_T)=bf16\b", options), options)
        if clang:
            compiles(n, os.path.join(out_dir, n + ".cl"), shlex.split(options))
    case = os.path.join(data_dir, "norm_f16.safetensors")
    code, out, err = run("dump", case, "--set", "row")
    expect("dump of a file", code == 0 and "// kernels: rms_norm_kv_cache\n" in out and "-DGAMMA_T=f16" in out, (code, out[:500], err))
    blocked = os.path.join(folder, "a file")
    with open(blocked, "w"):
        pass
    for where in (blocked, os.path.join(folder, "no", "folder"), "/proc/nothing"):
        code, out, err = run("dump", case, "--set", "row", "-o", where)
        expect(f"dump -o {where}", code == 1 and where in err and not out, (code, out, err))
    with open("/dev/full", "w") as full:
        code, _, err = run("dump", case, "--set", "row", out=full)
    expect("dump to a full disk", code == 1 and "could not be written" in err, (code, err))


with tempfile.TemporaryDirectory() as scratch:
    green()
    for mutation in MUTATIONS:
        red(mutation, scratch)
    usage()
    dump(scratch)
if not clang:
    print("skipped: clang's opinion of the dumped sources, there is no clang")
print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0 or not passed)
