"""The ledger page, built by Sphinx from a small made-up book."""

import importlib.util
import io
import json
import re
import sys
from pathlib import Path

import pytest

EXTENSIONS = Path(__file__).parents[2] / "book" / "_ext"

CLAIMS = r"""
- {id: P1, title: A first title, where: Proposition 1, chapter: 1, kind: identity, statement: "With $x$, one is one."}
- {id: P1.far, title: A second, where: Remark 2, chapter: 1, kind: beyond, status: formal, statement: "Two."}
- {id: P2, title: A third, where: section 2, chapter: 2, kind: erratum, statement: "Three."}
"""

MEASURED = {
    "test_it.py::test_one": [
        {"id": "P1", "check": "slope", "expected": "≤ 2", "measured": "1.5", "holds": True}
    ]
}


def chapter(measured):
    mime = "application/vnd.mixattn.claims+json"
    rows = [
        {"id": "P1", "check": "error", "expected": "≤ 1", "measured": measured, "holds": True},
    ]
    cells = [
        {"cell_type": "markdown", "source": "# On $\\mu$"},
        {"cell_type": "code", "source": "", "outputs": [{"data": {mime: rows}}]},
    ]
    return json.dumps({"cells": cells})


@pytest.fixture
def build(tmp_path, monkeypatch):
    """A function that builds the book in tmp_path and returns the ledger page's HTML."""
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace

    (tmp_path / "book").mkdir()
    (tmp_path / "tests").mkdir()
    (tmp_path / "book" / "claims.yml").write_text(CLAIMS, "utf-8")
    (tmp_path / "book" / "01_one.ipynb").write_text(chapter("0.25"), "utf-8")
    (tmp_path / "book" / "01_one.md").write_text("# On\n\nSee {claim}`P1.far`.\n", "utf-8")
    (tmp_path / "book" / "ledger.md").write_text("# Ledger\n\n```{ledger}\n```\n", "utf-8")
    (tmp_path / "index.md").write_text(
        "# Book\n\n```{toctree}\nbook/01_one\nbook/ledger\n```\n", "utf-8"
    )
    (tmp_path / "book" / "measured.json").write_text(json.dumps(MEASURED), "utf-8")
    (tmp_path / "tests" / "test_it.py").write_text(
        'import pytest\n\n@pytest.mark.claim("P1")\ndef test_one():\n    pass\n', "utf-8"
    )
    monkeypatch.syspath_prepend(str(EXTENSIONS))
    monkeypatch.delitem(sys.modules, "ledger", raising=False)
    spec = importlib.util.spec_from_file_location("ledger", EXTENSIONS / "ledger.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "ledger", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)

    def run():
        warnings = io.StringIO()
        settings = {
            "extensions": ["myst_parser", "ledger"],
            "myst_enable_extensions": ["dollarmath"],
            "nitpicky": True,
        }
        folders = tmp_path, None, tmp_path / "out", tmp_path / "tree"
        with docutils_namespace():
            app = Sphinx(*folders, "html", confoverrides=settings, status=None, warning=warnings)
            app.build()
        assert warnings.getvalue() == ""
        return (tmp_path / "out" / "book" / "ledger.html").read_text("utf-8")

    return run


def plain(page):
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))


def test_page_says_what_is_executed_and_what_is_planned(build, tmp_path):
    page = build()
    text = plain(page)
    for anchor in ("claim-p1", "claim-p1-far", "claim-p2"):
        assert f'id="{anchor}"' in page
    assert "3 claims: 1 executed, by 1 checked row in the chapters and 1 test, which" in text
    assert "which show 1 measured value; 1 planned, not executed yet; 1 lacking a check" in text
    assert "slope: expected ≤ 2, measured 1.5 (test test_it.py::test_one)" in text
    assert "Identity; proved in the paper; verified here." in text
    assert "Beyond the paper; formal argument of this book; not checked here yet." in text
    assert "Erratum; misprinted in the paper, corrected here; check planned." in text
    assert "error: expected ≤ 1, measured 0.25" in text
    assert "test_it.py::test_one" in text
    assert 'href="01_one.html"' in page
    one = (tmp_path / "out" / "book" / "01_one.html").read_text("utf-8")
    assert 'href="ledger.html#claim-p1-far"' in one


@pytest.mark.parametrize("change", ["chapter", "claims", "tests", "measured"])
def test_page_follows_its_sources(build, tmp_path, change):
    assert "measured 0.25" in plain(build())
    if change == "chapter":
        (tmp_path / "book" / "01_one.ipynb").write_text(chapter("0.125"), "utf-8")
        assert "measured 0.125" in plain(build())
    elif change == "claims":
        claims = CLAIMS.replace("A third", "A new third")
        (tmp_path / "book" / "claims.yml").write_text(claims, "utf-8")
        assert "A new third" in plain(build())
    elif change == "measured":
        (tmp_path / "book" / "measured.json").write_text("{}", "utf-8")
        assert "measured 1.5" not in plain(build())
    else:
        (tmp_path / "tests" / "test_it.py").unlink()
        (tmp_path / "book" / "measured.json").write_text("{}", "utf-8")
        assert "test_one" not in plain(build())


def test_unknown_claim_in_a_page_is_a_warning(build, tmp_path):
    (tmp_path / "book" / "01_one.md").write_text("# On\n\nSee {claim}`P9`.\n", "utf-8")
    with pytest.raises(AssertionError, match="undefined label: 'claim-p9'"):
        build()
