"""The token cloud: a finite prompt, its softmax weights, and the limit of long prompts."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from companion.explorables.tokens import tokens
from companion.live import LiveFigure
from companion.style import COLORS
from mixattn import GaussianMixture, population_attention, softmax_attention

MOST_TOKENS = 1000


def token_cloud(
    mixture: GaussianMixture, query: Any, length: int = 300, seed: int = 1, name: str = "cloud"
) -> LiveFigure:
    """Return the live figure of chapter 1 for prompts drawn from a mixture in the plane.

    Parameters
    ----------
    mixture : GaussianMixture
        Law of the tokens, in dimension 2.
    query : array_like, shape (2,)
        Where the query stands first.
    length : int
        Tokens in the prompt, from 1 to 1000.
    seed : int
        Names the prompt, from 1 to 1,000,000; a longer prompt begins with a shorter one.
    name : str
        The figure's name in the text.

    Raises
    ------
    ValueError
        If the mixture or the query is not in the plane, or a number is out of its range.
    """
    point = np.asarray(query, float)
    if mixture.dim != 2:
        raise ValueError(f"mixture: expected dimension 2, got {mixture.dim}")
    if point.shape != (2,):
        raise ValueError(f"query: expected shape (2,), got {point.shape}")
    if length not in range(1, MOST_TOKENS + 1):
        raise ValueError(f"length: expected an integer from 1 to {MOST_TOKENS}, got {length!r}")
    if seed not in range(1, 10**6 + 1):
        raise ValueError(f"seed: expected an integer from 1 to 1000000, got {seed!r}")
    state = {
        "weights": mixture.weights.tolist(),
        "means": mixture.means.tolist(),
        "covariances": mixture.covariances.tolist(),
        "query": point.tolist(),
        "length": int(length),
        "seed": int(seed),
    }
    return LiveFigure(
        "token_cloud",
        state,
        name=name,
        title="A cloud of tokens, a query and the output of one attention head",
        alt=f"A cloud of {length} tokens as discs whose area is their softmax weight: those that lie "
        "in the direction of the query are large, the others are dots. A filled star, the output, "
        "lies among the large discs beside a hollow star, the limit of long prompts.",
        still=_still(mixture, point, tokens(mixture, length, seed)),
    )


def _still(mixture: GaussianMixture, query: np.ndarray, prompt: np.ndarray) -> Figure:
    scores = prompt @ query
    weights = np.exp(scores - scores.max())
    weights /= weights.sum()
    eye = np.eye(2)
    output = softmax_attention(prompt, query, eye, eye)
    limit = population_attention(mixture, query, eye, eye)
    fig, ax = plt.subplots(figsize=(6.4, 4.8))
    ax.scatter(*prompt.T, s=3500 * weights, color=COLORS["sky"], alpha=0.5, ec=COLORS["blue"])
    ax.plot(*prompt.T, ".", color=COLORS["blue"], ms=2)
    ax.plot(*np.transpose([np.zeros(2), query]), "--", color="black", lw=1)
    for point, fill, text in ((limit, "white", "limit"), (output, COLORS["vermillion"], "output")):
        ax.plot(*point, "*", mfc=fill, mec=COLORS["vermillion"], mew=1.5, ms=16)
        ax.annotate(text, point, (10, -14), textcoords="offset points", color=COLORS["vermillion"])
    ax.plot(*query, "D", color="black", ms=8)
    ax.annotate("z", query, (8, 6), textcoords="offset points")
    ax.set(aspect="equal", xticks=[], yticks=[], xlim=(-4, 4), ylim=(-3, 3))
    ax.grid(visible=False)
    return fig
