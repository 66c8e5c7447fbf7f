"""The built site, read without a browser: self-contained, linked, described, nothing leaked."""

import os
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml
from bs4 import BeautifulSoup
from notebooks import ROOT

SITE = ROOT / "_build" / "html"
PAGES = sorted(path.relative_to(SITE).as_posix() for path in SITE.rglob("*.html"))
PAGES = [page for page in PAGES if not page.startswith(("_static/", "_sources/"))]
REDIRECT = "index.html"  # the front address only leads to the first page

#: Elements through which a browser fetches something by itself.
FETCHED = {
    "script": "src",
    "img": "src",
    "iframe": "src",
    "source": "src",
    "video": "src",
    "audio": "src",
    "embed": "src",
    "object": "data",
}


@cache
def soup(page):
    return BeautifulSoup((SITE / page).read_text("utf-8"), "html.parser")


@cache
def anchors(page):
    return {tag["id"] for tag in soup(page).find_all(id=True)} | {
        tag["name"] for tag in soup(page).find_all("a", attrs={"name": True})
    }


@pytest.fixture(params=PAGES or ["index.html"])
def page(request, site):
    return request.param


def test_page_fetches_nothing_from_another_machine(page):
    for name, attribute in FETCHED.items():
        for tag in soup(page).find_all(name):
            assert not urlsplit(tag.get(attribute, "")).netloc, tag
    for tag in soup(page).find_all("link"):
        if set(tag.get("rel", [])) & {
            "stylesheet",
            "icon",
            "preload",
            "preconnect",
            "dns-prefetch",
        }:
            assert not urlsplit(tag["href"]).netloc, tag
    for style in [*soup(page).find_all("style"), *soup(page).find_all(style=True)]:
        text = style.get("style") or style.string or ""
        assert not re.search(r"(?:url\(|@import)\s*['\"]?(?:https?:)?//", text), text


def test_style_sheets_fetch_nothing_from_another_machine(site):
    outside = re.compile(r"(?:url\(|@import\s+)\s*['\"]?(?:https?:)?//[^)'\"]*")
    for sheet in site.rglob("*.css"):
        assert not outside.findall(sheet.read_text("utf-8", errors="replace")), sheet


def test_links_and_anchors_of_the_site_resolve(page):
    broken = []
    for tag in soup(page).find_all(["a", "link", "script", "img"]):
        target = urlsplit(tag.get("href") or tag.get("src") or "")
        if target.scheme or target.netloc or not (target.path or target.fragment):
            continue
        file = os.path.normpath(os.path.join(os.path.dirname(page), unquote(target.path)))
        file = page if not target.path else file
        if not (SITE / file).is_file():
            broken.append(f"{target.path}: no such file")
        elif (
            target.fragment
            and file.endswith(".html")
            and unquote(target.fragment) not in anchors(file)
        ):
            broken.append(f"{file}#{target.fragment}: no such anchor")
    assert not broken


def test_every_image_has_an_alternative_text(page):
    assert not [tag for tag in soup(page).find_all("img") if tag.get("alt") is None]
    assert not [tag for tag in soup(page).select("article figure img") if len(tag["alt"]) < 20]


def test_page_has_language_title_and_description(page):
    if page == REDIRECT:
        return
    assert soup(page).html["lang"] == "en"
    assert soup(page).title.string.strip()
    found = soup(page).find_all("meta", attrs={"name": "description"})
    assert len(found) == 1
    assert 20 <= len(found[0]["content"]) <= 300
    assert len(soup(page).select("article h1")) == 1 or page == "search.html"


def test_descriptions_differ():
    texts = [
        soup(page).find("meta", attrs={"name": "description"})["content"]
        for page in PAGES
        if page != REDIRECT
    ]
    assert len(set(texts)) == len(texts)


def test_only_listed_pages_are_published(site):
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    entries = [entry for part in toc["parts"] for entry in part["chapters"]]
    entries += [below for entry in entries for below in entry.get("sections", [])]
    listed = {toc["root"]} | {entry["file"] for entry in entries}
    generated = {"index", "genindex", "search", "py-modindex", "prf-prf"}
    published = {page.removesuffix(".html") for page in PAGES}
    assert published - generated == listed
    sources = {
        path.relative_to(site / "_sources").with_suffix("").as_posix()
        for path in (site / "_sources").rglob("*")
        if path.is_file()
    }
    assert sources <= listed


def test_no_path_of_this_machine_is_published(site):
    needles = [str(ROOT).encode(), str(Path.home()).encode() + b"/"]
    leaks = [
        path.relative_to(site).as_posix()
        for path in site.rglob("*")
        if path.is_file() and any(needle in path.read_bytes() for needle in needles)
    ]
    assert leaks == []


def test_chapters_with_an_explorer_carry_its_state(site):
    for page in PAGES:
        views = soup(page).find_all("script", type="application/vnd.jupyter.widget-view+json")
        states = soup(page).find_all("script", type="application/vnd.jupyter.widget-state+json")
        assert len(states) == bool(views), page
