"""The paper's title in one gesture: the answers to a line of queries, for one cluster or for two."""

from __future__ import annotations

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from companion.live import LiveFigure
from companion.style import COLORS, COMPONENT_COLORS
from mixattn import GaussianMixture, population_attention

HALF, STEPS = 4.0, 80
MEANS = np.array([[-1.6, -0.3], [1.7, -0.9]])
VARIANCE = 0.4


def mixture_of(share: float) -> GaussianMixture:
    """Return the prompt law in which the second cluster has the weight `share`."""
    return GaussianMixture([1 - share, share], MEANS, VARIANCE * np.eye(2))


def answers(mixture: GaussianMixture, height: float) -> np.ndarray:
    """Return the head's answers (81, 2) to the queries on a horizontal line, for U = V = I."""
    x = np.linspace(-HALF, HALF, STEPS + 1)
    line = np.stack([x, np.full_like(x, height)], axis=-1)
    return population_attention(mixture, line, np.eye(2), np.eye(2))


def title(clusters: int = 1, name: str = "title") -> LiveFigure:
    """Return the figure that opens the book.

    Parameters
    ----------
    clusters : {1, 2}
        How many the prompt has at first.
    name : str
        The figure's name in the text.

    Raises
    ------
    ValueError
        If `clusters` is not 1 or 2.
    """
    if clusters not in (1, 2):
        raise ValueError(f"clusters: expected 1 or 2, got {clusters!r}")
    query = np.array([0.7, 1.3])
    share = 0.5 * (clusters - 1)
    state = {
        "share": share,
        "means": MEANS.tolist(),
        "covariances": [(VARIANCE * np.eye(2)).tolist()] * 2,
        "query": query.tolist(),
    }
    seen = "one cluster of tokens" if clusters == 1 else "two clusters of tokens"
    curve = "another straight line" if clusters == 1 else "a curve that bends between the clusters"
    return LiveFigure(
        "title",
        state,
        name=name,
        title="Answers to a line of queries",
        alt=f"The plane with {seen} and a dashed line of queries. The head's answers to the queries "
        f"on that line form {curve}; a star marks the answer to one query z.",
        still=_still(share, query),
    )


def _still(share: float, query: np.ndarray) -> Figure:
    mixture = mixture_of(share)
    fig, ax = plt.subplots(figsize=(6.4, 3.4))
    angle = np.linspace(0, 2 * np.pi, 90)
    circle = np.sqrt(VARIANCE) * np.stack([np.cos(angle), np.sin(angle)], axis=-1)
    for mean, weight, color in zip(MEANS, mixture.weights, COMPONENT_COLORS, strict=False):
        if weight:
            for radius in (1, 2):
                ax.plot(*(mean + radius * circle).T, color=color, lw=1.5, ls="-")
            ax.annotate("cluster", mean - [0, 1.35], color=color, ha="center")
    ax.plot([-HALF, HALF], [query[1]] * 2, "--", color=COLORS["grey"], lw=1.5)
    curve = answers(mixture, query[1])
    ax.plot(*curve.T, "-", color=COLORS["green"], lw=3)
    output = population_attention(mixture, query, np.eye(2), np.eye(2))
    ax.plot(*output, "*", color=COLORS["green"], ms=15)
    ax.annotate("answer", output, (10, -14), textcoords="offset points", color=COLORS["green"])
    ax.plot(*query, "D", color="black", ms=8)
    ax.annotate("z", query, (8, 6), textcoords="offset points")
    ax.set(aspect="equal", xlim=(-4.2, 4.2), ylim=(-2.4, 2), xticks=[], yticks=[])
    ax.grid(visible=False)
    return fig
