"""The ledger page: every claim, where it stands, how it is checked and what was last measured.

The directive ``{ledger}`` writes the page's counts and one table a chapter. The role
``{claim}`S2.lln` `` links to a claim from any page, and so does the first column of the tables that
the chapters' cells print.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.docutils import SphinxDirective, SphinxRole

from companion.ledger import (
    N_CHAPTERS,
    STATUSES,
    Chapter,
    Claim,
    Ledger,
    anchor,
    read_ledger,
    source_files,
)

ROOT = Path(__file__).resolve().parents[2]
PAGE = "book/ledger"
COLUMNS = {"Claim": 24, "Statement and standing": 50, "Check and last measured value": 26}

#: What an executed check adds to the standing of a claim, "verified here" unless said otherwise.
EXECUTED = {
    "reported": "reproduced here",
    "counterexample": "computed here",
    "seen": "computed here",
}
#: Kinds whose claims are not the paper's own, named on the page.
LABELS = {
    "beyond": "beyond the paper",
    "control": "control: a hypothesis is dropped",
    "erratum": "erratum",
}


class LedgerDirective(SphinxDirective):
    """Write the counts and the tables of the whole ledger."""

    def run(self) -> list[nodes.Node]:
        """Return the page's nodes."""
        book = read_ledger(ROOT)
        labels = self.env.get_domain("std")
        for claim in book.claims:
            labels.anonlabels[claim.anchor] = self.env.docname, claim.anchor
            labels.labels[claim.anchor] = self.env.docname, claim.anchor, claim.id
        numbers = [n for n in range(1, N_CHAPTERS + 1) if any(c.chapter == n for c in book.claims)]
        return [*_summary(book), *(self._section(book, number) for number in numbers)]

    def _section(self, book: Ledger, number: int) -> nodes.section:
        claims = [claim for claim in book.claims if claim.chapter == number]
        section = nodes.section(ids=[f"ledger-chapter-{number}"])
        section += nodes.title("", f"Chapter {number}")
        chapter = book.chapters.get(number)
        if chapter is None:
            section += _paragraph(f"Planned: {_count(len(claims), 'claim')}, no chapter yet.")
        else:
            section += nodes.paragraph("", "", *self._link(chapter))
        section += _table(COLUMNS, [self._row(book, claim) for claim in claims], ["ledger"])
        return section

    def _link(self, chapter: Chapter) -> list[nodes.Node]:
        document = chapter.path.relative_to(ROOT).with_suffix("").as_posix()
        title = self.state.inline_text(chapter.title or document, self.lineno)[0]
        if document not in self.env.found_docs:
            return title
        # not a pending reference: resolving one would flatten the formulas of the title
        address = self.env.app.builder.get_relative_uri(self.env.docname, document)
        return [nodes.reference("", "", *title, internal=True, refuri=address)]

    def _row(self, book: Ledger, claim: Claim) -> nodes.row:
        name = [
            nodes.paragraph("", "", nodes.strong(text=claim.title)),
            nodes.paragraph("", "", nodes.literal(text=claim.id)),
            _paragraph(_first_upper(claim.where)),
        ]
        statement, _ = self.state.inline_text(claim.statement, self.lineno)
        text = [
            nodes.paragraph("", "", *statement),
            nodes.paragraph("", "", nodes.emphasis(text=_standing(book, claim))),
        ]
        return _row([name, text, _evidence(book, claim)], claim.anchor)


