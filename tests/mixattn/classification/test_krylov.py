"""The Krylov subspace and the reduced flow of the symmetric balanced task."""

import numpy as np
import pytest
import scipy.integrate
import scipy.stats
import sympy

from mixattn import (
    AttentionParams,
    EffectiveParams,
    LDATask,
    effective_params,
    excess_risk,
    logistic_risk,
    risk_gradient,
)
from mixattn.classification import krylov as kr
from mixattn.classification.flow import fit_exponential_rate, gradient_flow


def rotation(d, seed):
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((d, d)))[0]


def symmetric_task(covariance, mean):
    mean = np.asarray(mean, dtype=float)
    return LDATask(mean, -mean, covariance, 0.5)


# Gamma has the eigenvalues 0.5 and 2, twice each, and m meets both: K has dimension 2 of 4
Q = rotation(4, 1)
STRUCTURED = symmetric_task(Q @ np.diag([0.5, 0.5, 2.0, 2.0]) @ Q.T, Q @ [0.6, 0.0, 0.9, 0.0])
ISOTROPIC = symmetric_task(0.8 * np.eye(3), [0.7, -0.4, 0.2])


def start_in_krylov_complement(task, size=1.0):
    v21 = np.random.default_rng(2).standard_normal(task.dim)
    basis = kr.task_krylov_basis(task)
    v21 = v21 - basis @ (basis.T @ v21)
    zero = np.zeros(task.dim)
    return AttentionParams(np.diag(zero), zero, size * v21 / np.linalg.norm(v21), 0.0)


def interior_point(task, seed=3):
    d = task.dim
    theta = AttentionParams.from_vector(
        np.random.default_rng(seed).standard_normal(d * d + 2 * d + 1), d
    )
    return kr.project_to_invariant_subspace(theta, task)


# --- the Krylov space ----------------------------------------------------------------------------


@pytest.mark.claim("PB.35")
@pytest.mark.parametrize(
    ("eigenvalues", "met"),
    [
        ([1, 2, 3], [1, 1, 1]),
        ([1, 2, 3], [1, 0, 1]),
        ([1, 1, 3], [1, 1, 1]),
        ([2, 2, 2], [1, 2, 3]),
        ([1, 1, 2, 2, 5], [1, 2, 0, 0, 1]),
        ([1, 2, 3, 4, 5, 6], [1, 1, 1, 1, 1, 1e-6]),
        (np.geomspace(1e-4, 1, 20), np.ones(20)),
        (np.repeat(np.geomspace(1e-4, 1, 10), 2), np.ones(20)),
        (np.repeat([1e4, 3.0, 2.0, 1.0], 5), np.ones(20)),
        (np.r_[np.linspace(1, 2, 19), 2.0], np.r_[np.ones(10), np.zeros(10)]),
    ],
)
def test_dimension_counts_the_distinct_eigenvalues_that_the_vector_meets(eigenvalues, met):
    eigenvalues, met = np.asarray(eigenvalues, dtype=float), np.asarray(met, dtype=float)
    d = len(met)
    for basis in (np.eye(d), rotation(d, 4)):
        matrix, vector = basis @ np.diag(eigenvalues) @ basis.T, basis @ met
        found = kr.krylov_basis(matrix, vector)
        expected = len(set(eigenvalues[met != 0]))
        assert found.shape == (d, expected)
        full_iff = len(set(eigenvalues)) == d and bool(met.all())
        assert (expected == d) == full_iff
        np.testing.assert_allclose(found.T @ found, np.eye(expected), atol=1e-12)
        projector = found @ found.T
        np.testing.assert_allclose(projector @ vector, vector, atol=1e-9)
        np.testing.assert_allclose(projector @ matrix @ found, matrix @ found, atol=1e-8)


