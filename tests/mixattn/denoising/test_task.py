"""Bayes denoiser and risks, against brute quadrature, simulation, Tweedie and mpmath."""

import copy
import dataclasses
import pickle

import mpmath as mp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from mixattn import (
    AffineDenoiser,
    DenoisingTask,
    GaussianMixture,
    Head,
    MultiHead,
    ResidualMultiHead,
    RiskEstimate,
    best_affine_denoiser,
    best_linear_denoiser,
    two_head_denoiser,
)

FIGURE_2 = DenoisingTask(GaussianMixture([0.5, 0.5], [[3.0, 0.0], [0.0, 3.0]], np.eye(2)), 4.0)


def random_task(dim, rng, n_components=2, own=False, noise=0.8):
    weights = rng.dirichlet(np.ones(n_components))
    means = rng.standard_normal((n_components, dim)) * 3.0 / np.sqrt(dim)
    count = n_components if own else 1
    roots = rng.standard_normal((count, dim, dim)) / np.sqrt(dim)
    covariances = roots @ roots.transpose(0, 2, 1)
    return DenoisingTask(
        GaussianMixture(weights, means, covariances if own else covariances[0]), noise
    )


def random_network(dim, n_heads, rng, scale=1.0):
    draws = scale * rng.standard_normal((n_heads, 2, dim, dim)) / np.sqrt(dim)
    return MultiHead([Head(U, V) for U, V in draws])


def bayes_by_definition(task, z):
    """E[X | Z = z] from densities and the Gaussian conditioning formula, with explicit inverses."""
    densities, conditional = [], []
    eye = np.eye(task.dim)
    for weight, mean, clean in zip(
        task.mixture.weights, task.mixture.means, task.mixture.covariances, strict=True
    ):
        noisy = clean + task.noise_variance * eye
        densities.append(weight * scipy.stats.multivariate_normal(mean, noisy).pdf(z))
        conditional.append(mean + (z - mean) @ (clean @ np.linalg.inv(noisy)).T)
    posterior = np.array(densities) / np.sum(densities, axis=0)
    return np.einsum("kn,knd->nd", posterior, np.array(conditional)), posterior


def plane_mean(task, f):
    """E f(Z) in the plane: a fine uniform grid around each component."""
    line, step = np.linspace(-8.5, 8.5, 205, retstep=True)
    weights = step * np.exp(-0.5 * line**2) / np.sqrt(2 * np.pi)
    y = np.stack(np.meshgrid(line, line, indexing="ij"), axis=-1).reshape(-1, 2)
    w = np.outer(weights, weights).ravel()
    return sum(
        pi * w @ f(mean + y @ np.linalg.cholesky(cov).T)
        for pi, mean, cov in zip(
            task.noisy.weights, task.noisy.means, task.noisy.covariances, strict=True
        )
    )


# The Bayes denoiser


