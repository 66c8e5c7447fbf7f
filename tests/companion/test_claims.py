"""The checks of a cell: what holds, what fails, what is refused, what is printed."""

import json
import math
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from companion import ClaimFailed, at_least, at_most, check_claims, equals, holds, within
from companion.claims import CLAIMS_MIME

NAN = float("nan")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        (at_most("c", 1.0, 1.0), True),
        (at_most("c", np.nextafter(1.0, 2.0), 1.0), False),
        (at_least("c", 1.0, 1.0), True),
        (at_least("c", np.nextafter(1.0, 0.0), 1.0), False),
        (within("c", -0.5, -0.55, -0.45), True),
        (within("c", -0.44, -0.55, -0.45), False),
        (equals("c", 6, 6), True),
        (equals("c", 5, 6), False),
        (equals("c", np.int64(6), 6), True),
        (at_most("c", np.array(0.25), 0.5), True),
        (equals("c", "a strict saddle", "a strict saddle"), True),
        (equals("c", "a minimum", "a strict saddle"), False),
        (holds("c", True), True),
        (holds("c", np.bool_(False)), False),
    ],
)
def test_holds(row, expected):
    assert row.holds is expected


@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf, np.float64("nan")])
@pytest.mark.parametrize(
    ("kind", "bounds"),
    [(at_most, (1e300,)), (at_least, (-1e300,)), (within, (-1, 1)), (equals, (0.0,))],
)
def test_nan_and_infinity_never_hold(value, kind, bounds):
    assert not kind("a check", value, *bounds).holds


@pytest.mark.parametrize(
    ("kind", "arguments", "options", "message"),
    [
        (at_most, (" ", 1.0, 1), {}, "check"),
        (holds, ("two\nlines", True), {}, "check"),
        (at_most, ("c", True, 1), {}, "measured: expected a real number for a bound, got True"),
        (equals, ("c", True, 1), {}, "bool"),
        (holds, ("c", 1.0), {}, "statement: expected a bool, got 1.0"),
        (holds, ("c", "yes"), {}, "statement"),
        (at_most, ("c", np.ones(2), 1), {}, r"ndarray of shape \(2,\)"),
        (at_most, ("c", 1j, 1), {}, "complex"),
        (at_most, ("c", None, 1), {}, "NoneType"),
        (at_most, ("c", 1.0, NAN), {}, "bound"),
        (at_least, ("c", 1.0, math.inf), {}, "bound"),
        (at_most, ("c", 1.0, "1"), {}, "bound"),
        (at_most, ("c", 1.0, True), {}, "bound"),
        (within, ("c", 1.0, 1, 0), {}, "low < high"),
        (within, ("c", 1.0, 0, NAN), {}, "high"),
        (equals, ("c", 1.0, "1"), {}, "value"),
        (equals, ("c", "one", 1), {}, "value"),
        (equals, ("c", 1, True), {}, "bool"),
        (at_most, ("c", "one", 1), {}, "real number"),
        (at_most, ("c", 1.0, 1), {"digits": 0}, "digits"),
        (equals, ("c", 1.0, 1), {"digits": 2.5}, "digits"),
    ],
)
def test_bad_use_is_refused(kind, arguments, options, message):
    with pytest.raises(ValueError, match=message):
        kind(*arguments, **options)


@pytest.mark.parametrize(
    ("row", "expected", "printed"),
    [
        (at_most("c", 3.1e-16, 1e-12), "≤ 1e-12", "< 1e-12"),
        (at_most("c", 0.0, 1e-12), "≤ 1e-12", "< 1e-12"),
        (at_most("c", -0.25, 1e-12), "≤ 1e-12", "-0.25"),
        (at_least("c", -1e-17, -1e-12), "≥ -1e-12", "> -1e-12"),
        (at_least("c", 0.5, -1e-12), "≥ -1e-12", "0.5"),
        (at_most("c", 3.1234e-9, 1e-7, digits=2), "≤ 1e-07", "3.1e-09"),
        (at_most("c", 0.012345, 0.05), "≤ 0.05", "0.0123"),
        (within("c", 1.11439e-3, 1e-3, 2e-3, digits=5), "in [0.001, 0.002]", "0.0011144"),
        (equals("c", 6, 6), "= 6", "6"),
        (at_least("c", 123456, 1000), "≥ 1000", "123456"),
        (holds("c", True), "true", "true"),
        (at_most("c", 0.4500001, 0.45), "≤ 0.45", "0.4500001"),
    ],
)
def test_printed_text(row, expected, printed):
    assert (row.expected, row.measured) == (expected, printed)


