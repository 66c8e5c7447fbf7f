"""The claims ledger as data: the claims, the rows that the chapters check, the tests that carry them.

No Sphinx here: the page (ledger.py) shows what this module reads, and the tests hold the book to it.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import yaml

CLAIMS_MIME = "application/vnd.mixattn.claims+json"
N_CHAPTERS = 12

#: Each kind, and how far a claim of that kind is established when its entry gives no status.
KINDS = {
    "identity": "proved",
    "limit": "proved",
    "iff": "proved",
    "inequality": "proved",
    "rate": "proved",
    "existence": "proved",
    "impossibility": "proved",
    "invariance": "proved",
    "observation": "reported",
    "control": "counterexample",
    "erratum": "corrected",
    "beyond": "",  # every claim of the book's own says for itself
}

#: How far a claim is established, by whom, in the page's words.
STATUSES = {
    "proved": "proved in the paper",
    "stated": "stated in the paper without a proof",
    "reported": "seen in the paper's experiments",
    "corrected": "misprinted in the paper, corrected here",
    "counterexample": "counterexample given here",
    "derived": "proved in this book",
    "formal": "formal argument of this book",
    "seen": "numerical evidence only, of this book",
}


def anchor(claim_id: str) -> str:
    """Return a claim's name in the address of the ledger page: ``S2.lln`` is at ``#claim-s2-lln``."""
    return "claim-" + re.sub(r"[^a-z0-9]+", "-", claim_id.lower())


@dataclass(frozen=True)
class Claim:
    """One entry of the ledger; the fields are described at the head of book/claims.yml."""

    id: str
    title: str
    where: str
    chapter: int
    kind: str
    statement: str
    status: str

    @property
    def anchor(self) -> str:
        """The entry's name in the address of the ledger page."""
        return anchor(self.id)


@dataclass(frozen=True)
class Check:
    """One row of a table that a chapter's executed cell left in the committed notebook."""

    id: str
    check: str
    expected: str
    measured: str
    holds: bool


@dataclass(frozen=True)
class Chapter:
    """A chapter's notebook and the rows that it checks."""

    number: int
    path: Path
    title: str
    checks: tuple[Check, ...]


@dataclass(frozen=True)
class Ledger:
    """The claims with all that is said to support them.

    Attributes
    ----------
    claims : tuple of Claim
    chapters : mapping of int to Chapter
        The chapters that exist.
    markers : mapping of str to tuple of str
        For each id, the tests marked with it, as ``file.py::test``.
    faults : tuple of str
        What could not be read: malformed entries, markers and notebooks.
    """

    claims: tuple[Claim, ...]
    chapters: Mapping[int, Chapter]
    markers: Mapping[str, tuple[str, ...]]
    faults: tuple[str, ...] = ()

    def is_planned(self, claim: Claim) -> bool:
        """Whether the claim's chapter is still to be written."""
        return claim.chapter not in self.chapters

    def checks(self, claim: Claim) -> tuple[Check, ...]:
        """Return the rows of the claim in its own chapter."""
        if self.is_planned(claim):
            return ()
        return tuple(c for c in self.chapters[claim.chapter].checks if c.id == claim.id)

    def is_executed(self, claim: Claim) -> bool:
        """Whether the claim's chapter checks it, every row holds, and a test carries it."""
        rows = self.checks(claim)
        return bool(rows) and all(row.holds for row in rows) and claim.id in self.markers

    def problems(self) -> list[str]:
        """Return what keeps the ledger from being true, one line each; empty when it is."""
        found = list(self.faults)
        known = {claim.id: claim for claim in self.claims}
        for claim in self.claims:
            if self.is_planned(claim):
                continue
            place = self.chapters[claim.chapter].path.name
            if not any(row.holds for row in self.checks(claim)):
                found.append(f"{claim.id}: no row of {place} checks it and holds")
            if claim.id not in self.markers:
                found.append(f"{claim.id}: no test is marked with it")
        for chapter in self.chapters.values():
            for row in chapter.checks:
                place = f"{chapter.path.name}: the row {row.check!r} of {row.id}"
                if row.id not in known:
                    found.append(f"{place}: the ledger has no such claim")
                elif known[row.id].chapter != chapter.number:
                    found.append(f"{place}: the claim is chapter {known[row.id].chapter}'s")
                if not row.holds:
                    found.append(f"{place} does not hold")
        for name, tests in self.markers.items():
            if name not in known:
                found.append(f"{', '.join(tests)}: the ledger has no claim {name}")
        return found


def read_ledger(root: Path) -> Ledger:
    """Read the ledger of the tree at `root`: book/claims.yml, book/NN_*.ipynb and tests/."""
    claims, entry_faults = parse_claims((root / "book" / "claims.yml").read_text("utf-8"))
    chapters, chapter_faults = read_chapters(root / "book")
    markers, marker_faults = read_markers(root / "tests")
    return Ledger(claims, chapters, markers, (*entry_faults, *chapter_faults, *marker_faults))


