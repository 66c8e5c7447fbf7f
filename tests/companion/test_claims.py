"""The checks of a cell: what holds, what fails, what is refused, what is printed."""

import json
import math
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from companion import ClaimFailed, check_claims, claim
from companion.claims import CLAIMS_MIME

NAN = float("nan")


@pytest.mark.parametrize(
    ("measured", "bound", "holds"),
    [
        (1.0, {"at_most": 1.0}, True),
        (np.nextafter(1.0, 2.0), {"at_most": 1.0}, False),
        (1.0, {"at_least": 1.0}, True),
        (np.nextafter(1.0, 0.0), {"at_least": 1.0}, False),
        (-0.5, {"within": (-0.55, -0.45)}, True),
        (-0.44, {"within": (-0.55, -0.45)}, False),
        (6, {"equals": 6}, True),
        (5, {"equals": 6}, False),
        (np.int64(6), {"equals": 6}, True),
        (np.array(0.25), {"at_most": 0.5}, True),
        ("a strict saddle", {"equals": "a strict saddle"}, True),
        ("a minimum", {"equals": "a strict saddle"}, False),
        (True, {}, True),
        (np.bool_(False), {}, False),
    ],
)
def test_holds(measured, bound, holds):
    assert claim("X", "a check", measured, **bound).holds is holds


@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf, np.float64("nan")])
@pytest.mark.parametrize(
    "bound", [{"at_most": 1e300}, {"at_least": -1e300}, {"within": (-1, 1)}, {"equals": 0.0}]
)
def test_nan_and_infinity_never_hold(value, bound):
    assert not claim("X", "a check", value, **bound).holds


@pytest.mark.parametrize(
    ("arguments", "options", "message"),
    [
        (("", "c", 1.0), {"at_most": 1}, "id"),
        (("X", " ", 1.0), {"at_most": 1}, "check"),
        (("X", "two\nlines", 1.0), {"at_most": 1}, "check"),
        (("X", "c", 1.0), {}, "exactly one"),
        (("X", "c", 1.0), {"at_most": 1, "at_least": 0}, "exactly one"),
        (("X", "c", True), {"at_most": 1}, "bool"),
        (("X", "c", True), {"equals": 1}, "bool"),
        (("X", "c", np.ones(2)), {"at_most": 1}, r"ndarray of shape \(2,\)"),
        (("X", "c", 1j), {"at_most": 1}, "complex"),
        (("X", "c", None), {"at_most": 1}, "NoneType"),
        (("X", "c", 1.0), {"at_most": NAN}, "at_most"),
        (("X", "c", 1.0), {"at_least": math.inf}, "at_least"),
        (("X", "c", 1.0), {"at_most": "1"}, "at_most"),
        (("X", "c", 1.0), {"at_most": True}, "at_most"),
        (("X", "c", 1.0), {"within": 3}, "within"),
        (("X", "c", 1.0), {"within": (1, 0)}, "within"),
        (("X", "c", 1.0), {"within": (0, NAN)}, "within"),
        (("X", "c", 1.0), {"equals": "1"}, "equals"),
        (("X", "c", "one"), {"equals": 1}, "equals"),
        (("X", "c", 1), {"equals": True}, "equals"),
        (("X", "c", "one"), {"at_most": 1}, "str"),
        (("X", "c", 1.0), {"at_most": 1, "digits": 0}, "digits"),
        (("X", "c", 1.0), {"at_most": 1, "digits": 2.5}, "digits"),
    ],
)
def test_bad_use_is_refused(arguments, options, message):
    with pytest.raises(ValueError, match=message):
        claim(*arguments, **options)


@pytest.mark.parametrize(
    ("measured", "options", "expected", "printed"),
    [
        (3.1e-16, {"at_most": 1e-12}, "≤ 1e-12", "< 1e-12"),
        (0.0, {"at_most": 1e-12}, "≤ 1e-12", "< 1e-12"),
        (-0.25, {"at_most": 1e-12}, "≤ 1e-12", "-0.25"),
        (-1e-17, {"at_least": -1e-12}, "≥ -1e-12", "> -1e-12"),
        (0.5, {"at_least": -1e-12}, "≥ -1e-12", "0.5"),
        (3.1234e-9, {"at_most": 1e-7, "digits": 2}, "≤ 1e-07", "3.1e-09"),
        (0.012345, {"at_most": 0.05}, "≤ 0.05", "0.0123"),
        (1.11439e-3, {"within": (1e-3, 2e-3), "digits": 5}, "in [0.001, 0.002]", "0.0011144"),
        (6, {"equals": 6}, "= 6", "6"),
        (123456, {"at_least": 1000}, "≥ 1000", "123456"),
        (True, {}, "true", "true"),
        (0.4500001, {"at_most": 0.45}, "≤ 0.45", "0.4500001"),
    ],
)
def test_printed_text(measured, options, expected, printed):
    row = claim("X", "a check", measured, **options)
    assert (row.expected, row.measured) == (expected, printed)


def test_round_off_prints_the_same_whatever_its_digits():
    texts = {claim("X", "c", error, at_most=1e-12).measured for error in (0.0, 2e-16, 9e-14)}
    assert texts == {"< 1e-12"}


def test_failure_names_every_failing_row_and_only_those():
    good = claim("S2.lln", "slope", -0.5, within=(-0.6, -0.4))
    bad = claim("S2.gaussian", "largest error", 0.25, at_most=1e-12)
    worse = claim("T3.1", "rank", NAN, equals=6)
    with pytest.raises(ClaimFailed) as failure:
        check_claims(good, bad, worse)
    message = str(failure.value)
    assert "2 of 3" in message
    assert "S2.gaussian: largest error: expected ≤ 1e-12, measured 0.25" in message
    assert "T3.1: rank: expected = 6, measured nan" in message
    assert "S2.lln" not in message
    assert isinstance(failure.value, AssertionError)


def test_failure_survives_optimized_python(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2] / "src"))
    code = (
        "from companion.claims import check_claims, claim\n"
        "check_claims(claim('X', 'c', 1.0, at_most=0.5))"
    )
    run = subprocess.run([sys.executable, "-O", "-c", code], capture_output=True, text=True)
    assert run.returncode != 0
    assert "ClaimFailed" in run.stderr


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ((), "at least one row"),
        ((True,), "bool"),
        ((claim("X", "c", True), claim("X", "c", True)), "twice"),
    ],
)
def test_bad_tables_are_refused(rows, message):
    with pytest.raises(ValueError, match=message):
        check_claims(*rows)


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
    table = check_claims(claim("X.y", "risk of f < risk of g & more", True))
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
        claim("A", "short", 1e-16, at_most=1e-12), claim("A.longer.id", "a longer check", True)
    )
    head, first, second = repr(table).splitlines()
    assert head.index("expected") == first.index("≤") == second.index("true")
    assert head.split() == ["claim", "check", "expected", "measured", "holds"]
