r"""Training on the population logistic risk: gradient flow, gradient descent and online SGD.

Section 3.3 and appendix B.13 of the paper. The flow :math:`\dot\theta = -\nabla R(\theta)` is stiff:
near a minimizer its time scales are the inverses of the Hessian's eigenvalues, and near the
constant-gate family it slows down algebraically. An implicit integrator with the analytic Jacobian
:math:`-\nabla^2 R` takes steps that grow with time, so that ten million units of time cost a few
hundred steps.
"""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import LSODA, DenseOutput, OdeSolution

from mixattn._checks import FloatArray, as_array, as_generator, as_integer, as_scalar, freeze
from mixattn.classification.params import (
    AttentionParams,
    EffectiveParams,
    Params,
    as_effective,
    check_params,
    pull_back,
)
from mixattn.classification.risk import excess_risk, risk_gradient, risk_hessian
from mixattn.classification.task import LDATask

Kind = type[AttentionParams] | type[EffectiveParams]
Progress = Callable[[float, float], None]


class FlowStatus(StrEnum):
    """Why `gradient_flow` stopped."""

    REACHED_END = "reached t_end"
    STATIONARY = "the gradient's norm fell to gradient_tol"
    OPTIMAL = "the excess risk fell to excess_tol"
    FAILED = "the integrator failed: the tolerances are out of reach"


@dataclass(frozen=True, eq=False)
class Trajectory:
    """A solution of the gradient flow.

    Attributes
    ----------
    t : ndarray, shape (n,)
        The times of the integrator's steps, from 0; where the flow slows down they spread out.
    params : ndarray, shape (n, p)
        The parameters there, in `to_vector` order.
    status : FlowStatus
        Why the integration stopped.
    task : LDATask
    t_end : float
        The time that was asked for. If the flow became stationary before, it stays where it is.
    """

    t: FloatArray
    params: FloatArray
    status: FlowStatus
    task: LDATask
    t_end: float
    _kind: Kind = field(repr=False)
    _interpolant: OdeSolution | None = field(repr=False)

    @cached_property
    def excess_risk(self) -> FloatArray:
        """Excess risk at the times `t`, shape (n,); computed at the first access."""
        return freeze(self.excess_risk_at(self.t))

    def at(self, t: ArrayLike) -> FloatArray:
        """Parameters at time `t`: a vector (p,), or (m, p) for an array of m times.

        Between steps this is the integrator's own interpolant, of its order of accuracy.

        Raises
        ------
        ValueError
            If a time is outside the interval that was integrated (for a stationary end, [0, t_end]).
        """
        scalar = np.ndim(t) == 0
        times = as_array("t", np.atleast_1d(t), ("m",))
        last = self.t_end if self.status is FlowStatus.STATIONARY else self.t[-1]
        if times.min() < 0 or times.max() > last:
            raise ValueError(
                f"t: expected times in [0, {last:g}] (the flow stopped there: {self.status}), "
                f"got {times.min():g} to {times.max():g}"
            )
        values = np.repeat(self.params[-1:], len(times), axis=0)
        inside = times < self.t[-1]
        if self._interpolant is not None and inside.any():
            values[inside] = np.asarray(self._interpolant(times[inside])).T
        return values[0] if scalar else values

    def point_at(self, t: float) -> AttentionParams | EffectiveParams:
        """Parameters at time `t`, as an object of the start's type."""
        return self._kind.from_vector(self.at(as_scalar("t", t)), self.task.dim)

    def excess_risk_at(self, t: ArrayLike) -> FloatArray:
        """Excess risk at the times `t` (m,), shape (m,)."""
        d = self.task.dim
        points = self.at(as_array("t", t, ("m",)))
        return np.array([excess_risk(self._kind.from_vector(v, d), self.task) for v in points])

    @property
    def final(self) -> AttentionParams | EffectiveParams:
        """The last point, as an object of the start's type."""
        return self._kind.from_vector(self.params[-1], self.task.dim)


