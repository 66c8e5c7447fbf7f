"""Sums and products carried beyond double precision.

On the optimal families f - f* is a difference of numbers that agree in all their digits. What is
left is computed here from the floats as they were given: products as pairs (rounded value, rounding
error), sums by `math.fsum`, which rounds once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from decimal import Decimal, localcontext
from typing import Any

import numpy as np

from mixattn._checks import FloatArray

Pair = tuple[float, float]

# Veltkamp's constant: halves the digits of a float
SPLITTER = 2.0**27 + 1
DIGITS = 40
# sigma is 0 or 1 beyond, in twice the digits of a float
SATURATED = 800.0


def product(a: Any, b: Any) -> tuple[Any, Any]:
    """Return the rounded product and its error, a float too (Dekker); elementwise for arrays."""
    rounded = a * b
    a_high, b_high = _leading_half(a), _leading_half(b)
    a_low, b_low = a - a_high, b - b_high
    error = ((a_high * b_high - rounded) + a_high * b_low + a_low * b_high) + a_low * b_low
    return rounded, error


def _leading_half(a: Any) -> Any:
    scaled = SPLITTER * a
    return scaled - (scaled - a)


def pair_product(a: Pair, b: float) -> Pair:
    """Return the product of a pair and a float."""
    rounded, error = product(a[0], b)
    return pair_sum([rounded, error, a[1] * b])


def dot_terms(a: FloatArray, b: FloatArray) -> Any:
    """Return floats whose exact sum is a^T b, as a list; for a matrix a, a list for each row."""
    return np.concatenate(product(a, b), axis=-1).tolist()


def pair_sum(terms: Iterable[float]) -> Pair:
    """Return the sum as a float and what that lacks."""
    terms = list(terms)
    total = math.fsum(terms)
    return total, math.fsum([*terms, -total])


def logit(p: float) -> Pair:
    """Return log(p / (1 - p)) of the float p."""
    with localcontext(prec=DIGITS):
        exact = Decimal(p)
        return _as_pair(exact.ln() - (1 - exact).ln())


def logistic(v: Pair) -> tuple[Pair, Pair]:
    """Return sigma(v) and sigma'(v)."""
    if abs(v[0]) > SATURATED:
        return (float(v[0] > 0), 0.0), (0.0, 0.0)
    with localcontext(prec=DIGITS):
        odds = (Decimal(v[0]) + Decimal(v[1])).exp()
        gate = odds / (1 + odds)
        return _as_pair(gate), _as_pair(gate / (1 + odds))


def _as_pair(exact: Decimal) -> Pair:
    rounded = float(exact)
    return rounded, float(exact - Decimal(rounded))
