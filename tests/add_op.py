# SPDX-License-Identifier: Apache-2.0
"""add_op.py SOURCE_DIR CC [CLANG]: docs/adding-an-op.md, followed step by step in a copy of the tree, adds an operation that works.

The operation is scale_k. add_op/ has its files, where they go, and edits.py, which changes others. A step may touch only what the
document names there, what it names has to be there, and what is left out is in NOT_DONE. Ends with the plain closing line.
"""
import fnmatch
import json
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
source, cc = sys.argv[1:3]
clang = sys.argv[3] if len(sys.argv) > 3 else None
sample = os.path.join(source, "tests", "add_op")
sys.path.insert(0, sample)
from edits import EDITS  # noqa: E402

STEM = "scale_k"
# How the steps begin.
STEPS = {1: "`include/clinfer/STEM.h`:", 2: "`ref/ref_STEM.c`, declared in `ref/ref.h`:", 3: "Cases and tables.", 4: "`src/ops/STEM.c`:",
         5: "`cl/row/STEM.cl` and `cl/group/STEM.cl`:", 6: "`tests/test_STEM.c`:", 7: "A builder in `tools/bench_ops.c`"}
# What the document names and the replay does not touch.
NOT_DONE = {
    "tests/oracle/oracle.py": "wants numpy; the case is worked out here", "make_cases.py": "as oracle.py", "random_cases.py": "as oracle.py",
    "tools/opload.c": "no axis of scale_k may be empty", "cl/lib": "only used", "cl/lib/group.clh": "only used", "tests/optest.h": "only used",
    "README": "prose", "NEWS": "prose",
}
passed, failed = 0, 0


def expect(name, ok, seen=""):
    global passed, failed
    passed, failed = passed + bool(ok), failed + (not ok)
    if not ok:
        print(f"FAILED {name}: {str(seen)[-3000:]}")
    return ok


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


class Document:
    """The beginning is step 0; white space counts as one blank."""

    def __init__(self, text):
        parts = re.split(r"^(\d+)\. ", text, flags=re.M)
        self.steps = {0: parts[0], **{int(n): t for n, t in zip(parts[1::2], parts[2::2])}}
        self.steps = {n: " ".join(t.split()) for n, t in self.steps.items()}

    def names(self, step):
        """Files and folders that the step names in code, as they stand there."""
        spans = re.findall(r"`([^` ]+)`", self.steps[step]) + re.findall(r"\bREADME\b", self.steps[step])
        return [s for s in spans if re.fullmatch(r"[\w/*]+\.(c|h|py|cl|clh|build|safetensors)|(cl|tests)/[\w/]+|README|NEWS", s)]

    def lacks(self, step, path):
        path = path.replace(STEM, "STEM")
        return not any(fnmatch.fnmatch(path, name) or fnmatch.fnmatch(os.path.basename(path), name) for name in self.names(step))


def ignored(folder, names):
    """Python's caches, and projects that were fetched."""
    wraps = os.path.samefile(folder, os.path.join(source, "subprojects"))
    return [n for n in names if n == "__pycache__" or (wraps and not n.endswith(".wrap") and n != "packagefiles")]


def copy_tree(to):
    """What builds: no build folder, nothing of a version control."""
    for name in ("cl", "docs", "examples", "include", "ref", "src", "subprojects", "tests", "tools"):
        shutil.copytree(os.path.join(source, name), os.path.join(to, name), ignore=ignored)
    for name in ("meson.build", "meson_options.txt"):
        shutil.copy(os.path.join(source, name), to)


