"""Expectations of any function: polynomials in closed form, intervals that cover."""

import numpy as np
import pytest

from mixattn import GaussianMixture
from mixattn.integrals.expectation import expectation


def random_mixture(dim, rng):
    roots = rng.standard_normal((2, dim, dim)) / np.sqrt(dim) + np.eye(dim)
    return GaussianMixture(
        [0.2, 0.8], rng.standard_normal((2, dim)), roots @ roots.transpose(0, 2, 1)
    )


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_tensor_rule_on_a_polynomial(dim):
    mixture = random_mixture(dim, np.random.default_rng(dim))
    value, error, method = expectation(mixture, lambda z: np.sum(z**2, axis=1), 1e-10)
    assert method == "tensor quadrature"
    assert value == pytest.approx(np.trace(mixture.second_moment), rel=1e-12)
    assert error < 1e-10 * value


def test_tensor_rule_reports_that_a_jump_defeats_it():
    mixture = GaussianMixture([1.0], [[0.0, 0.0]], np.eye(2))
    value, error, _ = expectation(mixture, lambda z: 1.0 * (z[:, 0] > 0.1234), 1e-10)
    exact = 0.45089415  # Phi(-0.1234)
    assert error > 1e-8
    assert abs(value - exact) < 3 * error


def test_sobol_intervals_cover():
    covered = 0
    for seed in range(8):
        mixture = random_mixture(6, np.random.default_rng(seed))
        value, error, method = expectation(mixture, lambda z: np.sum(z**2, axis=1), 1e-3)
        assert method == "Sobol points"
        covered += abs(value - np.trace(mixture.second_moment)) < 1.5 * error
    assert covered >= 7


def test_components_of_weight_zero_are_left_out():
    means = [[0.0], [1e6]]
    mixture = GaussianMixture([1.0, 0.0], means, np.eye(1))
    value, _, _ = expectation(mixture, lambda z: z[:, 0] ** 2, 1e-10)
    assert value == pytest.approx(1.0, rel=1e-12)


@pytest.mark.parametrize("frequency", [3.0, 40.0, 333.3, 1000.0])
def test_an_oscillation_that_one_grid_aliases_is_resolved_by_the_next(frequency):
    mixture = GaussianMixture([1.0], [[0.0]], [[2.0]])
    value, error, _ = expectation(mixture, lambda z: np.sin(frequency * z[:, 0]) ** 2, 1e-10)
    exact = 0.5 * (1 - np.exp(-4 * frequency**2))
    assert value == pytest.approx(exact, rel=1e-9)
    assert error < 1e-8


@pytest.mark.parametrize("width", [0.02, 0.05, 0.1, 0.2])
def test_a_spike_between_the_nodes_shows_in_the_error(width):
    mixture = GaussianMixture([1.0], [[0.0, 0.0, 0.0]], 2 * np.eye(3))
    center, variance = np.array([0.7, -0.4, 0.9]), 0.5 * width**2

    def spike(z):
        return 100 * np.exp(-np.sum((z - center) ** 2, axis=1) / (2 * variance))

    # the product of two Gaussian densities, integrated
    total = variance + 2.0
    exact = 100 * (variance / total) ** 1.5 * np.exp(-center @ center / (2 * total))
    value, error, _ = expectation(mixture, lambda z: 0.2 + spike(z), 1e-10)
    assert abs(value - 0.2 - exact) < 2 * error
    assert error < 0.05
