"""Quadrature rules for Gaussian integrals of logistic functions.

A rule is a pair ``(nodes, weights)``. Every rule here is sized before the integrand is evaluated,
from two facts about it: where it is analytic (the logistic function has its poles at the odd
multiples of i pi, a gate of slope k therefore at a distance of at least pi / k from the real axis)
and where its mass sits.

References
----------
L. N. Trefethen and J. A. C. Weideman, The exponentially convergent trapezoidal rule, SIAM Review 56
(2014), 385-458. E. T. Goodwin, The evaluation of integrals of the form int f(x) exp(-x^2) dx, Proc.
Cambridge Philos. Soc. 45 (1949), 241-245. L. N. Trefethen, Approximation Theory and Approximation
Practice (2013), Theorem 19.3 (Gauss quadrature on a Bernstein ellipse).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from mixattn._checks import FloatArray, as_array, as_integer, as_scalar, frozen

Rule = tuple[FloatArray, FloatArray]

# The standard normal density is below 1e-15 of its peak from here on.
GAUSSIAN_REACH = 8.4
TOLERANCE = 1e-14


def normal_density(x: FloatArray) -> FloatArray:
    """Return the density of N(0, 1), elementwise."""
    return np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)


@cache
def _gauss_hermite(n: int) -> Rule:
    nodes, weights = special.roots_hermitenorm(n)
    return frozen((nodes, weights / weights.sum()))


def gauss_hermite(n: int) -> Rule:
    """Return the n-point Gauss rule of N(0, 1), exact for polynomials of degree 2n - 1.

    Parameters
    ----------
    n : int
        Number of nodes, at least 1.

    Returns
    -------
    nodes, weights : ndarrays of shape (n,)
        Read-only; the weights sum to 1.

    Examples
    --------
    >>> nodes, weights = gauss_hermite(3)
    >>> float(round(weights @ nodes**4, 12))
    3.0
    """
    return _gauss_hermite(as_integer("n", n, at_least=1))


@cache
def gauss_legendre(n: int) -> Rule:
    """Return the n-point Gauss rule of the uniform weight on [-1, 1].

    Parameters
    ----------
    n : int
        Number of nodes, at least 1.

    Returns
    -------
    nodes, weights : ndarrays of shape (n,)
        Read-only; the weights sum to 2.
    """
    nodes, weights = np.polynomial.legendre.leggauss(as_integer("n", n, at_least=1))
    return frozen((nodes, weights))


def trapezoidal_step(strip: float, tolerance: float = TOLERANCE) -> float:
    r"""Return the largest step for which the trapezoidal rule on the line meets `tolerance`.

    For g analytic and bounded by M in the strip \|Im z\| < a, the rule of step h applied to the
    standard normal density times g errs by at most ``2 M exp(a^2/2) / (exp(2 pi a / h) - 1)``
    (Trefethen and Weideman, Theorem 5.1; Goodwin). The best a is ``2 pi / h``, or the whole strip
    when it is narrower than that.

    Parameters
    ----------
    strip : float
        Half-width of the strip of analyticity of g, positive; may be infinite.
    tolerance : float
        Target error relative to M.
    """
    digits = np.log(2 / tolerance)
    if strip >= np.sqrt(2 * digits):
        return float(np.pi * np.sqrt(2 / digits))
    return float(2 * np.pi * strip / (digits + 0.5 * strip**2))


def gaussian_trapezoid(
    strip: float = np.inf,
    lower: float = -GAUSSIAN_REACH,
    upper: float = GAUSSIAN_REACH,
    tolerance: float = TOLERANCE,
) -> Rule:
    """Return trapezoidal nodes and weights for N(0, 1), with a step from an a-priori bound.

    Parameters
    ----------
    strip : float
        The integrand (without the density) is analytic for imaginary parts below this. For a
        logistic function of slope k it is pi / k. Keep a small margin from the poles.
    lower, upper : float
        Window. The default carries the mass of N(0, 1); widen it when the integrand decays or grows
        exponentially, because its mass then sits elsewhere (at -k for exp(-k x)).
    tolerance : float
        Target error relative to the integrand's bound in the strip.

    Returns
    -------
    nodes, weights : ndarrays of shape (n,)
        ``weights @ g(nodes)`` approximates E[g(Z)].

    Examples
    --------
    >>> nodes, weights = gaussian_trapezoid(strip=0.9 * np.pi)
    >>> bool(abs(weights @ (1 / (1 + np.exp(-nodes))) - 0.5) < 1e-14)
    True
    """
    strip = strip if strip == np.inf else as_scalar("strip", strip, above=0.0)
    lower = as_scalar("lower", lower)
    upper = as_scalar("upper", upper, above=lower)
    tolerance = as_scalar("tolerance", tolerance, above=0.0, below=1.0)
    return _gaussian_trapezoid(strip, lower, upper, tolerance)


def _gaussian_trapezoid(strip: float, lower: float, upper: float, tolerance: float) -> Rule:
    step = trapezoidal_step(strip, tolerance)
    nodes = step * np.arange(np.floor(lower / step), np.ceil(upper / step) + 1)
    return nodes, step * normal_density(nodes)


def tensor_product(*rules: Rule) -> Rule:
    """Return the product rule: nodes of shape (n, k), one column a factor, and weights (n,).

    Examples
    --------
    >>> nodes, weights = tensor_product(gauss_hermite(2), gauss_hermite(3))
    >>> nodes.shape, bool(abs(weights @ (nodes[:, 0] * nodes[:, 1]) ** 2 - 1) < 1e-14)
    ((6, 2), True)
    """
    grids = np.meshgrid(*(nodes for nodes, _ in rules), indexing="ij")
    weights = np.ones(1)
    for _, factor in rules:
        weights = np.multiply.outer(weights, factor).ravel()
    return np.stack([grid.ravel() for grid in grids], axis=-1), weights


# Gauss-Legendre on a panel errs by a small multiple of M RATE^(-2n) when the integrand is analytic
# and bounded by M in the ellipse with foci at the panel's ends and half-axis ELLIPSE half-lengths;
# the disc on that half-axis contains it. At most LONGEST_PANEL for the standard normal density,
# whose growth off the real axis, exp((1.5 * 3)^2 / 2) = 2.5e4, then leaves 5e-15 with 18 nodes:
# RATE^(-36) = 2e-19.
ELLIPSE = 1.8
RATE = ELLIPSE + np.sqrt(ELLIPSE**2 - 1)
PANEL_NODES = 18
LONGEST_PANEL = 3.0
# poles are kept a little outside the discs and strips
MARGIN = 0.9

Fits = Callable[[FloatArray, FloatArray], NDArray[np.bool_]]


def graded_panels(
    lower: float, upper: float, fits: Fits, longest: float = np.inf
) -> tuple[FloatArray, FloatArray]:
    """Bisect an interval until every panel fits: panels shrink where the integrand is sharp.

    Parameters
    ----------
    lower, upper : float
        The interval.
    fits : callable
        ``fits(centers, half_lengths)`` says which panels have their integrand analytic, and of
        moderate size, in the disc of radius ``ELLIPSE * half_length`` about their center.
    longest : float
        Upper bound of the half-lengths.

    Returns
    -------
    centers, half_lengths : ndarrays of shape (n_panels,)
        In ascending order.
    """
    lower = as_scalar("lower", lower)
    upper = as_scalar("upper", upper, above=lower)
    count = max(1, int(np.ceil(0.5 * (upper - lower) / longest)))
    half = 0.5 * (upper - lower) / count
    centers: FloatArray = np.asarray(lower + half * np.arange(1, 2 * count, 2), dtype=np.float64)
    halves = np.full(count, half)
    done_centers: list[FloatArray] = []
    done_halves: list[FloatArray] = []
    while centers.size:
        # a panel at the resolution of floating point cannot be split further
        good = fits(centers, halves) | (halves <= 4e-15 * np.maximum(np.abs(centers), 1e-3))
        done_centers.append(centers[good])
        done_halves.append(halves[good])
        halves = np.repeat(0.5 * halves[~good], 2)
        centers = np.repeat(centers[~good], 2)
        centers[::2] -= halves[::2]
        centers[1::2] += halves[1::2]
    centers, halves = np.concatenate(done_centers), np.concatenate(done_halves)
    order = np.argsort(centers)
    return centers[order], halves[order]


def panel_rule(centers: FloatArray, half_lengths: FloatArray, n: int) -> Rule:
    """Return Gauss-Legendre nodes and weights of each panel.

    Parameters
    ----------
    centers, half_lengths : ndarray, shape (n_panels,)
    n : int
        Nodes a panel.

    Returns
    -------
    nodes, weights : ndarrays of shape (n_panels, n)
    """
    nodes, weights = gauss_legendre(n)
    return centers[:, None] + half_lengths[:, None] * nodes, half_lengths[:, None] * weights


def logistic_derivatives(y: FloatArray, order: int) -> FloatArray:
    r"""Return softplus(y) = log(1 + e^y) and its derivatives up to `order` <= 3, stacked first.

    Computed from exp(-\|y\|) alone: nothing overflows, and softplus, sigma and sigma' keep their
    relative accuracy in both tails.

    Examples
    --------
    >>> logistic_derivatives(np.array([-1e6, 0.0, 1e6]), 1)[1]
    array([0. , 0.5, 1. ])
    """
    t = np.exp(-np.abs(y))
    out = np.empty((order + 1, *y.shape))
    out[0] = np.maximum(y, 0.0) + np.log1p(t)
    if order >= 1:
        out[1] = np.where(y >= 0, 1.0, t) / (1 + t)
    if order >= 2:
        out[2] = t / (1 + t) ** 2
    if order >= 3:
        out[3] = out[2] * (1 - 2 * out[1])
    return out


def logistic_normal(
    mean: FloatArray,
    std: float,
    order: int,
    degree: int = 0,
    offset: FloatArray | float = 0.0,
) -> FloatArray:
    r"""Return E[(offset + Z)^j g(mean + std Z)], Z ~ N(0, 1), for g = softplus and its derivatives.

    Each value is accurate relative to the expectation of the integrand's modulus, also where the
    integrand is tiny: as exp(-\|y\|) decays at rate 1, its mass sits at most `std` deviations from
    the mean of Z towards y = 0, and both rules cover it.

    Parameters
    ----------
    mean : ndarray, shape (n,)
    std : float
        Nonnegative.
    order : int
        Highest derivative of softplus, 0 to 3.
    degree : int
        Highest power j, 0 to 2.
    offset : float or ndarray, shape (n,)

    Returns
    -------
    ndarray, shape (degree + 1, order + 1, n)

    Examples
    --------
    >>> gate = logistic_normal(np.zeros(1), 2.0, order=1)[0, 1]
    >>> bool(abs(gate[0] - 0.5) < 1e-14)
    True
    """
    mean = as_array("mean", mean, ("n",))
    std = as_scalar("std", std, at_least=0.0)
    order = as_integer("order", order)
    degree = as_integer("degree", degree)
    if order > 3 or degree > 2:
        raise ValueError(f"order, degree: expected at most 3 and 2, got {order} and {degree}")
    if std == 0.0:
        at_mean = logistic_derivatives(mean, order)
        moments = np.stack([at_mean, np.zeros_like(at_mean), at_mean])[: degree + 1]
        return _shift_powers(moments, offset)
    n_trapezoid = (2 * GAUSSIAN_REACH + std) / trapezoidal_step(MARGIN * np.pi / std)
    lower = min(mean.min(), 0.0) - GAUSSIAN_REACH * std
    upper = max(mean.max(), 0.0) + GAUSSIAN_REACH * std
    n_panels = (upper - lower) / (2 * LONGEST_PANEL * std) + 2 + max(0.0, 2 * np.log(std))
    if n_trapezoid < PANEL_NODES * n_panels:
        return _by_trapezoid(mean, std, order, degree, offset)
    return _by_panels(mean, std, order, degree, offset, lower, upper)


def _by_trapezoid(
    mean: FloatArray, std: float, order: int, degree: int, offset: FloatArray | float
) -> FloatArray:
    """Trapezoidal rule in Z, its window stretched towards y = 0: for a small `std`."""
    nodes, weights = _gaussian_trapezoid(
        MARGIN * np.pi / std, -GAUSSIAN_REACH, GAUSSIAN_REACH + std, TOLERANCE
    )
    toward = np.where(mean > 0, -1.0, 1.0)
    values = logistic_derivatives(mean[:, None] + (std * toward)[:, None] * nodes, order)
    moments = np.empty((degree + 1, *values.shape[:2]))
    for j in range(degree + 1):
        moments[j] = (values @ (weights * nodes**j)) * toward**j
    return _shift_powers(moments, offset)


def _by_panels(
    mean: FloatArray,
    std: float,
    order: int,
    degree: int,
    offset: FloatArray | float,
    lower: float,
    upper: float,
) -> FloatArray:
    """Gauss-Legendre panels in y = mean + std Z, graded towards the poles: for a large `std`.

    The nodes are shared by all means, and Z + offset = y / std + (offset - mean / std) exactly.
    """

    def fits(center: FloatArray, half: FloatArray) -> NDArray[np.bool_]:
        return ELLIPSE * half <= MARGIN * np.hypot(center, np.pi)

    panels = graded_panels(lower, upper, fits, LONGEST_PANEL * std)
    y, dy = (a.ravel() for a in panel_rule(*panels, PANEL_NODES))
    values = logistic_derivatives(y, order)
    integrands = np.stack([values * (y / std) ** j for j in range(degree + 1)]) * (dy / std)
    moments = np.empty((degree + 1, order + 1, mean.size))
    block = max(1, 1_000_000 // y.size)
    for start in range(0, mean.size, block):
        rows = slice(start, start + block)
        kernel = normal_density((y[:, None] - mean[rows]) / std)
        moments[..., rows] = integrands @ kernel
    return _shift_powers(moments, offset - mean / std)


def _shift_powers(moments: FloatArray, shift: FloatArray | float) -> FloatArray:
    """Turn E[z^j g] for j = 0, 1, 2 into E[(shift + z)^j g]."""
    shifted = moments.copy()
    if len(moments) > 1:
        shifted[1] += shift * moments[0]
    if len(moments) > 2:
        shifted[2] += shift * (2 * moments[1] + shift * moments[0])
    return shifted
