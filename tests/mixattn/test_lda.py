"""Risk, excess risk and derivatives of one attention head on LDA, against independent routes."""

import numpy as np
import pytest

from mixattn.lda import (
    AttentionParams,
    EffectiveParams,
    LDATask,
    effective_jacobian,
    effective_params,
    excess_risk,
    logistic_risk,
    risk_gradient,
    risk_hessian,
)


def random_task(dim, rng, prior=0.3):
    A = rng.normal(size=(dim, dim))
    return LDATask(rng.normal(size=dim), rng.normal(size=dim), A @ A.T + np.eye(dim), prior)


def random_params(kind, dim, rng):
    size = len(np.zeros(2 * dim + 2 if kind is EffectiveParams else dim * dim + 2 * dim + 1))
    return kind.from_vector(rng.normal(size=size), dim)


def central_differences(function, vector, step=1e-5):
    rows = []
    for unit in np.eye(len(vector)):
        rows.append((function(vector + step * unit) - function(vector - step * unit)) / (2 * step))
    return np.array(rows)


@pytest.mark.claim("LB.9", "LB.10", "LB.11", "LB.14")
@pytest.mark.parametrize("kind", [EffectiveParams, AttentionParams])
@pytest.mark.parametrize("dim", [1, 2, 4])
def test_derivatives_agree_with_finite_differences(kind, dim):
    rng = np.random.default_rng(dim)
    task = random_task(dim, rng)
    params = random_params(kind, dim, rng)
    vector = params.to_vector()
    gradient = risk_gradient(params, task).to_vector()
    by_differences = central_differences(
        lambda v: logistic_risk(kind.from_vector(v, dim), task), vector
    )
    np.testing.assert_allclose(gradient, by_differences, atol=1e-9 * np.abs(gradient).max())
    hessian = risk_hessian(params, task)
    by_differences = central_differences(
        lambda v: risk_gradient(kind.from_vector(v, dim), task).to_vector(), vector
    )
    np.testing.assert_allclose(hessian, by_differences, atol=1e-8 * np.abs(hessian).max())


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


def test_excess_risk_scales_as_the_square_of_a_tiny_displacement():
    task = LDATask([1.0, 0.0], [0.0, 1.0], np.eye(2), 0.6)
    w, b = task.bayes_score
    ratios = []
    for exponent in range(4, 13):
        moved = w + np.array([10.0**-exponent, 0.0])
        h = moved[0] - w[0]
        ratios.append(excess_risk(EffectiveParams(moved, b, 0.0, [1.0, 2.0]), task) / h**2)
    np.testing.assert_allclose(ratios, ratios[-1], rtol=1e-3)
