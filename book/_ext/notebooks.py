"""Executing chapters and writing them in one form, for the site, `make refresh` and the tests.

No Sphinx here: what a chapter is and how it runs must not depend on who asks.
"""

from __future__ import annotations

import os
import platform
import re
from base64 import b64decode
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

#: First cell of every chapter. Colab starts without the book's packages and gives a notebook no way
#: to ask where it came from, so the deploy workflow publishes copies in which `repository` is
#: filled in (tools/colab.py).
COLAB_CELL = """\
# Colab starts without the book: this cell brings it. Anywhere else it does nothing.
import os
import sys

repository = ""  # the site's Colab button opens a copy with the address filled in
if "google.colab" in sys.modules:
    repository = repository or input("Address of the book's git repository: ")
    address, _, commit = repository.partition("@")
    if not os.path.isdir("/content/mixattn-book"):
        !git clone --quiet {address} /content/mixattn-book
    %cd -q /content/mixattn-book/book
    !git checkout --quiet {commit or "HEAD"}
    %pip install --quiet "..[book]"
"""
COLAB_METADATA = {"jupyter": {"source_hidden": True}, "tags": ["colab", "remove-cell"]}

#: What a committed notebook may weigh, so that a clone and a page stay light.
NOTEBOOK_BYTES = 400_000
FIGURE_BYTES = 60_000

_AUTHORED = {"description", "myst", "mystnb"}  # notebook metadata that authors write
_AUTHORED_CELL = {"jupyter", "mystnb", "tags"}  # the same of a cell
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")


def chapter_paths() -> list[Path]:
    """Paths of the book's chapters, in order."""
    return sorted((ROOT / "book").glob("[0-9][0-9]_*.ipynb"))


def read(path: Path) -> NotebookNode:
    """Read a notebook in format 4."""
    return nbformat.read(path, as_version=4)


def kernel_environment() -> dict[str, str]:
    """Return a kernel's environment: this tree's packages, one thread, nothing of the user's setup.

    One thread because chapters run side by side; the outputs do not depend on it.
    """
    path = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH")]))
    (ROOT / "_build").mkdir(exist_ok=True)
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
        extra_arguments=["--Application.log_level=ERROR"],
        resources={"metadata": {"path": str(path.parent)}},
    )
    client.execute(env=kernel_environment())
    return notebook


def content_key(path: Path) -> str:
    """Digest of everything a chapter's outputs depend on."""
    digest = sha256(platform.python_version().encode())
    inputs = [path, ROOT / "requirements.txt", ROOT / "book" / "claims.yml"]
    for folder in (ROOT / "src", ROOT / "book" / "data"):
        # What runs in a reader's browser changes no output.
        aside = {".pyc", ".js", ".css"}
        inputs += sorted(p for p in folder.rglob("*") if p.is_file() and p.suffix not in aside)
    for file in inputs:
        if file.exists() and ".egg-info" not in str(file):
            digest.update(f"\0{file.relative_to(ROOT).as_posix()}\0".encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()[:24]


def normalize(notebook: NotebookNode) -> NotebookNode:
    """Put a notebook into the one form in which it is committed, in place.

    Only what an author wrote and what a reader sees stays: no widget state, no timestamps, no
    editor's metadata. The first cell is the one that Colab needs.
    """
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    authored = {key: value for key, value in notebook.metadata.items() if key in _AUTHORED}
    notebook.metadata = nbformat.from_dict(authored | METADATA)
    cells = [cell for cell in notebook.cells if "colab" not in cell.metadata.get("tags", [])]
    first = nbformat.v4.new_code_cell(
        COLAB_CELL.rstrip("\n"), id="colab", metadata=COLAB_METADATA, execution_count=1
    )
    notebook.cells = [first, *cells]
    seen = set()
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict(
            {key: value for key, value in cell.metadata.items() if key in _AUTHORED_CELL}
        )
        cell.source = cell.source.rstrip()
        if not cell.get("id") or cell.id in seen:
            cell.id = sha256(f"{len(seen)} {cell.source}".encode()).hexdigest()[:8]
        seen.add(cell.id)
        cell.pop("attachments", None)
        if cell.cell_type == "code":
            cell.outputs = _normal_outputs(cell.outputs)
    return notebook


def _normal_outputs(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """Merge a stream's pieces, and leave of a widget its text: model ids differ in every run."""
    normal: list[NotebookNode] = []
    for output in outputs:
        last = normal[-1] if normal else {}
        if output.output_type == "stream" and last.get("name") == output.name:
            last["text"] += output.text
            continue
        if WIDGET_VIEW in output.get("data", {}):
            del output.data[WIDGET_VIEW]
        output.pop("transient", None)
        normal.append(output)
    return normal


def text(notebook: NotebookNode) -> str:
    """Serialize a notebook as it is committed."""
    return nbformat.writes(notebook) + "\n"


def problems(notebook: NotebookNode) -> list[str]:
    """Say, one line each, what forbids committing a notebook; empty when nothing does."""
    found = []
    size = len(text(notebook).encode())
    if size > NOTEBOOK_BYTES:
        found.append(f"the notebook is {size} bytes, above {NOTEBOOK_BYTES}")
    if "description" not in notebook.metadata:
        found.append(
            "the notebook's metadata has no `description` (one sentence for search engines)"
        )
    for number, cell in enumerate(notebook.cells):
        for output in cell.get("outputs", []):
            found += [f"cell {number}: {problem}" for problem in _output_problems(output)]
    return found


def _output_problems(output: NotebookNode) -> list[str]:
    if output.output_type == "error":
        return [f"raises {output.ename}"]
    if output.get("name") == "stderr":
        return [f"writes to stderr: {output.text.strip().splitlines()[-1]}"]
    found = []
    bundle = output.get("data", {"text/plain": output.get("text", "")})
    for kind, content in bundle.items():
        if kind in {"image/png", "image/jpeg", "image/gif"}:
            found.append(f"{kind} output: show figures with companion.show_figure")
        elif kind == "image/webp":
            size = len(b64decode(content))
            if size > FIGURE_BYTES:
                found.append(f"figure of {size} bytes, above {FIGURE_BYTES}")
            if not output.metadata.get(kind, {}).get("alt"):
                found.append("figure without alt text")
        elif isinstance(content, str):
            if len(content.encode()) > FIGURE_BYTES:
                found.append(
                    f"{kind} output of {len(content.encode())} bytes, above {FIGURE_BYTES}"
                )
            if match := _ADDRESS.search(content):
                found.append(f"{kind} output holds a memory address ({match.group()})")
            if str(ROOT) in content:
                found.append(f"{kind} output holds this machine's path {ROOT}")
    return found
