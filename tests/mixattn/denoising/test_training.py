"""Gradients by finite differences; training against the minima that theory gives."""

import copy
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import mixattn
from mixattn import (
    AffineDenoiser,
    DenoisingTask,
    GatedMap,
    GaussianMixture,
    Head,
    MultiHead,
    Status,
    best_affine_denoiser,
    best_linear_denoiser,
    best_single_head,
    random_heads,
    train_quasi_newton,
    train_sgd,
    two_head_denoiser,
)
from mixattn.denoising.in_context import InContextLaw, InContextTasks, ResidualParams
from mixattn.denoising.training import _batches, train_in_context, train_in_context_online

FIGURE_2 = DenoisingTask(GaussianMixture([0.5, 0.5], [[3.0, 0.0], [0.0, 3.0]], np.eye(2)), 4.0)

OWN = DenoisingTask(GaussianMixture([0.5, 0.5], np.eye(2), [np.eye(2), 2 * np.eye(2)]), 1.0)
EYE, RNG = np.eye(2), np.random.default_rng(0)


def start(n_heads, seed=0, dim=2):
    return random_heads(dim, n_heads, np.random.default_rng([seed, 0]))


def random_task(dim, n_components, seed):
    rng = np.random.default_rng(seed)
    root = rng.standard_normal((dim, dim)) / np.sqrt(dim)
    return DenoisingTask(
        GaussianMixture(
            rng.dirichlet(np.ones(n_components)),
            rng.standard_normal((n_components, dim)),
            root @ root.T,
        ),
        0.7,
    )


def moved(denoiser, dU, dV, size):
    return MultiHead(
        [
            Head(head.U + size * u, head.V + size * v)
            for head, u, v in zip(denoiser.heads, dU, dV, strict=True)
        ]
    )


@pytest.mark.parametrize(
    ("dim", "n_components", "n_heads"),
    [(1, 2, 1), (2, 2, 2), (2, 2, 3), (3, 2, 1), (5, 2, 2), (4, 2, 3), (2, 3, 2), (4, 1, 2)],
)
def test_gradient_by_finite_differences(dim, n_components, n_heads):
    task = random_task(dim, n_components, 10 * dim + n_heads)
    rng = np.random.default_rng(0)
    denoiser = random_heads(dim, n_heads, rng)
    value, grad_U, grad_V = task.excess_risk_gradient(denoiser)
    assert value == pytest.approx(task.excess_risk(denoiser), rel=1e-12)
    assert grad_U.shape == grad_V.shape == (n_heads, dim, dim)
    h = 1e-4
    for _ in range(2):
        dU, dV = rng.standard_normal((2, n_heads, dim, dim))
        slope = np.sum(grad_U * dU) + np.sum(grad_V * dV)
        risks = [task.excess_risk(moved(denoiser, dU, dV, k * h)) for k in (-2, -1, 1, 2)]
        numeric = (risks[0] - 8 * risks[1] + 8 * risks[2] - risks[3]) / (12 * h)
        assert slope == pytest.approx(numeric, rel=1e-7, abs=1e-7 * value)


def test_gradient_vanishes_at_the_bayes_denoiser():
    _, grad_U, grad_V = FIGURE_2.excess_risk_gradient(two_head_denoiser(FIGURE_2))
    assert max(np.abs(grad_U).max(), np.abs(grad_V).max()) < 1e-13


@pytest.mark.parametrize("n_components", [1, 2, 3])
def test_batch_gradient_averages_to_the_exact_one(n_components):
    task = random_task(3, n_components, 3)
    denoiser = random_heads(3, 2, np.random.default_rng(1))
    U, V = (np.stack([getattr(h, name) for h in denoiser.heads]) for name in "UV")
    draws = []
    for seed in range(40):
        rule = next(_batches(task, np.random.default_rng(seed), 2000, 1))
        _, _, grad_V, grad_U = rule.excess_and_gradient(np.zeros((3, 3)), V, U)
        draws.append(np.stack([grad_U, grad_V]))
    draws = np.array(draws)
    _, *exact = task.excess_risk_gradient(denoiser)
    deviation = (draws.mean(axis=0) - np.stack(exact)) / (draws.std(axis=0) / np.sqrt(40))
    assert np.abs(deviation).max() < 5.0


@pytest.mark.claim("F2")
def test_quasi_newton_reaches_the_bayes_denoiser():
    run = train_quasi_newton(FIGURE_2, start(2, seed=1))
    assert run.status == Status.BELOW_TARGET
    assert run.excess_risk[0] > 1.0
    assert run.excess_risk[-1] <= 1e-20
    assert len(run.steps) == len(run.excess_risk)
    assert FIGURE_2.excess_risk(run.final) == pytest.approx(run.excess_risk[-1], rel=1e-6)
    assert np.all(np.diff(run.excess_risk) <= 0)


def test_quasi_newton_stops_at_its_limit_or_where_the_gradient_vanishes():
    run = train_quasi_newton(FIGURE_2, start(2), max_steps=3)
    assert run.status == "step limit"
    zero = MultiHead([Head(np.zeros((2, 2)), np.zeros((2, 2)))])
    one_head = train_quasi_newton(FIGURE_2, zero, max_steps=400)
    assert one_head.status == "stationary"


