r"""Training residual layers on the in-context excess risk: quasi-Newton and online SGD.

The prompt is infinite: heads read the noisy law of each task through their closed form. Quasi-Newton
minimizes the mean over a fixed set of tasks with an analytic gradient; online SGD draws fresh tasks
and queries at every step. This goes beyond the paper, which does not train in context.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixattn._checks import FloatArray, as_array, as_integer, as_scalar
from mixattn.denoising.in_context import (
    EffectiveLayer,
    InContextLaw,
    InContextTasks,
    QueryRule,
    ResidualParams,
)
from mixattn.denoising.training import _minimize

Params = ResidualParams | EffectiveLayer
Objective = Callable[[FloatArray], tuple[float, FloatArray]]

# A fresh start of BFGS must decrease the risk by this fraction to be worth another.
_PROGRESS = 1e-3


@dataclass(frozen=True, eq=False)
class InContextTraining:
    """A trained layer and how it got there.

    Attributes
    ----------
    params : ResidualParams or EffectiveLayer
        At the last step, in the coordinates of the start.
    steps : ndarray of int, shape (n,)
    excess : ndarray, shape (n,)
        In-context excess risk at these steps, on the tasks of the training or of the record.
    path : ndarray, shape (n, p)
        Parameters at these steps, in the order of `to_vector`.
    status : str
        Why training stopped.
    """

    params: Params
    steps: NDArray[np.intp]
    excess: FloatArray
    path: FloatArray
    status: str

    def __repr__(self) -> str:
        """Where and why it ended, not the curve."""
        return (
            f"InContextTraining(steps={self.steps[-1]}, excess={self.excess[-1]:.3g}, "
            f"status={self.status!r})"
        )

    def at(self, index: int) -> Params:
        """Parameters at the record of this index."""
        count, dim = self.params.U.shape[:2]
        return type(self.params).from_vector(self.path[index], dim, count)

    @property
    def effective(self) -> EffectiveLayer:
        """What the trained layer computes."""
        return self.params if isinstance(self.params, EffectiveLayer) else self.params.effective


def in_context_objective(rule: QueryRule, like: Params, *, residual: bool = True) -> Objective:
    """Return the function vector -> (excess risk, gradient) in the coordinates of `like`.

    Parameters
    ----------
    rule : QueryRule
    like : ResidualParams or EffectiveLayer
        Says which coordinates, dimension and number of heads the vector has.
    residual : bool
        If False (effective coordinates only), A is held where it is: at zero the heads are plain.

    Examples
    --------
    >>> law = InContextLaw(2, 0.2, 0.8)
    >>> rule = QueryRule.product(law.sample(3, np.random.default_rng(0)), 8)
    >>> start = ResidualParams.random(2, 2, np.random.default_rng(1))
    >>> value, gradient = in_context_objective(rule, start)(start.to_vector())
    >>> gradient.shape
    (24,)
    """
    if not isinstance(rule, QueryRule):
        raise ValueError(f"rule: expected a QueryRule, got {type(rule).__name__}")
    if not isinstance(like, ResidualParams | EffectiveLayer):
        raise ValueError(
            f"like: expected ResidualParams or an EffectiveLayer, got {type(like).__name__}"
        )
    if not isinstance(residual, bool):
        raise ValueError(f"residual: expected True or False, got {residual!r}")
    count, dim = like.U.shape[:2]
    size = like.to_vector().shape
    as_array("like: U", like.U, (count, rule.queries.shape[-2], rule.queries.shape[-2]))
    if isinstance(like, ResidualParams):
        if not residual:
            raise ValueError("residual: can be False in effective coordinates only")

        def raw(vector: FloatArray) -> tuple[float, FloatArray]:
            blocks = as_array("vector", vector, size).reshape(3, count, dim, dim)
            with np.errstate(over="ignore", invalid="ignore"):
                value, *gradient = rule.raw_excess_and_gradient(*blocks)
            return float(value), np.concatenate([part.ravel() for part in gradient])

        return raw

    def effective(vector: FloatArray) -> tuple[float, FloatArray]:
        blocks = as_array("vector", vector, size).reshape(-1, dim, dim)
        A, P, U = blocks[0], blocks[1 : count + 1], blocks[count + 1 :]
        with np.errstate(over="ignore", invalid="ignore"):
            value, *gradient = rule.excess_and_gradient(A, P, U)
        if not residual:
            gradient[0] = np.zeros_like(gradient[0])
        return float(value), np.concatenate([part.ravel() for part in gradient])

    return effective


def objective_hessian(objective: Objective, vector: FloatArray, step: float = 1e-4) -> FloatArray:
    """Hessian by central differences of fourth order of the analytic gradient, symmetric.

    Parameters
    ----------
    objective : callable
        Of `in_context_objective`.
    vector : ndarray, shape (p,)
    step : float
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
    start: Params,
    *,
    order: int = 16,
    max_steps: int = 2000,
    target: float = 1e-20,
    residual: bool = True,
) -> InContextTraining:
    """Minimize the mean excess risk over `tasks` by BFGS (L-BFGS in high dimension).

    The rule has positive weights, so the discretized excess is zero exactly where the error
    vanishes at all nodes: a coarse rule moves no solution.

    Parameters
    ----------
    tasks : InContextTasks
    start : ResidualParams or EffectiveLayer
        The coordinates of the start are those of the training.
    order : int
        Gauss-Hermite nodes an axis.
    max_steps : int
    target : float
        Training stops once the excess is at most this.
    residual : bool
        See `in_context_objective`.

    Returns
    -------
    InContextTraining
        Every iteration is recorded. `status` is "below target", "stationary" (a fresh start of BFGS
        from the last point no longer decreases the risk) or "step limit".
    """
    rule = QueryRule.product(tasks, order)
    objective = in_context_objective(rule, start, residual=residual)
    max_steps = as_integer("max_steps", max_steps, at_least=1)
    target = as_scalar("target", target, at_least=0.0)
    vector = start.to_vector()
    curve, path = [objective(vector)[0]], [vector]
    if not np.isfinite(curve[0]):
        raise ValueError("start: expected parameters of finite excess risk, got one that overflows")

    def record(intermediate_result: Any) -> None:
        curve.append(float(intermediate_result.fun))
        path.append(np.array(intermediate_result.x))
        if curve[-1] <= target:
            raise StopIteration

    status = "below target" if curve[-1] <= target else ""
    while not status:
        before, left = curve[-1], max_steps + 1 - len(curve)
        vector = _minimize(objective, vector, record, left)
        if curve[-1] <= target:
            status = "below target"
        elif len(curve) > max_steps:
            status = "step limit"
        elif curve[-1] > (1.0 - _PROGRESS) * before:
            status = "stationary"
    count, dim = start.U.shape[:2]
    params = type(start).from_vector(vector, dim, count)
    steps = np.arange(len(curve))
    return InContextTraining(params, steps, np.array(curve), np.array(path), status)


