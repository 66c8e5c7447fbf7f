"""Gradient flow against the paper's protocol for Figure 1: explicit steps of 1e-4.

    python benchmarks/bench_flow.py

Both trajectories of Figure 1 to t = 1e3. The protocol (ten million explicit steps with gradients by
Gauss-Hermite quadrature, written here as lean as NumPy allows) is timed on its first steps and
extrapolated. Errors are distances to a flow with tighter tolerances, at the end of that first part for
the protocol and at its worst over the whole time for the flow; a gradient of
the protocol also carries the error of its quadrature, whose order the paper does not give.
"""

from __future__ import annotations

import time

import numpy as np
from scipy.special import expit

from mixattn import AttentionParams, LDATask, risk_gradient
from mixattn.classification.flow import Trajectory, gradient_flow
from mixattn.classification.landscape import distance_to_E1, distance_to_E2, figure1_starts

T_END = 1e3
STEP = 1e-4
PERTURBATION = 1e-6
TIMED_STEPS = 10_000
ORDERS = (20, 40)


class GaussHermiteGradient:
    """Gradient of the risk by a tensor Gauss-Hermite rule within each class (d = 2)."""

    def __init__(self, task: LDATask, order: int) -> None:
        nodes, weights = np.polynomial.hermite_e.hermegauss(order)
        grid = np.stack(np.meshgrid(nodes, nodes), axis=-1).reshape(-1, 2) @ task.cholesky.T
        product = np.outer(weights, weights).ravel() / weights.sum() ** 2
        self.task = task
        self.x = np.vstack([task.mean_pos + grid, task.mean_neg + grid])
        self.weight = np.concatenate([task.prior_pos * product, (1 - task.prior_pos) * product])
        # with eta(x) instead of the label (Lemma B.7) the rule is exact at every minimizer
        w, b = task.bayes_score
        self.eta = expit(self.x @ w + b)

    def __call__(self, y: np.ndarray) -> np.ndarray:
        """Gradient at a parameter vector of shape (9,)."""
        task, x = self.task, self.x
        U11, u12, v21, v22 = y[:4].reshape(2, 2), y[4:6], y[6:8], y[8]
        along = task.covariance @ v21
        gate = expit(task.prior_logit + x @ (2 * u12 + U11 @ task.mean_difference))
        r = v21 @ task.mean_difference + 2 * v22
        f = x @ (U11 @ along) + (v21 @ task.mean_neg - v22) + r * gate
        slope = self.weight * (expit(f) - self.eta)
        gw, gb, gr = slope @ x, slope.sum(), slope @ gate
        gs = r * ((slope * gate * (1 - gate)) @ x)
        gradient = np.empty(9)
        gradient[:4] = (np.outer(gw, along) + np.outer(gs, task.mean_difference)).ravel()
        gradient[4:6] = 2 * gs
        gradient[6:8] = (
            task.covariance @ (U11.T @ gw) + gb * task.mean_neg + gr * task.mean_difference
        )
        gradient[8] = 2 * gr - gb
        return gradient


def timed_flow(start: AttentionParams, task: LDATask) -> tuple[Trajectory, float]:
    began = time.perf_counter()
    flow = gradient_flow(start, task, T_END)
    return flow, time.perf_counter() - began


def main() -> None:
    task, *bases = figure1_starts()
    rng = np.random.default_rng(0)
    print(f"Figure 1, setting C1, to t = {T_END:g}; perturbation {PERTURBATION:g}")
    for name, base, distance in zip(
        ("theta(1)", "theta(2)"), bases, (distance_to_E1, distance_to_E2), strict=True
    ):
        noisy = base.to_vector() + PERTURBATION * rng.standard_normal(9)
        start = AttentionParams.from_vector(noisy, 2)
        timed_flow(start, task)  # caches filled
        flow, seconds = timed_flow(start, task)
        reference = gradient_flow(start, task, T_END, rtol=1e-12, atol=1e-14)
        times = np.linspace(0, T_END, 101)
        flow_error = np.linalg.norm(flow.at(times) - reference.at(times), axis=1).max()
        ends = [distance(flow.point_at(t), task) for t in (0.0, T_END)]
        print(f"{name}: distance to its family {ends[0]:.1e} -> {ends[1]:.1e}")
        print(f"  gradient flow: {seconds:.2f} s, {len(flow.t)} steps, error {flow_error:.0e}")
        exact = risk_gradient(start, task).to_vector()
        for order in ORDERS:
            gradient = GaussHermiteGradient(task, order)
            quadrature_error = np.linalg.norm(gradient(noisy) - exact) / np.linalg.norm(exact)
            y = noisy
            began = time.perf_counter()
            for _ in range(TIMED_STEPS):
                y = y - STEP * gradient(y)
            per_step = (time.perf_counter() - began) / TIMED_STEPS
            error = np.linalg.norm(y - reference.at(TIMED_STEPS * STEP))
            extrapolated = per_step * T_END / STEP
            print(
                f"  explicit, {order:>2} x {order} nodes a class: {1e6 * per_step:.0f} us a step, "
                f"{extrapolated:.0f} s extrapolated from {TIMED_STEPS} steps: flow "
                f"{extrapolated / seconds:.0f} times faster; "
                f"error {error:.0e} already at t = {TIMED_STEPS * STEP:g}, "
                f"relative gradient error {quadrature_error:.0e}"
            )


if __name__ == "__main__":
    main()
