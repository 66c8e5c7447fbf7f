"""The stored runs of Figures 4 and 5, by routes that the chapter and the command do not use."""

import data
import numpy as np
import pytest
from scipy import integrate
from scipy.special import expit, log_expit

from companion.store import read_data
from mixattn import AttentionParams, excess_risk, risk_gradient
from mixattn.classification.krylov import figure45_starts

DATA = read_data("ch06_figures45", data.FOLDER)
STARTS = {"figure 4": 1, "figure 5": 2}


def setting(figure, seed):
    """The task and the start of a stored run."""
    drawn = figure45_starts(np.random.default_rng(seed))
    return drawn[0], drawn[STARTS[figure]]


def test_stored_runs_are_those_that_the_command_plans():
    assert DATA["times"] == data.TIMES.tolist()
    for batch, n_steps in DATA["parameters"]["n_steps"].items():
        assert DATA["steps"][batch] == data.recorded_steps(n_steps).tolist()
    for figure in STARTS:
        runs = DATA["runs"][figure]
        assert len(runs) == DATA["parameters"]["n_seeds"]
        for run in runs:
            excess = np.array(run["flow"]["excess_risk"])
            # down to where what is left of the excess risk is rounding
            assert (np.diff(excess[excess > 1e-20]) < 0).all()
            for batch in DATA["steps"]:
                assert len(run[f"sgd {batch}"]["excess_risk"]) == len(DATA["steps"][batch])


@pytest.mark.claim("F4", "F5")
@pytest.mark.parametrize("figure", STARTS)
def test_every_curve_starts_at_the_risk_of_its_start_by_simulation(figure):
    rng = np.random.default_rng(20)
    for seed, run in enumerate(DATA["runs"][figure]):
        task, start = setting(figure, seed)
        first = [curve["excess_risk"][0] for curve in run.values()]
        assert np.ptp(first) == 0
        x, y = task.sample(40_000, rng)
        w, b = task.bayes_score
        scores = attention_scores(start, task, x)
        losses = log_expit(y * (x @ w + b)) - log_expit(y * scores)
        assert abs(losses.mean() - first[0]) < 4.5 * losses.std() / 200


@pytest.mark.claim("F4", "F5")
@pytest.mark.parametrize("figure", STARTS)
def test_the_flow_begins_as_an_explicit_integrator_says(figure):
    task, start = setting(figure, 5)
    times = np.array(DATA["times"])
    early = times[times <= 1.0]
    solution = integrate.solve_ivp(
        lambda _, y: -risk_gradient(AttentionParams.from_vector(y, 20), task).to_vector(),
        (0, early[-1]),
        start.to_vector(),
        method="DOP853",
        t_eval=early,
        rtol=1e-8,
        atol=1e-10,
    )
    excess = [excess_risk(AttentionParams.from_vector(y, 20), task) for y in solution.y.T]
    stored = DATA["runs"][figure][5]["flow"]["excess_risk"][: len(early)]
    np.testing.assert_allclose(excess, stored, rtol=1e-6)


@pytest.mark.claim("F4", "F5")
@pytest.mark.parametrize("figure", STARTS)
def test_online_sgd_is_the_plain_loop_over_minibatches(figure):
    task, start = setting(figure, 3)
    steps = [n for n in DATA["steps"]["32"] if n <= 300]
    rng = np.random.default_rng([3, 32])
    U11, u12, v21, v22 = (np.array(part) for part in (start.U11, start.u12, start.v21, start.v22))
    m, found = task.mean_pos, []
    for n in range(steps[-1] + 1):
        if n in steps:
            found.append(excess_risk(AttentionParams(U11, u12, v21, float(v22)), task))
        x, y = task.sample(32, rng)
        # f = v21^T U11^T x + (v21^T m + v22) tanh((u12^T x + m^T U11^T x)): Gamma = I, means +-m
        along = x @ u12 + x @ (U11 @ m)
        gate, amplitude = np.tanh(along), v21 @ m + v22
        pull = -y * expit(-y * (x @ (U11 @ v21) + amplitude * gate)) / len(x)
        bend = pull * amplitude * (1 - gate**2)
        steps_down = (
            np.outer(pull @ x, v21) + np.outer(bend @ x, m),
            bend @ x,
            U11.T @ (pull @ x) + (pull @ gate) * m,
            pull @ gate,
        )
        U11, u12, v21, v22 = (
            part - DATA["parameters"]["step_size"] * step
            for part, step in zip((U11, u12, v21, v22), steps_down, strict=True)
        )
    stored = DATA["runs"][figure][3]["sgd 32"]["excess_risk"][: len(steps)]
    np.testing.assert_allclose(found, stored, rtol=1e-6)


def attention_scores(theta, task, x):
    """The score of a head at x, from the operator's definition with component sums."""
    gates = []
    for sign in (1, -1):
        mean = sign * task.mean_pos
        tilt = x @ theta.U11
        # log E exp(t . (X, Y)) over one class, up to what the classes share
        gates.append(tilt @ mean + sign * (x @ theta.u12))
    share = expit(gates[0] - gates[1])[:, None]
    token = share * task.mean_pos - (1 - share) * task.mean_pos + x @ theta.U11
    label = 2 * share[:, 0] - 1
    return token @ theta.v21 + label * theta.v22
