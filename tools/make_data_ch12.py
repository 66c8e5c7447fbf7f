"""Make book/data/ch12_training.json: the long runs of chapter 12.

    python tools/make_data_ch12.py

It takes about a quarter of an hour on one core. The chapter reruns a part of it and compares.
"""

import json
import platform
import re
import sys
from pathlib import Path

import numpy as np
import scipy

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from mixattn.denoising.in_context import (
    EffectiveLayer,
    InContextLaw,
    InContextTasks,
    ResidualParams,
    distances_to_solutions,
    excess_by_task,
)
from mixattn.denoising.in_context_training import train_in_context, train_in_context_online

DATA = Path(__file__).resolve().parent.parent / "book" / "data"

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
QUASI_NEWTON = {
    "scales": [0.1, 0.5, 1.0, 2.0],
    "seeds": 24,
    "order": 16,
    "max_steps": 2000,
    "target": 1e-20,
}
ONLINE = {
    "scales_and_steps": [[0.1, 0.03], [0.5, 0.03], [1.0, 0.03], [2.0, 0.03], [2.0, 0.01]],
    "seeds": 16,
    "n_steps": 40_000,
    "n_tasks": 8,
    "n_queries": 16,
    "clip_norm": 10.0,
    "record_every": 1000,
    "order": 12,
}
PLAIN = {"scale": 0.5, "seeds": 12, "order": 16, "max_steps": 2000}
SPACE = {"dim": 3, "scale": 0.5, "seeds": 8, "order": 8, "max_steps": 2000}
FEW = {"counts": [1, 2, 3, 4, 24], "scale": 0.5, "seeds": 12, "order": 16, "max_steps": 2000}
ONE_HEAD = {
    "noise_variances": [0.8, 0.2],
    "scale": 0.5,
    "seeds": 16,
    "order": 16,
    "max_steps": 600,
    "online_seeds": 8,
    "n_steps": 40_000,
    "step_size": 0.03,
}

# Runs that end above this excess are kept with their parameters.
UNFINISHED = 1e-12


def stamp():
    """Versions that the numbers were made with."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def short(value, digits=5):
    """Round to significant digits, so that the file stays small."""
    return float(f"{value:.{digits}g}")


def law(dim=2):
    """Return the law of tasks."""
    p = SETTING
    return InContextLaw(dim, p["within_variance"], p["noise_variance"], p["radius"], p["weight"])


def tasks(dim=2):
    """Training tasks and held-out tasks."""
    p = SETTING
    return (
        law(dim).sample(p["n_tasks"], np.random.default_rng(p["tasks_seed"])),
        law(dim).sample(p["n_held_out"], np.random.default_rng(p["held_out_seed"])),
    )


def start(kind, dim, seed, scale):
    """Return the random start of a run."""
    return kind.random(dim, 2, np.random.default_rng([seed, 0]), scale)


def described(run, seed, held_out, *, sheets=True):
    """Where a run ended: excess in training and held out, nearest exact layer, parameters."""
    layer = run.effective
    p = SETTING
    entry = {
        "seed": seed,
        "status": run.status,
        "steps": int(run.steps[-1]),
        "start": short(run.excess[0]),
        "end": short(run.excess[-1]),
        "held_out": short(excess_by_task(layer, held_out).mean()),
    }
    if sheets:
        distances = distances_to_solutions(layer, p["within_variance"], p["noise_variance"])
        nearest = min(distances, key=distances.get)
        entry |= {"nearest": nearest, "distance": short(distances[nearest])}
    if run.excess[-1] > UNFINISHED or not sheets:
        entry["layer"] = [short(x, 10) for x in layer.to_vector()]
    return entry


def quasi_newton():
    """BFGS on the fixed tasks, in both coordinates, from several scales."""
    p, (train, held_out) = QUASI_NEWTON, tasks()
    groups = []
    for name, kind in (("raw", ResidualParams), ("effective", EffectiveLayer)):
        for scale in p["scales"]:
            runs = []
            for seed in range(p["seeds"]):
                run = train_in_context(
                    train,
                    start(kind, 2, seed, scale),
                    order=p["order"],
                    max_steps=p["max_steps"],
                    target=p["target"],
                )
                runs.append(described(run, seed, held_out))
            groups.append({"coordinates": name, "scale": scale, "runs": runs})
            print(name, scale, flush=True)
    return {"parameters": p, "groups": groups}


def online():
    """SGD with fresh tasks and queries at every step, in the layer's own parameters."""
    p, (_, held_out) = ONLINE, tasks()
    groups = []
    for scale, step_size in p["scales_and_steps"]:
        seeds = range(p["seeds"])
        runs = train_in_context_online(
            law(),
            [start(ResidualParams, 2, seed, scale) for seed in seeds],
            seeds,
            record_tasks=held_out,
            step_size=step_size,
            **{k: p[k] for k in ("n_steps", "n_tasks", "n_queries", "clip_norm")},
            record_every=p["record_every"],
            order=p["order"],
        )
        rows = []
        for seed, run in zip(seeds, runs, strict=True):
            entry = described(run, seed, held_out)
            entry.pop("layer", None)
            entry["raw"] = [short(x, 10) for x in run.params.to_vector()]
            entry["excess"] = [short(x, 4) for x in run.excess]
            rows.append(entry)
        groups.append(
            {"scale": scale, "step_size": step_size, "steps": runs[0].steps.tolist(), "runs": rows}
        )
        print("online", scale, step_size, flush=True)
    return {"parameters": p, "groups": groups}


