"""Constructions of section 4, against the Bayes denoiser; baselines, against normal equations."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mixattn import (
    AffineDenoiser,
    DenoisingTask,
    GaussianMixture,
    Head,
    MultiHead,
    TwoHeadDenoiser,
    best_affine_denoiser,
    best_linear_denoiser,
    in_context_denoiser,
    one_head_denoiser,
    population_linear_attention,
    two_head_denoiser,
)

DIMS = st.sampled_from([2, 3, 7, 50])
GAMMA2 = st.sampled_from([0.0, 0.3, 1.0, 4.0])
XI2 = st.sampled_from([0.25, 1.0, 4.0])
WEIGHTS = st.sampled_from([0.01, 0.3, 0.5, 0.99])
SEEDS = st.integers(0, 10**6)


def equal_norm_task(dim, gamma2, xi2, weight, seed, angle=None):
    """Two means of norm 2 at `angle` (random if None) in a random plane."""
    rng = np.random.default_rng(seed)
    u, v = np.linalg.qr(rng.standard_normal((dim, 2)))[0].T
    angle = rng.uniform(0.3, 2.8) if angle is None else angle
    first = 2.0 * u
    second = -first if angle == np.pi else 2.0 * (np.cos(angle) * u + np.sin(angle) * v)
    return DenoisingTask(
        GaussianMixture([weight, 1 - weight], [first, second], gamma2 * np.eye(dim)), xi2
    )


def largest_gap(task, denoiser, seed=0):
    z, _ = task.noisy.sample(100, np.random.default_rng(seed))
    return np.abs(denoiser(task.noisy, z) - task.bayes_denoiser(z)).max()


# Two heads


@pytest.mark.claim("T4.1.two", "R4.2")
@settings(max_examples=40, deadline=None)
@given(
    dim=DIMS,
    gamma2=GAMMA2,
    xi2=XI2,
    weight=WEIGHTS,
    seed=SEEDS,
    angle=st.sampled_from([None, None, np.pi, np.pi - 1e-7, np.pi - 1e-3, 1e-3, 1e-6]),
)
def test_two_heads_are_the_bayes_denoiser(dim, gamma2, xi2, weight, seed, angle):
    task = equal_norm_task(dim, gamma2, xi2, weight, seed, angle)
    denoiser = two_head_denoiser(task)
    assert isinstance(denoiser, MultiHead)
    assert denoiser.construction == "uniform"
    assert len(denoiser.heads) == 2
    assert largest_gap(task, denoiser) < 1e-12
    assert task.excess_risk(denoiser) < 1e-24
    # well conditioned: no entry beyond the scales of the problem
    scale = max(1.0, gamma2 / xi2)
    for head in denoiser.heads:
        assert np.abs(head.U).max() <= 2.0 * scale / (gamma2 + xi2)
        assert np.abs(head.V).max() <= 2.0


@pytest.mark.claim("T4.1.two")
@settings(max_examples=40, deadline=None)
@given(dim=DIMS, gamma2=GAMMA2, xi2=XI2, weight=WEIGHTS, seed=SEEDS)
def test_the_printed_construction_for_non_collinear_means(dim, gamma2, xi2, weight, seed):
    task = equal_norm_task(dim, gamma2, xi2, weight, seed)
    denoiser = two_head_denoiser(task, "noncollinear")
    assert denoiser.construction == "noncollinear"
    assert largest_gap(task, denoiser) < 1e-12
    m1, m2 = task.mixture.means
    a = xi2 / (gamma2 + xi2)
    off = np.linalg.qr(np.column_stack([m1, m2]), mode="complete")[0][:, 2:]
    for head, own, other in zip(denoiser.heads, (m1, m2), (m2, m1), strict=True):
        np.testing.assert_allclose(head.V @ own, a * own, atol=1e-12)
        np.testing.assert_allclose(head.V @ other, 0.0, atol=1e-12)
        np.testing.assert_allclose(head.V @ off, 0.5 * a * off, atol=1e-12)


@pytest.mark.claim("T4.1.two")
@settings(max_examples=40, deadline=None)
@given(dim=DIMS, gamma2=GAMMA2, xi2=XI2, weight=WEIGHTS, seed=SEEDS)
def test_the_printed_construction_for_opposite_means(dim, gamma2, xi2, weight, seed):
    task = equal_norm_task(dim, gamma2, xi2, weight, seed, np.pi)
    denoiser = two_head_denoiser(task, "opposite")
    assert denoiser.construction == "opposite"
    assert largest_gap(task, denoiser) < 1e-12
    first, second = denoiser.heads
    m = task.mixture.means[0]
    np.testing.assert_allclose(first.V @ m, second.V @ m, atol=1e-12)


def test_the_printed_construction_degrades_near_opposite_means_and_the_uniform_one_does_not():
    printed, uniform = [], []
    for gap in (1e-2, 1e-5):
        task = equal_norm_task(3, 1.0, 4.0, 0.5, 0, np.pi - gap)
        printed.append(
            max(np.abs(h.V).max() for h in two_head_denoiser(task, "noncollinear").heads)
        )
        uniform.append(max(np.abs(h.V).max() for h in two_head_denoiser(task).heads))
    assert printed[1] > 500 * printed[0]
    assert max(uniform) < 2.0


def test_two_heads_with_a_component_of_weight_zero():
    task = DenoisingTask(GaussianMixture([0.0, 1.0], [[2.0, 0.0], [0.0, 2.0]], np.eye(2)), 2.0)
    assert largest_gap(task, two_head_denoiser(task)) < 1e-13
    means = [[2.0, 0.0], [5.0, 5.0], [0.0, 2.0]]
    task = DenoisingTask(GaussianMixture([0.5, 0.0, 0.5], means, np.eye(2)), 2.0)
    assert largest_gap(task, two_head_denoiser(task)) < 1e-13


# One head


@pytest.mark.claim("T4.1.one")
@settings(max_examples=30, deadline=None)
@given(
    dim=DIMS, xi2=XI2, weight=WEIGHTS, seed=SEEDS, relative=st.sampled_from([0.0, 5e-10, -5e-10])
)
def test_one_head_at_equal_variances(dim, xi2, weight, seed, relative):
    task = equal_norm_task(dim, xi2 * (1 + relative), xi2, weight, seed)
    head = one_head_denoiser(task)
    assert isinstance(head, Head)
    assert largest_gap(task, head) < 1e-12 + 1e-8 * abs(relative) * 1e9
    assert task.excess_risk(head) < 1e-16


@pytest.mark.claim("T4.1.one")
def test_one_head_is_refused_at_other_variances():
    task = equal_norm_task(3, 1.0, 4.0, 0.5, 0)
    with pytest.raises(
        ValueError, match=r"Theorem 4\.1 .* gamma\^2 = xi\^2, got gamma\^2 = 1 and xi"
    ):
        one_head_denoiser(task)


@pytest.mark.claim("R4.2")
@settings(max_examples=40, deadline=None)
@given(
    dim=st.sampled_from([3, 7, 50]),
    xi2=XI2,
    weight=WEIGHTS,
    seed=SEEDS,
    angle=st.sampled_from([None, np.pi, np.pi - 1e-7, np.pi - 1e-3, 1e-4]),
)
def test_one_head_for_point_masses_beyond_the_plane(dim, xi2, weight, seed, angle):
    task = equal_norm_task(dim, 0.0, xi2, weight, seed, angle)
    assert largest_gap(task, one_head_denoiser(task)) < 1e-12


@pytest.mark.claim("R4.2")
def test_one_head_for_point_masses_in_the_plane():
    opposite = equal_norm_task(2, 0.0, 0.7, 0.2, 1, np.pi)
    head = one_head_denoiser(opposite)
    assert largest_gap(opposite, head) < 1e-12
    np.testing.assert_allclose(head.V @ head.U, 0.0, atol=1e-12)
    with pytest.raises(ValueError, match=r"Remark 4\.2 .* opposite"):
        one_head_denoiser(equal_norm_task(2, 0.0, 0.7, 0.2, 1))


# Hypotheses


@pytest.mark.parametrize("build", [two_head_denoiser, one_head_denoiser])
@pytest.mark.parametrize(
    ("weights", "means", "covariance", "message"),
    [
        ([1.0], [[1.0, 0.0]], np.eye(2), "two components, got 1"),
        ([0.2, 0.3, 0.5], np.eye(3)[:, :2] + 1, np.eye(2), "two components, got 3"),
        (
            [0.5, 0.5],
            [[1.0, 0.0], [0.0, 1.1]],
            np.eye(2),
            "means of equal norm, got norms 1 and 1.1",
        ),
        ([0.5, 0.5], [[1.0, 0.0], [1.0, 0.0]], np.eye(2), "distinct means"),
        ([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]], np.diag([1.0, 2.0]), r"one covariance gamma\^2 I"),
        (
            [0.5, 0.5],
            [[1.0, 0.0], [0.0, 1.0]],
            [np.eye(2), 2 * np.eye(2)],
            r"one covariance gamma\^2 I for both",
        ),
    ],
)
def test_refused_hypotheses(build, weights, means, covariance, message):
    task = DenoisingTask(GaussianMixture(weights, means, covariance), 1.0)
    with pytest.raises(ValueError, match=r"Theorem 4\.1 of the paper needs .*" + message):
        build(task)


def test_equal_norms_hold_within_a_relative_1e_9():
    def task(norm):
        return DenoisingTask(GaussianMixture([0.5, 0.5], [[1.0, 0.0], [0.0, norm]], np.eye(2)), 2.0)

    assert isinstance(two_head_denoiser(task(1 + 5e-10)), TwoHeadDenoiser)
    with pytest.raises(ValueError, match="equal norm"):
        two_head_denoiser(task(1 + 5e-9))


def test_other_refusals():
    line = DenoisingTask(GaussianMixture([0.5, 0.5], [[1.0], [-1.0]], np.eye(1)), 2.0)
    with pytest.raises(ValueError, match="dimension d >= 2, got d = 1"):
        two_head_denoiser(line)
    generic = equal_norm_task(3, 1.0, 2.0, 0.5, 0)
    with pytest.raises(ValueError, match="construction: expected one of"):
        two_head_denoiser(generic, "best")
    with pytest.raises(ValueError, match="needs opposite means"):
        two_head_denoiser(generic, "opposite")
    with pytest.raises(ValueError, match="non-collinear"):
        two_head_denoiser(equal_norm_task(3, 1.0, 2.0, 0.5, 0, np.pi), "noncollinear")
    with pytest.raises(ValueError, match="task: expected a DenoisingTask, got int"):
        two_head_denoiser(3)


@pytest.mark.claim("S4.1")
def test_unequal_norms_cost_one_head_even_at_equal_variances():
    """The gate has no offsets: the excess grows with the mismatch of the norms."""
    head = Head(0.5 * np.eye(2), 0.5 * np.eye(2))
    excess = []
    for mismatch in (0.0, 0.1, 0.5):
        means = [[2.0 + mismatch, 0.0], [0.0, 2.0 - mismatch]]
        task = DenoisingTask(GaussianMixture([0.5, 0.5], means, np.eye(2)), 1.0)
        excess.append(task.excess_risk(head))
    assert excess[0] < 1e-28
    assert 1e-3 < excess[1] < excess[2]


# Baselines


@pytest.mark.claim("T4.1.gap", "T4.1.affine")
@settings(max_examples=20, deadline=None)
@given(dim=st.integers(1, 6), n_components=st.integers(1, 4), seed=SEEDS)
def test_baselines_solve_the_normal_equations(dim, n_components, seed):
    rng = np.random.default_rng(seed)
    roots = rng.standard_normal((n_components, dim, dim))
    mixture = GaussianMixture(
        rng.dirichlet(np.ones(n_components)),
        rng.standard_normal((n_components, dim)),
        roots @ roots.transpose(0, 2, 1),
    )
    task = DenoisingTask(mixture, 0.5)
    # E[X X^T] summed by hand; E[X Z^T] = E[X X^T], E[Z Z^T] = E[X X^T] + xi^2 I
    second = sum(
        w * (cov + np.outer(m, m))
        for w, m, cov in zip(mixture.weights, mixture.means, mixture.covariances, strict=True)
    )
    A = best_linear_denoiser(task)
    np.testing.assert_allclose(A @ (second + 0.5 * np.eye(dim)), second, atol=1e-9)
    B, c = best_affine_denoiser(task)
    mean = mixture.weights @ mixture.means
    np.testing.assert_allclose(B @ mean + c, mean, atol=1e-10)
    centered = second - np.outer(mean, mean)
    np.testing.assert_allclose(B @ (centered + 0.5 * np.eye(dim)), centered, atol=1e-9)


@pytest.mark.claim("T4.1.gap")
@pytest.mark.parametrize("dim", [2, 7, 50])
def test_no_linear_map_does_better_and_the_gap_is_strict(dim):
    rng = np.random.default_rng(dim)
    task = equal_norm_task(dim, 0.5, 1.0, 0.3, dim)
    A = best_linear_denoiser(task)
    gap = task.excess_risk(AffineDenoiser(A))
    B, c = best_affine_denoiser(task)
    affine_gap = task.excess_risk(AffineDenoiser(B, c))
    assert 1e-5 < affine_gap < gap
    for _ in range(5):
        move = 1e-3 * rng.standard_normal((dim, dim))
        assert task.excess_risk(AffineDenoiser(A + move)) > gap
        assert task.excess_risk(AffineDenoiser(B + move, c + 1e-3)) > affine_gap


@pytest.mark.claim("LC.7")
def test_networks_of_linear_attention_are_linear():
    rng = np.random.default_rng(0)
    task = equal_norm_task(3, 0.5, 1.0, 0.3, 0)
    z = rng.standard_normal((10, 3))
    value, matrix = z, np.eye(3)
    for _ in range(3):
        heads = rng.standard_normal((2, 2, 3, 3))
        value = sum(population_linear_attention(task.noisy, value, U, V) for U, V in heads)
        matrix = sum(V @ task.noisy.second_moment @ U for U, V in heads) @ matrix
    np.testing.assert_allclose(value, z @ matrix.T, rtol=1e-9)


# In context


@pytest.mark.claim("P4.4", "P4.4.components")
@settings(max_examples=60, deadline=None)
@given(dim=st.sampled_from([1, 2, 3, 7, 50]), n_components=st.integers(2, 6), seed=SEEDS)
def test_one_residual_layer_denoises_every_equal_norm_task(dim, n_components, seed):
    layer = in_context_denoiser(dim, 0.8, 1.7)
    rng = np.random.default_rng(seed)
    means = rng.standard_normal((n_components, dim))
    means *= rng.uniform(0.2, 4.0) / np.linalg.norm(means, axis=1, keepdims=True)
    weights = rng.dirichlet(0.3 * np.ones(n_components))
    task = DenoisingTask(GaussianMixture(weights, means, 0.8 * np.eye(dim)), 1.7)
    assert largest_gap(task, layer, seed) < 1e-12
    if n_components <= 3:
        assert task.excess_risk(layer) < 1e-24


@pytest.mark.claim("P4.4.control")
def test_in_context_denoising_needs_equal_norms_and_the_residual():
    layer = in_context_denoiser(2, 1.0, 4.0)
    unequal = DenoisingTask(GaussianMixture([0.5, 0.5], [[3.0, 0.0], [0.0, 1.0]], np.eye(2)), 4.0)
    assert unequal.excess_risk(layer) > 0.01
    equal = DenoisingTask(GaussianMixture([0.5, 0.5], [[3.0, 0.0], [0.0, 3.0]], np.eye(2)), 4.0)
    assert equal.excess_risk(MultiHead(layer.heads)) > 0.01
    assert equal.excess_risk(layer) < 1e-28


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 1.0, 1.0), "dim: expected an integer >= 1"),
        ((2.0, 1.0, 1.0), "dim: expected an integer"),
        ((2, -1.0, 1.0), "within_variance: expected a number >= 0"),
        ((2, 1.0, 0.0), "noise_variance: expected a number > 0"),
    ],
)
def test_refused_layers(arguments, message):
    with pytest.raises(ValueError, match=message):
        in_context_denoiser(*arguments)


def means_at(angle, flip):
    second = [flip * np.cos(angle), np.sin(angle)]
    return GaussianMixture([0.4, 0.6], 3 * np.array([[1.0, 0.0], second]), 1.3 * np.eye(2))


@pytest.mark.parametrize("flip", [1, -1])
@pytest.mark.parametrize("angle", [1e-2, 1e-4, 1e-6, 1e-7, 1.6e-8, 1e-9])
def test_no_construction_returns_heads_that_lost_their_digits(angle, flip):
    task = DenoisingTask(means_at(angle, flip), 4.0)
    assert task.excess_risk(two_head_denoiser(task)) < 1e-24
    try:
        printed = two_head_denoiser(task, "noncollinear")
    except ValueError as error:
        assert angle < 1e-3
        assert "uniform" in str(error) or "opposite" in str(error)  # noqa: PT017
    else:
        assert largest_gap(task, printed) < 1e-6


def test_a_refusal_near_collinear_means_names_the_construction_that_holds():
    task = DenoisingTask(means_at(1e-9, 1), 4.0)
    with pytest.raises(ValueError, match=r'lost its digits.*the construction "uniform"'):
        two_head_denoiser(task, "noncollinear")


@pytest.mark.parametrize("count", [1, 3])
def test_a_two_head_denoiser_has_two_heads(count):
    heads = [Head(np.eye(2), np.eye(2))] * count
    with pytest.raises(ValueError, match=f"heads: expected two heads, got {count}"):
        TwoHeadDenoiser(heads, "uniform")
    with pytest.raises(ValueError, match="construction: expected one of"):
        TwoHeadDenoiser([Head(np.eye(2), np.eye(2))] * 2, "mine")


def test_linear_maps_are_refused_below_the_rounding_of_the_moments():
    far = DenoisingTask(GaussianMixture([0.5, 0.5], [[1e9, 0.0], [0.0, 1e9]], np.eye(2)), 1.0)
    with pytest.raises(ValueError, match="expected a noise variance above the rounding"):
        best_linear_denoiser(far)
    np.testing.assert_allclose(
        best_linear_denoiser(
            DenoisingTask(GaussianMixture([1.0], [[3.0, 0.0]], 0 * np.eye(2)), 1.0)
        ),
        [[0.9, 0.0], [0.0, 0.0]],
        atol=1e-15,
    )
