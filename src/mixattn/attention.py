"""Softmax and linear attention, over a finite prompt and over the law that it is drawn from.

A head is a pair ``(U, V)``; the alignment of a token x with a query z is ``x^T U z``. Section 2 of
the paper: on the empirical measure of a prompt the operator is softmax attention
(`softmax_attention`); on a Gaussian mixture it is a gate over affine experts
(`population_attention`, Proposition 2.1).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from mixattn._validation import FloatArray, as_array, freeze
from mixattn.mixture import GaussianMixture


def softmax_attention(
    prompt: ArrayLike, queries: ArrayLike, U: ArrayLike, V: ArrayLike
) -> FloatArray:
    r"""Softmax dot-product attention over a finite prompt (equation (1) on its empirical measure).

    .. math::
        T[\hat\mu](z) = V \sum_i \mathrm{softmax}_i(x_i^\top U z)\, x_i .

    The prompt is read in blocks with a running maximum and sum, so memory does not grow with its
    length.

    Parameters
    ----------
    prompt : array_like, shape (L, d)
        Tokens, one a row, at least one.
    queries : array_like, shape (..., d)
    U : array_like, shape (d, d)
    V : array_like, shape (d_out, d)

    Returns
    -------
    ndarray, shape (..., d_out)

    Raises
    ------
    ValueError
        If a shape does not fit or an entry is not finite.

    Examples
    --------
    Two tokens and a query that aligns with the first twice as much as with the second, in odds:

    >>> import numpy as np
    >>> from mixattn import softmax_attention
    >>> softmax_attention([[1.0, 0.0], [0.0, 1.0]], [np.log(2.0), 0.0], np.eye(2), 3 * np.eye(2))
    array([2., 1.])
    """
    tokens = as_array("prompt", prompt, ("L", "d"))
    queries, U, V = _as_head_input(queries, U, V, tokens.shape[1])
    tilts = queries @ U.T
    return _softmax_mean(tokens, tilts.reshape(-1, tokens.shape[1])).reshape(tilts.shape) @ V.T


def linear_attention(
    prompt: ArrayLike, queries: ArrayLike, U: ArrayLike, V: ArrayLike
) -> FloatArray:
    r"""Linear attention over a finite prompt: :math:`V \frac1L \sum_i x_i x_i^\top U z`.

    Arguments, result and errors are those of `softmax_attention`.
    """
    tokens = as_array("prompt", prompt, ("L", "d"))
    queries, U, V = _as_head_input(queries, U, V, tokens.shape[1])
    second_moment = tokens.T @ tokens / len(tokens)
    return queries @ (V @ second_moment @ U).T


def population_attention(
    mixture: GaussianMixture, queries: ArrayLike, U: ArrayLike, V: ArrayLike
) -> FloatArray:
    r"""Softmax attention on an infinite prompt drawn from a Gaussian mixture (Proposition 2.1).

    .. math::
        T[\mu](z) = V \sum_k a_k(z) (m_k + \Gamma_k U z), \qquad
        a_k(z) = \mathrm{softmax}_k(\log \pi_k + m_k^\top U z + \tfrac12 (Uz)^\top \Gamma_k U z).

    Parameters
    ----------
    mixture : GaussianMixture
        Law of the prompt's tokens, in dimension d.
    queries : array_like, shape (..., d)
    U : array_like, shape (d, d)
    V : array_like, shape (d_out, d)

    Returns
    -------
    ndarray, shape (..., d_out)

    Raises
    ------
    ValueError
        If a shape does not fit or an entry is not finite.

    Examples
    --------
    On a single Gaussian the softmax leaves no trace: the map is affine.

    >>> import numpy as np
    >>> from mixattn import GaussianMixture, population_attention
    >>> gaussian = GaussianMixture([1.0], [[1.0, -1.0]], np.diag([2.0, 0.5]))
    >>> population_attention(gaussian, [[0.0, 0.0], [1.0, 1.0]], np.eye(2), np.eye(2))
    array([[ 1. , -1. ],
           [ 3. , -0.5]])
    """
    mixture = _as_mixture(mixture)
    queries, U, V = _as_head_input(queries, U, V, mixture.dim)
    return mixture.tilted_mean(queries @ U.T) @ V.T


def population_linear_attention(
    mixture: GaussianMixture, queries: ArrayLike, U: ArrayLike, V: ArrayLike
) -> FloatArray:
    r"""Linear attention on an infinite prompt: :math:`V\, E[X X^\top]\, U z`.

    It mixes the components' own maps in the fixed proportions :math:`\pi_k`, whatever the query.
    Arguments, result and errors are those of `population_attention`.
    """
    mixture = _as_mixture(mixture)
    queries, U, V = _as_head_input(queries, U, V, mixture.dim)
    return queries @ (V @ mixture.second_moment @ U).T


@dataclass(frozen=True, eq=False, init=False)
class Head:
    """One softmax attention head.

    Parameters
    ----------
    U : array_like, shape (d, d)
        Interaction matrix: the alignment of token x with query z is ``x^T U z``.
    V : array_like, shape (d_out, d)
        Value matrix.
    """

    U: FloatArray
    V: FloatArray

    def __init__(self, U: ArrayLike, V: ArrayLike) -> None:
        interaction = as_array("U", U, ("d", "d"))
        dim = len(interaction)
        if interaction.shape != (dim, dim):
            raise ValueError(f"U: expected a square matrix, got shape {interaction.shape}")
        object.__setattr__(self, "U", freeze(interaction))
        object.__setattr__(self, "V", freeze(as_array("V", V, ("d_out", dim))))

    def __call__(self, source: GaussianMixture | ArrayLike, queries: ArrayLike) -> FloatArray:
        """Output at `queries` (..., d), shape (..., d_out).

        Parameters
        ----------
        source : GaussianMixture or array_like, shape (L, d)
            The law of an infinite prompt, or the tokens of a finite one.
        queries : array_like, shape (..., d)
        """
        if isinstance(source, GaussianMixture):
            return population_attention(source, queries, self.U, self.V)
        return softmax_attention(source, queries, self.U, self.V)


@dataclass(frozen=True, eq=False, init=False)
class MultiHead:
    """Sum of softmax attention heads of the same input and output dimensions.

    Parameters
    ----------
    heads : sequence of Head
        At least one.
    """

    heads: tuple[Head, ...]

    def __init__(self, heads: Sequence[Head]) -> None:
        object.__setattr__(self, "heads", _as_heads(heads))

    def __call__(self, source: GaussianMixture | ArrayLike, queries: ArrayLike) -> FloatArray:
        """Sum of the heads' outputs at `queries` (..., d), shape (..., d_out)."""
        total: FloatArray = np.sum([head(source, queries) for head in self.heads], axis=0)
        return total


