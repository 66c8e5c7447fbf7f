"""The independent routes against SciPy, mpmath and closed forms."""

import mpmath
import numpy as np
import pytest
from scipy import integrate, stats

from companion import routes
from mixattn import GaussianMixture, LDATask

MIXTURE = GaussianMixture(
    [0.6, 0.4],
    [[1.0, 0.0], [-1.0, 0.5]],
    [[[1.0, 0.3], [0.3, 0.5]], [[0.4, 0.0], [0.0, 0.8]]],
)


def test_gap_is_the_largest_entry_whatever_its_sign():
    assert routes.gap([[1.0, 2.0], [3.0, 4.0]], [1.0, 2.5]) == 2.0
    assert routes.gap(1.0, 4.0) == 3.0
    assert np.isnan(routes.gap([1.0, np.nan], 0.0))


def test_densities_are_scipys(rng):
    points = rng.standard_normal((4, 5, 2))
    parts = routes.mixture_density(MIXTURE, points)
    laws = zip(MIXTURE.weights, MIXTURE.means, MIXTURE.covariances, strict=True)
    for part, (weight, mean, covariance) in zip(parts, laws, strict=True):
        expected = weight * stats.multivariate_normal(mean, covariance).pdf(points)
        np.testing.assert_allclose(part, expected, rtol=1e-12)


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_grid_sums_are_integrals(dim):
    axis = np.linspace(-8, 8, 65)
    points = routes.grid_points(axis, dim)
    assert points.shape == (65**dim, dim)
    values = np.exp(-np.sum(points**2, axis=1) / 2) * np.cos(points[:, 0])
    total = values.sum() * (axis[1] - axis[0]) ** dim
    assert total == pytest.approx((2 * np.pi) ** (dim / 2) * np.exp(-0.5), rel=1e-12)


@pytest.mark.parametrize(
    "rule", [lambda m: routes.gauss_hermite(m, 40), lambda m: routes.lattice(m, 0.25)]
)
def test_expectations_under_a_mixture(rule):
    nodes, weights = rule(MIXTURE)
    assert weights.sum() == pytest.approx(1.0, rel=1e-14)
    np.testing.assert_allclose(weights @ nodes, MIXTURE.mean, atol=1e-13)
    second = (weights * nodes.T) @ nodes
    np.testing.assert_allclose(second, MIXTURE.second_moment, atol=1e-13)
    # a moment generating function and a function that no polynomial is, by mpmath
    tilt = np.array([0.7, -0.4])
    expected = sum(
        pi * np.exp(m @ tilt + tilt @ c @ tilt / 2)
        for pi, m, c in zip(MIXTURE.weights, MIXTURE.means, MIXTURE.covariances, strict=True)
    )
    assert weights @ np.exp(nodes @ tilt) == pytest.approx(expected, rel=1e-12)
    one = GaussianMixture([0.3, 0.7], [[1.0], [-0.5]], [[[0.5]], [[2.0]]])
    x, mass = rule(one)
    by_mpmath = mpmath.quad(
        lambda t: (
            mpmath.tanh(t) ** 2
            * (0.3 * mpmath.npdf(t, 1, mpmath.sqrt(0.5)) + 0.7 * mpmath.npdf(t, -0.5, 2**0.5))
        ),
        [-15, 0, 15],
    )
    assert mass @ np.tanh(x[:, 0]) ** 2 == pytest.approx(float(by_mpmath), rel=2e-4)


def test_lattice_is_accurate_where_polynomials_are_not():
    x, mass = routes.lattice(GaussianMixture([1.0], [[0.3]], [[1.5]]), 0.03)
    expected, _ = integrate.quad(
        lambda t: np.tanh(8 * t) ** 2 * stats.norm.pdf(t, 0.3, np.sqrt(1.5)), -12, 12, epsabs=1e-13
    )
    assert mass @ np.tanh(8 * x[:, 0]) ** 2 == pytest.approx(expected, rel=1e-9)


def test_central_differences_are_of_order_four():
    def function(v):
        return np.array([np.sin(v[0]) * v[1], np.exp(v[1]), v[0] ** 4])

    x = np.array([0.4, 0.9])
    exact = np.array([[np.cos(0.4) * 0.9, 0, 4 * 0.4**3], [np.sin(0.4), np.exp(0.9), 0]])
    errors = [
        routes.gap(routes.central_differences(function, x, step), exact) for step in (0.2, 0.1)
    ]
    assert np.log2(errors[0] / errors[1]) == pytest.approx(4, abs=0.1)
    np.testing.assert_allclose(routes.central_differences(function, x, 1e-3), exact, atol=1e-11)


def test_central_differences_at_many_points(rng):
    points = rng.standard_normal((7, 3))
    slopes = routes.central_differences(lambda z: np.sin(z).sum(axis=-1), points, 1e-3)
    np.testing.assert_allclose(slopes, np.cos(points).T, atol=1e-11)


def test_z_score_is_students_statistic_without_its_correction(rng):
    samples = rng.standard_normal((50, 3)) + 0.2
    expected = stats.ttest_1samp(samples, 0.1).statistic * np.sqrt(50 / 49)
    np.testing.assert_allclose(routes.z_score(samples, 0.1), expected, rtol=1e-12)


def test_self_normalized_mean_and_its_error(rng):
    # tilting a standard Gaussian by t moves its mean to t
    tilts = np.array([0.0, 0.5])
    repeats = []
    for _ in range(400):
        x = rng.standard_normal(400)
        means, errors = routes.self_normalized_mean(np.outer(x, tilts), x[:, None])
        repeats.append(np.stack([means[:, 0], errors[:, 0]]))
    means, errors = np.moveaxis(repeats, 1, 0)
    np.testing.assert_allclose(means.mean(axis=0), tilts, atol=0.02)
    np.testing.assert_allclose(means.std(axis=0) / errors.mean(axis=0), 1, atol=0.15)
    # plain mean without a tilt, and logits far beyond what exp takes
    x = rng.standard_normal((20, 2))
    means, errors = routes.self_normalized_mean(np.full((20, 1), 1e6), x)
    np.testing.assert_allclose(means[0], x.mean(axis=0), atol=1e-15)
    np.testing.assert_allclose(errors[0], x.std(axis=0) / np.sqrt(20), rtol=1e-12)


def test_law_of_the_features_of_a_task(rng):
    task = LDATask([1.2, -0.4], [-0.3, 0.8], [[1.0, 0.2], [0.2, 0.5]], 0.35)
    law = routes.class_law(task)
    x, y = task.sample(20_000, rng)
    assert np.abs(routes.z_score(x, law.mean)).max() < 4
    np.testing.assert_array_equal(law.means, [task.mean_pos, task.mean_neg])
    np.testing.assert_allclose(law.posterior(x)[:, 0], 1 / (1 + np.exp(-task_log_odds(task, x))))
    assert abs(routes.z_score(y == 1, law.weights[0])) < 4


def task_log_odds(task, x):
    classes = [
        stats.multivariate_normal(m, task.covariance).logpdf(x)
        for m in (task.mean_pos, task.mean_neg)
    ]
    return np.log(task.prior_pos / (1 - task.prior_pos)) + classes[0] - classes[1]


def test_random_covariance_stays_above_its_least_eigenvalue(rng):
    matrices = np.array([routes.random_covariance(3, rng, 0.4) for _ in range(500)])
    np.testing.assert_array_equal(matrices, np.swapaxes(matrices, 1, 2))
    assert np.linalg.eigvalsh(matrices).min() > 0.4
    assert np.abs(routes.z_score(matrices, 1.4 * np.eye(3))).max() < 4.5
