"""The selection map: two components, a query, and what one attention head makes of them."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from companion.live import LiveFigure
from companion.style import COLORS, COMPONENT_COLORS, COMPONENT_MARKERS, DIVERGING
from mixattn import GaussianMixture


def selection_map(mixture: GaussianMixture, query: Any, name: str = "map") -> LiveFigure:
    """Return the live figure of chapter 2 for a mixture of two components in the plane.

    Parameters
    ----------
    mixture : GaussianMixture
        Two components in dimension 2.
    query : array_like, shape (2,)
        Where the query stands first.
    name : str
        The figure's name in the text.

    Raises
    ------
    ValueError
        If the mixture has not two components in the plane or the query is not a point of it.
    """
    point = np.asarray(query, float)
    if (mixture.n_components, mixture.dim) != (2, 2):
        raise ValueError(
            "mixture: expected 2 components in dimension 2, "
            f"got {mixture.n_components} in dimension {mixture.dim}"
        )
    if point.shape != (2,):
        raise ValueError(f"query: expected shape (2,), got {point.shape}")
    state = {
        "attention": "softmax",
        "weights": mixture.weights.tolist(),
        "means": mixture.means.tolist(),
        "covariances": mixture.covariances.tolist(),
        "query": point.tolist(),
    }
    return LiveFigure(
        "selection_map",
        state,
        name=name,
        title="Two components, a query and the output of one attention head",
        alt="The plane of queries, divided by a border into the region where component 1 is selected "
        "and the one where component 2 is. A query, the answers of the two experts to it, and an "
        "arrow to the output, which lies on the segment between the experts.",
        still=_still(mixture, point),
    )


def _still(mixture: GaussianMixture, query: np.ndarray) -> Figure:
    gates = mixture.gates(query)
    experts = mixture.means + mixture.covariances @ query
    output = gates @ experts
    x, y = np.linspace(-4.4, 4.4, 121), np.linspace(-3.3, 3.3, 91)
    shade = mixture.gates(np.stack(np.meshgrid(x, y), axis=-1))[..., 0]
    fig, ax = plt.subplots(figsize=(6.4, 4.8))
    ax.contourf(x, y, shade, levels=np.linspace(0, 1, 9), cmap=DIVERGING, alpha=0.5)
    ax.contour(x, y, shade, levels=[0.5], colors="k")
    ax.plot(*experts.T, "-", color=COLORS["grey"], lw=1)
    for k, (mean, expert) in enumerate(zip(mixture.means, experts, strict=True)):
        color, marker = COMPONENT_COLORS[k], COMPONENT_MARKERS[k]
        ax.plot(*np.transpose([mean, expert]), ":", color=color)
        ax.plot(*mean, marker, color=color, ms=9)
        ax.plot(*expert, marker, mfc="white", mec=color, mew=2, ms=8)
        ax.annotate(f"$m_{k + 1}$", mean, (8, -14), textcoords="offset points", color=color)
        ax.annotate(f"expert {k + 1}", expert, (8, 6), textcoords="offset points", color=color)
    ax.annotate(
        "", output, query, arrowprops={"arrowstyle": "-|>", "lw": 2.5, "color": COLORS["green"]}
    )
    ax.plot(*query, "D", color="black", ms=8)
    ax.annotate("z", query, (8, 6), textcoords="offset points")
    ax.set(aspect="equal", xticks=[], yticks=[])
    ax.grid(visible=False)
    return fig