@pytest.mark.parametrize(
    ("matrix", "vector"),
    [
        ([[2, 1, 0], [1, 2, 0], [0, 0, 3]], [1, 1, 0]),
        ([[2, 1, 0], [1, 2, 0], [0, 0, 3]], [1, 2, 0]),
        ([[0, 1, 0], [0, 0, 1], [0, 0, 0]], [0, 0, 1]),
        ([[0, 1, 0], [0, 0, 1], [0, 0, 0]], [0, 1, 0]),
        ([[1, 2], [3, 4]], [0, 0]),
        ([[0, 0], [0, 0]], [1, 2]),
    ],
)
def test_dimension_is_the_exact_rank_of_the_powers(matrix, vector):
    A, v = sympy.Matrix(matrix), sympy.Matrix(vector)
    powers = sympy.Matrix.hstack(*(A**k * v for k in range(len(vector))))
    found = kr.krylov_basis(matrix, vector)
    assert found.shape == (len(vector), powers.rank())
    # scale plays no role
    tiny = kr.krylov_basis(1e-150 * np.array(matrix, dtype=float), 1e150 * np.array(vector))
    assert tiny.shape == found.shape


def test_nearly_equal_eigenvalues_are_one():
    # closer than rtol: one eigenvalue, whose eigenspace holds one direction of v
    matrix = np.diag([1.0, 1.0 + 1e-12, 3.0])
    found = kr.krylov_basis(matrix, [3.0, 4.0, 0.0])
    np.testing.assert_allclose(np.abs(found), [[0.6], [0.8], [0.0]], atol=1e-12)
    # the tolerance is relative to the matrix's norm, and the comparison is with neighbors
    assert kr.krylov_basis(np.diag([1.0, 1.001, 3.0]), [3.0, 4.0, 0.0]).shape == (3, 2)
    assert kr.krylov_basis(np.diag([1.0, 1.001, 3.0]), [3.0, 4.0, 0.0], rtol=1e-3).shape == (3, 1)
    assert kr.krylov_basis(np.diag([1.0, 1.001, 0.5]), [3.0, 4.0, 0.0], rtol=9.8e-4).shape == (3, 2)


@pytest.mark.parametrize("gap", [1e-9, 1e-7, 1e-5])
def test_eigenspaces_that_rounding_mixes_are_not_counted_as_met(gap):
    # v lies in one of two eigenspaces that are known to eps / gap only
    turn = rotation(6, 3)
    eigenvalues = np.array([1.0, 1.0 + gap, 2.0, 3.0, 4.0, 5.0])
    matrix = turn @ np.diag(eigenvalues) @ turn.T
    assert kr.krylov_basis(matrix, turn[:, 0]).shape == (6, 1)


def test_tolerance_is_relative_to_the_spectral_norm():
    # the norm, 100, is far larger than the largest entry
    ones = np.ones((100, 100))
    first, second = np.eye(100)[:2] - np.eye(100)[2:4]
    first, second = first / np.sqrt(2), second / np.sqrt(2)
    symmetric = ones + 0.05 * np.outer(first, first)
    assert kr.krylov_basis(symmetric, first + second + 1, rtol=1e-3).shape == (100, 2)
    assert kr.krylov_basis(symmetric, first + second + 1, rtol=1e-4).shape == (100, 3)
    shift = ones + 0.05 * np.outer(second, first)
    assert kr.krylov_basis(shift, first, rtol=1e-3).shape == (100, 1)
    assert kr.krylov_basis(shift, first, rtol=1e-4).shape == (100, 2)


@pytest.mark.parametrize("symmetric", [True, False])
def test_basis_is_orthonormal_whatever_the_scales(symmetric):
    rng = np.random.default_rng(7)
    matrix = rng.standard_normal((5, 5))
    matrix = matrix + matrix.T if symmetric else matrix
    vector = rng.standard_normal(5)
    reference = kr.krylov_basis(matrix, vector, rtol=1e-6)
    np.testing.assert_allclose(reference.T @ reference, np.eye(5), atol=1e-12)
    # an entry of v below rtol times its norm is no component, whatever the norm
    for scale in (1e-200, 1.0, 1e200):
        small = kr.krylov_basis(np.diag([1.0, 2.0]), scale * np.array([40.0, 2e-5]), rtol=1e-6)
        assert small.shape == (2, 1)
        large = kr.krylov_basis(np.diag([1.0, 2.0]), scale * np.array([40.0, 8e-5]), rtol=1e-6)
        assert large.shape == (2, 2)
    # many equal entries: the norm of v is far larger than its largest entry
    met = np.r_[np.ones(400), 1.5e-5]
    assert kr.krylov_basis(np.diag(np.r_[np.ones(400), 2.0]), met, rtol=1e-6).shape == (401, 1)


