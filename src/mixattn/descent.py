r"""One way to descend for everything that is trained: quasi-Newton, and explicit gradient steps.

A descent works on vectors and functions and knows no task. Its excess risk is any nonnegative
function that is zero at the optimum. Stochastic descent is descent along a gradient that draws a
fresh sample at every call. What comes back is a `History`, whose status says why it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar

import numpy as np
import scipy.optimize
from numpy.typing import ArrayLike, NDArray

from mixattn._checks import FloatArray, Frozen, as_array, as_integer, as_scalar, is_finite

P = TypeVar("P")
Reader = Callable[[FloatArray], P]
Objective = Callable[[FloatArray], tuple[float, FloatArray]]
# of several runs at a step: which are alive, their excess risks, their parameters
_Record = tuple[NDArray[np.bool_], FloatArray, FloatArray]

# Beyond this many parameters a dense inverse Hessian costs more than it saves.
_MAX_DENSE = 600
# A fresh start of BFGS must decrease the risk by this fraction to be worth another.
_PROGRESS = 1e-3


class Status(StrEnum):
    """Why a descent or a flow ended; `advice` says what can be done about it.

    Examples
    --------
    >>> print(Status.DIVERGED, "-", Status.DIVERGED.advice)
    diverged - lower the step size or clip the gradient; `final` is the last recorded point
    """

    REACHED_END = "reached t_end"
    STEP_LIMIT = "step limit"
    STATIONARY = "stationary"
    BELOW_TARGET = "below target"
    DIVERGED = "diverged"
    FAILED = "failed"

    @property
    def advice(self) -> str:
        """What the user may do."""
        return _ADVICE[self]


_ADVICE = {
    Status.REACHED_END: "nothing; start again from `final` to go on",
    Status.STEP_LIMIT: "start again from `final` to go on, or allow more steps",
    Status.STATIONARY: "try another start: this end is a minimum, a saddle or a flat valley",
    Status.BELOW_TARGET: "nothing; lower the target to go on",
    Status.DIVERGED: "lower the step size or clip the gradient; `final` is the last recorded point",
    Status.FAILED: "loosen the tolerances, which are out of reach",
}


@dataclass(frozen=True, eq=False, init=False)
class History(Frozen, Generic[P]):
    """A descent, as it was recorded.

    Parameters
    ----------
    steps : array_like of int, shape (n,)
        The recorded steps, ascending; 0 is the start.
    excess_risk : array_like, shape (n,)
        Excess risk at these steps.
    params : array_like, shape (n, p)
        Parameters at these steps, as vectors.
    last : array_like, shape (p,)
        Parameters after the last step, recorded or not.
    status : Status
        Why the descent ended.
    read : callable, optional
        Turns a vector into parameters of the task's own type. By default they stay vectors.

    Attributes
    ----------
    final : object
        Parameters after the last step, of the task's own type.
    """

    steps: NDArray[np.int64]
    excess_risk: FloatArray
    params: FloatArray
    last: FloatArray
    status: Status
    _read: Reader[P] | None

    def __init__(
        self,
        steps: ArrayLike,
        excess_risk: ArrayLike,
        params: ArrayLike,
        last: ArrayLike,
        status: Status,
        read: Reader[P] | None = None,
    ) -> None:
        end = as_array("last", last, ("p",))
        recorded = np.array([as_integer("steps", step) for step in _listed("steps", steps)], int)
        if (np.diff(recorded) <= 0).any():
            raise ValueError(f"steps: expected ascending steps, got {recorded}")
        self._set(
            steps=recorded,
            excess_risk=as_array("excess_risk", excess_risk, recorded.shape),
            params=as_array("params", params, (len(recorded), len(end))),
            last=end,
            status=Status(status),
            _read=read,
        )

    def __repr__(self) -> str:
        """Where and why it ended, not the path."""
        where = "".join(
            f"steps={step}, excess_risk={excess:.3g}, "
            for step, excess in zip(self.steps[-1:], self.excess_risk[-1:], strict=True)
        )
        return f"History({where}status={self.status.value!r})"

    @property
    def final(self) -> P:
        """Parameters after the last step, of the task's own type."""
        return self._point(self.last)

    def point_at(self, step: int) -> P:
        """Parameters at a recorded step, of the task's own type.

        Raises
        ------
        ValueError
            If the step was not recorded.
        """
        index = int(np.searchsorted(self.steps, as_integer("step", step)))
        if index == len(self.steps) or self.steps[index] != step:
            raise ValueError(f"step: expected a recorded one (see `steps`), got {step}")
        return self._point(self.params[index])

    def _point(self, vector: FloatArray) -> Any:
        return vector if self._read is None else self._read(vector)


