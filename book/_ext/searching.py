"""The search index: words and titles without TeX, numbered statements under their numbers."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

NUMBERED = re.compile(
    r"(?:Theorem|Lemma|Proposition|Corollary|Remark|Definition|Example|Assumption) [A-Z\d][.\d]*\d"
)


def searchable(app: Sphinx, doctree: nodes.document) -> nodes.document:
    """Return a page as the index should see it."""
    tree = doctree.deepcopy()
    for formula in list(tree.findall(nodes.math)):
        in_title = isinstance(formula.parent, nodes.title)
        text = app.formulas.plain(formula) if in_title else ""
        formula.parent.replace(formula, nodes.Text(text))
    for formula in list(tree.findall(nodes.math_block)):
        formula.parent.remove(formula)
    for title in list(tree.findall(nodes.title)):
        if "proof" not in title.parent.get("classes", ()):
            continue
        # "Theorem 4.1 of the paper" is found as "Theorem 4.1", a named one as its name.
        text = title.astext().strip().removeprefix("(").removesuffix(")")
        found = NUMBERED.findall(text) or [text]
        title.parent[:0] = [nodes.title("", name) for name in found]
        title.parent.remove(title)
    return tree


def setup(app: Sphinx) -> dict[str, Any]:
    """Have pages made searchable before they are indexed."""

    def watch(app: Sphinx) -> None:
        index = app.builder.index_page

        def index_page(name: str, doctree: nodes.document, title: str) -> None:
            index(name, searchable(app, doctree), title)

        app.builder.index_page = index_page

    app.connect("builder-inited", watch)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
