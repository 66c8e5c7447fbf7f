"""What three live figures say in words: where a ball ends, which head is best, how long it takes."""

import numpy as np
import pytest
from live_kinds import best_line, first_state, landscape_state
from scipy.integrate import solve_ivp
from scipy.optimize import minimize
from test_live_parity import in_node

from companion.explorables import iterate as iteration
from companion.explorables import landscape as ball
from companion.explorables import two_heads as line
from mixattn import EffectiveParams, excess_risk, iterate_denoiser, risk_gradient, risk_hessian


def endings(states):
    return in_node("landscape", "m.ending", states)


@pytest.mark.claim("T3.1")
def test_every_ball_ends_on_one_of_the_two_families(rng):
    states = [landscape_state(rng) for _ in range(100)]
    seen = endings(states)
    assert {end["family"] for end in seen} == {"off", "frozen"}
    for state, end in zip(states, seen, strict=True):
        task, (r, s) = ball.task_of(state["prior"]), end["end"]
        assert excess_risk(best_line(r, s, state["prior"]), task) < 1.001e-9
        w, b = task.bayes_score
        nearest = {
            "off": EffectiveParams(w, b, 0.0, [s]),
            "frozen": EffectiveParams(w, b - r * state["prior"], r, [0.0]),
        }[end["family"]]
        assert excess_risk(nearest, task) < 1e-20
        assert abs(r if end["family"] == "off" else s) < 0.25


@pytest.mark.parametrize("start", [(3.4, 2.9), (1.0, -3.0)])
def test_the_ball_follows_the_gradient_flow_of_what_is_drawn(start):
    state = first_state("landscape") | {"ball": list(start)}
    task = ball.task_of(state["prior"])
    (seen,) = endings([state])
    last = best_line(*start, state["prior"]).to_vector()[:2]

    def velocity(_, at):
        nonlocal last
        for _ in range(6):
            zeta = EffectiveParams(last[:1], last[1], at[0], [at[1]])
            slope = risk_gradient(zeta, task).to_vector()
            if np.abs(slope[:2]).max() < 1e-12:
                break
            last = last - np.linalg.solve(risk_hessian(zeta, task)[:2, :2], slope[:2])
        return -slope[2:]

    flow = solve_ivp(velocity, (0, seen["time"]), start, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(seen["end"], flow.y[:, -1], atol=1e-2)


@pytest.mark.parametrize("power", [-3, -1.3, -0.2, 0.4, 2])
def test_no_head_of_the_kind_does_better_than_the_best(power):
    task = line.task_of(power)
    (seen,) = in_node("two_heads", "m.derive", [first_state("two_heads") | {"power": power}])

    def risk(v):
        return float(task.excess_risk(line.head_of(task, np.exp(v[0]), v[1])))

    for start in ([0.0, 0.5], [1.2, 0.2], [-0.5, 0.8]):
        assert seen["excess"] <= minimize(risk, start, method="Nelder-Mead").fun + 1e-9


@pytest.mark.claim("T4.1.one")
def test_one_head_is_bayes_at_the_balance_only():
    states = [first_state("two_heads") | {"power": p} for p in (-0.1, 0.0, 0.1)]
    below, at, above = in_node("two_heads", "m.derive", states)
    assert at["excess"] < 1e-18
    assert min(below["excess"], above["excess"]) > 1e-5


def test_the_limit_is_reached_after_the_steps_that_are_said(rng):
    states = [
        first_state("iterate")
        | {"noise": rng.uniform(0.3, 1.7), "start": rng.uniform(-3, 3, 2).tolist()}
        for _ in range(40)
    ]
    for state, seen in zip(states, in_node("iterate", "m.derive", states), strict=True):
        path = iterate_denoiser(iteration.task_of(state["noise"]), state["start"], seen["steps"])
        far = np.linalg.norm(path - [0, seen["limit"] * iteration.DELTA], axis=1) / iteration.DELTA
        assert far[-1] <= 0.01 < far[:-1].min(initial=np.inf)


def test_threshold_and_border():
    first = first_state("iterate")
    end = np.sqrt(iteration.DELTA**2 - iteration.WIDTH**2)
    threshold, border = in_node(
        "iterate",
        "m.derive",
        [first | {"noise": end, "start": [0.0, 2.0]}, first | {"noise": 1.0, "start": [1.0, 0.0]}],
    )
    assert threshold["lambda"] == pytest.approx(1, abs=1e-12)
    assert threshold["steps"] == 5000  # algebraic: it takes longer
    assert border["limit"] == 0
    assert border["fixed"] > 0.5
