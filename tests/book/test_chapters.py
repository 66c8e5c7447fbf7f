"""A small book built as the real one is: interrupted builds, damaged stores, builds elsewhere."""

import base64
import io
import json
import os
import re
import shutil
import subprocess
import sys

import nbformat
import pytest
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from notebooks import ROOT
from PIL import Image

from companion.style import figure_html

CONFIG = """
import os
import sys

sys.path.insert(0, "book/_ext")
extensions = ["myst_nb", "chapters"]
nb_execution_mode = "off"
nb_render_markdown_format = "myst"
myst_enable_extensions = ["colon_fence"]
exclude_patterns = ["_build"]


def kill(app, pagename, *rest):
    if pagename == os.environ.get("KILLED_AT"):
        os._exit(9)


def setup(app):
    app.connect("html-page-context", kill)
"""
PAGES = ("index", "book/01_first", "book/02_second", "book/a")
pytestmark = pytest.mark.slow


def chapter(title, source):
    cells = [new_markdown_cell(f"# {title}"), new_code_cell(source)]
    return new_notebook(
        cells=cells, metadata={"kernelspec": {"name": "python3", "display_name": "Python 3"}}
    )


def figure_source():
    buffer = io.BytesIO()
    Image.new("RGB", (4, 3)).save(buffer, format="webp")
    data = base64.b64encode(buffer.getvalue()).decode()
    html = figure_html(data, "A black rectangle.", "Nothing to see.", (4, 3))
    return f"display({ {'text/html': html, 'text/plain': 'figure'}!r}, raw=True)"


@pytest.fixture
def book(tmp_path):
    """Folder of a book of two chapters and two pages, with the real book's extensions."""
    folder = tmp_path / "small"
    shutil.copytree(
        ROOT / "book" / "_ext", folder / "book" / "_ext", ignore=shutil.ignore_patterns("__pyc*")
    )
    (folder / "src").mkdir()
    (folder / "conf.py").write_text(CONFIG)
    toc = "\n".join(PAGES[1:])
    (folder / "index.md").write_text(f"# Home\n\n```{{toctree}}\n{toc}\n```\n")
    (folder / "book" / "a.md").write_text("# A page\n")
    nbformat.write(chapter("First", figure_source()), folder / "book" / "01_first.ipynb")
    nbformat.write(chapter("Second", "print('measured', 6 * 7)"), folder / "book/02_second.ipynb")
    return folder


def build(book, out=None, **environment):
    """Build as `jupyter-book build . -W --keep-going` does."""
    out = out or book / "_build" / "html"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-b", "html"]
    return subprocess.run(
        [*command, "-d", out.parent / ".doctrees", book, out],
        cwd=book,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def assert_whole(done, site):
    assert done.returncode == 0, done.stderr
    assert "measured 42" in (site / "book" / "02_second.html").read_text("utf-8")
    index = re.search(r"\((\{.*\})\)", (site / "searchindex.js").read_text("utf-8")).group(1)
    assert set(json.loads(index)["docnames"]) == set(PAGES)


@pytest.mark.parametrize("times", [1, 2])
def test_a_killed_first_build_does_not_spoil_the_next(book, times):
    for _ in range(times):
        assert build(book, KILLED_AT="book/a").returncode == 9
    assert_whole(build(book), book / "_build" / "html")


def test_a_build_killed_over_a_whole_one_does_not_spoil_the_next(book):
    assert_whole(build(book), book / "_build" / "html")
    (book / "book" / "a.md").write_text("# A page with another title\n")
    assert build(book, KILLED_AT="book/a").returncode == 9
    assert_whole(build(book), book / "_build" / "html")
    assert "another title" in (book / "_build" / "html" / "book" / "a.html").read_text("utf-8")


def test_warnings_do_not_vanish_in_the_next_build(book):
    (book / "book" / "a.md").write_text("# A page\n\n[](nowhere.md)\n")
    for _ in range(2):
        done = build(book)
        assert done.returncode == 1
        assert "nowhere" in done.stderr


def test_a_whole_build_is_not_made_anew(book):
    build(book)
    done = build(book)
    assert "executing" not in done.stdout
    assert "0 added, 0 changed" in done.stdout


@pytest.mark.parametrize("text", ["", '{"cells": [', "[]", "{}"])
def test_a_damaged_executed_chapter_is_executed_again(book, text):
    build(book)
    (stored,) = (book / "_build" / ".chapters").glob("02_second-*.ipynb")
    stored.write_text(text)
    (book / "book" / "a.md").write_text("# A page with another title\n")
    shutil.rmtree(book / "_build" / ".doctrees")
    done = build(book)
    assert "executing 1 chapter(s): book/02_second" in done.stdout
    assert_whole(done, book / "_build" / "html")


def test_a_build_elsewhere_has_its_figures(book, tmp_path):
    site = tmp_path / "elsewhere" / "html"
    assert_whole(build(book, out=site), site)
    page = (site / "book" / "01_first.html").read_text("utf-8")
    image = re.search(r'<img [^>]*src="([^"]+\.webp)"', page).group(1)
    assert (site / "book" / image).read_bytes()[:4] == b"RIFF"


def test_a_failing_chapter_is_named(book):
    nbformat.write(chapter("Second", "1 / 0"), book / "book" / "02_second.ipynb")
    done = build(book)
    assert done.returncode
    assert re.search(r"02_second\.ipynb: a cell failed.*ZeroDivisionError", done.stderr, re.DOTALL)
