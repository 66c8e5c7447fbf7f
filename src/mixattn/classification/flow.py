r"""Training on the population logistic risk: gradient flow, gradient descent and online SGD.

Section 3.3 and appendix B.13 of the paper. The flow :math:`\dot\theta = -\nabla R(\theta)` is
stiff: near a minimizer its time scales are the inverses of the Hessian's eigenvalues, and near the
constant-gate family it slows down algebraically. An implicit integrator with the analytic Jacobian
:math:`-\nabla^2 R` takes steps that grow with time, so that ten million units of time cost a few
hundred steps.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import scipy.special
from numpy.typing import ArrayLike, NDArray
from scipy.integrate import LSODA, DenseOutput, OdeSolution

from mixattn._checks import (
    FloatArray,
    Frozen,
    as_array,
    as_generator,
    as_integer,
    as_scalar,
    frozen,
)
from mixattn.classification.integrals import whitened_slopes
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
from mixattn.descent import History, Status, descend

Vector = Callable[[FloatArray], FloatArray]

# The integrator's steps underflow below; an explicit step of this length is exact to rounding.
SHORTEST_TIME = 1e-100
# Products of parameters beyond may overflow: online descent has diverged.
LARGEST_STEPPED = 1e50


@dataclass(frozen=True, eq=False)
class Trajectory(Frozen):
    """A solution of the gradient flow.

    Attributes
    ----------
    t : ndarray, shape (n,)
        The times of the integrator's steps, from 0; where the flow slows down they spread out.
    params : ndarray, shape (n, p)
        The parameters there, in `to_vector` order.
    status : Status
        Why the integration stopped.
    task : LDATask
    t_end : float
        The time that was asked for. If the flow became stationary before, it stays where it is.
    """

    t: FloatArray
    params: FloatArray
    status: Status
    task: LDATask
    t_end: float
    _kind: type[AttentionParams] | type[EffectiveParams] = field(repr=False)
    _interpolant: OdeSolution | None = field(repr=False)

    def __post_init__(self) -> None:
        """Freeze the arrays."""
        self._set(t=self.t, params=self.params)

    @cached_property
    def excess_risk(self) -> FloatArray:
        """Excess risk at the times `t`, shape (n,); computed at the first access."""
        return frozen(self.excess_risk_at(self.t))

    def at(self, t: ArrayLike) -> FloatArray:
        """Parameters at time `t`.

        Between steps this is the integrator's own interpolant, of its order of accuracy.

        Parameters
        ----------
        t : float or array_like, shape (m,)

        Returns
        -------
        ndarray, shape (p,) or (m, p)

        Raises
        ------
        ValueError
            If a time is outside the interval that was integrated (for a stationary end, [0,
            t_end]).
        """
        times = as_array("t", t, (None,))
        if times.ndim > 1 or times.size == 0:
            raise ValueError(f"t: expected a time or times of shape (m,), got shape {times.shape}")
        last = self.t_end if self.status is Status.STATIONARY else self.t[-1]
        if times.min() < 0 or times.max() > last:
            raise ValueError(
                f"t: expected times in [0, {last:g}] (the flow stopped there: {self.status}), "
                f"got {times.min():g} to {times.max():g}"
            )
        values = np.repeat(self.params[-1:], times.size, axis=0)
        inside = times.reshape(-1) < self.t[-1]
        if self._interpolant is not None and inside.any():
            values[inside] = np.asarray(self._interpolant(times.reshape(-1)[inside])).T
        return values.reshape(*times.shape, -1)

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
) -> Trajectory:
    r"""Follow :math:`\dot\theta = -\nabla R(\theta)` from `params` for `t_end` units of time.

    The integrator is LSODA: Adams methods while the flow is not stiff, backward differentiation
    with the analytic Jacobian when it is. On trajectories to t = 1e7 it needs about half the
    gradients of Radau IIA at equal accuracy.

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

    Returns
    -------
    Trajectory
        Its status is REACHED_END, STATIONARY (see `gradient_tol`), BELOW_TARGET (see `excess_tol`)
        or FAILED.

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

    def velocity(y: FloatArray) -> FloatArray:
        return -risk_gradient(kind.from_vector(y, d), task).to_vector()

    def jacobian(y: FloatArray) -> FloatArray:
        return -risk_hessian(kind.from_vector(y, d), task)

    def reason_to_stop(y: FloatArray, speed: float) -> Status | None:
        nearly_stationary = speed <= 10 * gradient_tol
        if nearly_stationary and np.linalg.norm(velocity(y)) <= gradient_tol:
            return Status.STATIONARY
        if excess_tol is not None and excess_risk(kind.from_vector(y, d), task) <= excess_tol:
            return Status.BELOW_TARGET
        return None

    steps = _Steps(velocity, jacobian, params.to_vector())
    status = reason_to_stop(steps.points[0], steps.speed)
    if status is None and t_end < SHORTEST_TIME:
        status = steps.take_explicit(t_end)
    if status is None:
        status = steps.integrate(t_end, rtol, atol, reason_to_stop)
    return Trajectory(
        t=np.array(steps.times),
        params=np.array(steps.points),
        status=status,
        task=task,
        t_end=t_end,
        _kind=kind,
        _interpolant=OdeSolution(steps.times, steps.pieces) if steps.pieces else None,
    )