@pytest.mark.claim("PC.1")
@settings(max_examples=25, deadline=None)
@given(
    dim=st.sampled_from([1, 2, 3, 7]),
    n_components=st.integers(1, 4),
    own=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_bayes_denoiser_is_the_conditional_mean_and_tweedie(dim, n_components, own, seed):
    rng = np.random.default_rng(seed)
    task = random_task(dim, rng, n_components, own)
    z, _ = task.noisy.sample(20, rng)
    value = task.bayes_denoiser(z)
    np.testing.assert_allclose(value, bayes_by_definition(task, z)[0], rtol=1e-9, atol=1e-10)
    tweedie = z + task.noise_variance * task.noisy.score(z)
    np.testing.assert_allclose(value, tweedie, rtol=1e-9, atol=1e-10)


@pytest.mark.claim("PC.1")
def test_tweedie_by_differentiating_the_log_density():
    rng = np.random.default_rng(0)
    task = random_task(3, rng, 3)
    z, _ = task.noisy.sample(5, rng)
    step = 1e-5
    gradient = np.stack(
        [
            (task.noisy.log_density(z + step * e) - task.noisy.log_density(z - step * e))
            / (2 * step)
            for e in np.eye(3)
        ],
        axis=1,
    )
    np.testing.assert_allclose(
        task.bayes_denoiser(z), z + task.noise_variance * gradient, rtol=1e-7, atol=1e-8
    )


@pytest.mark.claim("PC.1")
def test_no_perturbation_of_the_bayes_denoiser_has_a_smaller_risk_on_samples():
    rng = np.random.default_rng(1)
    task = random_task(2, rng)
    x, _ = task.mixture.sample(200_000, rng)
    z = x + np.sqrt(task.noise_variance) * rng.standard_normal(x.shape)
    residual = x - task.bayes_denoiser(z)
    for perturbation in (z, np.ones_like(z), np.sin(z), task.noisy.posterior(z)):
        products = np.sum(residual * perturbation, axis=1)
        assert abs(products.mean()) < 5 * products.std() / np.sqrt(len(z))


@pytest.mark.claim("E11")
@pytest.mark.parametrize("dim", [2, 7, 50])
def test_equal_norms_need_no_offsets(dim):
    rng = np.random.default_rng(dim)
    means = rng.standard_normal((3, dim))
    means *= 2.0 / np.linalg.norm(means, axis=1, keepdims=True)
    weights, gamma2, xi2 = np.array([0.01, 0.39, 0.6]), 0.7, 1.9
    task = DenoisingTask(GaussianMixture(weights, means, gamma2 * np.eye(dim)), xi2)
    z, _ = task.noisy.sample(50, rng)
    scores = weights * np.exp(z @ means.T / (gamma2 + xi2))
    beta = scores / scores.sum(axis=1, keepdims=True)
    a = xi2 / (gamma2 + xi2)
    np.testing.assert_allclose(task.bayes_denoiser(z), (1 - a) * z + a * beta @ means, atol=1e-12)


@pytest.mark.claim("RC.2")
def test_limits_of_large_and_small_noise():
    mixture = GaussianMixture([0.3, 0.7], [[1.0, 2.0], [-1.0, 0.5]], np.diag([1.0, 0.5]))
    points = GaussianMixture([0.3, 0.7], [[1.0, 2.0], [-1.0, 0.5]], np.zeros((2, 2)))
    z = np.array([[0.3, -1.0], [2.0, 2.0]])
    errors = [
        np.abs(DenoisingTask(mixture, xi2).bayes_denoiser(z) - mixture.mean).max()
        for xi2 in (1e4, 1e6)
    ]
    assert errors[1] < 0.011 * errors[0]
    errors = [
        np.abs(DenoisingTask(mixture, xi2).bayes_denoiser(z) - z).max() for xi2 in (1e-4, 1e-6)
    ]
    assert errors[1] < 0.011 * errors[0]
    # point masses: the nearest mean, not the identity
    np.testing.assert_allclose(
        DenoisingTask(points, 1e-3).bayes_denoiser(z), points.means[[1, 0]], atol=1e-12
    )


def test_bayes_denoiser_keeps_leading_axes():
    z = np.zeros((3, 4, 2))
    assert FIGURE_2.bayes_denoiser(z).shape == (3, 4, 2)
    assert FIGURE_2.bayes_denoiser(z[0, 0]).shape == (2,)


# Bayes risk


def test_bayes_risk_of_figure_2():
    risk = FIGURE_2.bayes_risk(rtol=1e-9)
    assert risk == pytest.approx(2.99006, abs=5e-6)
    assert risk.method == "gate quadrature"


@settings(max_examples=10, deadline=None)
@given(n_components=st.integers(1, 4), own=st.booleans(), seed=st.integers(0, 10**6))
def test_bayes_risk_in_the_plane_against_a_fine_grid(n_components, own, seed):
    task = random_task(2, np.random.default_rng(seed), n_components, own, noise=2.0)
    # E|X|^2 - E|f*|^2, a difference that the implementation never takes
    clean = np.trace(task.mixture.second_moment)
    brute = clean - plane_mean(task, lambda z: np.sum(bayes_by_definition(task, z)[0] ** 2, axis=1))
    risk = task.bayes_risk()
    assert risk == pytest.approx(brute, rel=1e-7)
    assert risk.error < 1e-6 * risk


@pytest.mark.parametrize("weight", [0.5, 0.01])
@pytest.mark.parametrize(("distance", "dim"), [(1e-6, 2), (1.0, 7), (6.0, 50), (25.0, 3)])
def test_bayes_risk_of_two_components_against_mpmath(weight, distance, dim):
    gamma2, xi2 = 0.5, 1.5
    direction = np.random.default_rng(dim).standard_normal(dim)
    direction /= np.linalg.norm(direction)
    means = np.array([0.7 * distance * direction, -0.3 * distance * direction])
    task = DenoisingTask(GaussianMixture([weight, 1 - weight], means, gamma2 * np.eye(dim)), xi2)
    with mp.workdps(30):
        c = mp.mpf(gamma2 + xi2)
        w = mp.mpf(distance) / mp.sqrt(c)
        p, q = mp.mpf(weight), 1 - mp.mpf(weight)

        def product(y):  # pi_1 p_1 pi_2 p_2 / (pi_1 p_1 + pi_2 p_2)
            first, second = p * mp.npdf(y, w, 1), q * mp.npdf(y, 0, 1)
            return first * second / (first + second)

        cuts = [-14, -5, 0, w / 4, w / 2, 3 * w / 4, w, w + 5, w + 14]
        between = mp.quad(product, sorted(cuts)) * (mp.mpf(xi2) / c * distance) ** 2
        within = dim * mp.mpf(gamma2) * xi2 / c
        expected, small = float(within + between), float(between)
    assert task.bayes_risk() == pytest.approx(expected, rel=1e-12)
    degenerate = DenoisingTask(
        GaussianMixture([weight, 1 - weight], means, np.zeros((dim, dim))), gamma2 + xi2
    )
    # without within-component variance the small part is all there is
    assert degenerate.bayes_risk() == pytest.approx(small * ((gamma2 + xi2) / xi2) ** 2, rel=1e-9)


def test_bayes_risk_by_simulation_beyond_three_dimensions_with_own_covariances():
    rng = np.random.default_rng(3)
    task = random_task(7, rng, 2, own=True)
    risk = task.bayes_risk()
    assert risk.method == "Sobol points"
    x, _ = task.mixture.sample(100_000, rng)
    z = x + np.sqrt(task.noise_variance) * rng.standard_normal(x.shape)
    losses = np.sum((x - task.bayes_denoiser(z)) ** 2, axis=1)
    assert abs(losses.mean() - risk) < 5 * losses.std() / np.sqrt(len(z)) + 2 * risk.error


# Excess risk


@settings(max_examples=10, deadline=None)
@given(
    n_components=st.integers(1, 3),
    n_heads=st.integers(1, 3),
    own=st.booleans(),
    residual=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_excess_risk_in_the_plane_against_a_fine_grid(n_components, n_heads, own, residual, seed):
    rng = np.random.default_rng(seed)
    task = random_task(2, rng, n_components, own, noise=2.0)
    network = random_network(2, n_heads, rng, 0.5)
    if residual:
        network = ResidualMultiHead(network.heads, rng.standard_normal((2, 2 * n_heads)))

    def square(z):
        return np.sum((network(task.noisy, z) - bayes_by_definition(task, z)[0]) ** 2, axis=1)

    risk = task.excess_risk(network)
    assert risk == pytest.approx(plane_mean(task, square), rel=1e-7)
    assert risk.error < 1e-6 * risk
    through_calls = task.excess_risk(lambda z: network(task.noisy, z))
    assert through_calls.method == "tensor quadrature"
    assert through_calls == pytest.approx(risk, rel=1e-8)


@pytest.mark.parametrize(("dim", "n_heads"), [(3, 2), (7, 1), (7, 2), (7, 4), (50, 2), (50, 3)])
def test_excess_risk_in_any_dimension_by_simulation(dim, n_heads):
    rng = np.random.default_rng([dim, n_heads])
    task = random_task(dim, rng)
    network = random_network(dim, n_heads, rng)
    risk = task.excess_risk(network, rtol=1e-7)
    assert risk.method == "gate quadrature"
    z, _ = task.noisy.sample(40_000, rng)
    squares = np.sum((network(task.noisy, z) - task.bayes_denoiser(z)) ** 2, axis=1)
    assert abs(squares.mean() - risk) < 5 * squares.std() / np.sqrt(len(z))


@pytest.mark.parametrize("dim", [7, 50])
def test_excess_risk_is_that_of_the_plane_that_it_lives_in(dim):
    """A plane task rotated into R^d, with a denoiser that is exact off the plane."""
    rng = np.random.default_rng(dim)
    plane = FIGURE_2
    heads = random_network(2, 2, rng).heads
    expected = plane.excess_risk(MultiHead(heads))
    basis = np.linalg.qr(rng.standard_normal((dim, 2)))[0]
    off = np.eye(dim) - basis @ basis.T
    task = DenoisingTask(
        GaussianMixture([0.5, 0.5], plane.mixture.means @ basis.T, np.eye(dim)), 4.0
    )
    # the second head carries the shrinkage off the plane: V S U = (1/5) there
    lifted = [Head(basis @ h.U @ basis.T, basis @ h.V @ basis.T) for h in heads]
    lifted[1] = Head(lifted[1].U + off, lifted[1].V + off / 25.0)
    assert task.excess_risk(MultiHead(lifted)) == pytest.approx(expected, rel=1e-10)


def test_heads_beyond_two_by_pairs():
    """A head of value zero changes nothing, but brings a fourth projection: the sum over pairs."""
    rng = np.random.default_rng(5)
    task = random_task(6, rng)
    first, second, third = random_network(6, 3, rng).heads
    silent = Head(third.U, 0.0 * third.V)
    direct = task.excess_risk(MultiHead([first, second]))
    assert task.excess_risk(MultiHead([first, silent, second])) == pytest.approx(direct, rel=1e-8)
    halves = [Head(h.U, 0.5 * h.V) for h in (first, first, second, second, silent)]
    assert task.excess_risk(MultiHead(halves)) == pytest.approx(direct, rel=1e-8)


@pytest.mark.parametrize("size", [1e-3, 1e-6, 1e-8])
def test_small_excess_risks_keep_their_digits(size):
    """Near the Bayes denoiser the excess is a quadratic form in the perturbation."""
    rng = np.random.default_rng(6)
    task = FIGURE_2
    bayes = two_head_denoiser(task)
    moves = rng.standard_normal((2, 2, 2))

    def linearized(z):
        """First-order change of the output, by hand: V -> V + move."""
        changes = [
            Head(head.U, move)(task.noisy, z) for head, move in zip(bayes.heads, moves, strict=True)
        ]
        return np.sum(np.sum(changes, axis=0) ** 2, axis=1)

    moved = MultiHead(
        [Head(head.U, head.V + size * move) for head, move in zip(bayes.heads, moves, strict=True)]
    )
    expected = size**2 * plane_mean(task, linearized)
    assert task.excess_risk(moved) == pytest.approx(expected, rel=1e-6)


def test_a_gate_that_errs_far_from_the_means():
    """Point masses far apart: the excess sits at the boundary, ten deviations out, about 1e-22."""
    separation, xi2 = 20.0, 1.0
    m = np.array([separation / 2, 0.0])
    task = DenoisingTask(GaussianMixture([0.5, 0.5], [m, -m], np.zeros((2, 2))), xi2)
    e, n = np.eye(2)
    # the single head of Remark 4.2 with a gate ten percent too steep
    steep = Head(1.1 * np.outer(e + n, e) / xi2, np.outer(e, e) - np.outer(e, n))
    with mp.workdps(40):

        def square(y):  # by symmetry, one component is enough
            gap = mp.tanh(mp.mpf("1.1") * separation / 2 * y) - mp.tanh(mp.mpf(separation) / 2 * y)
            return mp.npdf(y, separation / 2, 1) * gap**2

        cuts = [-2, -1, -0.5, -0.1, 0, 0.1, 0.5, 1, 2, 5, 10, 25]
        expected = float((separation / 2) ** 2 * mp.quad(square, cuts))
    assert expected < 1e-19
    assert task.excess_risk(MultiHead([steep])) == pytest.approx(expected, rel=1e-6)


@pytest.mark.claim("T4.1.affine", "T4.1.gap")
def test_linear_and_affine_baselines_of_figure_2():
    linear = AffineDenoiser(best_linear_denoiser(FIGURE_2))
    affine = AffineDenoiser(*best_affine_denoiser(FIGURE_2))
    for baseline, expected in ((linear, 1.64152), (affine, 0.12573)):
        risk = FIGURE_2.excess_risk(baseline, rtol=1e-9)
        assert risk == pytest.approx(expected, abs=5e-6)
        assert FIGURE_2.excess_risk(lambda z, b=baseline: b(z)) == pytest.approx(risk, rel=1e-9)
        square = plane_mean(
            FIGURE_2,
            lambda z, b=baseline: np.sum((b(z) - bayes_by_definition(FIGURE_2, z)[0]) ** 2, axis=1),
        )
        assert risk == pytest.approx(square, rel=1e-8)


def test_components_of_weight_zero_change_nothing():
    rng = np.random.default_rng(8)
    two = random_task(5, rng)
    means = np.vstack([two.mixture.means[:1], [[9.0] * 5], two.mixture.means[1:]])
    weights = [two.mixture.weights[0], 0.0, two.mixture.weights[1]]
    three = DenoisingTask(
        GaussianMixture(weights, means, two.mixture.covariances[0]), two.noise_variance
    )
    network = random_network(5, 2, rng)
    assert three.bayes_risk() == pytest.approx(two.bayes_risk(), rel=1e-13)
    assert three.excess_risk(network) == pytest.approx(two.excess_risk(network), rel=1e-12)
    z = rng.standard_normal((4, 5))
    np.testing.assert_allclose(three.bayes_denoiser(z), two.bayes_denoiser(z), atol=1e-13)


def test_one_component_is_affine():
    rng = np.random.default_rng(9)
    task = random_task(4, rng, 1)
    affine = AffineDenoiser(*best_affine_denoiser(task))
    assert task.excess_risk(affine) < 1e-25
    assert task.bayes_risk() == pytest.approx(
        task.noise_variance
        * np.trace(task.mixture.covariances[0] @ np.linalg.inv(task.noisy.covariances[0])),
        rel=1e-12,
    )


def test_far_means_keep_their_digits():
    """A translation of task and denoiser changes no excess risk."""
    rng = np.random.default_rng(10)
    task = random_task(3, rng)
    A, c = rng.standard_normal((3, 3)), rng.standard_normal(3)
    shift = 1e3 * rng.standard_normal(3)
    moved = DenoisingTask(
        GaussianMixture(
            task.mixture.weights, task.mixture.means + shift, task.mixture.covariances[0]
        ),
        task.noise_variance,
    )
    expected = task.excess_risk(AffineDenoiser(A, c))
    value = moved.excess_risk(AffineDenoiser(A, c + shift - A @ shift))
    assert value == pytest.approx(expected, rel=1e-9)


# What a risk says of itself, and refusals


def test_a_risk_is_a_float_that_can_be_copied():
    risk = FIGURE_2.bayes_risk()
    assert isinstance(risk, float)
    for twin in (copy.copy(risk), pickle.loads(pickle.dumps(risk))):
        assert (twin, twin.error, twin.method) == (risk, risk.error, risk.method)


def test_sobol_accuracy_is_estimated_and_more_is_refused():
    rng = np.random.default_rng(11)
    task = random_task(7, rng)
    network = random_network(7, 1, rng)
    exact = task.excess_risk(network)
    estimate = task.excess_risk(lambda z: network(task.noisy, z))
    assert estimate.method == "Sobol points"
    assert abs(estimate - exact) < 2 * estimate.error
    assert estimate.error < 1e-2 * estimate
    with pytest.raises(ValueError, match="rtol: asked for a relative accuracy of 1e-08"):
        task.excess_risk(lambda z: network(task.noisy, z), rtol=1e-8)


def test_the_bayes_denoiser_as_a_callable_has_excess_zero_even_when_accuracy_is_demanded():
    assert FIGURE_2.excess_risk(FIGURE_2.bayes_denoiser, rtol=1e-6) < 1e-25


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("mixture", 1.0), "mixture: expected a GaussianMixture, got str"),
        ((FIGURE_2.mixture, 0.0), "noise_variance: expected a number > 0"),
        ((FIGURE_2.mixture, np.nan), "noise_variance: expected finite"),
        ((FIGURE_2.mixture, -1.0), "noise_variance: expected a number > 0"),
    ],
)
def test_refused_tasks(arguments, message):
    with pytest.raises(ValueError, match=message):
        DenoisingTask(*arguments)


