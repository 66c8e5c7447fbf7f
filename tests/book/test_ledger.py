"""The ledger is true: every claim of an existing chapter has a checked row and a test.

The rules are proved on small made-up ledgers first; the last test applies them to the book.
"""

import json
from pathlib import Path

import pytest
import yaml

from companion import ledger

ROOT = Path(__file__).parents[2]


def entry(**changes):
    made = {
        "id": "P1",
        "title": "A title",
        "where": "Proposition 1",
        "chapter": 1,
        "kind": "identity",
        "statement": "One equals one.",
    } | changes
    return {name: value for name, value in made.items() if value is not None}


def row(**changes):
    return {
        "id": "P1",
        "check": "a check",
        "expected": "≤ 1e-12",
        "measured": "< 1e-12",
        "holds": True,
    } | changes


def write_chapter(root, name, *rows, title="# A chapter"):
    outputs = [
        {"output_type": "stream", "name": "stdout", "text": ["text"]},
        {"output_type": "execute_result", "data": {ledger.CLAIMS_MIME: list(rows)}},
    ]
    cells = [
        {"cell_type": "markdown", "source": [title]},
        {"cell_type": "code", "source": ["check_claims()"], "outputs": outputs},
    ]
    (root / "book" / name).write_text(json.dumps({"cells": cells}), "utf-8")


@pytest.fixture
def tree(tmp_path):
    """A small book that is true: one chapter that exists, one that does not."""
    (tmp_path / "book").mkdir()
    (tmp_path / "tests" / "deep").mkdir(parents=True)
    write_claims(tmp_path, entry(), entry(id="P2", chapter=2))
    write_chapter(tmp_path, "01_one.ipynb", row(), row(check="another check"))
    write_test(tmp_path, '@pytest.mark.claim("P1")\ndef test_one():\n    pass\n')
    return tmp_path


def write_claims(root, *entries):
    (root / "book" / "claims.yml").write_text(yaml.safe_dump(list(entries)), "utf-8")


def write_test(root, text, name="deep/test_one.py"):
    (root / "tests" / name).write_text("import pytest\n\n" + text, "utf-8")


def problems(root):
    return ledger.read_ledger(root).problems()


def test_a_true_book_has_no_problem(tree):
    book = ledger.read_ledger(tree)
    first, second = book.claims
    assert book.problems() == []
    assert book.is_executed(first)
    assert not book.is_planned(first)
    assert book.is_planned(second)
    assert not book.is_executed(second)
    assert [check.check for check in book.checks(first)] == ["a check", "another check"]
    assert book.markers == {"P1": ("deep/test_one.py::test_one",)}
    assert book.chapters[1].title == "A chapter"


def test_claim_without_a_row(tree):
    write_chapter(tree, "01_one.ipynb")
    assert problems(tree) == ["P1: no row of 01_one.ipynb or of a test checks it and holds"]


def test_row_that_does_not_hold(tree):
    write_chapter(tree, "01_one.ipynb", row(), row(check="fails", holds=False))
    assert problems(tree) == ["01_one.ipynb: the row 'fails' of P1 does not hold"]
    book = ledger.read_ledger(tree)
    assert not book.is_executed(book.claims[0])


def test_only_failing_rows(tree):
    write_chapter(tree, "01_one.ipynb", row(holds=False))
    assert problems(tree) == [
        "P1: no row of 01_one.ipynb or of a test checks it and holds",
        "01_one.ipynb: the row 'a check' of P1 does not hold",
    ]


def test_claim_without_a_test(tree):
    write_test(tree, "def test_one():\n    pass\n")
    assert problems(tree) == ["P1: no test is marked with it"]
    book = ledger.read_ledger(tree)
    assert not book.is_executed(book.claims[0])


def test_row_of_an_unknown_claim(tree):
    write_chapter(tree, "01_one.ipynb", row(), row(id="P9"))
    [problem] = problems(tree)
    assert "'a check' of P9: the ledger has no such claim" in problem


