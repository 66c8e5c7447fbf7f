"""The ball on the landscape: the excess risk over (r, s), both families, and the flow from a start."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.special import expit

from companion.live import LiveFigure
from companion.style import COLORS
from mixattn import LDATask

# How far the controls reach, and with it the accuracy of the rule below.
MOST_R, MOST_S = 5.5, 4.6
_STEP = 0.1

Floats = NDArray[np.float64]


def landscape(prior: float = 0.3, ball: Any = (3.4, 2.9), name: str = "landscape") -> LiveFigure:
    """Return the live figure of chapter 4: two classes on the line, two standard deviations apart.

    The landscape is the excess risk over the effective parameters r and s, with w and b at their
    best for each (r, s); the browser integrates it on the nodes sent from here, a trapezoid rule
    whose error is below 1e-9 over the window.

    Parameters
    ----------
    prior : float
        Probability of class 1 first, from 0.1 to 0.9.
    ball : array_like, shape (2,)
        Where the ball stands first: r and s, at most 5.5 and 4.6 in size.
    name : str
        The figure's name in the text.

    Raises
    ------
    ValueError
        If the prior or the ball is out of its range.
    """
    start = np.asarray(ball, float)
    if not 0.1 <= prior <= 0.9:
        raise ValueError(f"prior: expected a number from 0.1 to 0.9, got {prior!r}")
    if start.shape != (2,) or not (np.abs(start) <= [MOST_R, MOST_S]).all():
        raise ValueError(f"ball: expected (r, s) up to ({MOST_R}, {MOST_S}), got {ball!r}")
    task = task_of(prior)
    means = [float(task.mean_pos[0]), float(task.mean_neg[0])]
    # seven standard deviations around both means
    nodes = np.arange(min(means) - 7, max(means) + 7 + _STEP / 2, _STEP).round(9)
    state = {
        "prior": float(prior),
        "means": means,
        "variance": float(task.covariance[0, 0]),
        "ball": start.tolist(),
        "trails": [],
        "rolled": 0,
        "rule": {"nodes": nodes.tolist(), "weights": [_STEP] * len(nodes)},
    }
    return LiveFigure(
        "landscape",
        state,
        name=name,
        title="A ball on the landscape of the excess risk",
        alt="Contours of the excess risk over r, across, and s, upwards. It is zero on a cross: on "
        "the vertical line r = 0, where the sigmoid is off, and on the horizontal line s = 0, where "
        "it is frozen. From everywhere else there is a way down to the cross; the path of a ball is "
        "drawn.",
        still=_still(task, start),
    )


def task_of(prior: float) -> LDATask:
    """Classes of variance 1 at 1.5 and -0.5: the midpoint is not the origin, so both families exist."""
    return LDATask([1.5], [-0.5], [[1.0]], prior)


def _reduced(task: LDATask, r: Floats, s: Floats) -> tuple[Floats, Floats, Floats]:
    """Excess risk at (r, s), arrays of one shape, with the best w and b, and its gradient in (r, s)."""
    x = np.linspace(-8.0, 9.0, 171)
    step = x[1] - x[0]
    density = [
        np.exp(-((x - m) ** 2) / 2) / np.sqrt(2 * np.pi) for m in (*task.mean_pos, *task.mean_neg)
    ]
    mass = step * (task.prior_pos * density[0] + (1 - task.prior_pos) * density[1])
    w, b = task.bayes_score
    bayes = w[0] * x + b
    eta = expit(bayes)
    r, s = r[..., None], s[..., None]
    gate = expit(task.prior_logit + s * x)
    features = np.stack([x, np.ones_like(x)])
    line = np.broadcast_to(np.array([w[0], b]), (*np.shape(r)[:-1], 2))
    f, slope = bayes, mass * eta * (1 - eta) * r * gate  # first the best line for small r
    for _ in range(12):
        weight = mass * expit(f) * expit(-f)
        bend = np.einsum("...n,in,jn->...ij", weight, features, features)
        line = line - np.linalg.solve(bend, (slope @ features.T)[..., None])[..., 0]
        f = line @ features + r * gate
        slope = mass * (expit(f) - eta)
    excess = (np.logaddexp(0, f) - np.logaddexp(0, bayes) - eta * (f - bayes)) @ mass
    return (
        np.maximum(excess, 0),
        np.sum(slope * gate, axis=-1),
        np.sum(slope * r * gate * (1 - gate) * x, axis=-1),
    )


def _still(task: LDATask, ball: Floats) -> Figure:
    r, s = np.meshgrid(np.linspace(-5, 5, 61), np.linspace(-3.75, 3.75, 47))
    excess, _, _ = _reduced(task, r, s)
    root = np.sign(r) * np.sqrt(excess)  # smooth across r = 0, unlike the risk's logarithm
    path = [ball]
    for _ in range(400):  # equal lengths along the gradient flow
        _, *gradient = _reduced(task, *path[-1])
        size = np.linalg.norm(gradient)
        if size < 1e-9:
            break
        path.append(path[-1] - 0.03 * np.array(gradient) / size)
        if min(abs(path[-1])) < 0.04:
            break
    levels = 10.0 ** np.arange(-5, -1)
    fig, ax = plt.subplots(figsize=(6.2, 4.1))
    both = np.concatenate([-np.sqrt(levels[::-1]), np.sqrt(levels)])
    ax.contour(r, s, root, levels=both, colors=COLORS["grey"], linestyles="-", linewidths=0.8)
    ax.axvline(0, color=COLORS["blue"], lw=3)
    ax.axhline(0, color=COLORS["vermillion"], lw=3, ls="--")
    ax.plot(*np.transpose(path), "-", color=COLORS["vermillion"], lw=2.5)
    ax.plot(*ball, "o", color="black", ms=9)
    ax.annotate("sigmoid off: $r = 0$", (0.15, -3.4), color=COLORS["blue"])
    ax.annotate("frozen: $s = 0$", (-4.8, 0.2), color=COLORS["vermillion"])
    ax.set(xlabel="$r$", ylabel="$s$", aspect="equal")
    ax.grid(visible=False)
    return fig
