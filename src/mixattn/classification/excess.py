"""The excess risk as the expected divergence between the Bayes posterior and the head's.

One class at a time, x = mean + L (z1 e1 + z2 e2 + z3 e3) with z standard normal: e1 along the gate,
e2 along the rest of w*, e3 along what is then left of w. Only f depends on z3, as f = A + tau z3,
and ``E KL(f*, A + tau Z) = KL(f*, A) + (E softplus(A + tau Z) - softplus(A))``: two nonnegative
terms, the second a function of A alone. So at most two variables are left.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from mixattn._checks import FloatArray
from mixattn.classification import _exact
from mixattn.classification.integrals import LABELS, orthogonal_part, unit, whitened_slopes
from mixattn.classification.params import EffectiveParams
from mixattn.classification.task import LDATask
from mixattn.integrals.logistic import (
    UNDERFLOW,
    divergence,
    gate_change,
    gate_remainder,
    jensen_gap,
    jensen_scale,
)
from mixattn.integrals.rules import (
    ELLIPSE,
    GAUSSIAN_REACH,
    MARGIN,
    Rule,
    gaussian_trapezoid,
    graded_panels,
    normal_density,
    panel_rule,
    trapezoidal_step,
)

# The contract is a relative 1e-6; the rules aim at 1e-10: on shorter panels the density
# grows off the real axis by exp((1.5 * 2)^2 / 2) = 90 at most, and RATE^(-24) = 4e-13.
NODES = 12
LONGEST_PANEL = 2.0
TOLERANCE = 1e-11
BULK = np.exp(-34.0)
LONGEST_TRAPEZOID = 3000
STRIDE = 6

Nodes = tuple[NDArray[np.intp], ...]


@dataclass(frozen=True, eq=False)
class _ClassScores:
    """f* and f - f* on one class, in its own coordinates z1, z2.

    f - f* is affine plus a function of the gate, in three equal forms (see `_gap_forms`), whose
    values at the mean and slopes along e1 are given. Across the gate it is affine.
    """

    bayes_offset: float
    bayes_along: float
    bayes_across: float
    score_along: float
    score_across: float
    gap_offsets: FloatArray
    gap_along: FloatArray
    gap_across: float
    r: float
    gate_offset: float
    gate_along: float

    def bayes(self, z1: FloatArray, z2: FloatArray | float = 0.0) -> FloatArray:
        return self.bayes_offset + self.bayes_along * z1 + self.bayes_across * z2

    def gate(self, z1: FloatArray) -> FloatArray:
        return self.gate_offset + self.gate_along * z1

    def score(self, z1: FloatArray) -> FloatArray:
        """Return f at z2 = 0, to place nodes: its small differences from f* are lost."""
        affine = self.bayes_offset + self.gap_offsets[0] + self.score_along * z1
        return affine + self.r * special.expit(self.gate(z1))

    def gap(self, z1: FloatArray) -> FloatArray:
        """Return f - f* at z2 = 0, everywhere by the form whose terms cancel least."""
        gate = self.gate(z1)
        beyond = gate_remainder(self.gate_offset, self.gate_along * z1)
        gated = self.r * np.stack([special.expit(gate), -special.expit(-gate), beyond])
        affine = np.add.outer(self.gap_offsets, np.zeros_like(z1)) + np.multiply.outer(
            self.gap_along, z1
        )
        least = np.argmin(np.abs(affine) + np.abs(gated), axis=0)
        return np.take_along_axis(affine + gated, least[None], axis=0)[0]

    @property
    def window(self) -> float:
        """Reach of z2: factors that grow like exp(k z2) move the mass by k."""
        steepest = max(abs(self.bayes_across), abs(self.score_across))
        return min(GAUSSIAN_REACH + steepest, UNDERFLOW)


def mean_divergence(p: EffectiveParams, task: LDATask) -> float:
    r"""Return E KL(Ber(sigma(f*)) \| Ber(sigma(f)))."""
    w, gate = whitened_slopes(p, task)
    gate = gate if p.r != 0 else np.zeros(task.dim)
    L, delta = task.cholesky, task.whitened_difference
    e1 = unit(gate if gate.any() else delta)
    bayes_rest = orthogonal_part(delta, e1)
    e2 = unit(bayes_rest) if bayes_rest.any() else np.zeros_like(delta)
    forms = [_gap_forms(p, task, i) for i in (0, 1)]
    # Across the gate all slopes of the gap agree: the shortest has lost the fewest digits.
    slopes = [slopes @ L for _, slopes, _ in forms]
    shortest = min(np.concatenate(slopes), key=lambda slope: float(slope @ slope))
    gap_rest = orthogonal_part(shortest, e1)
    # exactly zero in the plane, where the average over z3 would be idle work
    left = orthogonal_part(gap_rest, e2)
    tau, gap_across = float(unit(left) @ left), float(e2 @ gap_rest)
    total = 0.0
    for i, (offsets, _, gate_offset) in enumerate(forms):
        scores = _ClassScores(
            bayes_offset=task.prior_logit + 0.5 * LABELS[i] * task.separation[0],
            bayes_along=float(e1 @ delta),
            bayes_across=float(e2 @ delta),
            score_along=float(e1 @ w),
            score_across=float(e2 @ delta) + gap_across,
            gap_offsets=offsets,
            gap_along=slopes[i] @ e1,
            gap_across=gap_across,
            r=p.r,
            gate_offset=gate_offset,
            gate_along=float(e1 @ gate),
        )
        total += task.priors[i] * _class_divergence(scores, tau)
    return total


def _gap_forms(p: EffectiveParams, task: LDATask, i: int) -> tuple[FloatArray, FloatArray, float]:
    r"""Expand f - f* about the mean m of a class in three ways, the affine parts summed exactly.

    With v = s0 + s^T m and u = s^T (x - m), f - f* = value + slope^T (x - m) + r h, where h is
    sigma(v + u), or
    -sigma(-v - u), or sigma(v + u) - sigma(v) - sigma'(v) u. Where the gate is near 0, near 1 or
    nearly linear, the gated term is small by itself, and so is then the affine part on the optimal
    families.

    Returns
    -------
    values : ndarray, shape (3,)
    slopes : ndarray, shape (3, d)
    v : float
    """
    mean, (w, w_tail) = (task.mean_pos, task.mean_neg)[i], task.bayes_slope_pair
    gate_logit = _exact.pair_sum([*task.prior_logit_pair, *_exact.dot_terms(p.s, mean)])
    gate, gate_slope = _exact.logistic(gate_logit)
    # f* is s0 +- w*^T Dm / 2 at the means
    value = [*_exact.dot_terms(p.w, mean), p.b]
    value += [-term for term in task.prior_logit_pair]
    value += [-0.5 * LABELS[i] * term for term in task.separation]
    values = [value, [*value, p.r], [*value, *_exact.pair_product(gate, p.r)]]
    rise, rise_tail = _exact.pair_product(gate_slope, p.r)
    rounded, errors = _exact.product(p.s, rise)
    affine = (p.w, -w, -w_tail)
    tangent = (*affine, rounded, errors, p.s * rise_tail)
    slopes = [[math.fsum(terms) for terms in zip(*rows, strict=True)] for rows in (affine, tangent)]
    return (
        np.array([math.fsum(terms) for terms in values]),
        np.array([slopes[0], slopes[0], slopes[1]]),
        gate_logit[0],
    )


def _class_divergence(scores: _ClassScores, tau: float) -> float:
    """Integrate the divergence over one class."""
    z1, dz1 = _along_rule(scores, tau)
    gap = scores.gap(z1)
    bayes = scores.bayes(z1)
    slopes = scores.score_across, scores.bayes_across
    if abs(slopes[0]) >= abs(slopes[1]):
        rule = _across_rule(bayes + gap, *slopes, scores.window)
    else:
        rule = _across_rule(bayes, *slopes[::-1], scores.window)
    z2, dz2 = (np.broadcast_to(a, (*z1.shape, a.shape[-1])) for a in rule)

    def sizes(nodes: Nodes, smoothing: Callable[[FloatArray, float], FloatArray]) -> FloatArray:
        f_bayes = bayes[nodes[:2]] + scores.bayes_across * z2[nodes]
        difference = gap[nodes[:2]] + scores.gap_across * z2[nodes]
        density = dz1[nodes[:2]] * dz2[nodes]
        return density * (divergence(f_bayes, difference) + smoothing(f_bayes + difference, tau))

    heavy = _heavy_nodes(z2.shape, lambda nodes: sizes(nodes, jensen_scale))
    return float(sizes(heavy, jensen_gap).sum())


def _along_rule(scores: _ClassScores, tau: float) -> Rule:
    """Return panels in z1, graded towards the gate and the sign changes of both scores."""

    def fits(center: FloatArray, half: FloatArray) -> NDArray[np.bool_]:
        radius = ELLIPSE * half
        gate_logit, bayes_logit = scores.gate(center), scores.bayes(center)
        gate_radius = abs(scores.gate_along) * radius
        bayes_change = abs(scores.bayes_along) * radius
        score_change = abs(scores.score_along) * radius
        score_change = score_change + abs(scores.r) * gate_change(gate_logit, gate_radius)
        # z2 ranges over the window, so only what exceeds its swing is away from the poles for sure
        bayes_room = _room(bayes_logit, scores.window * abs(scores.bayes_across))
        score_room = _room(scores.score(center), scores.window * abs(scores.score_across))
        direct = (bayes_change <= MARGIN * bayes_room) & (
            score_change <= MARGIN * np.maximum(score_room, 1.5 * tau)
        )
        # or move the line of integration in z2 so that f stays real: f* then takes the change
        direct |= (score_change <= 1.5 * abs(scores.score_across)) & (
            score_change * abs(scores.bayes_across)
            < abs(scores.score_across) * (MARGIN * bayes_room - bayes_change)
        )
        return direct & (gate_radius <= MARGIN * np.hypot(gate_logit, np.pi))

    z1, dz1 = panel_rule(*graded_panels(-UNDERFLOW, UNDERFLOW, fits, LONGEST_PANEL), NODES)
    return z1, dz1 * normal_density(z1)


def _room(logit: FloatArray, swing: float) -> FloatArray:
    """Distance to the nearest pole of the logistic function, over all values within the swing."""
    return np.hypot(np.maximum(np.abs(logit) - swing, 0.0), np.pi)


def _across_rule(logit: FloatArray, slope: float, other_slope: float, window: float) -> Rule:
    """Return nodes and weights of N(0, 1) for z2, by the steeper logit, ``logit + slope z2``.

    The trapezoidal rule; where that would be long, panels in the logit itself, graded towards its
    poles. The panel axis and the node axis of z1 come first, of length 1 when the rule is the same
    for all.
    """
    if slope == 0:
        return np.zeros((1, 1, 1)), np.ones((1, 1, 1))
    strip = MARGIN * np.pi / abs(slope)
    if 2 * window <= LONGEST_TRAPEZOID * trapezoidal_step(strip, TOLERANCE):
        z2, dz2 = gaussian_trapezoid(strip, -window, window, TOLERANCE)
        return z2[None, None], dz2[None, None]

    def fits(center: FloatArray, half: FloatArray) -> NDArray[np.bool_]:
        return (ELLIPSE * half <= MARGIN * np.hypot(center, np.pi)) & (
            ELLIPSE * half * abs(other_slope) <= MARGIN * np.pi * abs(slope)
        )

    # a logit without sign change in the window needs no panels around it
    swing, longest = window * abs(slope), LONGEST_PANEL * abs(slope)
    logit = np.clip(logit, -swing, swing)
    panels = graded_panels(logit.min() - swing, logit.max() + swing, fits, longest)
    y, dy = (part.ravel() for part in panel_rule(*panels, NODES))
    z2 = (y - logit[..., None]) / slope
    return z2, dy / abs(slope) * normal_density(z2)


def _heavy_nodes(shape: tuple[int, int, int], sizes: Callable[[Nodes], FloatArray]) -> Nodes:
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
    heavy = (size > 0) & (size >= size.max() * BULK)
    heavy[:, 1:] |= heavy[:, :-1]
    heavy[:, :-1] |= heavy[:, 1:]
    panels, columns = np.nonzero(np.repeat(heavy, STRIDE, axis=1)[:, :n_columns])
    return panels[:, None], np.arange(n_nodes), columns[:, None]
