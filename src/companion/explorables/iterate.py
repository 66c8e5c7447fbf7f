"""Iterating the Bayes denoiser: the plane, the cobweb and the bifurcation diagram, side by side."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from companion.live import LiveFigure
from companion.style import COLORS, COMPONENT_COLORS, COMPONENT_MARKERS
from mixattn import DenoisingTask, GaussianMixture, clustering_fixed_point, iterate_denoiser

DELTA, WIDTH = 2.0, 0.5
LEAST_NOISE, MOST_NOISE = 0.3, 3.0


def iterate(noise: float = 1.4, start: Any = (-2.2, 0.5), name: str = "iterate") -> LiveFigure:
    """Return the live figure of chapter 9: two clusters of width 0.5 at (0, 2) and (0, -2).

    Parameters
    ----------
    noise : float
        Standard deviation xi first, from 0.3 to 3.
    start : array_like, shape (2,)
        Where the iteration begins first, in the square of half-side 3.
    name : str
        The figure's name in the text.

    Raises
    ------
    ValueError
        If the noise or the start is out of its range.
    """
    point = np.asarray(start, float)
    if not LEAST_NOISE <= noise <= MOST_NOISE:
        raise ValueError(f"noise: expected {LEAST_NOISE} to {MOST_NOISE}, got {noise!r}")
    if point.shape != (2,) or not (np.abs(point) <= 3).all():
        raise ValueError(f"start: expected two numbers from -3 to 3, got {start!r}")
    state = {
        "delta": DELTA,
        "width": WIDTH,
        "noise": float(noise),
        "start": point.tolist(),
        "shown": 5,
    }
    return LiveFigure(
        "iterate",
        state,
        name=name,
        title="Iterating the Bayes denoiser of two clusters",
        alt="Three pictures with one vertical axis, the position u between the two means. Left: the "
        "iterates of a point in the plane run to a limit near one mean. Middle: the same steps as a "
        "cobweb between a curve and the diagonal. Right: the limits against the noise, a fork that "
        "closes at the threshold, beyond which everything ends in the middle.",
        still=_still(noise, point),
    )


def task_of(noise: float) -> DenoisingTask:
    """Two clusters of equal weight and width WIDTH at +-DELTA on the second axis."""
    means = [[0.0, DELTA], [0.0, -DELTA]]
    return DenoisingTask(GaussianMixture([0.5, 0.5], means, WIDTH**2 * np.eye(2)), noise**2)


def _still(noise: float, start: np.ndarray) -> Figure:
    path = iterate_denoiser(task_of(noise), start, 24)
    u = path[:, 1] / DELTA
    axis = np.linspace(-1.5, 1.5, 121)
    line = np.stack([0 * axis, axis * DELTA], axis=1)
    fig, (plane, web, fork) = plt.subplots(1, 3, figsize=(7.2, 3.9), sharey=True)
    plane.plot(path[:, 0], u, ".-", color="black", lw=1.2)
    for k, end in enumerate((1, -1)):
        plane.plot(0, end, COMPONENT_MARKERS[k], color=COMPONENT_COLORS[k], ms=9)
    plane.set(xlim=(-3, 3), ylim=(-1.5, 1.5), xlabel="across", ylabel="$u$")
    web.plot(axis, iterate_denoiser(task_of(noise), line, 1)[1, :, 1] / DELTA, "-")
    web.plot(axis, axis, "-", color=COLORS["grey"], lw=1)
    web.plot(np.repeat(u, 2)[:-1], np.repeat(u, 2)[1:], "-", color="black", lw=1.2)
    web.set(xlim=(-1.5, 1.5), xlabel="$u_n$", ylabel="$u_{n+1}$")
    xi = np.linspace(LEAST_NOISE, MOST_NOISE, 200)
    ends = np.array([clustering_fixed_point(DELTA / np.hypot(WIDTH, x)) for x in xi])
    fork.plot(xi, ends, "-", xi, -ends, "-", color=COLORS["blue"])
    fork.plot([LEAST_NOISE, np.sqrt(DELTA**2 - WIDTH**2)], [0, 0], ":", color=COLORS["grey"])
    fork.axvline(noise, color=COLORS["grey"], lw=1)
    fork.set(xlabel=r"noise $\xi$", title="limits")
    return fig
