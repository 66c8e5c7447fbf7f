r"""Expectations of any function under a Gaussian mixture, with an estimate of their error.

Up to three dimensions a tensor trapezoidal rule is refined until it settles: for an analytic
integrand against a Gaussian it converges geometrically. Beyond, scrambled Sobol points are used and
the error is read off independent scramblings: three to five digits, not more.
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

_N_SCRAMBLINGS = 16
_FEWEST_SOBOL, _MOST_SOBOL = 1 << 10, 1 << 13
_SOBOL_SEED = 20261
# Student's 97.5 % quantile with 15 degrees of freedom: half-width of a 95 % interval, in standard errors.
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
        Estimated: the last change of the tensor rule, or the half-width of a 95 % interval.
    method : str
        "tensor quadrature" or "Sobol points".
    """
    components = [
        (float(mixture.weights[k]), mixture.means[k], np.linalg.cholesky(mixture.covariances[k]))
        for k in np.flatnonzero(mixture.weights > 0)
    ]

    def average(blocks: Iterator[tuple[FloatArray, FloatArray]]) -> float:
        """Mean of f over all components, from blocks of standard normal nodes and weights."""
        return sum(
            weight * float(node_weights @ integrand(mean + y @ root.T))
            for y, node_weights in blocks
            for weight, mean, root in components
        )

    if mixture.dim <= MAX_TENSOR_DIM:
        value, error = _refine_tensor(average, mixture.dim, len(components), rtol, atol)
        return value, error, "tensor quadrature"
    value, error = _refine_sobol(average, mixture.dim, rtol, atol)
    return value, error, "Sobol points"


Average = Callable[[Iterator[tuple[FloatArray, FloatArray]]], float]


def _refine_tensor(
    average: Average, dim: int, n_components: int, rtol: float, atol: float
) -> tuple[float, float]:
    count = 2 * int(np.ceil(_RADIUS / _COARSEST_STEP)) + 1
    value = average(_tensor_blocks(dim, count))
    while True:
        count = 2 * count - 1
        coarse, value = value, average(_tensor_blocks(dim, count))
        error = abs(value - coarse)
        if error <= rtol * value + atol or n_components * (2 * count) ** dim > _MAX_TENSOR_NODES:
            return value, error


def _tensor_blocks(dim: int, count: int) -> Iterator[tuple[FloatArray, FloatArray]]:
    nodes = np.linspace(-_RADIUS, _RADIUS, count)
    weights = np.exp(-0.5 * nodes**2)
    weights /= weights.sum()
    total = count**dim
    for start in range(0, total, _BLOCK):
        index = np.unravel_index(np.arange(start, min(start + _BLOCK, total)), (count,) * dim)
        yield (
            np.stack([nodes[i] for i in index], axis=1),
            np.prod([weights[i] for i in index], axis=0),
        )


def _refine_sobol(average: Average, dim: int, rtol: float, atol: float) -> tuple[float, float]:
    count = _FEWEST_SOBOL
    while True:
        means = [average(_sobol_blocks(dim, count, seed)) for seed in range(_N_SCRAMBLINGS)]
        value = float(np.mean(means))
        error = _HALF_WIDTH * float(np.std(means, ddof=1)) / np.sqrt(_N_SCRAMBLINGS)
        if error <= rtol * value + atol or 2 * count > _MOST_SOBOL:
            return value, error
        count *= 2


def _sobol_blocks(dim: int, count: int, seed: int) -> Iterator[tuple[FloatArray, FloatArray]]:
    # scipy.stats takes more than half of the package's import time, and few callers need it
    from scipy.stats import qmc

    sampler = qmc.Sobol(dim, scramble=True, rng=np.random.default_rng([_SOBOL_SEED, seed]))
    uniform = sampler.random(count)
    # the scrambled points can fall on 0, whose normal quantile is infinite
    inside = np.clip(uniform, 2.0**-40, 1.0 - 2.0**-40)
    yield scipy.special.ndtri(inside), np.full(count, 1.0 / count)
