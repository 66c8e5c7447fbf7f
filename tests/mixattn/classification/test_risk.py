"""The risk of one attention head on LDA, its excess and derivatives, against independent routes."""

import copy
import itertools
import pickle
from dataclasses import dataclass

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from scipy.special import expit, log_expit

from mixattn import (
    AttentionParams,
    EffectiveParams,
    LDATask,
    effective_jacobian,
    effective_params,
    excess_risk,
    gradient_descent,
    gradient_flow,
    logistic_risk,
    population_attention,
    risk_and_gradient,
    risk_gradient,
    risk_hessian,
    score,
)
from mixattn.integrals.logistic import divergence, gate_remainder, jensen_gap


def setting_c1(prior=0.6):
    return LDATask([1.0, 0.0], [0.0, 1.0], np.eye(2), prior)


def random_task(dim, rng, prior=0.3):
    A = rng.normal(size=(dim, dim))
    return LDATask(rng.normal(size=dim), rng.normal(size=dim), A @ A.T + np.eye(dim), prior)


def random_params(kind, dim, rng, scale=1.0):
    size = 2 * dim + 2 if kind is EffectiveParams else dim * dim + 2 * dim + 1
    return kind.from_vector(scale * rng.normal(size=size), dim)


def direction(angle):
    return np.array([np.cos(angle), np.sin(angle)])


def central_differences(function, vector, step=1e-5):
    return np.array(
        [
            (function(vector + step * unit) - function(vector - step * unit)) / (2 * step)
            for unit in np.eye(len(vector))
        ]
    )


@dataclass
class Brute:
    """Risk, gradient and Hessian, each with the expectation of its integrand's modulus, and the excess."""

    risk: float
    gradient: np.ndarray
    gradient_size: np.ndarray
    hessian: np.ndarray
    hessian_size: np.ndarray
    excess: float


