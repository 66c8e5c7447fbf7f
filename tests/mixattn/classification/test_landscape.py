"""Minimizers, saddles and curvature of the LDA risk, against closed forms and finite differences."""

import numpy as np
import pytest
import scipy.optimize
from scipy.special import expit

from mixattn import (
    AttentionParams,
    EffectiveParams,
    LDATask,
    effective_jacobian,
    effective_params,
    excess_risk,
    logistic_risk,
    risk_gradient,
    risk_hessian,
    score,
)
from mixattn.classification import flow, krylov
from mixattn.classification import landscape as ls
from mixattn.classification.params import pull_back

SKEWED = np.array([[1.0, 0.3], [0.3, 0.7]])
C1, FIGURE1_THETA1, FIGURE1_THETA2 = ls.figure1_starts()
UNBALANCED = LDATask([1.0, 0.5], [-0.5, 1.0], SKEWED, 0.3)
BALANCED = LDATask([1.0, 0.5], [-0.5, 1.0], SKEWED, 0.5)
OPPOSITE = LDATask([1.0, 0.5], [-1.0, -0.5], SKEWED, 0.3)
SYMMETRIC = LDATask([1.0, 0.5], [-1.0, -0.5], SKEWED, 0.5)
SYMMETRIC_LINE = LDATask([0.8], [-0.8], [[1.3]], 0.5)
SYMMETRIC_SPACE = LDATask([1.0, 0.0, 0.5], [-1.0, 0.0, -0.5], np.diag([1.0, 2.0, 0.5]), 0.5)
# equal Mahalanobis norms and equal priors: b* = 0 although the means are not opposite
ZERO_BIAS = LDATask([1.0, 0.0], [0.0, 1.0], np.eye(2), 0.5)
LINE = LDATask([1.5], [-0.2], [[0.8]], 0.7)
SPACE = LDATask([1.0, 0.0, 0.5], [0.2, -0.4, 0.1], np.diag([1.0, 2.0, 0.5]), 0.35)
REGULAR = [C1, UNBALANCED, BALANCED, ZERO_BIAS, LINE, SPACE]
POINTS = np.random.default_rng(0).standard_normal((40, 3)) * 2


def random_effective(rng, d):
    return EffectiveParams.from_vector(rng.standard_normal(2 * d + 2), d)


def random_attention(rng, d):
    return AttentionParams.from_vector(rng.standard_normal(d * d + 2 * d + 1), d)


def distance_between_spans(a, b):
    """Sine of the largest angle between two subspaces given by orthonormal bases."""
    assert a.shape == b.shape
    return np.linalg.norm(a - b @ (b.T @ a), 2)


def assert_bayes(params, task):
    w, b = task.bayes_score
    x = POINTS[:, : task.dim]
    np.testing.assert_allclose(score(params, task, x), x @ w + b, rtol=1e-9, atol=1e-9)


# --- the effective landscape ---------------------------------------------------------------------


@pytest.mark.claim("T3.1")
@pytest.mark.parametrize("task", REGULAR)
def test_both_families_are_critical_and_optimal(task):
    s = np.linspace(0.5, -1.0, task.dim)
    for point in (ls.E1_point(task, s), ls.E2_point(task, -4.0), ls.E2_point(task, 3.0)):
        assert_bayes(point, task)
        assert np.linalg.norm(risk_gradient(point, task).to_vector()) < 1e-13
        assert excess_risk(point, task) < 1e-28


@pytest.mark.claim("T3.1")
@pytest.mark.parametrize("task", [C1, BALANCED, OPPOSITE])
def test_no_other_effective_point_is_critical(task):
    # for fixed s the risk is convex in (w, b, r) and (w*, b*, 0) is optimal, so the slope towards
    # it is at least the excess risk: a gradient can vanish only where the excess risk does
    rng = np.random.default_rng(1)
    w, b = task.bayes_score
    for _ in range(10):
        zeta = random_effective(rng, task.dim)
        gradient = risk_gradient(zeta, task)
        slope = gradient.w @ (zeta.w - w) + gradient.b * (zeta.b - b) + gradient.r * zeta.r
        assert slope > excess_risk(zeta, task) > 1e-4


