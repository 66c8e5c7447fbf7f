"""Make the stored data sets of book/data, or compare them with what the code makes now.

    python tools/data.py                        make all sets
    python tools/data.py ch08_training          make some
    python tools/data.py --check ch08_training  compare with the committed file, write nothing
    python tools/data.py --scheduler tcp://...  on a Dask cluster instead of this machine's cores

A set is a list of runs. Each has a random generator of its own, so that one core, many cores and a
cluster make the same file.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from joblib import Parallel, delayed, parallel_config
from threadpoolctl import threadpool_limits

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

from companion.store import differences, read_data, rounded, stamp, write_data  # noqa: E402
from mixattn import (  # noqa: E402
    AttentionParams,
    DenoisingTask,
    EffectiveParams,
    GatedMap,
    GaussianMixture,
    Head,
    LDATask,
    MultiHead,
    effective_params,
    gradient_flow,
    in_context_denoiser,
    online_sgd,
    random_heads,
    risk_hessian,
    softmax_attention,
    train_quasi_newton,
    train_sgd,
)
from mixattn.classification.flow import fit_exponential_rate  # noqa: E402
from mixattn.classification.krylov import figure45_starts  # noqa: E402
from mixattn.classification.landscape import E2_point, lift  # noqa: E402
from mixattn.denoising.in_context import (  # noqa: E402
    InContextLaw,
    InContextTasks,
    ResidualParams,
    distances_to_solutions,
    excess_by_task,
)
from mixattn.denoising.training import train_in_context, train_in_context_online  # noqa: E402

FOLDER = ROOT / "book" / "data"
Run = dict[str, Any]


@dataclass(frozen=True)
class DataSet:
    """A set: its parameters, its runs, one run's result, and the file's content from all results.

    A plan says everything that its run depends on, the seed included.
    """

    parameters: dict[str, Any]
    plans: Callable[[], list[Run]]
    run: Callable[[Run], Any]
    collect: Callable[[list[Any]], dict[str, Any]]


def spread(run: Callable[[Run], Any], plans: Sequence[Run]) -> list[Any]:
    """Return the results of the plans in their order, over what `joblib.parallel_config` says."""
    tasks = (delayed(_alone)(run, plan) for plan in plans)
    results = Parallel(return_as="generator")(tasks)
    return list(_with_progress(results, len(plans)))


def _alone(run: Callable[[Run], Any], plan: Run) -> Any:
    """Run on one thread: the last bits of a matrix product depend on how many there are."""
    with threadpool_limits(1):
        return run(plan)


def _with_progress(results: Iterable[Any], total: int) -> Iterator[Any]:
    shown = sys.stderr.isatty()
    for done, result in enumerate(results, start=1):
        if shown:
            print(f"\r{done}/{total} runs", end="\n" if done == total else "", file=sys.stderr)
        yield result


def spawned(seed: int, n: int) -> list[np.random.SeedSequence]:
    """Return the seeds of `n` runs, independent of each other."""
    return np.random.SeedSequence(seed).spawn(n)


def make(name: str) -> dict[str, Any]:
    """Return the content of a set's file."""
    chosen = SETS[name]
    head = stamp(f"make data NAME={name}", **chosen.parameters)
    return head | chosen.collect(spread(chosen.run, chosen.plans()))


# Chapter 5: gradient flow near the constant gate, to t = 1e7 and beyond ---------------------------

CONSTANT_GATE = {
    "rtol": 1e-9,
    "atol": 1e-12,
    "amplitude": 6.0,
    "slope": [0.6, -0.3, 0.4],
    "noise": 0.05,
    "times_per_decade": 4,
    "seed": "index of run",
}
GEOMETRIES: dict[str, dict[str, Any]] = {
    "line": {"mean_pos": [1.5], "mean_neg": [-0.5], "covariance": [[2.0]]},
    "plane": {
        "mean_pos": [1.0, 0.5],
        "mean_neg": [-0.5, 1.0],
        "covariance": [[4.0, 1.2], [1.2, 2.8]],
    },
    "space": {
        "mean_pos": [1.0, 0.5, 0.0],
        "mean_neg": [-0.5, 1.0, 0.5],
        "covariance": [[4.0, 1.2, 0.0], [1.2, 2.8, 0.8], [0.0, 0.8, 4.8]],
    },
}
COORDINATES = {"effective": EffectiveParams, "attention": AttentionParams}


