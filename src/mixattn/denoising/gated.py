r"""The error of an attention denoiser as a function of a few projections of the query.

When the components share one covariance S after noise, every gate is a softmax of logits that are
affine in the query. In coordinates x where the noisy law has mean zero and covariance the identity
within components, the error of a denoiser with heads (U_h, V_h) is, with the last component as the
reference, :math:`D_k = m_k - m_M`,

.. math::
    e(x) = c + A x + \sum_h \sum_k (g_{hk} - \beta_k)\, p_{hk} + \sum_k \beta_k r_k ,
    \qquad p_{hk} = V_h D_k, \quad r_k = \sum_h V_h D_k - \xi^2 S^{-1} D_k .

The gates g_h and the posterior beta depend on x through the span of
:math:`L^\top U_h^\top D_k` and :math:`L^{-1} D_k`, where S = L L^T. That span holds the differences
of the means, so given the projection the rest of x is a centered Gaussian, whatever the component,
and its share of :math:`E|e|^2` is the squared norm of A off the span. What is left is an integral
over the span of a sum of squares, free of cancellation: the dimension d enters through linear
algebra only.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import scipy.linalg

from mixattn._checks import FloatArray
from mixattn.integrals.gates import gate_nodes, steepest_axes
from mixattn.mixture import GaussianMixture

# A nested rule in one more dimension than this costs too many nodes; in three, two digits less halve
# their number.
MAX_AXES = 3
_TOLERANCES = (1e-12, 1e-12, 1e-12, 1e-10)


class TooManyAxesError(Exception):
    """The gates depend on more projections than a nested rule can integrate over."""


@dataclass(frozen=True, eq=False)
class WhitenedTask:
    """A denoising task with a shared covariance, in whitened coordinates x = L^-1 (z - mean).

    Components of weight zero are left out. The last component left is the reference: `differences`
    and everything with K = M - 1 rows are relative to it.
    """

    weights: FloatArray  # (M,)
    mean: FloatArray  # (d,), of the mixture
    reference: FloatArray  # (d,), mean of the last component
    differences: FloatArray  # (K, d)
    covariance: FloatArray  # (d, d), S
    root: FloatArray  # (d, d), lower Cholesky factor of S
    shrinkage: FloatArray  # (d, d), Gamma S^-1
    noise_variance: float
    centers: FloatArray  # (M, d), whitened means
    log_odds: FloatArray  # (K,)
    bayes_slopes: FloatArray  # (K, d)
    bayes_shifts: FloatArray  # (K,), offsets of the posterior's logits less the log odds
    bayes_values: FloatArray  # (K, d), xi^2 S^-1 D_k

    @classmethod
    def of(cls, mixture: GaussianMixture, noise_variance: float) -> WhitenedTask:
        """Whiten the task of denoising `mixture`, whose components share one covariance."""
        kept = mixture.weights > 0
        weights, means = mixture.weights[kept], mixture.means[kept]
        clean = mixture.covariances[0]
        covariance = clean + noise_variance * np.eye(mixture.dim)
        root = np.linalg.cholesky(covariance)
        mean = weights @ means
        differences = means[:-1] - means[-1]
        centers = scipy.linalg.solve_triangular(root, (means - mean).T, lower=True).T
        slopes = scipy.linalg.solve_triangular(root, differences.T, lower=True).T
        midpoints = 0.5 * (centers[:-1] + centers[-1])
        factor = (root, True)
        return cls(
            weights=weights,
            mean=mean,
            reference=means[-1],
            differences=differences,
            covariance=covariance,
            root=root,
            shrinkage=scipy.linalg.cho_solve(factor, clean).T,
            noise_variance=noise_variance,
            centers=centers,
            log_odds=np.log(weights[:-1] / weights[-1]),
            bayes_slopes=slopes,
            bayes_shifts=-np.sum(slopes * midpoints, axis=1),
            bayes_values=noise_variance * scipy.linalg.cho_solve(factor, differences.T).T,
        )


@dataclass(frozen=True, eq=False)
class GatedMap:
    """z -> sum_h T_h(z) + skip z + offset, the form of every attention denoiser here."""

    U: FloatArray  # (H, d, d)
    V: FloatArray  # (H, d, d)
    skip: FloatArray  # (d, d)
    offset: FloatArray  # (d,)


def bayes_spread(task: WhitenedTask) -> tuple[float, float]:
    r"""Posterior variance that comes from not knowing the component, and an estimate of its error.

    :math:`E \sum_{k<l} \beta_k \beta_l |\xi^2 S^{-1} (m_k - m_l)|^2`, one-dimensional for two
    components.
    """
    axes = _axes(task.bayes_slopes)
    offsets = task.log_odds + task.bayes_shifts
    points, weights = _nodes(task, axes, task.bayes_slopes[None], offsets[None])
    beta, last = softmax(offsets[:, None] + task.bayes_slopes @ axes @ points.T)
    beta = np.concatenate([beta, last[None]])
    values = np.concatenate([task.bayes_values, np.zeros((1, len(task.mean)))])
    total = 0.0
    for k, other in combinations(range(len(values)), 2):
        gap = values[k] - values[other]
        total += float(weights @ (beta[k] * beta[other])) * float(gap @ gap)
    return total, 10.0 * _TOLERANCES[axes.shape[1]] * total


def excess_risk(task: WhitenedTask, denoiser: GatedMap) -> tuple[float, float]:
    """E|D(Z) - f*(Z)|^2 and an estimate of its error.

    Raises `TooManyAxesError` if even two heads at a time need more than `MAX_AXES` projections.
    """
    value = error = 0.0
    for coefficient, heads in _head_subsets(task, denoiser):
        part = _ErrorExpansion(task, denoiser, heads)
        value += coefficient * part.mean_square()
        error += abs(coefficient) * part.error_estimate()
    return max(value, 0.0), error


def excess_risk_and_gradient(
    task: WhitenedTask, denoiser: GatedMap
) -> tuple[float, FloatArray, FloatArray]:
    """Excess risk and its gradient in U and in V, both of shape (H, d, d)."""
    value = 0.0
    grad_U, grad_V = np.zeros_like(denoiser.U), np.zeros_like(denoiser.V)
    for coefficient, heads in _head_subsets(task, denoiser):
        part = _ErrorExpansion(task, denoiser, heads)
        value += coefficient * part.mean_square()
        part_U, part_V = part.gradient()
        grad_U += coefficient * part_U
        grad_V += coefficient * part_V
    return max(value, 0.0), grad_U, grad_V


def _head_subsets(task: WhitenedTask, denoiser: GatedMap) -> Iterator[tuple[float, list[int]]]:
    """Subsets J of heads and coefficients with excess = sum of coefficient * Q(J).

    Q(J) is the mean square of the error with the gates of the heads outside J replaced by the
    posterior. It is quadratic in the heads, so pairs determine it:
    Q(all) = sum_pairs Q - (H - 2) sum_singles Q + (H - 1)(H - 2)/2 Q(none).
    One direct integral is used where the axes are few enough: it has no cancellation.
    """
    count = len(denoiser.U)
    everything = list(range(count))
    if count <= 2 or _count_axes(task, denoiser, everything) <= MAX_AXES:
        yield 1.0, everything
        return
    for pair in combinations(everything, 2):
        yield 1.0, list(pair)
    for head in everything:
        yield 2.0 - count, [head]
    yield 0.5 * (count - 1) * (count - 2), []


def _count_axes(task: WhitenedTask, denoiser: GatedMap, heads: list[int]) -> int:
    slopes = [task.bayes_slopes, *(task.differences @ denoiser.U[h] @ task.root for h in heads)]
    return int(steepest_axes(np.concatenate(slopes)).shape[1])


class _ErrorExpansion:
    """The error with the gates of `heads` in place and the posterior in the other heads' gates.

    Node arrays have the nodes along their last axis. `matrix` (d, 1 + r + J K + K) maps the
    features (1, y, gates less posterior, posterior) to the error's mean given the projection y.
    """

    def __init__(self, task: WhitenedTask, denoiser: GatedMap, heads: list[int]) -> None:
        self.task, self.denoiser, self.heads = task, denoiser, heads
        U, V = denoiser.U, denoiser.V
        D = task.differences
        n_diff, dim = D.shape
        whitened_slopes = (D @ U[heads] @ task.root).reshape(len(heads), n_diff, dim)
        log_ratio_slopes = whitened_slopes - task.bayes_slopes
        log_ratio_shifts = (D @ U[heads] @ task.mean) - task.bayes_shifts
        slopes = np.concatenate([task.bayes_slopes[None], whitened_slopes])
        shifts = np.concatenate([task.bayes_shifts[None], log_ratio_shifts + task.bayes_shifts])
        self.axes = _axes(slopes.reshape(-1, dim))
        points, self.weights = _nodes(task, self.axes, slopes, task.log_odds + shifts)
        y = points.T
        offsets = (task.log_odds + task.bayes_shifts)[:, None]
        logits = offsets + task.bayes_slopes @ self.axes @ y
        self.beta, _ = softmax(logits)
        log_ratio = log_ratio_shifts[..., None] + log_ratio_slopes @ self.axes @ y
        self.delta = _softmax_change(logits, self.beta, log_ratio)
        self.features = np.concatenate(
            [np.ones((1, y.shape[1])), y, self.delta.reshape(-1, y.shape[1]), self.beta]
        )

        linear = (V @ task.covariance @ U).sum(axis=0) + denoiser.skip - task.shrinkage
        constant = (
            linear @ task.mean
            + denoiser.offset
            + V.sum(axis=0) @ task.reference
            - (task.reference - task.shrinkage @ task.reference)
        )
        self.linear = linear @ task.root
        self.off_axes = self.linear - self.linear @ self.axes @ self.axes.T
        if self.axes.shape[1] == dim:
            self.off_axes = np.zeros_like(self.linear)
        self.gate_values = (V[heads] @ D.T).transpose(0, 2, 1)  # (J, K, d)
        posterior_values = D @ V.sum(axis=0).T - task.bayes_values
        matrix = np.concatenate(
            [
                constant[:, None],
                self.linear @ self.axes,
                self.gate_values.reshape(-1, dim).T,
                posterior_values.T,
            ],
            axis=1,
        )
        # the error lies in the span of a few vectors: work with its coordinates there
        self.span, self.coordinates = np.linalg.qr(matrix)
        self.error = self.coordinates @ self.features

    def mean_square(self) -> float:
        return float(self.weights @ np.sum(self.error**2, axis=0) + np.sum(self.off_axes**2))

    def error_estimate(self) -> float:
        """Quadrature error aimed at, plus the rounding of the error's terms."""
        value, tolerance = self.mean_square(), _TOLERANCES[self.axes.shape[1]]
        terms = np.sum(self.coordinates**2, axis=0) @ self.features**2 @ self.weights
        task = self.task
        bayes_terms = np.sum((task.shrinkage @ task.root) ** 2) + np.sum(task.bayes_values**2)
        rounding = 10.0 * np.finfo(float).eps * float(np.sqrt(terms + bayes_terms))
        return float(10.0 * tolerance * value + rounding * (2.0 * np.sqrt(value) + rounding))

    def gradient(self) -> tuple[FloatArray, FloatArray]:
        task, U, V = self.task, self.denoiser.U, self.denoiser.V
        n_axes, n_diff = self.axes.shape[1], len(task.differences)
        weighted = self.error * self.weights
        moments = self.span @ (weighted @ self.features.T)
        mean_error = moments[:, 0]
        with_x = moments[:, 1 : 1 + n_axes] @ self.axes.T + self.off_axes
        with_query = np.outer(mean_error, task.mean) + with_x @ task.root.T
        with_delta, with_beta = np.split(
            moments[:, 1 + n_axes :], [self.delta[..., 0].size], axis=1
        )

        grad_U = 2.0 * task.covariance @ V.transpose(0, 2, 1) @ with_query
        grad_V = 2.0 * with_query @ U.transpose(0, 2, 1) @ task.covariance
        grad_V += 2.0 * (np.outer(mean_error, task.reference) + with_beta @ task.differences)
        for j, head in enumerate(self.heads):
            columns = slice(j * n_diff, (j + 1) * n_diff)
            grad_V[head] += 2.0 * with_delta[:, columns] @ task.differences
            grad_U[head] += 2.0 * task.differences.T @ self._gate_moments(j, weighted)
        return grad_U, grad_V

    def _gate_moments(self, j: int, weighted: FloatArray) -> FloatArray:
        """E[(d e / d logit_k)^T e z] for the logits of head j, shape (K, d)."""
        task = self.task
        gates = self.beta + self.delta[j]
        along = (self.gate_values[j] @ self.span) @ weighted
        sensitivity = gates * (along - np.sum(gates * along, axis=0))
        y = self.features[1 : 1 + self.axes.shape[1]]
        in_axes = sensitivity @ y.T @ self.axes.T
        # mean of d e / d logit_k, which meets the part of the error off the axes
        jacobian = -(gates * self.weights) @ gates.T
        jacobian[np.diag_indices_from(jacobian)] += gates @ self.weights
        off_axes = (jacobian @ self.gate_values[j]) @ self.off_axes
        centered: FloatArray = (in_axes + off_axes) @ task.root.T
        return centered + np.outer(sensitivity.sum(axis=1), task.mean)