@pytest.mark.claim("T3.1.nonconvex")
def test_a_chord_between_two_minimizers_is_not_optimal():
    ends = ls.E1_point(UNBALANCED, [1.0, -2.0]), ls.E2_point(UNBALANCED, 6.0)
    middle = EffectiveParams.from_vector(0.5 * (ends[0].to_vector() + ends[1].to_vector()), 2)
    assert all(excess_risk(end, UNBALANCED) < 1e-28 for end in ends)
    assert excess_risk(middle, UNBALANCED) > 1e-3


@pytest.mark.claim("E1E2")
@pytest.mark.parametrize("task", [UNBALANCED, SPACE])
def test_families_meet_at_one_point_where_the_kernel_holds_both(task):
    d = task.dim
    meeting = ls.E1_point(task, np.zeros(d))
    assert ls.distance_to_E1(meeting, task) <= 1e-14
    assert ls.distance_to_E2(meeting, task) <= 1e-14
    both = np.hstack([ls.tangent_E1(task), ls.tangent_E2(task)])
    assert distance_between_spans(ls.hessian_kernel(meeting, task), both) < 1e-9
    # elsewhere a point of one family is not in the other
    assert ls.distance_to_E2(ls.E1_point(task, np.ones(d)), task) == pytest.approx(d**0.5)
    assert ls.distance_to_E1(ls.E2_point(task, 2.0), task) == pytest.approx(
        2 * np.hypot(1, task.prior_pos)
    )


@pytest.mark.parametrize("task", [UNBALANCED, LINE, SPACE])
def test_distances_are_the_least_over_the_families(task):
    zeta = random_effective(np.random.default_rng(2), task.dim)
    v = zeta.to_vector()
    to_e1 = scipy.optimize.minimize(
        lambda s: np.sum((ls.E1_point(task, s).to_vector() - v) ** 2), np.zeros(task.dim)
    )
    to_e2 = scipy.optimize.minimize_scalar(
        lambda r: np.sum((ls.E2_point(task, r).to_vector() - v) ** 2)
    )
    assert ls.distance_to_E1(zeta, task) == pytest.approx(np.sqrt(to_e1.fun), rel=1e-8)
    assert ls.distance_to_E2(zeta, task) == pytest.approx(np.sqrt(to_e2.fun), rel=1e-8)


# --- points of the families in attention coordinates ------------------------------------------


@pytest.mark.parametrize("task", [C1, BALANCED, LINE, SPACE])
def test_lift_is_a_section_of_phi(task):
    target = random_effective(np.random.default_rng(3), task.dim)
    theta = ls.lift(target, task)
    np.testing.assert_allclose(
        effective_params(theta, task).to_vector(), target.to_vector(), atol=1e-12
    )


def test_lift_takes_a_given_v21_and_refuses_a_wrong_one():
    target = random_effective(np.random.default_rng(4), 2)
    M = UNBALANCED.mean_pos + UNBALANCED.mean_neg
    v21 = M * (target.r + 2 * target.b) / (M @ M) + 3.0 * np.array([-M[1], M[0]])
    theta = ls.lift(target, UNBALANCED, v21)
    np.testing.assert_array_equal(theta.v21, v21)
    np.testing.assert_allclose(
        effective_params(theta, UNBALANCED).to_vector(), target.to_vector(), atol=1e-12
    )
    with pytest.raises(ValueError, match=r"v21: expected v21\^T"):
        ls.lift(target, UNBALANCED, v21 + M)
    with pytest.raises(ValueError, match="v21: expected a nonzero vector"):
        ls.theta1_point(ZERO_BIAS, [1.0, 1.0], v21=[0.0, 0.0])
    with pytest.raises(ValueError, match="dimension 2, got 1"):
        ls.lift(ls.E1_point(LINE, [1.0]), UNBALANCED)


@pytest.mark.claim("LB.3")
@pytest.mark.parametrize(
    "task", [*REGULAR, OPPOSITE, SYMMETRIC, LDATask([1.0], [-1.0], [[2.0]], 0.5)]
)
def test_one_head_realizes_the_bayes_score_in_every_case(task):
    assert_bayes(ls.bayes_attention(task), task)


@pytest.mark.claim("S3.1.availability")
@pytest.mark.parametrize("task", [*REGULAR, SYMMETRIC])
def test_both_mechanisms_are_available(task):
    s = np.linspace(1.0, 2.0, task.dim)
    first, second = ls.theta1_point(task, s), ls.theta2_point(task, 2.5)
    for theta in (first, second):
        assert_bayes(theta, task)
    np.testing.assert_allclose(effective_params(first, task).s, s, atol=1e-12)
    assert effective_params(second, task).r == pytest.approx(2.5)


