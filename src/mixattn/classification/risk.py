"""The logistic risk of one attention head and its derivatives (section 3).

Everything here is a function of the effective coordinates (w, b, r, s), pulled back to the head's
own coordinates by the chain rule. Each expectation over a class is one integral over the gate's
direction of an expectation of a logistic function under a one-dimensional Gaussian
(`risk_integrals`), so the number of nodes does not depend on d, and the only work that does is a
product with a Cholesky factor.
"""

from __future__ import annotations

import numpy as np

from mixattn._checks import FloatArray
from mixattn.classification.excess import mean_divergence
from mixattn.classification.integrals import RiskIntegrals, risk_integrals, whitened_slopes
from mixattn.classification.params import (
    AttentionParams,
    EffectiveParams,
    Params,
    as_effective,
    attention_slices,
    effective_jacobian,
    effective_slices,
    pull_back,
)
from mixattn.classification.task import LDATask

# Logits of this size make the divergence's third variable expensive, and the risk far from the
# Bayes risk.
STEEP = 1e3
DISTINCT = 0.01


@np.errstate(under="ignore")
def logistic_risk(params: AttentionParams | EffectiveParams, task: LDATask) -> float:
    """Return the population logistic risk E log(1 + exp(-Y f(X))).

    Parameters
    ----------
    params : AttentionParams or EffectiveParams
    task : LDATask

    Returns
    -------
    float
        To a relative 1e-10 for b and r up to 100 and whitened w, s and w* up to 20.

    Raises
    ------
    ValueError
        If an argument is not as above, dimensions differ, or b, r or the whitened w or s exceed
        1e10.
    """
    return risk_integrals(as_effective(params, task), task, order=0).risk()


@np.errstate(under="ignore")
def excess_risk(params: AttentionParams | EffectiveParams, task: LDATask) -> float:
    r"""Return R(f) - R(f*) as the expected divergence between the posteriors (Lemma B.4).

    .. math::
        R(f) - R(f^*) = \mathbb E\, \mathrm{KL}\big(\mathrm{Ber}(\sigma(f^*(X))) \,\|\,
        \mathrm{Ber}(\sigma(f(X)))\big)

    Every term is nonnegative and accurate relative to itself, so the value is too, however small.
    Only for logits beyond 1e3 and risks that differ in their leading digits is it their difference.
    Attention parameters are first mapped to effective ones in floating point, which perturbs the
    score by rounding.

    Parameters
    ----------
    params : AttentionParams or EffectiveParams
    task : LDATask

    Returns
    -------
    float
        To a relative 1e-6 for b and r up to 100 and whitened w, s and w* up to 20.

    Raises
    ------
    ValueError
        If an argument is not as above, dimensions differ, or b, r or the whitened w or s exceed
        1e10.
    """
    p = as_effective(params, task)
    if max(np.abs(slope).max() for slope in (*whitened_slopes(p, task), p.b, p.r)) > STEEP:
        risk = risk_integrals(p, task, order=0).risk()
        bayes = EffectiveParams(*task.bayes_score, 0.0, np.zeros(task.dim))
        excess = risk - risk_integrals(bayes, task, order=0).risk()
        if excess > DISTINCT * risk:
            return excess
    return mean_divergence(p, task)


def risk_gradient(params: Params, task: LDATask) -> Params:
    """Return the gradient of `logistic_risk`.

    In effective coordinates it is E[(sigma(f) - 1{Y = 1}) Df] (Lemmas B.7 and B.9), summed class by
    class: two-dimensional integrals, where the equal E[(sigma(f) - eta) Df] needs a third variable
    for eta. In attention coordinates it is the pullback DPhi^T of that (Lemmas B.10 and B.15). It
    costs O(d^2 + nodes).

    Parameters
    ----------
    params : AttentionParams or EffectiveParams
    task : LDATask

    Returns
    -------
    AttentionParams or EffectiveParams
        Of the type of `params`; each entry to 1e-10 of the expected absolute integrand.

    Raises
    ------
    ValueError
        If an argument is not as above, dimensions differ, or b, r or the whitened w or s exceed
        1e10.
    """
    return risk_and_gradient(params, task)[1]


@np.errstate(under="ignore")
def risk_and_gradient(params: Params, task: LDATask) -> tuple[float, Params]:
    """Return `logistic_risk` and `risk_gradient` from the same nodes, for the price of the latter.

    Parameters
    ----------
    params : AttentionParams or EffectiveParams
    task : LDATask

    Returns
    -------
    risk : float
    gradient : AttentionParams or EffectiveParams
        Of the type of `params`.

    Raises
    ------
    ValueError
        If an argument is not as above, dimensions differ, or b, r or the whitened w or s exceed
        1e10.
    """
    p = as_effective(params, task)
    integrals = risk_integrals(p, task, order=1)
    gradient = _gradient(integrals, p.r)
    if isinstance(params, EffectiveParams):
        return integrals.risk(), gradient
    return integrals.risk(), pull_back(gradient, params, task)


@np.errstate(under="ignore")
def risk_hessian(params: AttentionParams | EffectiveParams, task: LDATask) -> FloatArray:
    """Return the Hessian of `logistic_risk` in `to_vector` order (Lemma B.11), exactly symmetric.

    Parameters
    ----------
    params : AttentionParams or EffectiveParams
    task : LDATask

    Returns
    -------
    ndarray, shape (p, p)
        p = 2d + 2 in effective coordinates, d^2 + 2d + 1 in attention coordinates; each entry to
        1e-10 of the expected absolute integrand.

    Raises
    ------
    ValueError
        If an argument is not as above, dimensions differ, or b, r or the whitened w or s exceed
        1e10.
    """
    p = as_effective(params, task)
    integrals = risk_integrals(p, task, order=2)
    hessian = _hessian(integrals, p.r)
    if isinstance(params, EffectiveParams):
        return hessian
    jacobian = effective_jacobian(params, task)
    pulled_back = jacobian.T @ hessian @ jacobian
    # Phi is linear but for w = U11 Gamma v21, which is bilinear
    U11, _, v21, _ = attention_slices(task.dim)
    bilinear = np.kron(_gradient(integrals, p.r).w[:, None], task.covariance)
    pulled_back[U11, v21] += bilinear
    pulled_back[v21, U11] += bilinear.T
    return 0.5 * (pulled_back + pulled_back.T)


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
    w, b, r_, s = effective_slices(d)
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
