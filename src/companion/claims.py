"""Claims checked in a cell: one line a row, one table a cell, an error when a row fails.

A chapter ends with

>>> from companion import at_most, check_claims, within
>>> check_claims(
...     "S2.gaussian",
...     at_most("largest error of the affine formula", 3e-16, 1e-12),
...     "S2.lln",
...     within("log-log slope of the RMS error", -0.50312, -0.55, -0.45),
... )
claim        check                                expected          measured  holds
S2.gaussian  largest error of the affine formula  ≤ 1e-12           < 1e-12   yes
S2.lln       log-log slope of the RMS error       in [-0.55, -0.45] -0.503    yes

An id heads the rows that follow it. The ids are those of the ledger ``book/claims.yml``. They are
not looked up here, since a chapter run on its own has no ledger beside it: the tests compare them
with it.
"""

from __future__ import annotations

import html
import math
import numbers
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

CLAIMS_MIME = "application/vnd.mixattn.claims+json"
# A bound this small speaks of rounding: the digits of what it bounds change with the machine and
# the number of threads, so the table prints the bound in their place.
ROUND_OFF = 1e-6
DEFAULT_DIGITS = 3

_HEADINGS = ("claim", "check", "expected", "measured", "holds")


class ClaimFailed(AssertionError):  # noqa: N818 (it reads as what happened, as in the tables)
    """A checked claim does not hold.

    It is an `AssertionError` for the tools that tell a failed check from a broken program, but it
    is raised, not asserted: ``python -O`` keeps it.
    """


@dataclass(frozen=True)
class Row:
    """One checked measurement: what the table prints, and whether it holds.

    Attributes
    ----------
    check : str
        What was compared, in a few words.
    expected, measured : str
        The bound and the measured value as printed.
    holds : bool
        Whether the measured value meets the bound.
    """

    check: str
    expected: str
    measured: str
    holds: bool


def at_most(check: str, measured: Any, bound: float, *, digits: int | None = None) -> Row:
    """Compare a measured number with an upper bound, itself allowed.

    Parameters
    ----------
    check : str
        What was compared, in a few words.
    measured : float
        The measured value; NaN and infinite values never hold.
    bound : float
        The finite bound.
    digits : int, optional
        Significant digits printed, 3 unless given. A value that meets a bound of the size of
        rounding (at most 1e-6) is printed as that bound, ``< 1e-12``, unless `digits` is given.

    Returns
    -------
    Row

    Raises
    ------
    ValueError
        If `check` is not one line of text, `measured` is not a real number, `bound` is not finite
        or `digits` is not an integer from 1 to 17.

    Examples
    --------
    >>> at_most("largest error", 3e-16, 1e-12).measured
    '< 1e-12'
    """
    return _interval_row(check, measured, -math.inf, _finite("bound", bound), digits)


def at_least(check: str, measured: Any, bound: float, *, digits: int | None = None) -> Row:
    """Compare a measured number with a lower bound, itself allowed; otherwise as `at_most`.

    Examples
    --------
    >>> at_least("distance from affine", float("nan"), 0.1).holds
    False
    """
    return _interval_row(check, measured, _finite("bound", bound), math.inf, digits)


def within(check: str, measured: Any, low: float, high: float, *, digits: int | None = None) -> Row:
    """Compare a measured number with a closed interval; otherwise as `at_most`.

    Raises
    ------
    ValueError
        As for `at_most`, and unless ``low < high``.

    Examples
    --------
    >>> within("log-log slope", -0.50312, -0.55, -0.45).measured
    '-0.503'
    """
    low, high = _finite("low", low), _finite("high", high)
    if not low < high:
        raise ValueError(f"within: expected low < high, got {low!r} and {high!r}")
    return _interval_row(check, measured, low, high, digits)