@pytest.mark.claim("S3.1.availability")
def test_theta1_is_empty_for_opposite_means_and_unequal_priors():
    with pytest.raises(ValueError, match=r"opposite means .* force r = -2b"):
        ls.theta1_point(OPPOSITE, [1.0, 0.0])
    rng = np.random.default_rng(5)
    for _ in range(5):
        zeta = effective_params(random_attention(rng, 2), OPPOSITE)
        assert zeta.r == pytest.approx(-2 * zeta.b)
    # then r = 0 means b = 0, while b* = s0 is not zero; Theta2 has the one amplitude left
    assert OPPOSITE.bayes_score[1] == pytest.approx(np.log(0.3 / 0.7))
    only_r = 2 * OPPOSITE.bayes_score[1] / (2 * 0.3 - 1)
    assert_bayes(ls.theta2_point(OPPOSITE, only_r), OPPOSITE)
    with pytest.raises(ValueError, match="no point of Theta2"):
        ls.theta2_point(OPPOSITE, only_r + 0.1)


@pytest.mark.claim("S3.1.availability")
def test_theta1_is_empty_on_the_line_without_bias():
    # b* = 0 by the choice of the prior; then v21 (m_1 + m_-1) = 2b* = 0 leaves only v21 = 0, w = 0
    task = LDATask([1.5], [-0.5], [[1.0]], float(expit(0.5 * (1.5**2 - 0.5**2))))
    assert abs(task.bayes_score[1]) < 1e-15
    with pytest.raises(ValueError, match="dimension 1"):
        ls.theta1_point(task, [1.0])
    assert_bayes(ls.theta2_point(task, 1.0), task)


@pytest.mark.claim("F1")
def test_figure1_starts_lie_on_their_families():
    assert ls.distance_to_E1(FIGURE1_THETA1, C1) <= 1e-14
    assert ls.distance_to_E2(FIGURE1_THETA1, C1) > 1.0
    assert ls.distance_to_E2(FIGURE1_THETA2, C1) <= 1e-14
    assert ls.distance_to_E1(FIGURE1_THETA2, C1) > 1.0
    b = np.log(0.6 / 0.4)
    assert FIGURE1_THETA1.v22 == pytest.approx(-b)
    assert FIGURE1_THETA2.v22 == pytest.approx((-1 - b + 0.6 * 2) / (1 - 1.2))


# --- escape to infinity ------------------------------------------------------------------------


@pytest.mark.claim("P3.4", "P3.4.rate")
@pytest.mark.parametrize(("prior", "exponent"), [(0.3, -2), (0.6, -2), (0.5, -4)])
def test_minimizing_sequence_escapes_at_the_predicted_rate(prior, exponent):
    task = LDATask([1.0, 0.5], [-0.5, 1.0], SKEWED, prior)
    c = np.array([1.0, -0.5])
    sizes = np.array([100.0, 200.0, 400.0])
    sequence = [ls.minimizing_sequence(task, c, R) for R in sizes]
    excess = np.array([excess_risk(zeta, task) for zeta in sequence])
    slopes = np.diff(np.log(excess)) / np.log(2)
    # corrections are of relative order 1/R (and 1/R^2 in the balanced case)
    np.testing.assert_allclose(slopes, exponent, rtol=0.02)
    assert abs(slopes[1] - exponent) < 0.6 * abs(slopes[0] - exponent)
    # the leading coefficient is half the weighted square of the first Taylor term that is left
    x, _ = task.sample(400_000, np.random.default_rng(6))
    w, b = task.bayes_score
    eta = expit(x @ w + b)
    slope = prior * (1 - prior)
    taylor = (
        slope * (1 - 2 * prior) / 2 * (x @ c) ** 2 / sizes[2]
        if prior != 0.5
        else -(1 / 8) / 6 * (x @ c) ** 3 / sizes[2] ** 2
    )
    terms = 0.5 * eta * (1 - eta) * taylor**2
    error = 5 * terms.std() / np.sqrt(len(terms)) + 0.02 * terms.mean()
    assert abs(excess[2] - terms.mean()) < error
    # the parameters diverge, the predictors converge in L1
    assert np.linalg.norm(sequence[2].to_vector()) > sizes[2]
    gaps = [np.abs(score(zeta, task, x) - (x @ w + b)).mean() for zeta in sequence]
    assert gaps[2] < 0.55 * gaps[1] < 0.55**2 * gaps[0] < 0.05


