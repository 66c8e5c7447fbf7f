"""The integrals behind `mixattn.classification.risk`: nodes, weights and moments over the two classes.

Coordinates. With L L^T = Gamma, the vector L^-1 (x - midpoint of the means) is N(+-delta / 2, I) in the
classes, where delta = L^-1 Dm = L^T w*. Its component along e1, the direction of the gate L^T s, is the outer
variable t: integrated by the trapezoidal rule where the integrand is smooth, otherwise on
Gauss-Legendre panels. Everything else is Gaussian given t.

Rules are sized from bounds known before any evaluation: the poles of the logistic function in its
argument, the slopes of the score and of the gate, and where exp(-|logit|) moves the mass.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.interpolate import PPoly, make_interp_spline

from mixattn._checks import FloatArray
from mixattn.classification.task import EffectiveParams, LDATask
from mixattn.integrals import rules as quadrature
from mixattn.integrals.rules import (
    ELLIPSE,
    GAUSSIAN_REACH,
    LONGEST_PANEL,
    MARGIN,
    graded_panels,
    logistic_derivatives,
    logistic_normal,
    normal_density,
    panel_rule,
)

# N(0, 1) underflows beyond this, so no integrand has mass there
UNDERFLOW = 38.5
# parts where an integrand is below exp(-BULK) of its peak are left out
BULK = 38.0
# number of nodes up to which a trapezoidal rule costs less than finding graded panels
LONGEST_SMOOTH_RULE = 400
# In a disc that keeps its distance from the poles, exp(-|logit|) may still grow by exp(0.9 |logit|), which
# the mass of the neighboring panels carries: more nodes a panel than for the density alone.
OUTER_NODES = 22
# labels of the classes, in the order of every class axis below
LABELS = np.array([1.0, -1.0])
# where the power of x across plus the order of the derivative is odd: the terms that change sign with y
ODD = np.add.outer(np.arange(3), np.arange(3)) % 2 == 1


@dataclass(frozen=True, eq=False)
class RiskIntegrals:
    r"""Integrals against l(f) = log(1 + exp(-y f)) and its derivatives in f, over both classes.

    The score is f = A(t) + tau Z given t, with tau Z the part of w^T x across e1, so that the inner expectation
    is one of a logistic function under N(A(t), tau^2), done by `logistic_normal`. In the
    moments below h is a function of the gate, given by its values at the nodes, and k the order of
    the derivative; l' = sigma(f) - 1{y = 1} and l'' = sigma'(f) (Lemma B.7).

    Attributes
    ----------
    gate : ndarray, shape (order + 2, n)
        softplus, sigma, sigma' and sigma'' of s0 + s^T x at the nodes, as far as `order` needs them.
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

    def scalar(self, k: int, h: FloatArray) -> float:
        """Return E[h l^(k)(f)]."""
        return float(self.inner[0, k].sum(axis=0) @ h)

    def vector(self, k: int, h: FloatArray) -> FloatArray:
        """Return E[h l^(k)(f) x], shape (d,)."""
        one, across = self.inner[0, k] * h, self.inner[1, k] @ h
        coefficients = np.array([one @ self.position, across, one.sum(axis=1)])
        moment: FloatArray = coefficients.T.ravel() @ self.frame.reshape(6, -1)
        return moment

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
        moment: FloatArray = one.sum() * (self.covariance - spanned.T @ spanned)
        for frame, block in zip(self.frame, np.moveaxis(coefficients, -1, 0), strict=True):
            moment += frame.T @ block @ frame
        return moment


