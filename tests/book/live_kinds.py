"""What the tests know of each kind of live figure: one entry makes a new figure tested everywhere."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from companion.explorables.selection_map import selection_map
from companion.explorables.token_cloud import token_cloud
from companion.explorables.tokens import tokens
from companion.live import LiveFigure
from mixattn import (
    GaussianMixture,
    population_attention,
    population_linear_attention,
    softmax_attention,
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


PAIR = GaussianMixture([0.5, 0.5], [[1.6, 0.4], [-1.4, -0.6]], [0.4 * EYE, EYE])
CLOUD = GaussianMixture([1.0], [[0.0, 0.0]], [[1.0, 0.3], [0.3, 0.6]])

KINDS = {
    "selection_map": Kind(
        lambda: selection_map(PAIR, [0.9, 1.1]), selection_map_state, selection_map_derived
    ),
    "token_cloud": Kind(
        lambda: token_cloud(CLOUD, [2.2, -1.4]), token_cloud_state, token_cloud_derived
    ),
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
