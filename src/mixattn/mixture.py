"""Gaussian mixtures: sampling, density, cumulant generating function and its derivatives.

The population attention operator is the gradient of the cumulant generating function
``K(t) = log E exp(t^T X)`` of the prompt's law, so everything that attention needs of a mixture is
here: ``cgf``, its gradient ``tilted_mean``, its Hessian ``tilted_covariance`` and the softmax
``gates`` that both share.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike, NDArray
from scipy.special import logsumexp, softmax

from mixattn._checks import (
    FloatArray,
    Frozen,
    as_array,
    as_covariance,
    as_generator,
    as_integer,
    as_scalar,
    as_weights,
    frozen,
    is_finite,
)
from mixattn._parallel import slices, thread_map


@dataclass(frozen=True, eq=False, init=False, repr=False)
class GaussianMixture(Frozen):
    r"""The law :math:`\mu = \sum_k \pi_k \mathcal N(m_k, \Gamma_k)` on :math:`\mathbb R^d`.

    Parameters
    ----------
    weights : array_like, shape (M,)
        Nonnegative, zero allowed; must sum to 1 within 1e-8 and are renormalized.
    means : array_like, shape (M, d)
    covariances : array_like, shape (d, d) or (M, d, d)
        Symmetric positive semidefinite, so degenerate components and point masses (zero) are
        allowed. One matrix of shape (d, d) is shared by all components.

    Attributes
    ----------
    weights, means : ndarray
        As given, read-only.
    covariances : ndarray, shape (M, d, d)
        One matrix a component, read-only.
    shared_covariance : bool
        Whether all components have the same covariance.

    Raises
    ------
    ValueError
        If a shape, a weight or a covariance is not as above, or an entry is not finite.

    Examples
    --------
    >>> import numpy as np
    >>> from mixattn import GaussianMixture
    >>> mixture = GaussianMixture([0.5, 0.5], [[1.0, 0.0], [-1.0, 0.0]], np.eye(2))
    >>> mixture.mean
    array([0., 0.])
    >>> mixture.covariance
    array([[2., 0.],
           [0., 1.]])
    """

    weights: FloatArray
    means: FloatArray
    covariances: FloatArray
    shared_covariance: bool

    def __init__(self, weights: ArrayLike, means: ArrayLike, covariances: ArrayLike) -> None:
        pi = as_weights("weights", weights)
        m = as_array("means", means, (len(pi), "d"))
        gamma = _as_covariances(covariances, *m.shape)
        shared = bool((gamma == gamma[0]).all())
        self._set(weights=pi, means=m, covariances=gamma, shared_covariance=shared)

    def __repr__(self) -> str:
        """Dimensions, not entries."""
        shared = ", shared_covariance=True" if self.shared_covariance else ""
        return f"GaussianMixture(n_components={self.n_components}, dim={self.dim}{shared})"

    @property
    def dim(self) -> int:
        """Dimension d of the space."""
        return int(self.means.shape[1])

    @property
    def n_components(self) -> int:
        """Number M of components, those of weight zero included."""
        return int(self.means.shape[0])

    @property
    def mean(self) -> FloatArray:
        r"""Mean :math:`\sum_k \pi_k m_k`, shape (d,)."""
        return self.weights @ self.means

    @property
    def covariance(self) -> FloatArray:
        """Covariance within plus between components, shape (d, d)."""
        return self._mean_covariance + self._spread(self.means - self.mean)

    @property
    def second_moment(self) -> FloatArray:
        r"""Second moment :math:`E[X X^\top]`, shape (d, d)."""
        return self._mean_covariance + self._spread(self.means)

    def _spread(self, points: FloatArray) -> FloatArray:
        with np.errstate(over="ignore", invalid="ignore"):
            spread = (points.T * self.weights) @ points
        if not is_finite(spread):
            raise ValueError(
                "means: expected means whose squares are finite numbers, got too large"
            )
        return spread

    def sample(self, n: int, rng: np.random.Generator) -> tuple[FloatArray, NDArray[np.intp]]:
        """Draw `n` independent points and the components that they came from.

        Parameters
        ----------
        n : int
            Number of points, at least 0.
        rng : numpy.random.Generator

        Returns
        -------
        x : ndarray, shape (n, d)
        labels : ndarray of int, shape (n,)
        """
        n = as_integer("n", n)
        rng = as_generator(rng)
        labels = rng.choice(self.n_components, size=n, p=self.weights)
        noise = rng.standard_normal((n, self.dim))
        x = np.empty((n, self.dim))
        for k, root in enumerate(self._roots):
            drawn = labels == k
            x[drawn] = self.means[k] + noise[drawn] @ root.T
        return x, labels

    def log_density(self, x: ArrayLike) -> FloatArray:
        r"""Log density :math:`\log p(x)`.

        Parameters
        ----------
        x : array_like, shape (..., d)

        Returns
        -------
        ndarray, shape (...)

        Raises
        ------
        ValueError
            If a component of positive weight has a singular covariance: there is no density.
        """
        log_terms, _ = self._log_weighted_densities(x)
        return logsumexp(log_terms, axis=-1)

    def posterior(self, x: ArrayLike) -> FloatArray:
        """Probability of each component given `x`, shape (..., M).

        Raises `ValueError` as `log_density` does.
        """
        log_terms, _ = self._log_weighted_densities(x)
        return softmax(log_terms, axis=-1)

    def score(self, x: ArrayLike) -> FloatArray:
        r"""Score :math:`\nabla \log p(x)`, shape (..., d).

        Raises `ValueError` as `log_density` does.
        """
        log_terms, pulls = self._log_weighted_densities(x)
        return -np.einsum("...k,...kd->...d", softmax(log_terms, axis=-1), pulls)

    def add_noise(self, variance: float) -> GaussianMixture:
        r"""Law of :math:`X + \varepsilon`, :math:`\varepsilon \sim \mathcal N(0, v I)`.

        Parameters
        ----------
        variance : float
            The variance v of each coordinate of the noise, at least 0.
        """
        variance = as_scalar("variance", variance, at_least=0.0)
        noisy = self.covariances + variance * np.eye(self.dim)
        return GaussianMixture(self.weights, self.means, noisy)

    def cgf(self, t: ArrayLike) -> FloatArray:
        r"""Cumulant generating function :math:`K(t) = \log E \exp(t^\top X)`.

        .. math::
            K(t) = \log \sum_k \pi_k \exp(m_k^\top t + \tfrac12 t^\top \Gamma_k t).

        Parameters
        ----------
        t : array_like, shape (..., d)
            The tilt.

        Returns
        -------
        ndarray, shape (...)
        """
        return self._over_tilts(self._cgf, t)

    def gates(self, t: ArrayLike) -> FloatArray:
        r"""Softmax gates of Proposition 2.1, shape (..., M).

        .. math::
            a_k(t) = \mathrm{softmax}_k(\log \pi_k + m_k^\top t + \tfrac12 t^\top \Gamma_k t),

        the weights of the tilted law :math:`e^{t^\top x - K(t)} \mu(dx)`, itself a mixture of
        Gaussians of means :math:`m_k + \Gamma_k t`.

        Arguments and errors are those of `cgf`.
        """
        return self._over_tilts(self._gates, t, self.n_components)

    def tilted_mean(self, t: ArrayLike) -> FloatArray:
        r"""Mean of the tilted law, :math:`\nabla K(t) = \sum_k a_k(t) (m_k + \Gamma_k t)`.

        Shape (..., d). Arguments and errors are those of `cgf`.
        """
        return self._over_tilts(self._tilted_mean, t, self.dim)

    def tilted_covariance(self, t: ArrayLike) -> FloatArray:
        r"""Covariance of the tilted law, :math:`\nabla^2 K(t)`, shape (..., d, d).

        The mean of the component covariances plus the covariance of the component means
        :math:`m_k + \Gamma_k t`, both under the gates. Arguments and errors are those of `cgf`.
        """
        return self._over_tilts(self._tilted_covariance, t, self.dim, self.dim)

    @cached_property
    def _mean_covariance(self) -> FloatArray:
        if self.shared_covariance:
            return self.covariances[0]
        return frozen(np.tensordot(self.weights, self.covariances, axes=1))

    @cached_property
    def _log_weights(self) -> FloatArray:
        with np.errstate(divide="ignore"):
            return frozen(np.log(self.weights))

    @cached_property
    def _roots(self) -> tuple[FloatArray, ...]:
        """One factor F a component with F F^T the covariance, singular ones included."""
        roots = []
        for covariance in self.covariances:
            eigenvalues, vectors = np.linalg.eigh(covariance)
            roots.append(vectors * np.sqrt(np.maximum(eigenvalues, 0.0)))
        return frozen(tuple(roots))

    @cached_property
    def _cholesky_factors(self) -> tuple[tuple[int, FloatArray], ...]:
        """Components of positive weight and their lower factors."""
        factors = []
        for k in map(int, np.flatnonzero(self.weights > 0)):
            eigenvalues = np.linalg.eigvalsh(self.covariances[k])
            if eigenvalues[0] <= self.dim * np.finfo(float).eps * eigenvalues[-1]:
                raise ValueError(
                    f"covariances: component {k} is singular (eigenvalues from "
                    f"{eigenvalues[0]:g} to {eigenvalues[-1]:g}), so the mixture has no density; "
                    "expected positive definite covariances: add noise first, "
                    "mixture.add_noise(variance)"
                )
            factors.append((k, np.linalg.cholesky(self.covariances[k])))
        return frozen(tuple(factors))

    def _log_weighted_densities(self, x: ArrayLike) -> tuple[FloatArray, FloatArray]:
        """log(pi_k p_k(x)), shape (..., M), and Gamma_k^-1 (x - m_k), shape (..., M, d)."""
        x = as_array("x", x, (None, self.dim), copy=False)
        points = x.reshape(-1, self.dim)
        log_terms = np.full((len(points), self.n_components), -np.inf)
        pulls = np.zeros((len(points), self.n_components, self.dim))
        with np.errstate(over="ignore", invalid="ignore"):
            for k, factor in self._cholesky_factors:
                centered = points - self.means[k]
                pulls[:, k] = scipy.linalg.cho_solve((factor, True), centered.T).T
                log_terms[:, k] = (
                    self._log_weights[k]
                    - 0.5 * np.sum(centered * pulls[:, k], axis=-1)
                    - np.log(np.diag(factor)).sum()
                    - 0.5 * self.dim * np.log(2 * np.pi)
                )
        if not is_finite(log_terms[:, self.weights > 0]):
            raise ValueError("x: expected points of finite log density, got one that overflows")
        lead = x.shape[:-1]
        return (
            log_terms.reshape(*lead, self.n_components),
            pulls.reshape(*lead, self.n_components, self.dim),
        )

    def _over_tilts(
        self, function: Callable[[FloatArray], FloatArray], t: ArrayLike, *shape: int
    ) -> FloatArray:
        """Values of `function`, of tilts (n, d) to (n, *shape), at `t` (..., d)."""
        t = as_array("t", t, (None, self.dim), copy=False)
        tilts = t.reshape(-1, self.dim)
        values = np.empty((len(tilts), *shape))

        def fill(rows: slice) -> None:
            with np.errstate(over="ignore", invalid="ignore"):
                values[rows] = function(tilts[rows])

        rows = max(_SHORTEST_BLOCK, _BLOCK // (self.n_components * self.dim))
        with thread_map(2 * tilts.size * self.n_components * self.dim) as ordered_map:
            for _ in ordered_map(fill, slices(len(tilts), rows)):
                pass
        if not is_finite(values):
            raise ValueError(
                "t: expected a tilt whose exponent t^T m + t^T Gamma t / 2 is a finite number, "
                "got one that overflows"
            )
        return values.reshape((*t.shape[:-1], *shape))

    def _relative_logits(self, t: FloatArray) -> FloatArray:
        """Gate logits less what all components share, shape (M, n) for tilts (n, d).

        The mean and the mean covariance are taken out first: what is common cancels in the
        softmax, and left in it would cost the digits that the differences need.
        """
        logits = self._log_weights[:, None] + (self.means - self.mean) @ t.T
        if not self.shared_covariance:
            excess = self.covariances - self._mean_covariance
            logits += 0.5 * np.einsum("ni,kni->kn", t, t @ excess)
        return logits

    def _cgf(self, t: FloatArray) -> FloatArray:
        common = t @ self.mean + 0.5 * np.einsum("ni,ni->n", t, t @ self._mean_covariance)
        return common + logsumexp(self._relative_logits(t), axis=0)

    def _gates(self, t: FloatArray) -> FloatArray:
        return softmax(self._relative_logits(t), axis=0).T

    def _tilted_mean(self, t: FloatArray) -> FloatArray:
        gates = self._gates(t)
        mean = gates @ self.means
        if self.shared_covariance:
            mean += t @ self.covariances[0]
        else:
            mean += np.einsum("nk,kni->ni", gates, t @ self.covariances)
        return mean

    def _tilted_covariance(self, t: FloatArray) -> FloatArray:
        gates = self._gates(t)
        centers = self.means[:, None] + t @ self.covariances
        centers -= np.einsum("nk,kni->ni", gates, centers)
        covariance = np.tensordot(gates, self.covariances, axes=1)
        centers *= np.sqrt(gates.T)[..., None]
        covariance += np.einsum("kni,knj->nij", centers, centers)
        return covariance


# Tilts are taken in blocks, so many that M x d numbers for each of them stay in a core's cache.
_BLOCK = 2**17
_SHORTEST_BLOCK = 64


def _as_covariances(value: Any, n_components: int, dim: int) -> FloatArray:
    shared, own = (dim, dim), (n_components, dim, dim)
    given = as_array("covariances", value, (None,), copy=False)
    if given.shape == shared:
        matrix = as_covariance("covariances", given, dim)
        return np.repeat(matrix[None], n_components, axis=0)
    if given.shape == own:
        return np.stack(
            [as_covariance(f"covariances[{k}]", each, dim) for k, each in enumerate(given)]
        )
    raise ValueError(
        f"covariances: expected shape {shared} (shared) or {own} (one a component), "
        f"got {given.shape}"
    )
