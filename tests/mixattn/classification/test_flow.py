"""Training: the flow against explicit integration, its rates against what curvature predicts."""

import numpy as np
import pytest
import scipy.integrate

from mixattn import (
    AttentionParams,
    EffectiveParams,
    LDATask,
    Status,
    excess_risk,
    risk_gradient,
)
from mixattn.classification import flow as fl
from mixattn.classification import landscape as ls

SKEWED = np.array([[1.0, 0.3], [0.3, 0.7]])
TASK = LDATask([1.0, 0.5], [-0.5, 1.0], SKEWED, 0.3)
C1, FIGURE1_THETA1, FIGURE1_THETA2 = ls.figure1_starts()
START = EffectiveParams([0.3, -0.2], 0.5, 1.0, [1.0, 0.7])


def perturbed(params, size, seed):
    v = params.to_vector()
    noise = size * np.random.default_rng(seed).standard_normal(len(v))
    return type(params).from_vector(v + noise, params.dim)


# --- the integrator ------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [START, ls.lift(START, TASK)])
def test_flow_agrees_with_an_explicit_integrator(start):
    d = TASK.dim

    def velocity(_, y):
        return -risk_gradient(type(start).from_vector(y, d), TASK).to_vector()

    reference = scipy.integrate.solve_ivp(
        velocity, (0, 10), start.to_vector(), method="DOP853", rtol=1e-9, atol=1e-11
    )
    flow = fl.gradient_flow(start, TASK, 10.0)
    assert flow.status == Status.REACHED_END
    np.testing.assert_allclose(flow.params[-1], reference.y[:, -1], atol=1e-8)
    np.testing.assert_allclose(flow.at(10.0), flow.params[-1], atol=1e-12)
    middle = np.searchsorted(reference.t, 3.0)
    np.testing.assert_allclose(flow.at(reference.t[middle]), reference.y[:, middle], atol=1e-8)


def test_trajectory_has_the_contract_shapes_and_dissipates():
    flow = fl.gradient_flow(START, TASK, 30.0, rtol=1e-8)
    n = len(flow.t)
    assert flow.params.shape == (n, 6)
    assert flow.excess_risk.shape == (n,)
    assert flow.at(1.0).shape == (6,)
    assert flow.at([1.0, 2.0]).shape == (2, 6)
    np.testing.assert_allclose(flow.at(0.0), START.to_vector(), rtol=1e-14)
    assert flow.t[0] == 0
    assert flow.t[-1] == 30.0
    assert (np.diff(flow.excess_risk) < 0).all()
    assert isinstance(flow.final, EffectiveParams)
    np.testing.assert_allclose(flow.point_at(7.0).to_vector(), flow.at(7.0))
    # d(excess)/dt = -|gradient|^2
    t, h = 5.0, 1e-3
    late, early = flow.excess_risk_at([t + h, t - h])
    slope = np.sum(risk_gradient(flow.point_at(t), TASK).to_vector() ** 2)
    assert (late - early) / (2 * h) == pytest.approx(-slope, rel=1e-5)
    with pytest.raises(ValueError, match=r"t: expected times in \[0, 30\]"):
        flow.at(31.0)
    for bad in ([], [[1.0]]):
        with pytest.raises(ValueError, match=r"t: expected a time or times of shape \(m,\)"):
            flow.at(bad)


def test_status_says_why_the_flow_stopped():
    on_minimizer = fl.gradient_flow(ls.E2_point(TASK, 2.0), TASK, 5.0)
    assert on_minimizer.status == Status.STATIONARY
    np.testing.assert_array_equal(on_minimizer.at([0.0, 5.0]), on_minimizer.params[[0, 0]])
    slow = fl.gradient_flow(START, TASK, 1e9, gradient_tol=1e-2, rtol=1e-6)
    assert slow.status == Status.STATIONARY
    assert np.linalg.norm(risk_gradient(slow.final, TASK).to_vector()) <= 1e-2
    good = fl.gradient_flow(START, TASK, 1e9, excess_tol=1e-2, rtol=1e-6)
    assert good.status == Status.BELOW_TARGET
    assert excess_risk(good.final, TASK) <= 1e-2 < good.excess_risk[-2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"params": [0.0] * 6}, "params: expected AttentionParams or EffectiveParams, got list"),
        ({"t_end": 0.0}, "t_end: expected a number > 0"),
        ({"t_end": np.nan}, "t_end: expected finite"),
        ({"rtol": 1e-16}, "rtol: expected a number >= 1e-13"),
        ({"atol": 0.0}, "atol: expected a number > 0"),
        ({"params": EffectiveParams([1.0], 0.0, 0.0, [1.0])}, "dimension 2, got 1"),
    ],
)
def test_flow_validates(change, message):
    arguments = {"params": START, "task": TASK, "t_end": 1.0} | change
    with pytest.raises(ValueError, match=message):
        fl.gradient_flow(**arguments)