def brute_force(params, task, reach=None):
    """Plain tensor trapezoidal rule with everything evaluated pointwise, for d = 1 or 2.

    The grid's axes follow the gate; the steps resolve the steepest logit, and the window holds the
    mass of every integrand (it moves by at most the steepest affine slope).
    """
    d = task.dim
    L = np.linalg.cholesky(task.covariance)
    w_bayes = np.linalg.solve(task.covariance, task.mean_pos - task.mean_neg)
    b_bayes = np.log(task.prior_pos / (1 - task.prior_pos))
    b_bayes -= 0.5 * w_bayes @ (task.mean_pos + task.mean_neg)
    w, s = L.T @ params.w, L.T @ params.s
    lead = next(v for v in (s, w, np.eye(d)[0]) if v.any())
    first = lead / np.linalg.norm(lead)
    axes = np.array([first]) if d == 1 else np.array([first, [-first[1], first[0]]])
    slopes = np.abs(axes @ np.array([w, L.T @ w_bayes, s]).T).max(axis=1)
    gate = np.abs(axes @ s) * (1 + abs(params.r) / 4)
    grids = []
    for slope, steep in zip(slopes, gate, strict=True):
        strip = 0.9 * np.pi / max(slope + steep, 0.4)
        step = 2 * np.pi * strip / (33 + 0.5 * strip**2)
        half_window = reach or 8.5 + slope
        grids.append((step, np.arange(-half_window, half_window, step)))
    weight = np.prod([step / np.sqrt(2 * np.pi) for step, _ in grids])
    n = 2 * d + 2
    total = Brute(0.0, np.zeros(n), np.zeros(n), np.zeros((n, n)), np.zeros((n, n)), 0.0)
    rows = max(1, 200_000 // (len(grids[1][1]) if d == 2 else 1))
    for label, prior, mean in (
        (1, task.prior_pos, task.mean_pos),
        (-1, 1 - task.prior_pos, task.mean_neg),
    ):
        for start in range(0, len(grids[0][1]), rows):
            parts = [grids[0][1][start : start + rows], *(grid for _, grid in grids[1:])]
            z = np.stack([a.ravel() for a in np.meshgrid(*parts, indexing="ij")])
            x = mean[:, None] + L @ axes.T @ z
            mass = prior * weight * np.exp(-0.5 * (z**2).sum(axis=0))
            v = np.log(task.prior_pos / (1 - task.prior_pos)) + params.s @ x
            sigma = expit(v)
            sigma1 = sigma * expit(-v)
            sigma2 = sigma1 * (1 - 2 * sigma)
            f = params.w @ x + params.b + params.r * sigma
            bayes = w_bayes @ x + b_bayes
            total.risk += mass @ -log_expit(label * f)
            first_order = mass * -label * expit(-label * f)
            second_order = mass * expit(f) * expit(-f)
            Df = np.concatenate([x, np.ones((1, x.shape[1])), [sigma], params.r * sigma1 * x])
            total.gradient += Df @ first_order
            total.gradient_size += abs(Df) @ abs(first_order)
            total.hessian += (Df * second_order) @ Df.T
            total.hessian_size += (abs(Df) * second_order) @ abs(Df).T
            for i, j in itertools.product(range(d), repeat=2):
                terms = first_order * params.r * sigma2 * x[i] * x[j]
                total.hessian[d + 2 + i, d + 2 + j] += terms.sum()
                total.hessian_size[d + 2 + i, d + 2 + j] += abs(terms).sum()
            for i in range(d):
                terms = first_order * sigma1 * x[i]
                for entry in ((d + 1, d + 2 + i), (d + 2 + i, d + 1)):
                    total.hessian[entry] += terms.sum()
                    total.hessian_size[entry] += abs(terms).sum()
            low, gap = -abs(bayes), (f - bayes) * np.where(bayes > 0, -1, 1)
            total.excess += mass @ (log_expit(-low) - log_expit(-low - gap) - expit(low) * gap)
    return total


def assert_contract(params, task, brute, tolerance=1e-11):
    assert abs(logistic_risk(params, task) - brute.risk) <= tolerance * brute.risk
    gradient = risk_gradient(params, task).to_vector()
    assert (np.abs(gradient - brute.gradient) <= tolerance * brute.gradient_size).all()
    hessian = risk_hessian(params, task)
    assert (np.abs(hessian - brute.hessian) <= tolerance * brute.hessian_size).all()
    if brute.excess > 1e-3 * brute.risk:
        assert abs(excess_risk(params, task) - brute.excess) <= 1e-8 * brute.excess


# ---------------------------------------------------------------- the accuracy contract

LINE = LDATask([3.0], [-1.0], [[4.0]], 0.3)
FAR_LINE = LDATask([10.0], [-10.0], [[1.0]], 0.02)


@pytest.mark.parametrize(
    ("task", "params"),
    [
        (LINE, EffectiveParams([1.3], -0.4, 2.0, [0.7])),
        (LINE, EffectiveParams([10.0], 100.0, -100.0, [10.0])),
        (LINE, EffectiveParams([-10.0], 3.0, 50.0, [9.0])),
        (FAR_LINE, EffectiveParams([20.0], -3.9, 0.0, [3.0])),
        (FAR_LINE, EffectiveParams([1.0], -50.0, 100.0, [20.0])),
        (FAR_LINE, EffectiveParams([0.0], 0.0, 0.0, [0.0])),
        (FAR_LINE, EffectiveParams([0.0], -2.0, 5.0, [-20.0])),
        (FAR_LINE, EffectiveParams([20.0], -100.0, 30.0, [0.0])),
        # steep gates: on which side of the gate each class's mass is decides which panels count
        (LDATask([10.0], [-10.0], [[1.0]], 0.98), EffectiveParams([-20.0], -90.0, -100.0, [-8.0])),
        (LDATask([-10.0], [10.0], [[1.0]], 0.98), EffectiveParams([0.0], -89.0, -100.0, [-8.0])),
    ],
)
def test_contract_on_the_line(task, params):
    assert_contract(params, task, brute_force(params, task, reach=36.0))


def plane(separation, angle, prior, center=(0.0, 0.0)):
    half = 0.5 * separation * direction(angle)
    return LDATask(center + half, center - half, np.eye(2), prior)


@pytest.mark.parametrize(
    ("task", "params"),
    [
        (plane(2, 0.3, 0.3), EffectiveParams([1.0, -1.0], 0.3, 2.0, [0.5, 1.0])),
        (plane(3, 0.3, 0.5, (5, -3)), EffectiveParams(4 * direction(2.3), -1, 10, direction(1.3))),
        # |w*| = 20, at the Bayes score, whose risk is 2e-23
        (plane(20, 0.3, 0.3), EffectiveParams(20 * direction(0.3), -0.85, 0, direction(1.0))),
        (plane(8, 0.3, 0.98), EffectiveParams(8 * direction(1.0), 3, -50, [0.0, 0.0])),
        (plane(20, 0.3, 0.5), EffectiveParams(5 * direction(0.3), 100, 1, direction(2.0))),
        (plane(10, 0.3, 0.02), EffectiveParams([0.0, 0.0], 3, -20, 3 * direction(0.4))),
        # the gate and the affine part parallel, then nearly so
        (plane(5, 0.3, 0.98), EffectiveParams(8 * direction(1), 3, -5, 6 * direction(1))),
        (plane(5, 0.3, 0.02), EffectiveParams(8 * direction(1), 3, -5, 6 * direction(1 + 1e-8))),
        (plane(5, 0.3, 0.02), EffectiveParams(8 * direction(1), 3, -5, 6 * direction(1 + 1e-3))),
        # a standard deviation across the gate on both sides of the change of rule
        (plane(3, 0.3, 0.5), EffectiveParams(2.9 * direction(0.7), -1, 3, 4 * direction(2.3))),
        (plane(3, 0.3, 0.5), EffectiveParams(12 * direction(0.9), -1, 3, 4 * direction(2.3))),
        # the score is 90 to 190 where the mass is: sigma'(f) grows by many orders over a panel
        (
            LDATask([-0.11768221, -1.92130645], [-1.9485016, -1.01398346], np.eye(2), 0.49997902),
            EffectiveParams(
                [14.95361255, 4.59710666], 91.15455, 94.81067952, [-3.07731451, -3.76643432]
            ),
        ),
    ],
)
def test_contract_in_the_plane(task, params):
    assert_contract(params, task, brute_force(params, task))


def test_contract_with_an_ill_conditioned_covariance():
    Q = np.linalg.qr(np.random.default_rng(3).normal(size=(2, 2)))[0]
    gamma = Q @ np.diag([1e-4, 1.0]) @ Q.T
    task = LDATask(Q @ [0.03, 1.0] + 0.3, 0.3 - Q @ [0.01, 1.0], 0.5 * (gamma + gamma.T), 0.1)
    w, b = task.bayes_score
    params = EffectiveParams(1.1 * w, b, 4.0, 0.7 * w + [1.0, 2.0])
    assert_contract(params, task, brute_force(params, task), tolerance=1e-10)


@pytest.mark.parametrize("dim", [4, 20, 64])
def test_dimension_changes_nothing_but_the_frame(dim):
    # embed a planar problem isometrically: every quantity is carried along
    rng = np.random.default_rng(dim)
    flat = plane(4, 0.3, 0.2, (0.4, 0.1))
    flat_params = EffectiveParams(3 * direction(1.2), 0.5, -4.0, 2 * direction(2.5))
    E = np.linalg.qr(rng.normal(size=(dim, 2)))[0]
    task = LDATask(E @ flat.mean_pos, E @ flat.mean_neg, np.eye(dim), 0.2)
    params = EffectiveParams(E @ flat_params.w, 0.5, -4.0, E @ flat_params.s)
    assert logistic_risk(params, task) == pytest.approx(logistic_risk(flat_params, flat), rel=1e-12)
    assert excess_risk(params, task) == pytest.approx(excess_risk(flat_params, flat), rel=1e-9)
    up, down = risk_gradient(params, task), risk_gradient(flat_params, flat)
    np.testing.assert_allclose(up.w, E @ down.w, atol=1e-12)
    np.testing.assert_allclose(up.s, E @ down.s, atol=1e-12)
    np.testing.assert_allclose([up.b, up.r], [down.b, down.r], atol=1e-12)


def test_large_logits_give_the_exact_limit_in_silence():
    task = plane(2, 0.3, 0.3)
    w = np.array([1.0, -1.0])
    with np.errstate(all="raise"):
        for params, limit in (
            (EffectiveParams(w, 1e6, 1.0, [0.5, 1.0]), None),
            (EffectiveParams(w, -1e6, 0.0, [0.5, 1.0]), 0.3 * (1e6 - w @ task.mean_pos)),
            (EffectiveParams(0 * w, 1e6, 0.0, [0.0, 0.0]), 0.7e6),
            (EffectiveParams(0 * w, 1.0, 1e6, [1e6, 0.0]), None),
            (EffectiveParams(1e6 * w, 1.0, 0.0, [0.5, 1.0]), None),
            (EffectiveParams(1e6 * w, 1.0, 1.0, [0.5, 1.0]), None),
        ):
            risk, excess = logistic_risk(params, task), excess_risk(params, task)
            gradient = risk_gradient(params, task).to_vector()
            assert np.isfinite(gradient).all()
            assert np.isfinite(risk_hessian(params, task)).all()
            if limit is not None:
                assert risk == pytest.approx(limit, rel=1e-12)
            # the optimal risk is lost in the rounding of these
            bayes = logistic_risk(EffectiveParams(*task.bayes_score, 0.0, w), task)
            assert excess == pytest.approx(risk - bayes, rel=1e-9)
        # E (w^T x)^+ is in closed form (Lemma B.6)
        risk = logistic_risk(EffectiveParams(1e6 * w, 0.0, 0.0, w), task)
        std = 1e6 * np.sqrt(2)
        expected = 0.0
        for label, prior, mean in ((1, 0.3, task.mean_pos), (-1, 0.7, task.mean_neg)):
            mu = -label * 1e6 * w @ mean
            expected += prior * (mu * stats.norm.cdf(mu / std) + std * stats.norm.pdf(mu / std))
        assert risk == pytest.approx(expected, rel=1e-10)


def test_risk_agrees_with_sampling_in_high_dimension():
    rng = np.random.default_rng(11)
    task = random_task(20, rng)
    params = random_params(EffectiveParams, 20, rng, scale=0.3)
    x, y = task.sample(200_000, rng)
    losses = np.logaddexp(0.0, -y * score(params, task, x))
    deviation = (losses.mean() - logistic_risk(params, task)) / (losses.std() / np.sqrt(len(x)))
    assert abs(deviation) < 4


# ---------------------------------------------------------------- the excess risk


def mp_excess(params, task, step, reach=9.0):
    """The excess risk in 45 digits, from the definition, by the trapezoidal rule in each class."""
    with mp.workdps(45):
        d = task.dim
        gamma = mp.matrix(task.covariance.tolist())
        means = [mp.matrix(m.tolist()) for m in (task.mean_pos, task.mean_neg)]
        prior = mp.mpf(task.prior_pos)
        s0 = mp.log(prior / (1 - prior))
        w_bayes = mp.lu_solve(gamma, means[0] - means[1])
        b_bayes = s0 - (w_bayes.T * (means[0] + means[1]))[0] / 2
        L = mp.cholesky(gamma)
        w, s = mp.matrix(params.w.tolist()), mp.matrix(params.s.tolist())
        slopes = [L.T * v for v in (w, s, w_bayes)]
        points = [k * mp.mpf(step) for k in range(-int(reach / step), int(reach / step) + 1)]
        total = mp.mpf(0)
        for mass, mean in zip((prior, 1 - prior), means, strict=True):
            at_mean = [(v.T * mean)[0] for v in (w, s, w_bayes)]
            for z in itertools.product(points, repeat=d):
                affine, gate, bayes = (
                    at + sum(a * b for a, b in zip(slope, z, strict=True))
                    for at, slope in zip(at_mean, slopes, strict=True)
                )
                f = affine + params.b + params.r / (1 + mp.exp(-s0 - gate))
                f_bayes = bayes + b_bayes
                total += (
                    mass
                    * mp.exp(-sum(a * a for a in z) / 2)
                    * (
                        mp.log1p(mp.exp(f))
                        - mp.log1p(mp.exp(f_bayes))
                        - (f - f_bayes) / (1 + mp.exp(-f_bayes))
                    )
                )
        return float(total * (mp.mpf(step) / mp.sqrt(2 * mp.pi)) ** d)


def near_the_constant_gate(task, r, s):
    """A point of the tangent to E2: the affine part of f - f* is zero but for rounding."""
    w, b = task.bayes_score
    p = task.prior_pos
    return EffectiveParams(w - r * p * (1 - p) * np.asarray(s), b - r * p, r, s)


@pytest.mark.parametrize(
    "displacement",
    [(1e-4, 0.0), (1e-8, 1e-8), (1e-12, 0.0), (0.0, 1e-13)],
    ids=str,
)
def test_tiny_excess_near_the_affine_family(displacement):
    task = setting_c1()
    w, b = task.bayes_score
    params = EffectiveParams(w + displacement, b, 0.0, [1.0, 2.0])
    assert excess_risk(params, task) == pytest.approx(mp_excess(params, task, step=0.5), rel=1e-7)


@pytest.mark.parametrize(
    ("prior", "r", "size"), [(0.6, 100.0, 1e-6), (0.6, 3.0, 1e-3), (0.5, 100.0, 5e-5)]
)
def test_tiny_excess_near_the_constant_gate_family(prior, r, size):
    task = setting_c1(prior)
    params = near_the_constant_gate(task, r, [size, 0.7 * size])
    expected = mp_excess(params, task, step=0.5)
    assert expected < 1e-10
    assert excess_risk(params, task) == pytest.approx(expected, rel=1e-6)


def saturated_cases():
    """Tasks whose gate is near 0, near 1 or nearly linear where one class or both are."""
    rng = np.random.default_rng(0)
    for k in range(190):
        w = (1.01, 1.0, 0.7, 0.3)[k % 4] * rng.choice([-1, 1])
        middle = rng.uniform(8, 33) * rng.choice([-1, 1])
        task = LDATask([middle + w / 2], [middle - w / 2], [[1.0]], rng.choice([0.5, 0.4, 0.1]))
        w, b = task.bayes_score
        r, s = rng.choice([100.0, -100.0, 3.0]), rng.choice([1.0, -1.0, 0.8])
        if k % 5 == 0:
            # a slowly varying gate, and the affine part that compensates its tangent at the middle
            s = 10.0 ** rng.uniform(-5, -2)
            gate = expit(task.prior_logit + s * middle)
            slope = r * gate * (1 - gate) * s
            yield task, EffectiveParams(w - slope, b - r * gate + slope * middle, r, [s])
        else:
            yield task, EffectiveParams(w, b - r * (s * middle > 0), r, [s])


def gap_by_definition(params, task, points):
    """f - f* at points of the line, in 60 digits."""
    prior = mp.mpf(task.prior_pos)
    s0 = mp.log(prior / (1 - prior))
    high, low = mp.mpf(task.mean_pos[0]), mp.mpf(task.mean_neg[0])
    slope = mp.mpf(params.w[0]) - (high - low)
    intercept = mp.mpf(params.b) - s0 + (high**2 - low**2) / 2
    r, s = mp.mpf(params.r), mp.mpf(params.s[0])
    return [
        float(slope * x + intercept + r / (1 + mp.exp(-s0 - s * x))) for x in map(mp.mpf, points)
    ]


def test_excess_risk_where_the_gate_is_saturated():
    # float64 but for the gap itself, which is where the digits are lost
    nodes, weights = np.polynomial.legendre.leggauss(16)
    nodes, weights = 0.5 * (1 + nodes), 0.5 * weights
    errors = []
    for task, params in saturated_cases():
        step, expected = 0.16, 0.0
        z = step * np.arange(-90, 91)
        w, b = task.bayes_score
        with mp.workdps(60):
            for prior, mean in zip(task.priors, (task.mean_pos, task.mean_neg), strict=True):
                x = mean + z
                gap, bayes = np.array(gap_by_definition(params, task, x)), w * x + b
                eta = expit(bayes)
                moved = bayes + np.multiply.outer(nodes, gap)
                taylor = gap**2 * ((weights * (1 - nodes)) @ (expit(moved) * expit(-moved)))
                exact = np.logaddexp(0, bayes + gap) - np.logaddexp(0, bayes) - eta * gap
                kl = np.where(np.abs(gap) < 2, taylor, exact)
                expected += prior * step * stats.norm.pdf(z) @ kl
        errors.append(abs(excess_risk(params, task) / expected - 1))
    assert max(errors) < 1e-6


@pytest.mark.parametrize(("middle", "expected"), [(33.0, 1.1483e-25), (30.0, 4.6328e-23)])
def test_excess_risk_behind_a_gate_that_is_off(middle, expected):
    task = LDATask([middle + 0.5], [middle - 0.5], [[1.0]], 0.5)
    params = EffectiveParams(*task.bayes_score, 100.0, [-1.0])
    assert excess_risk(params, task) == pytest.approx(expected, rel=1e-4)
    assert excess_risk(params, task) == pytest.approx(mp_excess(params, task, 0.25, 14.0), rel=1e-9)
    # the same in the plane, with a component across the gate, and in three dimensions
    turn = np.linalg.qr(np.random.default_rng(1).normal(size=(3, 3)))[0]
    far = middle * turn[0]
    rotated = LDATask(far + 0.5 * turn[0], far - 0.5 * turn[0], np.eye(3), 0.5)
    w, b = rotated.bayes_score
    moved = EffectiveParams(w, b, 100.0, -turn[0])
    assert excess_risk(moved, rotated) == pytest.approx(expected, rel=1e-3)


def test_excess_risk_of_a_slow_gate_far_away():
    # sigma(v0) is compensated by w and b at the class means 1e6 away along the gate
    task = LDATask([0.5, 1e6], [-0.5, 1e6], np.eye(2), 0.5)
    w, b = task.bayes_score
    s, r = 1e-6, 50.0
    gate = expit(task.prior_logit + s * 1e6)
    rise = r * gate * (1 - gate) * s
    params = EffectiveParams(w - [0.0, rise], b - r * gate + rise * 1e6, r, [0.0, s])
    assert excess_risk(params, task) == pytest.approx(mp_excess(params, task, 0.5), rel=1e-6)


@pytest.mark.parametrize("size", [1e6, 1e8, 2e9])
def test_steep_parameters_have_the_limit_of_steps(size):
    rng = np.random.default_rng(2)
    task = random_task(3, rng)
    L = np.linalg.cholesky(task.covariance)
    bayes = logistic_risk(EffectiveParams(*task.bayes_score, 0.0, np.zeros(3)), task)
    w, s = size * rng.normal(size=(2, 3))
    expected = 0.0
    for label, prior, mean in ((1, 0.3, task.mean_pos), (-1, 0.7, task.mean_neg)):
        mu, std = -label * (w @ mean - 0.2 * size), np.linalg.norm(L.T @ w)
        expected += prior * (mu * stats.norm.cdf(mu / std) + std * stats.norm.pdf(mu / std))
    params = EffectiveParams(w, -0.2 * size, 0.0, s)
    assert logistic_risk(params, task) == pytest.approx(expected, rel=1e-9)
    assert excess_risk(params, task) == pytest.approx(expected - bayes, rel=1e-9)
    # a gate that is a step: the transition's share is of order 1 / size
    expected = 0.0
    for label, prior, mean in ((1, 0.3, task.mean_pos), (-1, 0.7, task.mean_neg)):
        on = stats.norm.cdf((s @ mean) / np.linalg.norm(L.T @ s))
        expected += prior * (on * np.logaddexp(0, -label * 1.5))
        expected += prior * ((1 - on) * np.logaddexp(0, label * 0.5))
    params = EffectiveParams(np.zeros(3), -0.5, 2.0, s)
    assert logistic_risk(params, task) == pytest.approx(expected, rel=1e-9 + 10 / size)
    assert excess_risk(params, task) == pytest.approx(expected - bayes, rel=1e-9 + 10 / size)


def test_excess_risk_with_a_gate_beyond_every_float():
    # at the classes the gate's logit is -1e4 or 1e4: the score is affine
    task = LDATask([1e4 + 0.5], [1e4 - 0.5], [[1.0]], 0.5)
    w, b = task.bayes_score
    for s, jump in ((-1.0, 0.0), (1.0, 7.0)):
        params = EffectiveParams(w, b + 1e-9 - jump, 7.0, [s])
        affine = EffectiveParams(w, b + 1e-9, 0.0, [s])
        assert excess_risk(params, task) == pytest.approx(excess_risk(affine, task), rel=1e-2)
        exact = mp_excess(params, task, step=0.5)
        assert excess_risk(params, task) == pytest.approx(exact, rel=1e-6)


def test_excess_risk_falls_like_the_square_of_a_huge_amplitude():
    # parameters of the size of R, next to the Bayes score: no difference of risks
    task, c = setting_c1(), np.array([1.0, -0.5])
    w, b = task.bayes_score
    values = []
    for R in (2e3, 2e4, 2e5):
        params = EffectiveParams(w - 0.24 * c, b - 0.6 * R, R, c / R)
        values.append(R**2 * excess_risk(params, task))
    np.testing.assert_allclose(values, values[-1], rtol=3e-3)


@pytest.mark.parametrize("size", [1e12, 1e20, 1e200])
@pytest.mark.parametrize("field", range(4))
def test_parameters_without_digits_are_refused(size, field):
    vector = np.array([0.3, -0.2, 0.5, 1.0, 1.0, 0.7])
    vector[[0, 2, 3, 4][field]] = size
    params, task = EffectiveParams.from_vector(vector, 2), setting_c1()
    for function in (logistic_risk, excess_risk, risk_gradient, risk_hessian):
        with pytest.raises(ValueError, match=r"^params: expected b, r and, .* at most 1e\+10"):
            function(params, task)


def test_tiny_excess_with_an_ill_conditioned_covariance_on_the_line_of_the_optimum():
    gamma = np.array([[0.5, 0.4999], [0.4999, 0.5]])
    task = LDATask([1.02, 0.98], [-0.4, -0.41], gamma, 0.02)
    w, b = task.bayes_score
    params = EffectiveParams(w * (1 + 1e-9), b, 1e-9, [1.0, 2.0])
    expected = mp_excess(params, task, step=0.45)
    assert excess_risk(params, task) == pytest.approx(expected, rel=1e-6)


def test_excess_risk_scales_as_the_square_of_a_tiny_displacement():
    task = setting_c1()
    w, b = task.bayes_score
    assert np.array_equal(w, [1.0, -1.0])
    ratios = []
    for exponent in range(4, 13):
        moved = w + np.array([10.0**-exponent, 0.0])
        h = moved[0] - w[0]
        ratios.append(excess_risk(EffectiveParams(moved, b, 0.0, [1.0, 2.0]), task) / h**2)
    np.testing.assert_allclose(ratios, ratios[-1], rtol=1e-4)


@pytest.mark.claim("LB.4")
@pytest.mark.parametrize("dim", [2, 3, 20])
def test_excess_risk_is_zero_where_everything_underflows(dim):
    first, second = np.eye(dim)[:2]
    mean = 100 * (np.cos(1) * first + np.sin(1) * second)
    gate = 0.6 * first + 0.8 * second
    task = LDATask(mean, gate - mean, np.eye(dim), 0.3)
    w, b = task.bayes_score
    assert excess_risk(EffectiveParams(w, b + 0.1, 0.0, gate), task) == 0.0


@pytest.mark.parametrize("dim", [1, 2, 3, 5, 20])
def test_excess_risk_is_the_difference_of_risks_where_that_is_accurate(dim):
    rng = np.random.default_rng(dim)
    task = random_task(dim, rng)
    bayes = logistic_risk(EffectiveParams(*task.bayes_score, 0.0, np.zeros(dim)), task)
    for scale in (0.3, 1.0, 4.0):
        params = random_params(EffectiveParams, dim, rng, scale / np.sqrt(dim))
        excess = excess_risk(params, task)
        assert excess > 0
        assert excess == pytest.approx(logistic_risk(params, task) - bayes, rel=1e-8)


@pytest.mark.parametrize("dim", [1, 2, 3, 20])
def test_tiny_excess_is_half_the_quadratic_form_of_the_hessian(dim):
    rng = np.random.default_rng(dim)
    task = random_task(dim, rng)
    w, b = task.bayes_score
    base = EffectiveParams(w, b, 0.0, rng.normal(size=dim))
    hessian = risk_hessian(base, task)
    for size in (1e-5, 1e-8):
        h = size * random_params(EffectiveParams, dim, rng).to_vector()
        moved = EffectiveParams.from_vector(base.to_vector() + h, dim)
        h = moved.to_vector() - base.to_vector()
        assert excess_risk(moved, task) == pytest.approx(
            0.5 * h @ hessian @ h, rel=40 * size + 1e-6
        )


def test_the_outer_rules_join_without_a_trace():
    # as the gate steepens, the trapezoidal rule gives way to graded panels: the gradient must remain
    # the derivative of the risk across the change, so that its integral is the risk's increment
    task = plane(3, 0.3, 0.4, (0.2, 0.1))

    def at(slope):
        return EffectiveParams(1.5 * direction(0.8), 0.2, 2.0, slope * direction(2.0))

    nodes, weights = np.polynomial.legendre.leggauss(24)
    along = [risk_gradient(at(v), task).s @ direction(2.0) for v in 3.25 + 1.75 * nodes]
    increment = logistic_risk(at(5.0), task) - logistic_risk(at(1.5), task)
    assert 1.75 * weights @ along == pytest.approx(increment, rel=1e-11)


def test_risk_and_gradient_are_those_of_the_separate_functions():
    rng = np.random.default_rng(8)
    task = random_task(3, rng)
    for kind in (EffectiveParams, AttentionParams):
        params = random_params(kind, 3, rng)
        risk, gradient = risk_and_gradient(params, task)
        assert type(gradient) is kind
        assert risk == pytest.approx(logistic_risk(params, task), rel=1e-14)
        np.testing.assert_array_equal(gradient.to_vector(), risk_gradient(params, task).to_vector())


def test_excess_risk_of_attention_parameters_is_that_of_their_effective_ones():
    rng = np.random.default_rng(8)
    task = random_task(3, rng)
    theta = random_params(AttentionParams, 3, rng)
    assert excess_risk(theta, task) == excess_risk(effective_params(theta, task), task)
    assert logistic_risk(theta, task) == logistic_risk(effective_params(theta, task), task)


def test_pointwise_divergence_keeps_its_relative_accuracy():
    logits = np.array([-700.0, -40.0, -2.0, 0.0, 0.3, 30.0, 690.0])
    gaps = np.array([-900.0, -40.0, -1.0, -0.99, -1e-9, 1e-200, 1e-3, 1.0, 7.0, 900.0])
    values = divergence(*np.meshgrid(logits, gaps))
    with mp.workdps(900):
        for j, i in np.ndindex(values.shape):
            a, g = mp.mpf(logits[i]), mp.mpf(gaps[j])
            exact = mp.log1p(mp.exp(a + g)) - mp.log1p(mp.exp(a)) - g / (1 + mp.exp(-a))
            assert abs(values[j, i] - exact) <= 1e-13 * exact + 1e-310


@pytest.mark.parametrize("prior", [0.02, 0.5, 0.6])
def test_gate_remainder_keeps_its_relative_accuracy(prior):
    s0 = np.log(prior / (1 - prior))
    u = np.array([-800.0, -3.0, -0.99, -1e-3, -1e-8, 1e-5, 0.2, 1.0, 40.0])
    values = gate_remainder(s0, u)
    with mp.workdps(60):
        p = mp.mpf(prior)
        for value, v in zip(values, map(mp.mpf, u), strict=True):
            exact = 1 / (1 + (1 - p) / p * mp.exp(-v)) - p - p * (1 - p) * v
            assert abs(value - exact) <= 1e-14 * abs(exact) + 2e-15 * abs(v) * (abs(v) >= 1)


@pytest.mark.parametrize("std", [1e-6, 0.5, 1.1, 6.0])
def test_jensen_gap_keeps_its_relative_accuracy(std):
    mean = np.array([0.0, -0.7, 3.0, 25.0, 120.0])
    few = jensen_gap(mean, std)
    many = jensen_gap(np.concatenate([mean, np.linspace(0, 130, 20_000)]), std)[: len(mean)]
    np.testing.assert_allclose(many, few, rtol=1e-11)
    with mp.workdps(30):
        step = mp.mpf("0.05") / max(1, std / 4)
        for value, a in zip(few, map(mp.mpf, mean), strict=True):
            slope = 1 / (4 * mp.cosh(a / 2) ** 2)
            exact = step * mp.fsum(
                mp.npdf(k * step) * mp.log1p(4 * slope * mp.sinh(std * k * step / 2) ** 2)
                for k in range(1, int((9 + std) / step))
            )
            assert value == pytest.approx(float(exact), rel=1e-11)


# ---------------------------------------------------------------- symmetries, on random tasks


tasks = st.builds(
    lambda seed, dim, prior: random_task(dim, np.random.default_rng(seed), prior),
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.floats(0.02, 0.98),
)


@given(task=tasks, seed=st.integers(0, 10_000), scale=st.floats(0.01, 6))
def test_swapping_the_classes_changes_nothing(task, seed, scale):
    p = random_params(EffectiveParams, task.dim, np.random.default_rng(seed), scale)
    swapped_task = LDATask(task.mean_neg, task.mean_pos, task.covariance, 1 - task.prior_pos)
    # -f = -w^T x - (b + r) + r sigma(-s0 - s^T x)
    swapped = EffectiveParams(-p.w, -p.b - p.r, p.r, -p.s)
    risk = logistic_risk(p, task)
    assert logistic_risk(swapped, swapped_task) == pytest.approx(risk, rel=1e-11)
    excess = excess_risk(p, task)
    assert excess_risk(swapped, swapped_task) == pytest.approx(excess, rel=1e-8)


@given(task=tasks, seed=st.integers(0, 10_000))
def test_affine_changes_of_variable_change_nothing(task, seed):
    rng = np.random.default_rng(seed)
    p = random_params(EffectiveParams, task.dim, rng)
    M = rng.normal(size=(task.dim, task.dim)) + 3 * np.eye(task.dim)
    # x = M y: scores keep their values when w and s become M^T w and M^T s
    inverse = np.linalg.inv(M)
    gamma = inverse @ task.covariance @ inverse.T
    moved_task = LDATask(
        inverse @ task.mean_pos, inverse @ task.mean_neg, 0.5 * (gamma + gamma.T), task.prior_pos
    )
    moved = EffectiveParams(M.T @ p.w, p.b, p.r, M.T @ p.s)
    assert logistic_risk(moved, moved_task) == pytest.approx(logistic_risk(p, task), rel=1e-10)
    assert excess_risk(moved, moved_task) == pytest.approx(excess_risk(p, task), rel=1e-8)
    gradient = risk_gradient(p, task)
    tolerance = 1e-10 * (1 + np.abs(gradient.to_vector()).max())
    np.testing.assert_allclose(
        M.T @ risk_gradient(moved, moved_task).w, M.T @ (inverse @ gradient.w), atol=tolerance
    )


@pytest.mark.claim("LB.7")
@given(task=tasks, r=st.floats(-50, 50), seed=st.integers(0, 10_000))
def test_gradient_vanishes_on_both_optimal_families(task, r, seed):
    rng = np.random.default_rng(seed)
    w, b = task.bayes_score
    size = 1 + np.linalg.norm(task.mean_pos) + np.linalg.norm(task.mean_neg)
    gate = rng.normal(size=task.dim)
    for params in (
        EffectiveParams(w, b, 0.0, gate),
        EffectiveParams(w, b - r * task.prior_pos, r, np.zeros(task.dim)),
    ):
        gradient = risk_gradient(params, task).to_vector()
        assert np.abs(gradient).max() < 1e-13 * size * (1 + abs(r))
        assert excess_risk(params, task) < 1e-26


# ---------------------------------------------------------------- derivatives


@pytest.mark.claim("LB.9", "LB.10", "LB.11", "LB.14")
@pytest.mark.parametrize("kind", [EffectiveParams, AttentionParams])
@pytest.mark.parametrize("dim", [1, 2, 4])
def test_derivatives_agree_with_finite_differences(kind, dim):
    rng = np.random.default_rng(dim)
    task = random_task(dim, rng)
    params = random_params(kind, dim, rng)
    vector = params.to_vector()
    gradient = risk_gradient(params, task)
    assert type(gradient) is kind
    by_differences = central_differences(
        lambda v: logistic_risk(kind.from_vector(v, dim), task), vector
    )
    size = np.abs(by_differences).max()
    np.testing.assert_allclose(gradient.to_vector(), by_differences, atol=1e-9 * size)
    hessian = risk_hessian(params, task)
    assert np.array_equal(hessian, hessian.T)
    by_differences = central_differences(
        lambda v: risk_gradient(kind.from_vector(v, dim), task).to_vector(), vector
    )
    size = np.abs(by_differences).max()
    np.testing.assert_allclose(hessian, by_differences, atol=1e-8 * size)


@pytest.mark.claim("LB.14")
def test_jacobian_agrees_with_finite_differences():
    rng = np.random.default_rng(5)
    task = random_task(3, rng)
    theta = random_params(AttentionParams, 3, rng)
    by_differences = central_differences(
        lambda v: effective_params(AttentionParams.from_vector(v, 3), task).to_vector(),
        theta.to_vector(),
    ).T
    np.testing.assert_allclose(effective_jacobian(theta, task), by_differences, atol=1e-8)


@pytest.mark.claim("LB.10")
def test_attention_gradient_is_the_pullback_of_the_effective_one():
    rng = np.random.default_rng(6)
    task = random_task(3, rng)
    theta = random_params(AttentionParams, 3, rng)
    effective = risk_gradient(effective_params(theta, task), task)
    np.testing.assert_allclose(
        risk_gradient(theta, task).to_vector(),
        effective_jacobian(theta, task).T @ effective.to_vector(),
        rtol=1e-12,
        atol=1e-14,
    )


@pytest.mark.claim("LB.8")
def test_second_variation_of_the_score_has_a_factor_two_on_its_middle_term():
    rng = np.random.default_rng(7)
    task = random_task(3, rng)
    theta, h = (random_params(AttentionParams, 3, rng) for _ in range(2))
    x = rng.normal(size=3)
    step = 1e-3

    def moved(t):
        return score(AttentionParams.from_vector(theta.to_vector() + t * h.to_vector(), 3), task, x)

    # Richardson: the error of the central difference is of fourth order
    def second_difference(t):
        return (moved(t) - 2 * moved(0.0) + moved(-t)) / t**2

    by_differences = (4 * second_difference(step) - second_difference(2 * step)) / 3
    dr = h.v21 @ task.mean_difference + 2 * h.v22
    ds = 2 * h.u12 + h.U11 @ task.mean_difference
    p = effective_params(theta, task)
    gate = expit(task.prior_logit + p.s @ x)
    slope = gate * (1 - gate)
    curvature = slope * (1 - 2 * gate)
    outer = 2 * h.v21 @ task.covariance @ h.U11.T @ x + p.r * curvature * (ds @ x) ** 2
    middle = dr * slope * (ds @ x)
    assert by_differences == pytest.approx(outer + 2 * middle, abs=1e-4 * abs(middle))
    # the printed formula is off by one whole middle term
    assert abs(by_differences - (outer + middle)) > 0.9 * abs(middle)


@pytest.mark.claim("L3.2")
def test_rank_of_the_differential():
    rng = np.random.default_rng(9)
    for dim in (1, 2, 4):
        task = random_task(dim, rng)
        opposite = LDATask(task.mean_pos, -task.mean_pos, task.covariance, 0.3)
        theta = random_params(AttentionParams, dim, rng)
        no_value = AttentionParams(theta.U11, theta.u12, np.zeros(dim), theta.v22)

        def rank(theta, task):
            return np.linalg.matrix_rank(effective_jacobian(theta, task), tol=1e-9)

        assert rank(theta, task) == 2 * dim + 2
        assert rank(theta, opposite) == 2 * dim + 1
        assert rank(no_value, task) < 2 * dim + 2
        # what opposite means lose: r = -2b identically
        lost = np.zeros(2 * dim + 2)
        lost[dim], lost[dim + 1] = 2.0, 1.0
        np.testing.assert_allclose(lost @ effective_jacobian(theta, opposite), 0, atol=1e-14)


@pytest.mark.claim("PB.12", "LB.13")
@pytest.mark.parametrize("gate", [(1.3, -0.4), (0.0, 0.0)])
def test_hessian_at_an_optimum_and_its_kernel(gate):
    task = setting_c1(0.3)
    s = np.array(gate)
    w, b = task.bayes_score
    hessian = risk_hessian(EffectiveParams(w, b, 0.0, s), task)
    # E[eta (1 - eta) g g^T], g = (X, 1, sigma(s0 + s^T X), 0), on a Gauss-Hermite grid
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    z = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2)
    mass = np.outer(weights, weights).ravel() / (2 * np.pi)
    expected = np.zeros((6, 6))
    for prior, mean in ((0.3, task.mean_pos), (0.7, task.mean_neg)):
        x = mean + z
        eta = expit(x @ w + b)
        g = np.column_stack(
            [x, np.ones(len(x)), expit(task.prior_logit + x @ s), np.zeros((len(x), 2))]
        )
        expected += (g.T * (prior * mass * eta * (1 - eta))) @ g
    np.testing.assert_allclose(hessian, expected, atol=1e-9)
    kernel = np.zeros((2, 6))
    kernel[:, 4:] = np.eye(2)
    if not s.any():
        kernel = np.vstack([kernel, [0, 0, -task.prior_pos, 1, 0, 0]])
    np.testing.assert_allclose(hessian @ kernel.T, 0, atol=1e-14)
    values = np.linalg.eigvalsh(hessian)
    assert (values > 1e-6).sum() == 6 - len(kernel)


