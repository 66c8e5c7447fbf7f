"""Derivatives of the LDA risk that chapter 4 derives, against integrals in high precision on the line."""

import mpmath
import numpy as np
import pytest

from mixattn import (
    AttentionParams,
    EffectiveParams,
    LDATask,
    effective_params,
    risk_gradient,
    risk_hessian,
)
from mixattn.classification import landscape as ls

TASK = LDATask([1.5], [-0.2], [[0.8]], 0.7)
SPACE = LDATask([1.0, 0.0, 0.5], [0.2, -0.4, 0.1], np.diag([1.0, 2.0, 0.5]), 0.35)
THETA = AttentionParams([[0.9]], [0.4], [-0.7], 1.1)
DIRECTION = AttentionParams([[0.3]], [-0.8], [0.5], 0.6)


def sigmoid(t):
    return 1 / (1 + mpmath.exp(-t))


def density(x, mean):
    return mpmath.npdf(x, mean, mpmath.sqrt(mpmath.mpf(0.8)))


def expectation(given_label):
    """E given_label(X, Y) on TASK, class by class."""
    knots = [-9, -3, 1, 4, 11]
    positive = mpmath.quad(lambda x: density(x, 1.5) * given_label(x, 1), knots)
    negative = mpmath.quad(lambda x: density(x, -0.2) * given_label(x, -1), knots)
    return float(mpmath.mpf(0.7) * positive + (1 - mpmath.mpf(0.7)) * negative)


def posterior(x):
    """Bayes' rule, from the densities."""
    positive = mpmath.mpf(0.7) * density(x, 1.5)
    return positive / (positive + (1 - mpmath.mpf(0.7)) * density(x, -0.2))


def line_score(x, zeta, s0):
    return zeta.w[0] * x + zeta.b + zeta.r * sigmoid(s0 + zeta.s[0] * x)


@pytest.mark.claim("LB.7", "LB.9")
def test_the_mean_slope_of_the_loss_is_a_difference_of_probabilities():
    zeta, s0 = effective_params(THETA, TASK), TASK.prior_logit
    by_labels = [
        expectation(lambda x, y, k=k: -y * sigmoid(-y * line_score(x, zeta, s0)) * x**k)
        for k in (0, 1)
    ]
    by_posterior = [
        expectation(lambda x, _, k=k: (sigmoid(line_score(x, zeta, s0)) - posterior(x)) * x**k)
        for k in (0, 1)
    ]
    gradient = risk_gradient(zeta, TASK)
    np.testing.assert_allclose(by_labels, by_posterior, rtol=1e-12)
    np.testing.assert_allclose([gradient.b, gradient.w[0]], by_posterior, rtol=1e-10)


@pytest.mark.claim("LB.8", "LB.11")
def test_the_hessian_form_needs_the_whole_cross_term():
    zeta, s0, h = effective_params(THETA, TASK), TASK.prior_logit, DIRECTION
    gap, variance = 1.7, 0.8
    dw = h.U11[0, 0] * variance * THETA.v21[0] + THETA.U11[0, 0] * variance * h.v21[0]
    db, dr = h.v21[0] * -0.2 - h.v22, h.v21[0] * gap + 2 * h.v22
    ds = 2 * h.u12[0] + h.U11[0, 0] * gap

    def form(cross):
        def integrand(x, y):
            f, gate = line_score(x, zeta, s0), sigmoid(s0 + zeta.s[0] * x)
            slope = gate * (1 - gate)
            first = dw * x + db + dr * gate + zeta.r * slope * ds * x
            second = 2 * h.v21[0] * variance * h.U11[0, 0] * x + cross * dr * slope * ds * x
            second += zeta.r * slope * (1 - 2 * gate) * (ds * x) ** 2
            return sigmoid(f) * sigmoid(-f) * first**2 - y * sigmoid(-y * f) * second

        return expectation(integrand)

    v = h.to_vector()
    curvature = v @ risk_hessian(THETA, TASK) @ v
    assert form(2) == pytest.approx(curvature, rel=1e-9)
    assert abs(form(1) - curvature) > 1e-2 * abs(curvature)


@pytest.mark.claim("PB.12")
@pytest.mark.parametrize("s", [1.3, 0.0])
def test_the_hessian_on_the_first_family_is_a_weighted_second_moment(s):
    def entry(i, j):
        def integrand(x, _):
            eta = posterior(x)
            g = [x, 1, sigmoid(TASK.prior_logit + s * x)]
            return eta * (1 - eta) * g[i] * g[j]

        return expectation(integrand)

    hessian = risk_hessian(ls.E1_point(TASK, [s]), TASK)
    np.testing.assert_allclose(hessian[:, 3], 0, atol=1e-15)
    for i, j in [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2)]:
        assert hessian[i, j] == pytest.approx(entry(i, j), abs=1e-11)


@pytest.mark.claim("LB.13")
@pytest.mark.parametrize("task", [TASK, SPACE])
@pytest.mark.parametrize("size", [1.5, 0.0])
def test_the_kernel_on_the_first_family(task, size):
    d = task.dim
    point = ls.E1_point(task, size * np.linspace(1.0, -0.5, d))
    hessian = risk_hessian(point, task)
    flat = [EffectiveParams(np.zeros(d), 0.0, 0.0, e).to_vector() for e in np.eye(d)]
    if size == 0:
        flat.append(EffectiveParams(np.zeros(d), -task.prior_pos, 1.0, np.zeros(d)).to_vector())
    assert np.abs(hessian @ np.array(flat).T).max() < 1e-14
    eigenvalues = np.linalg.eigvalsh(hessian)
    assert np.count_nonzero(eigenvalues > 1e-7 * eigenvalues[-1]) == len(hessian) - len(flat)
