"""The mixture against independent routes: mpmath, SciPy, differences, simulation."""

import copy
import dataclasses
import pickle

import mpmath
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from mixattn import GaussianMixture

seeds = st.integers(0, 2**32 - 1)


def random_mixture(rng, dim=None, n_components=None, *, shared=False, rank=None):
    dim = dim or int(rng.integers(1, 5))
    n_components = n_components or int(rng.integers(1, 5))
    factors = rng.standard_normal((1 if shared else n_components, dim, rank or dim))
    covariances = factors @ factors.swapaxes(1, 2) / dim
    return GaussianMixture(
        rng.dirichlet(np.ones(n_components)),
        rng.standard_normal((n_components, dim)),
        covariances[0] if shared else covariances,
    )


def exact_logits(mixture, t):
    """Exponents log pi_k + m_k.t + t.G_k.t / 2 in 60 digits."""
    t = [mpmath.mpf(float(x)) for x in t]
    d = range(mixture.dim)
    logits = []
    for weight, mean, cov in zip(mixture.weights, mixture.means, mixture.covariances, strict=True):
        linear = sum(mpmath.mpf(float(mean[i])) * t[i] for i in d)
        square = sum(mpmath.mpf(float(cov[i, j])) * t[i] * t[j] for i in d for j in d)
        logits.append(mpmath.log(mpmath.mpf(float(weight))) + linear + square / 2)
    return logits


def exact_cgf_and_gates(mixture, t):
    with mpmath.workdps(60):
        logits = exact_logits(mixture, t)
        peak = max(logits)
        terms = [mpmath.exp(x - peak) for x in logits]
        return float(peak + mpmath.log(sum(terms))), [float(x / sum(terms)) for x in terms]


def numerical_gradient(f, t, step=1e-5):
    """Central differences of f, which takes a stack of points; shape (..., d) appended last."""
    shifts = step * np.eye(len(t))
    return np.moveaxis((f(t + shifts) - f(t - shifts)) / (2 * step), 0, -1)


@pytest.mark.claim("A1.mgf")
def test_cgf_is_the_logarithm_of_the_integrated_exponential():
    """E X^j exp(tX) by quadrature of the density give the cumulants of the tilted law."""
    weights, means, variances = [0.25, 0.75], [-1.0, 2.0], [4.0, 1.0]
    mixture = GaussianMixture(weights, np.transpose([means]), np.reshape(variances, (2, 1, 1)))

    x = np.linspace(-60.0, 60.0, 4001)  # the trapezoidal rule is exact to rounding here
    density = sum(
        p * scipy.stats.norm(m, np.sqrt(v)).pdf(x)
        for p, m, v in zip(weights, means, variances, strict=True)
    )
    for t in (-1.5, 0.0, 0.7, 3.0):
        m0, m1, m2 = (np.trapezoid(x**j * np.exp(t * x) * density, x) for j in range(3))
        np.testing.assert_allclose(mixture.cgf([t]), np.log(m0), atol=1e-12)
        np.testing.assert_allclose(mixture.tilted_mean([t]), [m1 / m0], rtol=1e-11)
        variance = m2 / m0 - (m1 / m0) ** 2
        np.testing.assert_allclose(mixture.tilted_covariance([t]), [[variance]], rtol=1e-11)


@pytest.mark.claim("A1.mgf")
def test_cgf_is_that_of_the_samples(rng):
    mixture = random_mixture(rng, 3, 3)
    x, _ = mixture.sample(200_000, rng)
    for t in 0.5 * rng.standard_normal((4, 3)):
        values = np.exp(x @ t)
        error = values.std() / np.sqrt(len(x))
        assert abs(values.mean() - np.exp(mixture.cgf(t))) < 4.5 * error


@given(seeds, st.sampled_from([1e-3, 1.0, 30.0, 1e3]))
def test_cgf_and_gates_match_high_precision_at_any_tilt(seed, size):
    rng = np.random.default_rng(seed)
    mixture = random_mixture(rng)
    t = size * rng.standard_normal(mixture.dim)
    cgf, gates = exact_cgf_and_gates(mixture, t)
    # the exponents, up to 1e6, are rounded: so are the logarithms of the gates
    largest = np.abs([float(x) for x in exact_logits(mixture, t)]).max()
    rounding = 30 * np.finfo(float).eps * max(largest, 1.0)
    np.testing.assert_allclose(mixture.cgf(t), cgf, atol=rounding)
    np.testing.assert_allclose(mixture.gates(t), gates, rtol=rounding, atol=1e-300)
    np.testing.assert_allclose(mixture.gates(t).sum(), 1.0, rtol=1e-14)


