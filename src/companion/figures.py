"""Three live figures: what each sends to the browser, and its still for a page without a script.

The browser integrates on the nodes that are sent from here. They are trapezoid rules: on these
analytic integrands the error is below 1e-10 over everything that the controls can reach.
"""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import ArrayLike, NDArray

from companion.style import COLORS, COMPONENT_COLORS, COMPONENT_MARKERS, webp_bytes
from mixattn import (
    DenoisingTask,
    GaussianMixture,
    Head,
    LDATask,
    clustering_fixed_point,
    iterate_denoiser,
    two_head_denoiser,
)

Floats = NDArray[np.float64]
State = dict[str, Any]


def _rule(nodes: Floats, weights: Floats) -> dict[str, list[float]]:
    return {"nodes": nodes.tolist(), "weights": weights.tolist()}


# The ball on the landscape (chapter 4)


def landscape_task(prior: float) -> LDATask:
    """Two classes on the line, two standard deviations apart, their midpoint off the origin."""
    return LDATask([1.5], [-0.5], [[1.0]], prior)


def landscape_state(prior: float = 0.3, ball: ArrayLike = (3.4, 2.9)) -> State:
    """State of the figure `landscape`: prior of class 1 and the ball's (r, s)."""
    task = landscape_task(prior)
    means = [float(task.mean_pos[0]), float(task.mean_neg[0])]
    # seven standard deviations around both means; a step of 1/8 for slopes |r| to 5.5 and |s| to 4
    nodes = np.arange(min(means) - 7, max(means) + 7.01, 0.125)
    return {
        "prior": prior,
        "means": means,
        "variance": float(task.covariance[0, 0]),
        "ball": np.asarray(ball, float).tolist(),
        "trails": [],
        "rule": _rule(nodes, np.full_like(nodes, 0.125)),
    }


# One head against Bayes (chapter 8)


def line_task(delta: float, variance: float, ratio: float) -> DenoisingTask:
    """Means +-delta on the second axis, gamma^2 + xi^2 = variance and gamma^2 / xi^2 = ratio."""
    within = variance * ratio / (1 + ratio)
    means = [[0.0, delta], [0.0, -delta]]
    return DenoisingTask(
        GaussianMixture([0.5, 0.5], means, within * np.eye(2)), variance / (1 + ratio)
    )


def line_head(task: DenoisingTask, sharpness: float, scale: float) -> Head:
    """One head that keeps the line of the means and the direction across it apart.

    Across the line it is the Bayes denoiser; along it the gate has `sharpness` times the inverse
    temperature of the posterior, and the output the factor `scale`.
    """
    variance = float(task.noisy.covariances[0, 0, 0])
    shrink = 1 - task.noise_variance / variance
    return Head(np.diag([1.0, sharpness]) / variance, np.diag([shrink, scale]))


def two_heads_state(ratio: float = 0.2, at: float = 3.0) -> State:
    """State of the figure `two_heads`: the ratio of variances and the query's place on the line."""
    delta, variance, step = 2.0, 1.0, 0.05
    nodes = step * np.arange(177)
    density = sum(np.exp(-((nodes - m) ** 2) / (2 * variance)) for m in (delta, -delta))
    weights = step * density / np.sqrt(2 * np.pi * variance)
    weights[0] /= 2
    return {
        "delta": delta,
        "variance": variance,
        "ratio": ratio,
        "at": at,
        "best": True,
        "sharpness": 1.0,
        "scale": 0.5,
        "heads": "one",
        "rule": _rule(nodes, weights),
    }


# Iterating (chapter 9)


def iterate_task(delta: float, width: float, noise: float) -> DenoisingTask:
    """Two clusters of equal weight at +-delta on the second axis."""
    means = [[0.0, delta], [0.0, -delta]]
    return DenoisingTask(GaussianMixture([0.5, 0.5], means, width**2 * np.eye(2)), noise**2)


def iterate_state(noise: float = 1.5, start: ArrayLike = (-2.4, 0.6)) -> State:
    """State of the figure `iterate`: the noise and the start of the iteration."""
    return {"delta": 2.0, "width": 0.5, "noise": noise, "start": np.asarray(start, float).tolist()}