def equals(
    check: str, measured: Any, value: int | float | str, *, digits: int | None = None
) -> Row:
    """Compare a measured number or text with the exact value; otherwise as `at_most`.

    Raises
    ------
    ValueError
        As for `at_most`, and unless both are numbers or both are texts.

    Examples
    --------
    >>> equals("rank of the Hessian", 6, 6).holds
    True
    """
    _require_text("check", check)
    _require_digits(digits)
    found, expected = _scalar("measured", measured), _scalar("value", value)
    if isinstance(found, bool) or isinstance(expected, bool):
        raise ValueError(f"equals: expected no bool (use holds), got {found!r} and {expected!r}")
    if isinstance(expected, str) != isinstance(found, str):
        raise ValueError(f"value: expected the kind of the measured {found!r}, got {value!r}")
    if isinstance(expected, str):
        return Row(check, f"= {expected}", found, found == expected)
    meets = found == _finite("value", expected)
    text = _number_text(found, digits or DEFAULT_DIGITS) if meets else repr(found)
    return Row(check, f"= {_bound_text(expected)}", text, meets)


def holds(check: str, statement: Any) -> Row:
    """Record whether a statement is true.

    Parameters
    ----------
    check : str
        The statement, in a few words.
    statement : bool
        Its truth.

    Returns
    -------
    Row

    Raises
    ------
    ValueError
        If `check` is not one line of text or `statement` is not a bool.

    Examples
    --------
    >>> holds("the risk decreases at every step", True).measured
    'true'
    """
    _require_text("check", check)
    truth = _scalar("statement", statement)
    if not isinstance(truth, bool):
        raise ValueError(f"statement: expected a bool, got {statement!r}")
    return Row(check, "true", "true" if truth else "false", truth)


class ClaimTable:
    """The rows of one cell with their ids, all holding; shown as an accessible table."""

    def __init__(self, rows: tuple[tuple[str, Row], ...]) -> None:
        self.rows = rows

    def __repr__(self) -> str:
        """Return the rows as aligned text."""
        return _text_table(self.rows)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {
            "text/html": _html_table(self.rows),
            "text/plain": repr(self),
            CLAIMS_MIME: [{"id": name, **asdict(row)} for name, row in self.rows],
        }


def check_claims(*lines: str | Row) -> ClaimTable:
    """Return the table of the rows, or raise `ClaimFailed` naming each row that fails.

    Parameters
    ----------
    *lines : str or Row
        The ledger's id of a claim, then its rows as `at_most`, `at_least`, `within`, `equals` and
        `holds` make them; then another id with its rows, and so on.

    Returns
    -------
    ClaimTable
        Last in a cell, it is displayed: HTML table, aligned text, and the rows as JSON under
        ``application/vnd.mixattn.claims+json``, from which the ledger page takes its values.

    Raises
    ------
    ClaimFailed
        If a row does not hold.
    ValueError
        If a row has no id before it or an id no row after it, a line is neither, or two rows have
        the same id and check.
    """
    rows = tuple(_rows_with_ids(lines))
    names = [(name, row.check) for name, row in rows]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"check_claims: expected different checks for an id, got {name} twice")
    failing = [f"  {name}: {failure(row)}" for name, row in rows if not row.holds]
    if failing:
        raise ClaimFailed("\n".join([f"{len(failing)} of {len(rows)} checks fail", *failing]))
    return ClaimTable(rows)


def failure(row: Row) -> str:
    """Say what a row compared, as an error message does."""
    return f"{row.check}: expected {row.expected}, measured {row.measured}"


def _rows_with_ids(lines: tuple[str | Row, ...]) -> Iterator[tuple[str, Row]]:
    if not lines:
        raise ValueError("check_claims: expected an id and at least one row, got nothing")
    for line, after in zip(lines, (*lines[1:], None), strict=True):
        if isinstance(line, str):
            _require_text("id", line)
            if not isinstance(after, Row):
                raise ValueError(f"check_claims: expected a row after the id {line!r}")
            name = line
        elif not isinstance(line, Row):
            raise ValueError(
                "check_claims: expected ids and rows made by at_most, at_least, within, equals or "
                f"holds, got {type(line).__name__}"
            )
        elif line is lines[0]:
            raise ValueError("check_claims: expected an id before the first row")
        else:
            yield name, line


