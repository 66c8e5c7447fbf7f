"""Descents whose paths and ends are known: bowls, valleys, a cliff."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
from scipy.optimize import rosen, rosen_der

from mixattn.descent import History, Status, descend, descend_together, quasi_newton

CURVATURES = np.array([1.0, 3.0, 0.2])


def bowl(x):
    return 0.5 * float(CURVATURES @ x**2)


def valley(x):
    return float(rosen(x)), rosen_der(x)


def test_descent_on_a_bowl_is_a_geometric_series():
    start = np.array([1.0, -2.0, 3.0])
    run = descend(
        lambda x: CURVATURES * x, bowl, start, step_size=0.3, n_steps=40, record=[7, 0, 40, 7]
    )
    np.testing.assert_array_equal(run.steps, [0, 7, 40])
    expected = start * (1 - 0.3 * CURVATURES) ** run.steps[:, None]
    np.testing.assert_allclose(run.params, expected, rtol=1e-12)
    np.testing.assert_allclose(run.excess_risk, 0.5 * expected**2 @ CURVATURES, rtol=1e-12)
    np.testing.assert_allclose(run.final, expected[-1], rtol=1e-12)
    assert run.status == Status.STEP_LIMIT == "step limit"


def test_the_end_need_not_be_recorded():
    run = descend(lambda x: x, lambda x: x @ x, [1.0], step_size=0.5, n_steps=5, record=[0, 2])
    np.testing.assert_array_equal(run.params, [[1.0], [0.25]])
    np.testing.assert_array_equal(run.final, [0.5**5])


def test_fifty_records_by_default():
    run = descend(lambda x: x, lambda x: x @ x, [1.0], step_size=0.5, n_steps=1000)
    assert 30 < len(run.steps) <= 51
    np.testing.assert_array_equal(run.steps[:4], [0, 1, 2, 3])
    assert run.steps[-1] == 1000


def test_fresh_samples_average_to_the_mean():
    # with step 1 / (n + 1) the iterate would be a running mean; with a constant one its stationary
    # variance is h / (2 - h) of that of a sample
    rng = np.random.default_rng(0)
    run = descend(
        lambda x: x - 5.0 - rng.standard_normal(1),
        lambda x: (x[0] - 5.0) ** 2,
        [0.0],
        step_size=0.1,
        n_steps=40_000,
        record=range(200, 40_001),
    )
    assert run.params.mean() == pytest.approx(5.0, abs=0.03)
    assert run.excess_risk.mean() == pytest.approx(0.1 / 1.9, rel=0.05)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_clipping_rescales_to_the_norm_and_leaves_shorter_gradients(scale):
    gradient = scale * np.array([3.0, 4.0])
    for clip_norm, length in ((2.0, 2.0), (50.0, 50.0)):
        run = descend(
            lambda x: gradient,
            lambda x: 1.0,
            [0.0, 0.0],
            step_size=1.0,
            n_steps=1,
            clip_norm=clip_norm,
        )
        expected = -min(length, 5 * scale) * np.array([0.6, 0.8])
        np.testing.assert_allclose(run.final, expected, rtol=1e-14)


def test_a_run_that_diverges_ends_at_its_last_record_and_spoils_no_other():
    def gradient(theta):
        assert np.isfinite(theta).all()
        return np.where(theta > 1.5, 1e308 * theta, 0.5 * theta)

    starts = np.array([[1.0], [2.0], [0.5]])
    runs = descend_together(
        gradient, lambda theta: theta[:, 0] ** 2, starts, step_size=1.0, n_steps=4, record=range(5)
    )
    assert [run.status for run in runs] == ["step limit", "diverged", "step limit"]
    np.testing.assert_array_equal(runs[1].steps, [0])
    np.testing.assert_array_equal(runs[1].final, [2.0])
    for run, start in ((runs[0], 1.0), (runs[2], 0.5)):
        np.testing.assert_array_equal(run.params[:, 0], start * 0.5 ** np.arange(5))


def test_divergence_before_the_first_record_and_by_the_excess_risk():
    # the parameters stay finite, their squares do not
    run = descend(
        lambda x: -1e100 * x, lambda x: x @ x, [1.0], step_size=1.0, n_steps=3, record=[0, 1, 2, 3]
    )
    assert run.status is Status.DIVERGED
    np.testing.assert_array_equal(run.steps, [0, 1])
    np.testing.assert_array_equal(run.final, run.params[1])
    run = descend(
        lambda x: -1e200 * x, lambda x: x @ x, [1.0], step_size=1.0, n_steps=3, record=[3]
    )
    assert run.status is Status.DIVERGED
    assert run.params.shape == (0, 1)
    np.testing.assert_array_equal(run.final, [1.0])
    assert repr(run) == "History(status='diverged')"


def test_quasi_newton_follows_a_bent_valley():
    run = quasi_newton(valley, [-1.2, 1.0], target=1e-24)
    assert run.status is Status.BELOW_TARGET
    assert run.excess_risk[-1] <= 1e-24 < run.excess_risk[-2]
    np.testing.assert_allclose(run.final, [1.0, 1.0], atol=1e-10)
    assert np.all(np.diff(run.excess_risk) <= 0)
    np.testing.assert_array_equal(run.steps, np.arange(len(run.steps)))
    np.testing.assert_allclose([rosen(x) for x in run.params], run.excess_risk, rtol=1e-12)


def test_quasi_newton_starts_afresh_where_a_line_search_fails():
    # the gradient's sign is wrong at the tenth call: the line search there cannot succeed
    calls = []

    def deceptive(x):
        calls.append(1)
        sign = -1.0 if 10 <= len(calls) < 40 else 1.0
        value, gradient = valley(x)
        return value, sign * gradient

    assert quasi_newton(deceptive, [-1.2, 1.0]).status is Status.BELOW_TARGET
    calls.clear()
    limited = quasi_newton(deceptive, [-1.2, 1.0], max_steps=12)
    assert limited.status is Status.STEP_LIMIT
    assert len(limited.steps) == 13


def test_quasi_newton_does_not_follow_an_overflow():
    points = []

    def steep(x):
        points.append(float(x[0]))
        return np.exp(x[0]) * (1 + x[0] ** 2), np.array([np.exp(x[0]) * (1 + x[0]) ** 2])

    run = quasi_newton(steep, [600.0], max_steps=30)
    assert np.isfinite(points).all()
    assert np.isfinite(run.excess_risk).all()
    assert np.all(np.diff(run.excess_risk) <= 0)


def test_quasi_newton_says_why_it_stopped():
    assert quasi_newton(valley, [-1.2, 1.0], max_steps=5).status is Status.STEP_LIMIT
    assert len(quasi_newton(valley, [-1.2, 1.0], max_steps=5).steps) == 6
    above = quasi_newton(lambda x: (1.0 + x @ x, 2 * x), [3.0, 4.0])
    assert above.status is Status.STATIONARY
    np.testing.assert_allclose(above.final, 0.0, atol=1e-7)
    done = quasi_newton(valley, [1.0, 1.0])
    assert done.status is Status.BELOW_TARGET
    np.testing.assert_array_equal(done.steps, [0])
    assert all(status.advice for status in Status)


def test_quasi_newton_in_high_dimension():
    scales = np.geomspace(1.0, 100.0, 1000)
    run = quasi_newton(lambda x: (0.5 * scales @ x**2, scales * x), np.ones(1000), target=1e-12)
    assert run.status is Status.BELOW_TARGET


def shifted(vector, by):
    return vector + by


def test_points_of_the_tasks_own_type():
    run = descend(
        lambda x: x,
        lambda x: x @ x,
        [1.0],
        step_size=0.5,
        n_steps=4,
        record=[0, 2, 4],
        read=partial(shifted, by=10.0),
    )
    assert run.point_at(2) == 10.25
    assert run.final == 10.0625
    for step in (1, 5, -1, 2.0, None):
        with pytest.raises(ValueError, match=r"^step: expected"):
            run.point_at(step)


@pytest.mark.parametrize(
    "copied", [lambda x: x, copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_histories_are_frozen(copied):
    run = copied(
        descend(lambda x: x, lambda x: x @ x, [1.0], step_size=0.5, n_steps=4, read=np.sum)
    )
    for name in ("steps", "excess_risk", "params", "last"):
        with pytest.raises(ValueError, match="read-only"):
            getattr(run, name)[...] = 0
    with pytest.raises(AttributeError):
        run.status = Status.FAILED
    assert run.final == 0.0625
    assert repr(run) == "History(steps=4, excess_risk=0.00391, status='step limit')"


def walk(**changes):
    options = {"step_size": 0.1, "n_steps": 3} | changes
    return descend(lambda x: x, lambda x: x @ x, options.pop("start", [1.0]), **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: walk(start=[[1.0]]), "^start: expected shape"),
        (lambda: walk(step_size=0.0), "^step_size: expected a number > 0"),
        (lambda: walk(n_steps=0), "^n_steps: expected an integer >= 1"),
        (lambda: walk(clip_norm=-1.0), "^clip_norm: expected a number > 0"),
        (lambda: walk(record=[]), "^record: expected at least one step"),
        (lambda: walk(record=[4]), r"^record: expected at least one step in \[0, 3\], got up to 4"),
        (lambda: walk(record=[0.5]), "^record: expected an integer"),
        (lambda: walk(record=[[1], [2, 3]]), "^record: expected an integer"),
        (lambda: walk(record=3), "^record: expected a sequence"),
        (lambda: walk(record="12"), "^record: expected a sequence"),
        (lambda: quasi_newton(valley, [1.0, np.nan]), "^start: expected finite entries"),
        (lambda: quasi_newton(valley, [1e200, 1.0]), "^start: expected a point of finite excess"),
        (lambda: quasi_newton(valley, [0.0, 0.0], target=-1.0), "^target: expected a number >= 0"),
        (lambda: quasi_newton(valley, [0.0, 0.0], max_steps=0), "^max_steps: expected an integer"),
        (lambda: History([0, 0], [1.0, 1.0], [[1.0]] * 2, [1.0], "failed"), "^steps: .*ascending"),
        (lambda: History([0], [1.0, 2.0], [[1.0]], [1.0], "failed"), "^excess_risk: expected"),
        (lambda: History([0], [1.0], [[1.0]], [1.0, 2.0], "failed"), "^params: expected shape"),
    ],
)
def test_bad_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()
