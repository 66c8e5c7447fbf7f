r"""Training attention denoisers: online SGD and quasi-Newton, on one task or in context.

On one task both minimize the excess risk :math:`E|D(Z) - f^*(Z)|^2` of a sum of heads read against
the noisy law (section 4 of the paper, Figure 2). In context, which goes beyond the paper, they
minimize the mean of the excess risks of a residual layer over tasks, whose prompts are infinite.
Online SGD draws fresh tasks and queries at every step; quasi-Newton uses the exact risk, or a rule
over a fixed set of tasks, with its analytic gradient. The loops are those of `mixattn.descent`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
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
)
from mixattn._parallel import single_threaded_blas
from mixattn.attention import Head, MultiHead
from mixattn.denoising.gated import GatedMap, UnresolvedError, excess_risk_and_gradient
from mixattn.denoising.in_context import InContextLaw, InContextTasks, ResidualParams, round_rule
from mixattn.denoising.queries import QueryRule
from mixattn.denoising.task import DenoisingTask, as_denoising_task
from mixattn.descent import History, Objective, descend, descend_together, quasi_newton

Layer = ResidualParams | GatedMap

# Starts that end within this factor of the best excess risk count as agreeing with it.
AGREEMENT = 1e-4


def random_heads(dim: int, n_heads: int, rng: np.random.Generator, scale: float = 0.5) -> MultiHead:
    """Heads with independent entries of law N(0, scale^2) in U and V.

    Parameters
    ----------
    dim, n_heads : int
        Dimension d and number of heads, at least 1.
    rng : numpy.random.Generator
    scale : float
        Standard deviation of an entry, positive.

    Returns
    -------
    MultiHead

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    dim = as_integer("dim", dim, at_least=1)
    n_heads = as_integer("n_heads", n_heads, at_least=1)
    scale = as_scalar("scale", scale, above=0.0)
    draws = scale * as_generator(rng).standard_normal((n_heads, 2, dim, dim))
    return MultiHead([Head(U, V) for U, V in draws])


# --- one task --------------------------------------------------------------------------------


def train_quasi_newton(
    task: DenoisingTask, start: MultiHead, *, max_steps: int = 2000, target: float = 1e-20
) -> History[MultiHead]:
    """Minimize the exact excess risk of a sum of heads by BFGS (`mixattn.descent.quasi_newton`).

    Parameters
    ----------
    task : DenoisingTask
        Components of one covariance.
    start : MultiHead
        For instance of `random_heads`.
    max_steps : int
    target : float
        Training ends once the excess risk is at most this.

    Returns
    -------
    History
        Every step is recorded; `final` is the trained MultiHead.

    Raises
    ------
    ValueError
        If the components do not share a covariance or an argument is not as above.
    """
    whitened, first = _as_training_task(task).whitened, _as_start(start, task.dim)
    shape = first.U.shape
    still = np.zeros(shape[1:])

    def objective(theta: FloatArray) -> tuple[float, FloatArray]:
        U, V = theta.reshape(2, *shape)
        try:
            value, *gradient = excess_risk_and_gradient(whitened, GatedMap(still, V, U))
        except UnresolvedError:
            return np.inf, np.zeros_like(theta)
        return value, np.concatenate([part.ravel() for part in gradient])

    vector = np.concatenate([first.U.ravel(), first.P.ravel()])
    with single_threaded_blas():
        return quasi_newton(
            objective,
            vector,
            max_steps=max_steps,
            target=target,
            read=partial(_read_heads, shape=shape),
        )