@pytest.mark.parametrize(
    ("denoiser", "message"),
    [
        (3.0, "denoiser: expected a Head"),
        (Head(np.eye(3), np.eye(3)), r"denoiser: U: expected shape \(2, 2\), got \(3, 3\)"),
        (Head(np.eye(2), np.ones((1, 2))), r"denoiser: V: expected shape \(2, 2\)"),
        (
            ResidualMultiHead([Head(np.eye(2), np.eye(2))], np.ones((3, 2))),
            r"W_out: expected shape \(2, 2\)",
        ),
        (AffineDenoiser(np.eye(3)), r"denoiser.A: expected shape \(2, 2\)"),
        (lambda z: z[:, :1], r"denoiser\(z\): expected shape"),
        (lambda z: np.full_like(z, np.nan), r"denoiser\(z\): expected finite"),
    ],
)
def test_refused_denoisers(denoiser, message):
    with pytest.raises(ValueError, match=message):
        FIGURE_2.excess_risk(denoiser)


def test_refused_queries_and_maps():
    with pytest.raises(ValueError, match=r"z: expected shape \(\.\.\., 2\), got \(3,\)"):
        FIGURE_2.bayes_denoiser(np.zeros(3))
    with pytest.raises(ValueError, match="rtol: expected a number > 0"):
        FIGURE_2.bayes_risk(rtol=0.0)
    with pytest.raises(ValueError, match=r"A: expected shape \(2, 2\), got \(2, 3\)"):
        AffineDenoiser(np.ones((2, 3)))
    with pytest.raises(ValueError, match=r"c: expected shape \(2,\), got \(3,\)"):
        AffineDenoiser(np.eye(2), np.ones(3))