def risk_integrals(p: EffectiveParams, task: LDATask, order: int) -> RiskIntegrals:
    """Place the nodes for the risk (order 0), its gradient (1) or its Hessian (2).

    A derivative of order k of the score brings at most k factors of x, hence moments of that degree.
    """
    L = task.cholesky
    w, s = L.T @ p.w, L.T @ p.s
    # with no gate the only direction is that of w, and nothing is left across
    e1 = unit(s if s.any() else w)
    across = orthogonal_part(w, e1)
    e2 = unit(across) if across.any() else np.zeros_like(w)
    tau = float(e2 @ across)
    gate_slope, slope = float(e1 @ s), float(e1 @ w)
    gate_offset = task.prior_logit + float(p.s @ task.midpoint)
    shift = 0.5 * LABELS[:, None] * (e1 @ task.whitened_difference)
    across_mean = 0.5 * LABELS * (e2 @ task.whitened_difference)
    offset = float(p.w @ task.midpoint) + p.b + tau * across_mean

    t, dt = _smooth_rule(slope, gate_slope, p.r, tau, shift) or _graded_rule(
        slope, gate_slope, gate_offset, p.r, tau, shift, offset, order
    )
    # l(f) = softplus(-y f): in terms of -y f the noise across has the sign of -y too
    sign = -LABELS[:, None]
    e2_midpoint = float(e2 @ task.whitened_midpoint)
    offsets = np.repeat(sign * (across_mean + e2_midpoint)[:, None], t.size, axis=1)
    gate = logistic_derivatives(gate_offset + gate_slope * t, order + 1)
    score_mean = np.add.outer(offset, slope * t + p.r * gate[1])
    inner = logistic_normal(
        (sign * score_mean).ravel(), tau, order, order, offsets.ravel()
    ).reshape(order + 1, order + 1, 2, t.size)
    inner[ODD[: order + 1, : order + 1]] *= sign
    inner *= task.priors[:, None] * normal_density(t - shift) * dt
    frame = np.empty((2, 3, task.dim))
    frame[:, 0], frame[:, 1] = L @ e1, L @ e2
    for i, mean in enumerate((task.mean_pos, task.mean_neg)):
        in_plane = shift[i, 0] + e1 @ task.whitened_midpoint, across_mean[i] + e2_midpoint
        frame[i, 2] = mean - in_plane[0] * frame[i, 0] - in_plane[1] * frame[i, 1]
    return RiskIntegrals(
        gate=gate,
        position=t + float(e1 @ task.whitened_midpoint),
        inner=inner,
        frame=frame,
        covariance=task.covariance,
    )


def _smooth_rule(
    slope: float, gate_slope: float, r: float, tau: float, shift: FloatArray
) -> tuple[FloatArray, FloatArray] | None:
    """Return the trapezoidal rule in t, or None if the integrand's strip is too narrow for it to be short.

    In the strip of half-width a, the mean A(t) = slope t + r sigma(...) + const has an imaginary part of at
    most ``|slope| a + |r| tan(|gate_slope| a / 2) / 2``.
    """
    strips = 8.0 * 0.8 ** np.arange(20)
    analytic = abs(gate_slope) * strips <= MARGIN * np.pi
    half_tangent = np.tan(0.5 * np.where(analytic, abs(gate_slope) * strips, 0.0))
    change = abs(slope) * strips + 0.5 * abs(r) * half_tangent
    analytic &= change <= max(MARGIN * np.pi, 1.5 * tau)
    if not analytic.any():
        return None
    step = quadrature.trapezoidal_step(strips[analytic.argmax()])
    # factors that grow at rate k move the mass by k: those of the loss, and of the gate squared
    moved = GAUSSIAN_REACH + abs(slope) + (0.25 * abs(r) + 2) * abs(gate_slope)
    low, high = shift.min() - moved, shift.max() + moved
    if high - low > LONGEST_SMOOTH_RULE * step:
        return None
    t = step * np.arange(np.floor(low / step), np.ceil(high / step) + 1)
    return t, np.full_like(t, step)


def _graded_rule(
    slope: float,
    gate_slope: float,
    gate_offset: float,
    r: float,
    tau: float,
    shift: FloatArray,
    offset: FloatArray,
    order: int,
) -> tuple[FloatArray, FloatArray]:
    """Return Gauss-Legendre panels in t, graded towards the gate and the sign changes of the score."""

    def gate_at(t: FloatArray) -> FloatArray:
        return gate_offset + gate_slope * t

    def score_mean(t: FloatArray) -> FloatArray:
        return np.add.outer(offset, slope * t + r * special.expit(gate_at(t)))

    def fits(center: FloatArray, half: FloatArray) -> NDArray[np.bool_]:
        radius = ELLIPSE * half
        gate = gate_at(center)
        change = abs(slope) * radius + abs(r) * gate_change(gate, abs(gate_slope) * radius)
        # averaging over N(0, tau^2) moves the poles away: in the disc it grows by exp(1.5^2 / 2) only
        room = np.maximum(np.hypot(score_mean(center), np.pi).min(axis=0), 1.5 * tau)
        fine: NDArray[np.bool_] = (abs(gate_slope) * radius <= MARGIN * np.hypot(gate, np.pi)) & (
            change <= MARGIN * room
        )
        return fine

    reach = UNDERFLOW + float(np.abs(shift).max())
    t, dt = panel_rule(*graded_panels(-reach, reach, fits, LONGEST_PANEL), OUTER_NODES)
    log_density = -0.5 * (t - shift[:, :, None]) ** 2
    keep = _bulk(log_density, -LABELS[:, None, None] * score_mean(t), gate_at(t), tau, order)
    return t[keep].ravel(), dt[keep].ravel()


