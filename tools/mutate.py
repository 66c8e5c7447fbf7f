"""Break the mathematics of mixattn in a hundred random places and count how many its tests notice.

    python tools/mutate.py                     100 mutants, the sample of seed 0
    python tools/mutate.py --count 20 --seed 1 --only classification

Cosmic Ray (https://cosmic-ray.readthedocs.io) finds the places and makes the mutants; each runs the
package's tests in a copy of the tree. Left out of the sample: annotations, messages of errors,
argument checks. Survivors are printed with their change; the run fails below 90 % killed.
"""

import argparse
import ast
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from cosmic_ray.work_db import WorkDB, use_db
from cosmic_ray.work_item import MutationSpec, TestOutcome, WorkerOutcome, WorkResult

ROOT = Path(__file__).resolve().parent.parent
GOAL = 0.9
CONFIG = """
[cosmic-ray]
module-path = "src/mixattn"
timeout = 600.0
excluded-modules = ["src/mixattn/_checks.py", "src/mixattn/__init__.py"]
test-command = "env OMP_NUM_THREADS=1 {python} -m pytest -x -q -p no:cacheprovider tests/mixattn"
distributor.name = "local"
"""


def spans_left_out(path: Path) -> list[tuple[int, int]]:
    """Lines of annotations and of raised errors: a change there is no change of the mathematics."""
    found: list[ast.AST] = []
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation:
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef) and node.returns:
            found.append(node.returns)
        elif isinstance(node, ast.Raise):
            found.append(node)
    return [(node.lineno, node.end_lineno) for node in found]


def candidates(db: WorkDB, tree: Path, only: str) -> list[tuple[str, MutationSpec]]:
    """Return the jobs that change the mathematics, in an order that any run repeats."""
    jobs = [(item.job_id, item.mutations[0]) for item in db.work_items]
    left_out = {spec.module_path: spans_left_out(tree / spec.module_path) for _, spec in jobs}
    kept = [
        (job, spec)
        for job, spec in jobs
        if only in str(spec.module_path)
        and spec.operator_name != "core/RemoveDecorator"
        and not any(a <= spec.start_pos[0] <= b for a, b in left_out[spec.module_path])
    ]
    return sorted(kept, key=lambda j: (str(j[1].module_path), j[1].operator_name, j[1].occurrence))


def run_share(options: argparse.Namespace, share: int) -> list[tuple[MutationSpec, WorkResult]]:
    """Run every `jobs`-th mutant of the sample in a copy of the tree; return what became of them."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder)
        ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
        for name in ("src", "tests"):
            shutil.copytree(ROOT / name, tree / name, ignore=ignored)
        shutil.copy(ROOT / "pyproject.toml", tree)
        (tree / "mutate.toml").write_text(CONFIG.format(python=sys.executable), "utf-8")
        cosmic_ray = [str(Path(sys.executable).parent / "cosmic-ray")]
        session = ["mutate.toml", "session.sqlite"]
        # the tests must pass unbroken: else every mutant would count as killed
        subprocess.run([*cosmic_ray, "baseline", session[0]], cwd=tree, check=True)
        subprocess.run([*cosmic_ray, "init", *session], cwd=tree, check=True)
        with use_db(str(tree / session[1])) as db:
            jobs = candidates(db, tree, options.only)
            rng = np.random.default_rng(options.seed)
            count = min(options.count, len(jobs))
            sample = rng.choice(len(jobs), count, replace=False)[share :: options.jobs]
            chosen = {jobs[i][0] for i in sample}
            skip = WorkResult(worker_outcome=WorkerOutcome.SKIPPED)
            others = [item.job_id for item in db.work_items if item.job_id not in chosen]
            db.set_multiple_results(others, skip)
        subprocess.run([*cosmic_ray, "exec", *session], cwd=tree, check=True)
        with use_db(str(tree / session[1])) as db:
            spec = {item.job_id: item.mutations[0] for item in db.work_items}
            return [(spec[job], result) for job, result in db.results if job in chosen]


def main() -> None:
    """Run the trial and print the survivors."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="part of the paths of modules")
    options = parser.parse_args()
    with ThreadPoolExecutor(options.jobs) as pool:
        shares = pool.map(lambda share: run_share(options, share), range(options.jobs))
        results = [result for share in shares for result in share]
    survivors = [r for r in results if r[1].test_outcome == TestOutcome.SURVIVED]
    for spec, result in sorted(survivors, key=lambda r: (str(r[0].module_path), r[0].start_pos)):
        print(f"\n{spec.module_path}:{spec.start_pos[0]} {spec.operator_name}\n{result.diff}")
    killed = len(results) - len(survivors)
    print(f"{killed} of {len(results)} mutants killed, at least {GOAL:.0%} wanted")
    sys.exit(not results or killed < GOAL * len(results))


if __name__ == "__main__":
    main()
