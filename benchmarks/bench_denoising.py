"""Excess risk of a denoiser and its gradient: exact integrals against PyTorch on samples.

    python -m pip install -r benchmarks/requirements.txt
    python benchmarks/bench_denoising.py

The user without this package would average |D(z) - f*(z)|^2 over samples and differentiate with
autograd. Both sides run in turns in one process: on a busy machine, read the ratios.
"""

from __future__ import annotations

import os
import platform
import statistics
import time
from collections.abc import Callable

import numpy as np

from mixattn import (
    DenoisingTask,
    GaussianMixture,
    Head,
    MultiHead,
    two_head_denoiser,
)

N_SAMPLES = 100_000
REPEATS = 5


def figure_2_task(dim: int) -> DenoisingTask:
    """Build the task of Figure 2 of the paper, its plane placed in R^dim."""
    means = np.zeros((2, dim))
    means[0, 0] = means[1, 1] = 3.0
    return DenoisingTask(GaussianMixture([0.5, 0.5], means, np.eye(dim)), 4.0)


def near_bayes(task: DenoisingTask, distance: float) -> MultiHead:
    """Move every entry of the Bayes denoiser's heads, so that each gate has its own direction."""
    rng = np.random.default_rng(0)
    scale = distance / np.sqrt(task.dim)
    return MultiHead(
        [
            Head(
                head.U + scale * rng.standard_normal(head.U.shape),
                head.V + scale * rng.standard_normal(head.V.shape),
            )
            for head in two_head_denoiser(task).heads
        ]
    )


def sampled_excess_risk(
    torch, task: DenoisingTask, denoiser: MultiHead, samples: np.ndarray
) -> Callable[[], tuple[float, np.ndarray]]:
    """Prepare the excess risk over samples and its gradient by autograd, in float64."""
    z = torch.from_numpy(samples)
    S = torch.from_numpy(task.noisy.covariances[0].copy())
    means = torch.from_numpy(task.mixture.means.copy())
    log_weights = torch.log(torch.from_numpy(task.mixture.weights.copy()))
    target = torch.from_numpy(task.bayes_denoiser(samples))
    U = torch.from_numpy(np.stack([head.U for head in denoiser.heads])).requires_grad_()
    V = torch.from_numpy(np.stack([head.V for head in denoiser.heads])).requires_grad_()

    def evaluate() -> tuple[float, np.ndarray]:
        U.grad = V.grad = None
        output = 0.0
        for head_U, head_V in zip(U, V, strict=True):
            tilt = z @ head_U.T
            gates = torch.softmax(log_weights + tilt @ means.T, dim=1)
            output = output + (tilt @ S + gates @ means) @ head_V.T
        loss = ((output - target) ** 2).sum(dim=1).mean()
        loss.backward()
        return float(loss.detach()), np.concatenate(
            [U.grad.numpy().ravel(), V.grad.numpy().ravel()]
        )

    return evaluate


def median_seconds_in_turns(*functions: Callable[[], object]) -> list[float]:
    seconds: list[list[float]] = [[] for _ in functions]
    for function in functions:
        function()  # warm up
    for _ in range(REPEATS):
        for function, record in zip(functions, seconds, strict=True):
            start = time.perf_counter()
            function()
            record.append(time.perf_counter() - start)
    return [statistics.median(record) for record in seconds]


def compare_with_autograd(torch) -> None:
    print(f"\nExcess risk and gradient of two heads: exact, and autograd on {N_SAMPLES} samples")
    print(f"{'d':>5}{'distance':>10}{'exact':>10}{'autograd':>10}{'ratio':>8}", end="")
    print(f"{'sampling error: value':>24}{'gradient':>10}")
    for dim, distance in [(2, 0.3), (2, 1e-3), (16, 0.3), (64, 0.3)]:
        task = figure_2_task(dim)
        denoiser = near_bayes(task, distance)
        samples, _ = task.noisy.sample(N_SAMPLES, np.random.default_rng(1))
        sampled = sampled_excess_risk(torch, task, denoiser, samples)
        exact_seconds, sampled_seconds = median_seconds_in_turns(
            lambda t=task, d=denoiser: t.excess_risk_gradient(d), sampled
        )
        value, *gradients = task.excess_risk_gradient(denoiser)
        gradient = np.concatenate([part.ravel() for part in gradients])
        estimate, estimated_gradient = sampled()
        deviation = np.linalg.norm(estimated_gradient - gradient) / np.linalg.norm(gradient)
        print(
            f"{dim:>5}{distance:>10g}{1e3 * exact_seconds:>7.1f} ms{1e3 * sampled_seconds:>7.1f} ms"
            f"{sampled_seconds / exact_seconds:>8.1f}{abs(estimate / value - 1):>24.1e}{deviation:>10.1e}"
        )


def show_accuracy() -> None:
    """Compare small excess risks with their scaling: moving V only, they are a quadratic form."""
    task = figure_2_task(2)
    bayes = two_head_denoiser(task)
    moves = np.random.default_rng(2).standard_normal((2, 2, 2))

    def excess(size: float) -> float:
        heads = [Head(h.U, h.V + size * m) for h, m in zip(bayes.heads, moves, strict=True)]
        return float(task.excess_risk(MultiHead(heads)))

    print("\nExact side, small excess risks: relative error against their scaling")
    reference = excess(1.0)
    for exponent in (-5, -15, -25):
        value = excess(2.0**exponent)
        print(f"  excess {value:.1e}   error {abs(value / (reference * 4.0**exponent) - 1):.0e}")


def show_cost_against_dimension() -> None:
    print("\nExact excess risk and gradient against the dimension: two heads, three projections")
    for dim in (3, 8, 32, 128, 256, 512):
        task = figure_2_task(dim)
        denoiser = near_bayes(task, 0.3)
        (seconds,) = median_seconds_in_turns(lambda t=task, d=denoiser: t.excess_risk_gradient(d))
        print(f"  d = {dim:<5}{1e3 * seconds:>8.1f} ms")


def main() -> None:
    import torch

    print(
        f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}, "
        f"NumPy {np.__version__}, PyTorch {torch.__version__}, float64"
    )
    compare_with_autograd(torch)
    show_accuracy()
    show_cost_against_dimension()


if __name__ == "__main__":
    main()