def gradient_flow(
    params: Params,
    task: LDATask,
    t_end: float,
    *,
    rtol: float = 1e-10,
    atol: float = 1e-12,
    gradient_tol: float = 1e-14,
    excess_tol: float | None = None,
    progress: Progress | None = None,
) -> Trajectory:
    r"""Follow :math:`\dot\theta = -\nabla R(\theta)` from `params` for `t_end` units of time.

    The integrator is LSODA: Adams methods while the flow is not stiff, backward differentiation with
    the analytic Jacobian when it is. On trajectories to t = 1e7 it needs about half the gradients
    of Radau IIA at equal accuracy.

    Parameters
    ----------
    params : AttentionParams or EffectiveParams
        The start. The flow is Euclidean in its coordinates, so that the two types give different
        trajectories.
    task : LDATask
    t_end : float
        Positive.
    rtol, atol : float
        Tolerances on the parameters in a step. The excess risk is quadratic in the error or
        flatter, so the default resolves an excess risk of 1e-14 and less.
    gradient_tol : float
        Stop when the Euclidean norm of the gradient is at most this.
    excess_tol : float, optional
        Stop when the excess risk is at most this (one evaluation a step).
    progress : callable (t, gradient norm), optional
        Called after every step. By default a line on standard error if that is a terminal and the
        run takes more than two seconds; nothing in a notebook.

    Returns
    -------
    Trajectory

    Raises
    ------
    ValueError
        If an argument is not as above.

    Examples
    --------
    >>> import numpy as np
    >>> from mixattn import EffectiveParams, LDATask, gradient_flow
    >>> task = LDATask([1.0, 0.0], [0.0, 1.0], np.eye(2), 0.6)
    >>> start = EffectiveParams([0.0, 0.0], 0.0, 0.0, [2.0, 0.0])
    >>> flow = gradient_flow(start, task, 100.0)
    >>> print(flow.status)
    reached t_end
    >>> flow.at(0.0)
    array([0., 0., 0., 0., 2., 0.])
    >>> bool(flow.excess_risk_at([100.0])[0] < 0.01 * flow.excess_risk_at([0.0])[0])
    True
    """
    kind, d = _kind_of(params, task), task.dim
    t_end = as_scalar("t_end", t_end, above=0.0)
    rtol = as_scalar("rtol", rtol, at_least=1e-13)
    atol = as_scalar("atol", atol, above=0.0)
    gradient_tol = as_scalar("gradient_tol", gradient_tol, at_least=0.0)
    if excess_tol is not None:
        excess_tol = as_scalar("excess_tol", excess_tol, at_least=0.0)
    if progress is not None and not callable(progress):
        raise ValueError(f"progress: expected a function or None, got {type(progress).__name__}")
    report = progress if progress is not None else _terminal_progress(t_end)

    # The integrator's own last evaluation is at its last iterate, not quite at the accepted point: good
    # enough to say when the exact norm is worth a gradient.
    last_norm = np.inf

    def velocity(_: float, y: FloatArray) -> FloatArray:
        nonlocal last_norm
        slope: FloatArray = -risk_gradient(kind.from_vector(y, d), task).to_vector()
        last_norm = float(np.linalg.norm(slope))
        return slope

    def jacobian(_: float, y: FloatArray) -> FloatArray:
        return -risk_hessian(kind.from_vector(y, d), task)

    def reason_to_stop(y: FloatArray) -> FlowStatus | None:
        nearly_stationary = last_norm <= 10 * gradient_tol
        if nearly_stationary and np.linalg.norm(velocity(0.0, y)) <= gradient_tol:
            return FlowStatus.STATIONARY
        if excess_tol is not None and excess_risk(kind.from_vector(y, d), task) <= excess_tol:
            return FlowStatus.OPTIMAL
        return None

    y = params.to_vector()
    times, points = [0.0], [y]
    pieces: list[DenseOutput] = []
    velocity(0.0, y)
    status = reason_to_stop(y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the integrator warns when it fails; the status says so
        solver = LSODA(velocity, 0.0, y, t_end, rtol=rtol, atol=atol, jac=jacobian)
        while status is None:
            solver.step()
            if solver.status == "failed":
                status = FlowStatus.FAILED
                break
            times.append(solver.t)
            points.append(solver.y)
            pieces.append(solver.dense_output())
            report(solver.t, last_norm)
            status = reason_to_stop(solver.y)
            if status is None and solver.status == "finished":
                status = FlowStatus.REACHED_END
    return Trajectory(
        t=freeze(np.array(times)),
        params=freeze(np.array(points)),
        status=status,
        task=task,
        t_end=t_end,
        _kind=kind,
        _interpolant=OdeSolution(times, pieces) if pieces else None,
    )


@dataclass(frozen=True, eq=False)
class LearningCurve:
    """What explicit training recorded.

    Attributes
    ----------
    iterations : ndarray of int, shape (n,)
    excess_risk : ndarray, shape (n,)
        Population excess risk after that many steps.
    params : ndarray, shape (n, p)
        The parameters there, in `to_vector` order.
    final : AttentionParams or EffectiveParams
        The parameters after the last step.
    """

    iterations: NDArray[np.int64]
    excess_risk: FloatArray
    params: FloatArray
    final: AttentionParams | EffectiveParams


def gradient_descent(
    params: Params,
    task: LDATask,
    *,
    step_size: float,
    n_steps: int,
    record: Sequence[int] | None = None,
) -> LearningCurve:
    r"""Explicit steps :math:`\theta \leftarrow \theta - h \nabla R(\theta)` on the population risk.

    Parameters
    ----------
    params : AttentionParams or EffectiveParams
    task : LDATask
    step_size : float
        The step h, positive.
    n_steps : int
        At least 1.
    record : sequence of int, optional
        Iterations, 0 to `n_steps`, at which the excess risk is computed; by default about fifty,
        dense at the beginning.

    Returns
    -------
    LearningCurve
    """
    kind, d = _kind_of(params, task), task.dim

    def gradient(y: FloatArray) -> FloatArray:
        return risk_gradient(kind.from_vector(y, d), task).to_vector()

    return _descend(params, task, gradient, step_size, n_steps, record)


def online_sgd(
    params: Params,
    task: LDATask,
    rng: np.random.Generator,
    *,
    step_size: float,
    n_steps: int,
    batch_size: int,
    record: Sequence[int] | None = None,
) -> LearningCurve:
    """Stochastic gradient descent on fresh minibatches of labelled queries drawn from the task.

    The prompt is the population (the score is exact); only the queries are sampled.

    Parameters
    ----------
    params : AttentionParams or EffectiveParams
    task : LDATask
    rng : numpy.random.Generator
    step_size : float
    n_steps : int
    batch_size : int
        Number of fresh samples a step, at least 1.
    record : sequence of int, optional
        As in `gradient_descent`.

    Returns
    -------
    LearningCurve
    """
    kind, d = _kind_of(params, task), task.dim
    rng = as_generator(rng)
    batch_size = as_integer("batch_size", batch_size, at_least=1)

    def gradient(y: FloatArray) -> FloatArray:
        x, labels = task.sample(batch_size, rng)
        return _empirical_gradient(kind.from_vector(y, d), task, x, labels)

    return _descend(params, task, gradient, step_size, n_steps, record)


def _descend(
    params: Params,
    task: LDATask,
    gradient: Callable[[FloatArray], FloatArray],
    step_size: float,
    n_steps: int,
    record: Sequence[int] | None,
) -> LearningCurve:
    step_size = as_scalar("step_size", step_size, above=0.0)
    n_steps = as_integer("n_steps", n_steps, at_least=1)
    recorded = _record_iterations(record, n_steps)
    kind, d = _kind_of(params, task), task.dim
    y = params.to_vector()
    snapshots = []
    remaining = iter(recorded)
    due = next(remaining)
    for iteration in range(n_steps + 1):
        if iteration == due:
            snapshots.append(y)
            due = next(remaining, -1)
        if iteration < n_steps:
            y = y - step_size * gradient(y)
    return LearningCurve(
        iterations=recorded,
        excess_risk=np.array([excess_risk(kind.from_vector(v, d), task) for v in snapshots]),
        params=np.array(snapshots),
        final=kind.from_vector(y, d),
    )


def _record_iterations(record: Sequence[int] | None, n_steps: int) -> NDArray[np.int64]:
    if record is None:
        return np.unique(np.r_[0, np.geomspace(1, n_steps, 50).round().astype(int)])
    given = np.asarray(record)
    if given.ndim != 1 or given.dtype.kind not in "iu" or given.size == 0:
        raise ValueError(f"record: expected a sequence of at least one integer, got {record!r}")
    iterations = np.unique(given)
    if iterations[0] < 0 or iterations[-1] > n_steps:
        raise ValueError(
            f"record: expected iterations in [0, {n_steps}], "
            f"got {iterations[0]} to {iterations[-1]}"
        )
    return iterations


def _empirical_gradient(
    params: AttentionParams | EffectiveParams,
    task: LDATask,
    x: FloatArray,
    labels: NDArray[np.int64],
) -> FloatArray:
    """Gradient of the mean logistic loss over a sample, in `to_vector` order."""
    zeta = as_effective(params, task)
    gate = scipy.special.expit(task.prior_logit + x @ zeta.s)
    scores = x @ zeta.w + zeta.b + zeta.r * gate
    slopes = -labels * scipy.special.expit(-labels * scores) / len(x)
    slope = EffectiveParams(
        slopes @ x,
        float(slopes.sum()),
        float(slopes @ gate),
        zeta.r * (slopes * gate * (1 - gate)) @ x,
    )
    if isinstance(params, EffectiveParams):
        return slope.to_vector()
    return pull_back(slope, params, task).to_vector()


# --- decay rates -----------------------------------------------------------------------------


@dataclass(frozen=True)
class DecayFit:
    """A slope fitted to a decay, and how far it may be off.

    Attributes
    ----------
    value : float
        The slope over the last quarter of the window, the most asymptotic one.
    uncertainty : float
        How much it differs from the slope over the quarter before plus the fit's standard error.
        The data are deterministic: what limits the fit is not noise but the modes that have not yet
        died out, and their trace is the drift of the slope.
    """

    value: float
    uncertainty: float


def fit_exponential_rate(t: ArrayLike, excess: ArrayLike) -> DecayFit:
    r"""Rate c of a decay :math:`e^{-ct}`, from values at times that span the window.

    Parameters
    ----------
    t, excess : array_like, shape (n,)
        Increasing times and positive values, at least four in each quarter of the window.
    """
    fit = _final_slope(*_as_decay(t, excess))
    return DecayFit(-fit.value, fit.uncertainty)


def fit_power_law(t: ArrayLike, excess: ArrayLike) -> DecayFit:
    r"""Exponent a of a decay :math:`t^a`, from values at positive times that span the window.

    As `fit_exponential_rate`, with quarters of equal length in :math:`\log t`.
    """
    times, logs = _as_decay(t, excess)
    if times[0] <= 0:
        raise ValueError(f"t: expected positive times, got {times[0]:g}")
    return _final_slope(np.log(times), logs)


def local_exponents(t: ArrayLike, excess: ArrayLike) -> FloatArray:
    """Exponents ``d log(excess) / d log(t)`` between successive times, shape (n - 1,).

    Give it one time a decade to read the exponent decade by decade.
    """
    times, logs = _as_decay(t, excess)
    if times[0] <= 0:
        raise ValueError(f"t: expected positive times, got {times[0]:g}")
    exponents: FloatArray = np.diff(logs) / np.diff(np.log(times))
    return exponents


def _as_decay(t: ArrayLike, excess: ArrayLike) -> tuple[FloatArray, FloatArray]:
    times = as_array("t", t, ("n",))
    values = as_array("excess", excess, (len(times),))
    if len(times) < 2 or (np.diff(times) <= 0).any():
        raise ValueError("t: expected at least two increasing times")
    if (values <= 0).any():
        raise ValueError(f"excess: expected positive values, got a minimum of {values.min():g}")
    return times, np.log(values)


def _final_slope(x: FloatArray, y: FloatArray) -> DecayFit:
    edges = x[0] + (x[-1] - x[0]) * np.array([0.5, 0.75])
    parts = [(x >= edges[0]) & (x < edges[1]), x >= edges[1]]
    if min(int(part.sum()) for part in parts) < 4:
        raise ValueError("t: expected at least four times in each quarter of the window")
    slopes, errors = zip(*(_least_squares_slope(x[part], y[part]) for part in parts), strict=True)
    return DecayFit(slopes[1], abs(slopes[1] - slopes[0]) + errors[1])


def _least_squares_slope(x: FloatArray, y: FloatArray) -> tuple[float, float]:
    centered = x - x.mean()
    spread = float(centered @ centered)
    slope = float(centered @ y) / spread
    residual = y - y.mean() - slope * centered
    return slope, float(np.sqrt(residual @ residual / (len(x) - 2) / spread))


# --- private ---------------------------------------------------------------------------------


def _kind_of(params: Params, task: LDATask) -> type[Params]:
    check_params(params, task, AttentionParams, EffectiveParams)
    return type(params)


def _terminal_progress(t_end: float) -> Progress:
    started = shown = time.monotonic()

    def show(t: float, gradient_norm: float) -> None:
        nonlocal shown
        now = time.monotonic()
        if now - started < 2.0 or (now - shown < 0.2 and t < t_end):
            return
        shown = now
        end = "\n" if t >= t_end else ""
        line = f"\rgradient flow: t = {t:.3g} of {t_end:.3g}, |gradient| = {gradient_norm:.1e}"
        print(line, end=end, file=sys.stderr, flush=True)

    def silent(t: float, gradient_norm: float) -> None:
        del t, gradient_norm

    return show if sys.stderr.isatty() else silent
