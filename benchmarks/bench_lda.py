"""Logistic risk and gradient of one head: exact integrals against automatic differentiation of samples.

    python -m pip install -r benchmarks/requirements.txt
    python benchmarks/bench_lda.py

Both sides run in float64 on one thread and are timed in turns, so that a busy machine slows both.
Drawing the samples is not counted. Errors are against a plain tensor trapezoidal rule with
millions of nodes, written here independently of the package.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable

import numpy as np
import torch
from scipy.special import expit
from threadpoolctl import threadpool_limits

from mixattn import (
    EffectiveParams,
    LDATask,
    excess_risk,
    risk_and_gradient,
    risk_hessian,
)

DIMENSION = 20
N_SAMPLES = 100_000
TARGET = 1e-6
ROUNDS = 30
BLOCK = 10


def problem(dim: int, seed: int = 0) -> tuple[LDATask, EffectiveParams]:
    """Return a task with |w*| = 2 in whitened units and a score with an active gate."""
    rng = np.random.default_rng(seed)
    root = np.eye(dim) + 0.3 * rng.standard_normal((dim, dim)) / np.sqrt(dim)
    covariance = root @ root.T
    L = np.linalg.cholesky(covariance)

    def whitened(norm: float) -> np.ndarray:
        z = rng.standard_normal(dim)
        return norm * z / np.linalg.norm(z)

    center, half = L @ whitened(0.5), L @ whitened(1.0)
    to_score = np.linalg.inv(L).T
    params = EffectiveParams(to_score @ whitened(1.5), 0.3, 2.0, to_score @ whitened(1.0))
    return LDATask(center + half, center - half, covariance, 0.3), params


def trapezoid(task: LDATask, p: EffectiveParams, step: float = 0.01) -> tuple[float, np.ndarray]:
    """Risk and gradient by a tensor trapezoidal rule in the plane of w and s."""
    L = np.linalg.cholesky(task.covariance)
    frame = np.linalg.qr(np.stack([L.T @ p.w, L.T @ p.s], axis=1))[0]
    line = np.arange(-12, 12, step)
    (a, b), (c, d) = (L.T @ p.w) @ frame, (L.T @ p.s) @ frame
    z1, z2 = np.meshgrid(line, line, indexing="ij", sparse=True)
    density = np.exp(-0.5 * (z1**2 + z2**2)) * step**2 / (2 * np.pi)
    risk, gradient = 0.0, np.zeros(2 * task.dim + 2)
    s0 = np.log(task.prior_pos / (1 - task.prior_pos))
    classes = ((1, task.prior_pos, task.mean_pos), (-1, 1 - task.prior_pos, task.mean_neg))
    for label, prior, mean in classes:
        gate = expit(s0 + p.s @ mean + c * z1 + d * z2)
        f = p.w @ mean + p.b + a * z1 + b * z2 + p.r * gate
        risk += prior * (density * np.logaddexp(0, -label * f)).sum()
        slope = -label * prior * density * expit(-label * f)

        def vector(mass: np.ndarray, mean: np.ndarray = mean) -> np.ndarray:
            moments = np.array([(mass * z1).sum(), (mass * z2).sum()])
            return mean * mass.sum() + L @ frame @ moments

        gradient += np.concatenate(
            [
                vector(slope),
                [slope.sum(), (slope * gate).sum()],
                p.r * vector(slope * gate * (1 - gate)),
            ]
        )
    return risk, gradient


def sampled(task: LDATask, p: EffectiveParams, n: int) -> Callable[[], tuple[float, np.ndarray]]:
    """Return the empirical risk and its gradient by PyTorch, on samples drawn once."""
    x, y = task.sample(n, np.random.default_rng(1))
    inputs, labels = torch.from_numpy(x), torch.from_numpy(y.astype(float))
    vector = torch.from_numpy(p.to_vector()).requires_grad_()
    dim, s0 = task.dim, task.prior_logit

    def run() -> tuple[float, np.ndarray]:
        vector.grad = None
        w, b, r, s = vector[:dim], vector[dim], vector[dim + 1], vector[dim + 2 :]
        f = inputs @ w + b + r * torch.sigmoid(s0 + inputs @ s)
        loss = torch.nn.functional.softplus(-labels * f).mean()
        loss.backward()
        return loss.item(), vector.grad.numpy().copy()

    return run


def fastest(*functions: Callable[[], object], rounds: int = ROUNDS) -> list[float]:
    """Milliseconds of CPU a call, the least of several rounds of BLOCK calls, taken in turns."""
    best = [np.inf] * len(functions)
    for function in functions:
        function()
    for _ in range(rounds):
        for i, function in enumerate(functions):
            start = time.process_time()
            for _ in range(BLOCK):
                function()
            best[i] = min(best[i], 1e3 * (time.process_time() - start) / BLOCK)
    return best


def relative_error(result: tuple[float, np.ndarray], exact: tuple[float, np.ndarray]) -> float:
    """Return the larger of the risk's and the gradient's relative errors (maximum norm)."""
    risk = abs(result[0] / exact[0] - 1)
    return max(risk, float(np.abs(result[1] - exact[1]).max() / np.abs(exact[1]).max()))


def against_autograd() -> None:
    task, params = problem(DIMENSION)
    exact = trapezoid(task, params)

    def integrals() -> tuple[float, np.ndarray]:
        risk, gradient = risk_and_gradient(params, task)
        return risk, gradient.to_vector()

    autograd = sampled(task, params, N_SAMPLES)
    ours, theirs = fastest(integrals, autograd)
    our_error, their_error = relative_error(integrals(), exact), relative_error(autograd(), exact)
    needed = N_SAMPLES * (their_error / TARGET) ** 2
    seconds = 1e-3 * theirs * needed / N_SAMPLES
    print(f"Risk and gradient, d = {DIMENSION}, one thread")
    print(f"  {'':<36}{'ms of CPU':>10}{'relative error':>16}")
    print(f"  {'mixattn, exact integrals':<36}{ours:>10.2f}{our_error:>16.1e}")
    print(
        f"  {f'PyTorch autograd, {N_SAMPLES:.0e} samples':<36}{theirs:>10.2f}{their_error:>16.1e}"
    )
    print(
        f"  mixattn is {theirs / ours:.1f} times faster and {their_error / our_error:.0e} times closer"
    )
    print(
        f"  autograd would need about {needed:.0e} samples for {TARGET:.0e} (error ~ n^-1/2): extrapolated, "
        f"{seconds / 60:.0f} minutes a gradient, {seconds / (1e-3 * ours):.0e} times as long"
    )


def against_dimension() -> None:
    print("\nCost as the dimension grows, ms of CPU (nodes do not depend on d)")
    print(f"  {'d':>5}{'gradient':>12}{'Hessian':>12}{'excess risk':>14}")
    for dim in (2, 8, 32, 128, 512):
        task, params = problem(dim)
        times = fastest(
            lambda task=task, params=params: risk_and_gradient(params, task),
            lambda task=task, params=params: risk_hessian(params, task),
            lambda task=task, params=params: excess_risk(params, task),
            rounds=10,
        )
        print(f"  {dim:>5}{times[0]:>12.2f}{times[1]:>12.2f}{times[2]:>14.2f}")


def main() -> None:
    torch.set_num_threads(1)
    print(f"PyTorch {torch.__version__}, NumPy {np.__version__}, {platform.machine()}")
    with threadpool_limits(limits=1):
        against_autograd()
        against_dimension()


if __name__ == "__main__":
    main()
