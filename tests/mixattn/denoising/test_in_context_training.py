"""The in-context risk by other routes, its zeros and flat directions, and what training reaches."""

import numpy as np
import pytest

from mixattn import GatedMap, GaussianMixture, Head, MultiHead, in_context_denoiser
from mixattn.denoising.in_context import (
    InContextLaw,
    InContextTasks,
    ResidualParams,
    distances_to_solutions,
    excess_by_task,
    round_rule,
)
from mixattn.denoising.training import (
    in_context_objective,
    objective_hessian,
    train_in_context,
    train_in_context_online,
)

GAMMA2, XI2 = 0.2, 0.8
LAW = InContextLaw(2, GAMMA2, XI2)
TASKS = LAW.sample(24, np.random.default_rng(0))
HELD_OUT = LAW.sample(12, np.random.default_rng(1))
EYE = np.eye(2)


def generators(*seeds):
    return [np.random.default_rng([seed, 1]) for seed in seeds]


def random_tasks(dim, n_components, seed, count=3):
    rng = np.random.default_rng(seed)
    weights = rng.dirichlet(np.ones(n_components), size=count)
    return InContextTasks(weights, rng.standard_normal((count, n_components, dim)), 0.4, 0.9)


@pytest.mark.parametrize("kind", [ResidualParams, GatedMap])
@pytest.mark.parametrize(("dim", "n_components", "n_heads"), [(2, 2, 2), (3, 2, 1), (2, 4, 3)])
def test_gradient_by_finite_differences(kind, dim, n_components, n_heads):
    rule = random_tasks(dim, n_components, 3).rule(7)
    start = kind.random(dim, n_heads, np.random.default_rng(1), 1.0)
    objective, x, h = in_context_objective(rule, start), start.to_vector(), 1e-4
    value, gradient = objective(x)
    for e in h * np.eye(len(x)):
        risks = [objective(x + k * e)[0] for k in (-2, -1, 1, 2)]
        numeric = (risks[0] - 8 * risks[1] + 8 * risks[2] - risks[3]) / (12 * h)
        assert gradient @ e / h == pytest.approx(numeric, rel=1e-7, abs=1e-7 * value)


