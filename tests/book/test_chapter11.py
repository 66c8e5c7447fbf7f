"""What chapter 11 claims, by routes that the chapter does not use."""

import math

import notebooks
import numpy as np
import pytest

from companion.store import read_data
from mixattn import DenoisingTask, GaussianMixture, in_context_denoiser
from mixattn.finite_prompt import exact_error_1d, mean_square_error_1d

STANDARD = GaussianMixture([1.0], [[0.0]], [[1.0]])


@pytest.fixture(scope="module")
def data():
    return read_data("ch11_finite_prompts", notebooks.ROOT / "book" / "data")


def rho(gain):
    return min(1.0, (math.sqrt(1 + 4 / gain**2) - 1) / 2)


@pytest.mark.claim("X.rate")
@pytest.mark.parametrize("gain", [0.4, 0.7, 0.8, 1.0, 1.5, 3.0])
def test_exponent_by_brute_force_over_tokens_and_queries(gain):
    # tokens at y r for a tilt b r: expected number times squared share, both as powers of L
    y, b = np.linspace(0, 4, 1601), np.linspace(1e-3, 1.5, 1201)[:, None]
    share = np.minimum(0.0, 2 * b * y - b**2 - 1)
    error = np.minimum(np.max(1 - y**2 + 2 * share, axis=1), 0.0)
    assert np.min(-error + b[:, 0] ** 2 / gain**2) == pytest.approx(rho(gain), abs=2e-3)
    # a typical prompt has no token beyond y = 1
    typical = np.where(y <= 1, 1 - y**2 + 2 * share, -np.inf).max(axis=1)
    expected = min(1.0, 2 / (1 + 2 * gain**2))
    assert np.min(-typical + b[:, 0] ** 2 / gain**2) == pytest.approx(expected, abs=2e-3)


@pytest.mark.claim("X.rate")
def test_thresholds_of_one_query():
    # well above exp(3 t^2 / 2) tokens the first order holds, there it holds up to slow factors, and
    # below exp(t^2 / 2) nothing is gained
    tilt = 5.0
    lengths = np.exp([2 * tilt**2 + 6, 1.5 * tilt**2, 0.5 * tilt**2 - 4])
    square = exact_error_1d(STANDARD, [tilt], lengths)[1][0]
    first = np.exp(tilt**2) * (1 + tilt**2) / lengths
    assert square[0] == pytest.approx(first[0], rel=0.02)
    assert 0.1 < square[1] / first[1] < 0.7
    assert square[2] > 0.05 * tilt**2


@pytest.mark.claim("X.finite")
def test_covariance_between_two_heads_by_quadrature():
    mixture = GaussianMixture([0.4, 0.6], [[-1.0], [0.5]], [[0.7]])
    x = np.linspace(-9, 10, 40001)
    mass = np.exp(mixture.log_density(x[:, None])) * (x[1] - x[0])
    t, s = 0.8, -0.5
    parts = []
    for tilt in (t, s):
        w = np.exp(tilt * x)
        w /= mass @ w
        parts.append(w * (x - (mass * w) @ x))
    growth = np.exp(mixture.cgf([t + s]) - mixture.cgf([t]) - mixture.cgf([s]))
    both = mixture.tilted_mean([t + s])[0]
    product = (both - mixture.tilted_mean([t])[0]) * (both - mixture.tilted_mean([s])[0])
    formula = growth * (mixture.tilted_covariance([t + s])[0, 0] + product)
    assert mass @ (parts[0] * parts[1]) == pytest.approx(formula, rel=1e-9)


@pytest.mark.claim("X.rate")
def test_in_context_layer_on_the_line():
    task = DenoisingTask(GaussianMixture([0.5, 0.5], [[3.0], [-3.0]], [[1.0]]), 4.0)
    layer, rng, length = in_context_denoiser(1, 1.0, 4.0), np.random.default_rng(0), 50
    excess = np.empty(3000)
    for row in range(len(excess)):
        z = task.noisy.sample(20, rng)[0]
        off = layer(task.noisy.sample(length, rng)[0], z) - task.bayes_denoiser(z)
        excess[row] = np.mean(off**2)
    expected = 0.64 * mean_square_error_1d(task.noisy, task.noisy, 0.2, [length])[0]
    assert abs(excess.mean() - expected) < 4 * excess.std() / np.sqrt(len(excess))


@pytest.mark.claim("X.rate")
def test_data_file_agrees_with_the_integral(data):
    single = data["single_prompts"]
    exact = mean_square_error_1d(
        STANDARD, STANDARD, 1.0, data["parameters"]["single_prompts"]["lengths"]
    )
    scores = (np.array(single["mean"]) - exact) / np.array(single["standard_error"])
    assert np.max(np.abs(scores)) < 4
    assert np.all(np.array(single["median"]) < exact)
    report = np.array(data["experiments"]["mean_square_error"])
    exact = mean_square_error_1d(
        STANDARD, STANDARD, 1.0, data["parameters"]["experiments"]["lengths"]
    )
    bars = report.std(axis=0) / np.sqrt(len(report))
    assert np.all(np.abs(report.mean(axis=0) - exact) < 4 * bars)
