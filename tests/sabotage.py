# SPDX-License-Identifier: Apache-2.0
"""sabotage.py BUILD_DIR CL_DIR [--only TEXT | --table]: breaks kernels, one cell of kernel x kind at a time; a test has to go red.

The cells stand in sabotage_cells.py. Kernels are read from a copy of CL_DIR, so nothing is built again, and the tests run them
as they are, without the engine's own check of fresh programs. Before any cell, its judge has to be green. --only: cells whose
"SET/KERNEL KIND" has TEXT. --table: only whether the table fits the kernels and tests that there are; runs none.
"""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor

from sabotage_cells import CELLS, KERNELS, KINDS

build, cl_dir = (os.path.abspath(p) for p in sys.argv[1:3])
tests = os.path.dirname(os.path.abspath(__file__))
data = os.path.join(tests, "data")


def read(*path):
    with open(os.path.join(*path)) as f:
        return f.read()


def run_judge(name, kernels, kernel_set, driver_cache):
    """A judge over a folder of kernels: "red", "green", "skipped" or "broken", and what it printed. "cases:PART" is every case file
    whose name has PART; else PROGRAM:SUITE/TEST."""
    program, _, what = name.partition(":")
    env = {**os.environ, "CLINFER_CL_DIR": kernels, "CLINFER_CL_SRC": kernels, "OPTEST_SET": kernel_set, "CLINFER_TEST_DATA": data,
           "CLINFER_CACHE_DIR": "", "CLINFER_TEST_UNCHECKED": "1", "POCL_CACHE_DIR": driver_cache}
    command = [os.path.join(build, "tests", "test_" + program), "--jobs", "1", "--verbose=1"]
    if program == "cases":
        env["OPTEST_CASE"] = what
    else:
        command += ["--filter", what]
    if what.endswith("far_apart"):  # PoCL sizes its device by the machine's memory; pages never touched cost none
        env["HWLOC_SYNTHETIC"] = "NUMANode:1(memory=64GB) core:2 PU:1"
    try:
        p = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, errors="replace")
    except subprocess.TimeoutExpired:
        return "red", "no end within 300 s"
    output = p.stdout + p.stderr
    counts = re.search(r"Tested: .*?(\d+).*?Passing: .*?(\d+).*?Failing: .*?(\d+).*?Crashing: .*?(\d+)", output)
    if not counts or "ERR_BUILD" in output or "does not build" in output:
        return "broken", output
    tested, passing, failing, crashing = (int(n) for n in counts.groups())
    if p.returncode or failing or crashing:
        return ("red" if failing or crashing else "broken"), output
    return ("green" if passing else "skipped"), output


def fault_of(cell):
    """What is wrong with a cell, or ""."""
    if cell is None:
        return "the cell is empty"
    if isinstance(cell, str):
        return "" if cell else "no reason"
    file, old, new, name = cell
    count = read(cl_dir, file).count(old)
    program, _, what = name.partition(":")
    if count != 1 or old == new:
        return f'"{old}" is in {file} {count} times, want 1: the table is out of date'
    if program == "cases":
        return "" if any(what in f for f in os.listdir(data)) else f"no case file has {what}"
    suite, test = what.split("/")
    there = re.search(rf"Test\({suite}, {test}\b", read(tests, f"test_{program}.c"))
    return "" if there else f"tests/test_{program}.c has no {what}"


def check_table():
    """Faults of the table, one text each."""
    wrong = [f"{kernel} {kind}: {fault}" for kernel in KERNELS for kind in KINDS if (fault := fault_of(CELLS.get((kernel, kind))))]
    wrong += [f"{kernel} {kind}: no such kernel or kind" for kernel, kind in CELLS if kernel not in KERNELS or kind not in KINDS]
    for kernel_set in "row", "group":
        for file in os.listdir(os.path.join(cl_dir, kernel_set)):
            for name in re.findall(r"(?:__kernel|GROUP_KERNEL|ROW_KERNEL) void (\w+)", read(cl_dir, kernel_set, file)):
                if f"{kernel_set}/{name}" not in KERNELS:
                    wrong.append(f"{kernel_set}/{name}: has no cells")
    return wrong


def check_cell(kernel, kind, driver_cache):
    """Whether a test sees the change, and a line that says so."""
    file, old, new, name = CELLS[kernel, kind]
    with tempfile.TemporaryDirectory() as kernels:
        shutil.copytree(cl_dir, kernels, dirs_exist_ok=True)
        with open(os.path.join(kernels, file), "w") as f:
            f.write(read(cl_dir, file).replace(old, new))
        verdict, output = run_judge(name, kernels, kernel.split("/")[0], driver_cache)
    line = f"{kernel} {kind}: {name}: {verdict}"
    return verdict == "red", line if verdict == "red" else f"{line}\n    {new}\n{output[-1500:] if verdict == 'broken' else ''}"


def check_cells(cells, driver_cache):
    """Failures, and the cells whose judge this machine cannot run."""
    wrong, skipped = [], []
    judge_of = {c: (CELLS[c][3], c[0].split("/")[0]) for c in cells}
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        judges = sorted(set(judge_of.values()))
        before = dict(zip(judges, pool.map(lambda j: run_judge(j[0], cl_dir, j[1], driver_cache), judges)))
        for judge, (verdict, output) in before.items():
            if verdict == "skipped":
                skipped += [f"{' '.join(c)}: {judge[0]} is skipped here: {output[-600:]}" for c in cells if judge_of[c] == judge]
            elif verdict != "green":
                wrong.append(f"{judge[0]} in the {judge[1]} set is {verdict} before any change: {output[-1500:]}")
        runs = [c for c in cells if before[judge_of[c]][0] == "green"]
        for seen, line in pool.map(lambda c: check_cell(*c, driver_cache), runs):
            print(line, flush=True)
            if not seen:
                wrong.append(line)
    return wrong, skipped


def main():
    option, only = sys.argv[3:4], (sys.argv[4:5] or [""])[0]
    wrong, skipped = check_table(), []
    count = len(KERNELS) * len(KINDS)
    if option != ["--table"] and not wrong:
        reasons = {" ".join(c): text for c, text in CELLS.items() if isinstance(text, str)}
        print("".join(f"{name}: none: {text}\n" for name, text in reasons.items() if only in name), end="")
        cells = [c for c in CELLS if " ".join(c) not in reasons and only in " ".join(c)]
        count = len(cells)
        with tempfile.TemporaryDirectory() as driver_cache:
            wrong, skipped = check_cells(cells, driver_cache)
    for text in wrong:
        print("FAILED", text)
    for text in skipped:
        print("SKIPPED", text)
    print(f"{count - len(wrong) - len(skipped)} passed, {len(wrong)} failed, {len(skipped)} skipped")
    return 1 if wrong else 0


sys.exit(main())