def constant_gate_plans() -> list[Run]:
    """Two priors on every geometry in both coordinates, then priors near 1/2 on the plane."""
    plans = [
        {"geometry": name, "prior_pos": prior, "coordinates": kind, "log10_t_end": 7}
        for name, prior, kind in product(GEOMETRIES, (0.3, 0.5), COORDINATES)
    ]
    plans += [
        {"geometry": "plane", "prior_pos": prior, "coordinates": "effective", "log10_t_end": 8}
        for prior in (0.4, 0.45, 0.48, 0.49)
    ]
    return [plan | {"seed": seed} for seed, plan in enumerate(plans)]


def constant_gate_start(task: LDATask, coordinates: str, seed: int) -> list[float]:
    """Displace a point of E2 (or of Theta2 above it) along a flat direction, then a little in all."""
    amplitude, s = CONSTANT_GATE["amplitude"], np.array(CONSTANT_GATE["slope"][: task.dim])
    point = E2_point(task, amplitude)
    gate_slope = task.prior_pos * (1 - task.prior_pos)
    flat = EffectiveParams(point.w - amplitude * gate_slope * s, point.b, point.r, s)
    params = flat if coordinates == "effective" else lift(flat, task)
    vector = params.to_vector()
    noise = CONSTANT_GATE["noise"] * np.random.default_rng(seed).standard_normal(len(vector))
    return [round(float(entry), 6) for entry in vector + noise]


def constant_gate_run(plan: Run) -> Run:
    """Follow the flow and record the excess risk on a logarithmic grid of times."""
    run = {key: value for key, value in plan.items() if key != "seed"}
    setting = GEOMETRIES[run["geometry"]] | {"prior_pos": run["prior_pos"]}
    task = LDATask(**setting)
    vector = constant_gate_start(task, run["coordinates"], plan["seed"])
    params = COORDINATES[run["coordinates"]].from_vector(vector, task.dim)
    decades = run["log10_t_end"]
    tolerances = {key: CONSTANT_GATE[key] for key in ("rtol", "atol")}
    flow = gradient_flow(params, task, 10.0**decades, **tolerances)
    log10_t = np.linspace(0, decades, CONSTANT_GATE["times_per_decade"] * decades + 1)
    excess = flow.excess_risk_at(np.minimum(10.0**log10_t, flow.t[-1]))
    return run | {
        "task": setting,
        "start": vector,
        "status": str(flow.status),
        "log10_t": log10_t.tolist(),
        "excess_risk": rounded(excess),
        "final": rounded(flow.params[-1]),
    }


# Chapter 6: the runs of Figures 4 and 5 of the paper, over several seeds --------------------------

# The paper gives the task, the two laws of the starts and the step; the rest is ours.
FIGURES45 = {
    "step_size": 1e-2,
    "n_steps": {"1": 10_000, "32": 4_000},
    "n_seeds": 8,
    "t_end": 1000.0,
    "rtol": 1e-10,
    "atol": 1e-12,
    "gradient_tol": 1e-12,
}
FIGURES = ("figure 4", "figure 5")
TIMES = np.r_[0, np.geomspace(0.1, FIGURES45["t_end"], 33)]


def recorded_steps(n_steps: int) -> np.ndarray:
    """Twenty-odd iterations, dense at the beginning."""
    return np.unique(np.r_[0, np.geomspace(10, n_steps, 24).round().astype(int)])


def figures45_plans() -> list[Run]:
    """One plan a figure and seed."""
    seeds = range(FIGURES45["n_seeds"])
    return [{"figure": figure, "seed": seed} for figure, seed in product(FIGURES, seeds)]


def figures45_run(plan: Run) -> Run:
    """Flow and online SGD from the start that the seed draws."""
    task, *starts = figure45_starts(np.random.default_rng(plan["seed"]))
    start = starts[FIGURES.index(plan["figure"])]
    run = {"flow": _flow_to_rate(start, task)}
    for batch, n_steps in FIGURES45["n_steps"].items():
        run[f"sgd {batch}"] = _online(start, task, plan["seed"], int(batch), n_steps)
    return run