def plain():
    """Two heads without a residual: A is held at zero."""
    p, (train, held_out) = PLAIN, tasks()
    runs = []
    for seed in range(p["seeds"]):
        first = start(EffectiveLayer, 2, seed, p["scale"])
        run = train_in_context(
            train,
            EffectiveLayer(0 * first.A, first.P, first.U),
            order=p["order"],
            max_steps=p["max_steps"],
            residual=False,
        )
        runs.append(described(run, seed, held_out, sheets=False))
    print("plain", flush=True)
    return {"parameters": p, "runs": runs}


def space():
    """Dimension three, in the layer's own parameters."""
    p = SPACE
    train, held_out = tasks(p["dim"])
    held_out = held_out.first(20)
    runs = []
    for seed in range(p["seeds"]):
        first = start(ResidualParams, p["dim"], seed, p["scale"])
        run = train_in_context(train, first, order=p["order"], max_steps=p["max_steps"])
        runs.append(described(run, seed, held_out))
    print("space", flush=True)
    return {"parameters": p, "runs": runs}


def few_tasks():
    """Training on few tasks, in effective coordinates."""
    p, (train, held_out) = FEW, tasks()
    groups = []
    for count in p["counts"]:
        runs = []
        for seed in range(p["seeds"]):
            run = train_in_context(
                train.first(count),
                start(EffectiveLayer, 2, seed, p["scale"]),
                order=p["order"],
                max_steps=p["max_steps"],
            )
            runs.append(described(run, seed, held_out))
        groups.append({"count": count, "runs": runs})
    print("few", flush=True)
    return {"parameters": p, "groups": groups}


def one_head():
    """One residual head, in its own parameters, for two shares of the noise (s = 1)."""
    p, (train, held_out), online = ONE_HEAD, tasks(), ONLINE
    groups = []
    for xi2 in p["noise_variances"]:
        here, there = (InContextTasks(t.weights, t.means, 1 - xi2, xi2) for t in (train, held_out))
        starts = [
            ResidualParams.random(2, 1, np.random.default_rng([seed, 0]), p["scale"])
            for seed in range(p["seeds"])
        ]
        newton = [
            train_in_context(here, first, order=p["order"], max_steps=p["max_steps"])
            for first in starts
        ]
        seeds = range(p["online_seeds"])
        descent = train_in_context_online(
            InContextLaw(2, 1 - xi2, xi2, SETTING["radius"], SETTING["weight"]),
            starts[: len(seeds)],
            seeds,
            record_tasks=there,
            **{k: p[k] for k in ("n_steps", "step_size")},
            **{k: online[k] for k in ("n_tasks", "n_queries", "clip_norm", "order")},
            record_every=online["record_every"],
        )
        groups.append(
            {
                "noise_variance": xi2,
                "quasi_newton": [_one_head_end(run, there) for run in newton],
                "online": [_one_head_end(run, there) for run in descent],
            }
        )
        print("one head", xi2, flush=True)
    return {"parameters": p, "groups": groups}


def _one_head_end(run, held_out):
    theta = run.params
    return {
        "status": run.status,
        "end": short(run.excess[-1]),
        "held_out": short(excess_by_task(theta, held_out).mean()),
        "raw": [short(x, 10) for x in theta.to_vector()],
    }


PARTS = {
    "quasi_newton": quasi_newton,
    "online": online,
    "plain": plain,
    "space": space,
    "few_tasks": few_tasks,
    "one_head": one_head,
}


def text_of(data):
    """Return JSON with a list of numbers, or a run, on one line."""
    text = json.dumps(data, indent=1)
    text = re.sub(r"\[[-+.,\s\de]*\]", lambda found: " ".join(found[0].split()), text)
    run = r"\{[^{}\[\]]*(\[[^\[\]]*\][^{}\[\]]*)*\}"
    return re.sub(run, lambda found: " ".join(found[0].split()), text) + "\n"


def main():
    """Write the file."""
    DATA.mkdir(exist_ok=True)
    data = {"setting": SETTING, "versions": stamp()}
    data |= {name: make() for name, make in PARTS.items()}
    (DATA / "ch12_training.json").write_text(text_of(data), "utf-8")


if __name__ == "__main__":
    main()