def test_what_all_components_share_costs_the_gates_no_digits(rng):
    """Exponents of 1e8 in common, differences of order 1."""
    common = 1e4 * np.eye(2)
    means = 1e4 + rng.standard_normal((3, 2))
    means = np.round(means * 2**20) / 2**20
    spread = np.array([[[1.0, 0.25], [0.25, 2.0]], [[3.0, -1.0], [-1.0, 1.0]], np.eye(2)]) / 2**10
    mixture = GaussianMixture([0.25, 0.25, 0.5], means, common + spread)
    t = np.array([10.0, -9.0])
    _, gates = exact_cgf_and_gates(mixture, t)
    np.testing.assert_allclose(mixture.gates(t), gates, rtol=1e-10)


def test_tilted_moments_are_derivatives_of_the_cgf(rng):
    for shared in (False, True):
        mixture = random_mixture(rng, 3, 4, shared=shared)
        for t in rng.standard_normal((5, 3)):
            gradient = numerical_gradient(mixture.cgf, t)
            np.testing.assert_allclose(mixture.tilted_mean(t), gradient, rtol=1e-7, atol=1e-8)
            hessian = numerical_gradient(mixture.tilted_mean, t)
            np.testing.assert_allclose(mixture.tilted_covariance(t), hessian, rtol=1e-7, atol=1e-8)


def test_without_tilt_the_tilted_law_is_the_law(rng):
    mixture = random_mixture(rng, 3, 4)
    zero = np.zeros(3)
    assert abs(mixture.cgf(zero)) < 1e-14
    np.testing.assert_allclose(mixture.gates(zero), mixture.weights, rtol=1e-13)
    np.testing.assert_allclose(mixture.tilted_mean(zero), mixture.mean, atol=1e-13)
    np.testing.assert_allclose(mixture.tilted_covariance(zero), mixture.covariance, atol=1e-13)


def test_moments_and_samples_agree(rng):
    mixture = random_mixture(rng, 3, 4)
    n = 100_000
    x, labels = mixture.sample(n, rng)
    assert x.shape == (n, 3)
    counts = np.bincount(labels, minlength=4)
    p = mixture.weights
    assert (np.abs(counts - n * p) < 4.5 * np.sqrt(n * p * (1 - p))).all()
    assert (np.abs(x.mean(0) - mixture.mean) < 4.5 * x.std(0) / np.sqrt(n)).all()
    products = x[:, :, None] * x[:, None, :]
    error = products.std(0) / np.sqrt(n)
    assert (np.abs(products.mean(0) - mixture.second_moment) < 4.5 * error).all()
    np.testing.assert_allclose(
        mixture.covariance, mixture.second_moment - np.outer(mixture.mean, mixture.mean), atol=1e-13
    )
    for k in range(4):
        own = x[labels == k]
        z = (own.mean(0) - mixture.means[k]) / (own.std(0) / np.sqrt(len(own)))
        assert (np.abs(z) < 4.5).all()
        centered = own - mixture.means[k]
        products = centered[:, :, None] * centered[:, None, :]
        error = products.std(0) / np.sqrt(len(own))
        assert (np.abs(products.mean(0) - mixture.covariances[k]) < 4.5 * error).all()


def test_samples_of_degenerate_components_stay_on_their_supports(rng):
    direction = np.array([3.0, 4.0]) / 5
    mixture = GaussianMixture(
        [0.3, 0.7, 0.0], [[1.0, 2.0], [-5.0, 0.0], [9.0, 9.0]],
        [np.zeros((2, 2)), np.outer(direction, direction), np.eye(2)],
    )  # fmt: skip
    x, labels = mixture.sample(1000, rng)
    np.testing.assert_array_equal(x[labels == 0], np.broadcast_to([1.0, 2.0], x[labels == 0].shape))
    across = (x[labels == 1] - [-5.0, 0.0]) @ [-direction[1], direction[0]]
    assert np.abs(across).max() < 1e-7  # the square root of a rounded zero eigenvalue
    assert (x[labels == 1] @ direction).std() > 0.9
    assert (labels != 2).all()