def test_quasi_newton_in_high_dimension():
    rng = np.random.default_rng(0)
    means = rng.standard_normal((2, 20))
    means *= 3.0 / np.linalg.norm(means, axis=1, keepdims=True)
    task = DenoisingTask(GaussianMixture([0.5, 0.5], means, np.eye(20)), 1.0)
    run = train_quasi_newton(task, start(1, dim=20), max_steps=40)
    assert run.excess_risk[-1] < 0.05 * run.excess_risk[0]


@pytest.mark.claim("F2")
def test_sgd_learns_and_is_reproducible():
    run = train_sgd(FIGURE_2, start(2), np.random.default_rng(1), n_steps=3000, record_every=500)
    assert run.status == "step limit"
    np.testing.assert_array_equal(run.steps, np.arange(0, 3001, 500))
    assert run.excess_risk[-1] < 0.05
    again = train_sgd(FIGURE_2, start(2), np.random.default_rng(1), n_steps=3000, record_every=500)
    np.testing.assert_array_equal(run.excess_risk, again.excess_risk)


def test_sgd_clips_the_gradient():
    first = random_heads(2, 2, np.random.default_rng(3), scale=3.0)
    run = train_sgd(
        FIGURE_2, first, np.random.default_rng(0), n_steps=1, step_size=1e-3, clip_norm=10.0
    )
    length = np.sqrt(
        sum(
            np.sum((after.U - before.U) ** 2) + np.sum((after.V - before.V) ** 2)
            for after, before in zip(run.final.heads, first.heads, strict=True)
        )
    )
    assert length == pytest.approx(1e-2, rel=1e-9)


@pytest.mark.claim("T4.1.one", "T4.1.affine")
def test_best_single_head_of_figure_2():
    fit = best_single_head(FIGURE_2, np.random.default_rng(0), n_starts=5)
    assert 0.0300 < fit.excess_risk <= 0.0301
    assert fit.n_agreeing >= 3
    assert len(fit.runs) == 5
    assert repr(fit).startswith("SingleHeadFit(excess_risk=0.0300612")
    assert "status=" in repr(fit.runs[0])
    assert fit.excess_risk == pytest.approx(FIGURE_2.excess_risk(fit.head), rel=1e-9)
    assert [run.excess_risk[-1] for run in fit.runs] == sorted(
        run.excess_risk[-1] for run in fit.runs
    )


