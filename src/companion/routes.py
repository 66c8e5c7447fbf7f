"""Independent routes: what a chapter or a test compares the package with, in plain NumPy.

Nothing here uses an integrator or an operator of `mixattn`, so that agreement says something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mixattn import GaussianMixture, LDATask

Array = NDArray[np.float64]


def gap(a: ArrayLike, b: ArrayLike) -> float:
    """Return the largest absolute entry of ``a - b``; shapes broadcast.

    Examples
    --------
    >>> gap([1.0, 2.0], [1.0, 1.5])
    0.5
    """
    return float(np.max(np.abs(np.asarray(a) - np.asarray(b))))


def normal_density(points: ArrayLike, mean: ArrayLike, covariance: ArrayLike) -> Array:
    """Return the density of a Gaussian at points.

    Parameters
    ----------
    points : array_like, shape (..., d)
    mean : array_like, shape (d,)
    covariance : array_like, shape (d, d)
        Positive definite.

    Returns
    -------
    ndarray, shape (...)
    """
    centered, covariance = np.asarray(points) - np.asarray(mean), np.asarray(covariance)
    squared = np.sum(centered @ np.linalg.inv(covariance) * centered, axis=-1)
    return np.exp(-squared / 2) / np.sqrt(np.linalg.det(2 * np.pi * covariance))


def mixture_density(mixture: GaussianMixture, points: ArrayLike) -> Array:
    """Return the weighted densities of a mixture's components at points, shape (M, ...).

    Parameters
    ----------
    mixture : GaussianMixture
        Its covariances positive definite.
    points : array_like, shape (..., d)
    """
    parts = zip(mixture.weights, mixture.means, mixture.covariances, strict=True)
    return np.array([pi * normal_density(points, m, c) for pi, m, c in parts])


def grid_points(axis: ArrayLike, dim: int = 2) -> Array:
    """Return the points of the grid with the same `axis` in every coordinate, shape (n**dim, dim).

    A sum over an equally spaced grid times the spacing is an integral, exponentially accurate when
    the integrand is analytic and vanishes at the border.

    Examples
    --------
    >>> grid_points([0.0, 1.0])
    array([[0., 0.],
           [1., 0.],
           [0., 1.],
           [1., 1.]])
    """
    return np.stack(np.meshgrid(*[axis] * dim), axis=-1).reshape(-1, dim)


def gauss_hermite(mixture: GaussianMixture, order: int) -> tuple[Array, Array]:
    """Return nodes and weights for expectations under a Gaussian mixture, a product rule a component.

    Parameters
    ----------
    mixture : GaussianMixture
        Its covariances positive definite.
    order : int
        Nodes an axis, at most 180 (NumPy's rule overflows beyond); exact for polynomials of degree ``2 * order - 1`` in each coordinate.

    Returns
    -------
    nodes : ndarray, shape (M * order**d, d)
        Component by component.
    weights : ndarray, shape (M * order**d,)
        They sum to 1.
    """
    axis, axis_weights = np.polynomial.hermite_e.hermegauss(order)
    return _around_components(mixture, axis, axis_weights)


def lattice(mixture: GaussianMixture, step: float, reach: float = 9.0) -> tuple[Array, Array]:
    """Return nodes and weights of equally spaced sums under a Gaussian mixture.

    Parameters
    ----------
    mixture : GaussianMixture
        Its covariances positive definite.
    step, reach : float
        Spacing and half-width of the lattice, in standard deviations of each component.

    Returns
    -------
    nodes : ndarray, shape (M * n**d, d)
        Component by component.
    weights : ndarray, shape (M * n**d,)
        They sum to 1.
    """
    axis = np.arange(-reach, reach + step / 2, step)
    return _around_components(mixture, axis, np.exp(-(axis**2) / 2))


def _around_components(
    mixture: GaussianMixture, axis: Array, axis_weights: Array
) -> tuple[Array, Array]:
    """Whiten each component and put the same product rule on it."""
    dim = np.shape(mixture.means)[1]
    z = grid_points(axis, dim)
    mass = np.prod(grid_points(axis_weights / np.sum(axis_weights), dim), axis=1)
    roots = np.linalg.cholesky(mixture.covariances)
    nodes = [m + z @ root.T for m, root in zip(mixture.means, roots, strict=True)]
    return np.concatenate(nodes), np.kron(mixture.weights, mass)


def central_differences(function: Callable[[Array], Any], x: ArrayLike, step: float) -> Array:
    """Return the derivatives of a function by central differences of order four.

    Parameters
    ----------
    function : callable
        Takes an array shaped as `x`; returns a number or an array of any one shape.
    x : array_like, shape (..., d)
        The point, or points that `function` treats one by one.
    step : float
        The error is of order ``step**4``, plus rounding over `step`.

    Returns
    -------
    ndarray, shape (d, ...)
        Derivative along each coordinate of the last axis, first axis first.

    Examples
    --------
    >>> central_differences(lambda v: v[0] * v[1], [2.0, 3.0], 1e-3).round(9)
    array([3., 2.])
    """
    x = np.asarray(x, dtype=float)
    near, far = (
        np.array([function(x + k * e) - function(x - k * e) for e in step * np.eye(x.shape[-1])])
        for k in (1, 2)
    )
    return (8 * near - far) / (12 * step)


def z_score(samples: ArrayLike, expected: ArrayLike = 0.0) -> Any:
    """Return the mean over the first axis minus `expected`, in standard errors.

    Examples
    --------
    >>> print(z_score([0.0, 4.0, 0.0, 4.0]))
    2.0
    """
    samples = np.asarray(samples)
    standard_error = samples.std(axis=0) / np.sqrt(len(samples))
    return (samples.mean(axis=0) - expected) / standard_error


def self_normalized_mean(logits: ArrayLike, values: ArrayLike) -> tuple[Array, Array]:
    """Return softmax-weighted means over random tokens, with standard errors by the delta method.

    Softmax attention is the case of ``logits = prompt @ U @ queries.T``, ``values = prompt @ V.T``.

    Parameters
    ----------
    logits : array_like, shape (L, n)
        One row an independent token, one column a query.
    values : array_like, shape (L, k)

    Returns
    -------
    means, standard_errors : ndarray, shape (n, k)
    """
    logits, values = np.asarray(logits), np.asarray(values)
    weights = np.exp(logits - logits.max(axis=0))
    weights /= weights.mean(axis=0)
    means = weights.T @ values / len(values)
    influence = weights[:, :, None] * (values[:, None] - means)
    return means, influence.std(axis=0) / np.sqrt(len(values))


def class_law(task: LDATask) -> GaussianMixture:
    """Return the law of X without its label: a mixture of two Gaussians, class +1 first."""
    priors, means = [task.prior_pos, 1 - task.prior_pos], [task.mean_pos, task.mean_neg]
    return GaussianMixture(priors, means, task.covariance)


def random_covariance(dim: int, rng: np.random.Generator, least: float) -> Array:
    """Return ``G G^T / dim + least * I`` with standard normal ``G``: eigenvalues above `least`."""
    root = rng.standard_normal((dim, dim))
    return root @ root.T / dim + least * np.eye(dim)