def _axes(slopes: FloatArray) -> FloatArray:
    axes = steepest_axes(slopes)
    if axes.shape[1] > MAX_AXES:
        raise TooManyAxesError
    return axes


def _nodes(
    task: WhitenedTask, axes: FloatArray, slopes: FloatArray, offsets: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Nodes for softmax gates of slopes (G, K, d) and offsets (G, K).

    A softmax bends where two of its logits cross: the K against the reference's, and one another.
    """
    pairs = list(combinations(range(slopes.shape[1]), 2))
    crossing_slopes = [slopes, *(slopes[:, [k]] - slopes[:, [other]] for k, other in pairs)]
    crossing_offsets = [offsets, *(offsets[:, [k]] - offsets[:, [other]] for k, other in pairs)]
    return gate_nodes(
        task.centers @ axes,
        task.weights,
        np.concatenate(crossing_slopes, axis=1).reshape(-1, axes.shape[0]) @ axes,
        np.concatenate(crossing_offsets, axis=1).ravel(),
        _TOLERANCES[axes.shape[1]],
    )


def softmax(logits: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Softmax over axis -2 of logits (..., K, n) and a reference of logit 0: gates, reference's."""
    peak = np.maximum(logits.max(axis=-2, initial=0.0), 0.0)
    gates = np.exp(logits - peak[..., None, :])
    last = np.exp(-peak)
    total = gates.sum(axis=-2) + last
    return gates / total[..., None, :], last / total


def _softmax_change(logits: FloatArray, gates: FloatArray, change: FloatArray) -> FloatArray:
    """softmax(logits + change) - softmax(logits), with all its digits where the change is small."""
    direct = softmax(logits + change)[0] - gates
    small = np.abs(change).max(axis=-2, initial=0.0)[..., None, :] <= 1.0
    growth = np.expm1(np.where(small, change, 0.0))
    mean_growth = np.sum(gates * growth, axis=-2, keepdims=True)
    result: FloatArray = np.where(
        small, gates * (growth - mean_growth) / (1.0 + mean_growth), direct
    )
    return result