def quasi_newton(
    objective: Objective,
    start: ArrayLike,
    *,
    max_steps: int = 2000,
    target: float = 1e-20,
    read: Reader[P] | None = None,
) -> History[P]:
    """Minimize by BFGS (L-BFGS in high dimension) with fresh starts.

    Some valleys are narrow: where a line search fails, BFGS starts afresh from the last point, as
    long as this still decreases the objective.

    Parameters
    ----------
    objective : callable
        Vector (p,) -> excess risk and its gradient (p,).
    start : array_like, shape (p,)
    max_steps : int
    target : float
        The descent ends once the objective is at most this.
    read : callable, optional
        See `History`.

    Returns
    -------
    History
        Every step is recorded. The status is BELOW_TARGET, STATIONARY (a fresh start no longer
        decreases the objective) or STEP_LIMIT.

    Raises
    ------
    ValueError
        If an argument is not as above or the objective is not finite at the start.

    Examples
    --------
    >>> bowl = lambda x: (x @ x, 2 * x)
    >>> run = quasi_newton(bowl, [3.0, 4.0])
    >>> print(run.status, run.excess_risk[0])
    below target 25.0
    """
    max_steps = as_integer("max_steps", max_steps, at_least=1)
    target = as_scalar("target", target, at_least=0.0)
    points = [as_array("start", start, ("p",))]
    with np.errstate(over="ignore", invalid="ignore"):

        def bounded(point: FloatArray) -> tuple[float, FloatArray]:
            # a line search may overflow: nothing is known out there, so it must turn back
            return objective(point) if is_finite(point) else (np.inf, np.zeros_like(point))

        values = [float(objective(points[0])[0])]
        if not np.isfinite(values[0]):
            raise ValueError(f"start: expected a point of finite excess risk, got {values[0]}")

        def record(intermediate_result: Any) -> None:
            if not np.isfinite(intermediate_result.fun):
                raise StopIteration  # a step into an overflow: start afresh from the point before
            values.append(float(intermediate_result.fun))
            points.append(np.array(intermediate_result.x))
            if values[-1] <= target:
                raise StopIteration

        status = Status.BELOW_TARGET if values[0] <= target else None
        while status is None:
            before = values[-1]
            _bfgs(bounded, points[-1], record, max_steps + 1 - len(values))
            if values[-1] <= target:
                status = Status.BELOW_TARGET
            elif len(values) > max_steps:
                status = Status.STEP_LIMIT
            elif not values[-1] <= (1.0 - _PROGRESS) * before:
                status = Status.STATIONARY
    return History(np.arange(len(values)), values, np.array(points), points[-1], status, read)


def _bfgs(
    objective: Objective, start: FloatArray, record: Callable[[Any], None], max_steps: int
) -> None:
    """Run BFGS until the gradient vanishes, a line search fails or `record` stops it."""
    dense = start.size <= _MAX_DENSE
    options: dict[str, Any] = {"maxiter": max_steps, "gtol": 1e-15}
    if not dense:
        options |= {"ftol": 0.0, "maxfun": 4 * max_steps, "maxcor": 30}
    minimize: Any = scipy.optimize.minimize  # its type stubs know no jac=True with options
    minimize(
        objective,
        start,
        jac=True,
        method="BFGS" if dense else "L-BFGS-B",
        callback=record,
        options=options,
    )


def descend(
    gradient: Callable[[FloatArray], FloatArray],
    excess_risk: Callable[[FloatArray], float],
    start: ArrayLike,
    *,
    step_size: float,
    n_steps: int,
    record: Iterable[int] | None = None,
    clip_norm: float | None = None,
    read: Reader[P] | None = None,
) -> History[P]:
    r"""Make explicit steps :math:`\theta \leftarrow \theta - h g(\theta)`.

    Parameters
    ----------
    gradient : callable
        Vector (p,) -> direction of a step (p,): the gradient of a population risk, or of the risk
        of a sample that the function draws afresh at every call.
    excess_risk : callable
        Vector (p,) -> float, evaluated where the descent is recorded.
    start : array_like, shape (p,)
    step_size : float
        The step h, positive.
    n_steps : int
    record : iterable of int, optional
        Steps to record, 0 to `n_steps`; by default about fifty, dense at the beginning.
    clip_norm : float, optional
        A longer gradient is rescaled to this Euclidean norm.
    read : callable, optional
        See `History`.

    Returns
    -------
    History
        The status is STEP_LIMIT, or DIVERGED if the parameters, or a recorded excess risk, stopped
        being finite numbers; then the last record is the end.

    Raises
    ------
    ValueError
        If an argument is not as above.

    Examples
    --------
    >>> run = descend(lambda x: 2 * x, lambda x: x @ x, [8.0], step_size=0.25, n_steps=3)
    >>> run.steps, run.excess_risk, run.final
    (array([0, 1, 2, 3]), array([64., 16.,  4.,  1.]), array([1.]))
    """
    [history] = descend_together(
        lambda theta: gradient(theta[0])[None],
        lambda theta: np.array([excess_risk(theta[0])]),
        as_array("start", start, ("p",))[None],
        step_size=step_size,
        n_steps=n_steps,
        record=record,
        clip_norm=clip_norm,
        read=read,
    )
    return history