class Tree:
    def __init__(self, folder, document):
        self.at, self.build, self.document = os.path.join(folder, "tree"), os.path.join(folder, "build"), document
        self.done = {n: set() for n in document.steps}
        copy_tree(self.at)

    def path(self, name):
        return os.path.join(self.at, name)

    def shell(self, *command, **env):
        p = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=300, stdin=subprocess.DEVNULL,
                           env={**os.environ, "CC": cc, "CLINFER_TEST_DATA": self.path("tests/data"), "CLINFER_CACHE_DIR": "", **env})
        return p.returncode, p.stdout + p.stderr

    def configure(self, *options):
        return self.shell("meson", "setup", *options, self.build, self.at)

    def ninja(self, *targets):
        code, out = self.shell("ninja", "-C", self.build, *targets)
        return expect("building " + " ".join(targets), code == 0, out)

    def touched(self, step, path):
        expect(f"step {step}: the document does not say to touch {path}", not self.document.lacks(step, path), self.document.names(step))
        self.done[step].add(path)

    def add(self, step, path, content=None):
        self.touched(step, path)
        os.makedirs(os.path.dirname(self.path(path)), exist_ok=True)
        with open(self.path(path), "wb") as to:
            to.write(content if content is not None else read(os.path.join(sample, path)).encode())

    def edit(self, step):
        for _, path, anchor, text in (e for e in EDITS if e[0] == step):
            self.touched(step, path)
            old = read(self.path(path))
            if expect(f"step {step}: {path} has once {anchor!r}", old.count(anchor) == 1, old.count(anchor)):
                with open(self.path(path), "w", encoding="utf-8") as to:
                    to.write(old.replace(anchor, anchor + text))

    def finish(self, step):
        """What the step names is there, and was touched or is left out."""
        for name in self.document.names(step):
            own = name.replace("STEM", STEM)
            hit = any(fnmatch.fnmatch(p, own) or fnmatch.fnmatch(os.path.basename(p), own) for n in range(step + 1) for p in self.done[n])
            expect(f"step {step}: {name} is neither touched nor left out", hit or name in NOT_DONE)
            if name not in ("README", "NEWS"):
                there = any(fnmatch.fnmatch(os.path.relpath(os.path.join(d, f), self.at), p) for d, ds, fs in os.walk(self.at)
                            for f in ds + fs for p in (own, "*/" + own))
                expect(f"step {step}: there is no {name}", there)


