"""The claims ledger as data: the claims, the rows that the chapters check, the tests that carry them.

No Sphinx here: the page (book/_ext/ledger.py) shows what this module reads, and the tests hold the
book to it.
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

from companion.claims import CLAIMS_MIME

N_CHAPTERS = 12
MEASURED = Path("book", "measured.json")

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
    planned: bool = False

    @property
    def anchor(self) -> str:
        """The entry's name in the address of the ledger page."""
        return anchor(self.id)


@dataclass(frozen=True)
class Check:
    """One measured row: of a table in a committed notebook, or recorded by a test."""

    id: str
    check: str
    expected: str
    measured: str
    holds: bool
    place: str
    """The notebook's file, or the test as in the markers, with its parameters."""


@dataclass(frozen=True)
class Chapter:
    """A chapter's notebook and the rows that it and its details page check."""

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
    measured : tuple of Check
        The rows that tests recorded.
    faults : tuple of str
        What could not be read: malformed entries, markers and notebooks.
    """

    claims: tuple[Claim, ...]
    chapters: Mapping[int, Chapter]
    markers: Mapping[str, tuple[str, ...]]
    measured: tuple[Check, ...] = ()
    faults: tuple[str, ...] = ()

    def is_planned(self, claim: Claim) -> bool:
        """Whether the claim is announced as planned or its chapter is still to be written."""
        return claim.planned or claim.chapter not in self.chapters

    def checks(self, claim: Claim) -> tuple[Check, ...]:
        """Return the rows of the claim, in its own chapter first, then in the tests."""
        chapter = self.chapters.get(claim.chapter)
        rows = (*(chapter.checks if chapter else ()), *self.measured)
        return tuple(row for row in rows if row.id == claim.id)

    def is_executed(self, claim: Claim) -> bool:
        """Whether rows check the claim, every one holds, and a test carries it."""
        rows = self.checks(claim)
        return bool(rows) and all(row.holds for row in rows) and claim.id in self.markers

    def problems(self) -> list[str]:
        """Return what keeps the ledger from being true, one line each; empty when it is."""
        found = list(self.faults)
        for claim in self.claims:
            found += self._claim_problems(claim)
        known = {claim.id: claim for claim in self.claims}
        for chapter in self.chapters.values():
            for row in chapter.checks:
                found += _row_problems(row, known)
                if row.id in known and known[row.id].chapter != chapter.number:
                    found.append(f"{_name(row)}: the claim is chapter {known[row.id].chapter}'s")
        for row in self.measured:
            found += _row_problems(row, known)
            if row.place.partition("[")[0] not in self.markers.get(row.id, ()):
                found.append(f"{_name(row)}: no such test is marked with it")
        for name, tests in self.markers.items():
            if name not in known:
                found.append(f"{', '.join(tests)}: the ledger has no claim {name}")
        return found

    def _claim_problems(self, claim: Claim) -> Iterator[str]:
        if claim.planned and self.is_executed(claim):
            yield f"{claim.id}: it is executed, so no longer planned"
        if self.is_planned(claim):
            return
        if not any(row.holds for row in self.checks(claim)):
            place = self.chapters[claim.chapter].path.name
            yield f"{claim.id}: no row of {place} or of a test checks it and holds"
        if claim.id not in self.markers:
            yield f"{claim.id}: no test is marked with it"


def _name(row: Check) -> str:
    return f"{row.place}: the row {row.check!r} of {row.id}"


def _row_problems(row: Check, known: Mapping[str, Claim]) -> Iterator[str]:
    if row.id not in known:
        yield f"{_name(row)}: the ledger has no such claim"
    if not row.holds:
        yield f"{_name(row)} does not hold"


def read_ledger(root: Path) -> Ledger:
    """Read the ledger of the tree at `root`: its claims, chapters, tests and what they measured."""
    claims, entry_faults = parse_claims((root / "book" / "claims.yml").read_text("utf-8"))
    chapters, chapter_faults = read_chapters(root / "book")
    markers, marker_faults = read_markers(root / "tests")
    faults = (*entry_faults, *chapter_faults, *marker_faults)
    return Ledger(claims, chapters, markers, read_measured(root / MEASURED), faults)


def source_files(root: Path) -> list[Path]:
    """Return every file that `read_ledger` reads, in a fixed order."""
    book = root / "book"
    return [
        book / "claims.yml",
        *([root / MEASURED] if (root / MEASURED).exists() else []),
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
        elif name == "planned":
            if name in entry and entry[name] is not True:
                faults.append(f"planned: expected true or nothing, got {entry[name]!r}")
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
    """Return the chapters in `folder` by number, and what is wrong with their files.

    A chapter is a notebook and, beside it, its details page ``NN_name_details.ipynb``.
    """
    chapters: dict[int, Chapter] = {}
    faults: list[str] = []
    paths = sorted(folder.glob("[0-9][0-9]_*.ipynb"))
    for path in paths:
        number = int(path.name[:2])
        if path.stem.endswith("_details"):
            if path.with_stem(path.stem.removesuffix("_details")) not in paths:
                faults.append(f"{path.name}: it has no chapter")
            continue
        if number in chapters:
            faults.append(f"{path.name}: chapter {number} is also {chapters[number].path.name}")
            continue
        details = path.with_stem(f"{path.stem}_details")
        rows = [row for file in (path, details) if file in paths for row in _checks(file)]
        notebook = json.loads(path.read_text("utf-8"))
        chapters[number] = Chapter(number, path, _title(notebook), tuple(rows))
    return chapters, faults


def _title(notebook: Mapping[str, Any]) -> str:
    """Return the first heading of a notebook, without its mark."""
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            heading = re.search(r"^# +(.+?)\s*$", "".join(cell["source"]), re.MULTILINE)
            if heading:
                return heading[1]
    return ""


def _checks(path: Path) -> Iterator[Check]:
    for cell in json.loads(path.read_text("utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            for row in output.get("data", {}).get(CLAIMS_MIME, []):
                yield Check(**row, place=path.name)


def read_measured(path: Path) -> tuple[Check, ...]:
    """Return the rows that the tests recorded (``measured`` in tests/conftest.py)."""
    recorded = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return tuple(Check(**row, place=test) for test, rows in recorded.items() for row in rows)


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