# ---------------------------------------------------------------- the model and its reduction


@pytest.mark.claim("PB.2")
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_bayes_score_is_the_log_odds(dim):
    rng = np.random.default_rng(dim)
    task = random_task(dim, rng, prior=0.2)
    x = rng.normal(size=(50, dim))
    w, b = task.bayes_score
    log_odds = (
        np.log(0.2 / 0.8)
        + stats.multivariate_normal(task.mean_pos, task.covariance).logpdf(x)
        - stats.multivariate_normal(task.mean_neg, task.covariance).logpdf(x)
    )
    np.testing.assert_allclose(x @ w + b, log_odds, atol=1e-12)


def test_bayes_score_is_rounded_correctly():
    gamma = np.array([[0.5, 0.4999], [0.4999, 0.5]])
    task = LDATask([1.02, 0.98], [-0.4, -0.41], gamma, 0.02)
    with mp.workdps(50):
        means = [mp.matrix(m.tolist()) for m in (task.mean_pos, task.mean_neg)]
        w = mp.lu_solve(mp.matrix(gamma.tolist()), means[0] - means[1])
        prior = mp.mpf(task.prior_pos)
        b = mp.log(prior / (1 - prior)) - (w.T * (means[0] + means[1]))[0] / 2
        assert [float(v) for v in w] == list(task.bayes_score[0])
        assert float(b) == task.bayes_score[1]


