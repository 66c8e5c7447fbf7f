"""Live figures: figures that a reader drags, computed in the browser, with a kernel or with none.

A kind of figure is one file ``explorables/<kind>.js`` (how to write one: ``explorables/stage.js``).
`LiveFigure` puts it in a cell: a widget where a kernel runs, and elsewhere its still picture and its
state, from which the site's script (`site_script`) makes the figure again. The same modules serve
both; `link` joins them, so nothing generated is committed.
"""

from __future__ import annotations

import base64
import copy
import json
import re
from collections.abc import Mapping
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import anywidget
import matplotlib.pyplot as plt
import traitlets
from matplotlib.figure import Figure

from companion.style import check_alt, webp_bytes

# Folder of the figures' modules and style sheet.
EXPLORABLES = Path(__file__).parent / "explorables"

STILL_BYTES = 20_000
STATE_BYTES = 10_000

_IMPORT = re.compile(r'^import \{ ([^}]*) \} from "\./(\w+)\.js";\n', re.M)
_NAMED = re.compile(r"^export ((?:async )?function|const|class) (\w+)", re.M)
_DEFAULT = re.compile(r"^export default ", re.M)
_LEFT_OVER = re.compile(r"^(?:import|export)\b.*", re.M)
_COMMENT = re.compile(r"^ *//.*\n|^ */\*\*(?:[^*]|\*(?!/))*\*/\n", re.M)
_NAME = re.compile(r"[a-z][a-z0-9]*")


def kinds() -> list[str]:
    """Names of all kinds of figure: the modules whose default export is a figure."""
    return sorted(
        path.stem
        for path in EXPLORABLES.glob("*.js")
        if "\nexport default figure(" in path.read_text("utf-8")
    )


def link(entries: Mapping[str, str], tail: str, folder: Path = EXPLORABLES) -> str:
    """Join ES modules and all that they import into one script, each module in its own scope.

    Parameters
    ----------
    entries : mapping of str to str
        Name of a module (without ``.js``) to the name under which `tail` knows its exports.
    tail : str
        What follows the modules.
    folder : pathlib.Path
        Where the modules are.

    Raises
    ------
    ValueError
        If a module imports or exports in a form that cannot be joined. Joined are
        ``import { a, b as c } from "./x.js";``, ``export function|const|class`` and
        ``export default <expression>;``, each at the start of a line.
    """
    scopes: dict[str, str] = {}

    def add(name: str) -> None:
        if name in scopes:
            return
        scopes[name] = ""
        source = (folder / f"{name}.js").read_text("utf-8")
        needs = _IMPORT.findall(source)
        for _, needed in needs:
            add(needed)
        del scopes[name]  # after what it needs
        exports = [exported for _, exported in _NAMED.findall(source)]
        body, defaults = _DEFAULT.subn("const _default = ", _NAMED.sub(r"\1 \2", source))
        body = _IMPORT.sub("", body)
        if bad := _LEFT_OVER.search(body):
            raise ValueError(f"{name}.js: cannot join {bad.group()!r}")
        heads = [
            f"const {{ {names.replace(' as ', ': ')} }} = ${needed};" for names, needed in needs
        ]
        returned = ", ".join(exports + ["_default"] * defaults)
        lines = [f"const ${name} = (() => {{", *heads, _COMMENT.sub("", body).strip()]
        scopes[name] = "\n".join([*lines, f"return {{ {returned} }};", "})();"])

    for entry in entries:
        add(entry)
    names = [f"const {known} = ${entry};" for entry, known in entries.items()]
    return "\n".join([*scopes.values(), *names, tail, ""])


@cache
def widget_module(kind: str) -> str:
    """ES module of one kind of figure, as a notebook's widget wants it."""
    return link({kind: "entry"}, "export default entry._default;")


def site_script() -> str:
    """Classic script that draws every figure of a page; it runs from a server and from a file."""
    table = ", ".join(f"{kind}: ${kind}._default" for kind in kinds())
    joined = link(
        {kind: f"_{kind}" for kind in kinds()} | {"page": "page"}, f"page.start({{ {table} }});"
    )
    return f'(() => {{\n"use strict";\n{joined}}})();\n'


