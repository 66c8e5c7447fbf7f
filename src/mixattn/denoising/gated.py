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
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
import scipy.linalg
from numpy.typing import ArrayLike

from mixattn._checks import (
    FloatArray,
    Frozen,
    as_array,
    as_generator,
    as_integer,
    as_scalar,
    is_finite,
)
from mixattn._parallel import single_threaded_blas
from mixattn.attention import Head, MultiHead, ResidualMultiHead
from mixattn.integrals.gates import gate_nodes, steepest_axes
from mixattn.mixture import GaussianMixture

# A nested rule in one more dimension than this costs too many nodes; in three, two digits less
# halve their number.
MAX_AXES = 3
_TOLERANCES = (1e-12, 1e-12, 1e-12, 1e-10)
# Squares of steeper gates would overflow.
_STEEPEST = 1e150


class TooManyAxesError(Exception):
    """The gates depend on more projections than a nested rule can integrate over."""


class UnresolvedError(ValueError):
    """Parameters so large that floating point does not resolve the excess risk."""


@dataclass(frozen=True, eq=False, init=False)
class AffineDenoiser(Frozen):
    """The map z -> A z + c. Its excess risk is an integral over the posterior's projection only.

    Parameters
    ----------
    A : array_like, shape (d, d)
    c : array_like, shape (d,), optional
        Zero by default: a linear map.
    """

    A: FloatArray
    c: FloatArray

    def __init__(self, A: ArrayLike, c: ArrayLike | None = None) -> None:
        matrix = as_array("A", A, ("d", "d"))
        matrix = as_array("A", matrix, (len(matrix), len(matrix)))
        offset = np.zeros(len(matrix)) if c is None else as_array("c", c, (len(matrix),))
        self._set(A=matrix, c=offset)

    def __repr__(self) -> str:
        """Dimension, not entries."""
        return f"AffineDenoiser(dim={len(self.A)})"

    def __call__(self, z: ArrayLike) -> FloatArray:
        """Value at `z` (..., d), shape (..., d)."""
        points = as_array("z", z, (None, len(self.A)), copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            return _finite("z", points @ self.A.T + self.c)


@dataclass(frozen=True, eq=False, init=False)
class GatedMap(Frozen):
    r"""What an attention denoiser computes: :math:`D(z) = A z + c + \sum_h P_h \nabla K(U_h z)`.

    An affine map plus gated terms: :math:`\nabla K` is the read of the prompt's law. A sum of plain
    heads has A = 0 and :math:`P_h = V_h`; a residual layer with blocks :math:`W_h` of
    :math:`W_{out}` has :math:`A = \sum_h W_h, P_h = W_h V_h` (section 4 of the paper).

    Parameters
    ----------
    A : array_like, shape (d, d)
    P, U : array_like, shape (H, d, d)
    c : array_like, shape (d,), optional
        Zero by default.

    Raises
    ------
    ValueError
        If a shape does not fit or an entry is not finite.
    """

    A: FloatArray
    P: FloatArray
    U: FloatArray
    c: FloatArray

    def __init__(
        self, A: ArrayLike, P: ArrayLike, U: ArrayLike, c: ArrayLike | None = None
    ) -> None:
        linear = as_array("A", A, ("d", "d"))
        dim = len(linear)
        blocks = as_array("U", U, (None, dim, dim))
        blocks = as_array("U", blocks, (len(blocks), dim, dim))
        self._set(
            A=as_array("A", linear, (dim, dim)),
            P=as_array("P", P, blocks.shape),
            U=blocks,
            c=np.zeros(dim) if c is None else as_array("c", c, (dim,)),
        )

    def __repr__(self) -> str:
        """Sizes, not entries."""
        return f"GatedMap(n_heads={len(self.U)}, dim={len(self.A)})"

    @classmethod
    def of(cls, denoiser: Any, dim: int) -> GatedMap | None:
        """Read an attention or affine denoiser of dimension `dim`; None for any other callable.

        Parameters
        ----------
        denoiser : Head, MultiHead, ResidualMultiHead, AffineDenoiser, GatedMap or callable
        dim : int

        Returns
        -------
        GatedMap or None

        Raises
        ------
        ValueError
            If the denoiser has another dimension.
        """
        if isinstance(denoiser, GatedMap):
            as_array("denoiser.A", denoiser.A, (dim, dim))
            return denoiser
        none = np.zeros((0, dim, dim))
        if isinstance(denoiser, AffineDenoiser):
            return cls(as_array("denoiser.A", denoiser.A, (dim, dim)), none, none, denoiser.c)
        if isinstance(denoiser, Head):
            denoiser = MultiHead([denoiser])
        if not isinstance(denoiser, MultiHead | ResidualMultiHead):
            return None
        U = np.stack([as_array("denoiser: U", head.U, (dim, dim)) for head in denoiser.heads])
        V = np.stack([as_array("denoiser: V", head.V, (dim, dim)) for head in denoiser.heads])
        if isinstance(denoiser, MultiHead):
            return cls(np.zeros((dim, dim)), V, U)
        as_array("denoiser: W_out", denoiser.W_out, (dim, len(V) * dim))
        blocks = denoiser.W_out.reshape(dim, len(V), dim).transpose(1, 0, 2)
        with np.errstate(over="ignore", invalid="ignore"):
            return cls(blocks.sum(axis=0), blocks @ V, U)

    @classmethod
    def random(
        cls, dim: int, n_heads: int, rng: np.random.Generator, scale: float = 0.5
    ) -> GatedMap:
        """Draw A, P and U with independent entries of law N(0, scale^2 / d).

        Parameters
        ----------
        dim, n_heads : int
            At least 1.
        rng : numpy.random.Generator
        scale : float
            Positive.

        Returns
        -------
        GatedMap
        """
        dim = as_integer("dim", dim, at_least=1)
        count = as_integer("n_heads", n_heads, at_least=1)
        size = as_scalar("scale", scale, above=0.0) / np.sqrt(dim)
        draws = size * as_generator(rng).standard_normal((2 * count + 1, dim, dim))
        return cls(draws[0], draws[1 : count + 1], draws[count + 1 :])

    def __call__(self, mixture: GaussianMixture, queries: ArrayLike) -> FloatArray:
        """Output at `queries` (..., d), read against the law `mixture`, shape (..., d)."""
        if not isinstance(mixture, GaussianMixture) or mixture.dim != len(self.A):
            raise ValueError(
                f"mixture: expected a GaussianMixture in dimension {len(self.A)}, got {mixture!r}"
            )
        z = as_array("queries", queries, (None, len(self.A)), copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            output = z @ self.A.T + self.c
            for P, U in zip(self.P, self.U, strict=True):
                output = output + mixture.tilted_mean(z @ U.T) @ P.T
        return _finite("queries", output)

    def linear_part(self, total_variance: float) -> FloatArray:
        r""":math:`A + s^2 \sum_h P_h U_h`, the linear part at covariance s^2 I, shape (d, d)."""
        s2 = as_scalar("total_variance", total_variance, above=0.0)
        with np.errstate(over="ignore", invalid="ignore"):
            linear = self.A + s2 * np.sum(self.P @ self.U, axis=0)
        return _finite("total_variance", linear)

    def to_vector(self) -> FloatArray:
        """Return A, P, U, row by row, shape ((2H + 1) d^2,); c is no parameter."""
        return np.concatenate([self.A.ravel(), self.P.ravel(), self.U.ravel()])

    @classmethod
    def from_vector(cls, vector: ArrayLike, dim: int, n_heads: int) -> GatedMap:
        """Inverse of `to_vector` for c = 0."""
        dim = as_integer("dim", dim, at_least=1)
        count = as_integer("n_heads", n_heads, at_least=1)
        blocks = as_array("vector", vector, ((2 * count + 1) * dim * dim,)).reshape(-1, dim, dim)
        return cls(blocks[0], blocks[1 : count + 1], blocks[count + 1 :])


def _finite(name: str, output: FloatArray) -> FloatArray:
    if not is_finite(output):
        raise ValueError(f"{name}: expected an output of finite size, got one that overflows")
    return output


@dataclass(frozen=True, eq=False)
class WhitenedTask(Frozen):
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

    def __post_init__(self) -> None:
        """Mark the arrays as read-only."""
        self._set(**vars(self))

    @classmethod
    def of(cls, mixture: GaussianMixture, noise_variance: float) -> WhitenedTask:
        """Whiten the task of denoising `mixture`, whose components share one covariance."""
        kept = mixture.weights > 0
        weights, means = mixture.weights[kept], mixture.means[kept]
        clean = mixture.covariances[0]
        covariance = clean + noise_variance * np.eye(mixture.dim)
        differences = means[:-1] - means[-1]
        with _same_bits():
            mean = weights @ means
            root = np.linalg.cholesky(covariance)
            factor = (root, True)
            centers = scipy.linalg.solve_triangular(root, (means - mean).T, lower=True).T
            slopes = scipy.linalg.solve_triangular(root, differences.T, lower=True).T
            midpoints = 0.5 * (centers[:-1] + centers[-1])
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


def bayes_spread(task: WhitenedTask) -> tuple[float, float]:
    r"""Posterior variance that comes from not knowing the component, and an estimate of its error.

    :math:`E \sum_{k<l} \beta_k \beta_l |\xi^2 S^{-1} (m_k - m_l)|^2`, one-dimensional for two
    components.
    """
    total = 0.0
    with _same_bits():
        axes = _axes(task.bayes_slopes)
        offsets = task.log_odds + task.bayes_shifts
        points, weights = _nodes(task, axes, task.bayes_slopes[None], offsets[None])
        beta, last = softmax(offsets[:, None] + task.bayes_slopes @ axes @ points.T)
        beta = np.concatenate([beta, last[None]])
        values = np.concatenate([task.bayes_values, np.zeros((1, len(task.mean)))])
        for k, other in combinations(range(len(values)), 2):
            gap = values[k] - values[other]
            total += float(weights @ (beta[k] * beta[other])) * float(gap @ gap)
    return _resolved(total), 10.0 * _TOLERANCES[axes.shape[1]] * total


def excess_risk(task: WhitenedTask, denoiser: GatedMap) -> tuple[float, float]:
    """E|D(Z) - f*(Z)|^2 and an estimate of its error.

    Raises `TooManyAxesError` if even two heads at a time need more than `MAX_AXES` projections.
    """
    value = error = 0.0
    with _same_bits():
        for coefficient, heads in _head_subsets(task, denoiser):
            part = _MeanSquareError(task, denoiser, heads)
            value += coefficient * part.value
            error += abs(coefficient) * part.error_estimate()
    return max(_resolved(value), 0.0), error


def excess_risk_and_gradient(
    task: WhitenedTask, denoiser: GatedMap
) -> tuple[float, FloatArray, FloatArray]:
    """Excess risk and its gradient in U and in P, both of shape (H, d, d)."""
    value = 0.0
    grad_U, grad_P = np.zeros_like(denoiser.U), np.zeros_like(denoiser.P)
    with _same_bits():
        for coefficient, heads in _head_subsets(task, denoiser):
            part = _MeanSquareError(task, denoiser, heads)
            value += coefficient * part.value
            part_U, part_P = part.gradient()
            grad_U += coefficient * part_U
            grad_P += coefficient * part_P
    if not (is_finite(grad_U) and is_finite(grad_P)):
        value = np.inf
    return max(_resolved(value), 0.0), grad_U, grad_P


@contextmanager
def _same_bits() -> Iterator[None]:
    """Hold BLAS at one thread, as its sums depend on how many there are; refusals come later."""
    with single_threaded_blas(), np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        yield


def _resolved(value: float) -> float:
    if not np.isfinite(value):
        raise UnresolvedError(
            "denoiser: expected parameters for which the risk and its gradient are finite numbers, "
            "got an overflow"
        )
    return value


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


@dataclass(frozen=True, eq=False)
class _Gates:
    """The gates of some heads beside the posterior, at nodes of the projections that they use.

    Node arrays have the nodes along their last axis.
    """

    axes: FloatArray  # (d, r), orthonormal: the gates depend on y = axes^T x alone
    y: FloatArray  # (r, n)
    weights: FloatArray  # (n,)
    posterior: FloatArray  # (K, n)
    change: FloatArray  # (J, K, n), gates of the heads less the posterior

    @classmethod
    def at_nodes(cls, task: WhitenedTask, U: FloatArray) -> _Gates:
        """Evaluate the gates of heads of interactions `U` (J, d, d)."""
        D = task.differences
        own_slopes = D @ U @ task.root
        ratio_slopes = own_slopes - task.bayes_slopes
        ratio_shifts = D @ U @ task.mean - task.bayes_shifts
        slopes = np.concatenate([task.bayes_slopes[None], own_slopes])
        shifts = np.concatenate([task.bayes_shifts[None], ratio_shifts + task.bayes_shifts])
        axes = _axes(slopes.reshape(-1, D.shape[1]))
        points, weights = _nodes(task, axes, slopes, task.log_odds + shifts)
        y = points.T
        logits = (task.log_odds + task.bayes_shifts)[:, None] + task.bayes_slopes @ axes @ y
        posterior, _ = softmax(logits)
        log_ratio = ratio_shifts[..., None] + ratio_slopes @ axes @ y
        return cls(axes, y, weights, posterior, _softmax_change(logits, posterior, log_ratio))


class _MeanSquareError:
    r"""E|e|^2 of the error e = D - f*, with the posterior in place of the gates of other heads.

    Given the projection y the error is
    :math:`e = e_0 + M y + \sum_j \delta_j G_j + \beta B`, a matrix times the features
    (1, y, gates less posterior, posterior), and off the axes it is linear and independent of them.
    """

    def __init__(self, task: WhitenedTask, denoiser: GatedMap, heads: list[int]) -> None:
        self.task, self.denoiser, self.heads = task, denoiser, heads
        self.gates = gates = _Gates.at_nodes(task, denoiser.U[heads])
        P, D, dim = denoiser.P, task.differences, len(task.mean)
        linear = (P @ task.covariance @ denoiser.U).sum(axis=0) + denoiser.A - task.shrinkage
        constant = (
            linear @ task.mean
            + denoiser.c
            + P.sum(axis=0) @ task.reference
            - (task.reference - task.shrinkage @ task.reference)
        )
        linear = linear @ task.root
        along = linear @ gates.axes
        whole_space = gates.axes.shape[1] == dim
        self.off_axes = np.zeros_like(linear) if whole_space else linear - along @ gates.axes.T
        self.gate_values = (P[heads] @ D.T).transpose(0, 2, 1)  # (J, K, d)
        posterior_values = D @ P.sum(axis=0).T - task.bayes_values
        gated = self.gate_values.reshape(-1, dim)
        matrix = np.concatenate([constant[:, None], along, gated.T, posterior_values.T], axis=1)
        count = len(gates.weights)
        changes = gates.change.reshape(-1, count)
        self.features = np.concatenate([np.ones((1, count)), gates.y, changes, gates.posterior])
        # the error lies in the span of a few vectors: work with its coordinates there
        self.span, self.coordinates = np.linalg.qr(matrix)
        self.error = self.coordinates @ self.features

    @property
    def value(self) -> float:
        on_axes = self.gates.weights @ np.sum(self.error**2, axis=0)
        return float(on_axes + np.sum(self.off_axes**2))

    def error_estimate(self) -> float:
        """Quadrature error aimed at, plus the rounding of the error's terms."""
        value, tolerance = self.value, _TOLERANCES[self.gates.axes.shape[1]]
        terms = np.sum(self.coordinates**2, axis=0) @ self.features**2 @ self.gates.weights
        task = self.task
        bayes_terms = np.sum((task.shrinkage @ task.root) ** 2) + np.sum(task.bayes_values**2)
        rounding = 10.0 * np.finfo(float).eps * float(np.sqrt(terms + bayes_terms))
        return float(10.0 * tolerance * value + rounding * (2.0 * np.sqrt(value) + rounding))

    def gradient(self) -> tuple[FloatArray, FloatArray]:
        """Return the derivatives in U and in P, from the moments E[e feature^T]."""
        task, gates, U, P = self.task, self.gates, self.denoiser.U, self.denoiser.P
        weighted = self.error * gates.weights
        n_axes, n_changes = gates.axes.shape[1], gates.change[..., 0].size
        mean_error, with_y, with_change, with_posterior = np.split(
            self.span @ (weighted @ self.features.T), np.cumsum([1, n_axes, n_changes]), axis=1
        )
        with_x = with_y @ gates.axes.T + self.off_axes
        with_query = mean_error * task.mean + with_x @ task.root.T

        grad_U = 2.0 * task.covariance @ P.transpose(0, 2, 1) @ with_query
        grad_P = 2.0 * with_query @ U.transpose(0, 2, 1) @ task.covariance
        grad_P += 2.0 * (mean_error * task.reference + with_posterior @ task.differences)
        changes = np.split(with_change, max(len(self.heads), 1), axis=1)
        for j, (head, with_own) in enumerate(zip(self.heads, changes, strict=False)):
            grad_P[head] += 2.0 * with_own @ task.differences
            grad_U[head] += 2.0 * task.differences.T @ self._gate_moments(j, weighted)
        return grad_U, grad_P

    def _gate_moments(self, j: int, weighted: FloatArray) -> FloatArray:
        """E[(d e / d logit_k)^T e z] for the logits of the j-th head, shape (K, d)."""
        task, nodes = self.task, self.gates
        gates = nodes.posterior + nodes.change[j]
        along = (self.gate_values[j] @ self.span) @ weighted
        sensitivity = gates * (along - np.sum(gates * along, axis=0))
        in_axes = sensitivity @ nodes.y.T @ nodes.axes.T
        # mean of d e / d logit_k, which meets the part of the error off the axes
        jacobian = np.diag(gates @ nodes.weights) - (gates * nodes.weights) @ gates.T
        off_axes = (jacobian @ self.gate_values[j]) @ self.off_axes
        centered = (in_axes + off_axes) @ task.root.T
        return centered + np.outer(sensitivity.sum(axis=1), task.mean)


def _axes(slopes: FloatArray) -> FloatArray:
    steepest = np.abs(slopes).max(initial=0.0)
    if not steepest < _STEEPEST:
        raise UnresolvedError(
            f"denoiser: expected gates of slopes below {_STEEPEST:g} per standard deviation of the "
            f"noisy components, got {steepest:g}"
        )
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
    try:
        return gate_nodes(
            task.centers @ axes,
            task.weights,
            np.concatenate(crossing_slopes, axis=1).reshape(-1, axes.shape[0]) @ axes,
            np.concatenate(crossing_offsets, axis=1).ravel(),
            _TOLERANCES[axes.shape[1]],
        )
    except ArithmeticError as error:
        raise UnresolvedError(
            "denoiser: expected gates and means that a nested rule resolves, got slopes up to "
            f"{np.abs(slopes).max(initial=0.0):g} and means up to {np.abs(task.centers).max():g} "
            "(in standard deviations of the noisy components)"
        ) from error


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
    return np.where(small, gates * (growth - mean_growth) / (1.0 + mean_growth), direct)