def test_krylov_basis_validates():
    with pytest.raises(ValueError, match=r"matrix: expected shape \(2, 2\), got \(2, 3\)"):
        kr.krylov_basis(np.ones((2, 3)), [1.0, 2.0])
    with pytest.raises(ValueError, match="rtol"):
        kr.krylov_basis(np.eye(2), [1.0, 2.0], rtol=-1.0)


@pytest.mark.claim("RB.36")
@pytest.mark.parametrize(("d", "k"), [(20, 1), (40, 4), (160, 4)])
def test_isotropic_start_has_a_fraction_k_over_d_of_its_energy_in_k(d, k):
    eigenvalues = np.arange(d) % k + 1.0
    basis = kr.krylov_basis(np.diag(eigenvalues), np.ones(d))
    assert basis.shape == (d, k)
    v = np.random.default_rng(5).standard_normal((20_000, d))
    v /= np.linalg.norm(v, axis=1, keepdims=True)
    energy = np.sum((v @ basis) ** 2, axis=1)
    # the fraction follows a Beta(k/2, (d-k)/2) law, of mean k/d; its root is the distance to K-perp
    assert scipy.stats.kstest(energy, scipy.stats.beta(k / 2, (d - k) / 2).cdf).pvalue > 1e-3
    assert abs(energy.mean() - k / d) < 5 * energy.std() / np.sqrt(len(v))
    assert np.sqrt(energy).mean() < np.sqrt(k / d)


# --- invariance --------------------------------------------------------------------------------


@pytest.mark.claim("LB.37")
@pytest.mark.parametrize("task", [STRUCTURED, ISOTROPIC])
def test_velocity_is_tangent_to_the_invariant_subspace(task):
    theta = interior_point(task)
    zeta = effective_params(theta, task)
    np.testing.assert_allclose([zeta.b, zeta.r, *zeta.s], 0, atol=1e-14)
    velocity = risk_gradient(theta, task)
    assert np.linalg.norm(velocity.to_vector()) > 0.1
    # the subspace is linear: a velocity is tangent to it if it is an element
    assert kr.distance_to_invariant_subspace(velocity, task) < 1e-14


@pytest.mark.claim("LB.37")
def test_trajectory_stays_in_the_invariant_subspace():
    flow = gradient_flow(interior_point(STRUCTURED), STRUCTURED, 20.0, rtol=1e-9)
    points = [AttentionParams.from_vector(v, 4) for v in flow.params[::20]]
    assert max(kr.distance_to_invariant_subspace(p, STRUCTURED) for p in points) < 1e-9


@pytest.mark.claim("LB.37.control")
def test_orthogonality_to_the_mean_alone_is_lost():
    m = STRUCTURED.mean_pos
    rng = np.random.default_rng(6)
    v21 = rng.standard_normal(4)
    v21 = v21 - m * (m @ v21) / (m @ m)
    zero = np.zeros(4)
    start = AttentionParams(np.zeros((4, 4)), zero, v21, 0.0)
    assert kr.distance_to_invariant_subspace(start, STRUCTURED) > 0.1
    flow = gradient_flow(start, STRUCTURED, 20.0)
    along = [abs(AttentionParams.from_vector(v, 4).v21 @ m) for v in flow.params]
    assert along[0] < 1e-15
    assert along[-1] > 1e-3
    zeta = effective_params(flow.final, STRUCTURED)
    assert min(abs(zeta.b), abs(zeta.r), np.linalg.norm(zeta.s)) > 1e-3


def test_invariant_subspace_needs_the_symmetric_balanced_task():
    theta = start_in_krylov_complement(ISOTROPIC)
    unbalanced = LDATask(ISOTROPIC.mean_pos, ISOTROPIC.mean_neg, ISOTROPIC.covariance, 0.4)
    with pytest.raises(ValueError, match="equal priors"):
        kr.project_to_invariant_subspace(theta, unbalanced)
    shifted = LDATask(ISOTROPIC.mean_pos + 1, ISOTROPIC.mean_neg, ISOTROPIC.covariance, 0.5)
    with pytest.raises(ValueError, match="opposite means"):
        kr.coercivity_constant(shifted)


