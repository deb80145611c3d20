# SPDX-License-Identifier: Apache-2.0
"""summary.py [--reports N] [--broken N] TESTLOG.json...: what failed, what was skipped and why, and one closing line over all programs.

A Criterion program counts its tests, a plain one its "N passed, N failed" line, anything else itself. Each of N
sanitizer reports counts as a failure, and so do a log that is not there and, where no failure is seen, N runs that
did not end well.
"""
import argparse
import json
import os
import re
import sys

CRITERION = re.compile(r"Synthesis: Tested: *(\d+) \| Passing: *(\d+) \| Failing: *(\d+) \| Crashing: *(\d+)")
SKIPPED = re.compile(r"^\[SKIP\]", re.M)  # not among those that Criterion calls tested
PLAIN = re.compile(r"^(\d+) passed, (\d+) failed(?:, (\d+) skipped)?$", re.M)
ANSI = re.compile(r"\x1b\[[0-9;]*m")
SANITIZER = re.compile(r"ERROR: (?:Address|Leak)Sanitizer|runtime error:")


def count(test):
    """(passed, failed, skipped) of one program's entry in the log."""
    text = ANSI.sub("", test.get("stdout", "") + "\n" + test.get("stderr", ""))
    synthesis, plain = CRITERION.findall(text), PLAIN.findall(text)
    if test["result"] == "SKIP":
        return 0, 0, 1
    if synthesis:
        _, passing, failing, crashing = map(int, synthesis[-1])
        passed, failed, skipped = passing, failing + crashing, len(SKIPPED.findall(text))
    elif plain:
        passed, failed, skipped = (int(v or 0) for v in plain[-1])
    else:
        passed, failed, skipped = int(test["result"] == "OK"), 0, 0
    # A program that ends badly after all its tests passed, or that a sanitizer spoke in, has failed.
    if failed == 0 and (test["result"] != "OK" or SANITIZER.search(text)):
        failed = 1
    return passed, failed, skipped


options = argparse.ArgumentParser()
options.add_argument("--reports", type=int, default=0)
options.add_argument("--broken", type=int, default=0)
options.add_argument("logs", nargs="+")
args = options.parse_args()
total = [0, args.reports, 0]
for path in args.logs:
    if not os.path.exists(path):
        print(f"---- no tests ran: {path} is not there")
        total[1] += 1
        continue
    with open(path) as log:
        tests = [json.loads(line) for line in log if line.strip()]
    for test in tests:
        counts = count(test)
        total = [a + b for a, b in zip(total, counts)]
        text = ANSI.sub("", test.get("stdout", "") + test.get("stderr", ""))
        if counts[1]:
            print(f"---- {test['name']} ({test['result']}) in {path}\n{text[-6000:]}")
        for line in text.splitlines():
            if "SKIP" in line:
                print(f"     {test['name']}: {line.strip()}")
if total[1] == 0:
    total[1] = args.broken
print(f"{total[0]} passed, {total[1]} failed, {total[2]} skipped")
sys.exit(total[1] != 0 or total[0] == 0)