def _online(start: AttentionParams, task: LDATask, seed: int, batch_size: int, n_steps: int) -> Run:
    """Online SGD, and the noise floor that the Hessian at its end predicts."""
    step = FIGURES45["step_size"]
    curve = online_sgd(
        start,
        task,
        np.random.default_rng([seed, batch_size]),
        step_size=step,
        n_steps=n_steps,
        batch_size=batch_size,
        record=recorded_steps(n_steps),
    )
    trace = np.trace(risk_hessian(curve.final, task))
    return {
        "excess_risk": rounded(curve.excess_risk),
        "floor": rounded(step * trace / (4 * batch_size)),
        "size_v21": rounded(np.linalg.norm(curve.final.v21)),
        "size_U11": rounded(np.linalg.norm(curve.final.U11)),
    }


def _flow_to_rate(start: AttentionParams, task: LDATask) -> Run:
    """Follow the population flow: where it goes, and the rate that the Hessian there predicts."""
    options = {key: FIGURES45[key] for key in ("rtol", "atol", "gradient_tol")}
    path = gradient_flow(start, task, FIGURES45["t_end"], **options)
    zeta = effective_params(path.final, task)
    run = {
        "status": str(path.status),
        "excess_risk": rounded(path.excess_risk_at(TIMES[path.t[-1] >= TIMES])),
        "r": rounded(zeta.r),
        "size_s": rounded(np.linalg.norm(zeta.s)),
    }
    if abs(zeta.r) < 1e-6:
        # r = -2b always: d + 1 directions leave the minimizers
        curvatures = np.linalg.eigvalsh(risk_hessian(path.final, task))
        run["predicted_rate"] = rounded(2 * curvatures[-(task.dim + 1)])
        fine = np.linspace(0, path.t[-1], 200)
        decay = path.excess_risk_at(fine)
        late = (decay < 1e-7) & (decay > 1e-15)
        if late.sum() >= 24:
            run["measured_rate"] = rounded(fit_exponential_rate(fine[late], decay[late]).value)
    return run


def figures45_content(runs: list[Run]) -> dict[str, Any]:
    """Sort the runs by figure, with the iterations and times of their curves."""
    n = FIGURES45["n_seeds"]
    return {
        "steps": {b: recorded_steps(n).tolist() for b, n in FIGURES45["n_steps"].items()},
        "times": TIMES.tolist(),
        "runs": {figure: runs[i * n : (i + 1) * n] for i, figure in enumerate(FIGURES)},
    }


# Chapter 8: how often training finds two heads, and the best single head --------------------------

# Figure 2 of the paper gives means, gamma, xi, step and clipping; the rest is ours.
TRAINING = {
    "means": [[3.0, 0.0], [0.0, 3.0]],
    "weights": [0.5, 0.5],
    "gamma": 1.0,
    "xi": 2.0,
    "n_heads": 2,
    "step_size": 2e-3,
    "clip_norm": 10.0,
    "batch_size": 64,
    "n_steps": 60_000,
    "record_every": 1000,
    "sgd_seeds": 12,
    "quasi_newton_seeds": 48,
    "max_steps": 2000,
    "target": 1e-20,
}
# Runs that end above this excess risk are kept with their parameters.
STALLED = 1e-3

# Total variance c and means of Figure 2; only the ratio gamma^2 / xi^2 changes.
SINGLE_HEAD = {
    "means": [[3.0, 0.0], [0.0, 3.0]],
    "total_variance": 5.0,
    "weights": [0.5, 0.2],
    "ratios": [0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0],
    "random_starts": 5,
    "max_steps": 300,
}


def training_plans() -> list[Run]:
    """One plan an optimizer and seed."""
    kinds = ("sgd", "quasi_newton")
    return [{"kind": k, "seed": s} for k in kinds for s in range(TRAINING[f"{k}_seeds"])]


def training_run(plan: Run) -> Run:
    """Two heads from a random start: online SGD, or quasi-Newton on the exact excess risk."""
    p, seed = TRAINING, plan["seed"]
    mixture = GaussianMixture(p["weights"], p["means"], p["gamma"] ** 2 * np.eye(2))
    task = DenoisingTask(mixture, p["xi"] ** 2)
    first = random_heads(2, p["n_heads"], np.random.default_rng([seed, 0]))
    if plan["kind"] == "sgd":
        names = ("n_steps", "batch_size", "step_size", "clip_norm", "record_every")
        options = {name: p[name] for name in names}
        run = train_sgd(task, first, np.random.default_rng([seed, 1]), **options)
        return {"seed": seed, "status": run.status, "excess_risk": rounded(run.excess_risk)}
    options = {name: p[name] for name in ("max_steps", "target")}
    run = train_quasi_newton(task, first, **options)
    start, end = rounded(run.excess_risk[[0, -1]])
    steps = int(run.steps[-1])
    entry = {"seed": seed, "status": run.status, "iterations": steps, "start": start, "end": end}
    if end > STALLED:
        entry["heads"] = [[head.U.tolist(), head.V.tolist()] for head in run.final.heads]
    return entry


