"""What chapter 3 claims, on tasks and by routes that the chapter does not use."""

import mpmath
import numpy as np
import pytest
from scipy import integrate, optimize, stats
from scipy.special import expit, logit

from mixattn import (
    AttentionParams,
    EffectiveParams,
    LDATask,
    effective_params,
    excess_risk,
    logistic_risk,
    population_attention,
    score,
)

TASK = LDATask([1.2, -0.4, 0.3], [-0.3, 0.8, 0.1], np.diag([1.0, 0.5, 2.0]) + 0.2, 0.35)
LINE = LDATask([4.0], [1.0], [[1.0]], 0.5)


def random_head(dim, rng):
    U, V = rng.standard_normal((2, dim + 1, dim + 1)) / 2
    return U, V, AttentionParams(U[:-1, :-1].T, U[-1, :-1], V[-1, :-1], V[-1, -1])


def predictions(task, x, U, V):
    queries = np.column_stack([x, np.zeros(len(x))])
    return population_attention(task.prompt_law, queries, U, V)[:, -1]


@pytest.mark.claim("PB.2")
def test_bayes_score_is_the_log_ratio_of_the_weighted_densities():
    x = np.random.default_rng(0).standard_normal((40, 3))
    w, b = TASK.bayes_score
    positive = stats.multivariate_normal(TASK.mean_pos, TASK.covariance).logpdf(x)
    negative = stats.multivariate_normal(TASK.mean_neg, TASK.covariance).logpdf(x)
    np.testing.assert_allclose(x @ w + b, logit(0.35) + positive - negative, atol=1e-12)


@pytest.mark.claim("S3.1.reduction")
def test_prediction_of_a_full_head_against_mpmath_and_the_effective_score():
    U, V, theta = random_head(3, np.random.default_rng(1))
    x = np.random.default_rng(2).standard_normal((5, 3))
    found = predictions(TASK, x, U, V)
    np.testing.assert_allclose(found, score(theta, TASK, x), atol=1e-13)
    means, covariance = TASK.prompt_law.means, TASK.prompt_law.covariances[0]
    for query, value in zip(x, found, strict=True):
        tilt = mpmath.matrix((U @ [*query, 0.0]).tolist())
        gamma = mpmath.matrix(covariance.tolist())
        masses = [
            weight * mpmath.exp(mpmath.fdot(mean.tolist(), tilt))
            for weight, mean in zip([0.35, 0.65], means, strict=True)
        ]
        shift = gamma * tilt
        output = sum(
            mass / sum(masses) * mpmath.fdot(V[-1].tolist(), mpmath.matrix(mean.tolist()) + shift)
            for mass, mean in zip(masses, means, strict=True)
        )
        assert value == pytest.approx(float(output), abs=1e-12)


@pytest.mark.claim("S3.1.reduction")
def test_blocks_of_u_instead_of_its_transpose_give_another_score():
    U, V, theta = random_head(3, np.random.default_rng(3))
    x = np.random.default_rng(4).standard_normal((20, 3))
    wrong = AttentionParams(U[:-1, :-1], U[:-1, -1], V[-1, :-1], V[-1, -1])
    assert np.max(np.abs(predictions(TASK, x, U, V) - score(wrong, TASK, x))) > 0.1
    zeta = effective_params(theta, TASK)
    np.testing.assert_allclose(zeta.w, U[:-1, :-1].T @ TASK.covariance @ V[-1, :-1], atol=1e-14)


@pytest.mark.claim("LB.3")
def test_a_head_with_the_sigmoid_frozen_predicts_the_bayes_score():
    # U11 = I, u12 = -Dm/2, v21 = Gamma^-1 w*, and the label weight that repairs the intercept
    (w, b), gap = TASK.bayes_score, TASK.mean_difference
    v21 = np.linalg.solve(TASK.covariance, w)
    mean = 0.35 * TASK.mean_pos + 0.65 * TASK.mean_neg
    U, V = np.zeros((2, 4, 4))
    U[:3, :3], U[3, :3] = np.eye(3), -gap / 2
    V[3] = [*v21, (b - v21 @ mean) / (2 * 0.35 - 1)]
    x = 2 * np.random.default_rng(5).standard_normal((50, 3))
    np.testing.assert_allclose(predictions(TASK, x, U, V), x @ w + b, rtol=1e-12, atol=1e-12)


