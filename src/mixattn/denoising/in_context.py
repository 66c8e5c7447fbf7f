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
    freeze,
    is_finite,
)
from mixattn.attention import Head, ResidualMultiHead
from mixattn.denoising.gated import GatedMap, excess_risk, softmax
from mixattn.denoising.task import DenoisingTask, as_gated_map
from mixattn.mixture import GaussianMixture

# Nodes of a product rule whose share of the mass is below this are left out.
_NEGLIGIBLE = 1e-14
# Beyond this order Gauss-Hermite weights underflow; beyond this many nodes memory does.
_HIGHEST_ORDER, _MOST_QUERIES = 128, 5_000_000


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
        w = as_array("weights", weights, m.shape[:2])
        if (w <= 0).any():
            raise ValueError(f"weights: expected positive weights, got a minimum of {w.min():g}")
        rows = [as_weights(f"weights[{i}]", row) for i, row in enumerate(w)]
        object.__setattr__(self, "weights", freeze(np.stack(rows)))
        object.__setattr__(self, "means", freeze(m))
        gamma2, xi2 = _variances(within_variance, noise_variance)
        object.__setattr__(self, "within_variance", gamma2)
        object.__setattr__(self, "noise_variance", xi2)

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
        object.__setattr__(self, "dim", as_integer("dim", dim, at_least=2))
        gamma2, xi2 = _variances(within_variance, noise_variance)
        object.__setattr__(self, "within_variance", gamma2)
        object.__setattr__(self, "noise_variance", xi2)
        object.__setattr__(self, "radius", _interval("radius", radius, np.inf))
        object.__setattr__(self, "weight", _interval("weight", weight, 1.0))

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
        object.__setattr__(self, "U", freeze(first))
        object.__setattr__(self, "V", freeze(as_array("V", V, first.shape)))
        object.__setattr__(self, "W", freeze(as_array("W", W, first.shape)))

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
        size = as_scalar("scale", scale, above=0.0) / np.sqrt(dim)
        return cls(*(size * as_generator(rng).standard_normal((3, *shape))))

    @property
    def layer(self) -> ResidualMultiHead:
        """The layer with these parameters."""
        heads = [Head(U, V) for U, V in zip(self.U, self.V, strict=True)]
        return ResidualMultiHead(heads, np.hstack(list(self.W)))

    @property
    def effective(self) -> EffectiveLayer:
        """The effective parameters."""
        with np.errstate(over="ignore", invalid="ignore"):
            return EffectiveLayer(self.W.sum(axis=0), self.W @ self.V, self.U)

    def to_vector(self) -> FloatArray:
        """Return U, V, W, row by row."""
        return np.concatenate([self.U.ravel(), self.V.ravel(), self.W.ravel()])

    @classmethod
    def from_vector(cls, vector: ArrayLike, dim: int, n_heads: int) -> ResidualParams:
        """Inverse of `to_vector`."""
        shape = _random_shape(dim, n_heads)
        return cls(*as_array("vector", vector, (3 * int(np.prod(shape)),)).reshape(3, *shape))