def training_content(runs: list[Run]) -> dict[str, Any]:
    """Sort the runs by optimizer."""
    n = TRAINING["sgd_seeds"]
    return {"sgd": runs[:n], "quasi_newton": runs[n:]}


def single_head_plans() -> list[Run]:
    """One plan a weight and ratio of variances."""
    pairs = product(SINGLE_HEAD["weights"], SINGLE_HEAD["ratios"])
    return [{"weight": weight, "ratio": ratio} for weight, ratio in pairs]


def single_head_run(plan: Run) -> Run:
    """Best single head, from informed and random starts, and how many starts reach it."""
    p = SINGLE_HEAD
    c, weight, max_steps = p["total_variance"], plan["weight"], p["max_steps"]
    xi2 = c / (1.0 + plan["ratio"])
    mixture = GaussianMixture([weight, 1 - weight], p["means"], (c - xi2) * np.eye(2))
    task = DenoisingTask(mixture, xi2)
    e = np.array([1.0, -1.0]) / np.sqrt(2.0)
    exchange = np.eye(2) - 2.0 * np.outer(e, e)
    starts = [MultiHead([Head(matrix / c, 0.5 * matrix)]) for matrix in (exchange, np.eye(2))]
    starts += [
        random_heads(2, 1, np.random.default_rng([seed, 0])) for seed in range(p["random_starts"])
    ]
    ends = [train_quasi_newton(task, start, max_steps=max_steps) for start in starts]
    values = np.array([run.excess_risk[-1] for run in ends])
    best = values.min()
    agreeing = int(np.sum(values <= best * (1 + 1e-4) + 1e-12))
    return {"excess_risk": rounded(best), "agreeing": agreeing}


def single_head_content(runs: list[Run]) -> dict[str, Any]:
    """One curve a weight."""
    n = len(SINGLE_HEAD["ratios"])
    curves = []
    for i, weight in enumerate(SINGLE_HEAD["weights"]):
        part = runs[i * n : (i + 1) * n]
        columns = {name: [run[name] for run in part] for name in ("excess_risk", "agreeing")}
        curves.append({"weight": weight} | columns)
    return {"curves": curves}


# Chapter 11: errors of finite prompts -------------------------------------------------------------

# The in-context layer on the law of tasks of chapter 10: fresh task, prompt and queries each time.
IN_CONTEXT = {
    "radius": 3.0,
    "angles": [60, 120, 180],
    "weights": [0.2, 0.5, 0.8],
    "gamma2": 1.0,
    "xi2": 4.0,
    "lengths": [30, 100, 300, 1000, 3000, 10_000, 30_000, 100_000],
    "prompts": [4000, 4000, 4000, 4000, 2000, 1000, 600, 300],
    "queries": 50,
    "blocks": 10,
    "seed": 1,
}
# Small experiments, each with prompts and queries of its own, on a standard Gaussian with U = 1.
EXPERIMENTS = {
    "experiments": 200,
    "prompts": 20,
    "queries": 50,
    "lengths": [100, 1000, 10_000],
    "seed": 2,
}
# Mean-square error of single prompts, averaged over queries on a grid; standard Gaussian, U = 1.
SINGLE_PROMPTS = {
    "lengths": [100, 1000, 10_000, 100_000, 1_000_000],
    "prompts": [4000, 4000, 2000, 400, 100],
    "reach": 7.0,
    "step": 0.25,
    "blocks": 10,
    "seed": 3,
}


