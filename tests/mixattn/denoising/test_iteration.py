"""Iterates of the Bayes denoiser and their fixed points, against mpmath and the scalar map."""

import mpmath as mp
import numpy as np
import pytest

from mixattn import DenoisingTask, GaussianMixture, clustering_fixed_point, iterate_denoiser


def balanced_task(gamma2, xi2, midpoint=(1.0, 0.5), delta=(-1.0, 2.0)):
    """Means of equal norm: the midpoint is orthogonal to delta."""
    c, d = np.array(midpoint), np.array(delta)
    assert c @ d == 0
    return DenoisingTask(GaussianMixture([0.5, 0.5], [c + d, c - d], gamma2 * np.eye(2)), xi2), c, d


@pytest.mark.claim("P4.3")
@pytest.mark.parametrize("lam", [1 + 1e-14, 1 + 1e-9, 1.0001, 1.1, 1.5, 2.0, 4.0, 19.0])
def test_fixed_point_against_mpmath(lam):
    with mp.workdps(40):
        square = mp.mpf(lam) ** 2
        start = mp.sqrt(3 * (square - 1)) if square < 1.5 else square
        v = mp.findroot(lambda v: v * mp.coth(v) - square, start)
        expected = float(mp.tanh(v))
    assert clustering_fixed_point(lam) == pytest.approx(expected, rel=4e-16)


@pytest.mark.claim("P4.3")
def test_fixed_point_at_its_ends():
    assert [clustering_fixed_point(lam) for lam in (0.0, 0.5, 1.0)] == [0.0, 0.0, 0.0]
    assert [clustering_fixed_point(lam) for lam in (10.0, 1e4, 1e300)] == [1.0, 1.0, 1.0]


@pytest.mark.claim("P4.3", "P4.3.gamma", "F3")
@pytest.mark.parametrize("gamma2", [0.0, 1.0])
@pytest.mark.parametrize("xi2", [0.4, 2.0, 3.9, 7.0])
def test_iterates_settle_on_the_predicted_points(gamma2, xi2):
    task, c, delta = balanced_task(gamma2, xi2)
    lam = np.linalg.norm(delta) / np.sqrt(gamma2 + xi2)
    z0 = np.random.default_rng(0).standard_normal((20, 2)) * 4.0
    path = iterate_denoiser(task, z0, 2000)
    assert path.shape == (2001, 20, 2)
    np.testing.assert_array_equal(path[0], z0)
    side = np.sign((z0 - c) @ delta)
    predicted = c + np.outer(side * clustering_fixed_point(lam), delta)
    np.testing.assert_allclose(path[-1], predicted, atol=1e-9)


@pytest.mark.claim("P4.3")
def test_one_step_is_the_scalar_map():
    task, c, delta = balanced_task(0.0, 2.0)
    z = c + np.array([[0.3], [-1.7], [0.0]]) * delta + np.array([2.0, 1.0])
    u = (z - c) @ delta / (delta @ delta)
    expected = c + np.outer(np.tanh(delta @ delta / 2.0 * u), delta)
    np.testing.assert_allclose(iterate_denoiser(task, z, 1)[1], expected, atol=1e-13)


@pytest.mark.claim("P4.3.critical")
@pytest.mark.parametrize("gamma2", [0.0, 2.0])
def test_decay_at_the_threshold_is_algebraic(gamma2):
    task, c, delta = balanced_task(gamma2, 5.0 - gamma2)  # |delta|^2 = 5: lambda = 1
    a = task.noise_variance / 5.0
    n = 5_000
    u = (iterate_denoiser(task, c + 0.5 * delta, n)[n] - c) @ delta / 5.0
    assert u * np.sqrt(2.0 * a * n / 3.0) == pytest.approx(1.0, abs=5e-3)


def test_refusals():
    task, _, _ = balanced_task(1.0, 1.0)
    with pytest.raises(ValueError, match="lam: expected a number >= 0"):
        clustering_fixed_point(-1.0)
    with pytest.raises(ValueError, match="n_steps: expected an integer >= 0"):
        iterate_denoiser(task, np.zeros(2), -1)
    with pytest.raises(ValueError, match=r"z0: expected shape \(\.\.\., 2\), got \(3,\)"):
        iterate_denoiser(task, np.zeros(3), 1)
    with pytest.raises(ValueError, match="task: expected a DenoisingTask"):
        iterate_denoiser(task.mixture, np.zeros(2), 1)