def test_sampling_is_reproducible_and_takes_zero_points():
    mixture = random_mixture(np.random.default_rng(0), 2, 3)
    first, second = (mixture.sample(10, np.random.default_rng(1))[0] for _ in range(2))
    np.testing.assert_array_equal(first, second)
    x, labels = mixture.sample(0, np.random.default_rng(1))
    assert x.shape == (0, 2)
    assert labels.shape == (0,)


def test_density_score_and_posterior(rng):
    mixture = random_mixture(rng, 3, 3).add_noise(0.1)
    x = 2 * rng.standard_normal((6, 3))
    joint = np.stack(
        [
            p * scipy.stats.multivariate_normal(m, c).pdf(x)
            for p, m, c in zip(mixture.weights, mixture.means, mixture.covariances, strict=True)
        ],
        axis=-1,
    )
    np.testing.assert_allclose(mixture.log_density(x), np.log(joint.sum(-1)), rtol=1e-10)
    np.testing.assert_allclose(
        mixture.posterior(x), joint / joint.sum(-1, keepdims=True), rtol=1e-9, atol=1e-300
    )
    for point in x:
        gradient = numerical_gradient(mixture.log_density, point)
        np.testing.assert_allclose(mixture.score(point), gradient, rtol=1e-6, atol=1e-7)


def test_density_far_out_neither_underflows_nor_warns():
    mixture = GaussianMixture([0.5, 0.5], [[-1.0], [1.0]], [[1.0]])
    expected = np.log(0.5) - 0.5 * 999.0**2 - 0.5 * np.log(2 * np.pi)
    np.testing.assert_allclose(mixture.log_density([1000.0]), expected, rtol=1e-14)
    np.testing.assert_allclose(mixture.score([1000.0]), [-999.0], rtol=1e-14)
    np.testing.assert_array_equal(mixture.posterior([1000.0]), [0.0, 1.0])


def test_noise_adds_its_variance_and_nothing_else(rng):
    mixture = random_mixture(rng, 2, 3, rank=1)
    noisy = mixture.add_noise(0.7)
    np.testing.assert_array_equal(noisy.means, mixture.means)
    np.testing.assert_allclose(noisy.covariance, mixture.covariance + 0.7 * np.eye(2), atol=1e-14)
    t = rng.standard_normal(2)
    np.testing.assert_allclose(noisy.cgf(t), mixture.cgf(t) + 0.35 * t @ t, rtol=1e-13)


@given(seeds)
def test_order_of_components_is_immaterial(seed):
    rng = np.random.default_rng(seed)
    mixture = random_mixture(rng)
    order = rng.permutation(mixture.n_components)
    permuted = GaussianMixture(
        mixture.weights[order], mixture.means[order], mixture.covariances[order]
    )
    t = 3 * rng.standard_normal((4, mixture.dim))
    np.testing.assert_allclose(permuted.cgf(t), mixture.cgf(t), atol=1e-12)
    np.testing.assert_allclose(permuted.gates(t), mixture.gates(t)[:, order], rtol=1e-9)
    np.testing.assert_allclose(permuted.tilted_mean(t), mixture.tilted_mean(t), atol=1e-11)


@given(seeds, st.floats(0.0, 1.0))
def test_a_component_split_in_two_changes_nothing(seed, share):
    rng = np.random.default_rng(seed)
    mixture = random_mixture(rng)
    split = GaussianMixture(
        np.append(mixture.weights[:-1], mixture.weights[-1] * np.array([share, 1 - share])),
        np.append(mixture.means, mixture.means[-1:], axis=0),
        np.append(mixture.covariances, mixture.covariances[-1:], axis=0),
    )
    t = 3 * rng.standard_normal((4, mixture.dim))
    np.testing.assert_allclose(split.cgf(t), mixture.cgf(t), atol=1e-12)
    np.testing.assert_allclose(split.tilted_mean(t), mixture.tilted_mean(t), atol=1e-11)
    np.testing.assert_allclose(
        split.tilted_covariance(t), mixture.tilted_covariance(t), atol=1e-10, rtol=1e-10
    )
    joined = split.gates(t)
    joined = np.concatenate([joined[:, :-2], joined[:, -2:].sum(1, keepdims=True)], axis=1)
    np.testing.assert_allclose(joined, mixture.gates(t), rtol=1e-9, atol=1e-300)


