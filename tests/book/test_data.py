"""The command that makes the stored data: the same bytes on one core, two cores and a cluster."""

import json
import os
import subprocess
import sys
from pathlib import Path

import data
import numpy as np
import pytest
from joblib import parallel_config

from companion.store import as_text, read_data


def reduced_plans():
    """The shortest runs of chapter 11: two blocks of prompts a kind, and two experiments."""
    plans = data.finite_prompts_plans()
    kinds = ("in_context", "single_prompts", "experiments")
    chosen = [[plan for plan in plans if plan["kind"] == kind][:2] for kind in kinds]
    return [
        plan | ({"prompts": 20} if "prompts" in plan else {}) for part in chosen for plan in part
    ]


def as_bytes(results):
    return as_text({"results": results}).encode()


@pytest.fixture(scope="module")
def serial():
    with parallel_config(n_jobs=1):
        return as_bytes(data.spread(data.finite_prompts_run, reduced_plans()))


def test_two_cores_make_the_bytes_of_one(serial):
    with parallel_config(backend="loky", n_jobs=2):
        assert as_bytes(data.spread(data.finite_prompts_run, reduced_plans())) == serial


def run_that_kills_its_worker_once(plan):
    """End the process before the first result of the third plan."""
    if "fuse" in plan:
        fuse = Path(plan["fuse"])
        if fuse.exists():
            fuse.unlink()
            os._exit(1)
    return data.finite_prompts_run(plan)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # the cluster's own, about the worker that is lost
def test_a_cluster_that_loses_a_worker_makes_the_bytes_of_one_core(serial, tmp_path):
    from distributed import Client, LocalCluster

    fuse = tmp_path / "fuse"
    fuse.touch()
    plans = reduced_plans()
    plans[2] = plans[2] | {"fuse": str(fuse)}
    with (
        LocalCluster(
            n_workers=2,
            threads_per_worker=1,
            processes=True,
            dashboard_address=None,
            local_directory=str(tmp_path),
        ) as cluster,
        Client(cluster),
        parallel_config(backend="dask"),
    ):
        results = data.spread(run_that_kills_its_worker_once, plans)
    assert not fuse.exists()
    assert as_bytes(results) == serial


def test_runs_have_generators_of_their_own():
    plans = data.finite_prompts_plans()
    states = {tuple(plan["seed"].generate_state(4)) for plan in plans}
    assert len(states) == len(plans)
    for name, chosen in data.SETS.items():
        listed = [repr(sorted(plan.items(), key=str)) for plan in chosen.plans()]
        assert len(set(listed)) == len(listed), name


@pytest.mark.parametrize("name", data.SETS)
def test_stored_parameters_are_those_of_the_command(name):
    stored = read_data(name, data.FOLDER)
    assert list(stored)[:3] == ["made_by", "versions", "parameters"]
    assert stored["made_by"] == f"make data NAME={name}"
    assert stored["parameters"] == json.loads(json.dumps(data.SETS[name].parameters))
    assert (data.FOLDER / f"{name}.json").read_text("utf-8") == as_text(stored)


#: For each set, cheap runs of it and where the file keeps them.
REPEATED = {
    "ch05_constant_gate": (0, lambda stored: stored["runs"][0]),
    "ch08_single_head": (
        9,
        lambda stored: {key: stored["curves"][0][key][9] for key in ("excess_risk", "agreeing")},
    ),
    "ch08_training": (14, lambda stored: stored["quasi_newton"][2]),
    "ch11_finite_prompts": (
        -200,
        lambda stored: stored["experiments"]["mean_square_error"][0],
    ),
    "ch12_training": (2, lambda stored: stored["quasi_newton"]["groups"][0]["runs"][2]),
}


#: How many steps quasi-Newton takes in a narrow valley, and where below its target of 1e-20 it lands.
HANGS_ON_ROUNDING = ("/iterations", "/steps", "/end")


@pytest.mark.parametrize("name", REPEATED)
def test_a_run_made_again_is_the_stored_one(name):
    at, find = REPEATED[name]
    chosen = data.SETS[name]
    [made] = data.spread(chosen.run, [chosen.plans()[at]])
    stored = find(read_data(name, data.FOLDER))
    found = [
        difference
        for difference in data.differences(made, stored, rtol=1e-4)
        if not difference.startswith(HANGS_ON_ROUNDING)
    ]
    assert found == []
    if "end" in stored:
        ends = np.array([made["end"], stored["end"]])
        assert np.ptp(ends) <= 1e-4 * ends.max() or ends.max() < 1e-15


def test_collecting_puts_every_result_in_its_place():
    for name in ("ch06_figures45", "ch08_training", "ch12_training"):
        chosen, stored = data.SETS[name], read_data(name, data.FOLDER)
        content = chosen.collect(list(range(len(chosen.plans()))))
        assert list(content) == list(stored)[3:]
    plans = data.layers_plans()
    content = data.layers_content([{"plan": plan} for plan in plans])
    for group in content["quasi_newton"]["groups"]:
        for seed, run in enumerate(group["runs"]):
            assert run["plan"]["seed"] == seed
            assert run["plan"]["scale"] == group["scale"]
            assert run["plan"]["coordinates"] == group["coordinates"]
    for group in content["one_head"]["groups"]:
        assert group["online"]["plan"] == {
            "kind": "one_head_online",
            "noise": group["noise_variance"],
        }
        assert {run["plan"]["noise"] for run in group["quasi_newton"]} == {group["noise_variance"]}


def test_statistics_of_the_finite_prompts():
    plans = data.finite_prompts_plans()
    rng = np.random.default_rng(0)
    results = [rng.random(plan.get("prompts", 3)).tolist() for plan in plans]
    content = data.finite_prompts_content(results)
    longest = [r for p, r in zip(plans, results, strict=True) if p.get("length") == 1_000_000]
    errors = np.concatenate(longest)
    assert len(errors) == 100
    assert content["single_prompts"]["median"][-1] == pytest.approx(np.median(errors), rel=1e-7)
    assert content["single_prompts"]["above_mean"][-1] == np.mean(errors > errors.mean())
    assert content["experiments"]["mean_square_error"] == results[-200:]


def test_differences_name_the_place():
    stored = {"a": [1.0, {"b": 2.0}], "c": "x"}
    assert list(data.differences(stored, stored, 1e-4)) == []
    assert list(data.differences({"a": [1.0, {"b": 2.00001}], "c": "x"}, stored, 1e-4)) == []
    [found] = data.differences({"a": [1.0, {"b": 2.1}], "c": "x"}, stored, 1e-4)
    assert found == "/a/1/b: made 2.1, stored 2.0"
    assert len(list(data.differences({"a": [1.0], "c": "y"}, stored, 1e-4))) == 2


def test_an_unknown_set_is_refused_by_name():
    command = [sys.executable, str(Path(data.__file__)), "ch99"]
    run = subprocess.run(command, capture_output=True, text=True)
    assert run.returncode == 2
    assert "no set ch99; there are ch05_constant_gate" in run.stderr
