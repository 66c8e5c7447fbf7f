r"""Iterating the Bayes denoiser (section 4.3 of the paper)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from mixattn._checks import FloatArray, as_array, as_integer, as_scalar
from mixattn.denoising.task import DenoisingTask, as_denoising_task


def iterate_denoiser(task: DenoisingTask, z0: ArrayLike, n_steps: int) -> FloatArray:
    """Iterate z -> f*(z) from `z0` on, and return all iterates, the start included.

    Parameters
    ----------
    task : DenoisingTask
    z0 : array_like, shape (..., d)
    n_steps : int
        At least 0.

    Returns
    -------
    ndarray, shape (n_steps + 1, ..., d)

    Raises
    ------
    ValueError
        If an argument is not as above.
    """
    task = as_denoising_task(task)
    start = as_array("z0", z0, (None, task.dim))
    iterates = np.empty((as_integer("n_steps", n_steps) + 1, *start.shape))
    iterates[0] = start
    for n in range(1, len(iterates)):
        iterates[n] = task.bayes_denoiser(iterates[n - 1])
    return iterates


def clustering_fixed_point(lam: float) -> float:
    r"""Largest solution of :math:`u = \tanh(\lambda^2 u)` (Proposition 4.3 of the paper).

    For two balanced components of covariance :math:`\gamma^2 I` and means :math:`c \pm \delta` of
    equal norm, iterating the Bayes denoiser contracts the distance to the line of the means and
    moves u, the position :math:`c + u \delta` on it. With :math:`\gamma = 0` the map of u is
    :math:`u \mapsto \tanh(\lambda^2 u)`, :math:`\lambda = |\delta|/\xi`; with :math:`\gamma > 0`
    the fixed points are those for :math:`\lambda = |\delta| / \sqrt{\gamma^2 + \xi^2}`.

    Parameters
    ----------
    lam : float
        The separation :math:`\lambda \ge 0`.

    Returns
    -------
    float
        u in [0, 1]: 0 if :math:`\lambda \le 1`, else the stable positive branch, to a few units in
        the last place, near :math:`\lambda = 1` too.

    Raises
    ------
    ValueError
        If `lam` is negative or not a finite number.

    Examples
    --------
    >>> clustering_fixed_point(0.9)
    0.0
    >>> round(clustering_fixed_point(1.2), 6)
    0.833906
    """
    lam = as_scalar("lam", lam, at_least=0.0)
    if lam <= 1.0:
        return 0.0
    # v = lam^2 u solves v coth(v) - 1 = lam^2 - 1, whose right side has all its digits near 1
    excess = (lam - 1.0) * (lam + 1.0)
    if excess > 400.0:
        return 1.0
    v = math.sqrt(3.0 * excess) if excess < 1.0 else 1.0 + excess
    for _ in range(_NEWTON_STEPS):
        v -= (_langevin_numerator(v) - excess) / _langevin_numerator_slope(v)
    return math.tanh(v)


_NEWTON_STEPS = 8


def _langevin_numerator(v: float) -> float:
    """Compute v coth(v) - 1, with all digits for small v."""
    if v > 1.0:
        return v / math.tanh(v) - 1.0
    # (v cosh v - sinh v) / sinh v, both series of positive terms
    term, total = v * v / 3.0, 0.0
    for k in range(1, 12):
        total += term
        term *= v * v * (k + 1) / (k * (2 * k + 2) * (2 * k + 3))
    return total * v / math.sinh(v)


def _langevin_numerator_slope(v: float) -> float:
    """Compute its derivative coth(v) - v / sinh(v)^2, to the digits that Newton's method needs."""
    if v < 1e-2:
        return 2.0 * v / 3.0
    if v > 20.0:
        return 1.0
    return 1.0 / math.tanh(v) - v / math.sinh(v) ** 2