@pytest.mark.claim("S3.1.reduction")
@pytest.mark.parametrize("dim", [1, 3])
def test_head_applied_to_the_prompt_law_gives_the_score(dim):
    rng = np.random.default_rng(dim)
    task = random_task(dim, rng)
    theta = random_params(AttentionParams, dim, rng)
    x = rng.normal(size=(4, 5, dim))
    queries = np.concatenate([x, np.zeros((4, 5, 1))], axis=-1)
    output = theta.head(task)(task.prompt_law, queries)
    assert output.shape == (4, 5, dim + 1)
    np.testing.assert_allclose(output[..., -1], score(theta, task, x), atol=1e-12)


@pytest.mark.claim("S3.1.reduction")
@pytest.mark.parametrize("dim", [1, 3])
def test_score_is_the_last_coordinate_of_population_attention(dim):
    rng = np.random.default_rng(dim)
    task = random_task(dim, rng)
    theta = random_params(AttentionParams, dim, rng)
    x = rng.normal(size=(20, dim))
    queries = np.column_stack([x, np.zeros(20)])
    U, V = theta.to_matrices()
    np.testing.assert_array_equal(U[:dim, :dim], theta.U11.T)
    expected = score(theta, task, x)
    output = population_attention(task.prompt_law, queries, U, V)
    np.testing.assert_allclose(output[:, -1], expected, atol=1e-12)
    # the blocks that the parameters leave out do not matter
    U[:, dim] = rng.normal(size=dim + 1)
    V[:dim] = rng.normal(size=(dim, dim + 1))
    output = population_attention(task.prompt_law, queries, U, V)
    np.testing.assert_allclose(output[:, -1], expected, atol=1e-12)


