"""Claims checked in a cell: one row a measurement, one table a cell, an error when a row fails.

A chapter ends each section of claims with

>>> from companion import check_claims, claim
>>> check_claims(
...     claim("S2.gaussian", "largest error of the affine formula", 3e-16, at_most=1e-12),
...     claim("S2.lln", "log-log slope of the RMS error", -0.50312, within=(-0.55, -0.45)),
... )
claim        check                                expected          measured  holds
S2.gaussian  largest error of the affine formula  ≤ 1e-12           < 1e-12   yes
S2.lln       log-log slope of the RMS error       in [-0.55, -0.45] -0.503    yes

The ids are those of the ledger ``book/claims.yml``. They are not looked up here, since a chapter
run on its own has no ledger beside it: the tests compare them with it.
"""

from __future__ import annotations

import html
import math
import numbers
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
class ClaimRow:
    """One checked measurement: what the table prints, and whether it holds.

    Attributes
    ----------
    id : str
        The ledger's id of the claim.
    check : str
        What was compared, in a few words.
    expected, measured : str
        The bound and the measured value as printed.
    holds : bool
        Whether the measured value meets the bound.
    """

    id: str
    check: str
    expected: str
    measured: str
    holds: bool


def claim(
    id: str,
    check: str,
    measured: Any,
    *,
    at_most: float | None = None,
    at_least: float | None = None,
    within: tuple[float, float] | None = None,
    equals: int | float | str | None = None,
    digits: int | None = None,
) -> ClaimRow:
    """Compare a measured value with the one bound that the claim sets.

    Parameters
    ----------
    id : str
        The ledger's id of the claim, for instance ``"P2.1.general"``.
    check : str
        What was compared, in a few words.
    measured : bool, number or str
        The measured value. A bool is the truth of a statement and takes no bound; a number takes
        exactly one bound; a str takes `equals`. NaN and infinite values never hold.
    at_most, at_least : float, optional
        Upper or lower bound, itself allowed.
    within : (float, float), optional
        Closed interval.
    equals : int, float or str, optional
        The exact value.
    digits : int, optional
        Significant digits printed, 3 unless given. A value that meets a bound of the size of
        rounding (at most 1e-6) is printed as that bound, ``< 1e-12``, unless `digits` is given.

    Returns
    -------
    ClaimRow

    Raises
    ------
    ValueError
        If the id or the check is empty, the value is not a scalar, the bounds are not exactly one,
        not finite or out of order, or a bool comes with a bound.

    Examples
    --------
    >>> claim("T3.1", "rank of the Hessian", 6, equals=6).holds
    True
    >>> claim("S2.gaussian.control", "distance from affine", float("nan"), at_least=0.1).holds
    False
    """
    _require_text("id", id)
    _require_text("check", check)
    if digits is not None and (not _is_integer(digits) or not 1 <= digits <= 17):
        raise ValueError(f"digits: expected an integer from 1 to 17, got {digits!r}")
    value = _scalar("measured", measured)
    bounds = {
        name: bound
        for name, bound in (
            ("at_most", at_most),
            ("at_least", at_least),
            ("within", within),
            ("equals", equals),
        )
        if bound is not None
    }
    if isinstance(value, bool):
        if bounds:
            raise ValueError(
                f"measured: a bool is the truth of a statement and takes no bound, got {bounds}"
            )
        return ClaimRow(id, check, "true", "true" if value else "false", value)
    if len(bounds) != 1:
        raise ValueError(
            "expected exactly one of at_most, at_least, within, equals for the measured "
            f"{value!r}, got {bounds or 'none'}"
        )
    [(kind, bound)] = bounds.items()
    if kind == "equals":
        return _equality_row(id, check, value, bound, digits)
    if isinstance(value, str):
        raise ValueError(f"measured: a str takes only the bound equals, got {kind}={bound!r}")
    low, high = _interval(kind, bound)
    return ClaimRow(
        id=id,
        check=check,
        expected=_interval_text(low, high),
        measured=_measured_text(value, low, high, digits),
        holds=math.isfinite(value) and low <= value <= high,
    )


class ClaimTable:
    """The rows of one cell, all holding; shown as an accessible table."""

    def __init__(self, rows: tuple[ClaimRow, ...]) -> None:
        self.rows = rows

    def __repr__(self) -> str:
        """Return the rows as aligned text."""
        return _text_table(self.rows)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        return {
            "text/html": _html_table(self.rows),
            "text/plain": repr(self),
            CLAIMS_MIME: [asdict(row) for row in self.rows],
        }


def check_claims(*rows: ClaimRow) -> ClaimTable:
    """Return the table of the rows, or raise `ClaimFailed` naming each row that fails.

    Parameters
    ----------
    *rows : ClaimRow
        What `claim` returned; an id may come with several checks.

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
        If there is no row, an argument is not a row, or two rows have the same id and check.
    """
    if not rows:
        raise ValueError("check_claims: expected at least one row, got none")
    for row in rows:
        if not isinstance(row, ClaimRow):
            raise ValueError(
                f"check_claims: expected rows made by claim(...), got {type(row).__name__}"
            )
    names = [(row.id, row.check) for row in rows]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"check_claims: expected different checks for an id, got {name} twice")
    failing = [row for row in rows if not row.holds]
    if failing:
        lines = [
            f"  {row.id}: {row.check}: expected {row.expected}, measured {row.measured}"
            for row in failing
        ]
        raise ClaimFailed("\n".join([f"{len(failing)} of {len(rows)} checks fail", *lines]))
    return ClaimTable(rows)


def _require_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value.strip() or "\n" in value:
        raise ValueError(f"{name}: expected one line of text, got {value!r}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


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


def _interval(kind: str, bound: Any) -> tuple[float, float]:
    if kind == "at_most":
        return -math.inf, _finite("at_most", bound)
    if kind == "at_least":
        return _finite("at_least", bound), math.inf
    if not isinstance(bound, tuple | list) or len(bound) != 2:
        raise ValueError(f"within: expected a pair (low, high), got {bound!r}")
    low, high = (_finite("within", end) for end in bound)
    if not low < high:
        raise ValueError(f"within: expected low < high, got {bound!r}")
    return low, high


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


def _equality_row(
    id: str,
    check: str,
    value: int | float | str,
    bound: Any,
    digits: int | None,
) -> ClaimRow:
    expected = _scalar("equals", bound)
    if isinstance(expected, bool) or isinstance(expected, str) != isinstance(value, str):
        raise ValueError(f"equals: expected the kind of the measured {value!r}, got {bound!r}")
    if isinstance(expected, str):
        return ClaimRow(id, check, f"= {expected}", str(value), value == expected)
    holds = value == _finite("equals", expected)
    text = _number_text(value, digits or DEFAULT_DIGITS) if holds else repr(value)
    return ClaimRow(id, check, f"= {_bound_text(expected)}", text, holds)


def _cells(row: ClaimRow) -> tuple[str, ...]:
    return row.id, row.check, row.expected, row.measured, "yes" if row.holds else "no"


def _text_table(rows: tuple[ClaimRow, ...]) -> str:
    lines = [_HEADINGS, *(_cells(row) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _html_table(rows: tuple[ClaimRow, ...]) -> str:
    head = "".join(f'<th scope="col">{heading}</th>' for heading in _HEADINGS)
    body = []
    for row in rows:
        first, *rest = (html.escape(cell) for cell in _cells(row))
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