@dataclass(frozen=True, eq=False, init=False)
class ResidualMultiHead:
    r"""Attention heads with residual connections and a linear output (section 4.4).

    The output is :math:`W_{out}` applied to the heads' :math:`z + T_h(z)` stacked in order.

    Parameters
    ----------
    heads : sequence of Head
        H heads whose values have the queries' dimension d.
    W_out : array_like, shape (d_out, H * d)
    """

    heads: tuple[Head, ...]
    W_out: FloatArray

    def __init__(self, heads: Sequence[Head], W_out: ArrayLike) -> None:
        checked = _as_heads(heads)
        dim = len(checked[0].U)
        if len(checked[0].V) != dim:
            raise ValueError(
                f"heads: expected V of shape ({dim}, {dim}) (the residual adds the query), "
                f"got {checked[0].V.shape}"
            )
        object.__setattr__(self, "heads", checked)
        object.__setattr__(
            self, "W_out", freeze(as_array("W_out", W_out, ("d_out", len(checked) * dim)))
        )

    def __call__(self, source: GaussianMixture | ArrayLike, queries: ArrayLike) -> FloatArray:
        """Output at `queries` (..., d), shape (..., d_out)."""
        z = as_array("queries", queries, (None, len(self.heads[0].U)))
        stacked = np.concatenate([z + head(source, z) for head in self.heads], axis=-1)
        return stacked @ self.W_out.T


# A tile of logits: queries by tokens. One megabyte stays in a core's own cache.
_QUERY_TILE = 128
_TOKEN_TILE = 1024


def _softmax_mean(tokens: FloatArray, tilts: FloatArray) -> FloatArray:
    """Mean of the tokens (L, d) under softmax(tokens @ tilt), one row a tilt (n, d)."""
    mean = np.empty_like(tilts)
    for start in range(0, len(tilts), _QUERY_TILE):
        rows = slice(start, start + _QUERY_TILE)
        mean[rows] = _streamed_softmax_mean(tokens, tilts[rows])
    return mean


def _streamed_softmax_mean(tokens: FloatArray, tilts: FloatArray) -> FloatArray:
    peak = np.full((len(tilts), 1), -np.inf)
    total = np.zeros((len(tilts), 1))
    weighted = np.zeros_like(tilts)
    for start in range(0, len(tokens), _TOKEN_TILE):
        block = tokens[start : start + _TOKEN_TILE]
        logits = tilts @ block.T
        new_peak = np.maximum(peak, logits.max(axis=1, keepdims=True))
        rescale = np.exp(peak - new_peak)
        np.exp(logits - new_peak, out=logits)
        total = rescale * total + logits.sum(axis=1, keepdims=True)
        weighted = rescale * weighted + logits @ block
        peak = new_peak
    return weighted / total


def _as_head_input(
    queries: ArrayLike, U: ArrayLike, V: ArrayLike, dim: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    return (
        as_array("queries", queries, (None, dim)),
        as_array("U", U, (dim, dim)),
        as_array("V", V, ("d_out", dim)),
    )


def _as_mixture(mixture: GaussianMixture) -> GaussianMixture:
    if not isinstance(mixture, GaussianMixture):
        raise ValueError(f"mixture: expected a GaussianMixture, got {type(mixture).__name__}")
    return mixture


def _as_heads(heads: Sequence[Head]) -> tuple[Head, ...]:
    if isinstance(heads, Head) or not all(isinstance(head, Head) for head in heads):
        raise ValueError("heads: expected a sequence of Head")
    checked = tuple(heads)
    if not checked:
        raise ValueError("heads: expected at least one Head, got none")
    shapes = {(head.U.shape, head.V.shape) for head in checked}
    if len(shapes) > 1:
        raise ValueError(f"heads: expected one shape of (U, V) in all heads, got {sorted(shapes)}")
    return checked