def descend_together(
    gradient: Callable[[FloatArray], FloatArray],
    excess_risk: Callable[[FloatArray], FloatArray],
    starts: ArrayLike,
    *,
    step_size: float,
    n_steps: int,
    record: Iterable[int] | None = None,
    clip_norm: float | None = None,
    read: Reader[P] | None = None,
) -> list[History[P]]:
    """Several descents at once, as `descend` each: the functions take and return a row a run.

    Parameters
    ----------
    gradient : callable
        Array (R, p) -> array (R, p).
    excess_risk : callable
        Array (R, p) -> array (R,).
    starts : array_like, shape (R, p)
    step_size, n_steps, record, clip_norm, read
        As in `descend`.

    Returns
    -------
    list of History
        A run that diverges ends; the others go on.

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    theta = as_array("starts", starts, ("R", "p"))
    step_size = as_scalar("step_size", step_size, above=0.0)
    n_steps = as_integer("n_steps", n_steps, at_least=1)
    steps = _steps_to_record(record, n_steps)
    if clip_norm is not None:
        clip_norm = as_scalar("clip_norm", clip_norm, above=0.0)
    end, alive, records = _walk(gradient, excess_risk, theta, step_size, n_steps, steps, clip_norm)
    return [
        _history(
            [(excess[run], point[run]) for on, excess, point in records if on[run]],
            steps,
            theta[run],
            end[run] if alive[run] else None,
            read,
        )
        for run in range(len(theta))
    ]


def _walk(
    gradient: Callable[[FloatArray], FloatArray],
    excess_risk: Callable[[FloatArray], FloatArray],
    theta: FloatArray,
    step_size: float,
    n_steps: int,
    steps: NDArray[np.int64],
    clip_norm: float | None,
) -> tuple[FloatArray, NDArray[np.bool_], list[_Record]]:
    """Make the steps; return where the runs are, which are alive, and the records."""
    due = set(steps.tolist())
    alive = np.ones(len(theta), dtype=bool)
    records: list[_Record] = []
    with np.errstate(over="ignore", invalid="ignore"):
        for step in range(n_steps + 1):
            if step in due:
                excess = excess_risk(theta)
                alive = alive & np.isfinite(excess)
                records.append((alive, excess, theta))
            if step == n_steps or not alive.any():
                break
            moved = theta - step_size * _clipped(gradient(theta), clip_norm)
            alive = alive & np.isfinite(moved).all(axis=1)
            # a run that diverged stays where it was, so that it spoils no other
            theta = np.where(alive[:, None], moved, theta)
    return theta, alive, records


def _history(
    records: list[tuple[float, FloatArray]],
    steps: NDArray[np.int64],
    start: FloatArray,
    end: FloatArray | None,
    read: Reader[P] | None,
) -> History[P]:
    """History of a run that ended at `end`, or that diverged."""
    values = [value for value, _ in records]
    points = np.reshape([point for _, point in records], (len(records), len(start)))
    if end is not None:
        return History(steps, values, points, end, Status.STEP_LIMIT, read)
    last = points[-1] if records else start
    return History(steps[: len(records)], values, points, last, Status.DIVERGED, read)


def _clipped(gradient: FloatArray, clip_norm: float | None) -> FloatArray:
    """Rescale the rows that are longer than `clip_norm`; squares of long rows must not overflow."""
    if clip_norm is None:
        return gradient
    peak = np.maximum(np.abs(gradient).max(axis=1, keepdims=True), np.finfo(float).tiny)
    norm = peak * np.linalg.norm(gradient / peak, axis=1, keepdims=True)
    return gradient * np.minimum(1.0, clip_norm / norm)


def _steps_to_record(record: Iterable[int] | None, n_steps: int) -> NDArray[np.int64]:
    if record is None:
        return np.unique(np.r_[0, np.geomspace(1, n_steps, 50).round().astype(int)])
    steps = np.unique([as_integer("record", step) for step in _listed("record", record)])
    if steps.size == 0 or steps[-1] > n_steps:
        got = f"up to {steps[-1]}" if steps.size else "none"
        raise ValueError(f"record: expected at least one step in [0, {n_steps}], got {got}")
    return steps


def _listed(name: str, value: Any) -> list[Any]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise ValueError(f"{name}: expected a sequence of integers, got {value!r}")
    return list(value)
