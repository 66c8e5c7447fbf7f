r"""The in-context excess risk of residual layers, its gradient, and the layers where it is zero.

A layer of H residual heads computes :math:`W_{out}` of the stacked :math:`z + T_{U_h,V_h}[\mu](z)`.
With the blocks :math:`W_h` of :math:`W_{out}` its output is

.. math::
    D(z) = A z + \sum_h P_h \nabla K(U_h z), \qquad A = \sum_h W_h, \quad P_h = W_h V_h,

so only the effective parameters (A, P, U) matter. On a mixture with covariance :math:`s^2 I` the
read is :math:`\nabla K(U z) = s^2 U z + \sum_k \alpha_k m_k`. This goes beyond the paper.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from mixattn._checks import (
    FloatArray,
    Frozen,
    as_array,
    as_generator,
    as_integer,
    as_scalar,
    as_weights,
)
from mixattn.attention import Head, ResidualMultiHead
from mixattn.denoising.gated import GatedMap, excess_risk, softmax
from mixattn.denoising.queries import QueryRule
from mixattn.denoising.task import DenoisingTask
from mixattn.integrals.rules import gauss_hermite, tensor_product
from mixattn.mixture import GaussianMixture

# Nodes of a product rule whose share of the mass is below this are left out.
_NEGLIGIBLE = 1e-14
_MOST_QUERIES = 5_000_000


@dataclass(frozen=True, eq=False, init=False)
class InContextTasks(Frozen):
    r"""Denoising tasks that share the variances :math:`\gamma^2` and :math:`\xi^2`.

    Parameters
    ----------
    weights : array_like, shape (N, M)
        Weights of the components, a row a task, positive.
    means : array_like, shape (N, M, d)
        Norms may differ: the target is the Bayes denoiser in any case.
    within_variance, noise_variance : float
        :math:`\gamma^2 \ge 0` and :math:`\xi^2 > 0`.

    Examples
    --------
    >>> tasks = InContextTasks([[0.3, 0.7]], [[[1.0, 0.0], [0.0, 1.0]]], 0.2, 0.8)
    >>> tasks.total_variance, tasks.noise_share, len(tasks)
    (1.0, 0.8, 1)
    """

    weights: FloatArray
    means: FloatArray
    within_variance: float
    noise_variance: float

    def __init__(
        self,
        weights: ArrayLike,
        means: ArrayLike,
        within_variance: float,
        noise_variance: float,
    ) -> None:
        m = as_array("means", means, ("N", "M", "d"))
        with np.errstate(over="ignore"):
            if not np.isfinite(np.sum(m**2)):
                raise ValueError(
                    f"means: expected finite squares, got entries up to {np.abs(m).max():g}"
                )
        w = as_array("weights", weights, m.shape[:2])
        if (w <= 0).any():
            raise ValueError(f"weights: expected positive weights, got a minimum of {w.min():g}")
        rows = [as_weights(f"weights[{i}]", row) for i, row in enumerate(w)]
        gamma2, xi2 = _variances(within_variance, noise_variance)
        self._set(weights=np.stack(rows), means=m, within_variance=gamma2, noise_variance=xi2)

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self.weights)

    def __repr__(self) -> str:
        """Sizes, not entries."""
        count, components, dim = self.means.shape
        return f"InContextTasks({count} tasks, n_components={components}, dim={dim})"

    @property
    def dim(self) -> int:
        """Dimension d of a token."""
        return int(self.means.shape[2])

    @property
    def total_variance(self) -> float:
        r""":math:`s^2 = \gamma^2 + \xi^2`."""
        return self.within_variance + self.noise_variance

    @property
    def noise_share(self) -> float:
        r""":math:`a = \xi^2 / s^2`."""
        return self.noise_variance / self.total_variance

    def task(self, index: int) -> DenoisingTask:
        """Return one of the tasks."""
        index = as_integer("index", index)
        if index >= len(self):
            raise ValueError(f"index: expected less than {len(self)}, got {index}")
        mixture = GaussianMixture(
            self.weights[index], self.means[index], self.within_variance * np.eye(self.dim)
        )
        return DenoisingTask(mixture, self.noise_variance)

    def rule(self, order: int) -> QueryRule:
        """Gauss-Hermite nodes around each component of each task.

        Parameters
        ----------
        order : int
            Nodes an axis, at least 1.

        Returns
        -------
        QueryRule
            Nodes that carry no mass to speak of are left out.

        Raises
        ------
        ValueError
            If that were more than five million queries.
        """
        order = as_integer("order", order, at_least=1)
        most = len(self) * self.means.shape[1] * float(order) ** self.dim
        if most > _MOST_QUERIES:
            raise ValueError(
                f"order: expected at most {_MOST_QUERIES:,} nodes in all, got {order}, hence "
                f"{most:.2g} nodes in dimension {self.dim}"
            )
        nodes, mass = tensor_product(*[gauss_hermite(order)] * self.dim)
        nodes, mass = nodes[mass > _NEGLIGIBLE].T, mass[mass > _NEGLIGIBLE]
        around = self.means[..., None] + np.sqrt(self.total_variance) * nodes
        return round_rule(
            self.weights,
            self.means,
            self.within_variance,
            self.noise_variance,
            np.moveaxis(around, 1, 2).reshape(len(self), self.dim, -1),
            (self.weights[..., None] * mass).reshape(len(self), -1),
        )

    def first(self, count: int) -> InContextTasks:
        """Return the first `count` tasks, at most all."""
        count = as_integer("count", count, at_least=1)
        if count > len(self):
            raise ValueError(f"count: expected at most {len(self)}, got {count}")
        return InContextTasks(
            self.weights[:count], self.means[:count], self.within_variance, self.noise_variance
        )


@dataclass(frozen=True, eq=False, init=False)
class InContextLaw(Frozen):
    r"""A law of two-component tasks that Proposition 4.4 admits.

    The common norm of the means is uniform in `radius`, their directions are independent and
    uniform on the sphere, and the weight of the first is uniform in `weight`.

    Parameters
    ----------
    dim : int
        At least 2: on a line equal norms leave opposite means only.
    within_variance, noise_variance : float
    radius : (float, float)
        Positive, in order; equal ends fix the norm.
    weight : (float, float)
        Inside (0, 1), in order; equal ends fix the weight.

    Examples
    --------
    >>> law = InContextLaw(2, 0.2, 0.8)
    >>> law.sample(5, np.random.default_rng(0))
    InContextTasks(5 tasks, n_components=2, dim=2)
    """

    dim: int
    within_variance: float
    noise_variance: float
    radius: tuple[float, float]
    weight: tuple[float, float]

    def __init__(
        self,
        dim: int,
        within_variance: float,
        noise_variance: float,
        radius: tuple[float, float] = (1.0, 2.0),
        weight: tuple[float, float] = (0.1, 0.9),
    ) -> None:
        gamma2, xi2 = _variances(within_variance, noise_variance)
        self._set(
            dim=as_integer("dim", dim, at_least=2),
            within_variance=gamma2,
            noise_variance=xi2,
            radius=_interval("radius", radius, np.inf),
            weight=_interval("weight", weight, 1.0),
        )

    def sample(self, count: int, rng: np.random.Generator) -> InContextTasks:
        """Draw `count` tasks."""
        count = as_integer("count", count, at_least=1)
        weights, means = self._draw(count, as_generator(rng))
        return InContextTasks(weights, means, self.within_variance, self.noise_variance)

    def sample_queries(
        self, n_tasks: int, n_queries: int, rng: np.random.Generator
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Draw tasks and noisy queries of each.

        Returns
        -------
        weights : ndarray, shape (n_tasks, 2)
        means : ndarray, shape (n_tasks, 2, d)
        queries : ndarray, shape (n_tasks, n_queries, d)
        """
        n_tasks = as_integer("n_tasks", n_tasks, at_least=1)
        n_queries = as_integer("n_queries", n_queries, at_least=1)
        weights, means = self._draw(n_tasks, as_generator(rng))
        second = rng.random((n_tasks, n_queries)) >= weights[:, :1]
        centers = np.take_along_axis(means, second.astype(np.intp)[..., None], axis=1)
        deviation = np.sqrt(self.within_variance + self.noise_variance)
        noise = rng.standard_normal((n_tasks, n_queries, self.dim))
        return weights, means, centers + deviation * noise

    def _draw(self, count: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
        means = rng.standard_normal((count, 2, self.dim))
        means /= np.linalg.norm(means, axis=2, keepdims=True)
        means *= rng.uniform(*self.radius, count)[:, None, None]
        first = rng.uniform(*self.weight, count)
        return np.stack([first, 1.0 - first], axis=1), means


def _variances(within_variance: float, noise_variance: float) -> tuple[float, float]:
    gamma2 = as_scalar("within_variance", within_variance, at_least=0.0)
    xi2 = as_scalar("noise_variance", noise_variance, above=0.0)
    as_scalar("within_variance + noise_variance", gamma2 + xi2)
    return gamma2, xi2


def _interval(name: str, value: Any, below: float) -> tuple[float, float]:
    low, high = as_array(name, value, (2,))
    if not 0.0 < low <= high < below:
        raise ValueError(
            f"{name}: expected a pair 0 < low <= high{'' if below == np.inf else f' < {below:g}'}, "
            f"got ({low:g}, {high:g})"
        )
    return float(low), float(high)


@dataclass(frozen=True, eq=False, init=False)
class ResidualParams(Frozen):
    """Parameters of a residual layer, a block a head.

    Parameters
    ----------
    U, V, W : array_like, shape (H, d, d)
        Interactions, values and the blocks of W_out.

    Examples
    --------
    >>> from mixattn import in_context_denoiser
    >>> theta = ResidualParams.of(in_context_denoiser(2, 0.2, 0.8))
    >>> theta.W[1]
    array([[-1.6, -0. ],
           [-0. , -1.6]])
    """

    U: FloatArray
    V: FloatArray
    W: FloatArray

    def __init__(self, U: ArrayLike, V: ArrayLike, W: ArrayLike) -> None:
        first = _square_blocks("U", U)
        self._set(U=first, V=as_array("V", V, first.shape), W=as_array("W", W, first.shape))

    def __repr__(self) -> str:
        """Sizes, not entries."""
        return f"ResidualParams(n_heads={len(self.U)}, dim={self.U.shape[1]})"

    @classmethod
    def of(cls, layer: ResidualMultiHead) -> ResidualParams:
        """Take the parameters of a layer with an output of dimension d."""
        if not isinstance(layer, ResidualMultiHead):
            raise ValueError(f"layer: expected a ResidualMultiHead, got {type(layer).__name__}")
        dim, count = layer.heads[0].dim, len(layer.heads)
        out = as_array("layer.W_out", layer.W_out, (dim, count * dim))
        return cls(
            np.stack([head.U for head in layer.heads]),
            np.stack([head.V for head in layer.heads]),
            out.reshape(dim, count, dim).transpose(1, 0, 2),
        )

    @classmethod
    def random(
        cls, dim: int, n_heads: int, rng: np.random.Generator, scale: float = 0.5
    ) -> ResidualParams:
        """Draw independent entries of law N(0, scale^2 / d)."""
        shape = _random_shape(dim, n_heads)
        size = as_scalar("scale", scale, above=0.0) / np.sqrt(shape[-1])
        return cls(*(size * as_generator(rng).standard_normal((3, *shape))))

    @property
    def layer(self) -> ResidualMultiHead:
        """The layer with these parameters."""
        heads = [Head(U, V) for U, V in zip(self.U, self.V, strict=True)]
        return ResidualMultiHead(heads, np.hstack(list(self.W)))

    @property
    def effective(self) -> GatedMap:
        """The effective parameters."""
        with np.errstate(over="ignore", invalid="ignore"):
            return GatedMap(self.W.sum(axis=0), self.W @ self.V, self.U)

    def to_vector(self) -> FloatArray:
        """Return U, V, W, row by row."""
        return np.concatenate([self.U.ravel(), self.V.ravel(), self.W.ravel()])

    @classmethod
    def from_vector(cls, vector: ArrayLike, dim: int, n_heads: int) -> ResidualParams:
        """Inverse of `to_vector`."""
        shape = _random_shape(dim, n_heads)
        return cls(*as_array("vector", vector, (3 * int(np.prod(shape)),)).reshape(3, *shape))


def _square_blocks(name: str, value: ArrayLike) -> FloatArray:
    blocks = as_array(name, value, ("H", "d", "d"))
    if blocks.shape[1] != blocks.shape[2]:
        raise ValueError(f"{name}: expected square blocks (H, d, d), got {blocks.shape}")
    return blocks


def _random_shape(dim: int, n_heads: int) -> tuple[int, int, int]:
    dim = as_integer("dim", dim, at_least=1)
    return as_integer("n_heads", n_heads, at_least=1), dim, dim


def round_rule(
    component_weights: FloatArray,
    means: FloatArray,
    within_variance: float,
    noise_variance: float,
    queries: FloatArray,
    weights: FloatArray,
) -> QueryRule:
    r"""Make the rule of queries of tasks with components :math:`\mathcal N(m_k, \gamma^2 I)`.

    Parameters
    ----------
    component_weights : ndarray, shape (R, N, M)
    means : ndarray, shape (R, N, M, d)
    within_variance, noise_variance : float
    queries : ndarray, shape (R, N, d, n)
    weights : ndarray, shape (R, N, n)
        They sum to 1 over n.

    Returns
    -------
    QueryRule
    """
    total_variance = within_variance + noise_variance
    share = noise_variance / total_variance
    differences = means[..., :-1, :] - means[..., -1:, :]
    reference = means[..., -1, :, None]
    log_odds = np.log(component_weights[..., :-1] / component_weights[..., -1:])[..., None]
    squares = np.sum(means**2, axis=-1)
    shifts = (squares[..., :-1] - squares[..., -1:]) / (2.0 * total_variance)
    slopes = differences @ queries / total_variance
    posterior, _ = softmax(log_odds - shifts[..., None] + slopes)
    barycenter = reference + np.swapaxes(differences, -1, -2) @ posterior
    return QueryRule(
        log_odds=log_odds,
        differences=differences,
        reference=reference,
        covariance=total_variance * np.eye(means.shape[-1]),
        queries=queries,
        targets=(1.0 - share) * queries + share * barycenter,
        weights=weights,
    )


def excess_by_task(layer: GatedMap | ResidualParams | Any, tasks: InContextTasks) -> FloatArray:
    """Exact excess risk of a layer on each task, by the adaptive quadrature of `DenoisingTask`.

    Parameters
    ----------
    layer : GatedMap, ResidualParams or a denoiser that `DenoisingTask.excess_risk` takes
    tasks : InContextTasks

    Returns
    -------
    ndarray, shape (N,)
    """
    if not isinstance(tasks, InContextTasks):
        raise ValueError(f"tasks: expected InContextTasks, got {type(tasks).__name__}")
    if isinstance(layer, ResidualParams):
        layer = layer.effective
    gated = GatedMap.of(layer, tasks.dim)
    if gated is None:
        raise ValueError(f"layer: expected an attention denoiser, got {type(layer).__name__}")
    return np.array([excess_risk(tasks.task(i).whitened, gated)[0] for i in range(len(tasks))])


def distances_to_solutions(
    layer: GatedMap | ResidualParams, within_variance: float, noise_variance: float
) -> dict[str, float]:
    r"""Euclidean distances of (A, P, U) to the three sheets of exact two-head layers.

    On all of them :math:`A = (1 - 2a) I`. On "head 1" :math:`U_1 = I / s^2, P_1 = a I, P_2 = 0` and
    U_2 is free; "head 2" has the roles exchanged; on "shared" :math:`U_1 = U_2 = I / s^2` and
    :math:`P_1 + P_2 = a I`.

    Parameters
    ----------
    layer : GatedMap or ResidualParams
        Two heads.
    within_variance, noise_variance : float

    Examples
    --------
    >>> from mixattn import in_context_denoiser
    >>> theta = ResidualParams.of(in_context_denoiser(2, 0.2, 0.8))
    >>> distances_to_solutions(theta, 0.2, 0.8)["head 1"]
    0.0
    """
    gamma2, xi2 = _variances(within_variance, noise_variance)
    if isinstance(layer, ResidualParams):
        layer = layer.effective
    if not isinstance(layer, GatedMap) or len(layer.U) != 2:
        raise ValueError(f"layer: expected a GatedMap with two heads, got {layer!r}")
    with np.errstate(over="ignore"):
        return _distances(layer, xi2 / (gamma2 + xi2), gamma2 + xi2)


def _distances(layer: GatedMap, share: float, total_variance: float) -> dict[str, float]:
    eye = np.eye(len(layer.A))
    off_A = np.sum((layer.A - (1.0 - 2.0 * share) * eye) ** 2)
    off_U = np.sum((layer.U - eye / total_variance) ** 2, axis=(1, 2))
    off_P = np.sum((layer.P - share * eye) ** 2, axis=(1, 2))
    size_P = np.sum(layer.P**2, axis=(1, 2))
    off_sum = 0.5 * np.sum((layer.P.sum(axis=0) - share * eye) ** 2)
    squares = {
        "head 1": off_A + off_U[0] + off_P[0] + size_P[1],
        "head 2": off_A + off_U[1] + off_P[1] + size_P[0],
        "shared": off_A + off_U.sum() + off_sum,
    }
    return {name: float(np.sqrt(square)) for name, square in squares.items()}
