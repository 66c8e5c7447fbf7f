"""Make the virtual environment that every `make` target uses, then write its stamp.

Run by the Makefile with the machine's own Python, so only the standard library is at hand here.
"""

import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main(stamp: Path) -> None:
    """Make the environment that holds `stamp`, install and fetch everything, write the stamp."""
    if sys.version_info < (3, 11):  # noqa: UP036 (this file alone may meet an older Python)
        found = ".".join(map(str, sys.version_info[:3]))
        sys.exit(
            f"Python 3.11 or newer is needed, and {sys.executable} is {found}.\n"
            "Install it, or name one: make PYTHON=/path/to/python3.11"
        )
    environment = stamp.parent
    python = environment / "bin" / "python"
    if not python.exists():
        print(f"Making {environment}", flush=True)
        try:
            venv.create(environment, with_pip=True)
        except subprocess.CalledProcessError:
            sys.exit(f"{sys.executable} has no venv module: on Debian, apt install python3-venv")
    print("Installing the pinned requirements (a few minutes the first time)", flush=True)
    run = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*run, "-r", "requirements.txt"], cwd=ROOT, check=True)
    print("Fetching the browser assets", flush=True)
    subprocess.run([python, "book/_ext/assets.py"], cwd=ROOT, check=True)
    stamp.touch()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute())