def source_files(root: Path) -> list[Path]:
    """Return every file that `read_ledger` reads, in a fixed order."""
    book = root / "book"
    return [
        book / "claims.yml",
        *sorted(book.glob("[0-9][0-9]_*.ipynb")),
        *_test_files(root / "tests"),
    ]


def parse_claims(text: str) -> tuple[tuple[Claim, ...], list[str]]:
    """Return the well-formed claims of the ledger's YAML text, and what is wrong with the others."""
    entries = yaml.safe_load(text)
    if not isinstance(entries, list):
        return (), [f"claims.yml: expected a list of entries, got {type(entries).__name__}"]
    claims: list[Claim] = []
    faults: list[str] = []
    for number, entry in enumerate(entries, start=1):
        name = entry.get("id") if isinstance(entry, dict) else None
        wrong = _entry_faults(entry)
        if not wrong and any(claim.id == name for claim in claims):
            wrong = ["the id appears twice"]
        if not wrong:
            claim = Claim(**{"status": KINDS[entry["kind"]], **entry})
            twin = next((other for other in claims if other.anchor == claim.anchor), None)
            if twin is None:
                claims.append(claim)
            else:
                wrong = [f"its address is that of {twin.id}"]
        faults += [f"claims.yml, {name or f'entry {number}'}: {fault}" for fault in wrong]
    return tuple(claims), faults


def _entry_faults(entry: Any) -> list[str]:
    if not isinstance(entry, dict):
        return [f"expected a mapping, got {entry!r}"]
    wanted = [field.name for field in fields(Claim)]
    faults = [f"unknown field {name!r}" for name in entry if name not in wanted]
    for name in wanted:
        if name == "chapter":
            chapter = entry.get(name)
            if type(chapter) is not int or not 1 <= chapter <= N_CHAPTERS:
                faults.append(
                    f"chapter: expected an integer from 1 to {N_CHAPTERS}, got {chapter!r}"
                )
        elif name == "status":
            if name in entry and entry[name] not in STATUSES:
                faults.append(f"status: expected one of {list(STATUSES)}, got {entry[name]!r}")
        elif not isinstance(entry.get(name), str) or not entry[name].strip():
            faults.append(f"{name}: expected text, got {entry.get(name)!r}")
        elif name == "kind" and entry[name] not in KINDS:
            faults.append(f"kind: expected one of {list(KINDS)}, got {entry[name]!r}")
    if entry.get("kind") == "beyond" and "status" not in entry:
        faults.append("status: a claim that is not the paper's must say how far it is established")
    return faults


def read_chapters(folder: Path) -> tuple[dict[int, Chapter], list[str]]:
    """Return the chapters in `folder` by number, and what is wrong with their files."""
    chapters: dict[int, Chapter] = {}
    faults: list[str] = []
    for path in sorted(folder.glob("[0-9][0-9]_*.ipynb")):
        number = int(path.name[:2])
        if number in chapters:
            faults.append(f"{path.name}: chapter {number} is also {chapters[number].path.name}")
            continue
        notebook = json.loads(path.read_text("utf-8"))
        chapters[number] = Chapter(number, path, _title(notebook), tuple(_checks(notebook)))
    return chapters, faults


def _title(notebook: Mapping[str, Any]) -> str:
    """Return the first heading of a notebook, without its mark."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            heading = re.search(r"^# +(.+?)\s*$", "".join(cell["source"]), re.MULTILINE)
            if heading:
                return heading[1]
    return ""


def _checks(notebook: Mapping[str, Any]) -> Iterator[Check]:
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            for row in output.get("data", {}).get(CLAIMS_MIME, []):
                yield Check(**row)


def _test_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def read_markers(folder: Path) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """Return the tests by the claims that they are marked with, and the marks that cannot be read.

    The tests are parsed, not imported: the page can be built where the test tools are not installed.
    """
    markers: dict[str, tuple[str, ...]] = {}
    faults: list[str] = []
    for path in _test_files(folder):
        place = path.relative_to(folder).as_posix()
        for test, call in _claim_marks(ast.parse(path.read_text("utf-8")), ""):
            name = f"{place}::{test}" if test else place
            ids = [_text(argument) for argument in call.args]
            if not ids or None in ids or call.keywords:
                faults.append(f"{name}: a claim mark takes ids written out as texts, at least one")
                continue
            for claim_id in ids:
                tests = markers.get(claim_id, ())
                if name not in tests:
                    markers[claim_id] = (*tests, name)
    return markers, faults


def _claim_marks(node: ast.AST, inside: str) -> Iterator[tuple[str, ast.Call]]:
    """Yield each ``pytest.mark.claim(...)`` under `node` with the function or class that holds it."""
    for child in ast.iter_child_nodes(node):
        named = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if (
            isinstance(child, ast.Call)
            and isinstance(child.func, ast.Attribute)
            and child.func.attr == "claim"
            and isinstance(child.func.value, ast.Attribute)
            and child.func.value.attr == "mark"
        ):
            yield inside, child
        yield from _claim_marks(child, f"{inside}::{child.name}".lstrip(":") if named else inside)


def _text(node: ast.expr) -> str | None:
    """Return the string that a node writes out, if it does."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None