def gate_change(v: FloatArray, radius: FloatArray) -> FloatArray:
    r"""Bound \|sigma(v') - sigma(v)\| over the complex disc \|v' - v\| <= radius.

    By the derivative: \|sigma'(x + iy)\| = 1 / (2 (cosh x + cos y)).
    """
    nearest = np.clip(np.abs(v) - radius, 0.0, 700.0)
    floor = np.cosh(nearest) + np.cos(np.minimum(radius, np.pi))
    bound: FloatArray = radius / np.maximum(2 * floor, 1e-100)
    return bound


def _bulk(
    log_density: FloatArray, loss_logit: FloatArray, gate_logit: FloatArray, tau: float, order: int
) -> NDArray[np.bool_]:
    r"""Say which panels carry mass of some integrand: density times loss factor times gate factor.

    The loss factor is the average of softplus or sigma of loss_logit + tau Z, or of sigma', which
    decays in \|loss_logit\|; the gate factor is 1, sigma or sigma', or for the Hessian a square of these.
    The class axis comes first.
    """
    decay = _smoothed_decay(np.abs(loss_logit), tau)
    loss = np.stack([np.where(loss_logit < 0, decay, 0.0), decay])
    gate = [np.logaddexp(0.0, -gate_logit), np.abs(gate_logit)]
    gate += [2 * factor for factor in gate] if order == 2 else []
    gates = np.stack([np.zeros_like(gate_logit), *gate])
    # axes: loss factor, gate factor, class, panel
    log_size = ((log_density - loss)[:, None] - gates[:, None]).max(axis=-1)
    heavy = log_size >= log_size.max(axis=-1, keepdims=True) - BULK
    keep: NDArray[np.bool_] = heavy.any(axis=(0, 1, 2))
    return keep


def unit(v: FloatArray) -> FloatArray:
    """Return v / |v|, or the first coordinate vector for v = 0; nothing underflows."""
    scale = np.abs(v).max()
    if scale == 0:
        first: FloatArray = np.eye(1, len(v))[0]
        return first
    scaled = v / scale
    direction: FloatArray = scaled / math.sqrt(scaled @ scaled)
    return direction


def orthogonal_part(v: FloatArray, axis: FloatArray) -> FloatArray:
    """Return v - (axis^T v) axis, orthogonal to rounding, and zero when v is parallel to the axis."""
    rest = v - (axis @ v) * axis
    rest = rest - (axis @ rest) * axis
    negligible = 4 * np.finfo(float).eps * np.abs(v).max()
    return rest if np.abs(rest).max() > negligible else np.zeros_like(v)


@dataclass(frozen=True, eq=False)
class _Logit:
    """An affine function of the class-centered whitened (z1, z2): offset + along z1 + across z2."""

    offset: float
    along: float
    across: float

    def __call__(self, z1: FloatArray, z2: FloatArray) -> FloatArray:
        return self.offset + self.along * z1 + self.across * z2