def finite_prompts_plans() -> list[Run]:
    """Blocks of prompts of one length, and whole experiments."""
    plans = []
    for kind, p in (("in_context", IN_CONTEXT), ("single_prompts", SINGLE_PROMPTS)):
        blocks = product(zip(p["lengths"], p["prompts"], strict=True), range(p["blocks"]))
        seeds = spawned(p["seed"], len(p["lengths"]) * p["blocks"])
        plans += [
            {"kind": kind, "length": length, "prompts": n // p["blocks"], "seed": seed}
            for ((length, n), _), seed in zip(blocks, seeds, strict=True)
        ]
    seeds = spawned(EXPERIMENTS["seed"], EXPERIMENTS["experiments"])
    return plans + [{"kind": "experiments", "seed": seed} for seed in seeds]


def finite_prompts_run(plan: Run) -> list[float]:
    """Errors of a block of prompts, or what an experiment reports."""
    rng = np.random.default_rng(plan["seed"])
    if plan["kind"] == "experiments":
        return [_experiment(length, rng) for length in EXPERIMENTS["lengths"]]
    error = {"in_context": _in_context_error, "single_prompts": _single_prompt_error}[plan["kind"]]
    return [error(plan["length"], rng) for _ in range(plan["prompts"])]


def _in_context_error(length: int, rng: np.random.Generator) -> float:
    p = IN_CONTEXT
    layer = in_context_denoiser(2, p["gamma2"], p["xi2"])
    turn = rng.uniform(0, 2 * np.pi)
    angles = turn + np.array([0.0, np.deg2rad(rng.choice(p["angles"]))])
    weight = rng.choice(p["weights"])
    centers = p["radius"] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    clean = GaussianMixture([weight, 1 - weight], centers, p["gamma2"] * np.eye(2))
    task = DenoisingTask(clean, p["xi2"])
    tokens = task.noisy.sample(length, rng)[0]
    z = task.noisy.sample(p["queries"], rng)[0]
    off = layer(tokens, z) - task.bayes_denoiser(z)
    return float(np.mean(np.sum(off**2, axis=1)))


def _squared_errors(tokens: np.ndarray, z: np.ndarray) -> np.ndarray:
    """Squared errors of the head U = V = 1 on a prompt of standard Gaussian numbers."""
    return (softmax_attention(tokens[:, None], z[:, None], [[1.0]], [[1.0]])[:, 0] - z) ** 2


def _experiment(length: int, rng: np.random.Generator) -> float:
    squares = []
    for _ in range(EXPERIMENTS["prompts"]):
        z = rng.standard_normal(EXPERIMENTS["queries"])
        squares.append(_squared_errors(rng.standard_normal(length), z))
    return rounded(np.mean(squares), 5)


def _single_prompt_error(length: int, rng: np.random.Generator) -> float:
    reach, step = SINGLE_PROMPTS["reach"], SINGLE_PROMPTS["step"]
    z = np.arange(-reach, reach + step / 2, step)
    mass = step * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return float(mass @ _squared_errors(rng.standard_normal(length), z))


def finite_prompts_content(results: list[list[float]]) -> dict[str, Any]:
    """Statistics over all prompts of a length, and the experiments' reports."""
    remaining = iter(results)

    def by_length(p: dict[str, Any]) -> list[np.ndarray]:
        return [np.concatenate([next(remaining) for _ in range(p["blocks"])]) for _ in p["lengths"]]

    def mean_and_error(errors: list[np.ndarray]) -> list[list[float]]:
        means = rounded([e.mean() for e in errors])
        return [means, rounded([e.std() / np.sqrt(len(e)) for e in errors])]

    in_context, single = by_length(IN_CONTEXT), by_length(SINGLE_PROMPTS)
    above = [np.mean(e > e.mean()) for e in single]
    names = ("mean", "standard_error", "median", "above_mean")
    columns = (*mean_and_error(single), rounded([np.median(e) for e in single]), rounded(above))
    return {
        "in_context": dict(
            zip(("excess_risk", "standard_error"), mean_and_error(in_context), strict=True)
        ),
        "experiments": {"mean_square_error": list(remaining)},
        "single_prompts": dict(zip(names, columns, strict=True)),
    }


# Chapter 12: what training finds in context -------------------------------------------------------

# Variances in units where s = 1, with the ratio of Figure 2 of the paper; all else is ours.
SETTING = {
    "within_variance": 0.2,
    "noise_variance": 0.8,
    "radius": [1.0, 2.0],
    "weight": [0.1, 0.9],
    "n_tasks": 24,
    "tasks_seed": 0,
    "n_held_out": 100,
    "held_out_seed": 1,
}
LAYERS: dict[str, dict[str, Any]] = {
    "quasi_newton": {
        "scales": [0.1, 0.5, 1.0, 2.0],
        "seeds": 24,
        "order": 16,
        "max_steps": 2000,
        "target": 1e-20,
    },
    "online": {
        "scales_and_steps": [[0.1, 0.03], [0.5, 0.03], [1.0, 0.03], [2.0, 0.03], [2.0, 0.01]],
        "seeds": 16,
        "n_steps": 40_000,
        "n_tasks": 8,
        "n_queries": 16,
        "clip_norm": 10.0,
        "record_every": 1000,
        "order": 12,
    },
    "plain": {"scale": 0.5, "seeds": 12, "order": 16, "max_steps": 2000},
    "space": {"dim": 3, "scale": 0.5, "seeds": 8, "order": 8, "max_steps": 2000},
    "few_tasks": {
        "counts": [1, 2, 3, 4, 24],
        "scale": 0.5,
        "seeds": 12,
        "order": 16,
        "max_steps": 2000,
    },
    "one_head": {
        "noise_variances": [0.8, 0.2],
        "scale": 0.5,
        "seeds": 16,
        "order": 16,
        "max_steps": 600,
        "online_seeds": 8,
        "n_steps": 40_000,
        "step_size": 0.03,
    },
}
# Runs that end above this excess are kept with their parameters.
UNFINISHED = 1e-12
RAW_AND_EFFECTIVE = {"raw": ResidualParams, "effective": GatedMap}


def in_context_law(dim: int = 2) -> InContextLaw:
    """Law of tasks."""
    names = ("within_variance", "noise_variance", "radius", "weight")
    return InContextLaw(dim, *(SETTING[name] for name in names))


def in_context_tasks(dim: int = 2) -> tuple[InContextTasks, InContextTasks]:
    """Training tasks and held-out tasks."""
    p, law = SETTING, in_context_law(dim)
    train = law.sample(p["n_tasks"], np.random.default_rng(p["tasks_seed"]))
    return train, law.sample(p["n_held_out"], np.random.default_rng(p["held_out_seed"]))


def in_context_start(kind: type, dim: int, seed: int, scale: float, n_heads: int = 2) -> Any:
    """Random start of a run."""
    return kind.random(dim, n_heads, np.random.default_rng([seed, 0]), scale)


def layers_plans() -> list[Run]:
    """One plan a run; online descents of one setting go through their steps together."""
    seeds = {kind: range(p["seeds"]) for kind, p in LAYERS.items()}
    newton, few, one = (LAYERS[kind] for kind in ("quasi_newton", "few_tasks", "one_head"))
    plans = [
        {"kind": "quasi_newton", "coordinates": coordinates, "scale": scale, "seed": seed}
        for coordinates, scale, seed in product(
            RAW_AND_EFFECTIVE, newton["scales"], seeds["quasi_newton"]
        )
    ]
    plans += [
        {"kind": "online", "scale": scale, "step_size": step_size}
        for scale, step_size in LAYERS["online"]["scales_and_steps"]
    ]
    plans += [{"kind": kind, "seed": s} for kind in ("plain", "space") for s in seeds[kind]]
    plans += [
        {"kind": "few_tasks", "count": count, "seed": seed}
        for count, seed in product(few["counts"], seeds["few_tasks"])
    ]
    for xi2 in one["noise_variances"]:
        plans += [{"kind": "one_head", "noise": xi2, "seed": s} for s in seeds["one_head"]]
        plans.append({"kind": "one_head_online", "noise": xi2})
    return plans


def layers_run(plan: Run) -> Any:
    """Train as the plan's kind says."""
    runs = {
        "quasi_newton": _newton_run,
        "online": _online_runs,
        "plain": _plain_run,
        "space": _space_run,
        "few_tasks": _few_tasks_run,
        "one_head": _one_head_run,
        "one_head_online": _one_head_online_runs,
    }
    return runs[plan["kind"]](plan)


def _options(kind: str, *names: str) -> dict[str, Any]:
    return {name: LAYERS[kind][name] for name in names}


def _end(run: Any, seed: int, held_out: InContextTasks, *, sheets: bool = True) -> Run:
    """Where a run ended: excess in training and held out, nearest exact layer, parameters."""
    layer = run.final if isinstance(run.final, GatedMap) else run.final.effective
    entry = {
        "seed": seed,
        "status": run.status,
        "steps": int(run.steps[-1]),
        "start": rounded(run.excess_risk[0], 5),
        "end": rounded(run.excess_risk[-1], 5),
        "held_out": rounded(excess_by_task(layer, held_out).mean(), 5),
    }
    if sheets:
        variances = SETTING["within_variance"], SETTING["noise_variance"]
        distances = distances_to_solutions(layer, *variances)
        nearest = min(distances, key=distances.get)
        entry |= {"nearest": nearest, "distance": rounded(distances[nearest], 5)}
    if run.excess_risk[-1] > UNFINISHED or not sheets:
        entry["layer"] = rounded(layer.to_vector(), 10)
    return entry


def _newton_run(plan: Run) -> Run:
    """BFGS on the fixed tasks, in the layer's own or in effective parameters."""
    train, held_out = in_context_tasks()
    kind = RAW_AND_EFFECTIVE[plan["coordinates"]]
    start = in_context_start(kind, 2, plan["seed"], plan["scale"])
    options = _options("quasi_newton", "order", "max_steps", "target")
    return _end(train_in_context(train, start, **options), plan["seed"], held_out)


def _online_runs(plan: Run) -> Run:
    """SGD with fresh tasks and queries at every step, in the layer's own parameters."""
    p, (_, held_out) = LAYERS["online"], in_context_tasks()
    seeds = range(p["seeds"])
    runs = train_in_context_online(
        in_context_law(),
        [in_context_start(ResidualParams, 2, seed, plan["scale"]) for seed in seeds],
        [np.random.default_rng([seed, 1]) for seed in seeds],
        record_tasks=held_out,
        step_size=plan["step_size"],
        **_options(
            "online", "n_steps", "n_tasks", "n_queries", "clip_norm", "record_every", "order"
        ),
    )
    rows = []
    for seed, run in zip(seeds, runs, strict=True):
        entry = _end(run, seed, held_out)
        entry.pop("layer", None)
        entry["raw"] = rounded(run.final.to_vector(), 10)
        entry["excess"] = rounded(run.excess_risk, 4)
        rows.append(entry)
    setting = {"scale": plan["scale"], "step_size": plan["step_size"]}
    return setting | {"steps": runs[0].steps.tolist(), "runs": rows}


def _plain_run(plan: Run) -> Run:
    """Two heads without a residual: A is held at zero."""
    train, held_out = in_context_tasks()
    first = in_context_start(GatedMap, 2, plan["seed"], LAYERS["plain"]["scale"])
    start = GatedMap(0 * first.A, first.P, first.U)
    options = _options("plain", "order", "max_steps")
    run = train_in_context(train, start, residual=False, **options)
    return _end(run, plan["seed"], held_out, sheets=False)


def _space_run(plan: Run) -> Run:
    """Dimension three, in the layer's own parameters."""
    p = LAYERS["space"]
    train, held_out = in_context_tasks(p["dim"])
    start = in_context_start(ResidualParams, p["dim"], plan["seed"], p["scale"])
    run = train_in_context(train, start, **_options("space", "order", "max_steps"))
    return _end(run, plan["seed"], held_out.first(20))


def _few_tasks_run(plan: Run) -> Run:
    """Training on few tasks, in effective coordinates."""
    train, held_out = in_context_tasks()
    start = in_context_start(GatedMap, 2, plan["seed"], LAYERS["few_tasks"]["scale"])
    options = _options("few_tasks", "order", "max_steps")
    run = train_in_context(train.first(plan["count"]), start, **options)
    return _end(run, plan["seed"], held_out)


def _one_head_tasks(noise: float) -> tuple[InContextTasks, InContextTasks]:
    """Return the same tasks with another share of noise (s = 1)."""
    train, held_out = (
        InContextTasks(tasks.weights, tasks.means, 1 - noise, noise) for tasks in in_context_tasks()
    )
    return train, held_out


def _one_head_start(seed: int) -> ResidualParams:
    return in_context_start(ResidualParams, 2, seed, LAYERS["one_head"]["scale"], n_heads=1)


def _one_head_run(plan: Run) -> Run:
    """One residual head, in its own parameters."""
    train, held_out = _one_head_tasks(plan["noise"])
    options = _options("one_head", "order", "max_steps")
    run = train_in_context(train, _one_head_start(plan["seed"]), **options)
    return _one_head_end(run, held_out)


def _one_head_online_runs(plan: Run) -> list[Run]:
    seeds = range(LAYERS["one_head"]["online_seeds"])
    _, held_out = _one_head_tasks(plan["noise"])
    xi2 = plan["noise"]
    runs = train_in_context_online(
        InContextLaw(2, 1 - xi2, xi2, SETTING["radius"], SETTING["weight"]),
        [_one_head_start(seed) for seed in seeds],
        [np.random.default_rng([seed, 1]) for seed in seeds],
        record_tasks=held_out,
        **_options("one_head", "n_steps", "step_size"),
        **_options("online", "n_tasks", "n_queries", "clip_norm", "record_every", "order"),
    )
    return [_one_head_end(run, held_out) for run in runs]


def _one_head_end(run: Any, held_out: InContextTasks) -> Run:
    return {
        "status": run.status,
        "end": rounded(run.excess_risk[-1], 5),
        "held_out": rounded(excess_by_task(run.final, held_out).mean(), 5),
        "raw": rounded(run.final.to_vector(), 10),
    }


def layers_content(results: list[Any]) -> dict[str, Any]:
    """Sort the runs by kind and setting."""
    remaining = iter(results)

    def runs(kind: str) -> list[Run]:
        return [next(remaining) for _ in range(LAYERS[kind]["seeds"])]

    newton = [
        {"coordinates": coordinates, "scale": scale, "runs": runs("quasi_newton")}
        for coordinates, scale in product(RAW_AND_EFFECTIVE, LAYERS["quasi_newton"]["scales"])
    ]
    return {
        "quasi_newton": {"groups": newton},
        "online": {"groups": [next(remaining) for _ in LAYERS["online"]["scales_and_steps"]]},
        "plain": {"runs": runs("plain")},
        "space": {"runs": runs("space")},
        "few_tasks": {
            "groups": [
                {"count": count, "runs": runs("few_tasks")}
                for count in LAYERS["few_tasks"]["counts"]
            ]
        },
        "one_head": {
            "groups": [
                {
                    "noise_variance": xi2,
                    "quasi_newton": runs("one_head"),
                    "online": next(remaining),
                }
                for xi2 in LAYERS["one_head"]["noise_variances"]
            ]
        },
    }


# All sets and the command -------------------------------------------------------------------------

SETS = {
    "ch05_constant_gate": DataSet(
        CONSTANT_GATE, constant_gate_plans, constant_gate_run, lambda runs: {"runs": runs}
    ),
    "ch06_figures45": DataSet(FIGURES45, figures45_plans, figures45_run, figures45_content),
    "ch08_single_head": DataSet(
        SINGLE_HEAD, single_head_plans, single_head_run, single_head_content
    ),
    "ch08_training": DataSet(TRAINING, training_plans, training_run, training_content),
    "ch11_finite_prompts": DataSet(
        {"in_context": IN_CONTEXT, "experiments": EXPERIMENTS, "single_prompts": SINGLE_PROMPTS},
        finite_prompts_plans,
        finite_prompts_run,
        finite_prompts_content,
    ),
    "ch12_training": DataSet(
        {"setting": SETTING} | LAYERS, layers_plans, layers_run, layers_content
    ),
}


def main() -> None:
    """Make or check the sets named on the command line, all unless some are named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(SETS)}")
    parser.add_argument("--check", action="store_true", help="compare, write nothing")
    parser.add_argument("--rtol", type=float, default=1e-4, help="what --check calls rounding")
    parser.add_argument("--jobs", type=int, default=-1, help="processes, all cores unless given")
    parser.add_argument("--scheduler", help="address of a Dask scheduler to run on")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(SETS))
    if unknown:
        parser.error(f"no set {', '.join(unknown)}; there are {', '.join(SETS)}")
    backend: Any = {"n_jobs": options.jobs}
    cluster: Any = nullcontext()
    if options.scheduler:
        from distributed import Client

        cluster, backend = Client(options.scheduler), {"backend": "dask"}
    failed = False
    with cluster, parallel_config(**backend):
        for name in options.names or SETS:
            content = make(name)
            if not options.check:
                print(write_data(name, content, FOLDER).relative_to(ROOT), flush=True)
                continue
            stored = read_data(name, FOLDER)
            found = list(
                differences(content, stored | {"versions": content["versions"]}, options.rtol)
            )
            failed |= bool(found)
            print(f"{name}: {len(found)} differences", *found[:20], sep="\n  ", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
