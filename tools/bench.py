"""Run every benchmark, in an environment of its own that adds PyTorch to the book's packages.

The environment lies in .venv-bench. It sees the packages of the interpreter that runs this file, so
that both sides of a comparison use the same NumPy; only what `benchmarks/requirements.txt` adds is
installed.
"""

import os
import site
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENT = ROOT / ".venv-bench"
REQUIREMENTS = ROOT / "benchmarks" / "requirements.txt"


def prepare() -> Path:
    """Return the environment's interpreter, installing what is new in its requirements."""
    python = ENVIRONMENT / "bin" / "python"
    installed = ENVIRONMENT / "requirements.txt"
    wanted = REQUIREMENTS.read_text("utf-8")
    if installed.exists() and installed.read_text("utf-8") == wanted:
        return python
    print("Installing the benchmarks' own requirements (once)", flush=True)
    venv.create(ENVIRONMENT, with_pip=True, clear=True)
    parent = "\n".join(site.getsitepackages())
    for packages in ENVIRONMENT.glob("lib/python*/site-packages"):
        (packages / "book.pth").write_text(f"{parent}\n", "utf-8")
    command = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "-r", REQUIREMENTS], check=True)
    installed.write_text(wanted, "utf-8")
    return python


def main() -> None:
    """Run the benchmarks in order; fail if one does."""
    python = prepare()
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    scripts = sorted((ROOT / "benchmarks").glob("bench_*.py"))
    failed = []
    for script in scripts:
        print(f"\n== {script.name}", flush=True)
        if subprocess.run([python, script], cwd=ROOT, env=environment, check=False).returncode:
            failed.append(script.name)
    if failed or not scripts:
        sys.exit(f"failed: {', '.join(failed) or 'no benchmark found'}")


if __name__ == "__main__":
    main()