def test_short_representations():
    assert "noise_variance=4" in repr(FIGURE_2)
    assert repr(AffineDenoiser(np.eye(2))) == "AffineDenoiser(dim=2)"
    assert repr(two_head_denoiser(FIGURE_2)) == "TwoHeadDenoiser(dim=2, construction='uniform')"


ONE_GAUSSIAN = DenoisingTask(GaussianMixture([1.0], [[0.0]], [[1.0]]), 1.0)  # f*(z) = z / 2


def test_a_denoiser_that_works_in_place_gets_a_copy():
    pair = DenoisingTask(GaussianMixture([0.5, 0.5], [[1.0], [-1.0]], [[0.5]]), 0.5)

    def halves(z):
        z *= 0.5
        return z

    assert pair.excess_risk(halves) == pair.excess_risk(lambda z: 0.5 * z)
    assert pair.excess_risk(halves) == pytest.approx(
        pair.excess_risk(AffineDenoiser([[0.5]])), rel=1e-9
    )


@pytest.mark.parametrize("frequency", [40.0, 1000.0])
@pytest.mark.parametrize("wave", [np.sin, np.cos])
def test_excess_risk_of_a_fast_oscillation(wave, frequency):
    risk = ONE_GAUSSIAN.excess_risk(lambda z: wave(frequency * z) + 0.5 * z)
    assert risk == pytest.approx(0.5, rel=1e-9)  # E cos(2 f Z) is below the smallest float
    assert risk.error < 1e-8