# --- critical points that are not optimal ------------------------------------------------------


def finite_difference_gradient(theta, task, step=1e-5):
    v, d = theta.to_vector(), task.dim
    values = [
        logistic_risk(AttentionParams.from_vector(v + sign * step * e, d), task)
        for e in np.eye(len(v))
        for sign in (1, -1)
    ]
    return np.diff(np.reshape(values, (-1, 2)), axis=1).ravel() / (-2 * step)


@pytest.mark.claim("T3.3", "LB.16")
@pytest.mark.parametrize(
    ("start", "v22", "s", "least"),
    [
        ((3.0, [0.7, -0.8]), 3.0722, [0.739, -0.804], -0.0064),
        ((-2.0, [-1.9, 1.2]), -1.953, [-1.88, 1.20], None),
    ],
)
def test_strict_saddles_of_setting_c1(start, v22, s, least):
    saddle = ls.gate_critical_point(C1, *start)
    assert saddle.v22 == pytest.approx(v22, abs=6e-4)
    np.testing.assert_allclose(effective_params(saddle, C1).s, s, atol=6e-3)
    np.testing.assert_array_equal(saddle.v21, 0)
    assert np.linalg.norm(risk_gradient(saddle, C1).to_vector()) < 1e-13
    assert np.abs(finite_difference_gradient(saddle, C1)).max() < 1e-9
    assert excess_risk(saddle, C1) > 1e-3
    assert np.linalg.norm(risk_gradient(effective_params(saddle, C1), C1).w) > 1e-3
    spectrum = ls.hessian_spectrum(saddle, C1)
    assert spectrum[0] < -1e-3
    assert spectrum[-1] > 1e-3
    if least is not None:
        assert spectrum[0] == pytest.approx(least, abs=5e-5)


@pytest.mark.claim("T3.3")
@pytest.mark.parametrize("v21_direction", [None, [1.0, 0.0], [-0.3, 2.0]])
def test_negative_curvature_is_felt_by_the_risk(v21_direction):
    saddle = ls.gate_critical_point(C1, 3.0, [0.7, -0.8])
    h = ls.negative_curvature_direction(saddle, C1, v21_direction).to_vector()
    assert np.linalg.norm(h) == pytest.approx(1.0)
    curvature = h @ risk_hessian(saddle, C1) @ h
    assert curvature < -1e-4
    step, v = 1e-2, saddle.to_vector()
    low, mid, high = (
        logistic_risk(AttentionParams.from_vector(v + t * h, 2), C1) for t in (-step, 0, step)
    )
    assert (low - 2 * mid + high) / step**2 == pytest.approx(curvature, rel=1e-2)
    # the form of Lemma B.22: v22 does not move, and the gate moves only at second order
    direction = AttentionParams.from_vector(h, 2)
    assert direction.v22 == 0
    ds = 2 * direction.u12 + direction.U11 @ C1.mean_difference
    np.testing.assert_allclose(ds, 0, atol=1e-15)


@pytest.mark.claim("T3.3")
def test_saddles_without_amplitude_form_continua():
    # v22 = 0: the score is 0, the risk log 2, and one condition on s is left
    balanced = ls.gate_critical_point(BALANCED, 0.0, [0.0, 0.0])
    assert logistic_risk(balanced, BALANCED) == pytest.approx(np.log(2), abs=1e-14)
    assert np.linalg.norm(risk_gradient(balanced, BALANCED).to_vector()) < 1e-13
    assert ls.hessian_spectrum(balanced, BALANCED)[0] < -1e-3
    on_curve = [ls.gate_critical_point(C1, 0.0, s) for s in ([0.8, -0.5], [0.5, 0.5])]
    for theta in on_curve:
        assert logistic_risk(theta, C1) == pytest.approx(np.log(2), abs=1e-10)
        assert ls.hessian_spectrum(theta, C1)[0] < -1e-3
    s, other = (effective_params(theta, C1).s for theta in on_curve)
    assert np.linalg.norm(s - other) > 0.1