def train_sgd(
    task: DenoisingTask,
    start: MultiHead,
    rng: np.random.Generator,
    *,
    n_steps: int = 20_000,
    batch_size: int = 64,
    step_size: float = 2e-3,
    clip_norm: float = 10.0,
    record_every: int = 200,
) -> History[MultiHead]:
    """Minimize the excess risk by online stochastic gradient descent, as in Figure 2 of the paper.

    Each step draws `batch_size` fresh queries from the noisy law. The gradient of the mean of
    ``|D(z) - f*(z)|^2`` over them is rescaled to the norm `clip_norm` where it is longer. The paper
    gives the step size and the clipping; batch size, start and length are ours.

    Parameters
    ----------
    task : DenoisingTask
        Components of one covariance.
    start : MultiHead
        For instance of `random_heads`.
    rng : numpy.random.Generator
        Draws the queries, those of `record_every` steps at a time.
    n_steps, batch_size, record_every : int
        At least 1.
    step_size, clip_norm : float
        Positive.

    Returns
    -------
    History
        `excess_risk` is exact. The status is STEP_LIMIT or DIVERGED; `final` is the MultiHead.

    Raises
    ------
    ValueError
        If the components do not share a covariance or an argument is not as above.
    """
    first = _as_start(start, _as_training_task(task).dim)
    shape = first.U.shape
    read = partial(_read_heads, shape=shape)
    record_every = as_integer("record_every", record_every, at_least=1)
    batches = _batches(
        task, as_generator(rng), as_integer("batch_size", batch_size, at_least=1), record_every
    )
    still = np.zeros(shape[1:])

    def gradient(theta: FloatArray) -> FloatArray:
        U, V = theta.reshape(2, *shape)
        _, _, grad_V, grad_U = next(batches).excess_and_gradient(still, V, U)
        return np.concatenate([grad_U.ravel(), grad_V.ravel()])

    with single_threaded_blas():
        return descend(
            gradient,
            lambda theta: _recorded_risk(task, read(theta)),
            np.concatenate([first.U.ravel(), first.P.ravel()]),
            step_size=step_size,
            n_steps=n_steps,
            record=_every(record_every, n_steps),
            clip_norm=clip_norm,
            read=read,
        )


def _recorded_risk(task: DenoisingTask, heads: MultiHead) -> float:
    try:
        return task.excess_risk(heads)
    except UnresolvedError:
        return np.inf


def _batches(
    task: DenoisingTask, rng: np.random.Generator, batch_size: int, block: int
) -> Iterator[QueryRule]:
    """Fresh batches without end; `block` of them are drawn at a time."""
    whitened = task.whitened
    weights = np.full((1, batch_size), 1.0 / batch_size)
    while True:
        z, _ = task.noisy.sample(block * batch_size, rng)
        targets = task.bayes_denoiser(z)
        for start in range(0, len(z), batch_size):
            rows = slice(start, start + batch_size)
            yield QueryRule(
                log_odds=whitened.log_odds[None, :, None],
                differences=whitened.differences[None],
                reference=whitened.reference[None, :, None],
                covariance=whitened.covariance,
                queries=z[None, rows].swapaxes(1, 2),
                targets=targets[None, rows].swapaxes(1, 2),
                weights=weights,
            )


@dataclass(frozen=True, eq=False)
class SingleHeadFit(Frozen):
    """The best single head found from several starts.

    Attributes
    ----------
    head : Head
    excess_risk : float
    n_agreeing : int
        Starts whose excess risk is within a factor 1 + 1e-4 of the best (or within 1e-12).
    runs : tuple of History
        All runs, best first.
    """

    head: Head
    excess_risk: float
    n_agreeing: int
    runs: tuple[History[MultiHead], ...]

    def __repr__(self) -> str:
        """Risk and agreement, not the runs."""
        return (
            f"SingleHeadFit(excess_risk={self.excess_risk:.6g}, "
            f"{self.n_agreeing} of {len(self.runs)} starts agree)"
        )


