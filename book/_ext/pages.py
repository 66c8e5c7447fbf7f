"""Every page: one description for search engines and previews, no duplicated script."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from zlib import crc32

from docutils import nodes
from sphinx.application import Sphinx

DESCRIPTION = re.compile(r'<meta [^>]*name="description"[^>]*>')
CONTENT = re.compile(r'content="([^"]*)"')
#: Pages that Sphinx makes by itself.
GENERATED = {
    "genindex": "Index of the names of the packages mixattn and companion.",
    "prf-prf": "Index of the book's theorems, lemmas and propositions.",
    "py-modindex": "The modules of the packages mixattn and companion.",
    "search": "Search the book's text.",
}


def describe(
    app: Sphinx,
    pagename: str,
    templatename: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Give the page the description that its source declares, for search engines and previews.

    A Markdown page declares it in its front matter (`myst: html_meta: description`), a chapter in
    the notebook's metadata under `description`.
    """
    meta = context.get("meta") or {}
    found = DESCRIPTION.search(context.get("metatags", ""))
    if found:
        text = CONTENT.search(found.group()).group(1)
    elif text := meta.get("description") or GENERATED.get(pagename, ""):
        text = text.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
        context["metatags"] = (
            context.get("metatags", "") + f'<meta name="description" content="{text}" />\n'
        )
    if text and context.get("meta") is not None:
        context["meta"]["og:description"] = text


#: Markup of the builders that a screen reader reads wrongly, and what to write instead.
MENDED = [
    # A label that differs from the text that is seen ("Show code cell source").
    ('<summary aria-label="Toggle hidden content">', "<summary>"),
    # A list whose entries are no list items.
    ('<div role="list" class="citation-list">', '<div class="citation-list">'),
    (' role="doc-biblioentry"', ""),
]


def mend_markup(
    app: Sphinx,
    pagename: str,
    templatename: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Correct known accessibility faults in the page's body."""
    for found, better in MENDED:
        context["body"] = context.get("body", "").replace(found, better)


def drop_repeated_scripts(
    app: Sphinx,
    pagename: str,
    templatename: str,
    context: dict[str, Any],
    doctree: nodes.document | None,
) -> None:
    """Keep the first of equal scripts: Sphinx 7 emits late inline scripts twice."""
    kept: dict[tuple[str, str], Any] = {}
    for script in context.get("script_files", []):
        kept.setdefault((str(script.filename), str(script.attributes)), script)
    context["script_files"] = list(kept.values())


def disconnect_thebe(app: Sphinx) -> None:
    """Leave out sphinx-thebe, which Jupyter Book always loads: its code is on another machine."""
    for name, listeners in app.events.listeners.items():
        app.events.listeners[name] = [
            listener for listener in listeners if listener.handler.__module__ != "sphinx_thebe"
        ]
    # Its style sheet is on the folder that one of these listeners would have added.
    app.registry.css_files = [
        (name, options) for name, options in app.registry.css_files if name != "sphinx-thebe.css"
    ]


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    # Sphinx builds every page anew when this number changes; by itself it watches neither its
    # extensions nor the static files.
    here = Path(__file__).parent
    watched = [path for path in here.rglob("*") if path.suffix in {".py", ".json"}]
    watched += [path for path in (here.parent / "_static").rglob("*") if path.is_file()]
    sources = b"".join(path.read_bytes() for path in sorted(watched))
    disconnect_thebe(app)
    app.connect("html-page-context", describe, priority=400)  # before opengraph reads it
    app.connect("html-page-context", mend_markup)
    app.connect("html-page-context", drop_repeated_scripts, priority=900)
    return {
        "env_version": crc32(sources),
        "parallel_read_safe": True,
        "parallel_write_safe": True,
        "version": "1",
    }