@pytest.mark.claim("S3.1.reduction")
def test_effective_params_of_the_transposed_block_are_wrong():
    # the trap: U11 is a block of U transposed, so w = U11 Gamma v21 and not U11^T Gamma v21
    rng = np.random.default_rng(4)
    task = random_task(3, rng)
    theta = random_params(AttentionParams, 3, rng)
    transposed = AttentionParams(theta.U11.T, theta.u12, theta.v21, theta.v22)
    queries = np.append(rng.normal(size=3), 0.0)
    output = population_attention(task.prompt_law, queries, *theta.to_matrices())[-1]
    assert abs(score(transposed, task, queries[:3]) - output) > 0.1


def test_sample_has_the_moments_of_the_model():
    rng = np.random.default_rng(1)
    task = random_task(3, rng)
    x, y = task.sample(100_000, rng)
    assert x.shape == (100_000, 3)
    assert set(np.unique(y)) == {-1, 1}
    assert abs((y == 1).mean() - 0.3) < 4 * np.sqrt(0.21 / 1e5)
    for label, mean in ((1, task.mean_pos), (-1, task.mean_neg)):
        members = x[y == label]
        error = 4 * np.sqrt(np.diag(task.covariance) / len(members))
        assert (np.abs(members.mean(axis=0) - mean) < error).all()
        np.testing.assert_allclose(
            np.cov(members.T), task.covariance, atol=0.05 * np.trace(task.covariance)
        )


