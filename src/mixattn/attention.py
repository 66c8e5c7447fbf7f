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

from mixattn._checks import FloatArray, Frozen, as_array, is_finite
from mixattn._tiles import attend
from mixattn.mixture import GaussianMixture


def softmax_attention(
    prompt: ArrayLike, queries: ArrayLike, U: ArrayLike, V: ArrayLike
) -> FloatArray:
    r"""Softmax dot-product attention over a finite prompt (equation (1) on its empirical measure).

    .. math::
        T[\hat\mu](z) = V \sum_i \mathrm{softmax}_i(x_i^\top U z)\, x_i .

    The prompt is read in tiles with running sums, by as many threads as BLAS uses: memory does not
    grow with its length (a float64 prompt is not copied), and the number of threads changes no bit
    of the result.

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
        If a shape does not fit, an entry is not finite or an alignment or the output overflows.

    Examples
    --------
    Two tokens and a query that aligns with the first twice as much as with the second, in odds:

    >>> import numpy as np
    >>> from mixattn import softmax_attention
    >>> softmax_attention([[1.0, 0.0], [0.0, 1.0]], [np.log(2.0), 0.0], np.eye(2), 3 * np.eye(2))
    array([2., 1.])
    """
    tokens = as_array("prompt", prompt, ("L", "d"), copy=False)
    z, U, V = _as_head_input(queries, U, V, tokens.shape[1])
    output = attend(tokens, z.reshape(-1, tokens.shape[1]), U, V)
    return _checked(output).reshape((*z.shape[:-1], len(V)))


def linear_attention(
    prompt: ArrayLike, queries: ArrayLike, U: ArrayLike, V: ArrayLike
) -> FloatArray:
    r"""Linear attention over a finite prompt (section 2).

    .. math::
        T_{lin}[\hat\mu](z) = V\, \frac1L \sum_i x_i x_i^\top\, U z .

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
        If a shape does not fit, an entry is not finite or the output overflows.
    """
    tokens = as_array("prompt", prompt, ("L", "d"), copy=False)
    z, U, V = _as_head_input(queries, U, V, tokens.shape[1])
    with np.errstate(over="ignore", invalid="ignore"):
        second_moment = tokens.T @ tokens / len(tokens)
        return _checked(z @ (V @ second_moment @ U).T)


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
        If a shape does not fit, an entry is not finite or an exponent or the output overflows.

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
    z, U, V = _as_head_input(queries, U, V, mixture.dim)
    with np.errstate(over="ignore", invalid="ignore"):
        tilts = z @ U.T
        if not is_finite(tilts):
            raise ValueError("queries: expected a finite tilt U z, got one that overflows")
        return _checked(mixture.tilted_mean(tilts) @ V.T)


def population_linear_attention(
    mixture: GaussianMixture, queries: ArrayLike, U: ArrayLike, V: ArrayLike
) -> FloatArray:
    r"""Linear attention on an infinite prompt, :math:`V\, E[X X^\top]\, U z` (section 2).

    It mixes the components' own maps in the fixed proportions :math:`\pi_k`, whatever the query.

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
        If a shape does not fit, an entry is not finite or the output overflows.
    """
    mixture = _as_mixture(mixture)
    z, U, V = _as_head_input(queries, U, V, mixture.dim)
    with np.errstate(over="ignore", invalid="ignore"):
        return _checked(z @ (V @ mixture.second_moment @ U).T)


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Head(Frozen):
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
        self._set(U=interaction, V=as_array("V", V, ("d_out", dim)))

    @property
    def dim(self) -> int:
        """Dimension d of tokens and queries."""
        return int(self.V.shape[1])

    @property
    def dim_out(self) -> int:
        """Dimension d_out of the output."""
        return int(self.V.shape[0])

    def __repr__(self) -> str:
        """Dimensions, not entries."""
        return f"Head(dim={self.dim}, dim_out={self.dim_out})"

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
        tokens = as_array("source", source, ("L", "d"), copy=False)
        return softmax_attention(tokens, queries, self.U, self.V)


@dataclass(frozen=True, eq=False, init=False, repr=False)
class MultiHead(Frozen):
    """Sum of softmax attention heads of the same input and output dimensions.

    Parameters
    ----------
    heads : sequence of Head
        At least one.
    """

    heads: tuple[Head, ...]

    def __init__(self, heads: Sequence[Head]) -> None:
        self._set(heads=_as_heads(heads))

    def __repr__(self) -> str:
        """Dimensions, not entries."""
        return f"MultiHead({_describe(self.heads)})"

    def __call__(self, source: GaussianMixture | ArrayLike, queries: ArrayLike) -> FloatArray:
        """Sum of the heads' outputs at `queries` (..., d), shape (..., d_out)."""
        with np.errstate(over="ignore", invalid="ignore"):
            return _checked(np.asarray(sum(head(source, queries) for head in self.heads)))


@dataclass(frozen=True, eq=False, init=False, repr=False)
class ResidualMultiHead(Frozen):
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
        dim = checked[0].dim
        if checked[0].dim_out != dim:
            raise ValueError(
                f"heads: expected V of shape ({dim}, {dim}) (the residual adds the query), "
                f"got {checked[0].V.shape}"
            )
        self._set(heads=checked, W_out=as_array("W_out", W_out, ("d_out", len(checked) * dim)))

    def __repr__(self) -> str:
        """Dimensions, not entries."""
        return f"ResidualMultiHead({_describe(self.heads)}, W_out={self.W_out.shape})"

    def __call__(self, source: GaussianMixture | ArrayLike, queries: ArrayLike) -> FloatArray:
        """Output at `queries` (..., d), shape (..., d_out)."""
        z = as_array("queries", queries, (None, self.heads[0].dim), copy=False)
        with np.errstate(over="ignore", invalid="ignore"):
            stacked = np.concatenate([z + head(source, z) for head in self.heads], axis=-1)
            return _checked(stacked @ self.W_out.T)


def _as_head_input(
    queries: ArrayLike, U: ArrayLike, V: ArrayLike, dim: int
) -> tuple[FloatArray, FloatArray, FloatArray]:
    return (
        as_array("queries", queries, (None, dim), copy=False),
        as_array("U", U, (dim, dim), copy=False),
        as_array("V", V, ("d_out", dim), copy=False),
    )


def _checked(output: FloatArray) -> FloatArray:
    if not is_finite(output):
        raise ValueError(
            "expected alignments x^T U z and an output that are finite numbers, got an overflow: "
            "the entries of the tokens, queries, U or V are too large"
        )
    return output


def _as_mixture(mixture: GaussianMixture) -> GaussianMixture:
    if not isinstance(mixture, GaussianMixture):
        raise ValueError(f"mixture: expected a GaussianMixture, got {type(mixture).__name__}")
    return mixture


def _as_heads(heads: Sequence[Head]) -> tuple[Head, ...]:
    try:
        checked = tuple(heads)
    except TypeError as error:
        raise ValueError(
            f"heads: expected a sequence of Head, got {type(heads).__name__}"
        ) from error
    for index, head in enumerate(checked):
        if not isinstance(head, Head):
            raise ValueError(f"heads[{index}]: expected a Head, got {type(head).__name__}")
    if not checked:
        raise ValueError("heads: expected at least one Head, got none")
    shapes = {(head.U.shape, head.V.shape) for head in checked}
    if len(shapes) > 1:
        raise ValueError(f"heads: expected one shape of (U, V) in all heads, got {sorted(shapes)}")
    return checked


def _describe(heads: tuple[Head, ...]) -> str:
    return f"n_heads={len(heads)}, dim={heads[0].dim}, dim_out={heads[0].dim_out}"
