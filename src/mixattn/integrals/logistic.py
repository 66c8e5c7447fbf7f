"""Logistic functions: divergences and remainders without cancellation, and their Gaussian averages.

What is not called a bound, a scale or a decay is accurate relative to its value, however small that
is.
"""

from __future__ import annotations

import math

import numpy as np
from scipy import special
from scipy.interpolate import PPoly, make_interp_spline

from mixattn._checks import FloatArray
from mixattn.integrals.rules import (
    GAUSSIAN_REACH,
    MARGIN,
    gaussian_trapezoid,
    logistic_derivatives,
    logistic_normal,
)

# N(0, 1) underflows beyond this, so no integrand has mass there
UNDERFLOW = 38.5
# Taylor's first term is enough below
SMALL_STD = 1e-6
SPLINE_DEGREE = 5
SPLINE_STEP = 0.05

_JACOBI_NODES, _JACOBI_WEIGHTS = special.roots_jacobi(8, 1.0, 0.0)
# the coefficient of u^k in e^u - 1 - u - u (e^u - 1) / 2 is 1/k! - 1/(2 (k-1)!)
_THIRD_ORDER = [(2 - k) / (2 * math.factorial(k)) for k in range(20, 2, -1)]


def gate_remainder(v: float, u: FloatArray) -> FloatArray:
    """Return sigma(v + u) - sigma(v) - sigma'(v) u without cancellation at small u.

    With p = sigma(v) it is ``p (1 - p) (E(u) + (1/2 - p) u (e^u - 1)) / (1 + p (e^u - 1))``,
    where ``E(u) = e^u - 1 - u - u (e^u - 1) / 2`` is of third order. For v > 0 the remainder is
    minus that at (-v, -u), where p is small and relatively accurate.
    """
    if v > 0:
        return -gate_remainder(-v, -u)
    p = float(special.expit(v))
    variance = p * (1 - p)
    small = np.clip(u, -1.0, 1.0)
    e = np.expm1(small)
    third = np.polyval(_THIRD_ORDER, small) * small**3
    near = variance * (third + (0.5 - p) * small * e) / (1 + p * e)
    far = special.expit(v + u) - p - variance * u
    return np.where(np.abs(u) < 1.0, near, far)


def gate_change(v: FloatArray, radius: FloatArray) -> FloatArray:
    r"""Bound \|sigma(v') - sigma(v)\| over the complex disc \|v' - v\| <= radius.

    By the derivative: \|sigma'(x + iy)\| = 1 / (2 (cosh x + cos y)).
    """
    nearest = np.clip(np.abs(v) - radius, 0.0, 700.0)
    floor = np.cosh(nearest) + np.cos(np.minimum(radius, np.pi))
    return radius / np.maximum(2 * floor, 1e-100)


def divergence(logit: FloatArray, gap: FloatArray) -> FloatArray:
    r"""Return KL(Ber(sigma(logit)) \| Ber(sigma(logit + gap))).

    It is ``softplus(f) - softplus(f*) - sigma(f*) gap``, and for a small gap Taylor's remainder
    ``gap^2 int_0^1 (1 - u) sigma'(f* + u gap) du`` by Gauss-Jacobi. Changing all signs changes
    nothing.
    """
    gap = np.where(logit > 0, -gap, gap)
    low = -np.abs(logit)
    t = np.exp(low)
    p = t / (1 + t)
    moved = low + gap
    kl = np.maximum(moved, 0.0) + np.log1p(np.exp(-np.abs(moved))) - np.log1p(t) - p * gap
    small = np.abs(gap) < 1.0
    base, step = low[small], gap[small]
    taylor = np.zeros_like(base)
    for node, weight in zip(_JACOBI_NODES, _JACOBI_WEIGHTS, strict=True):
        e = np.exp(-np.abs(base + 0.5 * (1 + node) * step))
        taylor += 0.25 * weight * e / (1 + e) ** 2
    kl[small] = taylor * step**2
    return kl


def jensen_gap(mean: FloatArray, std: float) -> FloatArray:
    """Return E softplus(mean + std Z) - softplus(mean) >= 0, Z ~ N(0, 1).

    A function of one variable: of many points, its logarithm is interpolated by splines.
    """
    if std < SMALL_STD:
        return 0.5 * std**2 * logistic_derivatives(mean, 2)[2]
    # even in the mean; beyond, where `smoothed_decay` exceeds 600, smaller than any divergence that
    # matters
    farthest = 600.0 + 0.5 * std**2 if std**2 < 1200.0 else std * np.sqrt(1200.0)
    away = np.minimum(np.abs(mean), farthest)
    intervals = away.max() / SPLINE_STEP
    if 4 * intervals > away.size:
        return _jensen_gap(away.ravel(), std).reshape(away.shape)
    grid = SPLINE_STEP * np.arange(-SPLINE_DEGREE, intervals + SPLINE_DEGREE)
    spline = make_interp_spline(grid, np.log(_jensen_gap(np.abs(grid), std)), k=SPLINE_DEGREE)
    # in powers of the argument the same spline costs a third to evaluate
    return np.exp(PPoly.from_spline(spline.tck)(away))


def _jensen_gap(away: FloatArray, std: float) -> FloatArray:
    """Return `jensen_gap` of nonnegative means.

    For a small `std`, by the identity
    ``softplus(a + h) + softplus(a - h) - 2 softplus(a) = log(1 + 4 sigma'(a) sinh(h/2)^2)``.
    """
    if std > 1.0:
        return logistic_normal(-away, std, 0)[0, 0] - np.log1p(np.exp(-away))
    nodes, weights = gaussian_trapezoid(MARGIN * np.pi / std, 0.0, GAUSSIAN_REACH + std)
    slope = logistic_derivatives(away, 2)[2]
    bumps = np.log1p(4 * slope[:, None] * np.sinh(0.5 * std * nodes[1:]) ** 2)
    # the node at 0 adds nothing, and those below 0 as much as those above
    return bumps @ weights[1:]


def jensen_scale(mean: FloatArray, std: float) -> FloatArray:
    """Return the size of `jensen_gap` up to a moderate factor."""
    return min(1.0, std**2) * np.exp(-smoothed_decay(np.abs(mean), std))


def smoothed_decay(away: FloatArray, std: float) -> FloatArray:
    """Return -log E exp(-(away + std Z)^+), roughly: a Gaussian tail, then an exponential."""
    gaussian = 0.5 * (np.minimum(away, std**2) / std) ** 2 if std > 0 else 0.0
    return gaussian + np.maximum(away - std**2, 0.0)
