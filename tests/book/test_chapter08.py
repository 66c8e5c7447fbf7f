"""The gaps of chapter 8 by other routes, and the exceptional heads that chapters 7 and 8 point out."""

import numpy as np
import pytest
from scipy.integrate import quad

from mixattn import (
    AffineDenoiser,
    DenoisingTask,
    GaussianMixture,
    Head,
    MultiHead,
    ResidualMultiHead,
    best_affine_denoiser,
    best_linear_denoiser,
)


def pair(gamma2, xi2, separation, rho=3.0, weight=0.5, dim=2):
    half = separation / 2
    means = np.zeros((2, dim))
    means[:, 0] = np.sqrt(rho**2 - half**2)
    means[:, 1] = half, -half
    return DenoisingTask(GaussianMixture([weight, 1 - weight], means, gamma2 * np.eye(dim)), xi2)


def gaps(task):
    linear = AffineDenoiser(best_linear_denoiser(task))
    affine = AffineDenoiser(*best_affine_denoiser(task))
    return task.excess_risk(linear), task.excess_risk(affine)


@pytest.mark.claim("T4.1.gap", "T4.1.affine")
@pytest.mark.parametrize(("dim", "weight"), [(2, 0.5), (2, 0.1), (7, 0.8)])
def test_linear_gap_is_an_intercept_and_a_fisher_deficit(dim, weight):
    task = pair(0.7, 1.8, 4.0, weight=weight, dim=dim)
    m1, m2 = task.mixture.means
    c, xi2, half = 2.5, 1.8, np.linalg.norm(m1 - m2) / 2

    # Fisher information along the difference of the means, by adaptive quadrature
    def density_and_slope(y):
        parts = [
            w * np.exp(-((y - m) ** 2) / (2 * c)) for w, m in ((weight, half), (1 - weight, -half))
        ]
        slope = (parts[0] * (half - y) + parts[1] * (-half - y)) / c
        return sum(parts) / np.sqrt(2 * np.pi * c), slope / np.sqrt(2 * np.pi * c)

    fisher, _ = quad(
        lambda y: density_and_slope(y)[1] ** 2 / density_and_slope(y)[0],
        -18,
        18,
        epsabs=1e-12,
        limit=200,
    )
    deficit = xi2**2 * (fisher - 1 / (c + 4 * weight * (1 - weight) * half**2))
    linear, affine = gaps(task)
    assert affine == pytest.approx(deficit, rel=1e-8)

    covariance, mean = task.noisy.covariance, task.noisy.mean
    second_moment = covariance + np.outer(mean, mean)
    price = xi2**2 * np.trace(np.linalg.inv(covariance) - np.linalg.inv(second_moment))
    assert linear - affine == pytest.approx(price, rel=1e-9)


@pytest.mark.claim("T4.1.gap", "T4.1.affine")
def test_gaps_as_the_means_approach_each_other_or_zero_and_as_the_noise_vanishes():
    linear, affine = gaps(pair(1.0, 4.0, 1e-2))
    assert linear == pytest.approx(0.8**2 * 9 * 5 / (9 + 5), rel=1e-4)
    assert affine < 1e-12
    assert max(gaps(pair(1.0, 4.0, 2e-2, rho=1e-2))) < 1e-4
    assert max(gaps(pair(1.0, 1e-3, 4.0))) < 1e-5


@pytest.mark.claim("T4.1.one")
def test_exchanged_head_is_exact_at_equal_variances_and_equal_weights():
    reflection = np.diag([1.0, -1.0])
    head = Head(reflection / 4.0, reflection / 2.0)
    assert pair(2.0, 2.0, 4.0).excess_risk(head) < 1e-28
    assert pair(2.0, 2.0, 4.0, weight=0.2).excess_risk(head) > 0.1
    assert pair(1.0, 3.0, 4.0).excess_risk(head) > 0.1


@pytest.mark.claim("S4.1")
def test_two_heads_absorb_offsets_that_are_twice_the_prior_log_odds():
    m1, m2, gamma2, xi2 = np.array([2.0, 0.5]), np.array([-0.5, 1.0]), 0.7, 1.2
    c = gamma2 + xi2
    a = xi2 / c
    weight = 1 / (1 + np.exp(-(m1 @ m1 - m2 @ m2) / (4 * c)))

    e = (m1 - m2) / np.linalg.norm(m1 - m2)
    n = np.array([-e[1], e[0]])
    swap = np.column_stack([m2, m1]) @ np.linalg.inv(np.column_stack([m1, m2]))
    # U_h^T e = -e / c; the linear parts are closed by one linear system for the rest of U_1, U_2
    V1 = np.outer(e, n)
    V2 = a * swap - V1
    target = (1 - a) / c * np.eye(2) + (V1 + V2) @ np.outer(e, e) / c
    rest = np.linalg.solve(np.column_stack([V1 @ n, V2 @ n]), target)
    heads = MultiHead(
        [Head(-np.outer(e, e) / c + np.outer(n, s), V) for s, V in zip(rest, (V1, V2), strict=True)]
    )

    def excess(weight):
        mixture = GaussianMixture([weight, 1 - weight], [m1, m2], gamma2 * np.eye(2))
        return DenoisingTask(mixture, xi2).excess_risk(heads)

    assert excess(weight) < 1e-28
    assert excess(0.5) > 1e-3


@pytest.mark.claim("P4.4")
@pytest.mark.parametrize(("gamma2", "xi2"), [(1.0, 4.0), (4.0, 1.0)])
def test_one_residual_head_is_enough_where_a_plain_one_is_not(gamma2, xi2):
    a = xi2 / (gamma2 + xi2)
    head = Head(np.eye(2) / (gamma2 + xi2), a / (1 - 2 * a) * np.eye(2))
    layer = ResidualMultiHead([head], (1 - 2 * a) * np.eye(2))
    assert pair(gamma2, xi2, 4.0, weight=0.3).excess_risk(layer) < 1e-28
