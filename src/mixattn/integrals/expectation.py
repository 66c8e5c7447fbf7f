r"""Expectations of any function under a Gaussian mixture, with an estimate of their error.

Up to three dimensions a tensor trapezoidal rule is refined until it settles: for an analytic
integrand against a Gaussian it converges geometrically. The grids have no nodes in common, so that
what oscillates or hides between the nodes of one is seen by the next; random points look for what
they all miss, as long as it holds a ten-thousandth of the mass. Beyond, scrambled Sobol
points are used and the error is read off independent scramblings: three to five digits, not more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import scipy.special

from mixattn._checks import FloatArray
from mixattn.mixture import GaussianMixture

Integrand = Callable[[FloatArray], FloatArray]

MAX_TENSOR_DIM = 3
_MAX_TENSOR_NODES = 1 << 22
_BLOCK = 1 << 16
# Beyond 8.6 standard deviations lies a mass of 1e-17.
_RADIUS = 8.6
_COARSEST_STEP = 0.8
# Neither the steps nor the shifts of two grids are commensurate.
_GOLDEN = (1.0 + np.sqrt(5.0)) / 2.0
# Random points that look for what the grids have not seen, by dimension. A smooth function exceeds
# its largest value on a grid that resolves it by less than the factor.
_N_PROBES = (0, 1 << 12, 1 << 12, 1 << 14)
_UNSEEN_FACTOR = 2.0
_PROBE_SEED = 20262

_N_SCRAMBLINGS = 16
_FEWEST_SOBOL, _MOST_SOBOL = 1 << 10, 1 << 13
_SOBOL_SEED = 20261
# Student's 97.5 % quantile with 15 degrees of freedom: half-width of a 95 % interval, in standard
# errors.
_HALF_WIDTH = 2.13


def expectation(
    mixture: GaussianMixture, integrand: Integrand, rtol: float, atol: float = 0.0
) -> tuple[float, float, str]:
    """E f(Z) for Z of law `mixture` (positive definite covariances) and f >= 0.

    Parameters
    ----------
    mixture : GaussianMixture
    integrand : callable
        Maps points (n, d) to nonnegative values (n,).
    rtol, atol : float
        Refinement stops when the estimated error is below ``rtol * value + atol``, or when the
        next refinement exceeds the budget.

    Returns
    -------
    value : float
    error : float
        Estimated: a change of the tensor rule, or the half-width of a 95 % interval. If
        random points find values that no grid has seen, at least the distance of their average.
    method : str
        "tensor quadrature" or "Sobol points".
    """
    components = [
        (float(mixture.weights[k]), mixture.means[k], np.linalg.cholesky(mixture.covariances[k]))
        for k in np.flatnonzero(mixture.weights > 0)
    ]

    def folded(y: FloatArray) -> FloatArray:
        """Sum over the components, as a function of one standard normal variable (n, d)."""
        return sum(
            (weight * integrand(mean + y @ root.T) for weight, mean, root in components),
            start=np.zeros(len(y)),
        )

    if mixture.dim <= MAX_TENSOR_DIM:
        budget = _MAX_TENSOR_NODES // len(components)
        value, error = _refine_tensor(folded, mixture.dim, budget, rtol, atol)
        return value, error, "tensor quadrature"
    value, error = _refine_sobol(folded, mixture.dim, rtol, atol)
    return value, error, "Sobol points"


def _refine_tensor(
    function: Integrand, dim: int, budget: int, rtol: float, atol: float
) -> tuple[float, float]:
    probes = np.random.default_rng(_PROBE_SEED).standard_normal((_N_PROBES[dim], dim))
    found = function(probes)
    tallest = float(np.max(found * _bell(probes)))
    value, level, changes = _tensor_average(function, dim, 0)[0], 1, [np.inf]
    while True:
        coarse, (value, peak) = value, _tensor_average(function, dim, level)
        changes.append(abs(value - coarse))
        error = _error_of_change(changes[-1], changes[-2], value)
        if tallest > _UNSEEN_FACTOR * peak:
            error = max(error, abs(float(found.mean()) - value))
        if error <= rtol * value + atol:
            return value, error
        level += 1
        if len(_line(level)) ** dim > budget:
            # what has not settled may have changed little by luck
            return value, max(error, *(change for change in changes[-4:] if np.isfinite(change)))


def _error_of_change(change: float, before: float, value: float) -> float:
    """Error after a change of the rule, from this change and the one before.

    For an analytic integrand a step shorter by the golden ratio multiplies the digits by it, or
    more. A change smaller than that is luck.
    """
    expected = value * min(before / value, 1.0) ** 1.5 if value > 0 else 0.0
    return max(change, expected)


def _tensor_average(function: Integrand, dim: int, level: int) -> tuple[float, float]:
    """Average of a function over N(0, I) by the grid of a level, and its peak there.

    The peak is the largest value times the density of N(0, I), whose own peak is taken as 1.
    """
    nodes = _line(level)
    weights = np.exp(-0.5 * nodes**2)
    weights /= weights.sum()
    total, peak = 0.0, 0.0
    for start in range(0, len(nodes) ** dim, _BLOCK):
        flat = np.arange(start, min(start + _BLOCK, len(nodes) ** dim))
        index = np.unravel_index(flat, (len(nodes),) * dim)
        y = np.stack([nodes[i] for i in index], axis=1)
        values = function(y)
        total += float(np.prod([weights[i] for i in index], axis=0) @ values)
        peak = max(peak, float(np.max(values * _bell(y))))
    return total, peak


def _line(level: int) -> FloatArray:
    """Nodes on an axis: from level to level the step shrinks by the golden ratio, shifted."""
    step = _COARSEST_STEP / _GOLDEN**level
    shift = (level / _GOLDEN) % 1.0
    count = int(np.ceil(_RADIUS / step))
    return step * (np.arange(-count, count + 1) + shift)


def _bell(y: FloatArray) -> FloatArray:
    return np.exp(-0.5 * np.sum(y**2, axis=1))


def _refine_sobol(function: Integrand, dim: int, rtol: float, atol: float) -> tuple[float, float]:
    count = _FEWEST_SOBOL
    while True:
        means = [float(function(y).mean()) for y in _scramblings(dim, count)]
        value = float(np.mean(means))
        error = _HALF_WIDTH * float(np.std(means, ddof=1)) / np.sqrt(_N_SCRAMBLINGS)
        if error <= rtol * value + atol or 2 * count > _MOST_SOBOL:
            return value, error
        count *= 2


def _scramblings(dim: int, count: int) -> Iterator[FloatArray]:
    # scipy.stats takes more than half of the package's import time, and few callers need it
    from scipy.stats import qmc

    for seed in range(_N_SCRAMBLINGS):
        sampler = qmc.Sobol(dim, scramble=True, rng=np.random.default_rng([_SOBOL_SEED, seed]))
        # the scrambled points can fall on 0, whose normal quantile is infinite
        inside = np.clip(sampler.random(count), 2.0**-40, 1.0 - 2.0**-40)
        yield scipy.special.ndtri(inside)
