"""Run every check of the repository, one line a stage; non-zero if anything failed.

    python tools/run_tests.py            everything (`make test`)
    python tools/run_tests.py --quick    what an edit is likely to break (`make check`)

On a terminal the running stage shows its progress. A failing stage prints its whole output. With
REQUIRE_BROWSER=1 in the environment, as continuous integration sets it, a skipped test is a failure.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "_build" / "test-results"
COVERAGE_FLOOR = 95.0
WORKERS = ["-n", "2"]
PYTEST = [sys.executable, "-m", "pytest", "-q", "-ra"]


@dataclass
class Stage:
    """A named list of commands; pytest counts its tests, any other command is one check."""

    name: str
    commands: list[list[str]]
    settings: dict[str, str] = field(default_factory=dict)


@dataclass
class Count:
    """What a stage found."""

    passed: int = 0
    failed: int = 0
    skipped: list[str] = field(default_factory=list)

    def add(self, other: Count) -> None:
        """Add another stage's counts."""
        self.passed += other.passed
        self.failed += other.failed
        self.skipped += other.skipped


def stages(quick: bool) -> list[Stage]:
    """List the stages in order, cheap ones first."""
    python = sys.executable
    chapters = sorted(str(p.relative_to(ROOT)) for p in (ROOT / "book").glob("[0-9][0-9]_*.ipynb"))
    package_tests = [
        f"tests/{name}" for name in ("mixattn", "companion") if (ROOT / "tests" / name).exists()
    ]
    coverage = [
        "--cov=mixattn",
        "--cov-branch",
        "--cov-report=",
        f"--cov-report=json:{RESULTS}/coverage.json",
    ]
    site_tests = ["tests/book/test_site.py", "tests/book/test_browser.py"]
    book_tests = ["tests/book", *(f"--ignore={path}" for path in site_tests)]
    # Binder's environment is a fixture of one file: one worker makes it.
    by_file = [*PYTEST, *WORKERS, "--dist", "loadfile"]
    ruff = [python, "-m", "ruff"]
    notebooks = ["--config", "book/notebooks.ruff.toml", *chapters]
    lint = Stage(
        "lint",
        [
            [*ruff, "check", "-q"],
            [*ruff, "format", "--check", "-q"],
            [*ruff, "check", "-q", *notebooks],
            [*ruff, "format", "--check", "-q", *notebooks],
        ],
    )
    types = Stage("types", [[python, "-m", "mypy"]])
    package = Stage(
        "package tests, doctests, coverage",
        [
            [*PYTEST, *WORKERS, *coverage, *package_tests, "src"],
            [python, __file__, "--coverage"],
        ],
    )
    if quick:
        forms = [*by_file, *book_tests, "-m", "not slow"]
        return [lint, types, package, Stage("ledger and form of the chapters", [forms])]
    book = Path(python).parent / "jupyter-book"
    build = [str(book), "build", ".", "-W", "-n", "--keep-going"]
    strict = [*PYTEST, *WORKERS, "--dist", "loadscope", "--nbval", *chapters]
    return [
        lint,
        types,
        package,
        *([Stage("chapters (strict nbval)", [strict], older_processor())] if chapters else []),
        Stage("ledger, notebooks, Binder, Colab", [[*by_file, *book_tests]]),
        Stage("site build, warning-free", [build]),
        Stage("site", [[*PYTEST, site_tests[0]]]),
        Stage("site in a browser", [[*PYTEST, *WORKERS, site_tests[1]]]),
    ]


def older_processor() -> dict[str, str]:
    """Return settings under which NumPy and BLAS round as on a processor without newer instructions.

    The stored outputs were made with those instructions: digits that survive are not round-off.
    """
    newer = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    core = {"OPENBLAS_CORETYPE": "Nehalem"} if platform.machine() in ("x86_64", "AMD64") else {}
    return {"NPY_DISABLE_CPU_FEATURES": " ".join(newer), **core}


def environment() -> dict[str, str]:
    """Name this tree's packages, and one thread per process since two run side by side."""
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    threads = dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"], "1")
    return {
        **os.environ,
        **threads,
        "PYTHONPATH": path,
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "IPYTHONDIR": str(ROOT / "_build" / ".ipython"),
    }