def mean_divergence(p: EffectiveParams, task: LDATask) -> float:
    r"""Return E KL(Ber(sigma(f*)) \| Ber(sigma(f))) by nodes in at most two variables.

    With e1 along the gate and e2 along the rest of w*, only f depends on the direction e3 that is left,
    as f = A + tau Z, and ``E KL(f*, A + tau Z) = KL(f*, A) + (E softplus(A + tau Z) - softplus(A))``: two
    nonnegative terms, the second a function of A alone.

    The divergence is computed from the gap f - f*. At the optimal families the affine part of the gap,
    ``w - w* + r sigma'(s0) s`` and ``b - b* + r sigma(s0)``, cancels in the parameters: it is summed
    exactly there (see `LDATask.bayes_gap`), and what is left of the gate is small by itself
    (`gate_remainder`).
    """
    slope, intercept = task.bayes_gap(p)
    s = p.s if p.r != 0 else np.zeros(task.dim)
    L, delta = task.cholesky, task.whitened_difference
    gate, gap = L.T @ s, L.T @ slope
    e1 = unit(gate if s.any() else delta)
    bayes_rest = orthogonal_part(delta, e1)
    e2 = unit(bayes_rest) if bayes_rest.any() else np.zeros_like(delta)
    gap_rest = orthogonal_part(gap, e1)
    gap_across = float(e2 @ gap_rest)
    # exactly zero in the plane, where the average over e3 would be idle work
    left = orthogonal_part(gap_rest, e2)
    tau = float(unit(left) @ left)
    total = 0.0
    for label, prior in zip(LABELS, task.priors, strict=True):
        mean = task.midpoint + 0.5 * label * task.mean_difference
        total += prior * _class_divergence(
            task,
            p.r,
            bayes=_Logit(
                task.prior_logit + 0.5 * label * float(delta @ delta),
                float(e1 @ delta),
                float(e2 @ delta),
            ),
            gap=_Logit(intercept + float(slope @ mean), float(e1 @ gap), gap_across),
            gate=_Logit(float(s @ mean), float(e1 @ gate), 0.0),
            tau=tau,
        )
    return total


# The contract is a relative 1e-6; the divergence's rules aim at 1e-10: on shorter panels the density
# grows off the real axis by exp((1.5 * 2)^2 / 2) = 90 at most, and RATE^(-24) = 4e-13.
DIVERGENCE_NODES = 12
DIVERGENCE_PANEL = 2.0
DIVERGENCE_TOLERANCE = 1e-11
DIVERGENCE_BULK = np.exp(-34.0)
LONGEST_TRAPEZOID = 3000
STRIDE = 6
SPLINE_DEGREE = 5
SPLINE_STEP = 0.05


def _class_divergence(
    task: LDATask, r: float, bayes: _Logit, gap: _Logit, gate: _Logit, tau: float
) -> float:
    """Integrate the divergence over one class, in its own whitened coordinates (z1, z2)."""
    prior = task.prior_pos
    # the affine part of f proper along e1; gap.along has the gate's tangent in it
    score_along = bayes.along + gap.along - r * prior * (1 - prior) * gate.along
    score_across = bayes.across + gap.across
    steepest = max(abs(bayes.across), abs(score_across))
    window = min(GAUSSIAN_REACH + steepest, UNDERFLOW)
    zero = np.zeros(1)

    def gate_part(z1: FloatArray) -> FloatArray:
        return r * gate_remainder(gate(z1, zero), task.prior_pos, task.prior_logit)

    def fits(center: FloatArray, half: FloatArray) -> NDArray[np.bool_]:
        radius = ELLIPSE * half
        gate_logit = task.prior_logit + gate(center, zero)
        bayes_logit = bayes(center, zero)
        score_logit = bayes_logit + gap(center, zero) + gate_part(center)
        bayes_change = abs(bayes.along) * radius
        score_change = abs(score_along) * radius
        score_change = score_change + abs(r) * gate_change(gate_logit, abs(gate.along) * radius)
        # z2 ranges over the window, so only what exceeds its swing is away from the poles for sure
        bayes_room = _room(bayes_logit, window * abs(bayes.across))
        score_room = np.maximum(_room(score_logit, window * abs(score_across)), 1.5 * tau)
        direct = (bayes_change <= MARGIN * bayes_room) & (score_change <= MARGIN * score_room)
        # or move the line of integration in z2 so that f stays real: f* then takes the change
        direct |= (score_change <= 1.5 * abs(score_across)) & (
            score_change * abs(bayes.across)
            < abs(score_across) * (MARGIN * bayes_room - bayes_change)
        )
        return direct & (abs(gate.along) * radius <= MARGIN * np.hypot(gate_logit, np.pi))

    z1, dz1 = panel_rule(
        *graded_panels(-UNDERFLOW, UNDERFLOW, fits, DIVERGENCE_PANEL), DIVERGENCE_NODES
    )
    dz1 *= normal_density(z1)
    gated = gate_part(z1)
    tangent = _Logit(bayes.offset + gap.offset, bayes.along + gap.along, score_across)
    if abs(score_across) >= abs(bayes.across):
        rule = _across_rule(tangent(z1, zero) + gated, score_across, bayes.across, window)
    else:
        rule = _across_rule(bayes(z1, zero), bayes.across, score_across, window)
    z2, dz2 = (np.broadcast_to(a, (*z1.shape, a.shape[-1])) for a in rule)

    def sizes(
        nodes: tuple[NDArray[np.intp], ...], smoothing: Callable[..., FloatArray]
    ) -> FloatArray:
        f_bayes = bayes(z1[nodes[:2]], z2[nodes])
        difference = gap(z1[nodes[:2]], z2[nodes]) + gated[nodes[:2]]
        weights = dz1[nodes[:2]] * dz2[nodes]
        return weights * (divergence(f_bayes, difference) + smoothing(f_bayes + difference, tau))

    return float(
        sizes(_heavy_nodes(z2.shape, lambda some: sizes(some, _jensen_scale)), jensen_gap).sum()
    )


