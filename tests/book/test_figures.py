"""A figure of a notebook becomes a figure of the site: image, words and size."""

from types import SimpleNamespace

import chapters
import pytest

from companion.style import figure_html

ALT = 'A line from < 0 to "1".'
DATA = "UklGRg=="


@pytest.mark.parametrize("caption", ["It rises & $x$ > 0.", None])
def test_figure_becomes_a_directive(tmp_path, caption):
    html = figure_html(DATA, ALT, caption, (614, 384))
    found = chapters.FIGURE.fullmatch(html)
    app = SimpleNamespace(outdir=tmp_path / "_build" / "html", srcdir=tmp_path)
    lines = chapters.figure_markdown(app, found).splitlines()
    address = lines[0].removeprefix(":::{figure} /")
    assert (tmp_path / address).read_bytes() == b"RIFF"
    assert lines[1] == f":name: {found['name']}"
    assert lines[2] == ':alt: "A line from < 0 to \\"1\\"."'
    assert lines[3:5] == [":width: 614px", ""]
    assert lines[5] == (caption or "")
    assert lines[-1] == ":::"


@pytest.mark.parametrize("html", ['<table class="claims"></table>', "<figure><svg/></figure>"])
def test_other_outputs_stay(html):
    assert chapters.FIGURE.fullmatch(html) is None
