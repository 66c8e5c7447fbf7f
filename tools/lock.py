"""Pin the book's requirements, and with the same pins those of Binder.

requirements.in -> requirements.txt and .binder/requirements.in -> .binder/requirements.txt, for every
platform. Pins that still fit are kept; --upgrade moves all to the newest that fit together.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def compile_pins(source: str, target: str, *options: str) -> None:
    """Resolve one list of requirements for every platform and every Python from 3.11 on."""
    command = [sys.executable, "-m", "uv", "pip", "compile", source, "--output-file", target]
    form = ["--universal", "--python-version", "3.11", "--no-annotate", "--quiet"]
    label = ["--custom-compile-command", "make lock"]
    subprocess.run([*command, *form, *label, *options], cwd=ROOT, check=True)
    print(f"{target} is up to date")


def main() -> None:
    """Resolve both lists."""
    compile_pins("requirements.in", "requirements.txt", *sys.argv[1:])
    pins = (ROOT / "requirements.txt").read_text("utf-8").splitlines()
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as constraints:
        constraints.write("\n".join(pin for pin in pins if not pin.startswith("-e")))
        constraints.flush()
        compile_pins(".binder/requirements.in", ".binder/requirements.txt", "-c", constraints.name)


if __name__ == "__main__":
    main()
