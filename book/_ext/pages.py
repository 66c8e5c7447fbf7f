"""Every page: its description, ids that stay, and the theme's markup mended where it is at fault."""

from __future__ import annotations

import re
from functools import cache
from html import escape
from pathlib import Path
from typing import Any
from urllib.parse import unquote
from zlib import crc32

from docutils import nodes
from PIL import Image
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
FONTS = (
    'for (const font of ["Main", "Math", "AMS", "Caligraphic", "Size1", "Size2", "Size3", "Size4"]) '
    'document.fonts.load(`${font === "Math" ? "italic" : ""} 1em KaTeX_${font}`);'
)
#: The theme's markup, and what stands in its place.
MENDED = [
    # Scripts: icons come from a font, searching has its own page, nothing holds the page up.
    (r'<script[^>]* src="[^"]*fontawesome\.js[^"]*"></script>', ""),
    (r'<link rel="preload" as="script"[^>]*>', ""),
    (r"<script>\s*DOCUMENTATION_OPTIONS\.\w+ = .*?</script>", ""),
    (r'<script((?: data-[\w-]+="[^"]*")?) src=', r"<script\1 defer src="),
    # The fonts of the style sheet are at hand: taken up before anything is drawn, no line moves.
    (r"(?=<!-- So that users can add custom icons -->)", f"<script>{FONTS}</script>\n"),
    # A second table of contents, printed before every chapter under a second title.
    (r'<div id="jb-print-docs-body".*?(?=<div id="searchbox">)', ""),
    # Landmarks, and labels that differ from the text that is seen.
    (r'(<div id="pst-primary-sidebar")', r'\1 role="complementary" aria-label="Book"'),
    (r'<div id="pst-scroll-pixel-helper"></div>', ""),
    (r'(<button class="btn search-button-field[^>]*) aria-label="Search"', r"\1"),
    (r'<summary aria-label="Toggle hidden content">', "<summary>"),
    (r'<summary>(?=<span class="toctree-toggle")', '<summary aria-label="Pages below">'),
    (r"<th([^>]*)>\s*<p></p>\s*</th>", r"<td\1></td>"),
    # A list whose entries are no list items.
    (r'<div role="list" class="citation-list">', '<div class="citation-list">'),
    (r' role="doc-biblioentry"', ""),
    # One id given to many elements.
    (r' id="(?:proof|exercise|solution)-content"', ""),
    (r'(<p class="admonition-title") id="[^"]*"', r"\1"),
    (r'<meta property="og:url" content="(?!https:)[^"]*" />\n?', ""),
]
MENDED = [(re.compile(found, re.DOTALL), better) for found, better in MENDED]
SEARCHING = re.compile(r'<script defer src="[^"]*(?:searchtools|language_data|searchindex)\.js.*')
STATEMENT = re.compile(r'<div class="proof (?:\w+ )?admonition" id="([^"]*)"')
IMAGE = re.compile(r'<img (?=[^>]*src="([^":]*\.webp)")(?![^>]*width=)')


def describe(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
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
        text = escape(text)
        tag = f'<meta name="description" content="{text}" />\n'
        context["metatags"] = context.get("metatags", "") + tag
    if text and context.get("meta") is not None:
        context["meta"]["og:description"] = text


def select_scripts(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Keep the first of equal scripts, which Sphinx 7 emits twice, and only those of use here."""
    body = context.get("body", "")
    needless = [] if "jupyter.widget-view+json" in body else ["html-manager", "widget-state+json"]
    needless += [] if "sd-tab" in body else ["design-tabs"]
    kept: dict[str, Any] = {}
    for script in context.get("script_files", []):
        key = f"{script.filename} {script.attributes}"
        if not any(name in key[:400] for name in needless):
            kept.setdefault(key, script)
    context["script_files"] = list(kept.values())


@cache
def size(image: Path) -> tuple[int, int]:
    """Width and height of an image in pixels."""
    with Image.open(image) as opened:
        return opened.size


def mend(app: Sphinx, pagename: str, html: str) -> str:
    """Correct a page: what the theme's templates leave at fault."""
    for found, better in MENDED:
        html = found.sub(better, html)
    if pagename != "search":
        html = SEARCHING.sub("", html)
    statement = "chapter"

    def name_proof(match: re.Match[str]) -> str:
        nonlocal statement
        if not re.fullmatch(r"proof|id\d+", match[1]):
            statement = match[1]
            return match[0]
        return match[0].replace(f'"{match[1]}"', f'"proof-{statement}"')

    sources = {name: source for source, name in app.builder.images.items()}
    first = True

    def measure(match: re.Match[str]) -> str:
        nonlocal first
        lazy = "" if first else 'loading="lazy" decoding="async" '
        first = False
        width, height = size(Path(app.srcdir, sources[unquote(match[1]).rpartition("/")[2]]))
        return f'<img width="{width}" height="{height}" {lazy}'

    return IMAGE.sub(measure, STATEMENT.sub(name_proof, html))


def name_figures(app: Sphinx, doctree: nodes.document) -> None:
    """Name figures by their captions instead of by a running number."""
    taken: set[str] = set()
    for figure in doctree.findall(nodes.figure):
        words = " ".join(node.astext() for node in figure.findall(nodes.caption)).split()
        name = nodes.make_id("figure " + " ".join(words[:6]))
        while name in taken:
            name += "-more"
        taken.add(name)
        figure["ids"] = [name if re.fullmatch(r"id\d+", old) else old for old in figure["ids"]]


def watch_pages(app: Sphinx) -> None:
    """Have every page mended before it is written."""
    render = app.builder.templates.render

    def rendered(template: str, context: dict[str, Any]) -> str:
        return mend(app, context.get("pagename", ""), render(template, context))

    app.builder.templates.render = rendered


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
    app.connect("builder-inited", watch_pages)
    app.connect("doctree-read", name_figures)
    app.connect("html-page-context", describe, priority=400)  # before opengraph reads it
    app.connect("html-page-context", select_scripts, priority=900)
    return {
        "env_version": crc32(sources),
        "parallel_read_safe": True,
        "parallel_write_safe": True,
        "version": "1",
    }
