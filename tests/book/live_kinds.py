"""What the tests know of each kind of live figure: one entry makes a new figure tested everywhere."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from scipy.optimize import minimize, root

from companion.explorables import iterate as iteration
from companion.explorables import landscape as ball
from companion.explorables import title as opening
from companion.explorables import two_heads as line
from companion.explorables.selection_map import selection_map
from companion.explorables.token_cloud import token_cloud
from companion.explorables.tokens import tokens
from companion.live import LiveFigure
from mixattn import (
    EffectiveParams,
    GaussianMixture,
    clustering_fixed_point,
    excess_risk,
    iterate_denoiser,
    population_attention,
    population_linear_attention,
    risk_gradient,
    risk_hessian,
    softmax_attention,
    two_head_denoiser,
)

EYE = np.eye(2)
State = dict[str, Any]


@dataclass(frozen=True)
class Kind:
    """A figure to put on a page, states to try, and `derived` by the package."""

    example: Callable[[], LiveFigure]
    random_state: Callable[[np.random.Generator], State]
    derive: Callable[[State], State]


def random_mixture(rng: np.random.Generator, n_components: int) -> State:
    roots = rng.standard_normal((n_components, 2, 2)) * rng.choice([0.3, 1.0, 2.0])
    return {
        "weights": rng.dirichlet(np.full(n_components, 2.0)).tolist(),
        "means": (3 * rng.standard_normal((n_components, 2))).tolist(),
        "covariances": (roots @ roots.transpose(0, 2, 1) + 1e-3 * EYE).tolist(),
        "query": (rng.standard_normal(2) * rng.choice([0.1, 1.0, 4.0])).tolist(),
    }


def mixture_of(state: State) -> GaussianMixture:
    return GaussianMixture(state["weights"], state["means"], state["covariances"])


def selection_map_state(rng: np.random.Generator) -> State:
    return random_mixture(rng, 2) | {"attention": str(rng.choice(["softmax", "linear"]))}


def selection_map_derived(state: State) -> State:
    mixture, z = mixture_of(state), np.array(state["query"])
    (w1, w2), (m1, m2), (C1, C2) = mixture.weights, mixture.means, mixture.covariances
    single = [GaussianMixture([1.0], [m], C) for m, C in ((m1, C1), (m2, C2))]
    return {
        "gates": mixture.gates(z),
        "experts": [population_attention(one, z, EYE, EYE) for one in single],
        "output": population_attention(mixture, z, EYE, EYE),
        "linear_experts": [population_linear_attention(one, z, EYE, EYE) for one in single],
        "linear_output": population_linear_attention(mixture, z, EYE, EYE),
        "log_odds": [np.log(w1 / w2), (m1 - m2) @ z, z @ (C1 - C2) @ z / 2],
    }


def token_cloud_state(rng: np.random.Generator) -> State:
    length = int(rng.choice([1, 2, 10, 300, 1000]))
    mixture = random_mixture(rng, int(rng.integers(1, 4)))
    return mixture | {"length": length, "seed": int(rng.integers(1, 10**6))}


def token_cloud_derived(state: State) -> State:
    mixture, z = mixture_of(state), np.array(state["query"])
    prompt = tokens(mixture, state["length"], state["seed"])
    weights = np.exp(prompt @ z - np.max(prompt @ z))
    weights /= weights.sum()
    heaviest = np.cumsum(np.sort(weights)[::-1])
    return {
        "output": softmax_attention(prompt, z, EYE, EYE),
        "limit": population_attention(mixture, z, EYE, EYE),
        "carriers": int(np.sum(heaviest < 0.9 - 1e-12)) + 1,
        "largest": weights.max(),
    }


@cache
def first_state(kind: str) -> State:
    return KINDS[kind].example().state


def landscape_state(rng: np.random.Generator) -> State:
    r, s = rng.uniform([-ball.MOST_R, -ball.MOST_S], [ball.MOST_R, ball.MOST_S])
    return first_state("landscape") | {
        "prior": float(rng.uniform(0.1, 0.9)),
        "ball": [float(r), float(s)],
        "rolled": float(rng.choice([0, 0.4, 1])),
    }


def best_line(r: float, s: float, prior: float) -> EffectiveParams:
    """Return the minimum over (w, b) of the risk at (r, s): Newton's method on its derivatives."""
    task = ball.task_of(prior)
    w, b = task.bayes_score
    v = np.array([w[0], b - r * prior])
    # the way from the flat gate to s in steps, each a start for the next
    for at in np.linspace(0, s, 9)[1:]:
        for _ in range(8):
            zeta = EffectiveParams(v[:1], v[1], r, [at])
            gradient = risk_gradient(zeta, task)
            step = np.linalg.solve(risk_hessian(zeta, task)[:2, :2], [gradient.w[0], gradient.b])
            v = v - step
            if np.abs(step).max() < 1e-11:
                break
    return EffectiveParams(v[:1], v[1], r, [s])


def landscape_derived(state: State) -> State:
    task = ball.task_of(state["prior"])
    zeta = best_line(*state["ball"], state["prior"])
    gradient = risk_gradient(zeta, task)
    return {
        "w": zeta.w[0],
        "b": zeta.b,
        "excess": excess_risk(zeta, task),
        "gradient": [gradient.r, gradient.s[0]],
    }