@pytest.mark.parametrize("t_end", [5e-324, 1e-200, 1e-150, 1e-50, 1e-3])
def test_short_times_are_a_step_along_the_gradient(t_end):
    start = EffectiveParams([0.3, 0.0], 0.5, 1.0, [1.0, 0.7])
    flow = fl.gradient_flow(start, TASK, t_end)
    assert flow.status == Status.REACHED_END
    assert flow.t[-1] == t_end
    step = flow.params[-1] - start.to_vector()
    expected = -t_end * risk_gradient(start, TASK).to_vector()
    np.testing.assert_allclose(step, expected, rtol=1e-2, atol=1e-15)
    # the coordinate that starts at zero resolves the shortest step
    assert step[1] == pytest.approx(expected[1], rel=1e-2)
    np.testing.assert_allclose(flow.at(0.5 * t_end), start.to_vector(), atol=2e-3)


def test_a_flow_that_the_integrator_cannot_follow_says_so(monkeypatch):
    class Stuck(fl.LSODA):
        def step(self):
            """Take no step."""

    monkeypatch.setattr(fl, "LSODA", Stuck)
    flow = fl.gradient_flow(START, TASK, 1.0)
    assert flow.status == Status.FAILED
    np.testing.assert_array_equal(flow.params, [START.to_vector()])


# --- local convergence -------------------------------------------------------------------------


@pytest.mark.claim("T3.5", "T3.5.rate")
@pytest.mark.parametrize(
    ("task", "kind"),
    [
        (TASK, "attention"),
        (TASK, "effective"),
        (LDATask([1.5], [-0.2], [[0.8]], 0.7), "attention"),
    ],
)
def test_rate_near_theta1_is_twice_the_least_nonzero_eigenvalue(task, kind):
    s = np.array([4.0, -2.0])[: task.dim]
    base = ls.theta1_point(task, s) if kind == "attention" else ls.E1_point(task, s)
    flow = fl.gradient_flow(perturbed(base, 0.05, 1), task, 1e7, gradient_tol=1e-10)
    assert flow.status == Status.STATIONARY
    assert ls.distance_to_E1(flow.final, task) < 1e-6
    rate = ls.predicted_rate(flow.final, task)
    t = np.linspace(0, flow.t[-1], 200)
    distance = np.linalg.norm(flow.at(t) - flow.params[-1], axis=1)
    late = t[(distance < 1e-3) & (distance > 3e-6)]
    window = np.linspace(late[0], late[-1], 17)
    measured = fl.fit_exponential_rate(window, flow.excess_risk_at(window))
    assert measured.value == pytest.approx(rate, rel=2e-3)
    assert abs(measured.value - rate) < 3 * measured.uncertainty + 1e-4 * rate
    # the parameters converge to one point, exponentially, at half that rate
    towards = fl.fit_exponential_rate(late, distance[(distance < 1e-3) & (distance > 3e-6)])
    assert towards.value == pytest.approx(rate / 2, rel=0.05)


E2_TASKS = {prior: LDATask([1.0, 0.5], [-0.5, 1.0], 4 * SKEWED, prior) for prior in (0.3, 0.5)}