@pytest.mark.claim("T4.1.one")
def test_best_single_head_is_exact_only_at_equal_variances():
    def excess(xi2):
        mixture = GaussianMixture([0.5, 0.5], [[3.0, 0.0], [0.0, 3.0]], np.eye(2))
        return best_single_head(
            DenoisingTask(mixture, xi2), np.random.default_rng(0), n_starts=3
        ).excess_risk

    assert excess(1.0) < 1e-25
    assert min(excess(0.5), excess(2.0)) > 1e-4


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: train_quasi_newton(FIGURE_2, Head(EYE, EYE)), "start: expected a MultiHead, got"),
        (lambda: train_quasi_newton(FIGURE_2, start(2, dim=3)), "start: expected heads in the"),
        (lambda: train_sgd(FIGURE_2, start(2), 7), "rng: expected a numpy.random.Generator"),
        (lambda: train_sgd(FIGURE_2, start(2), RNG, step_size=0.0), "step_size: expected a number"),
        (lambda: train_sgd(FIGURE_2, start(2), RNG, batch_size=0), "batch_size: expected an int"),
        (lambda: train_sgd(FIGURE_2, start(2), RNG, n_steps=0), "n_steps: expected an integer >="),
        (lambda: train_sgd(OWN, start(2), RNG), "task: training expects components of one"),
        (lambda: train_quasi_newton(OWN, start(2)), "task: training expects components of one"),
        (lambda: best_single_head("task", RNG), "task: expected a DenoisingTask, got str"),
        (lambda: best_single_head(FIGURE_2, RNG, n_starts=0), "n_starts: expected an integer >= 1"),
        (lambda: OWN.excess_risk_gradient(start(1)), "task: expected components of one covariance"),
        (lambda: FIGURE_2.excess_risk_gradient(lambda z: z), "denoiser: expected attention heads"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: random_heads(2, None, np.random.default_rng(0)), "^n_heads: expected an integer"),
        (lambda: random_heads("x", 2, np.random.default_rng(0)), "^dim: expected an integer"),
        (lambda: random_heads(2, 2, None), "^rng: expected a numpy.random.Generator"),
        (lambda: best_linear_denoiser(None), "^task: expected a DenoisingTask, got NoneType"),
        (lambda: best_affine_denoiser("x"), "^task: expected a DenoisingTask, got str"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


THREADS = """
import sys
from pathlib import Path
import numpy as np
from threadpoolctl import threadpool_limits
from mixattn import DenoisingTask, GaussianMixture, random_heads, train_sgd
rng = np.random.default_rng(0)
means = rng.standard_normal((2, 40))
task = DenoisingTask(GaussianMixture([0.3, 0.7], means, np.eye(40)), 0.5)
heads = random_heads(40, 2, rng, 0.1)
# three projections and tens of thousands of nodes: sums long enough to be split
small = DenoisingTask(GaussianMixture([0.3, 0.7], means[:, :3], np.eye(3)), 0.5)
small_heads = random_heads(3, 2, rng)
with threadpool_limits(int(sys.argv[1])):
    value, *gradient = task.excess_risk_gradient(heads)
    values = [value, task.excess_risk(heads), small.excess_risk(small_heads)]
    run = train_sgd(task, heads, rng, n_steps=30, batch_size=2000, record_every=30)
print(np.concatenate([values, np.ravel(gradient), run.last]).tobytes().hex())
"""


LAW = InContextLaw(2, 0.2, 0.8)
TASKS = LAW.sample(3, np.random.default_rng(0))
LAYER = ResidualParams.random(2, 2, np.random.default_rng(1))


@pytest.mark.parametrize(
    "train",
    [
        lambda: train_quasi_newton(FIGURE_2, start(2), max_steps=3),
        lambda: train_sgd(FIGURE_2, start(2), np.random.default_rng(1), n_steps=4, record_every=2),
        lambda: train_in_context(TASKS, LAYER, max_steps=3, order=4),
        lambda: train_in_context_online(
            LAW, [LAYER], [np.random.default_rng(1)], record_tasks=TASKS, n_steps=4, order=4
        )[0],
        lambda: best_single_head(FIGURE_2, np.random.default_rng(1), n_starts=1).runs[0],
    ],
)
def test_histories_survive_copies_and_stay_frozen(train):
    run = train()
    for twin in (copy.deepcopy(run), pickle.loads(pickle.dumps(run))):
        final = twin.final
        assert type(final) is type(run.final)
        np.testing.assert_array_equal(twin.last, run.last)
        with pytest.raises(ValueError, match="read-only"):
            twin.params[0, 0] = 0.0


def test_cached_and_shared_arrays_are_read_only():
    task = copy.deepcopy(FIGURE_2)
    task.bayes_risk()
    for value in (task.whitened, copy.copy(task.whitened), TASKS.rule(3)):
        arrays = [entry for entry in vars(value).values() if isinstance(entry, np.ndarray)]
        assert arrays
        assert not any(array.flags.writeable for array in arrays)


@pytest.mark.parametrize("size", [1e50, 1e150, 1e200, 1e300])
def test_huge_parameters_are_refused_or_end_a_training_without_a_warning(size):
    heads = random_heads(2, 2, np.random.default_rng(0), size)
    for call in (FIGURE_2.excess_risk, FIGURE_2.excess_risk_gradient):
        with pytest.raises(ValueError, match=r"^denoiser: expected"):
            call(heads)
    with pytest.raises(ValueError, match=r"^start: expected a point of finite excess risk"):
        train_quasi_newton(FIGURE_2, heads)
    run = train_sgd(FIGURE_2, heads, np.random.default_rng(0), n_steps=3)
    assert run.status is Status.DIVERGED
    np.testing.assert_array_equal(run.final.heads[1].V, heads.heads[1].V)


def test_a_line_search_that_overflows_turns_back():
    far = ResidualParams.random(2, 2, np.random.default_rng(0), 1e50)
    run = train_in_context(TASKS, far, max_steps=5, order=4)
    assert np.isfinite(run.params).all()


def test_what_overflows_is_refused_without_a_warning():
    with pytest.raises(ValueError, match=r"^means: expected finite squares"):
        InContextTasks([[0.5, 0.5]], 1e200 * np.eye(2)[None], 0.2, 0.8)
    with pytest.raises(ValueError, match=r"^total_variance: expected an output of finite size"):
        GatedMap(np.eye(2), [np.eye(2)], [10 * np.eye(2)]).linear_part(1e308)
    with pytest.raises(ValueError, match=r"^z: expected an output of finite size"):
        AffineDenoiser(1e200 * np.eye(2))([1e200, 1.0])


def test_the_number_of_threads_changes_no_bit():
    results = set()
    for count in ("1", "2", "8"):
        environment = {k: v for k, v in os.environ.items() if not k.endswith("_NUM_THREADS")}
        environment["PYTHONPATH"] = str(Path(mixattn.__file__).parent.parent)
        done = subprocess.run(
            [sys.executable, "-c", THREADS, count],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        results.add(done.stdout)
    assert len(results) == 1


def test_the_error_estimate_covers_rounding_and_the_rule():
    # at the optimum all that is left is rounding: of the size of the terms, squared
    exact = FIGURE_2.excess_risk(two_head_denoiser(FIGURE_2))
    assert exact <= exact.error
    assert 1e-32 < exact.error < 1e-26
    # away from it, the rule's own tolerance: relative to the value
    heads = random_heads(2, 2, np.random.default_rng(5))
    risk = FIGURE_2.excess_risk(heads)
    fine = FIGURE_2.excess_risk(lambda z: heads(FIGURE_2.noisy, z))
    assert abs(risk - fine) <= risk.error + fine.error
    assert 1e-12 * risk < risk.error < 1e-8 * risk
