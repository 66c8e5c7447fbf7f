"""What chapter 9 claims, by routes that the chapter does not use."""

import mpmath
import numpy as np
import pytest
from scipy.optimize import brentq

from mixattn import DenoisingTask, GaussianMixture, clustering_fixed_point, iterate_denoiser


def pair(m1, m2, gamma2, xi2, weight=0.5):
    m1, m2 = np.array(m1), np.array(m2)
    covariance = gamma2 * np.eye(len(m1))
    return DenoisingTask(GaussianMixture([weight, 1 - weight], [m1, m2], covariance), xi2)


@pytest.mark.claim("P4.3")
def test_limits_do_not_need_means_of_equal_norm():
    # means (5, 1) and (1, 4): |delta| = 2.5, far from the origin and of different norms
    c, delta = np.array([3.0, 2.5]), np.array([2.0, -1.5])
    root = brentq(lambda u: np.tanh(6.25 / 4 * u) - u, 0.1, 1)
    ends = iterate_denoiser(pair(c + delta, c - delta, 0.0, 4.0), [[9.0, 9.0], [0.0, 5.0]], 200)[-1]
    np.testing.assert_allclose(ends, [c + root * delta, c - root * delta], atol=1e-10)


@pytest.mark.claim("P4.3", "P4.3.gamma")
@pytest.mark.parametrize("gamma2", [0.0, 0.7])
def test_fixed_points_are_critical_points_of_the_noisy_density(gamma2):
    c, delta = np.array([0.4, -1.0]), np.array([1.2, 0.9])  # |delta| = 1.5
    with mpmath.workdps(40):
        s2 = mpmath.mpf(gamma2) + 1
        u = mpmath.mpf(clustering_fixed_point(1.5 / float(mpmath.sqrt(s2))))

        def density(u):
            return mpmath.exp(-((u - 1) ** 2) * 2.25 / (2 * s2)) + mpmath.exp(
                -((u + 1) ** 2) * 2.25 / (2 * s2)
            )

        assert abs(mpmath.diff(density, u)) < 1e-14
        assert mpmath.diff(density, u, 2) < 0 < mpmath.diff(density, 0, 2)
    task = pair(c + delta, c - delta, gamma2, 1.0)
    point = c + float(u) * delta
    np.testing.assert_allclose(task.bayes_denoiser(point), point, atol=1e-13)


@pytest.mark.claim("P4.3")
def test_every_step_climbs_by_the_stated_amount():
    rng = np.random.default_rng(0)
    for share in (1.0, 0.6, 0.05):
        means, weights = 3 * rng.standard_normal((4, 3)), rng.dirichlet(np.ones(4))
        task = DenoisingTask(
            GaussianMixture(weights, means, (1 - share) * 2 * np.eye(3)), 2 * share
        )
        path = iterate_denoiser(task, 4 * rng.standard_normal((30, 3)), 25)
        squares = ((path[:, :, None] - means) ** 2).sum(axis=-1)
        log_density = np.log(np.exp(-squares / 4) @ weights)
        bound = (2 - share) / (4 * share) * (np.diff(path, axis=0) ** 2).sum(axis=-1)
        assert np.all(np.diff(log_density, axis=0) >= bound - 1e-12)


@pytest.mark.claim("P4.3.critical")
@pytest.mark.parametrize("share", [1.0, 0.8, 0.35])
def test_second_term_at_the_threshold(share):
    u, rest = 0.7, {}
    for n in range(1, 40_001):
        u += share * (np.tanh(u) - u)
        if n in (4_000, 40_000):
            rest[n] = 1 / u**2 - 2 * share * n / 3
    slope = (rest[40_000] - rest[4_000]) / np.log(10)
    assert slope == pytest.approx(share / 2 - 0.4, abs=2e-3)


@pytest.mark.claim("F3")
@pytest.mark.parametrize(("xi", "count"), [(2.0, 2), (4.0, 1)])
def test_ends_of_figure_3(xi, count):
    task = pair([0.0, 3.0], [0.0, -3.0], 0.0, xi**2)
    starts = np.random.default_rng(3).uniform(-6, 6, (50, 2))
    ends = np.unique(iterate_denoiser(task, starts, 150)[-1].round(6) + 0.0, axis=0)
    assert len(ends) == count
    z = ends[-1, 1]
    assert z == pytest.approx(3 * np.tanh(3 * z / xi**2), abs=1e-5)
    np.testing.assert_allclose(ends[:, 0], 0, atol=1e-6)


@pytest.mark.claim("P4.3")
def test_light_cluster_appears_at_a_fold():
    # number of fixed points of u -> tanh(lambda^2 u + h), counted, against the parametric threshold
    h = 0.5 * np.log(0.7 / 0.3)
    with mpmath.workdps(30):
        u = mpmath.findroot(
            lambda u: mpmath.atanh(u) - u / (1 - u * u) - h, (-0.9, -0.5), solver="anderson"
        )
        threshold = float(1 / mpmath.sqrt(1 - u * u))
    grid = np.linspace(-1, 1, 20_001)
    for factor, count in ((0.99, 1), (1.01, 3)):
        values = np.tanh((factor * threshold) ** 2 * grid + h) - grid
        assert np.count_nonzero(np.diff(np.sign(values))) == count


@pytest.mark.claim("P4.3")
@pytest.mark.parametrize(("kappa", "outer"), [(1.81, False), (1.85, True), (1.98, True)])
def test_three_clusters_hold_before_the_center_lets_go(kappa, outer):
    angles = np.pi / 2 + 2 * np.pi * np.arange(3) / 3
    corners = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    task = DenoisingTask(GaussianMixture(np.ones(3) / 3, corners, np.zeros((2, 2))), 1 / kappa)
    from_corner, from_center = iterate_denoiser(task, [corners[0], [0.01, -0.02]], 1000)[-1]
    assert (np.linalg.norm(from_corner) > 0.3) == outer
    assert np.linalg.norm(from_center) < 1e-3
