"""What chapter 10 claims, by routes that the chapter does not use."""

import numpy as np
import pytest

from mixattn import (
    DenoisingTask,
    GaussianMixture,
    Head,
    MultiHead,
    ResidualMultiHead,
    in_context_denoiser,
    softmax_attention,
)

GAMMA2, XI2 = 1.0, 4.0
S2, SHARE = GAMMA2 + XI2, XI2 / (GAMMA2 + XI2)
EYE = np.eye(2)


def on_circle(*degrees, radius=3.0):
    angle = np.deg2rad(degrees)
    return radius * np.stack([np.cos(angle), np.sin(angle)], axis=1)


def conditional_mean(weights, means, z, half_width=14.0, points=281):
    """E[X | Z = z] as a ratio of sums over a grid of clean points: neither gates nor posteriors."""
    axis = np.linspace(-half_width, half_width, points)
    x = np.stack(np.meshgrid(axis, axis), axis=-1).reshape(-1, 2)
    squares = ((x[:, None] - means) ** 2).sum(axis=-1)
    prior = np.exp(-squares / (2 * GAMMA2)) @ weights
    kernel = prior * np.exp(-((z[:, None] - x) ** 2).sum(axis=-1) / (2 * XI2))
    return kernel @ x / kernel.sum(axis=1, keepdims=True)


@pytest.mark.claim("P4.4", "P4.4.components")
@pytest.mark.parametrize(
    ("degrees", "weights"), [((0, 70), [0.9, 0.1]), ((10, 100, 190, 300), [0.1, 0.2, 0.3, 0.4])]
)
def test_layer_is_the_conditional_mean_by_integration(degrees, weights):
    layer, means = in_context_denoiser(2, GAMMA2, XI2), on_circle(*degrees)
    z = 3 * np.random.default_rng(1).standard_normal((12, 2))
    output = layer(GaussianMixture(weights, means, S2 * EYE), z)
    np.testing.assert_allclose(output, conditional_mean(np.array(weights), means, z), atol=1e-9)


@pytest.mark.claim("P4.4")
def test_smallest_risk_of_all_perturbed_layers():
    # the in-context risk over two tasks, as an excess: no direction in weight space lowers it
    layer, rng = in_context_denoiser(2, GAMMA2, XI2), np.random.default_rng(2)
    tasks = [
        DenoisingTask(GaussianMixture([w, 1 - w], on_circle(*d), EYE), XI2)
        for d, w in (((0, 90), 0.5), ((40, 200), 0.3))
    ]
    assert sum(task.excess_risk(layer) for task in tasks) < 1e-25
    for _ in range(5):
        heads = [
            Head(*np.array([h.U, h.V]) + 1e-3 * rng.standard_normal((2, 2, 2))) for h in layer.heads
        ]
        moved = ResidualMultiHead(heads, layer.W_out + 1e-3 * rng.standard_normal((2, 4)))
        assert sum(task.excess_risk(moved) for task in tasks) > 1e-8


@pytest.mark.claim("P4.4.control")
def test_unequal_norms_act_as_tilted_weights():
    means, weights = np.array([[3.0, 0.0], [0.0, 4.0]]), np.array([0.6, 0.4])
    z = 3 * np.random.default_rng(3).standard_normal((12, 2))
    output = in_context_denoiser(2, GAMMA2, XI2)(GaussianMixture(weights, means, S2 * EYE), z)
    tilted = weights * np.exp([9 / (2 * S2), 16 / (2 * S2)])
    np.testing.assert_allclose(output, conditional_mean(tilted, means, z), atol=1e-9)
    assert np.max(np.abs(output - conditional_mean(weights, means, z))) > 0.1


@pytest.mark.claim("P4.4.control")
def test_what_a_layer_without_residual_misses_by_simulation():
    plain = MultiHead(in_context_denoiser(2, GAMMA2, XI2).heads)
    mixture, rng = GaussianMixture([0.3, 0.7], on_circle(0, 120), EYE), np.random.default_rng(4)
    X = mixture.sample(100_000, rng)[0]
    Z = X + 2 * rng.standard_normal(X.shape)
    noisy = mixture.add_noise(XI2)
    layer = in_context_denoiser(2, GAMMA2, XI2)
    extra = ((X - plain(noisy, Z)) ** 2).sum(axis=1) - ((X - layer(noisy, Z)) ** 2).sum(axis=1)
    expected = (1 - 2 * SHARE) ** 2 * (9 + 2 * S2)
    assert abs(extra.mean() - expected) < 4 * extra.std() / np.sqrt(len(extra))


@pytest.mark.claim("P4.4.control")
@pytest.mark.parametrize("k", [1.0, 10.0, 100.0])
def test_hard_plain_head_copies_up_to_its_bound(k):
    U, V = k / S2 * EYE, (1 - 2 * SHARE) / k * EYE
    noisy = GaussianMixture([0.3, 0.7], on_circle(0, 120), S2 * EYE)
    z = 3 * np.random.default_rng(5).standard_normal((50, 2))
    miss = np.linalg.norm(Head(U, V)(noisy, z) - (1 - 2 * SHARE) * z, axis=1)
    assert np.all(miss <= abs(1 - 2 * SHARE) * 3 / k + 1e-12)
    assert np.max(miss) > 0.5 * abs(1 - 2 * SHARE) * 3 / k


@pytest.mark.claim("P4.4")
def test_layer_reads_a_finite_prompt_by_plain_softmax_attention():
    layer, rng = in_context_denoiser(2, GAMMA2, XI2), np.random.default_rng(6)
    tokens, z = 2 * rng.standard_normal((40, 2)), rng.standard_normal((7, 2))
    barycenter = softmax_attention(tokens, z, EYE / S2, EYE)
    expected = (1 - 2 * SHARE) * z + SHARE * barycenter
    np.testing.assert_allclose(layer(tokens, z), expected, atol=1e-13)
