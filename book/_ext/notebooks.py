"""Executing chapters and writing them in one form; used by the site build, `make refresh` and the tests.

No Sphinx here: what a chapter is and how it runs must not depend on who asks.
"""

from __future__ import annotations

import os
import platform
from hashlib import sha256
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent.parent
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"

#: What every committed notebook says of its kernel and language, whatever machine refreshed it.
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}

#: First cell of every chapter. Colab starts without the book's packages and gives a notebook no way to ask where it came
#: from, so the deploy workflow publishes copies in which `repository` is filled in (tools/colab.py).
COLAB_CELL = """\
# Colab starts without the book's packages; anywhere else this cell does nothing.
import sys

repository = ""  # the site's Colab button opens a copy with the address filled in
if "google.colab" in sys.modules:
    repository = repository or input("Address of the book's git repository: ")
    %pip install --quiet "mixattn[book] @ git+{repository}"
"""
COLAB_TAGS = ["colab", "remove-cell"]


def chapter_paths() -> list[Path]:
    """Paths of the book's chapters, in order."""
    return sorted((ROOT / "book").glob("[0-9][0-9]_*.ipynb"))


def read(path: Path) -> NotebookNode:
    """Read a notebook in format 4."""
    return nbformat.read(path, as_version=4)


def kernel_environment() -> dict[str, str]:
    """Environment of a chapter's kernel: this tree's packages, one thread, and nothing of the user's own setup.

    One thread because chapters run side by side; the outputs do not depend on it.
    """
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    private = {
        "PYTHONPATH": path,
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "IPYTHONDIR": str(ROOT / "_build" / ".ipython"),
    }
    threads = dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"], "1")
    return {**os.environ, **threads, **private}


def execute(path: Path, *, widget_state: bool) -> NotebookNode:
    """Run a chapter from top to bottom in a fresh kernel and return it with its outputs.

    Raises
    ------
    nbclient.exceptions.CellExecutionError
        A cell raised; the message holds the cell and the traceback.
    """
    notebook = read(path)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=300,
        store_widget_state=widget_state,
        record_timing=False,
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute(env=kernel_environment())
    return notebook


def content_key(path: Path) -> str:
    """Digest of everything a chapter's outputs depend on."""
    digest = sha256(platform.python_version().encode())
    inputs = [path, ROOT / "requirements.txt", ROOT / "book" / "claims.yml"]
    for folder in (ROOT / "src", ROOT / "book" / "data"):
        inputs += sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc")
    for file in inputs:
        if file.exists() and ".egg-info" not in str(file):
            digest.update(f"\0{file.relative_to(ROOT).as_posix()}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:24]