def _room(logit: FloatArray, swing: float) -> FloatArray:
    """Distance to the nearest pole of the logistic function, over all values within the swing."""
    room: FloatArray = np.hypot(np.maximum(np.abs(logit) - swing, 0.0), np.pi)
    return room


def _across_rule(
    logit: FloatArray, slope: float, other_slope: float, window: float
) -> tuple[FloatArray, FloatArray]:
    """Return nodes and weights of N(0, 1) for z2, for a logit ``logit + slope z2`` steeper than the other.

    The trapezoidal rule; where that would be long, panels in the logit itself, graded towards its poles.
    The panel axis and the node axis of z1 come first, of length 1 when the rule is the same for all.
    """
    if slope == 0:
        return np.zeros((1, 1, 1)), np.ones((1, 1, 1))
    strip = MARGIN * np.pi / abs(slope)
    if 2 * window <= LONGEST_TRAPEZOID * quadrature.trapezoidal_step(strip, DIVERGENCE_TOLERANCE):
        z2, dz2 = quadrature.gaussian_trapezoid(strip, -window, window, DIVERGENCE_TOLERANCE)
        return z2[None, None], dz2[None, None]

    def fits(center: FloatArray, half: FloatArray) -> NDArray[np.bool_]:
        return (ELLIPSE * half <= MARGIN * np.hypot(center, np.pi)) & (
            ELLIPSE * half * abs(other_slope) <= MARGIN * np.pi * abs(slope)
        )

    swing = window * abs(slope)
    y, dy = panel_rule(
        *graded_panels(
            logit.min() - swing, logit.max() + swing, fits, DIVERGENCE_PANEL * abs(slope)
        ),
        DIVERGENCE_NODES,
    )
    z2 = (y.ravel() - logit[..., None]) / slope
    return z2, dy.ravel() / abs(slope) * normal_density(z2)