@pytest.mark.parametrize(("value", "error"), [(np.nan, 0.1), (0.1, np.nan), (0.1, -1.0)])
def test_a_risk_estimate_is_made_of_numbers(value, error):
    with pytest.raises(ValueError, match="expected"):
        RiskEstimate(value, error, "by hand")


def test_copies_of_a_task_are_frozen_and_compute_the_same():
    task = random_task(3, np.random.default_rng(5), own=True)
    risk = task.bayes_risk()
    twins = copy.copy(task), copy.deepcopy(task), pickle.loads(pickle.dumps(task))
    for twin in (task, *twins):
        assert twin.bayes_risk() == risk
        for array in (twin.mixture.means, twin.noisy.covariances, *twin._shrinkages):
            assert not array.flags.writeable
        with pytest.raises(dataclasses.FrozenInstanceError):
            twin.noise_variance = 2.0
    affine = copy.deepcopy(AffineDenoiser(np.eye(2), [1.0, 2.0]))
    with pytest.raises(ValueError, match="read-only"):
        affine.A[0, 0] = 2.0


def test_predicates_of_a_task():
    def pair(first, second, covariance=1.0):
        return DenoisingTask(
            GaussianMixture([0.3, 0.7], [first, second], covariance * np.eye(2)), 1.0
        )

    assert pair([3.0, 0.0], [0.0, 3.0 * (1 + 5e-10)]).has_equal_norms
    assert not pair([3.0, 0.0], [0.0, 3.0 * (1 + 5e-9)]).has_equal_norms
    assert pair([1e200, 0.0], [0.0, 1e200]).has_equal_norms
    assert pair([1.0, 2.0], [-1.0, -2.0]).has_opposite_means
    assert not pair([1.0, 2.0], [-1.0, -2.0 + 1e-8]).has_opposite_means
    assert pair([1.0, 2.0], [0.0, 0.0], 4.0).within_variance == 4.0
    own = GaussianMixture([0.3, 0.7], [[1.0, 0.0], [0.0, 1.0]], [np.eye(2), 2 * np.eye(2)])
    assert DenoisingTask(own, 1.0).within_variance is None


@pytest.mark.parametrize(
    "use",
    [
        lambda task: task.bayes_risk(),
        lambda task: task.excess_risk(two_head_denoiser(task)),
        lambda task: task.excess_risk(lambda z: z),
        best_linear_denoiser,
        best_affine_denoiser,
    ],
)
def test_means_whose_squares_overflow_are_refused_in_words(use):
    far = DenoisingTask(GaussianMixture([0.4, 0.6], [[1e200, 0.0], [0.0, 1e200]], np.eye(2)), 4.0)
    with pytest.raises(ValueError, match=r"expected (means|points)"):
        use(far)
