"""Re-execute chapters in place and put them into the one form in which they are committed.

A second run changes no byte. A chapter that raises, warns, or weighs too much is left as it was and
named.

    python tools/refresh.py                     all chapters
    python tools/refresh.py book/01_name.ipynb  some
"""

import argparse
import re
import sys
from base64 import b64decode
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import nbformat
from nbformat import NotebookNode

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "book" / "_ext"))
import notebooks

#: What every committed notebook says of its kernel and language, whatever machine refreshed it.
METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"file_extension": ".py", "mimetype": "text/x-python", "name": "python"},
}

#: First cell of every chapter. Colab starts without the book's packages and gives a notebook no way
#: to ask where it came from, so the deploy workflow publishes copies in which `repository` is
#: filled in (tools/colab.py).
FIRST_CELL = """\
# In Colab this cell brings the book. Anywhere else it says what is missing, if anything is.
import importlib.util
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
    sys.path.insert(0, "/content/mixattn-book/src")
elif not (importlib.util.find_spec("companion") and os.path.isdir("data")):
    raise RuntimeError(
        "This chapter needs the whole book around it: get its repository, run there "
        "`pip install -r requirements.txt`, and start the chapter in the folder `book`."
    )
"""
FIRST_CELL_METADATA = {"jupyter": {"source_hidden": True}, "tags": ["colab", "remove-cell"]}

#: What a committed notebook may weigh, so that a clone and a page stay light.
NOTEBOOK_BYTES = 400_000
FIGURE_BYTES = 60_000

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
_KEPT = {"description", "executed", "myst", "mystnb"}  # notebook metadata beyond METADATA
_KEPT_IN_CELL = {"jupyter", "mystnb", "tags"}
_ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")
_EMBEDDED = re.compile(r"data:image/[\w+]+;base64,([A-Za-z0-9+/=]*)")
_IMG = re.compile(r"<img\b[^>]*>")


def source_digest(notebook: NotebookNode) -> str:
    """Digest of the code that made the stored outputs."""
    sources = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    return sha256("\0".join(sources).encode()).hexdigest()[:24]


def normalize(notebook: NotebookNode) -> NotebookNode:
    """Put a notebook into the one form in which it is committed, in place.

    Only what an author wrote and what a reader sees stays: no widget state, no timestamps, no
    editor's metadata.
    """
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    kept = {key: value for key, value in notebook.metadata.items() if key in _KEPT}
    notebook.metadata = nbformat.from_dict(kept | METADATA)
    cells = [cell for cell in notebook.cells if "colab" not in cell.metadata.get("tags", [])]
    first = nbformat.v4.new_code_cell(
        FIRST_CELL.rstrip("\n"), id="colab", metadata=FIRST_CELL_METADATA, execution_count=1
    )
    notebook.cells = [first, *cells]
    seen = set()
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict(
            {key: value for key, value in cell.metadata.items() if key in _KEPT_IN_CELL}
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
        output.get("data", {}).pop(WIDGET_VIEW, None)
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


def _output_problems(output: NotebookNode) -> Iterator[str]:
    if output.output_type == "error":
        yield f"raises {output.ename}"
    elif output.get("name") == "stderr":
        yield f"writes to stderr: {output.text.strip().splitlines()[-1]}"
    else:
        bundle = output.get("data", {"text/plain": output.get("text", "")})
        for kind, content in bundle.items():
            if kind.startswith("image/") and kind != "image/svg+xml":
                yield from _image_problems(kind, output)
            elif isinstance(content, str):
                yield from _text_problems(kind, content)


def _image_problems(kind: str, output: NotebookNode) -> Iterator[str]:
    if kind != "image/webp" and not {"image/webp", "text/html"} & output.data.keys():
        yield f"{kind} output alone: show figures with companion.show_figure"
    size = len(b64decode(output.data[kind]))
    if size > FIGURE_BYTES:
        yield f"figure of {size} bytes, above {FIGURE_BYTES}"
    if kind == "image/webp" and not output.metadata.get(kind, {}).get("alt"):
        yield "figure without alt text"


def _text_problems(kind: str, content: str) -> Iterator[str]:
    # A figure, or the still of a live one, may stand inside HTML; it is weighed by itself.
    for image in _EMBEDDED.findall(content):
        size = len(b64decode(image))
        if size > FIGURE_BYTES:
            yield f"figure of {size} bytes, above {FIGURE_BYTES}"
    for tag in _IMG.findall(content) if kind == "text/html" else []:
        if not re.search(r"""\balt=(["'])\s*[^\s"']""", tag):
            yield "figure without alt text"
    content = _EMBEDDED.sub("", content)
    if (size := len(content.encode())) > FIGURE_BYTES:
        yield f"{kind} output of {size} bytes, above {FIGURE_BYTES}"
    if match := _ADDRESS.search(content):
        yield f"{kind} output holds a memory address ({match.group()})"
    if str(notebooks.ROOT) in content:
        yield f"{kind} output holds this machine's path {notebooks.ROOT}"


def refresh(path: Path) -> list[str]:
    """Refresh one chapter; return what forbids it, and then leave the file alone."""
    before = path.read_bytes()
    path.write_text(text(normalize(notebooks.read(path))), "utf-8")
    try:
        after = normalize(notebooks.execute(path, widget_state=False))
        after.metadata["executed"] = source_digest(after)
        found = problems(after)
    except notebooks.ChapterError as error:
        found = [str(error)]
    if found:
        path.write_bytes(before)
    else:
        path.write_text(text(after), "utf-8")
    return found


def main() -> None:
    """Refresh the chapters named on the command line, two at a time."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("chapters", nargs="*", type=Path)
    paths = parser.parse_args().chapters or notebooks.chapter_paths()
    paths = [path.resolve() for path in paths]
    failed = False
    with ThreadPoolExecutor(2) as pool:
        for path, found in zip(paths, pool.map(refresh, paths), strict=True):
            print(f"{path.name}: {'refused' if found else 'refreshed'}", flush=True)
            for problem in found:
                print(f"  {problem}")
            failed |= bool(found)
    sys.exit(failed)


if __name__ == "__main__":
    main()