def test_saddle_tools_refuse_what_is_not_a_saddle():
    with pytest.raises(ValueError, match="expected v21 = 0"):
        ls.negative_curvature_direction(FIGURE1_THETA2, C1)
    with pytest.raises(ValueError, match="reached no critical point"):
        ls.gate_critical_point(BALANCED, 1.0, [1.0, -1.0])
    # the gradient vanishes at infinity too, which is no critical point
    with pytest.raises(ValueError, match="escaped to infinity"):
        ls.gate_critical_point(C1, 2.0, [-0.5, -2.5])


@pytest.mark.claim("L3.2")
@pytest.mark.parametrize("task", [*REGULAR, OPPOSITE, SYMMETRIC])
def test_phi_is_regular_iff_means_are_not_opposite_and_v21_is_not_zero(task):
    d = task.dim
    theta = random_attention(np.random.default_rng(7), d)
    singular = AttentionParams(theta.U11, theta.u12, np.zeros(d), theta.v22)
    full = 2 * d + 2
    rank = np.linalg.matrix_rank(effective_jacobian(theta, task))
    opposite = task.has_opposite_means
    assert rank == (full - 1 if opposite else full)
    assert np.linalg.matrix_rank(effective_jacobian(singular, task)) < full


# --- curvature at the minimizers ---------------------------------------------------------------


@pytest.mark.claim("LB.26")
@pytest.mark.parametrize("task", [C1, UNBALANCED, BALANCED, SPACE])
def test_theta1_is_morse_bott(task):
    d = task.dim
    theta = ls.theta1_point(task, np.linspace(1.0, -1.5, d))
    tangent = ls.tangent_theta1(theta, task)
    assert tangent.shape == (d * d + 2 * d + 1, d * d + d - 1)
    assert distance_between_spans(ls.hessian_kernel(theta, task), tangent) < 1e-9
    assert ls.hessian_spectrum(theta, task)[0] > -1e-12
    # the tangent space is tangent to the constructed family
    step = 1e-6
    moved = ls.theta1_point(task, np.linspace(1.0, -1.5, d) + step)
    change = (moved.to_vector() - theta.to_vector()) / step
    assert np.linalg.norm(change - tangent @ (tangent.T @ change)) < 1e-8


@pytest.mark.claim("PB.30")
@pytest.mark.parametrize("task", [C1, UNBALANCED, BALANCED, LINE, SPACE, OPPOSITE])
def test_effective_kernel_on_e2_has_d_transverse_directions(task):
    d, r = task.dim, 3.0
    point = ls.E2_point(task, r)
    kernel = ls.hessian_kernel(point, task)
    assert kernel.shape[1] == d + 1
    slope = task.prior_pos * (1 - task.prior_pos)
    flat = np.vstack([-r * slope * np.eye(d), np.zeros((2, d)), np.eye(d)])
    stated, _ = np.linalg.qr(np.hstack([ls.tangent_E2(task), flat]))
    assert distance_between_spans(kernel, stated) < 1e-9
    # at r = 0 the flat directions are E1: the kernel is no larger than the two tangents
    assert ls.hessian_kernel(ls.E2_point(task, 0.0), task).shape[1] == d + 1


@pytest.mark.claim("CB.31")
@pytest.mark.parametrize("task", [C1, UNBALANCED, BALANCED, SPACE])
def test_theta2_is_not_morse_bott(task):
    d = task.dim
    theta = ls.theta2_point(task, 3.0)
    tangent = ls.tangent_theta2(theta, task)
    kernel = ls.hessian_kernel(theta, task)
    assert tangent.shape[1] == d * d
    assert kernel.shape[1] - tangent.shape[1] == d
    assert np.linalg.norm(tangent - kernel @ (kernel.T @ tangent), 2) < 1e-9
    step = 1e-4
    ahead, behind = (ls.theta2_point(task, 3.0 + h).to_vector() for h in (step, -step))
    change = (ahead - behind) / (2 * step)
    assert np.linalg.norm(change - tangent @ (tangent.T @ change)) < 1e-8