@given(seeds)
def test_one_covariance_given_once_or_for_each_component(seed):
    rng = np.random.default_rng(seed)
    shared = random_mixture(rng, shared=True)
    own = GaussianMixture(shared.weights, shared.means, shared.covariances)
    assert shared.shared_covariance
    assert own.shared_covariance
    nearly = GaussianMixture(
        shared.weights, shared.means,
        shared.covariances * (1 + 1e-15 * np.arange(shared.n_components))[:, None, None],
    )  # fmt: skip
    t = rng.standard_normal((3, shared.dim))
    for name in ("cgf", "gates", "tilted_mean", "tilted_covariance"):
        value = getattr(shared, name)(t)
        np.testing.assert_array_equal(getattr(own, name)(t), value)
        np.testing.assert_allclose(getattr(nearly, name)(t), value, atol=1e-11)


def test_components_of_weight_zero_are_ignored(rng):
    mixture = random_mixture(rng, 2, 2).add_noise(0.1)
    padded = GaussianMixture(
        np.append(mixture.weights, 0.0),
        np.append(mixture.means, [[1e6, -1e6]], axis=0),
        np.append(mixture.covariances, np.zeros((1, 2, 2)), axis=0),
    )
    t = 10 * rng.standard_normal((5, 2))
    for name in ("cgf", "tilted_mean", "tilted_covariance", "log_density", "score"):
        np.testing.assert_allclose(
            getattr(padded, name)(t), getattr(mixture, name)(t), rtol=1e-12, atol=1e-12
        )
    assert (padded.gates(t)[:, 2] == 0).all()
    assert (padded.posterior(t)[:, 2] == 0).all()


@pytest.mark.parametrize("lead", [(), (0,), (1,), (5,), (2, 3), (2, 0, 3)])
def test_leading_axes_are_kept(rng, lead):
    mixture = random_mixture(rng, 2, 3).add_noise(0.1)
    t = rng.standard_normal((*lead, 2))
    for name, shape in [
        ("cgf", ()), ("log_density", ()), ("gates", (3,)), ("posterior", (3,)),
        ("tilted_mean", (2,)), ("score", (2,)), ("tilted_covariance", (2, 2)),
    ]:  # fmt: skip
        value = getattr(mixture, name)(t)
        assert value.shape == (*lead, *shape)
        rows = getattr(mixture, name)(t.reshape(-1, 2)).reshape(value.shape)
        np.testing.assert_allclose(value, rows, rtol=1e-12, atol=1e-14)


def test_blocks_of_tilts_make_no_difference(rng):
    mixture = random_mixture(rng, 4, 3)
    t = rng.standard_normal((30_000, 4))
    mean = mixture.tilted_mean(t)
    some = rng.integers(0, len(t), 50)
    np.testing.assert_allclose(mean[some], [mixture.tilted_mean(t[i]) for i in some], rtol=1e-11)


def test_dimension_and_number_of_components(rng):
    mixture = random_mixture(rng, 4, 3)
    assert (mixture.dim, mixture.n_components) == (4, 3)
    assert repr(mixture) == "GaussianMixture(n_components=3, dim=4)"
    shared = random_mixture(rng, 4, 3, shared=True)
    assert repr(shared) == "GaussianMixture(n_components=3, dim=4, shared_covariance=True)"


@pytest.mark.parametrize("name", ["covariance", "second_moment"])
def test_moments_that_overflow_are_refused(name):
    far = GaussianMixture([0.5, 0.5], [[1e200, 0.0], [0.0, 1.0]], np.eye(2))
    with pytest.raises(ValueError, match="means: expected means whose squares are finite"):
        getattr(far, name)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_cached_factors_are_read_only_in_copies_too(copied):
    mixture = GaussianMixture([0.4, 0.6], [[1.0, 0.0], [0.0, 2.0]], [np.eye(2), 2 * np.eye(2)])
    mixture.log_density([0.0, 0.0])
    mixture.sample(1, np.random.default_rng(0))
    mixture.gates([0.1, 0.2])
    for law in (mixture, copied(mixture)):
        cached = [law._mean_covariance, law._log_weights, *law._roots]
        cached += [factor for _, factor in law._cholesky_factors]
        for array in [law.weights, law.means, law.covariances, *cached]:
            assert not array.flags.writeable
        with pytest.raises(dataclasses.FrozenInstanceError):
            law.weights = np.ones(2)