def case(scale):
    """One request whose new tokens lie on both sides of a page's end, page 2 then page 0; layer 1 of 2; page 1 is nobody's."""
    pages, layers, size, heads, width, cached, fresh, table = 3, 2, 4, 2, 5, 2, 4, [2, 0]
    kv = [float(i % 97 - 48) / 8 for i in range(pages * 2 * layers * size * heads * width)]
    want, factors = list(kv), [0.5, -3.0]
    for position in range(cached, cached + fresh):
        for h in range(heads):
            row = ((((table[position // size] * 2 + 0) * layers + 1) * size + position % size) * heads + h) * width
            want[row:row + width] = [x * (factors[h] * scale) for x in kv[row:row + width]]
    shape = [pages, 2, layers, size, heads, width]
    tensors = {"input_row_offsets": ("U32", [2], [0, fresh]), "cache_lengths": ("U32", [1], [cached]), "lookup_table": ("U32", [1, 2], table),
               "kv_blocks": ("F32", shape, kv), "factors": ("F32", [heads], factors), "expect.kv_blocks": ("F32", shape, want)}
    header, data = {"__metadata__": {"op": STEM, "layer_idx": "1", "scale": str(scale)}}, b""
    for name, (dtype, extents, values) in tensors.items():
        raw = struct.pack(f"<{len(values)}{'I' if dtype == 'U32' else 'f'}", *values)
        header[name] = {"dtype": dtype, "shape": extents, "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header).encode()
    return struct.pack("<Q", len(head)) + head + data


def missing_files(tree):
    """With the stem in `ops`, each file that the document lists there is missed by its name; with all of them it configures."""
    files = [n.replace("STEM", STEM) for n in tree.document.names(0) if "STEM" in n]
    expect("the document lists the files that have the stem", len(files) >= 6, files)
    for path in files:
        tree.add(0, path, b"")
    for path in files:
        os.remove(tree.path(path))
        code, out = tree.configure("--reconfigure")
        expect(f"configuring without {path}", code != 0 and os.path.basename(path) in out and os.path.dirname(path) in out, out)
        tree.add(0, path, b"")
    code, out = tree.configure("--reconfigure")
    expect("configuring with all of them", code == 0, out)


def to_step_4(tree):
    tree.add(1, f"include/clinfer/{STEM}.h")
    tree.add(2, f"ref/ref_{STEM}.c")
    tree.add(3, f"tests/data/{STEM}_f32.safetensors", case(2.0))
    tree.add(4, f"src/ops/{STEM}.c")
    tree.add(4, f"tests/unit/test_plan_{STEM}.c")
    for step in range(1, 5):
        tree.edit(step)
        tree.finish(step)
    # Kernels and test are empty.
    tree.ninja("tools/clinfer", f"tests/test_{STEM}", "tests/test_reference", "tests/test_plan_pure", f"tests/test_plan_{STEM}")


def criterion(tree, name, *options, **env):
    code, out = tree.shell(os.path.join(tree.build, "tests", "test_" + name), "--jobs", "1", *options, **env)
    ran = re.search(r"Tested: *.*?(\d+)", re.sub(r"\x1b\[[0-9;]*m", "", out))
    expect(f"test_{name} {options} {env}", code == 0 and ran and int(ran[1]) > 0, out)


def to_the_end(tree):
    tree.add(5, f"cl/row/{STEM}.cl")
    tree.add(5, f"cl/group/{STEM}.cl")
    tree.add(6, f"tests/test_{STEM}.c")
    for step in range(5, 8):
        tree.edit(step)
        tree.finish(step)
    tree.ninja("tools/clinfer", f"tests/test_{STEM}", "tests/test_calls")
    for name in ("reference", "plan_pure", f"plan_{STEM}"):
        criterion(tree, name)
    criterion(tree, "calls", "--filter", "calls/@(compile_then_run|empty_calls)")
    for kernel_set in ("row", "group"):
        criterion(tree, STEM, OPTEST_SET=kernel_set)
    command = os.path.join(tree.build, "tools", "clinfer")
    for name, *rest in (("damaged_files", command, tree.path("tests/data")), ("kernel_syntax", clang, tree.path("cl"), STEM)):
        if rest[0]:
            code, out = tree.shell(sys.executable, tree.path(f"tests/{name}.py"), *rest)
            expect(name, code == 0, out)
        else:
            print(f"SKIPPED {name}: there is no clang")


def break_kernel(tree, kernel_set, kernels):
    path = os.path.join(kernels, kernel_set, STEM + ".cl")
    text = read(path)
    with open(path, "w", encoding="utf-8") as f:
        f.write(text.replace("* factor,", "* factor * 1.5f,"))
    expect(f"{path} is broken", read(path) != text)


def command(tree, folder):
    """check and run; and a broken kernel is found by the self-check, in a call with a scale of 0, which hides it: `shrink` sets another."""
    run, data = os.path.join(tree.build, "tools", "clinfer"), tree.path(f"tests/data/{STEM}_f32.safetensors")
    code, out = tree.shell(run, "check", STEM)
    for kernel_set in ("row", "group"):
        expect(f"check {kernel_set}", code == 0 and re.search(rf"^{STEM} +{kernel_set} +12 cases, 0 wrong; 3 programs", out, re.M), out)
        expect(f"run {kernel_set}", tree.shell(run, "run", data, "--set", kernel_set)[0] == 0)
    data = os.path.join(folder, "zeros.safetensors")
    with open(data, "wb") as f:
        f.write(case(0.0))
    kernels = os.path.join(folder, "broken")
    shutil.copytree(tree.path("cl"), kernels)
    break_kernel(tree, "row", kernels)
    code, out = tree.shell(run, "run", data, CLINFER_CL_DIR=kernels)
    expect("a broken kernel is replaced by the other set's", code == 0 and "failed its self-check (kv: element" in out, out)
    code, out = tree.shell(run, "run", data, "--set", "row", CLINFER_CL_DIR=kernels)
    expect("a broken kernel that was asked for", code != 0 and "self-check" in out, out)
    break_kernel(tree, "group", kernels)
    code, out = tree.shell(run, "run", data, CLINFER_CL_DIR=kernels)
    expect("both broken", code != 0 and "self-check" in out, out)
    code, out = tree.shell(run, "check", STEM, "--filter", "bf16/one", CLINFER_CL_DIR=kernels)
    expect("check of broken kernels", code == 1 and out.count("WRONG") == 2, out)


def main():
    document = Document(read(os.path.join(source, "docs", "adding-an-op.md")))
    for n, words in STEPS.items():
        if not expect(f"step {n} begins {words!r}", document.steps.get(n, "").startswith(words), document.steps.get(n)):
            return
    if not expect("the steps", sorted(document.steps) == [0, *STEPS], sorted(document.steps)):
        return
    print("not done: " + "; ".join(f"{name}: {reason}" for name, reason in NOT_DONE.items()))
    with tempfile.TemporaryDirectory() as folder:
        tree = Tree(folder, document)
        marks = [time.monotonic()]
        code, out = tree.configure("-Doptimization=0", "-Ddebug=false", "-Dwerror=true", "-Dtests=enabled")
        if expect("configuring the tree as it is", code == 0, out):
            tree.edit(0)
            for stage in (missing_files, to_step_4, to_the_end, lambda t: command(t, folder)):
                if failed:  # the rest stands on it
                    break
                stage(tree)
                marks.append(time.monotonic())
        print("seconds: " + ", ".join(f"{b - a:.1f}" for a, b in zip(marks, marks[1:])))


main()
print(f"{passed} passed, {failed} failed")
sys.exit(failed != 0 or not passed)