class _Steps:
    """The steps of an integration: their times, points and interpolants."""

    def __init__(self, velocity: Vector, jacobian: Vector, start: FloatArray) -> None:
        self.velocity, self.jacobian = velocity, jacobian
        self.times, self.points = [0.0], [start]
        self.pieces: list[DenseOutput] = []
        # The integrator's last evaluation is at its last iterate, not quite at the accepted point:
        # good enough to say when the exact speed is worth a gradient.
        self.speed = float(np.linalg.norm(velocity(start)))

    def take_explicit(self, t_end: float) -> Status:
        self.times.append(t_end)
        self.points.append(self.points[0] + t_end * self.velocity(self.points[0]))
        return Status.REACHED_END

    def integrate(
        self,
        t_end: float,
        rtol: float,
        atol: float,
        reason_to_stop: Callable[[FloatArray, float], Status | None],
    ) -> Status:
        def velocity(_: float, y: FloatArray) -> FloatArray:
            slope = self.velocity(y)
            self.speed = float(np.linalg.norm(slope))
            return slope

        def jacobian(_: float, y: FloatArray) -> FloatArray:
            return self.jacobian(y)

        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # the integrator warns when it fails; the status says so
            solver = LSODA(velocity, 0.0, self.points[0], t_end, rtol=rtol, atol=atol, jac=jacobian)
            reason = None
            while reason is None:
                solver.step()
                if solver.status == "failed" or solver.t == self.times[-1]:
                    return Status.FAILED
                self.times.append(solver.t)
                self.points.append(solver.y)
                self.pieces.append(solver.dense_output())
                reason = reason_to_stop(solver.y, self.speed)
                if reason is None and solver.status == "finished":
                    reason = Status.REACHED_END
        return reason


def gradient_descent(
    params: Params,
    task: LDATask,
    *,
    step_size: float,
    n_steps: int,
    record: Sequence[int] | None = None,
) -> History[Params]:
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
        Steps, 0 to `n_steps`, at which the excess risk is computed; by default about fifty,
        dense at the beginning.

    Returns
    -------
    History
        Its status is STEP_LIMIT, or DIVERGED if the parameters left the range where the risk is
        computed; then the last record is the end.

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    kind = _kind_of(params, task)

    def gradient(y: FloatArray) -> FloatArray:
        theta = kind.from_vector(y, task.dim)
        if not _within_reach(theta, task):
            return np.full_like(y, np.nan)
        return risk_gradient(theta, task).to_vector()

    return _descend(kind, params, task, gradient, step_size, n_steps, record)