def read_report(path: Path) -> Count:
    """Count the outcomes of a pytest run in its JUnit report."""
    count = Count()
    for case in ET.parse(path).iter("testcase"):
        name = f"{case.get('classname', '')}::{case.get('name')}"
        if case.find("failure") is not None or case.find("error") is not None:
            count.failed += 1
        elif (skip := case.find("skipped")) is not None:
            count.skipped.append(f"{name} ({skip.get('message', '')})")
        else:
            count.passed += 1
    return count


class Progress:
    """The line of the running stage: rewritten on a terminal, printed once at the end elsewhere."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.live = sys.stdout.isatty()
        self.start = time.monotonic()
        self.percent = ""

    def elapsed(self) -> str:
        """Seconds since the stage began."""
        return f"{time.monotonic() - self.start:6.1f} s"

    def show(self) -> None:
        """Rewrite the line."""
        if self.live:
            mark = "|/-\\"[int(time.monotonic() * 5) % 4]
            print(
                f"\r\033[K{mark} {self.name:<36} {self.elapsed()}  {self.percent}",
                end="",
                flush=True,
            )

    def finish(self, count: Count) -> None:
        """Print the final line."""
        mark = "FAILED" if count.failed else "ok"
        numbers = f"{count.passed} passed"
        numbers += f", {count.failed} failed" if count.failed else ""
        numbers += f", {len(count.skipped)} skipped" if count.skipped else ""
        clear = "\r\033[K" if self.live else ""
        print(f"{clear}{mark:<7}{self.name:<36} {self.elapsed()}  {numbers}", flush=True)


def run_command(
    command: list[str], settings: dict[str, str], progress: Progress
) -> tuple[Count, str]:
    """Run one command of a stage; return its counts and its output."""
    is_pytest = command[: len(PYTEST)] == PYTEST
    RESULTS.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        extra = [f"--junitxml={report}"] if is_pytest else []
        process = subprocess.Popen(
            command + extra,
            cwd=ROOT,
            env=environment() | settings,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        lines: list[str] = []

        def read() -> None:
            for line in process.stdout:
                lines.append(line)
                if found := re.findall(r"\[\s*(\d+%)\]", line):
                    progress.percent = found[-1]

        reader = threading.Thread(target=read)
        reader.start()
        while reader.is_alive():
            progress.show()
            reader.join(0.2)
        code = process.wait()
        count = read_report(report) if report.exists() else Count()
    output = "".join(lines)
    if not is_pytest:
        count = Count(passed=int(code == 0), failed=int(code != 0))
    elif code and not count.failed:
        # Nothing collected, a crash, an interrupted worker: pytest failed without a failing test.
        count.failed = 1
    return count, output


def run_stage(stage: Stage, require_all: bool) -> Count:
    """Run a stage, print its line, and its output if it failed."""
    progress = Progress(stage.name)
    total, output = Count(), ""
    for command in stage.commands:
        count, text = run_command(command, stage.settings, progress)
        total.add(count)
        output += text if count.failed or require_all else ""
        if count.failed:
            break
    skipped = total.skipped
    if require_all:
        total.failed, total.skipped = total.failed + len(skipped), []
    progress.finish(total)
    for name in skipped:
        print(f"       skipped: {name}")
    if total.failed:
        print(output)
    return total


def check_coverage() -> None:
    """Fail unless both lines and branches of mixattn are covered up to the floor."""
    totals = json.loads((RESULTS / "coverage.json").read_text("utf-8"))["totals"]
    low = False
    for what, covered, number in [
        ("lines", totals["covered_lines"], totals["num_statements"]),
        ("branches", totals["covered_branches"], totals["num_branches"]),
    ]:
        share = 100 * covered / max(number, 1) if number else 100.0
        print(
            f"mixattn: {share:.1f} % of {number} {what} covered, at least {COVERAGE_FLOOR} % needed"
        )
        low |= share < COVERAGE_FLOOR
    sys.exit(low)


def main() -> None:
    """Run the stages and close with the sum of their counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="lint, types, package, forms")
    parser.add_argument(
        "--coverage", action="store_true", help="only judge the last coverage report"
    )
    options = parser.parse_args()
    if options.coverage:
        check_coverage()
    require_all = os.environ.get("REQUIRE_BROWSER") == "1"
    start = time.monotonic()
    total = Count()
    for stage in stages(options.quick):
        total.add(run_stage(stage, require_all))
    print(f"Total: {time.monotonic() - start:.0f} s")
    print(f"{total.passed} passed, {total.failed} failed, {len(total.skipped)} skipped")
    sys.exit(total.failed > 0 or total.passed == 0)


if __name__ == "__main__":
    main()
