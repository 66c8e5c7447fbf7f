"""Run stages of the Makefile in order, one line each; non-zero if anything failed.

    python tools/run_tests.py lint types package

pytest's own summaries are counted; a stage without one, such as lint, is one check. A failing stage
prints its whole output. With REQUIRE_BROWSER=1 in the environment, as continuous integration sets
it, a skipped test is a failure.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUMMARY = re.compile(r"^(?:=+ )?((?:\d+ \w+, )*\d+ \w+) in [\d.]+s\b", re.MULTILINE)
SKIPPED = re.compile(r"^SKIPPED .*$", re.MULTILINE)


def counts(code: int, output: str) -> Counter[str]:
    """Count what a stage passed, failed and skipped."""
    found = Counter(passed=0, failed=0, skipped=0)
    summaries = SUMMARY.findall(output)
    for number, what in re.findall(r"(\d+) (\w+)", " ".join(summaries)):
        outcome = {"error": "failed", "errors": "failed"}.get(what, what)
        found[outcome] += int(number)
    if code and not found["failed"]:
        # Nothing collected, a crash, low coverage: the stage failed without a failing test.
        found["failed"] = 1
    if not summaries and not code:
        found["passed"] = 1
    return found


def run_stage(name: str, require_all: bool) -> Counter[str]:
    """Run a stage, print its line, the tests it skipped, and its output if it failed."""
    print(f"{name:<10}", end="", flush=True)
    start = time.monotonic()
    done = subprocess.run(
        ["make", "--no-print-directory", name],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
    )
    found = counts(done.returncode, done.stdout)
    if require_all:
        found["failed"] += found.pop("skipped")
    numbers = ", ".join(f"{n} {what}" for what, n in found.items() if n)
    print(f"{time.monotonic() - start:7.1f} s  {numbers}", flush=True)
    if found["failed"]:
        print(done.stdout)
    else:
        print("".join(f"    {line}\n" for line in SKIPPED.findall(done.stdout)), end="")
    return found


def main(stages: list[str]) -> int:
    """Run the stages and close with the sum of their counts."""
    require_all = os.environ.get("REQUIRE_BROWSER") == "1"
    total: Counter[str] = Counter()
    for name in stages:
        total.update(run_stage(name, require_all))
    print(f"{total['passed']} passed, {total['failed']} failed, {total['skipped']} skipped")
    return int(total["failed"] > 0 or total["passed"] == 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
