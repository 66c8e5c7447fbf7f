"""Make book/data/ch05_constant_gate.json: gradient flow near the constant gate, to t = 1e7 and beyond.

Chapter 5 draws the file, and repeats the beginning of some runs to compare. A run takes a few seconds.

    python tools/make_data_ch05.py
"""

import json
import platform
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import scipy

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))

import mixattn  # noqa: E402
from mixattn.classification.landscape import E2_point, lift  # noqa: E402

PATH = ROOT / "book" / "data" / "ch05_constant_gate.json"
TOLERANCES = {"rtol": 1e-9, "atol": 1e-12}
AMPLITUDE = 6.0
SLOPE = np.array([0.6, -0.3, 0.4])
NOISE = 0.05
TIMES_PER_DECADE = 4

#: name: means and covariance; the priors are set by the runs.
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


def planned_runs() -> list[dict[str, Any]]:
    """List the runs: two priors on every geometry in both coordinates, then priors near 1/2 on the plane."""
    exponents = [
        {"geometry": name, "prior_pos": prior, "coordinates": kind, "log10_t_end": 7}
        for name in GEOMETRIES
        for prior in (0.3, 0.5)
        for kind in ("effective", "attention")
    ]
    crossover = [
        {"geometry": "plane", "prior_pos": prior, "coordinates": "effective", "log10_t_end": 8}
        for prior in (0.4, 0.45, 0.48, 0.49)
    ]
    return exponents + crossover


def start(task: mixattn.LDATask, coordinates: str, seed: int) -> list[float]:
    """Displace a point of E2 (or of Theta2 above it) along a flat direction, then a little in every coordinate."""
    point = E2_point(task, AMPLITUDE)
    s = SLOPE[: task.dim]
    gate_slope = task.prior_pos * (1 - task.prior_pos)
    flat = mixattn.EffectiveParams(point.w - AMPLITUDE * gate_slope * s, point.b, point.r, s)
    params = flat if coordinates == "effective" else lift(flat, task)
    vector = params.to_vector()
    noise = NOISE * np.random.default_rng(seed).standard_normal(len(vector))
    return [round(float(entry), 6) for entry in vector + noise]


def integrate(run: dict[str, Any], seed: int) -> dict[str, Any]:
    """Follow the flow of one run and record the excess risk on a logarithmic grid of times."""
    task = mixattn.LDATask(**GEOMETRIES[run["geometry"]], prior_pos=run["prior_pos"])
    kinds = {"effective": mixattn.EffectiveParams, "attention": mixattn.AttentionParams}
    vector = start(task, run["coordinates"], seed)
    params = kinds[run["coordinates"]].from_vector(vector, task.dim)
    decades = run["log10_t_end"]
    flow = mixattn.gradient_flow(params, task, 10.0**decades, **TOLERANCES)
    log10_t = np.linspace(0, decades, TIMES_PER_DECADE * decades + 1)
    excess = flow.excess_risk_at(np.minimum(10.0**log10_t, flow.t[-1]))
    return run | {
        "task": GEOMETRIES[run["geometry"]] | {"prior_pos": run["prior_pos"]},
        "start": vector,
        "status": str(flow.status),
        "log10_t": log10_t.tolist(),
        "excess_risk": [float(f"{value:.8g}") for value in excess],
        "final": [float(f"{value:.8g}") for value in flow.params[-1]],
    }


def main() -> None:
    """Integrate every run and write the file."""
    runs = []
    for seed, run in enumerate(planned_runs()):
        runs.append(integrate(run, seed))
        print(*run.values(), runs[-1]["status"], flush=True)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    content = {
        "made_by": "tools/make_data_ch05.py",
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
            "mixattn": project["version"],
        },
        "parameters": TOLERANCES
        | {"amplitude": AMPLITUDE, "slope": SLOPE.tolist(), "noise": NOISE, "seed": "index of run"},
        "runs": runs,
    }
    PATH.parent.mkdir(exist_ok=True)
    PATH.write_text(json.dumps(content, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
