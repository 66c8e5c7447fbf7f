"""The live figures' formulas against the package: Node runs the modules that the reader runs."""

import json
import subprocess

import assets
import numpy as np
import pytest
from live_kinds import CLOUD, KINDS, assert_equal_to_package

from companion.explorables.tokens import tokens, uniforms
from companion.live import EXPLORABLES, kinds

CASES = 200


def in_node(module, call, cases):
    """Evaluate the JavaScript function `call` of each case, with the module's exports at hand."""
    program = (
        f"import * as m from {json.dumps((EXPLORABLES / f'{module}.js').as_uri())};"
        'import { readFileSync } from "node:fs";'
        f"console.log(JSON.stringify(JSON.parse(readFileSync(0)).map({call})));"
    )
    command = [*assets.node("node"), "--input-type=module", "-e", program]
    done = subprocess.run(
        command, input=json.dumps(cases), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_every_kind_of_figure_is_compared_with_the_package():
    assert sorted(KINDS) == kinds()


@pytest.mark.parametrize("kind", KINDS)
def test_derived_numbers_equal_the_package(kind, rng):
    states = [KINDS[kind].example().state]
    states += [KINDS[kind].random_state(rng) for _ in range(CASES)]
    for state, derived in zip(states, in_node(kind, "m.derive", states), strict=True):
        assert_equal_to_package(kind, state, derived)


def test_browser_and_python_draw_the_same_prompt():
    state = {
        "weights": [0.2, 0.5, 0.3],
        "means": [[0, 1], [2, 0], [-1, -1]],
        "covariances": [[[1, 0.2], [0.2, 0.5]], [[0.1, 0], [0, 2]], [[0.5, -0.3], [-0.3, 0.4]]],
    }
    from live_kinds import mixture_of

    seeds = [1, 2, 999_999]
    cases = [[state, 500, seed] for seed in seeds]
    for seed, drawn in zip(seeds, in_node("tokens", "(c) => m.tokens(...c)", cases), strict=True):
        np.testing.assert_allclose(drawn, tokens(mixture_of(state), 500, seed), rtol=0, atol=1e-12)


def test_prompts_have_the_law_they_are_drawn_from():
    # 40 prompts of 1000 tokens: standard errors 0.005 for the mean, 0.01 for the covariance.
    sample = np.concatenate([tokens(CLOUD, 1000, seed) for seed in range(1, 41)])
    np.testing.assert_allclose(sample.mean(axis=0), CLOUD.mean, atol=0.02)
    np.testing.assert_allclose(np.cov(sample.T), CLOUD.covariance, atol=0.03)
    # Successive numbers are uncorrelated (standard error 0.003).
    numbers = uniforms(7)
    u = np.array([next(numbers) for _ in range(100_000)])
    assert 0 < u.min() < u.max() < 1
    assert abs(np.corrcoef(u[1:], u[:-1])[0, 1]) < 0.015


def test_a_longer_prompt_begins_with_a_shorter_one():
    np.testing.assert_array_equal(tokens(CLOUD, 50, 3), tokens(CLOUD, 80, 3)[:50])