def _require_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip() or "\n" in value:
        raise ValueError(f"{name}: expected one line of text, got {value!r}")


def _scalar(name: str, value: Any) -> bool | int | float | str:
    """Return a NumPy or Python scalar as the Python one it stands for."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.ndim == 0):
        value = value.item()
    if isinstance(value, bool | int | float | str):
        return value
    shape = f" of shape {value.shape}" if isinstance(value, np.ndarray) else ""
    raise ValueError(
        f"{name}: expected a bool, a real number or a str, got {type(value).__name__}{shape}"
    )


def _finite(name: str, value: Any) -> float:
    number = _scalar(name, value)
    if isinstance(number, bool | str) or not math.isfinite(number):
        raise ValueError(f"{name}: expected a finite number, got {value!r}")
    return number


def _require_digits(digits: Any) -> None:
    integer = isinstance(digits, numbers.Integral) and not isinstance(digits, bool)
    if digits is not None and not (integer and 1 <= digits <= 17):
        raise ValueError(f"digits: expected an integer from 1 to 17, got {digits!r}")


def _interval_row(check: str, measured: Any, low: float, high: float, digits: int | None) -> Row:
    _require_text("check", check)
    _require_digits(digits)
    value = _scalar("measured", measured)
    if isinstance(value, bool | str):
        raise ValueError(f"measured: expected a real number for a bound, got {value!r}")
    return Row(
        check=check,
        expected=_interval_text(low, high),
        measured=_measured_text(value, low, high, digits),
        holds=math.isfinite(value) and low <= value <= high,
    )


def _number_text(value: float, digits: int) -> str:
    return str(value) if isinstance(value, int) else f"{value:.{digits}g}"


def _bound_text(value: float) -> str:
    """Print a bound as it was written: shortest digits, no superfluous zeros."""
    return str(value) if isinstance(value, int) else f"{value:.12g}"


def _interval_text(low: float, high: float) -> str:
    if low == -math.inf:
        return f"≤ {_bound_text(high)}"
    if high == math.inf:
        return f"≥ {_bound_text(low)}"
    return f"in [{_bound_text(low)}, {_bound_text(high)}]"


def _measured_text(value: float, low: float, high: float, digits: int | None) -> str:
    if not low <= value <= high:
        return repr(value)  # a failing value is for the eye of its author: every digit
    if digits is None:
        if 0 < high <= ROUND_OFF and abs(value) < high:
            return f"< {_bound_text(high)}"
        if -ROUND_OFF <= low < 0 and abs(value) < -low:
            return f"> {_bound_text(low)}"
    return _number_text(value, digits or DEFAULT_DIGITS)


def _cells(name: str, row: Row) -> tuple[str, ...]:
    return name, row.check, row.expected, row.measured, "yes" if row.holds else "no"


def _text_table(rows: tuple[tuple[str, Row], ...]) -> str:
    lines = [_HEADINGS, *(_cells(name, row) for name, row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _html_table(rows: tuple[tuple[str, Row], ...]) -> str:
    head = "".join(f'<th scope="col">{heading}</th>' for heading in _HEADINGS)
    body = []
    for name, row in rows:
        first, *rest = (html.escape(cell) for cell in _cells(name, row))
        # data-label lets the site's style sheet stack the cells on a narrow screen
        cells = "".join(
            f'<td data-label="{heading}">{cell}</td>'
            for heading, cell in zip(_HEADINGS[1:], rest, strict=True)
        )
        body.append(f'<tr><th scope="row">{first}</th>{cells}</tr>')
    return "\n".join(
        [
            '<table class="claims">',
            "<caption>Claims checked by this cell</caption>",
            f"<thead><tr>{head}</tr></thead>",
            "<tbody>",
            *body,
            "</tbody>",
            "</table>",
        ]
    )