@pytest.mark.claim("E2.rate")
@pytest.mark.parametrize(
    ("prior", "r", "kind", "t_end", "exponent"),
    [
        (0.3, 3.0, "effective", 1e5, -2.0),
        (0.3, 3.0, "attention", 3e4, -2.0),
        (0.5, 6.0, "effective", 1e5, -1.5),
        (0.5, 6.0, "attention", 2e5, -1.5),
    ],
)
def test_decay_near_the_constant_gate_is_algebraic(prior, r, kind, t_end, exponent):
    task = E2_TASKS[prior]
    s = np.array([0.6, -0.3])
    start = ls.E2_point(task, r)
    start = EffectiveParams(start.w - r * prior * (1 - prior) * s, start.b, r, s)
    start = ls.lift(start, task) if kind == "attention" else start
    flow = fl.gradient_flow(start, task, t_end, rtol=1e-8, atol=1e-11)
    assert flow.status == Status.REACHED_END
    t = t_end * np.array([0.5, 1.0])
    local = fl.local_exponents(t, flow.excess_risk_at(t))
    assert local[0] == pytest.approx(exponent, rel=0.01)
    # it converges to the constant gate, not to the other family
    assert ls.distance_to_E2(flow.final, task) < 0.1 * ls.distance_to_E2(start, task)
    assert ls.distance_to_E1(flow.final, task) > 0.5 * r


@pytest.mark.claim("F1")
def test_figure1_fast_curve_and_plateau():
    t = np.linspace(0, 1000, 9)
    first = fl.gradient_flow(perturbed(FIGURE1_THETA1, 1e-6, 2), C1, 1e3)
    second = fl.gradient_flow(perturbed(FIGURE1_THETA2, 1e-6, 3), C1, 1e3)
    to_e1 = [ls.distance_to_E1(first.point_at(x), C1) for x in t]
    to_e2 = [ls.distance_to_E2(second.point_at(x), C1) for x in t]
    # near Theta1 the distance falls by orders of magnitude; near Theta2 it stays at the size of
    # the perturbation, because its algebraic decay would begin much later
    assert to_e1[-1] < 0.2 * to_e1[1] < 1e-5
    steps = np.diff(np.log(to_e1[1:5]))  # beyond, the distance is below the tolerance
    assert steps.std() < 0.05 * abs(steps.mean())
    assert 0.9 < to_e2[-1] / to_e2[4] <= 1
    assert 1e-8 < to_e2[-1] < 1e-5


# --- explicit training -------------------------------------------------------------------------


def test_gradient_descent_takes_the_stated_steps():
    h = 0.05
    y = START.to_vector()
    for _ in range(3):
        y = y - h * risk_gradient(EffectiveParams.from_vector(y, 2), TASK).to_vector()
    curve = fl.gradient_descent(START, TASK, step_size=h, n_steps=3, record=[0, 1, 3])
    np.testing.assert_array_equal(curve.steps, [0, 1, 3])
    np.testing.assert_allclose(curve.params[-1], y, rtol=1e-14)
    np.testing.assert_array_equal(curve.final.to_vector(), curve.params[-1])
    assert curve.excess_risk[0] == excess_risk(START, TASK)


def test_gradient_descent_follows_the_flow_to_first_order():
    flow = fl.gradient_flow(START, TASK, 4.0)
    errors = [
        np.linalg.norm(
            fl.gradient_descent(START, TASK, step_size=4.0 / n, n_steps=n, record=[n]).params[-1]
            - flow.params[-1]
        )
        for n in (20, 40, 80)
    ]
    np.testing.assert_allclose(np.log2(np.divide(errors[:-1], errors[1:])), 1, atol=0.1)


@pytest.mark.parametrize("start", [START, ls.lift(START, TASK)])
def test_sgd_steps_are_unbiased_and_seeded(start):
    # one step with a huge batch: minus the gradient, up to the sampling error
    batch = 200_000
    curve = fl.online_sgd(
        start, TASK, np.random.default_rng(4), step_size=1.0, n_steps=1, batch_size=batch
    )
    step = start.to_vector() - curve.params[-1]
    exact = risk_gradient(start, TASK).to_vector()
    assert np.linalg.norm(step - exact) < 6 * 10 / np.sqrt(batch)
    runs = [
        fl.online_sgd(
            start, TASK, np.random.default_rng(5), step_size=0.1, n_steps=60, batch_size=8
        )
        for _ in range(2)
    ]
    np.testing.assert_array_equal(runs[0].params, runs[1].params)
    assert runs[0].steps[0] == 0
    assert runs[0].steps[-1] == 60
    assert len(runs[0].excess_risk) == len(runs[0].steps)


