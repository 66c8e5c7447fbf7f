"""Quadrature rules for Gaussian integrals of logistic functions.

A rule is a pair ``(nodes, weights)``. Every rule here is sized before the integrand is evaluated, from
two facts about it: where it is analytic (the logistic function has its poles at the odd multiples
of i pi, a gate of slope k therefore at a distance of at least pi / k from the real axis) and where its
mass sits.

References
----------
L. N. Trefethen and J. A. C. Weideman, The exponentially convergent trapezoidal rule, SIAM Review 56
(2014), 385-458. E. T. Goodwin, The evaluation of integrals of the form int f(x) exp(-x^2) dx, Proc.
Cambridge Philos. Soc. 45 (1949), 241-245. L. N. Trefethen, Approximation Theory and Approximation
Practice (2013), Theorem 19.3 (Gauss quadrature on a Bernstein ellipse). H. Cohen, F. Rodriguez
Villegas and D. Zagier, Convergence acceleration of alternating series, Experimental Mathematics 9
(2000), 3-12.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy import special

from mixattn._validation import FloatArray, as_array, as_integer, as_scalar, freeze

Rule = tuple[FloatArray, FloatArray]

# The standard normal density falls below 1e-17 of its peak here.
GAUSSIAN_REACH = 8.9
TOLERANCE = 1e-15


def normal_density(x: FloatArray) -> FloatArray:
    """Return the density of N(0, 1); far tails underflow to zero in silence."""
    with np.errstate(under="ignore"):
        density: FloatArray = np.exp(-0.5 * x * x) / np.sqrt(2 * np.pi)
    return density


@cache
def _gauss_hermite(n: int) -> Rule:
    nodes, weights = special.roots_hermitenorm(n)
    return freeze(nodes), freeze(weights / weights.sum())


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
    """Return the n-point Gauss rule of the uniform weight on [-1, 1]; the weights sum to 2."""
    nodes, weights = np.polynomial.legendre.leggauss(as_integer("n", n, at_least=1))
    return freeze(nodes), freeze(weights)


def trapezoidal_step(strip: float, tolerance: float = TOLERANCE) -> float:
    r"""Return the largest step for which the trapezoidal rule on the line meets `tolerance`.

    For g analytic and bounded by M in the strip \|Im z\| < a, the rule of step h applied to the standard
    normal density times g errs by at most ``2 M exp(a^2/2) / (exp(2 pi a / h) - 1)`` (Trefethen and
    Weideman, Theorem 5.1; Goodwin). The best a is ``2 pi / h``, or the whole strip when it is
    narrower than that.

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
    """Return trapezoidal nodes and weights for N(0, 1) on a window, with step from an a-priori bound.

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
    >>> nodes, weights = gaussian_trapezoid()
    >>> bool(abs(weights @ np.cos(nodes) - np.exp(-0.5)) < 1e-14)
    True
    """
    strip = strip if strip == np.inf else as_scalar("strip", strip, above=0.0)
    lower = as_scalar("lower", lower)
    upper = as_scalar("upper", upper, above=lower)
    tolerance = as_scalar("tolerance", tolerance, above=0.0, below=1.0)
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


# Gauss-Legendre on a panel converges like RATE^(-2n) when the integrand is analytic in the ellipse
# with the panel's ends as foci whose half-axis is ELLIPSE half-lengths.
ELLIPSE = 1.8
RATE = ELLIPSE + np.sqrt(ELLIPSE**2 - 1)

Fits = Callable[[FloatArray, FloatArray], NDArray[np.bool_]]