def best_single_head(
    task: DenoisingTask, rng: np.random.Generator, *, n_starts: int = 16, max_steps: int = 500
) -> SingleHeadFit:
    """Search for the single head of smallest excess risk, by quasi-Newton from several starts.

    The first start is the gate of the Bayes denoiser with half the identity as value, optimal at
    gamma^2 = xi^2; the others are random. The risk is not convex: the result is an upper bound of
    the smallest excess risk, the more credible the more starts agree.

    Parameters
    ----------
    task : DenoisingTask
        Components of one covariance.
    rng : numpy.random.Generator
        Each random start has a generator spawned from it.
    n_starts : int
        At least 1.
    max_steps : int
        Iteration limit of each run.

    Returns
    -------
    SingleHeadFit

    Raises
    ------
    ValueError
        If the components do not share a covariance or an argument is not as above.
    """
    noisy = _as_training_task(task).noisy.covariances[0]
    others = as_generator(rng).spawn(as_integer("n_starts", n_starts, at_least=1) - 1)
    starts = [MultiHead([Head(np.linalg.inv(noisy), 0.5 * np.eye(task.dim))])]
    starts += [random_heads(task.dim, 1, each) for each in others]
    runs = [train_quasi_newton(task, start, max_steps=max_steps) for start in starts]
    runs.sort(key=lambda run: float(run.excess_risk[-1]))
    best = float(runs[0].excess_risk[-1])
    agreeing = sum(run.excess_risk[-1] <= best * (1.0 + AGREEMENT) + 1e-12 for run in runs)
    return SingleHeadFit(runs[0].final.heads[0], best, int(agreeing), tuple(runs))


def _as_training_task(task: Any) -> DenoisingTask:
    if not as_denoising_task(task).mixture.shared_covariance:
        raise ValueError("task: training expects components of one covariance, got several")
    return task


def _as_start(start: Any, dim: int) -> GatedMap:
    if not isinstance(start, MultiHead):
        raise ValueError(f"start: expected a MultiHead, got {type(start).__name__}")
    if (start.heads[0].dim, start.heads[0].dim_out) != (dim, dim):
        raise ValueError(f"start: expected heads in the task's dimension {dim}, got {start!r}")
    heads = start.heads
    return GatedMap(np.zeros((dim, dim)), [h.V for h in heads], [h.U for h in heads])


def _read_heads(vector: FloatArray, shape: tuple[int, ...]) -> MultiHead:
    return MultiHead([Head(U, V) for U, V in zip(*vector.reshape(2, *shape), strict=True)])


def _every(step: int, n_steps: int) -> list[int]:
    return sorted({*range(0, as_integer("n_steps", n_steps, at_least=1) + 1, step), n_steps})


# --- in context ------------------------------------------------------------------------------


def in_context_objective(rule: QueryRule, like: Layer, *, residual: bool = True) -> Objective:
    """Return the function vector -> (excess risk, gradient) in the coordinates of `like`.

    Parameters
    ----------
    rule : QueryRule
        For instance of `InContextTasks.rule`.
    like : ResidualParams or GatedMap
        Says which coordinates, dimension and number of heads the vector has.
    residual : bool
        If False (of a GatedMap only), A is held where it is: at zero the heads are plain.

    Returns
    -------
    callable

    Raises
    ------
    ValueError
        If an argument is not as above.

    Examples
    --------
    >>> law = InContextLaw(2, 0.2, 0.8)
    >>> rule = law.sample(3, np.random.default_rng(0)).rule(8)
    >>> start = ResidualParams.random(2, 2, np.random.default_rng(1))
    >>> value, gradient = in_context_objective(rule, start)(start.to_vector())
    >>> gradient.shape
    (24,)
    """
    if not isinstance(rule, QueryRule):
        raise ValueError(f"rule: expected a QueryRule, got {type(rule).__name__}")
    _check_layer("like", like, rule.queries.shape[-2], residual)
    count, dim = like.U.shape[:2]
    size = like.to_vector().shape
    excess = _layer_excess if isinstance(like, ResidualParams) else _effective_excess

    def objective(vector: ArrayLike) -> tuple[float, FloatArray]:
        with np.errstate(over="ignore", invalid="ignore"):
            value, gradient = excess(rule, as_array("vector", vector, size), count, dim)
        if not residual:
            gradient[: dim * dim] = 0.0
        return float(value), gradient

    return objective


def _check_layer(name: str, layer: Any, dim: int, residual: Any) -> None:
    if not isinstance(layer, ResidualParams | GatedMap):
        raise ValueError(
            f"{name}: expected ResidualParams or a GatedMap, got {type(layer).__name__}"
        )
    if layer.U.shape[-1] != dim or not len(layer.U):
        raise ValueError(f"{name}: expected heads in the tasks' dimension {dim}, got {layer!r}")
    if not isinstance(residual, bool):
        raise ValueError(f"residual: expected True or False, got {residual!r}")
    if isinstance(layer, ResidualParams) and not residual:
        raise ValueError("residual: expected True for ResidualParams (False of a GatedMap only)")


