"""Live figures on the site: their script and style sheet, on the pages that have one.

A cell's live figure is a widget and, beside it, HTML that holds its state and its still picture.
The site takes the HTML, from which its own script draws the figure; the widget's model would ask
the page for a widget manager that it does not need.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any
from zlib import crc32

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.config import Config

MARK = '<div class="explorable"'
WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"
WIDGET_STATE = "application/vnd.jupyter.widget-state+json"


def prefer_html(notebook: dict[str, Any]) -> None:
    """Take the widgets of live figures out of an executed notebook, in place; their HTML stays."""
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            bundle = output.get("data", {})
            if MARK in "".join(bundle.get("text/html", "")):
                bundle.pop(WIDGET_VIEW, None)
    widgets = notebook["metadata"].get("widgets", {})
    models = widgets.get(WIDGET_STATE, {}).get("state", {})
    for name in [name for name, m in models.items() if m["model_module"] == "anywidget"]:
        layout = models.pop(name)["state"].get("layout", "")
        models.pop(layout.removeprefix("IPY_MODEL_"), None)
    if not models:
        widgets.pop(WIDGET_STATE, None)


def substitute(app: Sphinx, docname: str, source: list[str]) -> None:
    """Let Sphinx read a chapter's live figures as HTML."""
    if app.env.doc2path(docname).endswith(".ipynb"):
        notebook = json.loads(source[0])
        prefer_html(notebook)
        source[0] = json.dumps(notebook)


def serve(
    app: Sphinx,
    pagename: str,
    templatename: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Give a page with a live figure the script and the style sheet."""
    if MARK in context.get("body", ""):
        app.add_js_file("live.js", loading_method="defer")
        app.add_css_file("live.css")


def write(folder: Path) -> None:
    """Write the script and the style sheet of this tree's figures."""
    from companion.live import site_script, style_sheet

    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"live.js": site_script(), "live.css": style_sheet()}.items():
        (folder / name).write_text(text, "utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    source = Path(app.srcdir, "src")
    sys.path.insert(0, str(source))
    folder = Path(app.outdir).parent / "live"
    write(folder)

    def add_folder(app: Sphinx, config: Config) -> None:
        config.html_static_path.append(os.path.relpath(folder, app.srcdir))

    app.connect("config-inited", add_folder)
    app.connect("source-read", substitute, priority=600)  # after `chapters`
    app.connect("html-page-context", serve)
    version = crc32((folder / "live.js").read_bytes() + (folder / "live.css").read_bytes())
    return {"env_version": version, "parallel_read_safe": True, "parallel_write_safe": True}