def style_sheet() -> str:
    """Style sheet of all figures."""
    return (EXPLORABLES / "explorable.css").read_text("utf-8")


class LiveFigure(anywidget.AnyWidget):
    """A figure to drag; make it the last value of its cell.

    Parameters
    ----------
    kind : str
        Which figure: one of `kinds`.
    state : mapping
        All that moves, as numbers, lists and texts; at most 10 kB.
    name : str
        Short name by which the page's text follows the figure (``live-NAME-...``), lower case.
    title : str
        The figure's name for a reader who does not see it.
    alt : str
        What the still shows, at least 20 characters.
    still : matplotlib.figure.Figure or bytes
        Picture of the first state, where nothing moves; at most 20 kB as webp. A figure is closed.

    Attributes
    ----------
    state : dict
        What the reader has moved; set it and the figure follows.
    derived : dict
        What the browser computed from the state; empty until the figure has been shown.

    Raises
    ------
    ValueError
        If `kind` is unknown, `name` is not one short word, `title` or `alt` is missing, the state
        is not plain or too large, or the still is no picture or too large.
    """

    _esm = traitlets.Unicode().tag(sync=True)
    _css = traitlets.Unicode().tag(sync=True)
    state = traitlets.Dict().tag(sync=True)
    derived = traitlets.Dict().tag(sync=True)

    def __init__(
        self,
        kind: str,
        state: Mapping[str, Any],
        *,
        name: str,
        title: str,
        alt: str,
        still: Figure | bytes,
    ) -> None:
        if kind not in kinds():
            raise ValueError(f"kind: expected one of {kinds()}, got {kind!r}")
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            raise ValueError(f"name: expected lower case letters and digits, got {name!r}")
        if not isinstance(title, str) or not title.strip():
            raise ValueError(f"title: expected text, got {title!r}")
        check_alt(alt)
        first = _plain({"name": name, "title": title, **state})
        self._kind, self._first, self._alt, self._still = kind, first, alt, _still_bytes(still)
        super().__init__(state=first, _esm=widget_module(kind), _css=style_sheet())

    def __repr__(self) -> str:
        """Return what the still shows: the same text in every run."""
        return f"<LiveFigure {self._kind}: {self._alt}>"

    def _repr_mimebundle_(self, **kwargs: Any) -> Any:
        data, metadata = super()._repr_mimebundle_(**kwargs)
        return data | {"text/html": self.html()}, metadata

    def html(self) -> str:
        """Return what a page without a kernel holds: the first state and its picture."""
        state = json.dumps(self._first, separators=(",", ":")).replace("<", "\\u003c")
        image = base64.b64encode(self._still).decode("ascii")
        return (
            f'<div class="explorable" data-kind="{self._kind}">'
            f'<script type="application/json">{state}</script>'
            f'<img alt="{escape(self._alt)}" src="data:image/webp;base64,{image}"></div>'
        )


def _plain(state: Mapping[str, Any]) -> dict[str, Any]:
    try:
        text = json.dumps(state, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"state: expected finite numbers, lists and texts ({error})") from error
    if len(text.encode()) > STATE_BYTES:
        raise ValueError(f"state: expected at most {STATE_BYTES} bytes, got {len(text.encode())}")
    return copy.deepcopy(json.loads(text))


def _still_bytes(still: Any) -> bytes:
    if isinstance(still, Figure):
        data = webp_bytes(still)
        plt.close(still)
    elif isinstance(still, bytes) and still[:4] == b"RIFF" and still[8:12] == b"WEBP":
        data = still
    else:
        raise ValueError(f"still: expected a matplotlib Figure or webp, got {type(still).__name__}")
    if len(data) > STILL_BYTES:
        raise ValueError(f"still: expected at most {STILL_BYTES} bytes as webp, got {len(data)}")
    return data