def _layer_excess(
    rule: QueryRule, vectors: FloatArray, count: int, dim: int
) -> tuple[FloatArray, FloatArray]:
    """Excess and gradient at the parameters (U, V, W) of layers, vectors (..., p)."""
    blocks = vectors.reshape(*vectors.shape[:-1], 3, count, dim, dim)
    U, V, W = np.moveaxis(blocks, -4, 0)
    value, grad_A, grad_P, grad_U = rule.excess_and_gradient(W.sum(axis=-3), W @ V, U)
    grad_V = np.swapaxes(W, -1, -2) @ grad_P
    grad_W = grad_A[..., None, :, :] + grad_P @ np.swapaxes(V, -1, -2)
    return value, np.stack([grad_U, grad_V, grad_W], axis=-4).reshape(vectors.shape)


def _effective_excess(
    rule: QueryRule, vectors: FloatArray, count: int, dim: int
) -> tuple[FloatArray, FloatArray]:
    """Excess and gradient at gated maps (A, P, U), vectors (..., p)."""
    blocks = vectors.reshape(*vectors.shape[:-1], 2 * count + 1, dim, dim)
    A, P, U = np.split(blocks, [1, count + 1], axis=-3)
    value, grad_A, grad_P, grad_U = rule.excess_and_gradient(A[..., 0, :, :], P, U)
    gradient = np.concatenate([grad_A[..., None, :, :], grad_P, grad_U], axis=-3)
    return value, gradient.reshape(vectors.shape)


def objective_hessian(objective: Objective, vector: FloatArray, step: float = 1e-4) -> FloatArray:
    """Hessian by central differences of fourth order of the analytic gradient, symmetric.

    Parameters
    ----------
    objective : callable
        Of `in_context_objective`.
    vector : array_like, shape (p,)
    step : float
        Positive.

    Returns
    -------
    ndarray, shape (p, p)

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    if not callable(objective):
        raise ValueError(f"objective: expected a function, got {type(objective).__name__}")
    x = as_array("vector", vector, ("p",))
    h = as_scalar("step", step, above=0.0)
    rows = []
    for direction in h * np.eye(len(x)):
        near = objective(x + direction)[1] - objective(x - direction)[1]
        far = objective(x + 2 * direction)[1] - objective(x - 2 * direction)[1]
        rows.append((8.0 * near - far) / (12.0 * h))
    hessian = np.array(rows)
    return 0.5 * (hessian + hessian.T)


def train_in_context(
    tasks: InContextTasks,
    start: Layer,
    *,
    order: int = 16,
    max_steps: int = 2000,
    target: float = 1e-20,
    residual: bool = True,
) -> History[Layer]:
    """Minimize the mean excess risk over `tasks` by BFGS (`mixattn.descent.quasi_newton`).

    The rule has positive weights, so the discretized excess is zero exactly where the error
    vanishes at all nodes: a coarse rule moves no solution.

    Parameters
    ----------
    tasks : InContextTasks
    start : ResidualParams or GatedMap
        The coordinates of the start are those of the training.
    order : int
        Gauss-Hermite nodes an axis.
    max_steps : int
    target : float
        Training ends once the excess is at most this.
    residual : bool
        See `in_context_objective`.

    Returns
    -------
    History
        Every step is recorded; `final` is of the start's type.

    Raises
    ------
    ValueError
        If an argument is not as above or the excess risk is not finite at the start.
    """
    if not isinstance(tasks, InContextTasks):
        raise ValueError(f"tasks: expected InContextTasks, got {type(tasks).__name__}")
    _check_layer("start", start, tasks.dim, residual)
    objective = in_context_objective(tasks.rule(order), start, residual=residual)
    return quasi_newton(
        objective,
        start.to_vector(),
        max_steps=max_steps,
        target=target,
        read=partial(type(start).from_vector, dim=tasks.dim, n_heads=len(start.U)),
    )


def train_in_context_online(
    law: InContextLaw,
    starts: Sequence[ResidualParams],
    rngs: Sequence[np.random.Generator],
    *,
    record_tasks: InContextTasks,
    n_steps: int = 4000,
    n_tasks: int = 8,
    n_queries: int = 16,
    step_size: float = 0.03,
    clip_norm: float = 10.0,
    record_every: int = 200,
    order: int = 12,
) -> list[History[ResidualParams]]:
    """Online stochastic gradient descent in the layers' own parameters, several starts at once.

    Each step of each run draws `n_tasks` fresh tasks and `n_queries` queries of each. The gradient
    of the mean squared distance to the Bayes denoiser is rescaled to the norm `clip_norm` where it
    is longer. A run's draws depend on its generator alone, not on the other runs.

    Parameters
    ----------
    law : InContextLaw
    starts : sequence of ResidualParams
        One size.
    rngs : sequence of numpy.random.Generator
        One a start.
    record_tasks : InContextTasks
        Tasks on which the recorded excess is computed.
    n_steps, n_tasks, n_queries, record_every, order : int
        At least 1.
    step_size, clip_norm : float
        Positive.

    Returns
    -------
    list of History
        The status is STEP_LIMIT or DIVERGED; `final` is of type ResidualParams.

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    if not isinstance(law, InContextLaw):
        raise ValueError(f"law: expected an InContextLaw, got {type(law).__name__}")
    count = _check_starts(starts, law.dim)
    if not isinstance(rngs, Sequence) or len(rngs) != len(starts):
        raise ValueError(f"rngs: expected {len(starts)} generators, one a start, got {rngs!r}")
    _check_record_tasks(record_tasks, law)
    exact = record_tasks.rule(order)
    draws = _fresh_rules(
        law,
        [as_generator(rng) for rng in rngs],
        as_integer("n_tasks", n_tasks, at_least=1),
        as_integer("n_queries", n_queries, at_least=1),
    )
    return descend_together(
        lambda theta: _layer_excess(next(draws), theta, count, law.dim)[1],
        lambda theta: _layer_excess(exact, theta, count, law.dim)[0],
        np.stack([start.to_vector() for start in starts]),
        step_size=step_size,
        n_steps=n_steps,
        record=_every(as_integer("record_every", record_every, at_least=1), n_steps),
        clip_norm=clip_norm,
        read=partial(ResidualParams.from_vector, dim=law.dim, n_heads=count),
    )