def test_prompt_law_puts_the_label_last_and_the_positive_class_first():
    task = setting_c1()
    law = task.prompt_law
    np.testing.assert_array_equal(law.weights, [0.6, 0.4])
    np.testing.assert_array_equal(law.means, [[1, 0, 1], [0, 1, -1]])
    np.testing.assert_array_equal(law.covariances[0], np.diag([1.0, 1.0, 0.0]))


def test_vectors_list_the_fields_in_order_and_matrices_by_rows():
    theta = AttentionParams([[1, 2], [3, 4]], [5, 6], [7, 8], 9)
    np.testing.assert_array_equal(theta.to_vector(), np.arange(1.0, 10.0))
    effective = EffectiveParams([1, 2], 3, 4, [5, 6])
    np.testing.assert_array_equal(effective.to_vector(), np.arange(1.0, 7.0))
    for params in (theta, effective):
        back = type(params).from_vector(params.to_vector(), 2)
        np.testing.assert_array_equal(back.to_vector(), params.to_vector())


def frozen_values():
    """One value of each class with its cached factors filled in, and its arrays by name."""
    task = setting_c1()
    task.bayes_score, task.separation, task.prompt_law  # noqa: B018
    for cached in ("priors", "midpoint", "mean_difference", "whitened_difference"):
        getattr(task, cached)
    assert task.whitened_midpoint.shape == (2,)
    theta = AttentionParams([[1, 2], [3, 4]], [5, 6], [7, 8], 9)
    flow = gradient_flow(EffectiveParams([0.1, 0.2], 0.0, 0.5, [1, 0]), task, 1.0)
    assert flow.excess_risk.shape == flow.t.shape
    descent = gradient_descent(theta, task, step_size=0.1, n_steps=2)
    return [task, EffectiveParams([1, 2], 3, 4, [5, 6]), theta, flow, descent]