# beyond the paper: the chart (w, v22 + m^T v21, s) is regular where Phi is not
@pytest.mark.parametrize("task", [SYMMETRIC, SYMMETRIC_LINE, SYMMETRIC_SPACE])
def test_families_of_the_symmetric_balanced_task(task):
    d = task.dim
    theta = ls.theta1_point(task, np.linspace(1.0, -1.5, d))
    tangent = ls.tangent_theta1(theta, task)
    assert tangent.shape[1] == d * d + d
    assert distance_between_spans(ls.hessian_kernel(theta, task), tangent) < 1e-9
    theta = ls.theta2_point(task, 3.0)
    tangent, kernel = ls.tangent_theta2(theta, task), ls.hessian_kernel(theta, task)
    assert tangent.shape[1] == d * d + 1
    assert kernel.shape[1] == d * d + d + 1
    assert np.linalg.norm(tangent - kernel @ (kernel.T @ tangent), 2) < 1e-9
    moved = [ls.theta2_point(task, 3.0 + h).to_vector() for h in (1e-4, -1e-4)]
    change = (moved[0] - moved[1]) / 2e-4
    assert np.linalg.norm(change - tangent @ (tangent.T @ change)) < 1e-8
    # critical heads that are not optimal have a singular U11, zero among them
    saddle = ls.gate_critical_point(task, 0.0, np.zeros(d))
    assert not saddle.U11.any()
    assert np.abs(finite_difference_gradient(saddle, task)).max() < 1e-9
    assert ls.hessian_spectrum(saddle, task)[0] < -1e-3


def test_tangent_spaces_with_opposite_means_and_unequal_priors():
    with pytest.raises(ValueError, match="Theta1 is empty"):
        ls.tangent_theta1(ls.bayes_attention(OPPOSITE), OPPOSITE)
    theta = ls.bayes_attention(OPPOSITE)
    at_family = ls.theta2_point(OPPOSITE, 2 * OPPOSITE.bayes_score[1] / (2 * 0.3 - 1))
    tangent = ls.tangent_theta2(at_family, OPPOSITE)
    assert tangent.shape == (9, 4)
    kernel = ls.hessian_kernel(at_family, OPPOSITE)
    assert np.linalg.norm(tangent - kernel @ (kernel.T @ tangent), 2) < 1e-9
    assert excess_risk(theta, OPPOSITE) < 1e-25


def test_pairs_without_reduced_gradient_belong_to_no_head():
    # E[YX] = 0: at v22 = 0 the slope in v21 is the same for every U11, and not zero
    task = LDATask([2.0, 0.0], [1.0, 0.0], np.eye(2), 1 / 3)
    with pytest.raises(ValueError, match=r"critical pair .*E\[YX\]"):
        ls.gate_critical_point(task, 0.0, [2.149592, 0.0])
    # elsewhere the same task has a critical head, with a small reduced gradient
    head = ls.gate_critical_point(task, 6.501959, [0.316473, 0.0])
    assert np.linalg.norm(risk_gradient(head, task).to_vector()) < 1e-12
    assert np.abs(finite_difference_gradient(head, task)).max() < 1e-8
    assert ls.hessian_spectrum(head, task)[0] == pytest.approx(-8.4e-5, abs=1e-6)


@pytest.mark.parametrize("seed", range(12))
def test_no_head_is_returned_where_the_reduced_gradient_vanishes(seed):
    rng = np.random.default_rng(seed)
    u, prior = rng.normal(size=2), float(rng.uniform(0.1, 0.9))
    task = LDATask((1 - prior) * u, prior * u, np.eye(2), prior)
    with pytest.raises(ValueError, match=r"E\[YX\]|escaped to infinity"):
        ls.gate_critical_point(task, 0.0, rng.normal(size=2))


def test_negative_curvature_needs_a_reduced_gradient():
    task = LDATask([2.0, 0.0], [1.0, 0.0], np.eye(2), 1 / 3)
    coin_flip = AttentionParams(np.zeros((2, 2)), [0.5 * 2.149592, 0.0], [0.0, 0.0], 0.0)
    with pytest.raises(ValueError, match="expected a nonzero reduced gradient"):
        ls.negative_curvature_direction(coin_flip, task)


def test_a_reduced_gradient_that_vanishes_beside_v22_zero_is_refused():
    task = LDATask([1.5], [1.470775], [[1.0]], 0.45)
    with pytest.raises(ValueError, match="belongs to no critical head"):
        ls.gate_critical_point(task, -0.175181, [6.58863])