def test_row_of_another_chapter(tree):
    write_chapter(tree, "01_one.ipynb", row(), row(id="P2"))
    [problem] = problems(tree)
    assert "of P2: the claim is chapter 2's" in problem


def test_row_in_the_wrong_chapter_does_not_count(tree):
    write_chapter(tree, "01_one.ipynb", row(), row(id="P2"))
    write_chapter(tree, "02_two.ipynb")
    assert "P2: no row of 02_two.ipynb or of a test checks it and holds" in problems(tree)


def test_claim_of_a_chapter_that_has_come_is_no_longer_planned(tree):
    write_chapter(tree, "02_two.ipynb", row(id="P2"))
    assert problems(tree) == ["P2: no test is marked with it"]


def write_measured(root, test, *rows):
    (root / "book" / "measured.json").write_text(json.dumps({test: list(rows)}), "utf-8")


def test_a_test_alone_carries_a_claim_when_it_records_what_it_measures(tree):
    write_chapter(tree, "01_one.ipynb")
    write_measured(tree, "deep/test_one.py::test_one[0.3]", row(measured="0.25"))
    book = ledger.read_ledger(tree)
    [claim, _] = book.claims
    assert book.problems() == []
    assert book.is_executed(claim)
    [check] = book.checks(claim)
    assert (check.measured, check.place) == ("0.25", "deep/test_one.py::test_one[0.3]")
    assert tree / "book" / "measured.json" in ledger.source_files(tree)


@pytest.mark.parametrize(
    ("test", "changes", "problem"),
    [
        ("deep/test_one.py::test_gone", {}, "no such test is marked with it"),
        ("deep/test_one.py::test_one", {"id": "P2"}, "no such test is marked with it"),
        ("deep/test_one.py::test_one", {"id": "P9"}, "the ledger has no such claim"),
        ("deep/test_one.py::test_one", {"holds": False}, "does not hold"),
    ],
)
def test_measured_rows_that_support_nothing(tree, test, changes, problem):
    write_measured(tree, test, row(**changes))
    assert any(test in line and problem in line for line in problems(tree))


def test_a_claim_is_planned_until_it_is_executed(tree):
    write_claims(tree, entry(), entry(id="P3", planned=True))
    book = ledger.read_ledger(tree)
    assert book.problems() == []
    assert book.is_planned(book.claims[1])
    write_chapter(tree, "01_one.ipynb", row(), row(id="P3"))
    assert problems(tree) == []
    write_test(tree, '@pytest.mark.claim("P1", "P3")\ndef test_one():\n    pass\n')
    assert problems(tree) == ["P3: it is executed, so no longer planned"]


def test_rows_of_a_details_page_are_its_chapters(tree):
    write_chapter(tree, "01_one.ipynb")
    write_chapter(tree, "01_one_details.ipynb", row(), title="# Details")
    book = ledger.read_ledger(tree)
    assert book.problems() == []
    assert book.is_executed(book.claims[0])
    assert book.chapters[1].title == "A chapter"
    write_chapter(tree, "01_one_details.ipynb", row(holds=False))
    assert "01_one_details.ipynb: the row 'a check' of P1 does not hold" in problems(tree)
    write_chapter(tree, "02_two_details.ipynb")
    assert "02_two_details.ipynb: it has no chapter" in problems(tree)


def test_mark_of_an_unknown_claim(tree):
    write_test(tree, '@pytest.mark.claim("P1", "P7")\ndef test_one():\n    pass\n')
    assert problems(tree) == ["deep/test_one.py::test_one: the ledger has no claim P7"]


