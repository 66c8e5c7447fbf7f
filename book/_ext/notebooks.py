"""Chapters as files: where they are, what their outputs depend on, how they are executed.

For the site, `make refresh` and the tests alike: no Sphinx here.
"""

from __future__ import annotations

import json
import os
import platform
from hashlib import sha256
from pathlib import Path

import nbformat
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpecManager
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError
from nbformat import NotebookNode

ROOT = Path(__file__).resolve().parent.parent.parent
TIMEOUT = 300  # seconds a cell may take

#: First letters of variables by which a shell set up for other work changes what a kernel does.
FOREIGN = ("PYTHON", "JUPYTER", "IPYTHON", "MPL")


class ChapterError(RuntimeError):
    """A chapter cannot be executed; the message names it and says why."""


def chapter_paths() -> list[Path]:
    """Paths of the book's notebooks: the chapters in order, then the landing page and the tour."""
    return sorted((ROOT / "book").glob("*.ipynb"))


def read(path: Path) -> NotebookNode:
    """Read a notebook in format 4."""
    return nbformat.read(path, as_version=4)


def kernel_environment() -> dict[str, str]:
    """Return a kernel's environment: this tree's packages, one thread, nothing of the user's setup.

    One thread because chapters run side by side; the outputs do not depend on it.
    """
    (ROOT / "_build").mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}
    threads = dict.fromkeys(["OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"], "1")
    private = {
        "PYTHONPATH": str(ROOT / "src"),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "IPYTHONDIR": str(ROOT / "_build" / ".ipython"),
    }
    return {**kept, **threads, **private}


def execute(path: Path, *, widget_state: bool) -> NotebookNode:
    """Run a chapter from top to bottom in a fresh kernel and return it with its outputs.

    Raises
    ------
    ChapterError
        A cell raised or took too long, or the kernel died (a `RuntimeError` of nbclient's).
    """
    notebook = read(path)
    # No installed kernel is looked for: another one may have the same name.
    kernel = AsyncKernelManager(
        kernel_name="python3", kernel_spec_manager=KernelSpecManager(kernel_dirs=[])
    )
    client = NotebookClient(
        notebook,
        km=kernel,
        timeout=TIMEOUT,
        store_widget_state=widget_state,
        record_timing=False,
        extra_arguments=["--Application.log_level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
    )
    try:
        client.execute(cleanup_kc=True, env=kernel_environment())
    except CellExecutionError as error:
        raise ChapterError(f"{path.name}: a cell failed\n{error}") from error
    except (CellTimeoutError, RuntimeError) as error:
        raise ChapterError(f"{path.name}: {error}") from error
    return notebook


def stored(path: Path) -> dict | None:
    """Return a stored notebook's JSON, or None if it is missing or damaged."""
    try:
        notebook = json.loads(path.read_text("utf-8"))
        return notebook if notebook["cells"] else None
    except (OSError, ValueError, LookupError, TypeError):
        return None


def content_key(path: Path) -> str:
    """Digest of everything a chapter's outputs depend on: scripts of live figures are no part."""
    digest = sha256(platform.python_version().encode())
    data = (file for file in (ROOT / "book" / "data").rglob("*") if file.is_file())
    inputs = [path, ROOT / "requirements.txt", ROOT / "book" / "claims.yml"]
    for file in [*inputs, *sorted((ROOT / "src").rglob("*.py")), *sorted(data)]:
        if file.exists():
            digest.update(f"\0{file.relative_to(ROOT).as_posix()}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:24]