class TestArguments:
    TASK = LDATask([1.0, 0.0], [0.0, 1.0], np.eye(2), 0.6)
    THETA = AttentionParams(np.eye(2), [0.0, 1.0], [1.0, 1.0], 1.0)
    ZETA = EffectiveParams([0.1, 0.2], 0.3, 0.4, [0.5, 0.6])
    LINE = LDATask([1.0], [0.0], [[1.0]], 0.5)

    @pytest.mark.parametrize(
        "task", [None, "x", [1.0], ZETA], ids=["None", "str", "list", "params"]
    )
    def test_a_wrong_task_is_named(self, task):
        theta, zeta, zero = self.THETA, self.ZETA, np.zeros(2)
        calls = [
            lambda: ls.E1_point(task, zero),
            lambda: ls.E2_point(task, 1.0),
            lambda: ls.distance_to_E1(zeta, task),
            lambda: ls.distance_to_E2(theta, task),
            lambda: ls.minimizing_sequence(task, zero, 1.0),
            lambda: ls.lift(zeta, task),
            lambda: ls.theta1_point(task, zero),
            lambda: ls.theta2_point(task, 1.0),
            lambda: ls.bayes_attention(task),
            lambda: ls.gate_critical_point(task, 1.0, zero),
            lambda: ls.negative_curvature_direction(theta, task),
            lambda: ls.tangent_E1(task),
            lambda: ls.tangent_E2(task),
            lambda: ls.tangent_theta1(theta, task),
            lambda: ls.tangent_theta2(theta, task),
            lambda: krylov.task_krylov_basis(task),
            lambda: krylov.project_to_invariant_subspace(theta, task),
            lambda: krylov.distance_to_invariant_subspace(theta, task),
            lambda: krylov.conserved_quantity(theta, task),
            lambda: krylov.coercivity_constant(task),
            lambda: krylov.linear_risk_hessian(zero, task),
            lambda: krylov.reduced_metric(theta, task),
            lambda: krylov.predicted_krylov_rate(theta, task),
            lambda: flow.gradient_flow(zeta, task, 1.0),
            lambda: flow.gradient_descent(zeta, task, step_size=0.1, n_steps=1),
        ]
        for call in calls:
            with pytest.raises(ValueError, match=r"^task: expected an LDATask, got "):
                call()

    @pytest.mark.parametrize(
        ("call", "message"),
        [
            (lambda t: ls.lift(None, t.TASK), "^target: expected EffectiveParams"),
            (lambda t: ls.lift(t.ZETA, t.LINE), "^target: expected the task's dimension 1"),
            (
                lambda t: ls.negative_curvature_direction(t.ZETA, t.TASK),
                "^saddle: expected AttentionParams",
            ),
            (lambda t: ls.theta2_point(t.TASK, None), "^r: expected real numbers"),
            (lambda t: effective_params(t.ZETA, t.TASK), "^theta: expected AttentionParams"),
            (lambda t: effective_jacobian(t.ZETA, t.TASK), "^theta: expected AttentionParams"),
            (lambda t: pull_back(t.THETA, t.THETA, t.TASK), "^gradient: expected EffectiveParams"),
            (lambda t: pull_back(t.ZETA, t.ZETA, t.TASK), "^theta: expected AttentionParams"),
            (lambda t: pull_back(t.ZETA, t.THETA, t.LINE), "^gradient: .* dimension 1, got 2"),
            (lambda t: t.THETA.head(t.LINE), "^task: expected a task of dimension 2, got 1"),
            (lambda t: t.THETA.head(None), "^task: expected an LDATask"),
            (lambda t: ls.hessian_kernel(t.ZETA, t.TASK, -1.0), "^rtol: "),
            (
                lambda t: ls.negative_curvature_direction(
                    ls.gate_critical_point(t.TASK, 3.0, [0.7, -0.8]), t.TASK, [0.0, 0.0]
                ),
                "^v21_direction: expected a nonzero vector",
            ),
            (lambda t: ls.predicted_rate(t.ZETA, t.TASK, rtol=2.5), "^rtol: .* < 1"),
            (
                lambda t: krylov.conserved_quantity(t.THETA, t.LINE),
                "^theta: expected the task's dimension 1, got 2",
            ),
            (lambda t: krylov.reduced_metric(None, t.TASK), "^theta: expected AttentionParams"),
        ],
    )
    def test_other_arguments_are_named(self, call, message):
        with pytest.raises(ValueError, match=message):
            call(self)