def test_every_way_to_write_a_mark_is_read(tree):
    write_test(
        tree,
        """\
pytestmark = [pytest.mark.claim("A")]

@pytest.mark.claim("B")
class TestGroup:
    @pytest.mark.claim("C", "D")
    def test_inside(self):
        pass

@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.claim("E"))])
@pytest.mark.claim("A")
async def test_outside(x):
    claim("not a mark")
""",
    )
    markers, faults = ledger.read_markers(tree / "tests")
    assert faults == []
    assert markers == {
        "A": ("deep/test_one.py", "deep/test_one.py::test_outside"),
        "B": ("deep/test_one.py::TestGroup",),
        "C": ("deep/test_one.py::TestGroup::test_inside",),
        "D": ("deep/test_one.py::TestGroup::test_inside",),
        "E": ("deep/test_one.py::test_outside",),
    }


@pytest.mark.parametrize("arguments", ["", "NAME", '"P1", NAME', 'id="P1"', "1"])
def test_mark_that_cannot_be_read(tree, arguments):
    write_test(tree, f"@pytest.mark.claim({arguments})\ndef test_one():\n    pass\n")
    [first, *_] = problems(tree)
    assert first.startswith("deep/test_one.py::test_one: a claim mark takes ids")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"id": None}, "id: expected text"),
        ({"title": None}, "title: expected text"),
        ({"where": ""}, "where: expected text"),
        ({"statement": None}, "statement: expected text"),
        ({"kind": None}, "kind: expected text"),
        ({"kind": "theorem"}, "kind: expected one of"),
        ({"kind": "beyond"}, "status: a claim that is not the paper's"),
        ({"status": "sure"}, "status: expected one of"),
        ({"chapter": None}, "chapter: expected an integer"),
        ({"chapter": "1"}, "chapter: expected an integer"),
        ({"chapter": True}, "chapter: expected an integer"),
        ({"chapter": 13}, "chapter: expected an integer"),
        ({"page": 3}, "unknown field 'page'"),
        ({"planned": "yes"}, "planned: expected true"),
        ({"planned": False}, "planned: expected true"),
    ],
)
def test_malformed_entry(tree, changes, message):
    write_claims(tree, entry(), entry(**({"id": "P3", "chapter": 3} | changes)))
    [problem] = problems(tree)
    assert message in problem


def test_repeated_ids_and_addresses(tree):
    write_claims(tree, entry(), entry(), entry(id="p1"))
    assert problems(tree) == [
        "claims.yml, P1: the id appears twice",
        "claims.yml, p1: its address is that of P1",
    ]


@pytest.mark.parametrize("text", ["", "P1: {}", "- P1\n"])
def test_text_that_is_no_ledger(text):
    claims, faults = ledger.parse_claims(text)
    assert claims == ()
    assert len(faults) == 1


def test_two_notebooks_of_one_chapter(tree):
    write_chapter(tree, "01_other.ipynb")
    assert problems(tree) == ["01_other.ipynb: chapter 1 is also 01_one.ipynb"]


def test_status_follows_from_the_kind_unless_given():
    text = yaml.safe_dump(
        [
            entry(id="A", kind="limit"),
            entry(id="B", kind="limit", status="stated"),
            entry(id="C", kind="beyond", status="formal"),
        ]
    )
    claims, faults = ledger.parse_claims(text)
    assert faults == []
    assert [claim.status for claim in claims] == ["proved", "stated", "formal"]


def test_companion_writes_what_the_ledger_reads(tree):
    from companion import at_most, check_claims

    table = check_claims("P1", at_most("largest error", 0.0, 1e-12))
    write_chapter(tree, "01_one.ipynb", *table._repr_mimebundle_()[ledger.CLAIMS_MIME])
    book = ledger.read_ledger(tree)
    assert book.problems() == []
    assert book.checks(book.claims[0])[0].measured == "< 1e-12"


def test_statements_have_balanced_math():
    for claim in ledger.read_ledger(ROOT).claims:
        pieces = claim.statement.split("$")
        assert len(pieces) % 2 == 1, claim.id
        for formula in pieces[1::2]:
            for left, right in ("{}", "[]"):
                assert formula.count(left) == formula.count(right), (claim.id, formula)


def test_the_books_ledger_is_true():
    book = ledger.read_ledger(ROOT)
    assert book.claims
    assert book.problems() == []
