"""Make book/data/ch08_training.json and book/data/ch08_single_head.json: the long runs of chapter 8.

    python tools/make_data_ch08.py

It takes a few minutes on one core. The chapter reruns a part of it and compares.
"""

import json
import platform
import re
import sys
from pathlib import Path

import numpy as np
import scipy

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from mixattn import (
    DenoisingTask,
    GaussianMixture,
    Head,
    MultiHead,
    best_single_head,
    train_quasi_newton,
    train_sgd,
)

DATA = Path(__file__).resolve().parent.parent / "book" / "data"

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

# Total variance c and means of Figure 2; only the ratio gamma^2 / xi^2 changes.
SINGLE_HEAD = {
    "means": [[3.0, 0.0], [0.0, 3.0]],
    "total_variance": 5.0,
    "weights": [0.5, 0.2],
    "ratios": [0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0],
    "random_starts": 5,
    "max_steps": 300,
}

# Runs that end above this excess risk are kept with their parameters.
STALLED = 1e-3


def stamp():
    """Versions that the numbers were made with."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def rounded(values, digits=8):
    """Round to significant digits, so that the file stays small."""
    return [float(f"{value:.{digits}g}") for value in values]


def described(run):
    """How a quasi-Newton run ended; where it stalled, the heads too."""
    start, end = rounded(run.excess_risk[[0, -1]])
    entry = {
        "seed": run.seed,
        "status": run.status,
        "iterations": int(run.steps[-1]),
        "start": start,
        "end": end,
    }
    if end > STALLED:
        entry["heads"] = [[head.U.tolist(), head.V.tolist()] for head in run.denoiser.heads]
    return entry


def training():
    """Online SGD and quasi-Newton on two heads, from random starts."""
    p = TRAINING
    mixture = GaussianMixture(p["weights"], p["means"], p["gamma"] ** 2 * np.eye(2))
    task = DenoisingTask(mixture, p["xi"] ** 2)
    sgd = [
        train_sgd(
            task,
            p["n_heads"],
            seed=seed,
            n_steps=p["n_steps"],
            batch_size=p["batch_size"],
            step_size=p["step_size"],
            clip_norm=p["clip_norm"],
            record_every=p["record_every"],
        )
        for seed in range(p["sgd_seeds"])
    ]
    newton = [
        train_quasi_newton(
            task, p["n_heads"], seed=seed, max_steps=p["max_steps"], target=p["target"]
        )
        for seed in range(p["quasi_newton_seeds"])
    ]
    return {
        "parameters": p,
        "versions": stamp(),
        "sgd": [
            {"seed": run.seed, "status": run.status, "excess_risk": rounded(run.excess_risk)}
            for run in sgd
        ],
        "quasi_newton": [described(run) for run in newton],
    }


def single_head():
    """Best single head against the ratio of variances, from informed and random starts."""
    p = SINGLE_HEAD
    curves = []
    for weight in p["weights"]:
        excess, agreeing = [], []
        for ratio in p["ratios"]:
            xi2 = p["total_variance"] / (1.0 + ratio)
            gamma2 = p["total_variance"] - xi2
            mixture = GaussianMixture([weight, 1 - weight], p["means"], gamma2 * np.eye(2))
            task = DenoisingTask(mixture, xi2)
            e = np.array([1.0, -1.0]) / np.sqrt(2.0)
            exchange = np.eye(2) - 2.0 * np.outer(e, e)
            start = MultiHead([Head(exchange / p["total_variance"], 0.5 * exchange)])
            ends = [train_quasi_newton(task, initial=start, max_steps=p["max_steps"])]
            # the search adds the start (S^-1, I/2) to the random ones
            ends += best_single_head(
                task, n_starts=1 + p["random_starts"], seed=0, max_steps=p["max_steps"]
            ).runs
            values = np.array([run.excess_risk[-1] for run in ends])
            best = float(values.min())
            excess.append(best)
            agreeing.append(int(np.sum(values <= best * (1 + 1e-4) + 1e-12)))
        curves.append({"weight": weight, "excess_risk": rounded(excess), "agreeing": agreeing})
    return {"parameters": p, "versions": stamp(), "curves": curves}


def main():
    """Write both files."""
    DATA.mkdir(exist_ok=True)
    for name, make in (("ch08_single_head", single_head), ("ch08_training", training)):
        text = json.dumps(make(), indent=1)
        # a list of numbers on one line
        text = re.sub(r"\[[-+.,\s\de]*\]", lambda found: " ".join(found[0].split()), text)
        (DATA / f"{name}.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