@dataclass(frozen=True, eq=False, init=False)
class EffectiveLayer(Frozen):
    r"""What a layer computes: :math:`D(z) = A z + \sum_h P_h \nabla K(U_h z)`.

    Parameters
    ----------
    A : array_like, shape (d, d)
        The sum of the blocks of W_out; zero for plain heads without a residual.
    P, U : array_like, shape (H, d, d)
    """

    A: FloatArray
    P: FloatArray
    U: FloatArray

    def __init__(self, A: ArrayLike, P: ArrayLike, U: ArrayLike) -> None:
        blocks = _square_blocks("U", U)
        object.__setattr__(self, "A", freeze(as_array("A", A, blocks.shape[1:])))
        object.__setattr__(self, "P", freeze(as_array("P", P, blocks.shape)))
        object.__setattr__(self, "U", freeze(blocks))

    def __repr__(self) -> str:
        """Sizes, not entries."""
        return f"EffectiveLayer(n_heads={len(self.U)}, dim={self.U.shape[1]})"

    @classmethod
    def random(
        cls, dim: int, n_heads: int, rng: np.random.Generator, scale: float = 0.5
    ) -> EffectiveLayer:
        """Draw independent entries of law N(0, scale^2 / d)."""
        count, *block = _random_shape(dim, n_heads)
        size = as_scalar("scale", scale, above=0.0) / np.sqrt(dim)
        draws = size * as_generator(rng).standard_normal((2 * count + 1, *block))
        return cls(draws[0], draws[1 : count + 1], draws[count + 1 :])

    def __call__(self, mixture: GaussianMixture, queries: ArrayLike) -> FloatArray:
        """Output at `queries` (..., d), read against the law `mixture`."""
        if not isinstance(mixture, GaussianMixture) or mixture.dim != len(self.A):
            raise ValueError(
                f"mixture: expected a GaussianMixture in dimension {len(self.A)}, got {mixture!r}"
            )
        z = as_array("queries", queries, (None, len(self.A)), copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            output: FloatArray = z @ self.A.T
            for P, U in zip(self.P, self.U, strict=True):
                output = output + mixture.tilted_mean(z @ U.T) @ P.T
        if not is_finite(output):
            raise ValueError("queries: expected an output of finite size, got one that overflows")
        return output

    def linear_part(self, total_variance: float) -> FloatArray:
        r""":math:`L = A + s^2 \sum_h P_h U_h`, the linear part on a mixture of covariance s^2 I."""
        s2 = as_scalar("total_variance", total_variance, above=0.0)
        return np.asarray(self.A + s2 * np.sum(self.P @ self.U, axis=0))

    def to_vector(self) -> FloatArray:
        """Return A, P, U, row by row."""
        return np.concatenate([self.A.ravel(), self.P.ravel(), self.U.ravel()])

    @classmethod
    def from_vector(cls, vector: ArrayLike, dim: int, n_heads: int) -> EffectiveLayer:
        """Inverse of `to_vector`."""
        count, *block = _random_shape(dim, n_heads)
        blocks = as_array("vector", vector, ((2 * count + 1) * dim * dim,)).reshape(-1, *block)
        return cls(blocks[0], blocks[1 : count + 1], blocks[count + 1 :])


def _square_blocks(name: str, value: ArrayLike) -> FloatArray:
    blocks = as_array(name, value, ("H", "d", "d"))
    if blocks.shape[1] != blocks.shape[2]:
        raise ValueError(f"{name}: expected square blocks (H, d, d), got {blocks.shape}")
    return blocks


def _random_shape(dim: int, n_heads: int) -> tuple[int, int, int]:
    dim = as_integer("dim", dim, at_least=1)
    return as_integer("n_heads", n_heads, at_least=1), dim, dim


class QueryRule:
    """Queries with weights, and the Bayes denoiser there: what a risk and its gradient need.

    Made by `product`; the constructor is for training loops and takes arrays that have been checked.
    Arrays have queries along their last axis and may have leading axes R, one entry a run:
    queries (R, N, d, n), weights (R, N, n) that sum to 1 over n.
    """

    def __init__(
        self,
        component_weights: FloatArray,
        means: FloatArray,
        within_variance: float,
        noise_variance: float,
        queries: FloatArray,
        weights: FloatArray,
    ) -> None:
        self.total_variance = within_variance + noise_variance
        share = noise_variance / self.total_variance
        self.differences = means[..., :-1, :] - means[..., -1:, :]
        self.reference = means[..., -1, :, None]
        odds = component_weights[..., :-1] / component_weights[..., -1:]
        self.log_odds = np.log(odds)[..., None]
        squares = np.sum(means**2, axis=-1)
        shifts = (squares[..., :-1] - squares[..., -1:]) / (2.0 * self.total_variance)
        slopes = self.differences @ queries / self.total_variance
        posterior, _ = softmax(self.log_odds - shifts[..., None] + slopes)
        barycenter = self.reference + _transposed(self.differences) @ posterior
        self.queries, self.weights = queries, weights
        self.targets = (1.0 - share) * queries + share * barycenter

    @classmethod
    def product(cls, tasks: InContextTasks, order: int) -> QueryRule:
        """Gauss-Hermite nodes around each component of each task, `order` an axis."""
        if not isinstance(tasks, InContextTasks):
            raise ValueError(f"tasks: expected InContextTasks, got {type(tasks).__name__}")
        order = as_integer("order", order, at_least=1)
        most = len(tasks) * tasks.means.shape[1] * order**tasks.dim
        if order > _HIGHEST_ORDER or most > _MOST_QUERIES:
            raise ValueError(
                f"order: expected at most {_HIGHEST_ORDER} and {_MOST_QUERIES:,} nodes in all, "
                f"got {order}, hence {most:.2g} nodes in dimension {tasks.dim}"
            )
        x, w = np.polynomial.hermite_e.hermegauss(order)
        grids = np.meshgrid(*[x] * tasks.dim, indexing="ij")
        masses = np.meshgrid(*[w / w.sum()] * tasks.dim, indexing="ij")
        nodes = np.stack([grid.ravel() for grid in grids])
        mass = np.prod([m.ravel() for m in masses], axis=0)
        nodes, mass = nodes[:, mass > _NEGLIGIBLE], mass[mass > _NEGLIGIBLE]
        around = tasks.means[..., None] + np.sqrt(tasks.total_variance) * nodes
        return cls(
            tasks.weights,
            tasks.means,
            tasks.within_variance,
            tasks.noise_variance,
            np.moveaxis(around, 1, 2).reshape(len(tasks), tasks.dim, -1),
            (tasks.weights[..., None] * mass).reshape(len(tasks), -1),
        )

    def excess_and_gradient(
        self, A: FloatArray, P: FloatArray, U: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Mean over tasks of the weighted squared error, and its derivatives in A, P and U.

        A (R, d, d), P and U (R, H, d, d), with the leading axes R of the rule or any that
        broadcast with them. The value has shape R.
        """
        z, D = self.queries[..., None, :, :, :], self.differences[..., None, :, :, :]
        tilts = U[..., None, :, :] @ z  # (R, H, N, d, n)
        gates, _ = softmax(self.log_odds[..., None, :, :, :] + D @ tilts)  # (R, H, N, K, n)
        reads = self.total_variance * tilts + self.reference[..., None, :, :, :]
        reads = reads + _transposed(D) @ gates
        error = A[..., None, :, :] @ self.queries - self.targets
        error = error + np.sum(P[..., None, :, :] @ reads, axis=-4)
        back = (2.0 / z.shape[-3]) * self.weights[..., None, :] * error
        value = 0.5 * np.sum(back * error, axis=(-3, -2, -1))

        grad_A = np.sum(back @ _transposed(self.queries), axis=-3)
        back = back[..., None, :, :, :]
        grad_P = np.sum(back @ _transposed(reads), axis=-3)
        on_reads = _transposed(P)[..., None, :, :] @ back
        along = D @ on_reads
        through = gates * (along - np.sum(gates * along, axis=-2, keepdims=True))
        on_tilts = self.total_variance * on_reads + _transposed(D) @ through
        grad_U = np.sum(on_tilts @ _transposed(z), axis=-3)
        return value, grad_A, grad_P, grad_U

    def raw_excess_and_gradient(
        self, U: FloatArray, V: FloatArray, W: FloatArray
    ) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """Excess and its derivatives in U, V and W, all (R, H, d, d)."""
        value, grad_A, grad_P, grad_U = self.excess_and_gradient(W.sum(axis=-3), W @ V, U)
        grad_W = grad_A[..., None, :, :] + grad_P @ _transposed(V)
        return value, grad_U, _transposed(W) @ grad_P, grad_W


def _transposed(array: FloatArray) -> FloatArray:
    return np.swapaxes(array, -1, -2)


def excess_by_task(
    layer: EffectiveLayer | ResidualParams | Any, tasks: InContextTasks
) -> FloatArray:
    """Exact excess risk of a layer on each task, by the adaptive quadrature of `DenoisingTask`.

    Parameters
    ----------
    layer : EffectiveLayer, ResidualParams or a denoiser that `DenoisingTask.excess_risk` takes
    tasks : InContextTasks

    Returns
    -------
    ndarray, shape (N,)
    """
    if not isinstance(tasks, InContextTasks):
        raise ValueError(f"tasks: expected InContextTasks, got {type(tasks).__name__}")
    if isinstance(layer, ResidualParams):
        layer = layer.effective
    if isinstance(layer, EffectiveLayer):
        gated: GatedMap | None = GatedMap(layer.U, layer.P, layer.A, np.zeros(len(layer.A)))
        as_array("layer.A", layer.A, (tasks.dim, tasks.dim))
    else:
        gated = as_gated_map(layer, tasks.dim)
    if gated is None:
        raise ValueError(f"layer: expected an attention denoiser, got {type(layer).__name__}")
    return np.array([excess_risk(tasks.task(i).whitened, gated)[0] for i in range(len(tasks))])


def distances_to_solutions(
    layer: EffectiveLayer | ResidualParams, within_variance: float, noise_variance: float
) -> dict[str, float]:
    r"""Euclidean distances of (A, P, U) to the three sheets of exact two-head layers.

    On all of them :math:`A = (1 - 2a) I`. On "head 1" :math:`U_1 = I / s^2, P_1 = a I, P_2 = 0` and
    U_2 is free; "head 2" has the roles exchanged; on "shared" :math:`U_1 = U_2 = I / s^2` and
    :math:`P_1 + P_2 = a I`.

    Parameters
    ----------
    layer : EffectiveLayer or ResidualParams
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
    if not isinstance(layer, EffectiveLayer) or len(layer.U) != 2:
        raise ValueError(f"layer: expected an EffectiveLayer with two heads, got {layer!r}")
    with np.errstate(over="ignore"):
        return _distances(layer, xi2 / (gamma2 + xi2), gamma2 + xi2)


def _distances(layer: EffectiveLayer, share: float, total_variance: float) -> dict[str, float]:
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