@pytest.mark.claim("S3.1.availability")
def test_the_means_fix_how_close_opposite_heads_come_to_a_sigmoid_switched_off():
    task = LDATask([1.0, 0.5], [-1.0, -0.5], np.eye(2), 0.8)
    (w, b), rng = task.bayes_score, np.random.default_rng(6)

    def offset(vector):
        zeta = effective_params(AttentionParams.from_vector(vector, 2), task)
        return np.concatenate([zeta.w - w, [zeta.b - b, zeta.r]])

    found = optimize.least_squares(offset, rng.standard_normal(9), xtol=1e-15, gtol=1e-15)
    # the point of the line r = -2b nearest to (b*, 0)
    assert np.sqrt(2 * found.cost) == pytest.approx(2 * abs(b) / np.sqrt(5), rel=1e-8)


@pytest.mark.claim("LB.4")
@pytest.mark.parametrize("seed", range(5))
def test_excess_of_a_score_is_the_mean_bernoulli_divergence(seed):
    task = LDATask([1.5], [-0.5], [[0.8]], 0.4)
    zeta = EffectiveParams.from_vector(np.random.default_rng(seed).standard_normal(4), 1)
    (w,), b = task.bayes_score

    def divergence(x):
        eta, q = expit(w * x + b), float(expit(score(zeta, task, [x])))
        density = 0.4 * stats.norm.pdf(x, 1.5, np.sqrt(0.8)) + 0.6 * stats.norm.pdf(
            x, -0.5, np.sqrt(0.8)
        )
        return density * (eta * np.log(eta / q) + (1 - eta) * np.log((1 - eta) / (1 - q)))

    brute = integrate.quad(divergence, -9, 10, epsabs=1e-12, limit=200)[0]
    bayes = EffectiveParams([w], b, 0.0, [0.0])
    assert excess_risk(zeta, task) == pytest.approx(brute, rel=1e-8)
    assert logistic_risk(zeta, task) - logistic_risk(bayes, task) == pytest.approx(brute, rel=1e-8)
    assert brute > 0


@pytest.mark.claim("LB.4")
def test_bayes_score_alone_has_no_excess():
    w, b = TASK.bayes_score
    assert excess_risk(EffectiveParams(w, b, 0.0, np.ones(3)), TASK) < 1e-25
    for direction in np.eye(8):
        vector = np.concatenate([w, [b, 1e-3], np.ones(3)]) + 1e-3 * direction
        assert excess_risk(EffectiveParams.from_vector(vector, 3), TASK) > 1e-10


@pytest.mark.claim("RB.5")
@pytest.mark.parametrize("sign", [1, -1])
def test_quadratic_target_is_a_head_at_two_intercepts(sign):
    # means at midpoint (s0 - b*) / 2 with separation 2 and variance 1, so w* = 2
    s0 = logit(0.3)
    middle = (s0 - sign * s0) / 2
    task = LDATask([middle + 1], [middle - 1], [[1.0]], 0.3)
    assert task.bayes_score[1] == pytest.approx(sign * s0, abs=1e-14)
    head = AttentionParams([[0.0]], [sign * 1.0], [0.0], sign)
    x = np.linspace(-4, 4, 41)[:, None]
    w, b = task.bayes_score
    conditional_mean = 2 * expit(x @ w + b) - 1
    np.testing.assert_allclose(
        predictions(task, x, *head.to_matrices()), conditional_mean, atol=1e-14
    )


@pytest.mark.claim("RB.5")
def test_best_head_for_the_quadratic_risk_misplaces_the_boundary():
    # another route to the chapter's example: normal equations by Gauss-Hermite, the slope s by Brent
    nodes, weights = np.polynomial.hermite_e.hermegauss(200)
    x = np.concatenate([nodes + LINE.mean_pos, nodes + LINE.mean_neg])
    mass = np.tile(weights / weights.sum() / 2, 2)
    w, b = LINE.bayes_score
    target = np.tanh((w * x + b) / 2)

    def features(x, s):
        return np.array([x, np.ones_like(x), expit(s * x)])

    def solve(s):
        f = features(x, s)
        return np.linalg.solve((f * mass) @ f.T, (f * mass) @ target)

    def excess(s):
        return mass @ (solve(s) @ features(x, s) - target) ** 2

    scan = np.linspace(0.5, 12, 47)
    best = scan[np.argmin([excess(s) for s in scan])]
    s = optimize.minimize_scalar(excess, bracket=(best - 0.25, best, best + 0.25)).x
    boundary = optimize.brentq(lambda t: solve(s) @ features(np.array(t), s), 1.5, 3.5)
    assert -b / w[0] == pytest.approx(2.5)
    assert abs(boundary - 2.5) > 0.1
    # below both limits of the scan: a step at the origin, and a cubic polynomial
    for feature in (np.heaviside(x, 0.5), x**3):
        limit = np.array([x, np.ones_like(x), feature])
        c = np.linalg.solve((limit * mass) @ limit.T, (limit * mass) @ target)
        assert excess(s) < 0.98 * (mass @ (c @ limit - target) ** 2)