def _heavy_nodes(
    shape: tuple[int, int, int], sizes: Callable[[tuple[NDArray[np.intp], ...]], FloatArray]
) -> tuple[NDArray[np.intp], ...]:
    """Return the indices (panel, z1 node, z2 node) of the nodes that carry mass.

    Looked for on three nodes a panel and every STRIDE-th column, then widened by a column of these
    on both sides.
    """
    n_panels, n_nodes, n_columns = shape
    scouts = np.ix_(
        np.arange(n_panels),
        np.array([1, n_nodes // 2, n_nodes - 2]),
        np.arange(0, n_columns, STRIDE),
    )
    size = sizes(scouts).max(axis=1)
    heavy = (size > 0) & (size >= size.max() * DIVERGENCE_BULK)
    heavy[:, 1:] |= heavy[:, :-1]
    heavy[:, :-1] |= heavy[:, 1:]
    panels, columns = np.nonzero(np.repeat(heavy, STRIDE, axis=1)[:, :n_columns])
    return panels[:, None], np.arange(n_nodes), columns[:, None]


def gate_remainder(u: FloatArray, prior: float, prior_logit: float) -> FloatArray:
    """Return sigma(s0 + u) - sigma(s0) - sigma'(s0) u without cancellation at small u.

    With p = sigma(s0) = pi_+ it is ``p (1 - p) (E(u) + (1/2 - p) u (e^u - 1)) / (1 + p (e^u - 1))``,
    where ``E(u) = e^u - 1 - u - u (e^u - 1) / 2`` is of third order.
    """
    variance = prior * (1 - prior)
    small = np.clip(u, -1.0, 1.0)
    # the coefficient of u^k in E is 1/k! - 1/(2 (k-1)!)
    third = np.polyval([(2 - k) / (2 * math.factorial(k)) for k in range(20, 2, -1)], small)
    e = np.expm1(small)
    near = variance * (third * small**3 + (0.5 - prior) * small * e) / (1 + prior * e)
    far = special.expit(prior_logit + u) - prior - variance * u
    return np.where(np.abs(u) < 1.0, near, far)


_JACOBI_NODES, _JACOBI_WEIGHTS = special.roots_jacobi(8, 1.0, 0.0)


def divergence(f_bayes: FloatArray, gap: FloatArray) -> FloatArray:
    r"""Return KL(Ber(sigma(f*)) \| Ber(sigma(f* + gap))), accurate relative to itself.

    It is ``softplus(f) - softplus(f*) - sigma(f*) gap``, and for a small gap Taylor's remainder
    ``gap^2 int_0^1 (1 - u) sigma'(f* + u gap) du`` by Gauss-Jacobi. Changing all signs changes nothing.
    """
    gap = np.where(f_bayes > 0, -gap, gap)
    low = -np.abs(f_bayes)
    t = np.exp(low)
    p = t / (1 + t)
    moved = low + gap
    direct: FloatArray = (
        np.maximum(moved, 0.0) + np.log1p(np.exp(-np.abs(moved))) - np.log1p(t) - p * gap
    )
    small = np.abs(gap) < 1.0
    base, step = low[small], gap[small]
    taylor = np.zeros_like(base)
    for node, weight in zip(_JACOBI_NODES, _JACOBI_WEIGHTS, strict=True):
        e = np.exp(-np.abs(base + 0.5 * (1 + node) * step))
        taylor += 0.25 * weight * e / (1 + e) ** 2
    direct[small] = taylor * step**2
    return direct


def jensen_gap(mean: FloatArray, std: float) -> FloatArray:
    """Return E softplus(mean + std Z) - softplus(mean) >= 0, accurate relative to itself.

    A function of one variable: of many points, its logarithm is interpolated by splines.
    """
    if std == 0 or mean.size == 0:
        return np.zeros_like(mean)
    # even in the mean; smaller than any divergence that matters beyond
    away = np.minimum(np.abs(mean), 600.0 + UNDERFLOW * std)
    intervals = away.max() / SPLINE_STEP
    if 4 * intervals > away.size:
        return _jensen_gap(away.ravel(), std).reshape(away.shape)
    grid = SPLINE_STEP * np.arange(-SPLINE_DEGREE, intervals + SPLINE_DEGREE)
    spline = make_interp_spline(grid, np.log(_jensen_gap(np.abs(grid), std)), k=SPLINE_DEGREE)
    # in powers of the argument the same spline costs a third to evaluate
    gap: FloatArray = np.exp(PPoly.from_spline(spline.tck)(away))
    return gap


def _jensen_gap(away: FloatArray, std: float) -> FloatArray:
    """Return `jensen_gap` of nonnegative means.

    For a small `std`, by the identity
    ``softplus(a + h) + softplus(a - h) - 2 softplus(a) = log(1 + 4 sigma'(a) sinh(h/2)^2)``.
    """
    if std > 1.0:
        smoothed: FloatArray = logistic_normal(-away, std, 0)[0, 0]
        return smoothed - np.log1p(np.exp(-away))
    nodes, weights = quadrature.gaussian_trapezoid(MARGIN * np.pi / std, 0.0, GAUSSIAN_REACH + std)
    slope = logistic_derivatives(away, 2)[2]
    bumps = np.log1p(4 * slope[:, None] * np.sinh(0.5 * std * nodes[1:]) ** 2)
    # the node at 0 adds nothing, and those below 0 as much as those above
    gap: FloatArray = bumps @ weights[1:]
    return gap


def _jensen_scale(mean: FloatArray, std: float) -> FloatArray:
    """Return the size of `jensen_gap` up to a moderate factor."""
    scale: FloatArray = min(1.0, std**2) * np.exp(-_smoothed_decay(np.abs(mean), std))
    return scale


def _smoothed_decay(away: FloatArray, std: float) -> FloatArray:
    """Return -log E exp(-(away + std Z)^+) up to a few units: a Gaussian tail, then an exponential."""
    gaussian = 0.5 * (np.minimum(away, std**2) / std) ** 2 if std > 0 else 0.0
    decay: FloatArray = gaussian + np.maximum(away - std**2, 0.0)
    return decay
