"""The stored runs of chapter 12 against new ones, and the single head's wall by another route."""

import data
import numpy as np
import pytest

from companion.store import read_data
from mixattn import GatedMap, GaussianMixture, Head, ResidualMultiHead
from mixattn.denoising.in_context import (
    ResidualParams,
    distances_to_solutions,
    excess_by_task,
)
from mixattn.denoising.training import train_in_context, train_in_context_online

STORED = read_data("ch12_training", data.FOLDER)
TRAIN, HELD_OUT = data.in_context_tasks()
EYE = np.eye(2)


@pytest.mark.claim("X.learn")
@pytest.mark.parametrize(("kind", "scale", "seed"), [("raw", 0.1, 3), ("effective", 1.0, 6)])
def test_a_stored_quasi_newton_run_comes_back(kind, scale, seed):
    [group] = [
        g
        for g in STORED["quasi_newton"]["groups"]
        if (g["coordinates"], g["scale"]) == (kind, scale)
    ]
    params = ResidualParams if kind == "raw" else GatedMap
    run = train_in_context(TRAIN, data.in_context_start(params, 2, seed, scale))
    distances = distances_to_solutions(run.final, 0.2, 0.8)
    assert min(distances, key=distances.get) == group["runs"][seed]["nearest"]
    assert excess_by_task(run.final, HELD_OUT.first(10)).max() < 1e-15


@pytest.mark.claim("X.learn")
def test_a_stored_descent_comes_back():
    group = STORED["online"]["groups"][1]
    stored = group["runs"][5]["excess"]
    [run] = train_in_context_online(
        data.in_context_law(),
        [data.in_context_start(ResidualParams, 2, 5, group["scale"])],
        [np.random.default_rng([5, 1])],
        record_tasks=HELD_OUT,
        n_steps=1000,
        step_size=group["step_size"],
        record_every=1000,
    )
    np.testing.assert_allclose(run.excess_risk, stored[:2], rtol=2e-3)


@pytest.mark.claim("X.learn")
def test_stored_layers_have_the_stored_excess():
    """Of runs that failed: a simulation with its error bar."""
    rng = np.random.default_rng(0)
    run = STORED["one_head"]["groups"][0]["online"][0]
    U, V, W = np.reshape(run["raw"], (3, 2, 2))
    layer, losses = ResidualMultiHead([Head(U, V)], W), []
    for i in range(len(HELD_OUT)):
        task = HELD_OUT.task(i)
        z, _ = task.noisy.sample(400, rng)
        losses.append(np.sum((layer(task.noisy, z) - task.bayes_denoiser(z)) ** 2, axis=1))
    means = np.mean(losses, axis=1)
    error = np.sqrt(np.mean(np.var(losses, axis=1)) / 400 / len(losses))
    assert means.mean() == pytest.approx(run["held_out"], abs=5 * error)
    assert run["held_out"] > 0.01


@pytest.mark.claim("X.learn")
def test_single_heads_fail_at_the_best_plain_head():
    start = GatedMap.random(2, 1, np.random.default_rng(0))
    plain = train_in_context(TRAIN, GatedMap(0 * EYE, start.P, start.U), residual=False)
    large, small = STORED["one_head"]["groups"]
    ends = np.array([run["end"] for run in large["quasi_newton"]])
    assert np.sum(np.abs(ends / plain.excess_risk[-1] - 1) < 0.01) >= 12
    for run in large["quasi_newton"]:
        if abs(run["end"] / plain.excess_risk[-1] - 1) < 0.01:
            U, V, W = np.reshape(run["raw"], (3, 2, 2))
            np.testing.assert_allclose(W @ V, plain.final.P[0], atol=0.01)
            np.testing.assert_allclose(U, plain.final.U[0], atol=0.01)
    # where no wall stands: a < 1/2
    assert max(run["end"] for run in small["quasi_newton"]) < 1e-18


def test_five_clusters_are_denoised_by_a_layer_trained_on_two():
    layer = train_in_context(TRAIN, data.in_context_start(ResidualParams, 2, 0, 0.1)).final.layer
    rng = np.random.default_rng(3)
    means = rng.standard_normal((5, 2))
    means *= 3.0 / np.linalg.norm(means, axis=1, keepdims=True)
    weights = rng.dirichlet(np.ones(5))
    z = rng.standard_normal((50, 2)) * 3
    log_mass = np.log(weights) - 0.5 * np.sum((z[:, None] - means) ** 2, axis=2)
    beta = np.exp(log_mass - log_mass.max(axis=1, keepdims=True))
    expected = 0.2 * z + 0.8 * (beta / beta.sum(axis=1, keepdims=True)) @ means
    output = layer(GaussianMixture(weights, means, EYE), z)
    np.testing.assert_allclose(output, expected, atol=1e-8)
