"""Fonts of formulas and icons, cut to the characters that the site shows and put into a style sheet.

They arrive with the style sheet, so no line moves when a font comes late, and they are a tenth of
the whole fonts. A character that is missing here is still found in the whole font beside it.
"""

from __future__ import annotations

import logging
from base64 import b64encode
from io import BytesIO
from pathlib import Path
from typing import Any

import pydata_sphinx_theme
from assets import member
from fontTools import subset
from fontTools.ttLib import TTFont
from sphinx.application import Sphinx

KATEX = "AMS-Regular Caligraphic-Regular Main-Regular Math-Italic Size1-Regular Size2-Regular"
KATEX += " Size3-Regular Size4-Regular"
#: By name in the theme's style sheet: bars, search, sun, moon, contrast, download, file, pdf,
#: expand, list, arrows, copy, pencil, light bulb, circles and triangle of the boxes, repository.
ICONS = (
    "f0c9f002f185f186f042f019f15bf1c1f065f03af062f060f061f104f105f106f107f077f078f054f0c5f303f0eb"
    "f05af06af071f0f3f058f057f064f08ef0c1f121f135f188f2f9f00cf00df059f013"
)
BRANDS = "f09bf296f113"
THEME = Path(pydata_sphinx_theme.__file__).parent / "theme/pydata_sphinx_theme/static/vendor"


def face(family: str, style: str, weight: int, source: bytes, characters: str) -> str:
    """Return the rule of a font, cut to these characters."""
    options = subset.Options(hinting=False, layout_features=[], name_IDs=[], glyph_names=False)
    font = TTFont(BytesIO(source))
    cutter = subset.Subsetter(options)
    cutter.populate(text=characters)
    cutter.subset(font)
    font.flavor = "woff"
    file = BytesIO()
    font.save(file)
    data = b64encode(file.getvalue()).decode()
    return (
        f"@font-face {{ font-family: '{family}'; font-style: {style}; font-weight: {weight}; "
        f"src: url(data:font/woff;base64,{data}) format('woff'); }}\n"
    )


def embed(app: Sphinx, exception: Exception | None) -> None:
    """Write the style sheet once the pages stand."""
    if exception:
        return
    logging.getLogger("fontTools").setLevel(logging.ERROR)
    pages = Path(app.outdir).rglob("*.html")
    used = "".join(sorted(set().union(*(page.read_text("utf-8") for page in pages))))
    rules = []
    for name in KATEX.split():
        style = "italic" if name.endswith("Italic") else "normal"
        source = member("katex", f"dist/fonts/KaTeX_{name}.ttf")
        rules.append(face(f"KaTeX_{name.partition('-')[0]}", style, 400, source, used))
    for family, file, weight, codes in [
        ("Font Awesome 6 Free", "fa-solid-900.ttf", 900, ICONS),
        ("Font Awesome 6 Brands", "fa-brands-400.ttf", 400, BRANDS),
    ]:
        icons = "".join(chr(int(codes[i : i + 4], 16)) for i in range(0, len(codes), 4))
        source = (THEME / "fontawesome" / "webfonts" / file).read_bytes()
        rules.append(face(family, "normal", weight, source, icons))
    Path(app.outdir, "_static", "fonts.css").write_text("".join(rules), "utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the extension."""
    app.connect("build-finished", embed)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