@pytest.mark.claim("LB.34", "LB.34.family")
def test_balance_and_its_family_are_conserved_on_the_subspace_and_not_off_it():
    gamma = STRUCTURED.covariance
    swap = Q @ np.array([[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 3, 1], [0, 0, 1, -1]]) @ Q.T
    family = [None, gamma, np.linalg.inv(gamma), swap]
    flow = gradient_flow(interior_point(STRUCTURED), STRUCTURED, 20.0, rtol=1e-9)
    points = [AttentionParams.from_vector(v, 4) for v in flow.params[:: len(flow.t) // 8]]
    for C in family:
        values = [kr.conserved_quantity(p, STRUCTURED, C) for p in points]
        np.testing.assert_allclose(values, values[0], atol=1e-8)
    first, last = points[0], points[-1]
    assert kr.conserved_quantity(first, STRUCTURED) == pytest.approx(
        np.sum(first.U11**2) - np.sum(first.v21**2)
    )
    assert np.linalg.norm(last.to_vector() - first.to_vector()) > 1.0
    with pytest.raises(ValueError, match="commutes with Gamma"):
        kr.conserved_quantity(first, STRUCTURED, np.diag([1.0, 2.0, 3.0, 4.0]))
    with pytest.raises(ValueError, match="symmetric"):
        kr.conserved_quantity(first, STRUCTURED, np.triu(np.ones((4, 4))))
    rng = np.random.default_rng(7)
    outside = gradient_flow(
        AttentionParams.from_vector(rng.standard_normal(25), 4), STRUCTURED, 5.0
    )
    ends = [
        kr.conserved_quantity(AttentionParams.from_vector(v, 4), STRUCTURED)
        for v in outside.params[[0, -1]]
    ]
    assert abs(ends[1] - ends[0]) > 1e-2


# --- coercivity and convexity ------------------------------------------------------------------


@pytest.mark.claim("LB.6")
@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (1.3, 0.4), (-2.0, 3.0), (-6.0, 1.0)])
def test_expected_positive_part(mean, std):
    integral, _ = scipy.integrate.quad(
        lambda x: x * scipy.stats.norm.pdf(x, mean, std), 0, max(mean, 0) + 12 * std, epsabs=0
    )
    assert kr.expected_positive_part(mean, std) == pytest.approx(integral, rel=1e-9)


@pytest.mark.claim("LB.32")
@pytest.mark.parametrize("task", [STRUCTURED, ISOTROPIC])
def test_linear_risk_is_coercive(task):
    constant = kr.coercivity_constant(task)
    assert constant > 0

    def ratio(w):
        zeta = EffectiveParams(w, 0.0, 0.0, np.zeros(task.dim))
        return logistic_risk(zeta, task) / np.linalg.norm(w)

    rng = np.random.default_rng(8)
    ratios = [
        ratio(size * rng.standard_normal(task.dim))
        for size in (0.1, 1.0, 10.0, 100.0)
        for _ in range(5)
    ]
    ratios += [ratio(size * task.bayes_score[0]) for size in (1.0, 10.0, 100.0)]
    assert min(ratios) >= constant
    if task is ISOTROPIC:
        # in the direction of the Bayes score nothing was lost: the constant is the limit
        assert ratio(1e4 * task.bayes_score[0]) == pytest.approx(constant, rel=1e-3)