@pytest.mark.claim("F4", "F5")
def test_starts_of_figures_4_and_5():
    d = 20
    m = np.eye(d)[0]
    task = LDATask(m, -m, np.eye(d), 0.5)
    record = [0, *range(2_000, 4_001, 250)]
    settings = {"step_size": 1e-2, "n_steps": 4_000, "batch_size": 1, "record": record}
    rng = np.random.default_rng(0)
    start = AttentionParams.from_vector(rng.standard_normal(d * d + 2 * d + 1), d)
    gaussian = fl.online_sgd(start, task, rng, **settings).excess_risk
    zero = np.zeros(d)
    start = AttentionParams(np.zeros((d, d)), zero, rng.standard_normal(d), 0.0)
    special = fl.online_sgd(start, task, rng, **settings).excess_risk
    # single samples: after the same time the special start is much closer to the Bayes risk
    assert gaussian[0] > 3 > 0.5 > special[0] > 0.3
    assert special[1:].mean() < 0.1
    assert gaussian[1:].mean() > 2 * special[1:].mean()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"step_size": -1.0}, "step_size"),
        ({"n_steps": 0}, "n_steps: expected an integer >= 1"),
        ({"record": [0, 11]}, r"record: expected at least one step in \[0, 10\]"),
        ({"record": [0.5]}, "record: expected an integer"),
        ({"record": np.array([None, 1])}, "record: expected an integer"),
    ],
)
def test_descent_validates(change, message):
    with pytest.raises(ValueError, match=message):
        fl.gradient_descent(START, TASK, **({"step_size": 0.1, "n_steps": 10} | change))


@pytest.mark.parametrize("start", [START, ls.lift(START, TASK)])
@pytest.mark.parametrize("step_size", [1e11, 1e20, 1e300])
def test_a_descent_that_diverges_ends_and_says_so(start, step_size):
    runs = [
        fl.gradient_descent(start, TASK, step_size=step_size, n_steps=1000),
        fl.online_sgd(
            start,
            TASK,
            np.random.default_rng(0),
            step_size=step_size,
            n_steps=1000,
            batch_size=2,
        ),
    ]
    for run in runs:
        assert run.status == Status.DIVERGED
        assert run.steps[-1] < 10
        assert np.isfinite(run.excess_risk).all()


# --- fits --------------------------------------------------------------------------------------


def test_fits_recover_pure_decays():
    t = np.linspace(1, 50, 40)
    exponential = fl.fit_exponential_rate(t, 3 * np.exp(-0.4 * t))
    assert exponential.value == pytest.approx(0.4, rel=1e-12)
    assert exponential.uncertainty < 1e-12
    t = np.geomspace(1, 1e6, 40)
    power = fl.fit_power_law(t, 7 * t**-1.5)
    assert power.value == pytest.approx(-1.5, rel=1e-12)
    np.testing.assert_allclose(fl.local_exponents(t, 7 * t**-1.5), -1.5, rtol=1e-12)


@pytest.mark.parametrize("faster", [0.5, 0.8, 2.0])
def test_uncertainty_covers_the_modes_that_have_not_died_out(faster):
    t = np.linspace(0, 20, 80)
    fit = fl.fit_exponential_rate(t, np.exp(-0.4 * t) + 5 * np.exp(-faster * t))
    if faster == 0.5:
        # two modes that the window cannot tell apart: the uncertainty says that it is large
        assert fit.uncertainty > 0.005
    else:
        assert abs(fit.value - 0.4) <= fit.uncertainty
    with pytest.raises(ValueError, match="at least four times in each quarter"):
        fl.fit_exponential_rate(t[:8], np.exp(-t[:8]))
    with pytest.raises(ValueError, match="excess: expected positive values"):
        fl.fit_exponential_rate(t, -np.ones(80))
    with pytest.raises(ValueError, match="t: expected positive times"):
        fl.fit_power_law(t, np.ones(80))
    with pytest.raises(ValueError, match="increasing times"):
        fl.local_exponents([2.0, 1.0], [1.0, 1.0])
