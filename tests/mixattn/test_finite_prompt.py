"""First-order law and exact moments of a finite prompt's output, by routes that share no code."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from mixattn import (
    GaussianMixture,
    Head,
    effective_prompt_length,
    finite_prompt_bias,
    finite_prompt_covariance,
    softmax_attention,
)
from mixattn.finite_prompt import (
    exact_error_1d,
    exact_participation_1d,
    mean_square_error_1d,
)

STANDARD = GaussianMixture([1.0], [[0.0]], [[1.0]])
PAIR = GaussianMixture([0.3, 0.7], [[-1.0], [0.8]], [[[0.25]], [[1.0]]])


def plane_case():
    mixture = GaussianMixture(
        [0.6, 0.4], [[1.0, 0.0], [-0.5, 1.0]], [np.diag([0.5, 1.0]), [[1.0, 0.3], [0.3, 0.4]]]
    )
    U = np.array([[0.4, -0.2], [0.1, 0.5]])
    V = np.array([[1.0, 0.5], [0.0, -1.0], [2.0, 0.3]])
    return mixture, U, V


def quadrature(mixture, order=40):
    """Points and weights for expectations under a mixture in the plane."""
    x, w = np.polynomial.hermite_e.hermegauss(order)
    grid = np.stack(np.meshgrid(x, x, indexing="ij"), axis=-1).reshape(-1, 2)
    w = np.outer(w, w).ravel() / w.sum() ** 2
    roots = np.linalg.cholesky(mixture.covariances)
    points = [m + grid @ root.T for m, root in zip(mixture.means, roots, strict=True)]
    return np.concatenate(points), np.concatenate([p * w for p in mixture.weights])


@pytest.mark.claim("X.finite")
def test_closed_form_against_quadrature_of_the_squared_weights():
    mixture, U, V = plane_case()
    z = np.random.default_rng(0).standard_normal((2, 3, 2))
    points, mass = quadrature(mixture)
    covariance = finite_prompt_covariance(mixture, z, U, V, 50)
    bias = finite_prompt_bias(mixture, z, U, V, 50)
    length = effective_prompt_length(mixture, z, U, 50)
    assert (covariance.shape, bias.shape, length.shape) == ((2, 3, 3, 3), (2, 3, 3), (2, 3))
    for at in np.ndindex(2, 3):
        w = np.exp(points @ (U @ z[at]))
        w /= mass @ w
        limit = (mass * w) @ points
        off = (points - limit) @ V.T
        expected = np.einsum("n,ni,nj->ij", mass * w**2, off, off) / 50
        np.testing.assert_allclose(covariance[at], expected, rtol=1e-11, atol=1e-13)
        np.testing.assert_allclose(bias[at], -(mass * w**2) @ off / 50, rtol=1e-11, atol=1e-13)
        assert length[at] == pytest.approx(50 / (mass @ w**2), rel=1e-12)


@pytest.mark.claim("X.finite")
def test_first_order_law_by_simulation():
    mixture, U, V = plane_case()
    rng, n_prompts, length = np.random.default_rng(1), 4000, 400
    z = np.array([0.8, -0.6])
    head = Head(U, V)
    outputs = np.array([head(mixture.sample(length, rng)[0], z) for _ in range(n_prompts)]) - head(
        mixture, z
    )
    covariance = finite_prompt_covariance(mixture, z, U, V, length)
    bias = finite_prompt_bias(mixture, z, U, V, length)
    error = np.sqrt(np.diag(covariance) / n_prompts)
    assert np.all(np.abs(outputs.mean(axis=0) - bias) < 4 * error)
    # at this tilt the next order is a few percent at most
    scale = np.sqrt(np.outer(np.diag(covariance), np.diag(covariance)))
    seen = np.cov(outputs.T)
    assert np.all(np.abs(seen - covariance) < 0.1 * scale)
    np.testing.assert_allclose(np.diag(seen), np.diag(covariance), rtol=0.1)


@pytest.mark.claim("X.finite")
@pytest.mark.parametrize(("mixture", "tilt"), [(STANDARD, 1.2), (PAIR, 0.9), (PAIR, -1.1)])
def test_first_order_is_what_the_exact_moments_tend_to(mixture, tilt):
    lengths = np.array([1e3, 1e4, 1e5])
    mean, square = exact_error_1d(mixture, [tilt], lengths)
    variance = (square - mean**2)[0]
    for exact, first in (
        (variance, finite_prompt_covariance(mixture, [tilt], [[1.0]], [[1.0]], 1)[0, 0]),
        (mean[0], finite_prompt_bias(mixture, [tilt], [[1.0]], [[1.0]], 1)[0]),
    ):
        relative = lengths * exact / first - 1.0
        # the next order is 1 / L
        assert abs(relative[2]) < 1e-3
        np.testing.assert_allclose(relative[:2] / relative[1:], 10.0, rtol=0.2)


@pytest.mark.claim("X.finite")
def test_effective_length_is_the_inverse_participation_ratio():
    mixture, U, _ = plane_case()
    z, n = np.array([[0.8, -0.6], [2.0, 1.0]]), 400_000
    p = np.exp(mixture.sample(n, np.random.default_rng(2))[0] @ (U @ z.T))
    p /= p.sum(axis=0)
    seen = 1 / (p**2).sum(axis=0)
    np.testing.assert_allclose(effective_prompt_length(mixture, z, U, n), seen, rtol=0.03)


def test_gaussian_in_closed_form():
    rng = np.random.default_rng(3)
    root = rng.standard_normal((3, 3))
    gamma, U, V = root @ root.T / 3, rng.standard_normal((3, 3)) / 3, rng.standard_normal((2, 3))
    gaussian = GaussianMixture([1.0], rng.standard_normal((1, 3)), gamma)
    z = rng.standard_normal((5, 3))
    t = z @ U.T
    growth = np.exp(np.einsum("ni,ij,nj->n", t, gamma, t))
    shift = t @ gamma @ V.T
    expected = growth[:, None, None] * (V @ gamma @ V.T + shift[:, :, None] * shift[:, None, :])
    got = finite_prompt_covariance(gaussian, z, U, V, 7)
    np.testing.assert_allclose(7 * got, expected, rtol=1e-11, atol=1e-12)
    got = finite_prompt_bias(gaussian, z, U, V, 7)
    np.testing.assert_allclose(7 * got, -growth[:, None] * shift, rtol=1e-11, atol=1e-12)
    np.testing.assert_allclose(effective_prompt_length(gaussian, z, U, 7), 7 / growth, rtol=1e-12)


def test_moving_the_tokens_costs_no_digits():
    far = GaussianMixture(PAIR.weights, PAIR.means + 1e9, PAIR.covariances)
    near = GaussianMixture(PAIR.weights, far.means - 1e9, PAIR.covariances)
    for function in (finite_prompt_covariance, finite_prompt_bias):
        one, other = (function(m, [[3.0]], [[1.0]], [[1.0]], 10) for m in (near, far))
        np.testing.assert_allclose(one, other, rtol=1e-6)
    # shifted moments agree with those of the law near zero
    one, other = (exact_error_1d(m, [0.7], [20.0])[1] for m in (near, far))
    np.testing.assert_allclose(one, other, rtol=1e-6)


def test_extreme_tilts_give_infinities_and_zeros_without_warnings():
    gaussian = GaussianMixture([1.0], [[0.0, 0.0]], np.eye(2))
    z = np.array([100.0, 0.0])
    covariance = finite_prompt_covariance(gaussian, z, np.eye(2), np.eye(2), 10)
    np.testing.assert_array_equal(covariance, [[np.inf, 0.0], [0.0, np.inf]])
    np.testing.assert_array_equal(
        finite_prompt_bias(gaussian, z, np.eye(2), np.eye(2), 10), [-np.inf, 0.0]
    )
    assert effective_prompt_length(gaussian, z, np.eye(2), 10) == 0.0
    # point masses: the softmax picks one, exactly, and nothing fluctuates any more
    masses = GaussianMixture([0.5, 0.5], [[1.0], [-1.0]], [[0.0]])
    assert effective_prompt_length(masses, [1e6], [[1.0]], 10) == pytest.approx(5.0)
    assert finite_prompt_covariance(masses, [1e6], [[1.0]], [[1.0]], 10)[0, 0] == 0.0
    one = GaussianMixture([1.0], [[3.0]], [[0.0]])
    assert effective_prompt_length(one, [1e6], [[1.0]], 10) == 10.0
    with pytest.raises(ValueError, match=r"query: expected a finite tilt 2 U z"):
        effective_prompt_length(gaussian, [1e308, 0.0], np.eye(2), 10)
    with pytest.raises(ValueError, match=r"query: expected a tilt U z with finite K\(2t\)"):
        effective_prompt_length(gaussian, [1e200, 0.0], np.eye(2), 10)


def test_refusals():
    eye = np.eye(2)
    gaussian = GaussianMixture([1.0], [[0.0, 0.0]], eye)
    for function in (finite_prompt_covariance, finite_prompt_bias):
        with pytest.raises(ValueError, match="mixture: expected a GaussianMixture, got list"):
            function([0.0], [0.0, 0.0], eye, eye, 10)
        with pytest.raises(ValueError, match=r"query: expected shape \(\.\.\., 2\), got \(3,\)"):
            function(gaussian, np.zeros(3), eye, eye, 10)
        with pytest.raises(ValueError, match=r"U: expected shape \(2, 2\), got \(2, 3\)"):
            function(gaussian, np.zeros(2), np.zeros((2, 3)), eye, 10)
        with pytest.raises(ValueError, match=r"V: expected shape \(d_out, 2\), got \(2, 3\)"):
            function(gaussian, np.zeros(2), eye, np.zeros((2, 3)), 10)
        with pytest.raises(ValueError, match="V: expected an output of finite size"):
            function(gaussian, np.ones(2), 1e8 * eye, 1e305 * eye, 10)
    for length in (0, -3, 0.5):
        with pytest.raises(ValueError, match=f"length: expected a number >= 1, got {length}"):
            effective_prompt_length(gaussian, np.zeros(2), eye, length)
    with pytest.raises(ValueError, match="length: expected real numbers"):
        finite_prompt_covariance(gaussian, np.zeros(2), eye, eye, "many")
    with pytest.raises(ValueError, match="query: expected finite entries"):
        finite_prompt_bias(gaussian, [np.nan, 0.0], eye, eye, 2)
    with pytest.raises(ValueError, match=r"mixture: .* dimension one, got dim = 2"):
        exact_error_1d(gaussian, [1.0], [10])
    with pytest.raises(ValueError, match=r"queries: .* dimension one, got <class 'float'>"):
        mean_square_error_1d(STANDARD, 1.0, 1.0, [10])
    with pytest.raises(ValueError, match=r"lengths: expected numbers from 1 to 1e30, got 0\.5 to"):
        exact_error_1d(STANDARD, [1.0], [3, 0.5])
    with pytest.raises(ValueError, match="queries: expected positive variances, got 0"):
        mean_square_error_1d(STANDARD, GaussianMixture([1.0], [[1.0]], [[0.0]]), 1.0, [10])
    with pytest.raises(ValueError, match="interaction: expected"):
        mean_square_error_1d(STANDARD, STANDARD, [[1.0]], [10])
    for tilt in (1e3, -1e6):
        with pytest.raises(ValueError, match="tilts: expected exponents t x of tokens that differ"):
            exact_error_1d(PAIR, [tilt], [10])
    with pytest.raises(ValueError, match="center: expected"):
        exact_error_1d(STANDARD, [1.0], [10], center=np.inf)


@pytest.mark.claim("X.finite", "X.rate")
@pytest.mark.parametrize("mixture", [STANDARD, PAIR])
@pytest.mark.parametrize("tilt", [0.0, 0.05, 0.6, -1.5, 4.0])
def test_exact_moments_of_two_tokens_by_double_quadrature(mixture, tilt):
    x = np.linspace(-9.0, 9.0, 1801)
    deviations = np.sqrt(mixture.covariances[:, 0, 0])
    density = norm.pdf(x[:, None], mixture.means[:, 0], deviations) @ mixture.weights
    mass = density * (x[1] - x[0])
    share = 1 / (1 + np.exp(tilt * (x - x[:, None])))
    off = share * x[:, None] + (1 - share) * x - mixture.tilted_mean([tilt])[0]
    mean, square = exact_error_1d(mixture, [tilt], [2])
    assert mean[0, 0] == pytest.approx(mass @ off @ mass, abs=1e-10)
    assert square[0, 0] == pytest.approx(mass @ off**2 @ mass, rel=1e-10)


@pytest.mark.claim("X.rate")
@pytest.mark.parametrize("length", [1, 2, 30])
def test_exact_moments_of_coin_flips_by_the_binomial_law(length):
    coins = GaussianMixture([0.3, 0.7], [[-1.0], [1.0]], [[0.0]])
    heads = np.arange(length + 1)
    mass = np.array([math.comb(length, k) * 0.7**k * 0.3 ** (length - k) for k in heads])
    for tilt in (0.0, 0.4, -2.0):
        up, down = heads * np.exp(tilt), (length - heads) * np.exp(-tilt)
        off = (up - down) / (up + down) - np.tanh(tilt + 0.5 * np.log(0.7 / 0.3))
        mean, square = exact_error_1d(coins, [tilt], [length])
        assert mean[0, 0] == pytest.approx(mass @ off, abs=1e-13)
        assert square[0, 0] == pytest.approx(mass @ off**2, rel=1e-12)


@pytest.mark.claim("X.rate")
@pytest.mark.parametrize("length", [10, 100, 1000])
def test_exact_moments_by_simulation(length):
    rng, n_prompts = np.random.default_rng(4), 3_000_000 // length
    z = np.array([[0.3], [-1.4], [2.5]])
    prompts = PAIR.sample(length * n_prompts, rng)[0].reshape(n_prompts, length)
    outputs = []
    for [t] in z:
        weights = np.exp(t * prompts)
        outputs.append((weights * prompts).sum(axis=1) / weights.sum(axis=1))
    errors = np.stack(outputs, axis=1)
    [first] = softmax_attention(prompts[0][:, None], z[:1], [[1.0]], [[1.0]])
    assert errors[0, 0] == pytest.approx(first[0], rel=1e-12)
    errors -= PAIR.tilted_mean(z)[:, 0]
    mean, square = (exact[:, 0] for exact in exact_error_1d(PAIR, z[:, 0], [length]))
    spread = errors.std(axis=0) / np.sqrt(n_prompts)
    assert np.all(np.abs(errors.mean(axis=0) - mean) < 4 * spread)
    spread = (errors**2).std(axis=0) / np.sqrt(n_prompts)
    assert np.all(np.abs((errors**2).mean(axis=0) - square) < 4 * spread)


def test_error_from_another_center():
    mean, square = exact_error_1d(PAIR, [0.7, -2.0], [5, 500])
    limits = PAIR.tilted_mean([[0.7], [-2.0]])
    moved_mean, moved_square = exact_error_1d(PAIR, [0.7, -2.0], [5, 500], center=0.25)
    np.testing.assert_allclose(moved_mean, mean + limits - 0.25, rtol=1e-12, atol=1e-13)
    expected = square + 2 * mean * (limits - 0.25) + (limits - 0.25) ** 2
    np.testing.assert_allclose(moved_square, expected, rtol=1e-12)


@pytest.mark.claim("X.rate")
def test_average_over_queries_by_simulation_of_prompts_and_queries():
    rng, length, n = np.random.default_rng(5), 20, 200_000
    queries = GaussianMixture([0.5, 0.5], [[-1.0], [2.0]], [[0.5]])
    tokens = PAIR.sample(length * n, rng)[0].reshape(n, length)
    t = 0.8 * queries.sample(n, rng)[0]
    w = np.exp(tokens * t)
    squares = ((w * tokens).sum(axis=1) / w.sum(axis=1) - PAIR.tilted_mean(t)[:, 0]) ** 2
    expected = mean_square_error_1d(PAIR, queries, 0.8, [length])[0]
    assert abs(squares.mean() - expected) < 4 * squares.std() / np.sqrt(n)


@pytest.mark.claim("X.rate")
def test_rate_is_one_over_the_length_below_the_threshold():
    gain2 = 0.25
    [end] = mean_square_error_1d(STANDARD, STANDARD, 0.5, [1e14])
    constant = (1 - 2 * gain2) ** -0.5 + gain2 * (1 - 2 * gain2) ** -1.5
    assert end * 1e14 == pytest.approx(constant, rel=1e-6)


@pytest.mark.claim("X.rate")
@pytest.mark.parametrize(("gain", "within"), [(0.75, 0.02), (1.0, 0.01), (2.0, 0.02)])
def test_slower_rate_beyond_the_threshold(gain, within):
    rho = 0.5 * (math.sqrt(1 + 4 / gain**2) - 1)
    error = mean_square_error_1d(STANDARD, STANDARD, gain, [1e28, 1e29])
    slope = -np.log10(error[1] / error[0])
    assert slope == pytest.approx(rho, abs=within)
    # neither 1 / L, nor the bound 1 / (1 + H^2), nor what typical prompts alone would give
    for other in (1.0, 1 / (1 + gain**2), 2 / (1 + 2 * gain**2)):
        assert abs(slope - other) > abs(slope - rho)


@pytest.mark.claim("X.rate")
def test_local_slopes_of_the_bayes_gate():
    error = mean_square_error_1d(STANDARD, STANDARD, 1.0, 10.0 ** np.arange(2, 11))
    slopes = -np.diff(np.log10(error))
    np.testing.assert_allclose(
        slopes, [0.640, 0.617, 0.607, 0.602, 0.600, 0.600, 0.600, 0.600], atol=6e-4
    )


def test_the_average_sees_only_the_whitened_interaction():
    wide = GaussianMixture([1.0], [[3.0]], [[4.0]])
    queries = GaussianMixture([1.0], [[0.0]], [[4.0]])
    got = mean_square_error_1d(wide, queries, 0.25, [10, 1000])
    expected = 4 * mean_square_error_1d(STANDARD, STANDARD, 1.0, [10, 1000])
    np.testing.assert_allclose(got, expected, rtol=1e-9)


@pytest.mark.claim("X.finite")
def test_exact_participation():
    coins, length = GaussianMixture([0.3, 0.7], [[-1.0], [1.0]], [[0.0]]), 30
    heads = np.arange(length + 1)
    mass = np.array([math.comb(length, k) * 0.7**k * 0.3 ** (length - k) for k in heads])
    up, down = heads * np.exp(0.8), (length - heads) * np.exp(-0.8)
    share = (heads * np.exp(1.6) + (length - heads) * np.exp(-1.6)) / (up + down) ** 2
    got = exact_participation_1d(coins, [0.8], [1, length])
    np.testing.assert_allclose(got, [[1.0, mass @ share]], rtol=1e-12)
    # to first order one over the effective length, and never more than 1
    t = np.array([0.5, 1.5, 200.0])
    exact = exact_participation_1d(PAIR, t, [1e6])[:, 0]
    first = 1 / effective_prompt_length(PAIR, t[:2, None], [[1.0]], 10**6)
    np.testing.assert_allclose(exact[:2], first, rtol=1e-3)
    assert 0.95 < exact[2] <= 1 + 1e-12


@pytest.mark.claim("X.rate")
def test_round_gaussian_in_the_plane_by_simulation():
    # along the query the error of one dimension, across it the participation
    rng, length, n = np.random.default_rng(6), 50, 100_000
    tokens = rng.standard_normal((n, length, 2))
    weights = np.exp(2.0 * tokens[..., 0])
    weights /= weights.sum(axis=1, keepdims=True)
    output = np.einsum("nl,nlk->nk", weights, tokens)
    squares = np.sum((output - [2.0, 0.0]) ** 2, axis=1)
    expected = exact_error_1d(STANDARD, [2.0], [length])[1] + exact_participation_1d(
        STANDARD, [2.0], [length]
    )
    assert abs(squares.mean() - expected[0, 0]) < 4 * squares.std() / np.sqrt(n)


def test_largest_tilt_attends_to_the_longest_token():
    # E max of L standard normals, by quadrature
    x = np.linspace(-10, 12, 40001)
    length = 1000
    density = length * norm.cdf(x) ** (length - 1) * norm.pdf(x) * (x[1] - x[0])
    mean, _ = exact_error_1d(STANDARD, [150.0, -150.0], [length], center=0.0)
    np.testing.assert_allclose(mean[:, 0], density @ x * np.array([1, -1]), rtol=1e-3)


def test_mixtures_with_point_masses_and_empty_components():
    mixed = GaussianMixture(
        [0.5, 0.3, 0.2, 0.0], [[0.0], [1.0], [-2.0], [9.0]], [[[1.0]], [[0.0]], [[0.1]], [[4.0]]]
    )
    rng, n = np.random.default_rng(7), 200_000
    tokens = mixed.sample(5 * n, rng)[0].reshape(n, 5)
    for tilt in (-1.3, 0.2, 3.0):
        w = np.exp(tilt * tokens)
        off = (w * tokens).sum(axis=1) / w.sum(axis=1) - mixed.tilted_mean([tilt])[0]
        mean, square = exact_error_1d(mixed, [tilt], [5])
        assert abs(off.mean() - mean[0, 0]) < 4 * off.std() / np.sqrt(n)
        assert abs((off**2).mean() - square[0, 0]) < 4 * (off**2).std() / np.sqrt(n)


@pytest.mark.parametrize("variance", [1e-12, 1e-26, 1e-34])
def test_narrow_queries_are_one_query(variance):
    far = GaussianMixture([1.0], [[5.0]], [[variance]])
    average = mean_square_error_1d(STANDARD, far, 1.0, [100])
    np.testing.assert_allclose(average, exact_error_1d(STANDARD, [5.0], [100])[1][0], rtol=1e-4)


def test_queries_of_very_different_widths_are_a_weighted_sum():
    widths = [1e-8, 1.0]
    both = GaussianMixture([0.3, 0.7], [[0.0], [0.0]], [[[v]] for v in widths])
    one_by_one = [
        mean_square_error_1d(STANDARD, GaussianMixture([1.0], [[0.0]], [[v]]), 1.0, [100])
        for v in widths
    ]
    average = mean_square_error_1d(STANDARD, both, 1.0, [100])
    np.testing.assert_allclose(average, 0.3 * one_by_one[0] + 0.7 * one_by_one[1], rtol=1e-12)


def test_components_without_weight_are_not_there():
    absent = GaussianMixture([1.0, 0.0], [[0.0], [2000.0]], [[[1.0]], [[9.0]]])
    for found, expected in zip(
        exact_error_1d(absent, [5.0], [10]), exact_error_1d(STANDARD, [5.0], [10]), strict=True
    ):
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match="interaction: expected exponents"):
        mean_square_error_1d(absent, STANDARD, 1e308, [10])


@pytest.mark.parametrize("tilt", [1.0, 40.0, 1e8, 1e15, 1e100])
def test_coin_flips_are_read_by_half_of_the_prompt_however_far_the_tilt(tilt):
    coins = GaussianMixture([0.5, 0.5], [[1.0], [-1.0]], [[0.0]])
    expected = 10.0 * np.cosh(min(tilt, 300.0)) ** 2 / np.cosh(2 * min(tilt, 300.0))
    found = effective_prompt_length(coins, [tilt], np.eye(1), 10)
    np.testing.assert_allclose(found, expected, rtol=1e-14)


def test_errors_too_large_to_square_are_refused():
    with pytest.raises(ValueError, match="center: expected errors of finite square"):
        exact_error_1d(STANDARD, [1.0], [10], center=1e200)
    far = GaussianMixture([1.0], [[1e200]], np.eye(1))
    np.testing.assert_allclose(
        exact_participation_1d(far, [0.5], [10]), exact_participation_1d(STANDARD, [0.5], [10])
    )


@pytest.mark.parametrize("function", [finite_prompt_covariance, finite_prompt_bias])
def test_the_value_matrix_has_no_default(function):
    law = GaussianMixture([1.0], [[0.0]], [[1.0]])
    with pytest.raises(ValueError, match=r"^V: expected real numbers of shape \(d_out, 1\)"):
        function(law, [0.5], [[1.0]], None, 10)


def test_participation_of_far_tokens_needs_no_deviation():
    far = GaussianMixture([0.5, 0.5], [[0.0], [1e200]], [[0.0]])
    near = GaussianMixture([0.5, 0.5], [[0.0], [1.0]], [[0.0]])
    np.testing.assert_allclose(
        exact_participation_1d(far, [1e-200], [3, 10]),
        exact_participation_1d(near, [1.0], [3, 10]),
        rtol=1e-12,
    )
