r"""The denoising task of section 4 of the paper, its Bayes denoiser and the risks of others.

X is drawn from a Gaussian mixture, Z = X + noise of variance :math:`\xi^2` in each coordinate, and
a denoiser maps Z back. Attention denoisers read the law of Z as an infinite prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike

from mixattn._checks import (
    EQUALITY_RTOL,
    FloatArray,
    Frozen,
    as_array,
    as_scalar,
    frozen,
    is_finite,
)
from mixattn.attention import Head, MultiHead, ResidualMultiHead
from mixattn.denoising.gated import (
    GatedMap,
    TooManyAxesError,
    WhitenedTask,
    bayes_spread,
    excess_risk,
    excess_risk_and_gradient,
)
from mixattn.integrals.expectation import expectation
from mixattn.mixture import GaussianMixture

AttentionDenoiser = Head | MultiHead | ResidualMultiHead | GatedMap
Denoiser = AttentionDenoiser | Callable[[FloatArray], Any]


class RiskEstimate(float):
    """A risk: a float that knows how it was computed and how far off it may be.

    Parameters
    ----------
    value : float
    error : float
        Estimated absolute error, not negative.
    method : str
        "gate quadrature" (an integral over the few projections that the gates use), "tensor
        quadrature" or "Sobol points".
    """

    error: float
    method: str

    def __new__(cls, value: float, error: float, method: str) -> RiskEstimate:
        """Attach an estimated absolute error and a method to `value`."""
        self = super().__new__(cls, as_scalar("value", value))
        self.error = as_scalar("error", error, at_least=0.0)
        self.method = method
        return self

    def __getnewargs__(self) -> tuple[float, float, str]:  # type: ignore[override]
        """Arguments with which a copy is made."""
        return float(self), self.error, self.method


@dataclass(frozen=True, eq=False, init=False)
class DenoisingTask(Frozen):
    r"""Recover X of law `mixture` from :math:`Z = X + \varepsilon`.

    The noise is :math:`\varepsilon \sim \mathcal N(0, \xi^2 I)`, independent of X.

    Parameters
    ----------
    mixture : GaussianMixture
        Law of X: any number of components, covariances shared or not, degenerate or not.
    noise_variance : float
        :math:`\xi^2 > 0`.

    Attributes
    ----------
    noisy : GaussianMixture
        Law of Z, the prompt that attention denoisers read. Never degenerate.

    Raises
    ------
    ValueError
        If `mixture` is no GaussianMixture or the noise variance is not positive.

    Examples
    --------
    Two clusters in the plane, three units from the origin, with the noise of the paper's Figure 2:

    >>> import numpy as np
    >>> from mixattn import DenoisingTask, best_affine_denoiser, AffineDenoiser
    >>> mixture = GaussianMixture([0.5, 0.5], [[3.0, 0.0], [0.0, 3.0]], np.eye(2))
    >>> task = DenoisingTask(mixture, noise_variance=4.0)
    >>> round(task.bayes_risk(), 5)
    2.99006
    >>> round(task.excess_risk(AffineDenoiser(*best_affine_denoiser(task))), 5)
    0.12573
    """

    mixture: GaussianMixture
    noise_variance: float
    noisy: GaussianMixture

    def __init__(self, mixture: GaussianMixture, noise_variance: float) -> None:
        if not isinstance(mixture, GaussianMixture):
            raise ValueError(f"mixture: expected a GaussianMixture, got {type(mixture).__name__}")
        variance = as_scalar("noise_variance", noise_variance, above=0.0)
        self._set(mixture=mixture, noise_variance=variance, noisy=mixture.add_noise(variance))

    def __repr__(self) -> str:
        """Mixture in short and noise."""
        return f"DenoisingTask({self.mixture!r}, noise_variance={self.noise_variance:g})"

    @property
    def dim(self) -> int:
        """Dimension d of the space."""
        return self.mixture.dim

    @cached_property
    def components(self) -> GaussianMixture:
        """The components of positive weight: what a hypothesis on the components speaks of."""
        kept = self.mixture.weights > 0
        if kept.all():
            return self.mixture
        return GaussianMixture(
            self.mixture.weights[kept], self.mixture.means[kept], self.mixture.covariances[kept]
        )

    @property
    def within_variance(self) -> float | None:
        r""":math:`\gamma^2` if every component has the covariance :math:`\gamma^2 I`, else None."""
        covariances = self.components.covariances
        variance = float(np.trace(covariances[0])) / self.dim
        spread = np.abs(covariances - variance * np.eye(self.dim)).max()
        return variance if spread <= EQUALITY_RTOL * variance else None

    @property
    def has_equal_norms(self) -> bool:
        """Whether all means have the same norm, within a relative 1e-9."""
        norms = _norms(self.components.means)
        return bool(np.ptp(norms) <= EQUALITY_RTOL * norms.max())

    @property
    def has_opposite_means(self) -> bool:
        """Whether there are two components with means m and -m, within a relative 1e-9."""
        means = self.components.means
        if len(means) != 2:
            return False
        return bool(_norms(means.sum(axis=0)) <= EQUALITY_RTOL * _norms(means).max())

    def bayes_denoiser(self, z: ArrayLike) -> FloatArray:
        r"""Evaluate :math:`E[X \mid Z = z]` (Proposition C.1 of the paper), shape (..., d).

        .. math::
            f^*(z) = \sum_k \beta_k(z) \left(m_k + \Gamma_k S_k^{-1} (z - m_k)\right),
            \qquad S_k = \Gamma_k + \xi^2 I,

        where :math:`\beta_k(z) = P(C = k \mid Z = z)`. With one covariance for all components this
        is :math:`\Gamma S^{-1} z + \xi^2 S^{-1} \sum_k \beta_k(z) m_k`.

        Parameters
        ----------
        z : array_like, shape (..., d)

        Returns
        -------
        ndarray, shape (..., d)

        Raises
        ------
        ValueError
            If `z` has another shape or entries that are not finite.
        """
        points = as_array("z", z, (None, self.dim))
        beta = self.noisy.posterior(points)
        if self.mixture.shared_covariance:
            shrinkage = self._shrinkages[0]
            retained = self.mixture.means - self.mixture.means @ shrinkage.T
            return points @ shrinkage.T + beta @ retained
        value = np.zeros_like(points)
        for k, shrinkage in enumerate(self._shrinkages):
            mean = self.mixture.means[k]
            value += beta[..., k, None] * (mean + (points - mean) @ shrinkage.T)
        return value

    def bayes_risk(self, *, rtol: float | None = None) -> RiskEstimate:
        r"""Evaluate :math:`E|X - f^*(Z)|^2`, the smallest risk of any denoiser.

        It is the posterior variance within components, in closed form, plus the variance between
        them, :math:`E \sum_{k<l} \beta_k \beta_l |f_k - f_l|^2`, with :math:`f_k(z)` the posterior
        mean given component k: a one-dimensional integral for two components that share a
        covariance.

        Parameters
        ----------
        rtol : float, optional
            Relative accuracy demanded. By default the best that the method gives is returned.

        Returns
        -------
        RiskEstimate
            A float with its estimated `error` and its `method`.

        Raises
        ------
        ValueError
            If the estimated error exceeds `rtol`.
        """
        goal = _as_rtol(rtol)
        within = float(
            self.mixture.weights
            @ [self.noise_variance * np.trace(shrinkage) for shrinkage in self._shrinkages]
        )
        if self.mixture.shared_covariance:
            try:
                between, error = bayes_spread(self.whitened)
                error += self.dim * np.finfo(float).eps * within
                return _require_accuracy(
                    RiskEstimate(within + between, error, "gate quadrature"), rtol
                )
            except TooManyAxesError:
                pass
        between, error, method = expectation(
            self.noisy, self._between_components, goal, goal * within
        )
        return _require_accuracy(RiskEstimate(within + between, error, method), rtol)

    def excess_risk(self, denoiser: Denoiser, *, rtol: float | None = None) -> RiskEstimate:
        r"""Evaluate :math:`E|D(Z) - f^*(Z)|^2`, the risk of D above the Bayes risk.

        It is computed as this mean square, never as a difference of risks. For attention denoisers
        and affine maps on components that share a covariance the integral is over the few
        projections that the gates and the posterior use, whatever the dimension. Otherwise it is a
        tensor quadrature up to dimension 3, and beyond an average over scrambled Sobol points.

        Parameters
        ----------
        denoiser : Head, MultiHead, ResidualMultiHead, GatedMap, AffineDenoiser or callable
            Attention denoisers are read against `noisy`. A callable maps (n, d) to (n, d).
        rtol : float, optional
            Relative accuracy demanded. By default the best that the method gives is returned.

        Returns
        -------
        RiskEstimate
            A float with its estimated `error` and its `method`.

        Raises
        ------
        ValueError
            If the denoiser's values have another shape than its queries or are not finite, or if
            the estimated error exceeds `rtol` (beyond what rounding of the values allows).
        """
        goal = _as_rtol(rtol)
        gated = GatedMap.of(denoiser, self.dim)
        if gated is not None and self.mixture.shared_covariance:
            try:
                value, error = excess_risk(self.whitened, gated)
                return _require_accuracy(RiskEstimate(value, error, "gate quadrature"), rtol)
            except TooManyAxesError:
                pass
        evaluate = self._as_map(denoiser)

        def square(z: FloatArray) -> FloatArray:
            gap = evaluate(z) - self.bayes_denoiser(z)
            return np.sum(gap**2, axis=1)

        # the square of the rounding of the values: no accuracy below it
        floor = (1e-14) ** 2 * float(np.trace(self.noisy.second_moment))
        value, error, method = expectation(self.noisy, square, goal, floor)
        return _require_accuracy(RiskEstimate(value, error, method), rtol, floor)

    def excess_risk_gradient(
        self, denoiser: AttentionDenoiser
    ) -> tuple[float, FloatArray, FloatArray]:
        """Compute the exact excess risk of an attention denoiser and its gradient.

        Parameters
        ----------
        denoiser : Head, MultiHead, ResidualMultiHead or GatedMap
            H heads; read against `noisy`.

        Returns
        -------
        value : float
        grad_U, grad_P : ndarray, shape (H, d, d)
            Derivatives in the entries of each head's U and of what stands before its read: for
            plain heads, V. No number of BLAS threads changes a bit of them.

        Raises
        ------
        ValueError
            If `denoiser` is no attention denoiser, or the components do not share a covariance.
        """
        self._check_shared_covariance()
        gated = GatedMap.of(denoiser, self.dim)
        if gated is None or not len(gated.U):
            raise ValueError(f"denoiser: expected attention heads, got {type(denoiser).__name__}")
        return excess_risk_and_gradient(self.whitened, gated)

    def _check_shared_covariance(self) -> None:
        if not self.mixture.shared_covariance:
            raise ValueError("task: expected components of one covariance, got several")

    @cached_property
    def _shrinkages(self) -> tuple[FloatArray, ...]:
        """Gamma_k S_k^-1 of each component."""
        matrices = []
        for clean, noisy in zip(self.mixture.covariances, self.noisy.covariances, strict=True):
            factor = scipy.linalg.cho_factor(noisy, lower=True)
            matrices.append(scipy.linalg.cho_solve(factor, clean).T)
        return frozen(tuple(matrices))

    @cached_property
    def whitened(self) -> WhitenedTask:
        """The task with noisy components of covariance I, if they share one covariance."""
        with np.errstate(over="ignore", invalid="ignore"):
            whitened = WhitenedTask.of(self.mixture, self.noise_variance)
        if not is_finite(whitened.bayes_shifts):
            raise ValueError(
                "task: expected means whose squares, in units of the noisy covariance, are finite "
                "numbers, got means too large"
            )
        return whitened

    def _between_components(self, z: FloatArray) -> FloatArray:
        """Variance of the component's posterior mean under the posterior, at `z` (n, d)."""
        beta = self.noisy.posterior(z)
        means = [
            mean + (z - mean) @ shrinkage.T
            for mean, shrinkage in zip(self.mixture.means, self._shrinkages, strict=True)
        ]
        total = np.zeros(len(z))
        for k, mean in enumerate(means):
            for other in range(k):
                gap = np.sum((mean - means[other]) ** 2, axis=1)
                total += beta[:, k] * beta[:, other] * gap
        return total

    def _as_map(self, denoiser: Denoiser) -> Callable[[FloatArray], FloatArray]:
        if isinstance(denoiser, Head | MultiHead | ResidualMultiHead | GatedMap):
            return lambda z: denoiser(self.noisy, z)
        if not callable(denoiser):
            raise ValueError(
                "denoiser: expected a Head, MultiHead, ResidualMultiHead or a callable z -> D(z), "
                f"got {type(denoiser).__name__}"
            )
        # a copy: the denoiser may work in place
        return lambda z: as_array("denoiser(z)", denoiser(z.copy()), z.shape)


def _norms(vectors: FloatArray) -> FloatArray:
    """Norms over the last axis; the squares of huge entries must not overflow."""
    scale = np.abs(vectors).max(initial=np.finfo(float).tiny)
    return scale * np.linalg.norm(vectors / scale, axis=-1)


def as_denoising_task(task: Any) -> DenoisingTask:
    """Return `task` if it is a denoising task; anything else is refused by name."""
    if not isinstance(task, DenoisingTask):
        raise ValueError(f"task: expected a DenoisingTask, got {type(task).__name__}")
    return task


def _as_rtol(rtol: float | None) -> float:
    """Accuracy to refine to: the demanded one, or what a patient default aims at."""
    return 1e-10 if rtol is None else as_scalar("rtol", rtol, above=0.0)


def _require_accuracy(risk: RiskEstimate, rtol: float | None, floor: float = 0.0) -> RiskEstimate:
    if rtol is not None and risk.error > rtol * risk + floor:
        reached = risk.error / risk if risk > 0 else np.inf
        raise ValueError(
            f"rtol: asked for a relative accuracy of {rtol:g}, but {risk.method} reach "
            f"{reached:.1g} here (value {float(risk):.6g}, estimated error {risk.error:.1g})"
        )
    return risk