def online_sgd(
    params: Params,
    task: LDATask,
    rng: np.random.Generator,
    *,
    step_size: float,
    n_steps: int,
    batch_size: int,
    record: Sequence[int] | None = None,
) -> History[Params]:
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
    History
        As of `gradient_descent`.

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    kind = _kind_of(params, task)
    rng = as_generator(rng)
    batch_size = as_integer("batch_size", batch_size, at_least=1)

    def gradient(y: FloatArray) -> FloatArray:
        if np.abs(y).max() > LARGEST_STEPPED:
            return np.full_like(y, np.nan)
        theta = kind.from_vector(y, task.dim)
        return _empirical_gradient(theta, task, *task.sample(batch_size, rng))

    return _descend(kind, params, task, gradient, step_size, n_steps, record)


def _descend(
    kind: type[Params],
    start: Params,
    task: LDATask,
    gradient: Vector,
    step_size: float,
    n_steps: int,
    record: Sequence[int] | None,
) -> History[Params]:
    """Descend; beyond the reach of the integrals all is NaN, and the descent has diverged."""

    def read(y: FloatArray) -> Params:
        return kind.from_vector(y, task.dim)

    def excess(y: FloatArray) -> float:
        theta = read(y)
        return excess_risk(theta, task) if _within_reach(theta, task) else np.nan

    return descend(
        gradient,
        excess,
        start.to_vector(),
        step_size=step_size,
        n_steps=n_steps,
        record=record,
        read=read,
    )


def _within_reach(params: AttentionParams | EffectiveParams, task: LDATask) -> bool:
    try:
        whitened_slopes(as_effective(params, task), task)
    except ValueError:  # too large, or an effective coordinate overflows
        return False
    return True


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


def _kind_of(params: Params, task: LDATask) -> type[Params]:
    check_params(params, task, AttentionParams, EffectiveParams)
    return type(params)


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

    Returns
    -------
    DecayFit

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    fit = _final_slope(*_as_decay(t, excess))
    return DecayFit(-fit.value, fit.uncertainty)


def fit_power_law(t: ArrayLike, excess: ArrayLike) -> DecayFit:
    r"""Exponent a of a decay :math:`t^a`, from values at positive times that span the window.

    Parameters
    ----------
    t, excess : array_like, shape (n,)
        As in `fit_exponential_rate`, with quarters of equal length in :math:`\log t`.

    Returns
    -------
    DecayFit

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    return _final_slope(*_as_power_law(t, excess))


def local_exponents(t: ArrayLike, excess: ArrayLike) -> FloatArray:
    """Exponents ``d log(excess) / d log(t)`` between successive times, shape (n - 1,).

    Give it one time a decade to read the exponent decade by decade.

    Parameters
    ----------
    t, excess : array_like, shape (n,)
        Increasing positive times and positive values.

    Returns
    -------
    ndarray, shape (n - 1,)

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    log_times, logs = _as_power_law(t, excess)
    return np.diff(logs) / np.diff(log_times)


def _as_decay(t: ArrayLike, excess: ArrayLike) -> tuple[FloatArray, FloatArray]:
    times = as_array("t", t, ("n",))
    values = as_array("excess", excess, (len(times),))
    if len(times) < 2 or (np.diff(times) <= 0).any():
        raise ValueError("t: expected at least two increasing times")
    if (values <= 0).any():
        raise ValueError(f"excess: expected positive values, got a minimum of {values.min():g}")
    return times, np.log(values)


def _as_power_law(t: ArrayLike, excess: ArrayLike) -> tuple[FloatArray, FloatArray]:
    times, logs = _as_decay(t, excess)
    if times[0] <= 0:
        raise ValueError(f"t: expected positive times, got {times[0]:g}")
    return np.log(times), logs


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
