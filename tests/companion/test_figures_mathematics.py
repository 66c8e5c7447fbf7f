"""What three live figures compute in the browser, against the package: Node runs their modules."""

import json
import subprocess
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import solve_ivp
from scipy.optimize import minimize

from companion import figures
from mixattn import (
    DenoisingTask,
    EffectiveParams,
    clustering_fixed_point,
    excess_risk,
    iterate_denoiser,
    risk_gradient,
    two_head_denoiser,
)

FOLDER = Path(__file__).parents[2] / "src" / "companion" / "explorables"
CLOSE = {"rtol": 1e-9, "atol": 1e-9}


def derived(kind, states):
    """What `derive` of a figure says of each state, as JSON carries it to the page and back."""
    program = f"""
        import {{ derive }} from "{(FOLDER / f"{kind}.js").as_uri()}";
        import {{ readFileSync }} from "node:fs";
        console.log(JSON.stringify(JSON.parse(readFileSync(0)).map((state) => derive(state))));
    """
    done = subprocess.run(
        ["node", "--input-type=module", "-e", program],
        input=json.dumps(states),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def best_line(r, s, task):
    """w and b that minimize the risk at (r, s), by a method that knows the package's gradient only."""

    def value(v):
        zeta = EffectiveParams([v[0]], v[1], r, [s])
        slope = risk_gradient(zeta, task)
        return excess_risk(zeta, task), np.array([slope.w[0], slope.b])

    w, b = task.bayes_score
    return minimize(value, [w[0], b - r * task.prior_pos], jac=True, tol=1e-12).x


@pytest.fixture(scope="module")
def landscape():
    rng = np.random.default_rng(4)
    states = [
        figures.landscape_state(rng.uniform(0.05, 0.95), rng.uniform([-5.5, -4], [5.5, 4]))
        for _ in range(120)
    ]
    return list(zip(states, derived("landscape", states), strict=True))


def test_landscape_is_the_reduced_risk_and_its_gradient(landscape):
    for state, seen in landscape:
        r, s = state["ball"]
        task = figures.landscape_task(state["prior"])
        zeta = EffectiveParams([seen["w"]], seen["b"], r, [s])
        slope = risk_gradient(zeta, task)
        np.testing.assert_allclose([slope.w[0], slope.b], 0, atol=1e-9)
        np.testing.assert_allclose(seen["gradient"], [slope.r, slope.s[0]], **CLOSE)
        np.testing.assert_allclose(seen["excess"], excess_risk(zeta, task), **CLOSE)


def test_every_ball_ends_on_a_family(landscape):
    assert {seen["family"] for _, seen in landscape} == {"off", "frozen"}
    for state, seen in landscape:
        task = figures.landscape_task(state["prior"])
        (r, s), (w, b) = seen["end"], task.bayes_score
        off = EffectiveParams(w, b, 0.0, [s])
        frozen = EffectiveParams(w, b - r * state["prior"], r, [0.0])
        nearest = off if seen["family"] == "off" else frozen
        assert excess_risk(nearest, task) < 1e-20
        assert abs(r if seen["family"] == "off" else s) < 0.25
        assert 0 < seen["left"] < 1e-9 or seen["excess"] < 1e-9


@pytest.mark.parametrize("ball", [(3.4, 2.9), (-4.0, 1.5), (1.0, -3.0)])
def test_the_ball_follows_the_gradient_flow_of_what_is_drawn(ball):
    state = figures.landscape_state(0.3, ball)
    task = figures.landscape_task(0.3)
    (seen,) = derived("landscape", [state])

    def velocity(_, at):
        w, b = best_line(*at, task)
        slope = risk_gradient(EffectiveParams([w], b, at[0], [at[1]]), task)
        return [-slope.r, -slope.s[0]]

    flow = solve_ivp(velocity, (0, seen["time"]), ball, method="LSODA", rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(seen["end"], flow.y[:, -1], atol=2e-2)


@pytest.fixture(scope="module")
def two_heads():
    rng = np.random.default_rng(8)
    states = [
        figures.two_heads_state(float(np.exp(rng.uniform(np.log(1 / 8), np.log(4)))), at)
        | {"best": bool(i % 2), "sharpness": rng.uniform(0.3, 6), "scale": rng.uniform(0, 1)}
        for i, at in enumerate(rng.uniform(-5, 5, 120))
    ]
    return list(zip(states, derived("two_heads", states), strict=True))


def test_one_head_and_bayes_on_the_line(two_heads):
    for state, seen in two_heads:
        task = figures.line_task(state["delta"], state["variance"], state["ratio"])
        z = np.array([0.0, state["at"]])
        head = figures.line_head(task, seen["sharpness"], seen["scale"])
        np.testing.assert_allclose(seen["bayes"], task.bayes_denoiser(z)[1], **CLOSE)
        np.testing.assert_allclose(seen["head"], head(task.noisy, z)[1], **CLOSE)
        np.testing.assert_allclose(seen["excess"], task.excess_risk(head), **CLOSE)
        assert abs(head(task.noisy, z)[0]) < 1e-12


def test_the_two_heads_parts_are_the_package_s_and_add_up_to_bayes(two_heads):
    for state, seen in two_heads:
        task = figures.line_task(state["delta"], state["variance"], state["ratio"])
        z = np.array([0.0, state["at"]])
        parts = [head(task.noisy, z)[1] for head in two_head_denoiser(task).heads]
        np.testing.assert_allclose(seen["parts"], parts, **CLOSE)
        np.testing.assert_allclose(sum(seen["parts"]), seen["bayes"], **CLOSE)


def test_no_other_head_of_the_kind_is_better(two_heads):
    for state, seen in two_heads[1::8]:
        task = figures.line_task(state["delta"], state["variance"], state["ratio"])

        def risk(q, task=task):
            return float(task.excess_risk(figures.line_head(task, np.exp(q[0]), q[1])))

        here = np.array([np.log(seen["sharpness"]), seen["scale"]])
        assert risk(here) <= minimize(risk, [0.0, 0.5], method="Nelder-Mead").fun + 1e-9


@pytest.fixture(scope="module")
def iterated():
    rng = np.random.default_rng(9)
    states = [
        figures.iterate_state(rng.uniform(0.3, 3.0), rng.uniform([-3.5, -3.5], [3.5, 3.5]))
        for _ in range(120)
    ]
    return list(zip(states, derived("iterate", states), strict=True))


def test_iterates_and_limits(iterated):
    for state, seen in iterated:
        delta, width, noise = state["delta"], state["width"], state["noise"]
        task = figures.iterate_task(delta, width, noise)
        steps = len(seen["path"]) - 1
        path = iterate_denoiser(task, state["start"], steps)
        np.testing.assert_allclose(seen["path"], path, **CLOSE)
        fixed = clustering_fixed_point(delta / np.hypot(width, noise))
        np.testing.assert_allclose(seen["fixed"], fixed, **CLOSE)
        np.testing.assert_allclose(
            seen["limit"], np.sign(state["start"][1]) * fixed, **CLOSE
        )


def test_steps_to_the_limit(iterated):
    for state, seen in iterated:
        if seen["steps"] is None or seen["steps"] > 400:
            continue
        task = figures.iterate_task(state["delta"], state["width"], state["noise"])
        path = iterate_denoiser(task, state["start"], seen["steps"])
        limit = [0.0, seen["limit"] * state["delta"]]
        far = np.linalg.norm(path - limit, axis=1) / state["delta"]
        assert far[-1] <= 0.01 < far[:-1].min(initial=np.inf)


@pytest.mark.parametrize(("noise", "start"), [(1.2, (1.0, 0.0)), (1.9364916731037085, (0.0, 2.0))])
def test_special_places(noise, start):
    (seen,) = derived("iterate", [figures.iterate_state(noise, start)])
    if start[1]:  # at the threshold the approach is algebraic
        assert seen["lambda"] == pytest.approx(1, abs=1e-12)
        assert seen["steps"] is None
    else:  # the border between the basins leads to the midpoint
        assert seen["limit"] == 0
        assert seen["fixed"] > 0.5
