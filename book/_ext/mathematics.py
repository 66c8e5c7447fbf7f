"""Formulas set when the site is built: no page needs a script for its mathematics.

One Node process sets the formulas of a whole build with KaTeX, as HTML for the eye and MathML for
screen readers: 3,000 formulas take two seconds. One that KaTeX cannot set is a warning of the
build, with its place.
"""

from __future__ import annotations

import json
import re
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

from assets import member, node
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.math import get_node_equation_number

LOGGER = logging.getLogger(__name__)
SETTER = """
const katex = require(process.argv[1]);
require("readline").createInterface({input: process.stdin}).on("line", line => {
  const [tex, displayMode] = JSON.parse(line);
  let answer;
  try { answer = ["", katex.renderToString(tex, {displayMode, strict: "error"})]; }
  catch (error) { answer = [error.message, ""]; }
  process.stdout.write(JSON.stringify(answer) + "\\n");
});
"""
#: KaTeX would number these environments once more; Sphinx numbers what has a label.
NUMBERED = re.compile(r"\\(begin|end)\{(align|gather|equation|alignat)\}")
#: The source of a formula, which nothing on a page reads.
SOURCE = re.compile(r"</?semantics>|<annotation.*?</annotation>", re.DOTALL)


class Formulas:
    """Sets formulas, each once."""

    def __init__(self, app: Sphinx) -> None:
        self.script = Path(app.outdir).parent / ".katex.js"
        self.known: dict[str, str] = {}
        self.process: subprocess.Popen[str] | None = None

    def html(self, node: nodes.Element, display: bool) -> str:
        """Return the markup of a formula."""
        tex = NUMBERED.sub(r"\\\1{\2*}", node.astext().strip())
        key = f"{'display' if display else 'inline'} {tex}"
        if key not in self.known:
            error, html = self._ask(tex, display)
            if error:
                LOGGER.warning("formula not set: %s", error, location=node)
                return f"<code>{escape(tex)}</code>"
            self.known[key] = SOURCE.sub("", html)
        return self.known[key]

    def plain(self, element: nodes.Element) -> str:
        """Return a formula as a line of text."""
        return unescape(
            re.sub("<[^>]*>", "", self.html(element, False).partition("katex-html")[2])[21:]
        )

    def _ask(self, tex: str, display: bool) -> list[str]:
        if self.process is None:
            self.script.write_bytes(member("katex", "dist/katex.min.js"))
            command = [*node("node"), "-e", SETTER, str(self.script)]
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True)
        print(json.dumps([tex, display]), file=self.process.stdin, flush=True)
        return json.loads(self.process.stdout.readline())

    def close(self, app: Sphinx, exception: Exception | None) -> None:
        """End the process."""
        if self.process:
            self.process.communicate()


def setup(app: Sphinx) -> dict[str, Any]:
    """Make KaTeX the renderer of the HTML pages."""
    formulas = app.formulas = Formulas(app)

    def inline(writer: Any, node: nodes.math) -> None:
        writer.body.append(writer.starttag(node, "span", "", CLASS="math"))
        writer.body.append(formulas.html(node, False) + "</span>")
        raise nodes.SkipNode

    def display(writer: Any, node: nodes.math_block) -> None:
        writer.body.append(writer.starttag(node, "div", CLASS="math"))
        writer.body.append(f'<div class="math-scroll">{formulas.html(node, True)}</div>')
        if node["number"]:
            number = get_node_equation_number(writer, node)
            writer.body.append(f'<span class="eqno">({number})')
            writer.add_permalink_ref(node, "Permalink to this equation")
            writer.body.append("</span>")
        writer.body.append("</div>\n")
        raise nodes.SkipNode

    app.add_html_math_renderer("katex", (inline, None), (display, None))
    app.connect("build-finished", formulas.close)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": False}
