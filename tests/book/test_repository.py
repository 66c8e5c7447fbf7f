"""Buttons, absolute addresses, site map: there when the repository is known, absent otherwise."""

import re
import subprocess
import sys

import pytest
from notebooks import ROOT

NOTEBOOK = """{"cells": [{"cell_type": "markdown", "id": "a", "metadata": {}, "source": "# A chapter"}],
"metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
"description": "A chapter for a test."}, "nbformat": 4, "nbformat_minor": 5}"""
CONFIG = """
import sys
sys.path.insert(0, {ext!r})
extensions = ["myst_nb", "sphinxext.opengraph", "repository", "pages"]
html_theme = "sphinx_book_theme"
html_theme_options = {{"repository_url": "", "repository_branch": "main"}}
nb_execution_mode = "off"
ogp_social_cards = {{"enable": False}}
ogp_enable_meta_description = False
"""
REPOSITORY, SITE = "https://github.com/owner/name", "https://owner.github.io/name/"


def build(folder, **environment):
    """Build a site of one page and one chapter; return the chapter's HTML and the site's folder."""
    source = folder / "source"
    (source / "book").mkdir(parents=True)
    (source / "conf.py").write_text(CONFIG.format(ext=str(ROOT / "book" / "_ext")))
    (source / "index.md").write_text("# Home\n\n```{toctree}\nbook/01_chapter\n```\n")
    (source / "book" / "01_chapter.ipynb").write_text(NOTEBOOK)
    out = folder / "html"
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html", source, out],
        env={"PATH": "/usr/bin:/bin", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return (out / "book" / "01_chapter.html").read_text("utf-8"), out


def test_unknown_repository_leaves_no_button_and_no_dead_link(tmp_path):
    page, out = build(tmp_path)
    assert not re.findall(r"mybinder|colab\.research|github\.com|canonical", page)
    assert not (out / "sitemap.xml").exists()


def test_known_repository_and_site(tmp_path):
    page, out = build(
        tmp_path, MIXATTN_REPOSITORY_URL=f"{REPOSITORY}.git", MIXATTN_SITE_URL=SITE.rstrip("/")
    )
    links = re.findall(r'href="([^"]+)"', page)
    binder = "https://mybinder.org/v2/gh/owner/name/main?urlpath=lab/tree/book/01_chapter.ipynb"
    assert binder in links
    # The branch of copies that know the repository (tools/colab.py), not the chapters' own.
    colab = "https://colab.research.google.com/github/owner/name/blob/colab/book/01_chapter.ipynb"
    assert colab in links
    assert "Report an error" in page
    assert any(link.startswith(f"{REPOSITORY}/issues/new") for link in links)
    assert f'<link rel="canonical" href="{SITE}book/01_chapter.html"' in page
    assert f'<meta property="og:url" content="{SITE}book/01_chapter.html"' in page
    assert '<meta property="og:description" content="A chapter for a test."' in page
    locations = re.findall(r"<loc>(.*?)</loc>", (out / "sitemap.xml").read_text("utf-8"))
    assert locations == [f"{SITE}book/01_chapter.html", f"{SITE}index.html"]


def test_an_address_that_is_no_repository_is_refused(tmp_path):
    with pytest.raises(AssertionError, match=r"https://github\.com/OWNER/NAME"):
        build(tmp_path, MIXATTN_REPOSITORY_URL="https://example.org/x")