def arrays_of(value):
    if isinstance(value, np.ndarray):
        return [value]
    if isinstance(value, tuple):
        return [array for item in value for array in arrays_of(item)]
    return []


@pytest.mark.parametrize(
    "duplicate",
    [
        lambda value: value,
        copy.copy,
        copy.deepcopy,
        lambda value: pickle.loads(pickle.dumps(value)),
    ],
    ids=["original", "copy", "deepcopy", "pickle"],
)
@pytest.mark.parametrize("index", range(5))
def test_values_and_their_copies_are_frozen(index, duplicate):
    original = frozen_values()[index]
    value = duplicate(original) if index < 4 else original
    assert value.__dict__.keys() == original.__dict__.keys()
    for name, field in original.__dict__.items():
        for mine, theirs in zip(arrays_of(value.__dict__[name]), arrays_of(field), strict=True):
            np.testing.assert_array_equal(mine, theirs)
            with pytest.raises(ValueError, match="read-only"):
                mine[...] = 0.0
        with pytest.raises(AttributeError):
            setattr(value, name, field)


def test_copies_compute_what_the_original_does():
    task, params, theta, flow, _ = frozen_values()
    for duplicate in (copy.copy, copy.deepcopy, lambda value: pickle.loads(pickle.dumps(value))):
        assert excess_risk(duplicate(params), duplicate(task)) == excess_risk(params, task)
        np.testing.assert_array_equal(duplicate(theta).to_vector(), theta.to_vector())
        np.testing.assert_array_equal(duplicate(flow).at([0.3, 0.7]), flow.at([0.3, 0.7]))
        assert duplicate(flow).status is flow.status


