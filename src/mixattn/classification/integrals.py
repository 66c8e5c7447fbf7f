"""The integrals behind `risk`: nodes, weights and moments over the two classes.

Coordinates. With L L^T = Gamma, the vector L^-1 (x - midpoint of the means) is N(+-delta / 2, I) in
the classes, where delta = L^-1 Dm = L^T w*. Its component along e1, the direction of the gate L^T
s, is the outer variable t: integrated by the trapezoidal rule where the integrand is smooth,
otherwise on Gauss-Legendre panels. Everything else is Gaussian given t.

Rules are sized from bounds known before any evaluation: the poles of the logistic function in its
argument, the slopes of the score and of the gate, and where exp(-|logit|) moves the mass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from mixattn._checks import FloatArray
from mixattn.classification.params import EffectiveParams
from mixattn.classification.task import LDATask
from mixattn.integrals.logistic import UNDERFLOW, gate_change, smoothed_decay
from mixattn.integrals.rules import (
    ELLIPSE,
    GAUSSIAN_REACH,
    LONGEST_PANEL,
    MARGIN,
    Rule,
    graded_panels,
    logistic_derivatives,
    logistic_normal,
    normal_density,
    panel_rule,
    trapezoidal_step,
)

# parts where an integrand is below exp(-BULK) of its peak are left out
BULK = 38.0
# Beyond, the rounding of a logit exceeds 1e-6 and the sharpest features vanish between floats.
LARGEST_LOGIT = 1e10
# exp(-LINEAR) is zero
LINEAR = 800.0
# candidates for the half-width of the strip of analyticity
STRIPS = 8.0 * 0.8 ** np.arange(20)
# number of nodes up to which a trapezoidal rule costs less than finding graded panels
LONGEST_SMOOTH_RULE = 400
# In a disc that keeps its distance from the poles, exp(-|logit|) may still grow by exp(0.9
# |logit|), which the mass of the neighboring panels carries: more nodes a panel than for the
# density alone.
OUTER_NODES = 22
# labels of the classes, in the order of every class axis below
LABELS = np.array([1.0, -1.0])
# where the power of x across plus the order of the derivative is odd: the terms that change sign
# with y
ODD = np.add.outer(np.arange(3), np.arange(3)) % 2 == 1


@dataclass(frozen=True, eq=False)
class RiskIntegrals:
    r"""Integrals against l(f) = log(1 + exp(-y f)) and its derivatives in f, over both classes.

    The score is f = A(t) + tau Z given t, with tau Z the part of w^T x across e1, so that the inner
    expectation is one of a logistic function under N(A(t), tau^2), done by `logistic_normal`. In
    the moments below h is a function of the gate, given by its values at the nodes, and k the order
    of the derivative; l' = sigma(f) - 1{y = 1} and l'' = sigma'(f) (Lemma B.7).

    Attributes
    ----------
    gate : ndarray, shape (order + 2, n)
        softplus, sigma, sigma' and sigma'' of s0 + s^T x at the nodes, as far as `order` needs
        them.
    position : ndarray, shape (n,)
        Component e1^T L^-1 x at the nodes.
    inner : ndarray, shape (order + 1, order + 1, 2, n)
        Weights times E[(e2^T L^-1 x)^j l^(k)(f) | t], a row a class.
    frame : ndarray, shape (2, 3, d)
        L e1, L e2 and what is left of the class's mean.
    covariance : ndarray, shape (d, d)
    """

    gate: FloatArray
    position: FloatArray
    inner: FloatArray
    frame: FloatArray
    covariance: FloatArray

    def risk(self) -> float:
        """Return E[l(f)]."""
        return self.scalar(0, np.ones_like(self.position))

    def scalar(self, k: int, h: FloatArray) -> float:
        """Return E[h l^(k)(f)]."""
        return float(self.inner[0, k].sum(axis=0) @ h)

    def vector(self, k: int, h: FloatArray) -> FloatArray:
        """Return E[h l^(k)(f) x], shape (d,)."""
        one, across = self.inner[0, k] * h, self.inner[1, k] @ h
        coefficients = np.array([one @ self.position, across, one.sum(axis=1)])
        return coefficients.T.ravel() @ self.frame.reshape(6, -1)

    def matrix(self, k: int, h: FloatArray) -> FloatArray:
        """Return E[h l^(k)(f) x x^T], shape (d, d)."""
        weighted = self.inner[:, k] * h
        t = self.position
        one, along, across = weighted[0].sum(axis=1), weighted[0] @ t, weighted[1].sum(axis=1)
        mixed = weighted[1] @ t
        coefficients = np.array(
            [
                [weighted[0] @ t**2, mixed, along],
                [mixed, weighted[2].sum(axis=1), across],
                [along, across, one],
            ]
        )
        # the covariance given the components along e1 and e2
        spanned = self.frame[0, :2]
        moment = one.sum() * (self.covariance - spanned.T @ spanned)
        for frame, block in zip(self.frame, np.moveaxis(coefficients, -1, 0), strict=True):
            moment += frame.T @ block @ frame
        return moment


@dataclass(frozen=True, eq=False)
class _Profile:
    """The score given t, in class c: N(A_c(t), tau^2), A_c(t) = offset_c + slope t + r sigma(v(t)).

    The gate's logit is v(t) = gate_offset + gate_slope t, and t ~ N(shift_c, 1) in class c.
    """

    offset: FloatArray
    slope: float
    r: float
    gate_offset: float
    gate_slope: float
    tau: float
    shift: FloatArray

    def gate(self, t: FloatArray) -> FloatArray:
        return self.gate_offset + self.gate_slope * t

    def mean(self, t: FloatArray) -> FloatArray:
        """Return A_c(t), the class axis first."""
        affine = np.add.outer(self.offset, self.slope * t)
        return affine + self.r * special.expit(self.gate(t))

    def density(self, t: FloatArray) -> FloatArray:
        return normal_density(t - self.shift[:, None])


def risk_integrals(p: EffectiveParams, task: LDATask, order: int) -> RiskIntegrals:
    """Place the nodes for the risk (order 0), its gradient (1) or its Hessian (2).

    A derivative of order k of the score brings at most k factors of x, hence moments of that
    degree.
    """
    L, center = task.cholesky, task.whitened_midpoint
    w, s = whitened_slopes(p, task)
    # with no gate the only direction is that of w, and nothing is left across
    e1 = unit(s if s.any() else w)
    rest = orthogonal_part(w, e1)
    e2 = unit(rest) if rest.any() else np.zeros_like(w)
    along, across = (0.5 * LABELS * (e @ task.whitened_difference) for e in (e1, e2))
    tau = float(e2 @ rest)
    profile = _Profile(
        offset=float(p.w @ task.midpoint) + p.b + tau * across,
        slope=float(e1 @ w),
        r=p.r,
        gate_offset=task.prior_logit + float(p.s @ task.midpoint),
        gate_slope=float(e1 @ s),
        tau=tau,
        shift=along,
    )
    t, dt = _smooth_rule(profile) or _graded_rule(profile, order)
    gate = logistic_derivatives(profile.gate(t), order + 1)
    mean = np.add.outer(profile.offset, profile.slope * t + p.r * gate[1])
    masses = task.priors[:, None] * profile.density(t) * dt
    frame = np.empty((2, 3, task.dim))
    frame[:, 0], frame[:, 1] = L @ e1, L @ e2
    in_plane = [along + e1 @ center, across + e2 @ center]
    frame[:, 2] = (task.mean_pos, task.mean_neg)
    for k in (0, 1):
        frame[:, 2] -= in_plane[k][:, None] * frame[:, k]
    return RiskIntegrals(
        gate=gate,
        position=t + float(e1 @ center),
        inner=_loss_moments(mean, tau, in_plane[1], order) * masses,
        frame=frame,
        covariance=task.covariance,
    )


def whitened_slopes(p: EffectiveParams, task: LDATask) -> tuple[FloatArray, FloatArray]:
    """Return L^T w and L^T s; refuse parameters whose logits have too few digits left."""
    with np.errstate(over="ignore", invalid="ignore"):
        w, s = task.cholesky.T @ p.w, task.cholesky.T @ p.s
    size = max(np.abs(w).max(), np.abs(s).max(), abs(p.b), abs(p.r))
    if not size <= LARGEST_LOGIT:
        raise ValueError(
            "params: expected b, r and, in units of the covariance, w and s of at most "
            f"{LARGEST_LOGIT:g} in size, got {size:.3g}"
        )
    return w, s


def _loss_moments(mean: FloatArray, tau: float, across: FloatArray, order: int) -> FloatArray:
    """Return E[(e2^T L^-1 x)^j l^(k)(f) | t], shape (order + 1, order + 1, 2, n)."""
    # l(f) = softplus(-y f): in terms of -y f the noise across has the sign of -y too
    sign = -LABELS[:, None]
    logits = (sign * mean).ravel()
    offsets = np.repeat(-LABELS * across, mean.shape[1])
    reach = UNDERFLOW * tau + LINEAR
    if np.abs(logits).max() <= reach:
        moments = logistic_normal(logits, tau, order, order, offsets)
    else:
        # where the noise does not reach the sign change, l is linear: no nodes for what lies
        # between
        reached = np.clip(logits, -reach, reach)
        moments = logistic_normal(reached, tau, order, order, offsets)
        powers = np.stack([np.ones_like(offsets), offsets, offsets**2 + 1])[: order + 1]
        moments[:, 0] += np.maximum(logits - reached, 0.0) * powers
    moments = moments.reshape(order + 1, order + 1, *mean.shape)
    moments[ODD[: order + 1, : order + 1]] *= sign
    return moments


def _smooth_rule(profile: _Profile) -> Rule | None:
    """Return the trapezoidal rule in t, or None if too narrow a strip would make it long.

    In the strip of half-width a, the mean A(t) has an imaginary part of at most
    ``|slope| a + |r| tan(|gate_slope| a / 2) / 2``.
    """
    slope, gate_slope, r = abs(profile.slope), abs(profile.gate_slope), abs(profile.r)
    analytic = gate_slope * STRIPS <= MARGIN * np.pi
    half_tangent = np.tan(0.5 * np.where(analytic, gate_slope * STRIPS, 0.0))
    change = slope * STRIPS + 0.5 * r * half_tangent
    analytic &= change <= max(MARGIN * np.pi, 1.5 * profile.tau)
    if not analytic.any():
        return None
    step = trapezoidal_step(STRIPS[analytic.argmax()])
    # factors that grow at rate k move the mass by k: those of the loss, and of the gate squared
    moved = GAUSSIAN_REACH + slope + (0.25 * r + 2) * gate_slope
    low, high = profile.shift.min() - moved, profile.shift.max() + moved
    if high - low > LONGEST_SMOOTH_RULE * step:
        return None
    t = step * np.arange(np.floor(low / step), np.ceil(high / step) + 1)
    return t, np.full_like(t, step)


def _graded_rule(profile: _Profile, order: int) -> Rule:
    """Return Gauss-Legendre panels in t, graded towards gate and sign changes of the score."""
    slope, gate_slope, tau = abs(profile.slope), abs(profile.gate_slope), profile.tau

    def fits(center: FloatArray, half: FloatArray) -> NDArray[np.bool_]:
        radius = ELLIPSE * half
        gate = profile.gate(center)
        change = slope * radius + abs(profile.r) * gate_change(gate, gate_slope * radius)
        # averaging over N(0, tau^2) moves the poles away: in the disc it grows by exp(1.5^2 / 2)
        # only
        room = np.maximum(np.hypot(profile.mean(center), np.pi).min(axis=0), 1.5 * tau)
        return (gate_slope * radius <= MARGIN * np.hypot(gate, np.pi)) & (change <= MARGIN * room)

    reach = UNDERFLOW + float(np.abs(profile.shift).max())
    t, dt = panel_rule(*graded_panels(-reach, reach, fits, LONGEST_PANEL), OUTER_NODES)
    log_density = -0.5 * (t - profile.shift[:, None, None]) ** 2
    loss_logit = -LABELS[:, None, None] * profile.mean(t)
    keep = _bulk(log_density, loss_logit, profile.gate(t), tau, order)
    return t[keep].ravel(), dt[keep].ravel()


def _bulk(
    log_density: FloatArray, loss_logit: FloatArray, gate_logit: FloatArray, tau: float, order: int
) -> NDArray[np.bool_]:
    r"""Say which panels carry mass of some integrand: density times loss factor times gate factor.

    The loss factor is the average of softplus or sigma of loss_logit + tau Z, or of sigma', which
    decays in \|loss_logit\|; the gate factor is 1, sigma or sigma', or for the Hessian a square of
    these. The class axis comes first.
    """
    decay = smoothed_decay(np.abs(loss_logit), tau)
    loss = np.stack([np.where(loss_logit < 0, decay, 0.0), decay])
    gate = [np.logaddexp(0.0, -gate_logit), np.abs(gate_logit)]
    gate += [2 * factor for factor in gate] if order == 2 else []
    gates = np.stack([np.zeros_like(gate_logit), *gate])
    # axes: loss factor, gate factor, class, panel
    log_size = ((log_density - loss)[:, None] - gates[:, None]).max(axis=-1)
    heavy = log_size >= log_size.max(axis=-1, keepdims=True) - BULK
    return heavy.any(axis=(0, 1, 2))


def unit(v: FloatArray) -> FloatArray:
    """Return v / |v|, or the first coordinate vector for v = 0; nothing underflows."""
    scale = np.abs(v).max()
    if scale == 0:
        return np.eye(1, len(v))[0]
    scaled = v / scale
    return scaled / math.sqrt(scaled @ scaled)


def orthogonal_part(v: FloatArray, axis: FloatArray) -> FloatArray:
    """Return v - (axis^T v) axis, orthogonal to rounding; zero when v is parallel to the axis."""
    rest = v - (axis @ v) * axis
    rest = rest - (axis @ rest) * axis
    negligible = 4 * np.finfo(float).eps * np.abs(v).max()
    return rest if np.abs(rest).max() > negligible else np.zeros_like(v)