def _fresh_rules(
    law: InContextLaw, rngs: list[np.random.Generator], n_tasks: int, n_queries: int
) -> Iterator[QueryRule]:
    """Fresh tasks and queries of each run, without end."""
    weights = np.full((len(rngs), n_tasks, n_queries), 1.0 / n_queries)
    while True:
        drawn = [law.sample_queries(n_tasks, n_queries, rng) for rng in rngs]
        odds, means, queries = (np.stack(part) for part in zip(*drawn, strict=True))
        yield round_rule(
            odds,
            means,
            law.within_variance,
            law.noise_variance,
            np.swapaxes(queries, -1, -2),
            weights,
        )


def _check_starts(starts: Any, dim: int) -> int:
    """Return the number of heads that all starts have."""
    listed = isinstance(starts, Sequence) and len(starts) > 0
    if not listed or not all(isinstance(start, ResidualParams) for start in starts):
        raise ValueError(
            f"starts: expected a sequence of at least one ResidualParams, got {starts!r}"
        )
    shape = (len(starts[0].U), dim, dim)
    for i, start in enumerate(starts):
        as_array(f"starts[{i}].U", start.U, shape)
    return shape[0]


def _check_record_tasks(record_tasks: Any, law: InContextLaw) -> None:
    if not isinstance(record_tasks, InContextTasks):
        raise ValueError(
            f"record_tasks: expected InContextTasks, got {type(record_tasks).__name__}"
        )
    recorded = record_tasks.dim, record_tasks.within_variance, record_tasks.noise_variance
    wanted = law.dim, law.within_variance, law.noise_variance
    if recorded != wanted:
        raise ValueError(
            f"record_tasks: expected the law's dimension and variances {wanted}, got {recorded}"
        )