def test_the_given_arrays_stay_the_callers():
    mean, vector = np.array([1.0, 0.0]), np.arange(6.0)
    task, params = LDATask(mean, [0, 1], EYE, 0.5), EffectiveParams.from_vector(vector, 2)
    mean[0] = vector[0] = 7.0
    assert task.mean_pos[0] == 1.0
    assert params.w[0] == 0.0


EYE = np.eye(2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: LDATask([1, 0], [1, 0], EYE, 0.5), "mean_neg: expected a mean distinct"),
        (lambda: LDATask([1, 0], [1, 0, 0], EYE, 0.5), r"mean_neg: expected shape \(2,\)"),
        (lambda: LDATask([1, np.nan], [1, 0], EYE, 0.5), "mean_pos: expected finite"),
        (lambda: LDATask([1, 0], [0, 1], [[1, 1], [1, 1]], 0.5), "positive definite"),
        (lambda: LDATask([1, 0], [0, 1], [[1, 2], [0, 1]], 0.5), "symmetric"),
        (lambda: LDATask([1, 0], [0, 1], np.eye(3), 0.5), r"covariance: expected shape \(2, 2\)"),
        (lambda: LDATask([1, 0], [0, 1], EYE, 1.0), "prior_pos: expected a number > 0 and < 1"),
        (lambda: LDATask([1, 0], [0, 1], EYE, 0), "prior_pos"),
        (lambda: LDATask([1e200, 0], [0, 1], EYE, 0.5), "mean_pos: expected a mean within 1e"),
        (lambda: LDATask([0, 1], [0, -1e200], EYE, 0.5), "mean_neg: expected a mean within 1e"),
        (lambda: score(EffectiveParams([1e300, 0], 0, 0, [0, 0]), setting_c1(), [1e10, 0]), "x: "),
        (lambda: setting_c1().sample(-1, np.random.default_rng()), "n: expected an integer >= 0"),
        (lambda: setting_c1().sample(3, 0), "rng: expected"),
        (lambda: EffectiveParams([1, 2], 0, 0, [1]), r"s: expected shape \(2,\)"),
        (lambda: EffectiveParams([1, 2], np.inf, 0, [1, 2]), "b: expected finite"),
        (lambda: AttentionParams(EYE, [1, 2, 3], [1, 2], 0), "U11: expected shape"),
        (lambda: EffectiveParams.from_vector(np.zeros(5), 2), r"v: expected shape \(6,\)"),
        (lambda: AttentionParams.from_vector(np.zeros(9), 0), "d: expected an integer >= 1"),
        (lambda: logistic_risk([1, 2], setting_c1()), "params: expected AttentionParams or"),
        (lambda: risk_gradient(EffectiveParams([1], 0, 0, [1]), setting_c1()), "dimension 2"),
        (lambda: effective_params(EffectiveParams([1], 0, 0, [1]), setting_c1()), "^theta: exp"),
        (lambda: excess_risk(EffectiveParams([1], 0, 0, [1]), None), "task: expected an LDATask"),
        (lambda: score(EffectiveParams(*[[1, 0], 0, 0, [1, 0]]), setting_c1(), [1.0]), "x: exp"),
    ],
)
def test_bad_arguments_are_refused_by_name(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def test_scores_broadcast_over_leading_axes():
    task = setting_c1()
    params = EffectiveParams([1, 2], 0.5, -1, [0.3, 0.1])
    x = np.random.default_rng(0).normal(size=(3, 4, 2))
    values = score(params, task, x)
    assert values.shape == (3, 4)
    assert values[1, 2] == score(params, task, x[1, 2])
