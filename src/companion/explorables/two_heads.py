"""One head against Bayes along the line between two means, and the two heads that are Bayes."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import minimize_scalar

from companion.live import LiveFigure
from companion.style import COLORS
from mixattn import DenoisingTask, GaussianMixture, Head

DELTA, VARIANCE = 2.0, 1.0
_STEP = 0.04


def two_heads(power: float = -2.2, at: float = 1.0, name: str = "heads") -> LiveFigure:
    """Return the live figure of chapter 8.

    The means are +-2 on the second axis of the plane, and gamma^2 + xi^2 = 1. The one head keeps the
    line of the means and the direction across it apart, U = diag(1, sharpness) and
    V = diag(1 - a, scale), so that only the line adds to its excess risk: an integral that the
    browser takes on the nodes sent from here, a trapezoid rule whose error is below 1e-9.

    Parameters
    ----------
    power : float
        gamma^2 / xi^2 = 2^power first, from -3 to 2.
    at : float
        Where the query stands first, from -4.5 to 4.5.
    name : str
        The figure's name in the text.

    Raises
    ------
    ValueError
        If a number is out of its range.
    """
    if not -3 <= power <= 2:
        raise ValueError(f"power: expected a number from -3 to 2, got {power!r}")
    if not -4.5 <= at <= 4.5:
        raise ValueError(f"at: expected a number from -4.5 to 4.5, got {at!r}")
    # of even functions against the law of a noisy token on the line, over t >= 0
    nodes = _STEP * np.arange(221)
    density = sum(np.exp(-((nodes - m) ** 2) / (2 * VARIANCE)) for m in (DELTA, -DELTA))
    weights = _STEP * density / np.sqrt(2 * np.pi * VARIANCE)
    state = {
        "delta": DELTA,
        "variance": VARIANCE,
        "power": float(power),
        "at": float(at),
        "heads": "one",
        "best": True,
        "sharpness": 1.0,
        "scale": 0.5,
        "rule": {"nodes": nodes.round(9).tolist(), "weights": weights.round(12).tolist()},
    }
    return LiveFigure(
        "two_heads",
        state,
        name=name,
        title="One head against the Bayes denoiser, along the line between the means",
        alt="The output of the Bayes denoiser along the line between two means is a line with a "
        "smooth step in the middle. The best single head has a smaller step and rises too steeply "
        "on both sides; the area between the two curves is shaded. Below, its excess risk against the "
        "ratio of variances: it touches zero at 1 and nowhere else.",
        still=_still(power),
    )


def task_of(power: float) -> DenoisingTask:
    """Two clusters with means +-DELTA on the second axis and gamma^2 / xi^2 = 2^power."""
    noise = VARIANCE / (1 + 2.0**power)
    means = [[0.0, DELTA], [0.0, -DELTA]]
    return DenoisingTask(GaussianMixture([0.5, 0.5], means, (VARIANCE - noise) * np.eye(2)), noise)


def head_of(task: DenoisingTask, sharpness: float, scale: float) -> Head:
    """Return the figure's one head; across the line it is the Bayes denoiser."""
    shrink = 1 - task.noise_variance / VARIANCE
    return Head(np.diag([1.0, sharpness]) / VARIANCE, np.diag([shrink, scale]))


def _best(task: DenoisingTask, z: np.ndarray) -> tuple[np.ndarray, float]:
    """Return the best head's outputs at tokens z on the line, and its excess risk, roughly."""
    bayes = task.bayes_denoiser(z)[:, 1]
    density = np.exp(task.noisy.log_density(z))
    density /= density.sum()

    def at(sharpness: float) -> tuple[np.ndarray, float]:
        one = head_of(task, sharpness, 1.0)(task.noisy, z)[:, 1]
        output = one * (density @ (one * bayes)) / (density @ one**2)
        return output, float(density @ (output - bayes) ** 2)

    found = minimize_scalar(lambda q: at(np.exp(q))[1], bounds=(-1.2, 1.8), method="bounded")
    return at(np.exp(found.x))


def _still(power: float) -> Figure:
    t = np.linspace(-4.5, 4.5, 181)
    z = np.stack([0 * t, t], axis=1)
    bayes = task_of(power).bayes_denoiser(z)[:, 1]
    head, excess = _best(task_of(power), z)
    fig, (ax, cost) = plt.subplots(2, 1, figsize=(5.9, 5.5), height_ratios=(2.6, 1))
    ax.fill_between(t, bayes, head, color=COLORS["vermillion"], alpha=0.25, lw=0)
    ax.plot(t, bayes, "-", color="black", lw=3)
    ax.plot(t, head, "--", color=COLORS["blue"])
    ax.annotate("Bayes", (2.6, bayes[142] - 0.5))
    ax.annotate("one head", (-3.4, -3.0), color=COLORS["blue"])
    ax.set(xlabel="$t$, place of the query on the line", ylabel="output along the line")
    powers = np.linspace(-3, 2, 41)
    costs = [max(_best(task_of(p), z)[1], 1e-5) for p in powers]
    cost.semilogy(2**powers, costs, "-", color=COLORS["blue"])
    cost.semilogy(2**power, excess, "o", color=COLORS["blue"], ms=8)
    cost.set_xscale("log", base=2)
    cost.set(xlabel=r"$\gamma^2/\xi^2$", ylabel="excess risk", ylim=(1e-5, 1))
    for panel in (ax, cost):
        panel.grid(visible=False)
    return fig
