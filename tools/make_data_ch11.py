"""Make book/data/ch11_finite_prompts.json: the long simulations of chapter 11.

    python tools/make_data_ch11.py

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
from mixattn import DenoisingTask, GaussianMixture, in_context_denoiser, softmax_attention

DATA = Path(__file__).resolve().parent.parent / "book" / "data"

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
    "seed": 3,
}


def stamp():
    """Versions that the numbers were made with."""
    return {
        "python": platform.python_version(),
        "numpy": np.__version__,
        "scipy": scipy.__version__,
    }


def rounded(values, digits=6):
    """Round to significant digits, so that the file stays small."""
    return [float(f"{value:.{digits}g}") for value in values]


def in_context():
    """Excess risk of the layer against the prompt length, with standard errors."""
    p = IN_CONTEXT
    rng, eye = np.random.default_rng(p["seed"]), np.eye(2)
    layer = in_context_denoiser(2, p["gamma2"], p["xi2"])
    means, errors = [], []
    for length, n_prompts in zip(p["lengths"], p["prompts"], strict=True):
        excess = np.empty(n_prompts)
        for row in range(n_prompts):
            turn = rng.uniform(0, 2 * np.pi)
            angles = turn + np.array([0.0, np.deg2rad(rng.choice(p["angles"]))])
            weight = rng.choice(p["weights"])
            centers = p["radius"] * np.stack([np.cos(angles), np.sin(angles)], axis=1)
            clean = GaussianMixture([weight, 1 - weight], centers, p["gamma2"] * eye)
            task = DenoisingTask(clean, p["xi2"])
            tokens = task.noisy.sample(length, rng)[0]
            z = task.noisy.sample(p["queries"], rng)[0]
            off = layer(tokens, z) - task.bayes_denoiser(z)
            excess[row] = np.mean(np.sum(off**2, axis=1))
        means.append(excess.mean())
        errors.append(excess.std() / np.sqrt(n_prompts))
    return {"parameters": p, "excess_risk": rounded(means), "standard_error": rounded(errors)}


def one_dimensional(tokens, z):
    """Output of the head U = V = 1 on a prompt of numbers."""
    return softmax_attention(tokens[:, None], z[:, None], [[1.0]], [[1.0]])[:, 0]


def experiments():
    """Mean-square errors that small experiments report, one row an experiment."""
    p = EXPERIMENTS
    rng = np.random.default_rng(p["seed"])
    reports = []
    for _ in range(p["experiments"]):
        row = []
        for length in p["lengths"]:
            squares = []
            for _ in range(p["prompts"]):
                z = rng.standard_normal(p["queries"])
                squares.append((one_dimensional(rng.standard_normal(length), z) - z) ** 2)
            row.append(np.mean(squares))
        reports.append(rounded(row, 5))
    return {"parameters": p, "mean_square_error": reports}


def single_prompts():
    """Mean and median over prompts of the error averaged over queries."""
    p = SINGLE_PROMPTS
    rng = np.random.default_rng(p["seed"])
    z = np.arange(-p["reach"], p["reach"] + p["step"] / 2, p["step"])
    mass = p["step"] * np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    table = {"mean": [], "standard_error": [], "median": [], "above_mean": []}
    for length, n_prompts in zip(p["lengths"], p["prompts"], strict=True):
        errors = np.empty(n_prompts)
        for row in range(n_prompts):
            errors[row] = mass @ (one_dimensional(rng.standard_normal(length), z) - z) ** 2
        table["mean"].append(errors.mean())
        table["standard_error"].append(errors.std() / np.sqrt(n_prompts))
        table["median"].append(np.median(errors))
        table["above_mean"].append(np.mean(errors > errors.mean()))
    return {"parameters": p} | {name: rounded(values) for name, values in table.items()}


def main():
    """Write the file."""
    DATA.mkdir(exist_ok=True)
    content = {
        "versions": stamp(),
        "in_context": in_context(),
        "experiments": experiments(),
        "single_prompts": single_prompts(),
    }
    text = json.dumps(content, indent=1)
    # a list of numbers on one line
    text = re.sub(r"\[[-+.,\s\de]*\]", lambda found: " ".join(found[0].split()), text)
    (DATA / "ch11_finite_prompts.json").write_text(text + "\n", "utf-8")


if __name__ == "__main__":
    main()
