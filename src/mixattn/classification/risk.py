"""Linear discriminant analysis by one attention head: the risk and its derivatives (section 3).

A head reads the prompt law of labeled tokens (X, Y) and a query (x, 0); its last output coordinate is

    f(x) = w^T x + b + r sigma(s0 + s^T x),          s0 = log(pi_+ / (1 - pi_+)),

an affine score plus a gate. Everything here is a function of the effective coordinates
(w, b, r, s), pulled back to the head's own coordinates by the chain rule.

Each expectation over a class is one integral over the gate's direction of an expectation of a logistic
function under a one-dimensional Gaussian (`_lda_integrals`), so the number of nodes does not
depend on d, and the only work that does is a product with a Cholesky factor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from mixattn._checks import FloatArray, as_array
from mixattn.classification.integrals import RiskIntegrals, mean_divergence, risk_integrals
from mixattn.classification.task import (
    AttentionParams,
    EffectiveParams,
    LDATask,
    Params,
    attention_slices,
    check_params,
)

__all__ = [
    "AttentionParams",
    "EffectiveParams",
    "LDATask",
    "effective_jacobian",
    "effective_params",
    "excess_risk",
    "logistic_risk",
    "pull_back",
    "risk_and_gradient",
    "risk_gradient",
    "risk_hessian",
    "score",
]


def effective_params(theta: AttentionParams, task: LDATask) -> EffectiveParams:
    r"""Map a head to its effective coordinates, (w, b, r, s) = Phi(theta) (Lemma B.1).

    .. math::
        w = U_{11} \Gamma v_{21}, \quad b = v_{21}^\top m_{-1} - v_{22}, \quad
        r = v_{21}^\top \Delta m + 2 v_{22}, \quad s = 2 u_{12} + U_{11} \Delta m.
    """
    check_params(theta, task, AttentionParams)
    return EffectiveParams(
        theta.U11 @ (task.covariance @ theta.v21),
        float(theta.v21 @ task.mean_neg) - theta.v22,
        float(theta.v21 @ task.mean_difference) + 2 * theta.v22,
        2 * theta.u12 + theta.U11 @ task.mean_difference,
    )


def effective_jacobian(theta: AttentionParams, task: LDATask) -> FloatArray:
    """Return DPhi(theta), shape (2d + 2, d^2 + 2d + 1), in `to_vector` order on both sides (Lemma B.14).

    By Lemma 3.2 its rank is 2d + 2 if and only if ``m_1 != -m_-1`` and ``v21 != 0``.
    """
    check_params(theta, task, AttentionParams)
    d = task.dim
    eye = np.eye(d)
    jacobian = np.zeros((2 * d + 2, d * d + 2 * d + 1))
    U11, u12, v21, v22 = attention_slices(d)
    w, b, r, s = _effective_slices(d)
    jacobian[w, U11] = np.kron(eye, task.covariance @ theta.v21)
    jacobian[w, v21] = theta.U11 @ task.covariance
    jacobian[b, v21] = task.mean_neg
    jacobian[b, v22] = -1.0
    jacobian[r, v21] = task.mean_difference
    jacobian[r, v22] = 2.0
    jacobian[s, U11] = np.kron(eye, task.mean_difference)
    jacobian[s, u12] = 2 * eye
    return jacobian


@np.errstate(under="ignore")
def score(params: AttentionParams | EffectiveParams, task: LDATask, x: ArrayLike) -> FloatArray:
    """Return the score f(x) = w^T x + b + r sigma(s0 + s^T x) at points x of shape (..., d)."""
    p = _as_effective(params, task)
    points = as_array("x", x, (None, task.dim))
    gate = special.expit(task.prior_logit + points @ p.s)
    values: FloatArray = points @ p.w + p.b + p.r * gate
    return values


@np.errstate(under="ignore")
def logistic_risk(params: AttentionParams | EffectiveParams, task: LDATask) -> float:
    """Return the population logistic risk E log(1 + exp(-Y f(X)))."""
    integrals = risk_integrals(_as_effective(params, task), task, order=0)
    return integrals.scalar(0, np.ones_like(integrals.position))


@np.errstate(under="ignore")
def excess_risk(params: AttentionParams | EffectiveParams, task: LDATask) -> float:
    r"""Return R(f) - R(f*) as the expected divergence between the posteriors.

    .. math::
        R(f) - R(f^*) = \mathbb E\, \mathrm{KL}\big(\mathrm{Ber}(\sigma(f^*(X))) \,\|\, \mathrm{Ber}(\sigma(f(X)))\big)

    Never a difference of two risks: every term is nonnegative and accurate relative to itself, so
    the value is too, however small (Lemma B.4 gives its sign). Attention parameters are first
    mapped to effective ones in floating point, which perturbs the score by rounding.
    """
    return mean_divergence(_as_effective(params, task), task)


def risk_gradient(params: Params, task: LDATask) -> Params:
    """Return the gradient of `logistic_risk`, as an object of the same type as `params`.

    In effective coordinates it is E[(sigma(f) - 1{Y = 1}) Df] (Lemmas B.7 and B.9), summed class by class:
    two-dimensional integrals, where the equal E[(sigma(f) - eta) Df] needs a third variable for eta. In
    attention coordinates it is the pullback DPhi^T of that (Lemmas B.10 and B.15). It costs
    O(d^2 + nodes).
    """
    return risk_and_gradient(params, task)[1]


@np.errstate(under="ignore")
def risk_and_gradient(params: Params, task: LDATask) -> tuple[float, Params]:
    """Return `logistic_risk` and `risk_gradient` from the same nodes, for the price of the latter."""
    p = _as_effective(params, task)
    integrals = risk_integrals(p, task, order=1)
    risk = integrals.scalar(0, np.ones_like(integrals.position))
    gradient = _gradient(integrals, p.r)
    if isinstance(params, EffectiveParams):
        return risk, gradient
    return risk, pull_back(gradient, params, task)


def pull_back(gradient: EffectiveParams, theta: AttentionParams, task: LDATask) -> AttentionParams:
    r"""Return DPhi(theta)^T applied to an effective gradient, in O(d^2) (Lemmas B.10 and B.15).

    .. math::
        dU_{11} = g_w (\Gamma v_{21})^\top + g_s \Delta m^\top, \quad du_{12} = 2 g_s, \quad
        dv_{21} = \Gamma U_{11}^\top g_w + g_b m_{-1} + g_r \Delta m, \quad dv_{22} = -g_b + 2 g_r.
    """
    return AttentionParams(
        np.outer(gradient.w, task.covariance @ theta.v21)
        + np.outer(gradient.s, task.mean_difference),
        2 * gradient.s,
        task.covariance @ (theta.U11.T @ gradient.w)
        + gradient.b * task.mean_neg
        + gradient.r * task.mean_difference,
        2 * gradient.r - gradient.b,
    )


@np.errstate(under="ignore")
def risk_hessian(params: AttentionParams | EffectiveParams, task: LDATask) -> FloatArray:
    """Return the Hessian of `logistic_risk` in `to_vector` order (Lemma B.11), exactly symmetric.

    Shape (2d + 2, 2d + 2) in effective coordinates, (d^2 + 2d + 1,) * 2 in attention coordinates.
    """
    p = _as_effective(params, task)
    integrals = risk_integrals(p, task, order=2)
    hessian = _hessian(integrals, p.r)
    if isinstance(params, EffectiveParams):
        return hessian
    jacobian = effective_jacobian(params, task)
    pulled_back: FloatArray = jacobian.T @ hessian @ jacobian
    # Phi is linear but for w = U11 Gamma v21, which is bilinear
    U11, _, v21, _ = attention_slices(task.dim)
    bilinear = np.kron(_gradient(integrals, p.r).w[:, None], task.covariance)
    pulled_back[U11, v21] += bilinear
    pulled_back[v21, U11] += bilinear.T
    return 0.5 * (pulled_back + pulled_back.T)


def _effective_slices(d: int) -> tuple[slice, int, int, slice]:
    """Return where w, b, r, s sit in a vector."""
    return slice(0, d), d, d + 1, slice(d + 2, 2 * d + 2)


def _as_effective(params: AttentionParams | EffectiveParams, task: LDATask) -> EffectiveParams:
    check_params(params, task, AttentionParams, EffectiveParams)
    return effective_params(params, task) if isinstance(params, AttentionParams) else params


def _gradient(integrals: RiskIntegrals, r: float) -> EffectiveParams:
    """E[l'(f) Df] with Df = (x, 1, sigma(v), r sigma'(v) x), v = s0 + s^T x."""
    gate, slope = integrals.gate[1:3]
    one = np.ones_like(gate)
    return EffectiveParams(
        integrals.vector(1, one),
        integrals.scalar(1, one),
        integrals.scalar(1, gate),
        r * integrals.vector(1, slope),
    )


def _hessian(integrals: RiskIntegrals, r: float) -> FloatArray:
    """E[l''(f) Df Df^T + l'(f) D2f] with Df as in `_gradient`."""
    gate, slope, curvature = integrals.gate[1:]
    one = np.ones_like(gate)
    d = integrals.frame.shape[-1]
    w, b, r_, s = _effective_slices(d)
    hessian = np.empty((2 * d + 2, 2 * d + 2))
    hessian[w, w] = integrals.matrix(2, one)
    hessian[w, b] = integrals.vector(2, one)
    hessian[w, r_] = integrals.vector(2, gate)
    hessian[w, s] = r * integrals.matrix(2, slope)
    hessian[b, b] = integrals.scalar(2, one)
    hessian[b, r_] = integrals.scalar(2, gate)
    hessian[b, s] = r * integrals.vector(2, slope)
    hessian[r_, r_] = integrals.scalar(2, gate**2)
    hessian[r_, s] = r * integrals.vector(2, gate * slope) + integrals.vector(1, slope)
    hessian[s, s] = r**2 * integrals.matrix(2, slope**2) + r * integrals.matrix(1, curvature)
    upper = np.triu(hessian)
    return upper + np.triu(hessian, 1).T
