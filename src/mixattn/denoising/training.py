r"""Training attention denoisers on the population: online SGD and quasi-Newton.

Both minimize the excess risk :math:`E|D(Z) - f^*(Z)|^2` of a sum of heads read against the noisy
law. Online SGD draws fresh queries at every step, as in Figure 2 of the paper; quasi-Newton uses
the exact risk and its analytic gradient. The components must share one covariance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from mixattn._checks import FloatArray, as_generator, as_integer, as_scalar
from mixattn.attention import Head, MultiHead
from mixattn.denoising.gated import GatedMap, excess_risk_and_gradient, softmax
from mixattn.denoising.task import DenoisingTask, as_denoising_task, as_gated_map

# Starts that end within this factor of the best excess risk count as agreeing with it.
AGREEMENT = 1e-4
# Beyond this many parameters a dense inverse Hessian costs more than it saves.
_MAX_DENSE = 600
# A fresh start must decrease the risk by this fraction to be worth another.
_PROGRESS = 1e-3


@dataclass(frozen=True, eq=False)
class DenoiserTraining:
    """A trained denoiser and how it got there.

    Attributes
    ----------
    denoiser : MultiHead
        The heads at the last step.
    steps : ndarray of int, shape (n,)
        Steps at which the risk was recorded, the first 0.
    excess_risk : ndarray, shape (n,)
        Exact excess risk at these steps.
    status : str
        Why training stopped.
    seed : int or None
        Seed of the start and of the queries; None if the start was given and nothing was drawn.
    """

    denoiser: MultiHead
    steps: NDArray[np.intp]
    excess_risk: FloatArray
    status: str
    seed: int | None

    def __repr__(self) -> str:
        """Where and why it ended, not the curve."""
        return (
            f"DenoiserTraining(steps={self.steps[-1]}, excess_risk={self.excess_risk[-1]:.3g}, "
            f"status={self.status!r}, seed={self.seed})"
        )


@dataclass(frozen=True, eq=False)
class SingleHeadFit:
    """The best single head found from several starts.

    Attributes
    ----------
    head : Head
    excess_risk : float
    n_agreeing : int
        Starts whose excess risk is within a factor 1 + 1e-4 of the best (or within 1e-12).
    runs : tuple of DenoiserTraining
        All runs, best first.
    """

    head: Head
    excess_risk: float
    n_agreeing: int
    runs: tuple[DenoiserTraining, ...]

    def __repr__(self) -> str:
        """Risk and agreement, not the runs."""
        return (
            f"SingleHeadFit(excess_risk={self.excess_risk:.6g}, "
            f"{self.n_agreeing} of {len(self.runs)} starts agree)"
        )


def random_heads(dim: int, n_heads: int, rng: np.random.Generator, scale: float = 0.5) -> MultiHead:
    """Heads with independent entries of law N(0, scale^2) in U and V.

    Parameters
    ----------
    dim, n_heads : int
        Dimension d and number of heads, at least 1.
    rng : numpy.random.Generator
    scale : float
        Standard deviation of an entry, positive.
    """
    dim = as_integer("dim", dim, at_least=1)
    n_heads = as_integer("n_heads", n_heads, at_least=1)
    scale = as_scalar("scale", scale, above=0.0)
    draws = scale * as_generator(rng).standard_normal((n_heads, 2, dim, dim))
    return MultiHead([Head(U, V) for U, V in draws])


def excess_risk_gradient(
    task: DenoisingTask, denoiser: MultiHead
) -> tuple[float, FloatArray, FloatArray]:
    """Exact excess risk of a sum of heads and its gradient.

    Parameters
    ----------
    task : DenoisingTask
        Components of one covariance.
    denoiser : MultiHead
        H heads of shape (d, d).

    Returns
    -------
    value : float
    grad_U, grad_V : ndarray, shape (H, d, d)
        Derivatives in the entries of each head's U and V.
    """
    _check_task(task)
    return excess_risk_and_gradient(task.whitened, _check_heads(denoiser, task.dim))


def train_quasi_newton(
    task: DenoisingTask,
    n_heads: int = 2,
    *,
    seed: int | None = None,
    initial: MultiHead | None = None,
    max_steps: int = 2000,
    target: float = 1e-20,
) -> DenoiserTraining:
    """Minimize the exact excess risk by BFGS (L-BFGS in high dimension).

    The minimizers are not isolated and some valleys are narrow: where a line search fails, BFGS
    starts afresh from the last point, as long as this still decreases the risk.

    Parameters
    ----------
    task : DenoisingTask
        Components of one covariance.
    n_heads : int
        Number of heads of a random start.
    seed : int, optional
        Seed of the random start (`random_heads`); give this or `initial`.
    initial : MultiHead, optional
        The start.
    max_steps : int
        Iteration limit.
    target : float
        Training stops once the excess risk is below.

    Returns
    -------
    DenoiserTraining
        Every iteration is recorded. `status` is "below target", "stationary" (a fresh start from
        the last point no longer decreases the risk) or "step limit".
    """
    _check_task(task)
    if seed is not None and initial is not None:
        raise ValueError(f"seed: expected a seed or an initial MultiHead, got both (seed={seed!r})")
    start = _start(task, n_heads, seed, initial)
    max_steps = as_integer("max_steps", max_steps, at_least=1)
    target = as_scalar("target", target, at_least=0.0)
    shape = start.U.shape

    def objective(theta: FloatArray) -> tuple[float, FloatArray]:
        value, grad_U, grad_V = excess_risk_and_gradient(task.whitened, _unpack(theta, shape))
        return value, np.concatenate([grad_U.ravel(), grad_V.ravel()])

    theta = np.concatenate([start.U.ravel(), start.V.ravel()])
    curve = [objective(theta)[0]]

    def record(intermediate_result: Any) -> None:
        curve.append(float(intermediate_result.fun))
        if curve[-1] <= target:
            raise StopIteration

    status = ""
    while not status:
        before, left = curve[-1], max_steps + 1 - len(curve)
        theta = _minimize(objective, theta, record, left)
        if curve[-1] <= target:
            status = "below target"
        elif len(curve) > max_steps:
            status = "step limit"
        elif curve[-1] > (1.0 - _PROGRESS) * before:
            status = "stationary"
    return DenoiserTraining(
        _as_multi_head(_unpack(theta, shape)), np.arange(len(curve)), np.array(curve), status, seed
    )


def _minimize(
    objective: Callable[[FloatArray], tuple[float, FloatArray]],
    theta: FloatArray,
    record: Callable[[Any], None],
    max_steps: int,
) -> FloatArray:
    """Run BFGS from `theta` until the gradient vanishes, a line search fails or `record` stops it."""
    dense = theta.size <= _MAX_DENSE
    options: dict[str, Any] = {"maxiter": max_steps, "gtol": 1e-15}
    if not dense:
        options |= {"ftol": 0.0, "maxfun": 4 * max_steps, "maxcor": 30}
    minimize: Any = scipy.optimize.minimize  # its type stubs know no jac=True with options
    result = minimize(
        objective,
        theta,
        jac=True,
        method="BFGS" if dense else "L-BFGS-B",
        callback=record,
        options=options,
    )
    return np.asarray(result.x, dtype=np.float64)


def train_sgd(
    task: DenoisingTask,
    n_heads: int = 2,
    *,
    seed: int,
    initial: MultiHead | None = None,
    n_steps: int = 20_000,
    batch_size: int = 64,
    step_size: float = 2e-3,
    clip_norm: float = 10.0,
    record_every: int = 200,
) -> DenoiserTraining:
    """Minimize the excess risk by online stochastic gradient descent, as in Figure 2 of the paper.

    Each step draws `batch_size` fresh queries from the noisy law. The gradient of the mean of
    ``|D(z) - f*(z)|^2`` over them is rescaled to the norm `clip_norm` where it is longer. The paper
    gives the step size and the clipping; batch size, start and length are ours.

    Parameters
    ----------
    task : DenoisingTask
        Components of one covariance.
    n_heads : int
        Number of heads of a random start.
    seed : int
        Seed of the random start (`random_heads`) and of the queries.
    initial : MultiHead, optional
        A start to use in place of the random one.
    n_steps, batch_size, record_every : int
    step_size, clip_norm : float

    Returns
    -------
    DenoiserTraining
        `status` is "step limit", or "diverged" if the parameters stopped being finite numbers.
    """
    _check_task(task)
    seed = as_integer("seed", seed)
    start = _start(task, n_heads, seed, initial)
    n_steps = as_integer("n_steps", n_steps, at_least=1)
    batch_size = as_integer("batch_size", batch_size, at_least=1)
    record_every = as_integer("record_every", record_every, at_least=1)
    step_size = as_scalar("step_size", step_size, above=0.0)
    clip_norm = as_scalar("clip_norm", clip_norm, above=0.0)

    rng = np.random.default_rng([seed, 1])
    batch_gradient = _BatchGradient(task)
    U, V = start.U.copy(), start.V.copy()
    steps, curve, status, done = [0], [float(task.excess_risk(_as_multi_head(start)))], "", 0
    while not status:
        length = min(record_every, n_steps - done)
        z, _ = task.noisy.sample(length * batch_size, rng)
        targets = task.bayes_denoiser(z)
        for i in range(length):
            batch = slice(i * batch_size, (i + 1) * batch_size)
            grad_U, grad_V = batch_gradient(U, V, z[batch], targets[batch])
            norm = np.sqrt(np.sum(grad_U**2) + np.sum(grad_V**2))
            rate = step_size * min(1.0, clip_norm / max(norm, np.finfo(float).tiny))
            U -= rate * grad_U
            V -= rate * grad_V
        done += length
        if not (np.isfinite(U).all() and np.isfinite(V).all()):
            status = "diverged"
            break
        steps.append(done)
        curve.append(float(task.excess_risk(_as_multi_head(_gated(U, V)))))
        if done == n_steps:
            status = "step limit"
    return DenoiserTraining(
        _as_multi_head(_gated(U, V)), np.array(steps), np.array(curve), status, seed
    )


def best_single_head(
    task: DenoisingTask, *, n_starts: int = 16, seed: int = 0, max_steps: int = 500
) -> SingleHeadFit:
    """Search for the single head of smallest excess risk, by quasi-Newton from several starts.

    The first start is the gate of the Bayes denoiser with half the identity as value, optimal at
    gamma^2 = xi^2; the others are random. The risk is not convex: the result is an upper bound of the
    smallest excess risk, the more credible the more starts agree.

    Parameters
    ----------
    task : DenoisingTask
        Components of one covariance.
    n_starts : int
    seed : int
    max_steps : int
        Iteration limit of each run.
    """
    _check_task(task)
    n_starts = as_integer("n_starts", n_starts, at_least=1)
    seed = as_integer("seed", seed)
    noisy = task.noisy.covariances[0]
    informed = MultiHead([Head(np.linalg.inv(noisy), 0.5 * np.eye(task.dim))])
    runs = [train_quasi_newton(task, initial=informed, max_steps=max_steps)]
    runs += [
        train_quasi_newton(task, 1, seed=seed + i, max_steps=max_steps) for i in range(n_starts - 1)
    ]
    runs.sort(key=lambda run: float(run.excess_risk[-1]))
    best = float(runs[0].excess_risk[-1])
    agreeing = sum(run.excess_risk[-1] <= best * (1.0 + AGREEMENT) + 1e-12 for run in runs)
    return SingleHeadFit(runs[0].denoiser.heads[0], best, int(agreeing), tuple(runs))


class _BatchGradient:
    """Gradient of the mean of |sum_h T_h(z) - target|^2 over a batch, in closed form."""

    def __init__(self, task: DenoisingTask) -> None:
        whitened = task.whitened
        self.covariance = whitened.covariance
        self.reference = whitened.reference
        self.differences = whitened.differences
        self.log_odds = whitened.log_odds[:, None]

    def __call__(
        self, U: FloatArray, V: FloatArray, z: FloatArray, targets: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        D = self.differences
        tilts = U @ z.T  # (H, d, n)
        gates, _ = softmax(self.log_odds + D @ tilts)  # (H, K, n)
        reads = self.covariance @ tilts + self.reference[:, None] + D.T @ gates
        error = np.sum(V @ reads, axis=0) - targets.T  # (d, n)
        scale = 2.0 / len(z)
        back = V.transpose(0, 2, 1) @ error  # (H, d, n)
        along = D @ back
        through_gates = D.T @ (gates * (along - np.sum(gates * along, axis=1, keepdims=True)))
        grad_U = scale * (self.covariance @ back + through_gates) @ z
        grad_V = scale * error @ reads.transpose(0, 2, 1)
        return grad_U, grad_V


def _check_task(task: Any) -> None:
    if not as_denoising_task(task).mixture.shared_covariance:
        raise ValueError("task: training expects components of one covariance, got several")


def _check_heads(denoiser: Any, dim: int) -> GatedMap:
    gated = as_gated_map(denoiser, dim)
    if not isinstance(denoiser, MultiHead) or gated is None:
        raise ValueError(f"denoiser: expected a MultiHead, got {type(denoiser).__name__}")
    return gated


def _start(
    task: DenoisingTask, n_heads: int, seed: int | None, initial: MultiHead | None
) -> GatedMap:
    if initial is not None:
        return _check_heads(initial, task.dim)
    if seed is None:
        raise ValueError("seed: expected a seed for the random start (or an initial MultiHead)")
    rng = np.random.default_rng([as_integer("seed", seed), 0])
    return _check_heads(random_heads(task.dim, n_heads, rng), task.dim)


def _gated(U: FloatArray, V: FloatArray) -> GatedMap:
    dim = U.shape[-1]
    return GatedMap(U, V, np.zeros((dim, dim)), np.zeros(dim))


def _unpack(theta: FloatArray, shape: tuple[int, ...]) -> GatedMap:
    U, V = theta.reshape(2, *shape)
    return _gated(U, V)


def _as_multi_head(gated: GatedMap) -> MultiHead:
    return MultiHead([Head(U, V) for U, V in zip(gated.U, gated.V, strict=True)])