def test_round_off_prints_the_same_whatever_its_digits():
    texts = {at_most("c", error, 1e-12).measured for error in (0.0, 2e-16, 9e-14)}
    assert texts == {"< 1e-12"}


def test_failure_names_every_failing_row_and_only_those():
    with pytest.raises(ClaimFailed) as failure:
        check_claims(
            "S2.lln",
            within("slope", -0.5, -0.6, -0.4),
            "S2.gaussian",
            at_most("largest error", 0.25, 1e-12),
            "T3.1",
            equals("rank", NAN, 6),
        )
    message = str(failure.value)
    assert "2 of 3" in message
    assert "S2.gaussian: largest error: expected ≤ 1e-12, measured 0.25" in message
    assert "T3.1: rank: expected = 6, measured nan" in message
    assert "S2.lln" not in message
    assert isinstance(failure.value, AssertionError)


def test_failure_survives_optimized_python(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    code = (
        "from companion.claims import at_most, check_claims\n"
        "check_claims('X', at_most('c', 1.0, 0.5))"
    )
    run = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True)
    assert run.returncode != 0
    assert "ClaimFailed" in run.stderr


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ((), "at least one row"),
        (("X", True), "expected a row after the id 'X'"),
        (("X", holds("c", True), True), "got bool"),
        (("X", holds("c", True), holds("c", True)), "twice"),
        (("X", holds("c", True), "Y", holds("d", True), "X", holds("c", True)), "twice"),
        ((holds("c", True), "X"), "an id before the first row"),
        (("X", "Y", holds("c", True)), "expected a row after the id 'X'"),
        (("X", holds("c", True), "Y"), "expected a row after the id 'Y'"),
        (("", holds("c", True)), "id: expected one line of text"),
    ],
)
def test_bad_tables_are_refused(lines, message):
    with pytest.raises(ValueError, match=message):
        check_claims(*lines)


def test_an_id_heads_the_rows_that_follow_it_and_may_come_back():
    rows = [holds(name, True) for name in "abcd"]
    table = check_claims("X", rows[0], rows[1], "Y", rows[2], "X", rows[3])
    listed = [(row["id"], row["check"]) for row in table._repr_mimebundle_()[CLAIMS_MIME]]
    assert listed == [("X", "a"), ("X", "b"), ("Y", "c"), ("X", "d")]


class TableReader(HTMLParser):
    """Collects the tags, and the cells' texts."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data):
        if data.strip():
            self.texts.append(data.strip())


def test_table_is_accessible_and_escaped():
    table = check_claims("X.y", holds("risk of f < risk of g & more", True))
    bundle = table._repr_mimebundle_()
    page = TableReader(bundle["text/html"])
    assert sum(tag == "caption" for tag, _ in page.tags) == 1
    headings = [attrs["scope"] for tag, attrs in page.tags if tag == "th"]
    assert headings == ["col"] * 5 + ["row"]
    assert "risk of f < risk of g & more" in page.texts
    assert page.texts[-1] == "yes"
    assert bundle[CLAIMS_MIME] == [
        {
            "id": "X.y",
            "check": "risk of f < risk of g & more",
            "expected": "true",
            "measured": "true",
            "holds": True,
        }
    ]
    json.dumps(bundle)


def test_text_columns_are_aligned():
    table = check_claims(
        "A", at_most("short", 1e-16, 1e-12), "A.longer.id", holds("a longer check", True)
    )
    head, first, second = repr(table).splitlines()
    assert head.index("expected") == first.index("≤") == second.index("true")
    assert head.split() == ["claim", "check", "expected", "measured", "holds"]
