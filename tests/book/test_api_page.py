"""The API pages document every public name of `mixattn`, and every page is listed."""

import re
from pathlib import Path

import yaml

import mixattn

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "book" / "api").glob("*.md"))


def test_every_public_name_is_on_a_page_once():
    text = "\n".join(page.read_text("utf-8") for page in PAGES)
    modules = re.findall(r"^\.\. automodule:: ([\w.]+)$", text, re.M)
    assert len(modules) == len(set(modules))
    for name in mixattn.__all__:
        assert getattr(mixattn, name).__module__ in modules, name


def test_every_page_is_listed():
    index = (ROOT / "book" / "api.md").read_text("utf-8")
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    [api] = [e for part in toc["parts"] for e in part["chapters"] if e["file"] == "book/api"]
    listed = {Path(entry["file"]).name for entry in api["sections"]}
    assert listed == {page.stem for page in PAGES} == set(re.findall(r"\(api/(\w+)\.md\)", index))