def train_in_context_online(
    law: InContextLaw,
    starts: Sequence[ResidualParams],
    seeds: Sequence[int],
    *,
    record_tasks: InContextTasks,
    n_steps: int = 4000,
    n_tasks: int = 8,
    n_queries: int = 16,
    step_size: float = 0.03,
    clip_norm: float = 10.0,
    record_every: int = 200,
    order: int = 12,
) -> list[InContextTraining]:
    """Online stochastic gradient descent in the layer's own parameters, from several starts at once.

    Each step of each run draws `n_tasks` fresh tasks and `n_queries` queries of each. The gradient
    of the mean squared distance to the Bayes denoiser is rescaled to the norm `clip_norm` where it
    is longer. A run's draws depend on its seed alone, not on the other runs.

    Parameters
    ----------
    law : InContextLaw
    starts : sequence of ResidualParams
        One size.
    seeds : sequence of int
        Seeds of the draws, one a start.
    record_tasks : InContextTasks
        Tasks on which the recorded excess is computed.
    n_steps, n_tasks, n_queries, record_every, order : int
    step_size, clip_norm : float

    Returns
    -------
    list of InContextTraining
        `status` is "step limit", or "diverged" if the parameters stopped being finite numbers; then
        `params` is the start.
    """
    if not isinstance(law, InContextLaw):
        raise ValueError(f"law: expected an InContextLaw, got {type(law).__name__}")
    starts = _as_starts(starts)
    if not isinstance(seeds, Sequence) or len(seeds) != len(starts):
        raise ValueError(f"seeds: expected a sequence of {len(starts)}, one a start, got {seeds!r}")
    if not isinstance(record_tasks, InContextTasks):
        raise ValueError(
            f"record_tasks: expected InContextTasks, got {type(record_tasks).__name__}"
        )
    recorded = record_tasks.dim, record_tasks.within_variance, record_tasks.noise_variance
    if recorded != (law.dim, law.within_variance, law.noise_variance):
        raise ValueError(
            "record_tasks: expected the law's dimension and variances "
            f"{(law.dim, law.within_variance, law.noise_variance)}, got {recorded}"
        )
    n_steps = as_integer("n_steps", n_steps, at_least=1)
    n_tasks = as_integer("n_tasks", n_tasks, at_least=1)
    n_queries = as_integer("n_queries", n_queries, at_least=1)
    record_every = as_integer("record_every", record_every, at_least=1)
    step_size = as_scalar("step_size", step_size, above=0.0)
    clip_norm = as_scalar("clip_norm", clip_norm, above=0.0)
    shape = starts[0].U.shape
    theta = np.stack(
        [
            np.stack([as_array(f"starts[{i}].{n}", getattr(s, n), shape) for n in "UVW"])
            for i, s in enumerate(starts)
        ],
        axis=1,
    )  # (3, R, H, d, d)
    as_array("starts: U", starts[0].U, (shape[0], law.dim, law.dim))
    rngs = [np.random.default_rng([as_integer("seeds", seed), 1]) for seed in seeds]
    exact = QueryRule.product(record_tasks, order)
    weights = np.full((len(starts), n_tasks, n_queries), 1.0 / n_queries)
    with np.errstate(over="ignore", invalid="ignore"):
        steps, curves, path = [0], [exact.raw_excess_and_gradient(*theta)[0]], [theta]
    for step in range(1, n_steps + 1):
        draws = [law.sample_queries(n_tasks, n_queries, rng) for rng in rngs]
        odds, means, queries = (np.stack(part) for part in zip(*draws, strict=True))
        rule = QueryRule(
            odds,
            means,
            law.within_variance,
            law.noise_variance,
            np.swapaxes(queries, -1, -2),
            weights,
        )
        with np.errstate(over="ignore", invalid="ignore"):
            gradient = np.stack(rule.raw_excess_and_gradient(*theta)[1:])
            norms = np.sqrt(np.sum(gradient**2, axis=(0, 2, 3, 4)))
            rate = step_size * np.minimum(1.0, clip_norm / np.maximum(norms, 1e-300))
            theta = theta - rate[:, None, None, None] * gradient
        if step % record_every == 0 or step == n_steps:
            steps.append(step)
            path.append(theta)
            with np.errstate(over="ignore", invalid="ignore"):
                curves.append(exact.raw_excess_and_gradient(*theta)[0])
    runs, excess = [], np.array(curves)
    records = np.moveaxis(np.array(path), 2, 0).reshape(len(starts), len(steps), -1)
    for i, start in enumerate(starts):
        finite = bool(np.isfinite(theta[:, i]).all())
        params = ResidualParams(*theta[:, i]) if finite else start
        status = "step limit" if finite else "diverged"
        runs.append(InContextTraining(params, np.array(steps), excess[:, i], records[i], status))
    return runs


def _as_starts(starts: Sequence[ResidualParams]) -> list[ResidualParams]:
    listed = list(starts) if isinstance(starts, Sequence) else []
    if not listed or not all(isinstance(start, ResidualParams) for start in listed):
        raise ValueError(
            f"starts: expected a sequence of at least one ResidualParams, got {starts!r}"
        )
    return listed
