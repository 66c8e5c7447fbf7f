r"""Softmax attention over a prompt of any length in bounded memory.

The prompt is read in tiles. For each query a tile contributes two sums, of :math:`e^{s_i - c} x_i`
and of :math:`e^{s_i - c}`, where :math:`s_i = x_i^\top t` is the alignment with the tilt t and the
shift c keeps the exponentials in range. With a coordinate 1 appended to each token and -c to each
tilt, one matrix product gives the shifted alignments, and one more, of the same tokens, both sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product

import numpy as np

from mixattn._checks import FloatArray
from mixattn._parallel import slices, thread_map

# Numbers in the largest array of a tile: a megabyte stays in a core's own cache.
_TILE = 2**17
# Tokens and queries in one matrix product: products this small run without the copies that BLAS
# makes of the operands of large ones. A tile is a stack of them.
_BLOCK = 256
_QUERIES = 128
# A task is some queries over a chunk of the prompt. Few queries have the prompt cut so that there
# are about this many tasks, whatever the number of threads: the order of summation, and with it
# the result, must not depend on that.
_TASKS = 16
_SHORTEST_CHUNK = 4096

# A shifted alignment above the first moves the shift. One below the second is raised to it: such a
# weight vanishes beside the largest, which is at least 1, and exp is slow where its value is
# subnormal.
_HEADROOM = 100.0
_FLOOR = -600.0


def attend(tokens: FloatArray, queries: FloatArray, U: FloatArray, V: FloatArray) -> FloatArray:
    """Softmax attention of `queries` (n, d) over `tokens` (L, d), shape (n, d_out).

    Not finite where an alignment overflows.
    """
    length, dim = tokens.shape
    n = len(queries)
    output = np.empty((n, len(V)))
    tile = max(_QUERIES, _TILE // max(length, dim + 1))
    query_tiles = slices(n, tile)
    n_chunks = min(
        _ceil_div(_TASKS, max(1, _ceil_div(n, tile))), _ceil_div(length, _SHORTEST_CHUNK)
    )
    chunks = list(slices(length, _ceil_div(length, n_chunks)))

    def partial(task: tuple[slice, slice]) -> tuple[FloatArray, FloatArray]:
        rows, chunk = task
        # Threads do not inherit the caller's error state.
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return _weighted_sums(tokens[chunk], queries[rows] @ U.T)

    with (
        np.errstate(over="ignore", under="ignore", invalid="ignore"),
        thread_map(2 * n * length * (dim + 1)) as ordered_map,
    ):
        # A group of query tiles at a time bounds the partial results that wait to be merged.
        while group := list(islice(query_tiles, _TASKS)):
            partials = iter(ordered_map(partial, product(group, chunks)))
            for rows in group:
                output[rows] = _merged_mean(islice(partials, len(chunks))) @ V.T
    return output


def _weighted_sums(tokens: FloatArray, tilts: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Shifts (n, 1), and sums (n, d + 1) over the tokens of exp(alignment - shift) (x, 1)."""
    n, dim = tilts.shape
    tilts_1 = np.empty((dim + 1, n))
    tilts_1[:-1] = tilts.T
    tilts_1[-1] = -(tokens[0] @ tilts_1[:-1])
    sums = np.zeros((n, dim + 1))
    n_blocks = max(1, _TILE // max(n, dim + 1) // _BLOCK)
    buffer = np.empty((n_blocks, min(_BLOCK, len(tokens)), n))
    for tile in _augmented_tiles(tokens, buffer.shape[:2]):
        scores = np.matmul(tile, tilts_1, out=buffer[: len(tile)])
        # By Cauchy-Schwarz, most often no score is out of range and none needs to be looked at.
        if not _largest_norm(tile) * _largest_norm(tilts_1.T) <= _HEADROOM:
            if scores.max() > _HEADROOM:
                rise = np.maximum(scores.max(axis=(0, 1)), 0.0)
                scores -= rise
                tilts_1[-1] -= rise
                sums *= np.exp(-rise)[:, None]
            if scores.min() < _FLOOR:
                np.maximum(scores, _FLOOR, out=scores)
        weights = np.exp(scores, out=scores)
        sums += (weights.swapaxes(1, 2) @ tile).sum(axis=0)
    return -tilts_1[-1][:, None], sums


def _augmented_tiles(tokens: FloatArray, shape: tuple[int, int]) -> Iterator[FloatArray]:
    """Stacks (n_blocks, block, d + 1) of tokens with a 1 appended, in one buffer used again.

    Rows past the end of the prompt are zero: their weight is 1 and they add nothing.
    """
    n_blocks, block = shape
    buffer = np.empty((n_blocks, block, tokens.shape[1] + 1))
    rows = buffer.reshape(n_blocks * block, -1)
    rows[:, -1] = 1.0
    for start in range(0, len(tokens), len(rows)):
        part = tokens[start : start + len(rows)]
        rows[: len(part), :-1] = part
        rows[len(part) :] = 0.0
        yield buffer[: _ceil_div(len(part), block)]


def _merged_mean(partials: Iterator[tuple[FloatArray, FloatArray]]) -> FloatArray:
    """Weighted mean of the tokens from the sums over the prompt's chunks, in their order."""
    shift, sums = next(partials)
    for next_shift, next_sums in partials:
        peak = np.maximum(shift, next_shift)
        sums = sums * np.exp(shift - peak) + next_sums * np.exp(next_shift - peak)
        shift = peak
    mean: FloatArray = sums[:, :-1] / sums[:, -1:]
    return mean


def _largest_norm(vectors: FloatArray) -> float:
    """Largest Euclidean norm of vectors (..., d)."""
    return float(np.sqrt(np.einsum("...i,...i->...", vectors, vectors).max()))


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)