@pytest.mark.claim("LB.33", "T3.6", "T3.6.rate")
@pytest.mark.parametrize("task", [STRUCTURED, ISOTROPIC])
def test_flow_from_the_krylov_complement_converges_as_bounded_and_at_the_sharp_rate(task):
    start = start_in_krylov_complement(task)
    flow = gradient_flow(start, task, 1e4, gradient_tol=1e-9)
    limit = flow.final
    w_bayes, _ = task.bayes_score
    d = task.dim
    np.testing.assert_allclose(
        effective_params(limit, task).to_vector(),
        np.concatenate([w_bayes, np.zeros(d + 2)]),
        atol=1e-7,
    )
    t = np.linspace(0, flow.t[-1], 30)
    path = np.array(
        [effective_params(AttentionParams.from_vector(v, d), task).w for v in flow.at(t)]
    )
    excess = flow.excess_risk_at(t)
    # strong convexity on the hull of the path and w*, from below by sampling the hull
    rng = np.random.default_rng(9)
    vertices = np.vstack([path[::2], w_bayes])
    hull = rng.dirichlet(np.full(len(vertices), 0.3), size=30) @ vertices
    mu = min(
        float(np.linalg.eigvalsh(kr.linear_risk_hessian(w, task))[0]) for w in [*vertices, *hull]
    )
    assert mu > 0
    below = 0.5 * mu * np.sum((path - w_bayes) ** 2, axis=1)
    assert (excess[excess > 1e-16] >= below[excess > 1e-16]).all()
    alpha = np.linalg.eigvalsh(task.covariance)[0] ** 2 * np.sum(start.v21**2)
    bound = excess[0] * np.exp(-2 * alpha * mu * t)
    assert (excess <= bound * (1 + 1e-6)).all()
    late = np.linspace(*t[(excess < 1e-6) & (excess > 1e-14)][[0, -1]], 17)
    measured = fit_exponential_rate(late, flow.excess_risk_at(late))
    predicted = kr.predicted_krylov_rate(limit, task)
    assert measured.value == pytest.approx(predicted, rel=2e-3)
    assert predicted > 2 * alpha * mu
    # the factors converge too, exponentially: their last change is as small as w's
    change = np.linalg.norm(flow.at(0.9 * flow.t[-1]) - flow.params[-1])
    assert change < 1e-5
    assert excess_risk(limit, task) < 1e-17


def test_reduced_metric_drives_w():
    theta = interior_point(STRUCTURED)
    w = effective_params(theta, STRUCTURED).w
    step = 1e-6
    velocity = risk_gradient(theta, STRUCTURED).to_vector()
    ahead, behind = (
        effective_params(
            AttentionParams.from_vector(theta.to_vector() - h * velocity, 4), STRUCTURED
        ).w
        for h in (step, -step)
    )
    slope = risk_gradient(EffectiveParams(w, 0.0, 0.0, np.zeros(4)), STRUCTURED).w
    expected = -kr.reduced_metric(theta, STRUCTURED) @ slope
    np.testing.assert_allclose((ahead - behind) / (2 * step), expected, rtol=1e-6, atol=1e-9)


# --- the starts of Figures 4 and 5 --------------------------------------------------------------


def test_figure45_starts():
    task, gaussian, near_krylov = kr.figure45_starts(np.random.default_rng(11))
    np.testing.assert_array_equal(task.mean_pos, np.eye(20)[0])
    np.testing.assert_array_equal(task.mean_pos, -task.mean_neg)
    np.testing.assert_array_equal(task.covariance, np.eye(20))
    assert task.prior_pos == 0.5
    assert scipy.stats.kstest(gaussian.to_vector(), "norm").pvalue > 1e-3
    # in I_K but for the component of v21 along the mean
    assert kr.distance_to_invariant_subspace(near_krylov, task) == pytest.approx(
        abs(near_krylov.v21[0])
    )
    with pytest.raises(ValueError, match="rng"):
        kr.figure45_starts(11)


@pytest.mark.claim("F5")
def test_plateau_off_the_subspace_grows_with_the_eighth_power_of_the_overlap():
    task = symmetric_task(np.eye(2), [1.0, 0.0])
    levels = []
    for overlap in (0.07, 0.14):
        start = AttentionParams(np.zeros((2, 2)), np.zeros(2), [overlap, 4.0], 0.0)
        flow = gradient_flow(start, task, 60.0)
        early, late = flow.excess_risk_at([30.0, 60.0])
        assert late == pytest.approx(early, rel=1e-3)  # it stands still: no exponential convergence
        levels.append(late)
    assert np.log2(levels[1] / levels[0]) == pytest.approx(8, abs=0.15)
