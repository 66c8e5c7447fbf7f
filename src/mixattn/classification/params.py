"""The scores of one attention head on the classification task, in two parametrizations.

A head reads the prompt law of labeled tokens (X, Y) and a query (x, 0); its last output is

    f(x) = w^T x + b + r sigma(s0 + s^T x),          s0 = log(pi_+ / (1 - pi_+)),

an affine score plus a gate: (w, b, r, s) are the head's effective coordinates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from mixattn._checks import FloatArray, Frozen, as_array, as_integer, as_scalar
from mixattn.attention import Head
from mixattn.classification.task import LDATask, as_lda_task


@dataclass(frozen=True, eq=False, init=False)
class EffectiveParams(Frozen):
    """Effective coordinates (w, b, r, s) of the score w^T x + b + r sigma(s0 + s^T x) (Lemma B.1).

    Parameters
    ----------
    w, s : array_like, shape (d,)
    b, r : float
    """

    w: FloatArray
    b: float
    r: float
    s: FloatArray

    def __init__(self, w: ArrayLike, b: float, r: float, s: ArrayLike) -> None:
        slope = as_array("w", w, ("d",))
        gate = as_array("s", s, (len(slope),))
        self._set(w=slope, b=as_scalar("b", b), r=as_scalar("r", r), s=gate)

    @property
    def dim(self) -> int:
        """Dimension d of x."""
        return len(self.w)

    def to_vector(self) -> FloatArray:
        """Return (w, b, r, s) as one vector of shape (2d + 2,)."""
        return np.concatenate([self.w, [self.b, self.r], self.s])

    @classmethod
    def from_vector(cls, v: ArrayLike, d: int) -> EffectiveParams:
        """Inverse of `to_vector` in dimension d."""
        d = as_integer("d", d, at_least=1)
        vector = as_array("v", v, (2 * d + 2,))
        return cls(vector[:d], float(vector[d]), float(vector[d + 1]), vector[d + 2 :])


@dataclass(frozen=True, eq=False, init=False)
class AttentionParams(Frozen):
    """The blocks (U11, u12, v21, v22) of a head (U, V) on R^(d+1) that its score depends on.

    As in the paper, U11 and u12 are blocks of U **transposed**:
    ``U^T = [[U11, u12], [u21^T, u22]]`` and ``V = [[V11, v12], [v21^T, v22]]``.

    Parameters
    ----------
    U11 : array_like, shape (d, d)
    u12, v21 : array_like, shape (d,)
    v22 : float
    """

    U11: FloatArray
    u12: FloatArray
    v21: FloatArray
    v22: float

    def __init__(self, U11: ArrayLike, u12: ArrayLike, v21: ArrayLike, v22: float) -> None:
        alignment = as_array("u12", u12, ("d",))
        d = len(alignment)
        self._set(
            U11=as_array("U11", U11, (d, d)),
            u12=alignment,
            v21=as_array("v21", v21, (d,)),
            v22=as_scalar("v22", v22),
        )

    @property
    def dim(self) -> int:
        """Dimension d of x."""
        return len(self.u12)

    def to_vector(self) -> FloatArray:
        """Return (U11 row by row, u12, v21, v22) as one vector of shape (d^2 + 2d + 1,)."""
        return np.concatenate([self.U11.ravel(), self.u12, self.v21, [self.v22]])

    @classmethod
    def from_vector(cls, v: ArrayLike, d: int) -> AttentionParams:
        """Inverse of `to_vector` in dimension d."""
        d = as_integer("d", d, at_least=1)
        vector = as_array("v", v, (d * d + 2 * d + 1,))
        U11, u12, v21, _ = attention_slices(d)
        return cls(vector[U11].reshape(d, d), vector[u12], vector[v21], float(vector[-1]))

    def to_matrices(self) -> tuple[FloatArray, FloatArray]:
        """Return the head's matrices (U, V), both (d+1, d+1), with every free block zero."""
        d = self.dim
        U, V = np.zeros((d + 1, d + 1)), np.zeros((d + 1, d + 1))
        U[:d, :d] = self.U11.T
        U[d, :d] = self.u12
        V[d, :d] = self.v21
        V[d, d] = self.v22
        return U, V

    def head(self, task: LDATask) -> Head:
        """Return the attention head whose last output coordinate is the score (Lemma B.1).

        Applied to ``task.prompt_law`` and the query (x, 0) it gives `score` at x. The blocks of
        (U, V) that the score does not depend on are zero.

        Parameters
        ----------
        task : LDATask
            A task of this dimension.

        Returns
        -------
        Head
            On R^(d+1).

        Raises
        ------
        ValueError
            If `task` is not a task of dimension d.
        """
        if as_lda_task(task).dim != self.dim:
            raise ValueError(f"task: expected a task of dimension {self.dim}, got {task.dim}")
        return Head(*self.to_matrices())


Params = TypeVar("Params", AttentionParams, EffectiveParams)


def check_params(params: object, task: object, *kinds: type, name: str = "params") -> None:
    """Raise ValueError unless `params` is of one of the kinds and fits the task."""
    dim = as_lda_task(task).dim
    if not isinstance(params, kinds):
        expected = " or ".join(kind.__name__ for kind in kinds)
        raise ValueError(f"{name}: expected {expected}, got {type(params).__name__}")
    given: int = params.dim  # type: ignore[attr-defined]
    if given != dim:
        raise ValueError(f"{name}: expected the task's dimension {dim}, got {given}")