class ClaimRole(SphinxRole):
    """Link to a claim of the ledger by its id."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        """Return a reference; an unknown id is a warning of the build."""
        link = addnodes.pending_xref(
            refdomain="std",
            reftype="ref",
            reftarget=anchor(self.text),
            refdoc=self.env.docname,
            refexplicit=True,
            refwarn=True,
        )
        link += nodes.literal(text=self.text)
        return [link], []


def _summary(book: Ledger) -> list[nodes.Node]:
    """Return the counts: all claims, then by how far they are established."""
    executed = [claim for claim in book.claims if book.is_executed(claim)]
    planned = [claim for claim in book.claims if book.is_planned(claim)]
    rows = [row for claim in executed for row in book.checks(claim)]
    by_tests = sum(row in book.measured for row in rows)
    tests = {test for claim in executed for test in book.markers.get(claim.id, ())}
    missing = len(book.claims) - len(executed) - len(planned)
    text = (
        f"{_count(len(book.claims), 'claim')}: {len(executed)} executed, by "
        f"{_count(len(rows) - by_tests, 'checked row')} in the chapters and "
        f"{_count(len(tests), 'test')}, which show {_count(by_tests, 'measured value')}; "
        f"{len(planned)} planned, not executed yet"
        f"{f'; {missing} lacking a check or a test' if missing else ''}."
    )
    lines = []
    for status, words in STATUSES.items():
        claims = [claim for claim in book.claims if claim.status == status]
        if claims:
            done = sum(claim in executed for claim in claims)
            waiting = sum(claim in planned for claim in claims)
            cells = [_first_upper(words), str(len(claims)), str(done), str(waiting)]
            lines.append(_row([[_paragraph(cell)] for cell in cells]))
    columns = {"Standing": 49, "Claims": 17, "Executed": 17, "Planned": 17}
    return [_paragraph(text), _table(columns, lines, ["ledger-counts"])]


def _standing(book: Ledger, claim: Claim) -> str:
    """Return the kind of the claim and how far it is established."""
    if book.is_executed(claim):
        here = EXECUTED.get(claim.status, "verified here")
    else:
        here = "check planned" if book.is_planned(claim) else "not checked here yet"
    kind = LABELS.get(claim.kind, claim.kind)
    return f"{_first_upper(kind)}; {STATUSES[claim.status]}; {here}."


def _evidence(book: Ledger, claim: Claim) -> list[nodes.Node]:
    """Return the checked rows with their values, and the tests."""
    cell: list[nodes.Node] = []
    rows = book.checks(claim)
    if rows:
        texts = [
            f"{row.check}: expected {row.expected}, measured {row.measured}"
            f"{'' if row.holds else ', does not hold'}"
            f"{f' (test {row.place})' if row in book.measured else ''}"
            for row in rows
        ]
        holding = sum(row.holds for row in rows)
        verdict = "all hold" if holding == len(rows) else f"{holding} hold"
        if len(rows) == 1:
            cell.append(_paragraph(texts[0]))
        else:
            cell += _folded(f"{len(rows)} checks, {verdict}", texts)
    else:
        cell.append(_paragraph("Planned" if book.is_planned(claim) else "No check"))
    tests = book.markers.get(claim.id, ())
    if tests:
        cell += _folded(_count(len(tests), "test"), tests, nodes.literal)
    return cell


def _folded(
    summary: str, texts: Sequence[str], kind: type[nodes.TextElement] = nodes.inline
) -> list[nodes.Node]:
    """Return a list under a line that opens it: the page would be too long to read otherwise."""
    items = ([nodes.paragraph("", "", kind(text=text))] for text in texts)
    return [
        nodes.raw("", f"<details><summary>{summary}</summary>", format="html"),
        _bullets(items),
        nodes.raw("", "</details>", format="html"),
    ]


def _table(columns: dict[str, int], rows: Sequence[nodes.row], classes: list[str]) -> nodes.table:
    """Return a table whose first column holds the rows' headers."""
    group = nodes.tgroup(cols=len(columns))
    for number, width in enumerate(columns.values()):
        spec = nodes.colspec(colwidth=width)
        if number == 0:
            spec["stub"] = 1
        group += spec
    head = nodes.thead("", _row([[_paragraph(name)] for name in columns]))
    group += [head, nodes.tbody("", *rows)]
    return nodes.table("", group, classes=[*classes, "colwidths-given"])


def _row(cells: Sequence[Sequence[nodes.Node]], identifier: str | None = None) -> nodes.row:
    row = nodes.row(ids=[identifier] if identifier else [])
    for cell in cells:
        row += nodes.entry("", *cell)
    return row


def _bullets(items: Iterator[Sequence[nodes.Node]]) -> nodes.bullet_list:
    return nodes.bullet_list("", *(nodes.list_item("", *item) for item in items), bullet="-")


def _paragraph(text: str) -> nodes.paragraph:
    return nodes.paragraph("", "", nodes.Text(text))


def _first_upper(text: str) -> str:
    return text[:1].upper() + text[1:]


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


def link_claim_tables(app: Sphinx, docname: str, source: list[str]) -> None:
    """Link the ids in the tables of a chapter's outputs to the ledger.

    Only on the site: a link written by the cell itself would lead nowhere in JupyterLab.
    """
    if not app.env.doc2path(docname).endswith(".ipynb") or PAGE not in app.env.found_docs:
        return
    page = app.builder.get_relative_uri(docname, PAGE)

    def linked(match: re.Match[str]) -> str:
        return f'{match[1]}<a href="{page}#{anchor(match[2])}">{match[2]}</a>{match[3]}'

    notebook = json.loads(source[0])
    for cell in notebook["cells"]:
        for output in cell.get("outputs", []):
            table = "".join(output.get("data", {}).get("text/html", ""))
            if table.startswith('<table class="claims">'):
                output["data"]["text/html"] = re.sub(
                    r'(<th scope="row">)([^<]+)(</th>)', linked, table
                )
    source[0] = json.dumps(notebook)


def outdated(
    app: Sphinx, env: BuildEnvironment, added: set[str], changed: set[str], removed: set[str]
) -> list[str]:
    """Have the page read again when the ledger, a chapter or a test has changed, come or gone."""
    digest = sha256()
    for path in source_files(ROOT):
        digest.update(f"\0{path.relative_to(ROOT).as_posix()}\0".encode() + path.read_bytes())
    before = getattr(env, "ledger_digest", None)
    env.ledger_digest = digest.hexdigest()
    return [PAGE] if before != env.ledger_digest and PAGE in env.found_docs else []


def setup(app: Sphinx) -> dict[str, Any]:
    """Register the directive, the role and what keeps the page up to date."""
    app.add_directive("ledger", LedgerDirective)
    app.add_role("claim", ClaimRole())
    app.connect("env-get-outdated", outdated)
    app.connect("source-read", link_claim_tables, priority=900)  # after the outputs are put in
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
