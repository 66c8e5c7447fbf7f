"""Make book/data/ch06_figures45.json: the runs of Figures 4 and 5 of the paper, over several seeds.

    python tools/make_data_ch06.py

It takes two minutes on two cores. The chapter reruns a part of it and compares.
"""

import json
import platform
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import scipy

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
from mixattn import effective_params, gradient_flow, online_sgd, risk_hessian
from mixattn.classification.flow import fit_exponential_rate
from mixattn.classification.krylov import figure45_starts

DATA = Path(__file__).resolve().parent.parent / "book" / "data" / "ch06_figures45.json"

# The paper gives the task, the two laws of the starts and the step; the rest is ours.
PARAMETERS = {
    "step_size": 1e-2,
    "n_steps": {"1": 10_000, "32": 4_000},
    "n_seeds": 8,
    "t_end": 1000.0,
    "rtol": 1e-10,
    "atol": 1e-12,
    "gradient_tol": 1e-12,
}
TIMES = np.r_[0, np.geomspace(0.1, PARAMETERS["t_end"], 33)]


def rounded(values, digits=8):
    """Round to significant digits, so that the file stays small."""
    return [float(f"{value:.{digits}g}") for value in values]


def recorded_steps(n_steps):
    """Twenty-odd iterations, dense at the beginning."""
    return np.unique(np.r_[0, np.geomspace(10, n_steps, 24).round().astype(int)])


def sgd(start, task, seed, batch_size, n_steps):
    """One run of online SGD, and the noise floor that the Hessian at its end predicts."""
    step = PARAMETERS["step_size"]
    curve = online_sgd(
        start,
        task,
        np.random.default_rng([seed, batch_size]),
        step_size=step,
        n_steps=n_steps,
        batch_size=batch_size,
        record=recorded_steps(n_steps),
    )
    trace = float(np.trace(risk_hessian(curve.final, task)))
    return {
        "excess_risk": rounded(curve.excess_risk),
        "floor": rounded([step * trace / (4 * batch_size)])[0],
        "size_v21": rounded([np.linalg.norm(curve.final.v21)])[0],
        "size_U11": rounded([np.linalg.norm(curve.final.U11)])[0],
    }


def flow(start, task, times):
    """Follow the population flow: where it goes, and the rate that the Hessian there predicts."""
    p = PARAMETERS
    path = gradient_flow(
        start, task, p["t_end"], rtol=p["rtol"], atol=p["atol"], gradient_tol=p["gradient_tol"]
    )
    excess = path.excess_risk_at(times[times <= path.t[-1]])
    zeta = effective_params(path.final, task)
    run = {
        "status": str(path.status),
        "excess_risk": rounded(excess),
        "r": rounded([zeta.r])[0],
        "size_s": rounded([np.linalg.norm(zeta.s)])[0],
    }
    if abs(zeta.r) < 1e-6:
        # r = -2b always: d + 1 directions leave the minimizers
        curvatures = np.linalg.eigvalsh(risk_hessian(path.final, task))
        run["predicted_rate"] = rounded([2 * curvatures[-(task.dim + 1)]])[0]
        fine = np.linspace(0, path.t[-1], 200)
        decay = path.excess_risk_at(fine)
        late = (decay < 1e-7) & (decay > 1e-15)
        if late.sum() >= 24:
            run["measured_rate"] = rounded([fit_exponential_rate(fine[late], decay[late]).value])[0]
    return run


def runs_of_seed(seed):
    """Everything for one seed: one dictionary a figure."""
    task, *starts = figure45_starts(np.random.default_rng(seed))
    runs = []
    for start in starts:
        run = {"flow": flow(start, task, TIMES)}
        for batch, n_steps in PARAMETERS["n_steps"].items():
            run[f"sgd {batch}"] = sgd(start, task, seed, int(batch), n_steps)
        runs.append(run)
    return runs


def main():
    """Write the file."""
    p = PARAMETERS
    with ProcessPoolExecutor(2) as pool:
        figure4, figure5 = zip(*pool.map(runs_of_seed, range(p["n_seeds"])), strict=True)
    data = {
        "parameters": p,
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "scipy": scipy.__version__,
        },
        "steps": {b: recorded_steps(n).tolist() for b, n in p["n_steps"].items()},
        "times": TIMES.tolist(),
        "runs": {"figure 4": figure4, "figure 5": figure5},
    }
    DATA.parent.mkdir(exist_ok=True)
    runs = data.pop("runs")
    head = ",\n".join(f'"{key}": {json.dumps(value)}' for key, value in data.items())
    body = ",\n".join(
        f'"{name}": [\n' + ",\n".join(json.dumps(run) for run in listed) + "\n]"
        for name, listed in runs.items()
    )
    DATA.write_text(f'{{\n{head},\n"runs": {{\n{body}\n}}\n}}\n', "utf-8")


if __name__ == "__main__":
    main()