def two_heads_state(rng: np.random.Generator) -> State:
    return first_state("two_heads") | {
        "power": float(rng.uniform(-3, 2)),
        "at": float(rng.uniform(-4.5, 4.5)),
        "heads": str(rng.choice(["one", "two"])),
        "best": bool(rng.integers(2)),
        "sharpness": float(rng.uniform(0.3, 6)),
        "scale": float(rng.uniform(0, 1)),
    }


def best_on_the_line(power: float) -> tuple[float, float]:
    """Return sharpness and scale where the package's gradient in both vanishes, the best of a scan."""
    task = line.task_of(power)

    def value(v: np.ndarray) -> tuple[float, np.ndarray]:
        risk, grad_U, grad_V = task.excess_risk_gradient(line.head_of(task, *v))
        return risk, np.array([grad_U[0, 1, 1] / line.VARIANCE, grad_V[0, 1, 1]])

    starts = [(q, v) for q in (0.5, 0.7, 1.0, 1.6, 2.5, 4.0, 5.5) for v in (0.15, 0.3, 0.5, 0.7)]
    start = min(starts, key=lambda v: value(np.array(v))[0])
    near = minimize(value, start, jac=True, method="BFGS", options={"gtol": 1e-9}).x
    found = root(lambda v: value(v)[1], near, tol=1e-13).x
    return float(found[0]), float(found[1])


def two_heads_derived(state: State) -> State:
    task, z = line.task_of(state["power"]), np.array([0.0, state["at"]])
    own = state["sharpness"], state["scale"]
    sharpness, scale = best_on_the_line(state["power"]) if state["best"] else own
    one = line.head_of(task, sharpness, scale)
    noise = task.noise_variance / line.VARIANCE
    return {
        "sharpness": sharpness,
        "scale": scale,
        "slope": sharpness * scale,
        "asked": [noise, 1 - noise],
        "bayes": task.bayes_denoiser(z)[1],
        "head": one(task.noisy, z)[1],
        "parts": [head(task.noisy, z)[1] for head in two_head_denoiser(task).heads],
        "excess": task.excess_risk(one),
    }


def iterate_state(rng: np.random.Generator) -> State:
    return first_state("iterate") | {
        "noise": float(rng.uniform(iteration.LEAST_NOISE, iteration.MOST_NOISE)),
        "start": rng.uniform(-3, 3, 2).tolist(),
        "shown": int(rng.integers(1, 25)),
    }


def iterate_derived(state: State) -> State:
    task, start = iteration.task_of(state["noise"]), np.array(state["start"])
    spread = np.hypot(iteration.WIDTH, state["noise"])
    fixed = clustering_fixed_point(iteration.DELTA / spread)
    limit = np.sign(start[1]) * fixed
    path = iterate_denoiser(task, start, 24)
    far = [0.0, limit * iteration.DELTA]
    steps, at = 0, start
    while np.linalg.norm(at - far) > 0.01 * iteration.DELTA and steps < 5000:
        steps, at = steps + 1, task.bayes_denoiser(at)
    return {
        "lambda": iteration.DELTA / spread,
        "a": (state["noise"] / spread) ** 2,
        "fixed": fixed,
        "limit": limit,
        "steps": steps,
        "path": path,
    }


def title_state(rng: np.random.Generator) -> State:
    query = (rng.standard_normal(2) * rng.choice([0.1, 1.0, 2.0])).tolist()
    return first_state("title") | {"query": query, "share": float(rng.choice([0, 0.1, 0.5]))}


def title_derived(state: State) -> State:
    mixture, z = opening.mixture_of(state["share"]), np.array(state["query"])
    points = opening.answers(mixture, z[1])
    chord = points[-1] - points[0]
    normal = np.array([-chord[1], chord[0]]) / np.linalg.norm(chord)
    return {
        "gates": mixture.gates(z),
        "output": population_attention(mixture, z, EYE, EYE),
        "bend": np.max(np.abs((points - points[0]) @ normal)),
    }


PAIR = GaussianMixture([0.5, 0.5], [[1.6, 0.4], [-1.4, -0.6]], [0.4 * EYE, EYE])
CLOUD = GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 0.3], [0.3, 0.6]])

KINDS = {
    "selection_map": Kind(
        lambda: selection_map(PAIR, [0.9, 1.1]), selection_map_state, selection_map_derived
    ),
    "token_cloud": Kind(
        lambda: token_cloud(CLOUD, [2.2, -1.4]), token_cloud_state, token_cloud_derived
    ),
    "landscape": Kind(ball.landscape, landscape_state, landscape_derived),
    "two_heads": Kind(line.two_heads, two_heads_state, two_heads_derived),
    "title": Kind(opening.title, title_state, title_derived),
    "iterate": Kind(iteration.iterate, iterate_state, iterate_derived),
}


def differences(kind: str, state: State, derived: State) -> dict[str, float]:
    """Return how far each entry of `derived` is from the package's, relative to its size."""
    truth = KINDS[kind].derive(state)
    assert derived.keys() == truth.keys()
    found = {}
    for name, value in truth.items():
        expected, got = np.asarray(value, float), np.asarray(derived[name], float)
        assert got.shape == expected.shape, name
        found[name] = float(np.max(np.abs(got - expected)) / (1 + np.max(np.abs(expected))))
    return found


def assert_equal_to_package(kind: str, state: State, derived: State) -> None:
    apart = differences(kind, state, derived)
    assert max(apart.values()) <= 1e-9, (apart, state)
