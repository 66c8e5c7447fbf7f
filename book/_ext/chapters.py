"""Chapters on the site: executed by the build, never stale, their figures described.

A committed notebook holds no widget state, so a page made from it would show no explorer. The build
therefore executes the chapters itself, two at a time, and keeps the result under `_build/.chapters`
by a key over all that the outputs depend on (notebook, packages, data, lock file): an edit
re-executes, a second build does not. Sphinx then reads the executed notebook in place of the
committed one.

A build that was killed leaves pages and a search index that Sphinx would take for whole: a mark
stands beside the pages while a build runs, and a build that finds one starts with everything.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from base64 import b64decode
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from html import unescape
from pathlib import Path
from typing import Any

import nbformat
from notebooks import ChapterError, content_key, execute, stored
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.errors import ExtensionError
from sphinx.util import logging

LOGGER = logging.getLogger(__name__)
WORKERS = 2
#: Measured values that a chapter hands to the ledger; a page does not show them.
MACHINE_READABLE = "application/vnd.mixattn.claims+json"
#: What companion.show_figure leaves in a notebook.
FIGURE = re.compile(
    r'<figure id="(?P<name>[^"]*)"[^>]*><img alt="(?P<alt>[^"]*)" width="(?P<width>\d+)"[^>]*'
    r' src="data:image/webp;base64,(?P<image>[^"]*)">'
    r"(<figcaption>(?P<caption>[^<]*)</figcaption>)?</figure>"
)


def store(app: Sphinx) -> Path:
    """Folder of executed chapters."""
    return Path(app.outdir).parent / ".chapters"


def is_chapter(app: Sphinx, docname: str) -> bool:
    """Whether a document is a notebook."""
    return app.env.doc2path(docname).endswith(".ipynb")


def executed_path(app: Sphinx, docname: str) -> Path:
    """Where the executed form of a chapter lies or will lie."""
    key = content_key(Path(app.env.doc2path(docname)))
    return store(app) / f"{Path(docname).name}-{key}.ipynb"


def execute_into(source: Path, target: Path) -> None:
    """Execute a chapter and write it whole or not at all."""
    notebook = execute(source, widget_state=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    nbformat.write(notebook, partial)
    partial.replace(target)


def execute_outdated(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Execute the chapters whose key has changed; return the documents to read again."""
    chapters = {name: executed_path(app, name) for name in env.found_docs if is_chapter(app, name)}
    waiting = {name: path for name, path in chapters.items() if stored(path) is None}
    failures = []
    if waiting:
        LOGGER.info("executing %d chapter(s): %s", len(waiting), ", ".join(sorted(waiting)))
    with ThreadPoolExecutor(WORKERS) as pool:
        runs = [
            pool.submit(execute_into, Path(env.doc2path(name)), path)
            for name, path in sorted(waiting.items())
        ]
    for run in runs:
        try:
            run.result()
        except ChapterError as error:
            failures.append(str(error))
    if failures:
        raise ExtensionError("\n\n".join(failures))

    kept = {path.name for path in chapters.values()}
    for path in store(app).glob("*.ipynb"):
        if path.name not in kept:
            path.unlink()
    read_before = getattr(env, "chapter_files", {})
    outdated = [name for name, path in chapters.items() if read_before.get(name) != path.name]
    env.chapter_files = {name: path.name for name, path in chapters.items()}

    # Pages made from the packages' docstrings follow the packages as well.
    sources = sha256()
    for file in sorted(Path(app.srcdir, "src").rglob("*.py")):
        sources.update(file.read_bytes())
    if getattr(env, "package_digest", None) != sources.hexdigest():
        outdated += [name for name in env.found_docs if "/api" in name]
    env.package_digest = sources.hexdigest()
    return outdated


def figure_markdown(app: Sphinx, found: re.Match[str]) -> str:
    """MyST source of a figure; the image is written where Sphinx collects it."""
    data = b64decode(found["image"])
    path = store(app) / "figures" / f"{sha256(data).hexdigest()[:20]}.webp"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    # Relative to the sources, also where the build is elsewhere.
    address = "/" + Path(os.path.relpath(path, app.srcdir)).as_posix()
    # JSON strings are YAML strings, which is what directive options are.
    alt = json.dumps(unescape(found["alt"]), ensure_ascii=False)
    return (
        f":::{{figure}} {address}\n:name: {found['name']}\n:alt: {alt}\n"
        f":width: {found['width']}px\n\n{unescape(found['caption'] or '')}\n:::\n"
    )


def substitute(app: Sphinx, docname: str, source: list[str]) -> None:
    """Give Sphinx the executed chapter in place of the committed one."""
    if not is_chapter(app, docname):
        return
    notebook = stored(executed_path(app, docname))
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            bundle = output.get("data", {})
            bundle.pop(MACHINE_READABLE, None)
            if found := FIGURE.fullmatch("".join(bundle.get("text/html", ""))):
                output["data"] = {"text/markdown": figure_markdown(app, found)}
    source[0] = json.dumps(notebook)


def unfinished(app: Sphinx) -> Path:
    """Mark of a build that runs, or that did not come to its end."""
    return Path(app.outdir, ".unfinished")


def start(app: Sphinx) -> None:
    """Forget what an unfinished build read, so that every page is written again."""
    mark = unfinished(app)
    if mark.exists():
        LOGGER.info("the last build did not finish: building everything anew")
        shutil.rmtree(app.doctreedir, ignore_errors=True)
        Path(app.doctreedir).mkdir(parents=True)
    mark.parent.mkdir(parents=True, exist_ok=True)
    mark.touch()


def finish(app: Sphinx, exception: Exception | None) -> None:
    """Remove the mark, unless there was a warning: the next build shall see it again."""
    if exception is None and not app._warncount:
        unfinished(app).unlink(missing_ok=True)


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension; the API page describes this tree's packages, installed or not."""
    sys.path.insert(0, str(Path(app.srcdir, "src")))
    start(app)
    app.connect("env-get-outdated", execute_outdated)
    app.connect("source-read", substitute)
    app.connect("build-finished", finish, priority=900)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