@pytest.mark.parametrize(("dim", "n_components"), [(2, 2), (2, 3), (3, 2)])
def test_risk_is_that_of_the_layer_and_of_a_plain_quadrature(dim, n_components):
    tasks = random_tasks(dim, n_components, 5)
    params = ResidualParams.random(dim, 2, np.random.default_rng(2))
    by_task = excess_by_task(params, tasks)
    order = 40 if dim == 2 else 24
    rule = tasks.rule(order)
    value, _ = in_context_objective(rule, params)(params.to_vector())
    assert value == pytest.approx(by_task.mean(), rel=1e-8)
    x, w = np.polynomial.hermite_e.hermegauss(order)
    grid = np.stack(np.meshgrid(*[x] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    mass = np.prod(np.stack(np.meshgrid(*[w / w.sum()] * dim, indexing="ij")), axis=0).ravel()
    for i, excess in enumerate(by_task):
        task = tasks.task(i)
        total = 0.0
        for weight, mean in zip(tasks.weights[i], tasks.means[i], strict=True):
            z = mean + np.sqrt(tasks.total_variance) * grid
            gap = params.layer(task.noisy, z) - task.bayes_denoiser(z)
            total += weight * (mass @ np.sum(gap**2, axis=1))
        assert excess == pytest.approx(total, rel=1e-7)
        assert task.excess_risk(params.layer) == pytest.approx(excess, rel=1e-10)


def test_effective_layer_computes_the_same_map():
    params = ResidualParams.random(3, 2, np.random.default_rng(4))
    mixture = GaussianMixture([0.3, 0.7], np.eye(3)[:2], 0.7 * np.eye(3))
    z = np.random.default_rng(5).standard_normal((6, 3))
    np.testing.assert_allclose(params.effective(mixture, z), params.layer(mixture, z), atol=1e-13)
    blind = GatedMap(params.effective.A, 0 * params.U, params.U)
    np.testing.assert_allclose(blind(mixture, z), z @ params.W.sum(axis=0).T, atol=1e-13)
    linear = params.effective.linear_part(0.7)
    expected = params.W.sum(axis=0) + 0.7 * sum(params.W @ params.V @ params.U)
    np.testing.assert_allclose(linear, expected, atol=1e-13)


@pytest.mark.parametrize("kind", [ResidualParams, GatedMap])
def test_vectors_go_back_and_forth(kind):
    start = kind.random(3, 2, np.random.default_rng(0))
    again = kind.from_vector(start.to_vector(), 3, 2)
    np.testing.assert_array_equal(again.to_vector(), start.to_vector())
    assert ResidualParams.of(ResidualParams.random(2, 2, np.random.default_rng(1)).layer).U.shape


def members(dim, rng):
    """Random members of the three sheets."""
    eye, a, s2 = np.eye(dim), XI2 / (GAMMA2 + XI2), GAMMA2 + XI2
    free = rng.standard_normal((2, dim, dim))
    return {
        "head 1": GatedMap((1 - 2 * a) * eye, [a * eye, 0 * eye], [eye / s2, free[0]]),
        "head 2": GatedMap((1 - 2 * a) * eye, [0 * eye, a * eye], [free[0], eye / s2]),
        "shared": GatedMap((1 - 2 * a) * eye, [free[1], a * eye - free[1]], [eye / s2] * 2),
    }


@pytest.mark.claim("X.learn.exact")
@pytest.mark.parametrize("dim", [2, 3])
def test_three_sheets_are_exact_and_recognized(dim):
    rng = np.random.default_rng(dim)
    tasks = InContextLaw(dim, GAMMA2, XI2).sample(6, rng)
    for name, layer in members(dim, rng).items():
        assert excess_by_task(layer, tasks).max() < 1e-25
        distances = distances_to_solutions(layer, GAMMA2, XI2)
        assert distances[name] < 1e-14
        assert min(value for key, value in distances.items() if key != name) > 0.1
        moved = GatedMap.from_vector(
            layer.to_vector() + 0.01 * rng.standard_normal(5 * dim * dim), dim, 2
        )
        assert distances_to_solutions(moved, GAMMA2, XI2)[name] > 1e-3
        assert excess_by_task(moved, tasks).min() > 1e-7


@pytest.mark.claim("X.learn.exact")
def test_distance_to_the_shared_sheet_is_that_of_the_nearest_member():
    layer = GatedMap.random(2, 2, np.random.default_rng(8))
    shift = (layer.P.sum(axis=0) - 0.8 * EYE) / 2
    nearest = GatedMap(-0.6 * EYE, layer.P - shift, [EYE, EYE])
    assert excess_by_task(nearest, HELD_OUT).max() < 1e-25
    gap = np.linalg.norm(layer.to_vector() - nearest.to_vector())
    assert distances_to_solutions(layer, GAMMA2, XI2)["shared"] == pytest.approx(gap, rel=1e-12)


@pytest.mark.claim("X.learn.exact")
@pytest.mark.parametrize(("dim", "order"), [(2, 12), (3, 6)])
def test_flat_directions_are_as_many_as_derived(dim, order):
    rng = np.random.default_rng(0)
    rule = InContextLaw(dim, GAMMA2, XI2).sample(12, rng).rule(order)
    raw = ResidualParams.of(in_context_denoiser(dim, GAMMA2, XI2))
    eye = np.eye(dim)
    points = [(raw, 2), (raw.effective, 1)]
    points += [(layer, 1) for layer in members(dim, rng).values()]
    even = GatedMap(-0.6 * eye, [0.3 * eye, 0.5 * eye], [eye, eye])
    crossing = GatedMap(-0.6 * eye, [0.8 * eye, 0 * eye], [eye, eye])
    points += [(even, 2), (crossing, 2)]
    for point, squares in points:
        hessian = objective_hessian(in_context_objective(rule, point), point.to_vector(), 1e-3)
        values = np.linalg.eigvalsh(hessian)
        assert np.sum(values < 1e-8 * values[-1]) == squares * dim * dim
        assert values[0] > -1e-10 * values[-1]


def split_layer(tasks):
    """Two heads, each with the gate of one of two tasks in the plane."""
    D = tasks.means[:, 0] - tasks.means[:, 1]
    dual = np.linalg.inv(D.T)  # rows: dual basis of the two differences
    U, P = [], []
    for i in range(2):
        # U^T fixes D_i and sends the other difference to twice itself
        other = 1 - i
        U.append((np.outer(D[i], dual[i]) + 2 * np.outer(D[other], dual[other])).T)
        P.append(0.8 * np.outer(D[i], dual[i]))
    linear = sum(p @ u for p, u in zip(P, U, strict=True))
    return GatedMap(0.2 * EYE - linear, P, U)


@pytest.mark.claim("X.learn.exact")
def test_two_tasks_in_the_plane_do_not_determine_the_layer():
    layer = split_layer(TASKS.first(2))
    assert excess_by_task(layer, TASKS.first(2)).max() < 1e-25
    assert excess_by_task(layer, HELD_OUT).mean() > 1e-2
    assert min(distances_to_solutions(layer, GAMMA2, XI2).values()) > 0.1


@pytest.mark.claim("X.learn.exact")
def test_the_way_to_infinity():
    C = np.array([[0.5, 0.2], [-0.3, 0.4]])
    A = -0.6 * EYE + C
    for kappa in (10.0, 100.0):
        U = [EYE, -kappa * np.linalg.inv(C) @ C @ EYE]
        layer = GatedMap(A, [0.8 * EYE, C / kappa], U)
        bound = (np.linalg.norm(C, 2) * np.linalg.norm(HELD_OUT.means, axis=2)[:, 0] / kappa) ** 2
        excess = excess_by_task(layer, HELD_OUT)
        assert (excess <= bound).all()
        assert (excess > 1e-3 * bound).all()


@pytest.mark.claim("X.learn")
def test_quasi_newton_finds_exact_layers_from_random_starts():
    reached = []
    for seed in range(6):
        start = GatedMap.random(2, 2, np.random.default_rng([seed, 0]))
        run = train_in_context(TASKS, start, order=10)
        assert run.status == "below target"
        assert run.excess_risk[-1] <= 1e-20 < run.excess_risk[-2]
        assert len(run.params) == len(run.steps) == len(run.excess_risk)
        np.testing.assert_array_equal(run.point_at(0).to_vector(), start.to_vector())
        np.testing.assert_array_equal(
            run.point_at(run.steps[-1]).to_vector(), run.final.to_vector()
        )
        assert excess_by_task(run.final, HELD_OUT).max() < 1e-12
        distances = distances_to_solutions(run.final, GAMMA2, XI2)
        assert min(distances.values()) < 1e-6
        reached.append(min(distances, key=distances.get))
    assert len(set(reached)) > 1


@pytest.mark.claim("X.learn")
def test_without_residual_training_reaches_no_exact_layer():
    start = GatedMap.random(2, 2, np.random.default_rng(0))
    start = GatedMap(0 * start.A, start.P, start.U)
    run = train_in_context(TASKS, start, order=10, max_steps=400, residual=False)
    np.testing.assert_array_equal(run.final.A, 0)
    assert run.status == "step limit"
    assert excess_by_task(run.final, HELD_OUT).mean() > 1e-8
    assert np.linalg.norm(run.final.U, axis=(1, 2)).max() > 30


@pytest.mark.claim("X.learn")
def test_online_descent_approaches_an_exact_layer():
    starts = [ResidualParams.random(2, 2, np.random.default_rng([seed, 0])) for seed in (0, 1)]
    runs = train_in_context_online(
        LAW,
        starts,
        generators(0, 1),
        record_tasks=HELD_OUT,
        n_steps=2500,
        record_every=500,
        order=16,
    )
    for run in runs:
        assert run.status == "step limit"
        assert run.excess_risk[-1] < 3e-3 * run.excess_risk[0]
        assert run.steps[-1] == 2500
        np.testing.assert_array_equal(
            run.point_at(run.steps[-1]).to_vector(), run.final.to_vector()
        )
        # a coarse rule records the curve
        assert run.excess_risk[-1] == pytest.approx(
            excess_by_task(run.final, HELD_OUT).mean(), rel=0.05
        )
    alone = train_in_context_online(
        LAW, starts[1:], generators(1), record_tasks=HELD_OUT, n_steps=50, record_every=50, order=10
    )[0]
    pair = train_in_context_online(
        LAW, starts, generators(0, 1), record_tasks=HELD_OUT, n_steps=50, record_every=50, order=10
    )[1]
    np.testing.assert_allclose(alone.final.to_vector(), pair.final.to_vector(), rtol=0, atol=1e-12)


def test_online_gradient_averages_to_the_exact_one():
    params = ResidualParams.random(2, 2, np.random.default_rng(1))
    law = InContextLaw(2, GAMMA2, XI2, (1.5, 1.5), (0.3, 0.3))
    draws = []
    for seed in range(400):
        weights, means, z = law.sample_queries(40, 8, np.random.default_rng(seed))
        rule = round_rule(
            weights, means, GAMMA2, XI2, np.swapaxes(z, 1, 2), np.full((40, 8), 1 / 8)
        )
        draws.append(np.hstack(in_context_objective(rule, params)(params.to_vector())))
    draws = np.array(draws)
    tasks = law.sample(4000, np.random.default_rng(99))
    exact = np.hstack(in_context_objective(tasks.rule(8), params)(params.to_vector()))
    error = draws.std(axis=0) / np.sqrt(len(draws))
    assert np.abs((draws.mean(axis=0) - exact) / error).max() < 5


def test_a_run_that_diverges_says_so():
    start = ResidualParams.random(2, 2, np.random.default_rng(0))
    run = train_in_context_online(
        LAW,
        [start],
        generators(0),
        record_tasks=HELD_OUT,
        n_steps=60,
        step_size=1e120,
        clip_norm=1e300,
        record_every=60,
        order=4,
    )[0]
    assert run.status == "diverged"
    np.testing.assert_array_equal(run.final.to_vector(), start.to_vector())


def test_law_draws_admissible_tasks():
    law = InContextLaw(3, 0.5, 1.5, (0.7, 1.1), (0.2, 0.4))
    tasks = law.sample(200, np.random.default_rng(0))
    norms = np.linalg.norm(tasks.means, axis=2)
    np.testing.assert_allclose(norms[:, 0], norms[:, 1], rtol=1e-12)
    assert 0.7 <= norms.min() < norms.max() <= 1.1
    assert 0.2 <= tasks.weights[:, 0].min() < tasks.weights[:, 0].max() <= 0.4
    assert tasks.noise_share == 0.75
    assert len(tasks.first(7)) == 7
    _, means, queries = law.sample_queries(5, 2000, np.random.default_rng(1))
    spread = np.mean(np.sum(queries**2, axis=2), axis=1)
    expected = np.sum(means[:, 0] ** 2, axis=1) + 3 * 2.0
    np.testing.assert_allclose(spread, expected, rtol=0.1)


HEAVY = ResidualParams.random(2, 2, np.random.default_rng(0), 1e100)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: InContextLaw(1, 0.2, 0.8), "dim"),
        (lambda: InContextLaw(2, 0.2, 0.0), "noise_variance"),
        (lambda: InContextLaw(2, 0.2, 0.8, (2.0, 1.0)), "radius"),
        (lambda: InContextLaw(2, 0.2, 0.8, weight=(0.0, 0.5)), "weight"),
        (lambda: InContextTasks([[0.5, 0.5]], np.ones((2, 2, 2)), 0.2, 0.8), "weights"),
        (lambda: InContextTasks([[1.0, 0.0]], np.ones((1, 2, 2)), 0.2, 0.8), "positive"),
        (lambda: InContextTasks([[0.5, 0.6]], np.ones((1, 2, 2)), 0.2, 0.8), r"weights\[0\]"),
        (lambda: TASKS.first(99), "count"),
        (lambda: ResidualParams(np.ones((2, 2, 3)), 1, 1), "square"),
        (lambda: ResidualParams.of(MultiHead([Head(EYE, EYE)])), "ResidualMultiHead"),
        (lambda: ResidualParams.from_vector(np.ones(5), 2, 2), "vector"),
        (lambda: ResidualParams.random(2, 2, 7), "rng"),
        (lambda: GatedMap.random(2, 2, np.random.default_rng(0), -1.0), "scale"),
        (lambda: GatedMap(np.eye(3), [EYE], [EYE]), "U: expected shape"),
        (lambda: excess_by_task(lambda z: z, TASKS), "layer"),
        (lambda: excess_by_task(GatedMap(EYE, [EYE], [EYE]), 3), "tasks"),
        (lambda: distances_to_solutions(GatedMap(EYE, [EYE], [EYE]), 0.2, 0.8), "two heads"),
        (lambda: TASKS.rule(0), "order"),
        (lambda: train_in_context("tasks", HEAVY), "tasks"),
        (lambda: in_context_objective(3, GatedMap(EYE, [EYE], [EYE])), "rule"),
        (lambda: in_context_objective(TASKS.rule(2), 3), "like"),
        (
            lambda: train_in_context(
                TASKS, ResidualParams.random(2, 2, np.random.default_rng(0)), residual=False
            ),
            "residual",
        ),
        (
            lambda: train_in_context(
                TASKS, ResidualParams.random(3, 2, np.random.default_rng(0)), order=3
            ),
            "start: expected heads in the tasks' dimension 2",
        ),
        (lambda: train_in_context_online(LAW, [], [], record_tasks=TASKS), "starts"),
        (lambda: train_in_context_online(LAW, None, [], record_tasks=TASKS), "starts"),
        (
            lambda: train_in_context_online(
                LAW, [HEAVY.effective], generators(1), record_tasks=TASKS
            ),
            "starts: expected a sequence of at least one ResidualParams",
        ),
        (lambda: train_in_context_online(LAW, [HEAVY], 5, record_tasks=TASKS), "rngs"),
        (lambda: train_in_context_online(LAW, [HEAVY], [1], record_tasks=TASKS), "rng"),
        (
            lambda: train_in_context_online(LAW, [HEAVY], generators(1), record_tasks=[]),
            "record_tasks",
        ),
        (
            lambda: train_in_context_online(
                InContextLaw(2, 0.3, 0.8), [HEAVY], generators(1), record_tasks=TASKS
            ),
            "record_tasks: expected the law's dimension and variances",
        ),
        (lambda: train_in_context(TASKS, HEAVY, order=3), "start: .* finite excess risk"),
        (lambda: in_context_objective(TASKS.rule(2), HEAVY)("a"), "vector"),
        (
            lambda: in_context_objective(TASKS.rule(2), HEAVY, residual="no"),
            "residual: expected True or False",
        ),
        (lambda: objective_hessian(None, np.ones(3)), "objective"),
        (lambda: TASKS.task(None), "index"),
        (lambda: TASKS.task(10_000), "index"),
        (lambda: InContextLaw(2, 1e308, 1e308), r"within_variance \+ noise_variance"),
        (lambda: HEAVY.effective(None, [0.0, 0.0]), "mixture: expected a GaussianMixture"),
        (
            lambda: GatedMap(EYE, [EYE], [1e200 * EYE])(TASKS.task(0).noisy, [1e200, 1e200]),
            "t: expected|queries: expected|finite",
        ),
        (lambda: HEAVY.effective.linear_part(np.nan), "total_variance"),
        (lambda: TASKS.rule(10_000), "order: expected at most"),
        (
            lambda: InContextLaw(20, 0.2, 0.8).sample(1, np.random.default_rng(0)).rule(4),
            "order: expected at most .* nodes",
        ),
        (lambda: train_in_context_online(3, [], [], record_tasks=TASKS), "law"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_rule_of_high_order_has_no_holes():
    few = TASKS.first(2)
    layer = ResidualParams.random(2, 2, np.random.default_rng(3))
    value, gradient = in_context_objective(few.rule(400), layer)(layer.to_vector())
    # nodes of a mass below 1e-14 are left out: 160,000 of them may hold 1e-10
    assert value == pytest.approx(excess_by_task(layer, few).mean(), rel=1e-10)
    assert np.isfinite(gradient).all()


def test_sizes_of_any_integer_type_draw_the_same():
    small = ResidualParams.random(np.int8(2), np.uint8(2), np.random.default_rng(0))
    plain = ResidualParams.random(2, 2, np.random.default_rng(0))
    np.testing.assert_array_equal(small.to_vector(), plain.to_vector())
    small = GatedMap.random(np.int8(2), np.uint8(2), np.random.default_rng(0))
    plain = GatedMap.random(2, 2, np.random.default_rng(0))
    np.testing.assert_array_equal(small.to_vector(), plain.to_vector())


def test_distance_to_each_sheet_is_that_of_its_nearest_member():
    # the sheets of one head: the other's read or its weight is free, nothing else
    layer = GatedMap.random(2, 2, np.random.default_rng(8))
    zero, a, A = np.zeros((2, 2)), 0.8, -0.6 * EYE
    nearest = {
        "head 1": GatedMap(A, [a * EYE, zero], [EYE, layer.U[1]]),
        "head 2": GatedMap(A, [zero, a * EYE], [layer.U[0], EYE]),
    }
    distances = distances_to_solutions(layer, GAMMA2, XI2)
    for name, member in nearest.items():
        assert excess_by_task(member, HELD_OUT).max() < 1e-25
        gap = np.linalg.norm(layer.to_vector() - member.to_vector())
        assert distances[name] == pytest.approx(gap, rel=1e-12)