def as_effective(
    params: AttentionParams | EffectiveParams, task: LDATask, name: str = "params"
) -> EffectiveParams:
    """Return the effective coordinates of either kind of parameters."""
    check_params(params, task, AttentionParams, EffectiveParams, name=name)
    return _phi(params, task) if isinstance(params, AttentionParams) else params


def attention_slices(d: int) -> tuple[slice, slice, slice, slice]:
    """Return where U11, u12, v21, v22 sit in a vector."""
    ends = (0, d * d, d * d + d, d * d + 2 * d, d * d + 2 * d + 1)
    U11, u12, v21, v22 = map(slice, ends[:-1], ends[1:])
    return U11, u12, v21, v22


def effective_slices(d: int) -> tuple[slice, int, int, slice]:
    """Return where w, b, r, s sit in a vector."""
    return slice(0, d), d, d + 1, slice(d + 2, 2 * d + 2)


def effective_params(theta: AttentionParams, task: LDATask) -> EffectiveParams:
    r"""Map a head to its effective coordinates, (w, b, r, s) = Phi(theta) (Lemma B.1).

    .. math::
        w = U_{11} \Gamma v_{21}, \quad b = v_{21}^\top m_{-1} - v_{22}, \quad
        r = v_{21}^\top \Delta m + 2 v_{22}, \quad s = 2 u_{12} + U_{11} \Delta m.

    Parameters
    ----------
    theta : AttentionParams
    task : LDATask

    Returns
    -------
    EffectiveParams

    Raises
    ------
    ValueError
        If an argument is not as above, dimensions differ or a coordinate is too large for a float.
    """
    check_params(theta, task, AttentionParams, name="theta")
    return _phi(theta, task)


@np.errstate(over="ignore", invalid="ignore", under="ignore")
def _phi(theta: AttentionParams, task: LDATask) -> EffectiveParams:
    return EffectiveParams(
        theta.U11 @ (task.covariance @ theta.v21),
        float(theta.v21 @ task.mean_neg) - theta.v22,
        float(theta.v21 @ task.mean_difference) + 2 * theta.v22,
        2 * theta.u12 + theta.U11 @ task.mean_difference,
    )


def effective_jacobian(theta: AttentionParams, task: LDATask) -> FloatArray:
    """Return the differential of Phi at `theta`, in `to_vector` order on both sides (Lemma B.14).

    By Lemma 3.2 its rank is 2d + 2 if and only if ``m_1 != -m_-1`` and ``v21 != 0``.

    Parameters
    ----------
    theta : AttentionParams
    task : LDATask

    Returns
    -------
    ndarray, shape (2d + 2, d^2 + 2d + 1)

    Raises
    ------
    ValueError
        If an argument is not as above or dimensions differ.
    """
    check_params(theta, task, AttentionParams, name="theta")
    d = task.dim
    eye = np.eye(d)
    jacobian = np.zeros((2 * d + 2, d * d + 2 * d + 1))
    U11, u12, v21, v22 = attention_slices(d)
    w, b, r, s = effective_slices(d)
    jacobian[w, U11] = np.kron(eye, task.covariance @ theta.v21)
    jacobian[w, v21] = theta.U11 @ task.covariance
    jacobian[b, v21] = task.mean_neg
    jacobian[b, v22] = -1.0
    jacobian[r, v21] = task.mean_difference
    jacobian[r, v22] = 2.0
    jacobian[s, U11] = np.kron(eye, task.mean_difference)
    jacobian[s, u12] = 2 * eye
    return jacobian


def pull_back(gradient: EffectiveParams, theta: AttentionParams, task: LDATask) -> AttentionParams:
    r"""Return DPhi(theta)^T applied to an effective gradient, in O(d^2) (Lemmas B.10 and B.15).

    .. math::
        dU_{11} = g_w (\Gamma v_{21})^\top + g_s \Delta m^\top, \quad du_{12} = 2 g_s, \quad
        dv_{21} = \Gamma U_{11}^\top g_w + g_b m_{-1} + g_r \Delta m, \quad dv_{22} = -g_b + 2 g_r.

    Parameters
    ----------
    gradient : EffectiveParams
        (g_w, g_b, g_r, g_s), for instance from `risk_gradient`.
    theta : AttentionParams
    task : LDATask

    Returns
    -------
    AttentionParams

    Raises
    ------
    ValueError
        If an argument is not as above or dimensions differ.
    """
    check_params(gradient, task, EffectiveParams, name="gradient")
    check_params(theta, task, AttentionParams, name="theta")
    return AttentionParams(
        np.outer(gradient.w, task.covariance @ theta.v21)
        + np.outer(gradient.s, task.mean_difference),
        2 * gradient.s,
        task.covariance @ (theta.U11.T @ gradient.w)
        + gradient.b * task.mean_neg
        + gradient.r * task.mean_difference,
        2 * gradient.r - gradient.b,
    )


@np.errstate(over="ignore", invalid="ignore", under="ignore")
def score(params: AttentionParams | EffectiveParams, task: LDATask, x: ArrayLike) -> FloatArray:
    """Return the score f(x) = w^T x + b + r sigma(s0 + s^T x) (Lemma B.1).

    Parameters
    ----------
    params : AttentionParams or EffectiveParams
    task : LDATask
    x : array_like, shape (..., d)

    Returns
    -------
    ndarray, shape (...)

    Raises
    ------
    ValueError
        If an argument is not as above, dimensions differ or a score is too large for a float.
    """
    p = as_effective(params, task)
    points = as_array("x", x, (None, task.dim))
    gate = special.expit(task.prior_logit + points @ p.s)
    values = points @ p.w + p.b + p.r * gate
    if not np.isfinite(values).all():
        raise ValueError("x: expected points where the score is a float, it overflows")
    return values