def graded_panels(lower: float, upper: float, fits: Fits) -> tuple[FloatArray, FloatArray]:
    """Bisect an interval until every panel fits, so that panels shrink where the integrand is sharp.

    Parameters
    ----------
    lower, upper : float
        The interval.
    fits : callable
        ``fits(centers, half_lengths)`` says which panels have their integrand analytic, and of
        moderate size, in the disc of radius ``ELLIPSE * half_length`` about their center.

    Returns
    -------
    centers, half_lengths : ndarrays of shape (n_panels,)
    """
    centers = np.array([0.5 * (lower + upper)])
    halves = np.array([0.5 * (upper - lower)])
    done_centers, done_halves = [], []
    while centers.size:
        # a panel at the resolution of floating point cannot be split further
        good = fits(centers, halves) | (halves <= 4e-15 * np.maximum(np.abs(centers), 1e-3))
        done_centers.append(centers[good])
        done_halves.append(halves[good])
        halves = 0.5 * np.repeat(halves[~good], 2)
        signs = np.tile([-1.0, 1.0], halves.size // 2)
        centers = np.repeat(centers[~good], 2) + signs * halves
    order = np.argsort(np.concatenate(done_centers))
    return np.concatenate(done_centers)[order], np.concatenate(done_halves)[order]


def panel_rule(centers: FloatArray, half_lengths: FloatArray, n: int) -> Rule:
    """Return n-point Gauss-Legendre nodes and weights of each panel, both of shape (n_panels, n)."""
    nodes, weights = gauss_legendre(n)
    return centers[:, None] + half_lengths[:, None] * nodes, half_lengths[:, None] * weights


# Up to this standard deviation the trapezoidal rule is cheaper than the alternating series.
_SERIES_FROM = 3.0
_SERIES_TERMS = 28


@cache
def _alternating_weights(n: int) -> FloatArray:
    """Return c_1..c_n with sum_k (-1)^(k+1) a_k = sum_k c_k a_k + O(5.83^-n) (Cohen et al., Algorithm 1)."""
    d = (3 + np.sqrt(8)) ** n
    d = 0.5 * (d + 1 / d)
    weights = np.empty(n)
    b, c = -1.0, -d
    for k in range(n):
        c = b - c
        weights[k] = c / d
        b *= (k + n) * (k - n) / ((k + 0.5) * (k + 1))
    return freeze(weights)


def logistic_derivatives(y: FloatArray, order: int) -> FloatArray:
    """Return softplus(y) = log(1 + e^y) and its derivatives up to `order` <= 4, stacked first.

    Computed from exp(-\\|y\\|) alone: nothing overflows, and each keeps its relative accuracy in both
    tails.
    """
    with np.errstate(under="ignore"):
        t = np.exp(-np.abs(y))
    out = np.empty((order + 1, *y.shape))
    out[0] = np.maximum(y, 0.0) + np.log1p(t)
    if order >= 1:
        p = 1 / (1 + t)
        q = t * p
        out[1] = np.where(y >= 0, p, q)
        if order >= 2:
            slope = p * q
            out[2] = slope
        if order >= 3:
            out[3] = slope * np.where(y >= 0, q - p, p - q)
        if order >= 4:
            out[4] = slope * (1 - 6 * slope)
    return out


def logistic_normal(mean: FloatArray, std: float, order: int) -> FloatArray:
    r"""Return E[g(mean + std Z)] for g = softplus and its derivatives up to `order`, Z ~ N(0, 1).

    For a small `std` by the trapezoidal rule. For a large one in closed form: on y < 0,
    ``sigma(y) = sum_k (-1)^(k+1) e^(k y)``, and a Gaussian integral of ``e^(k y)`` over a half-line is an
    error function; the alternating sum, whose terms are the moments of a positive measure, is
    accelerated with the bound 5.83^-n of Cohen, Rodriguez Villegas and Zagier. The cost does not
    grow with `std`, and each value is accurate relative to E\|g\|.

    Parameters
    ----------
    mean : ndarray of shape (n,)
    std : float
        Nonnegative.
    order : int
        Highest derivative, 0 to 4.

    Returns
    -------
    ndarray of shape (order + 1, n)
    """
    if std == 0.0:
        return logistic_derivatives(mean, order)
    # softplus(y) = y + softplus(-y): work on the side where everything is small
    sign = np.where(mean > 0, -1.0, 1.0)
    low = -np.abs(mean)
    expected = (
        _by_trapezoid(low, std, order) if std <= _SERIES_FROM else _by_series(low, std, order)
    )
    above = mean > 0
    expected[0] += np.where(above, mean, 0.0)
    if order >= 1:
        expected[1] = np.where(above, 1 - expected[1], expected[1])
    if order >= 3:
        expected[3] *= sign
    return expected


def _by_trapezoid(mean: FloatArray, std: float, order: int) -> FloatArray:
    """Trapezoidal rule for mean <= 0: the mass of e^y sits at most `std` deviations above the mean."""
    nodes, weights = gaussian_trapezoid(0.9 * np.pi / std, upper=GAUSSIAN_REACH + std)
    values: FloatArray = logistic_derivatives(mean[:, None] + std * nodes, order) @ weights
    return values


def _by_series(mean: FloatArray, std: float, order: int) -> FloatArray:
    """Accelerated alternating series for mean <= 0 (see `logistic_normal`)."""
    q = mean / std
    k = np.arange(1.0, _SERIES_TERMS + 1)[:, None]
    weights = _alternating_weights(_SERIES_TERMS)
    with np.errstate(under="ignore"):
        density = normal_density(q)
        # E[e^(k y); y < 0] and E[e^(-k y); y > 0]
        below = _tilted_half(q + k * std, density, k * std * (q + 0.5 * k * std), std)
        above = _tilted_half(k * std - q, density, np.full_like(below, np.inf), std)
        chance = special.ndtr(q)
        expected = np.empty((order + 1, mean.size))
        kinked = std * (density + q * chance)
        expected[0] = np.maximum(kinked, 0.0) + weights @ ((below + above) / k)
        if order >= 1:
            expected[1] = chance + weights @ (below - above)
        for derivative in range(2, order + 1):
            parity = 1.0 if derivative % 2 == 0 else -1.0
            expected[derivative] = weights @ (k ** (derivative - 1) * (below + parity * above))
    return expected


def _tilted_half(
    t: FloatArray, density: FloatArray, exponent: FloatArray, std: float
) -> FloatArray:
    """Return e^exponent Phi(-t), as density(q) times Mills' ratio where t > 0."""
    mills = density * np.sqrt(np.pi / 2) * special.erfcx(np.maximum(t, 0.0) / np.sqrt(2))
    return np.where(t > 0, mills, np.exp(np.minimum(exponent, 0.0)) * special.ndtr(-t))
