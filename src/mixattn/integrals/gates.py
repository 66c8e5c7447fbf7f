r"""Expectations, under a Gaussian mixture, of functions of a few softmax gates.

A gate of slope s is smooth on the scale :math:`1/|s|` across its own hyperplane and on the scale of
the Gaussian everywhere else. So the nodes are those of a trapezoidal rule in a variable x in which
both are resolved at once,

.. math::
    x(y) = \frac{y}{h} + c \sum_j \operatorname{arsinh}\frac{y - y_j}{w_j},

where :math:`y_j` is the place of gate j and :math:`\pm i w_j` its poles from it. The map is
analytic and sends the poles to a strip of fixed width, so the rule converges geometrically and the
number of nodes grows only like the logarithm of the slope. In several dimensions the rule is
nested: the nodes of each axis follow the gates' places given the axes before.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from mixattn._checks import FloatArray

_MOST_NODES = 1e7


def gate_nodes(
    centers: FloatArray,
    weights: FloatArray,
    slopes: FloatArray,
    offsets: FloatArray,
    tolerance: float,
) -> tuple[FloatArray, FloatArray]:
    r"""Nodes and weights for :math:`\sum_k \pi_k E f(Y_k)`, :math:`Y_k \sim \mathcal N(c_k, I_r)`.

    `f` may grow like a polynomial and depend on the logits :math:`o_j + s_j^\top y` through softmax
    functions.

    Parameters
    ----------
    centers : ndarray, shape (M, r)
    weights : ndarray, shape (M,)
    slopes : ndarray, shape (J, r)
        Best with steep gates along the first axes (see `steepest_axes`).
    offsets : ndarray, shape (J,)
    tolerance : float
        Relative error aimed at, for an `f` of one sign.

    Returns
    -------
    points : ndarray, shape (n, r)
    weights : ndarray, shape (n,)
        They include the mixture's density.
    """
    digits = np.log(1.0 / tolerance)
    step = np.pi * np.sqrt(2.0 / digits)
    # a quarter more than a simple pole asks for: squares of gates have double poles
    grading = 1.25 * digits / np.pi**2
    # half a deviation more than a constant asks for: the integrand may grow
    lower, upper = _box(centers, slopes, offsets, np.sqrt(2.0 * digits) + 0.5)
    if not np.prod((upper - lower) / step) < _MOST_NODES:
        raise ArithmeticError(f"gate_nodes: the bulk, {lower} to {upper}, is too large for a rule")
    points = np.empty((1, 0))
    volume = np.ones(1)
    for axis in range(centers.shape[1]):
        along = slopes[:, axis]
        active = along != 0
        places = -(offsets + points @ slopes[:, :axis].T)[:, active] / along[active]
        # the later axes blur the gate as seen from this one
        blur = np.linalg.norm(slopes[active, axis + 1 :], axis=1)
        widths = (np.pi + blur) / np.abs(along[active])
        y, dy = _graded_trapezoid(lower[axis], upper[axis], places, widths, step, grading)
        points = np.concatenate([np.repeat(points, y.shape[1], axis=0), y.reshape(-1, 1)], axis=1)
        volume = (volume[:, None] * dy).ravel()
    squares = -0.5 * np.sum((points[:, None, :] - centers) ** 2, axis=2)
    density = np.exp(squares) @ weights / (2.0 * np.pi) ** (0.5 * centers.shape[1])
    return points, volume * density


def steepest_axes(directions: FloatArray, rtol: float = 1e-14) -> FloatArray:
    """Orthonormal axes (d, r) of the span of the rows of `directions` (J, d), steepest first.

    A direction whose part outside the span of the others is below `rtol` times the largest is
    taken to lie in it.
    """
    left = directions.T.copy()
    axes = np.empty((left.shape[0], 0))
    if left.size == 0:
        return axes
    floor = rtol * np.sqrt(np.max(np.sum(left**2, axis=0)))
    while axes.shape[1] < left.shape[0]:
        lengths = np.sqrt(np.sum(left**2, axis=0))
        steepest = int(np.argmax(lengths))
        if lengths[steepest] <= floor:
            break
        axis = left[:, steepest] / lengths[steepest]
        axis -= axes @ (axes.T @ axis)
        axis /= np.linalg.norm(axis)
        axes = np.column_stack([axes, axis])
        left -= np.outer(axis, axis @ left)
        left[:, steepest] = 0.0
    return axes


def _box(
    centers: FloatArray, slopes: FloatArray, offsets: FloatArray, radius: float
) -> tuple[FloatArray, FloatArray]:
    """Bounds of the integrand's bulk on each axis.

    The bulk is around the centers, or around the nearest point of a gate where all else vanishes.
    The logarithm of a gate's decay has slope at most 2|s|, so it moves no peak further than that.
    """
    steepness = np.linalg.norm(slopes, axis=1)
    gated = steepness > 0
    logits = np.abs(offsets[gated] + centers @ slopes[gated].T)
    reach = np.minimum((logits / steepness[gated]).min(axis=0), 2.0 * steepness[gated])
    along = np.abs(slopes[gated]) * (reach / steepness[gated])[:, None]
    margin = radius + along.max(axis=0, initial=0.0)
    return centers.min(axis=0) - margin, centers.max(axis=0) + margin


def _graded_trapezoid(
    lower: float,
    upper: float,
    places: FloatArray,
    widths: FloatArray,
    step: float,
    grading: float,
) -> tuple[FloatArray, FloatArray]:
    """Trapezoidal rules in x(y) on [lower, upper], one a row of `places` (n, J): nodes, weights."""

    def x_of(y: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Evaluate x(y) and its derivative, the density of nodes."""
        x, density = y / step, np.full_like(y, 1.0 / step)
        for j, width in enumerate(widths):
            scaled = (y - places[:, j, None]) / width
            x += grading * np.arcsinh(scaled)
            density += grading / width / np.sqrt(1.0 + scaled * scaled)
        return x, density

    ends, _ = x_of(np.tile([lower, upper], (len(places), 1)))
    count = int(np.ceil((ends[:, 1] - ends[:, 0]).max())) + 1
    spacing = (ends[:, 1:] - ends[:, :1]) / (count - 1)
    targets = ends[:, :1] + spacing * np.arange(count)
    y = _first_guess(lower, upper, places, widths, targets, x_of)
    for _ in range(_MOST_NEWTON_STEPS):
        x, density = x_of(y)
        miss = x - targets
        y = np.clip(y - miss / density, lower, upper)
        if np.abs(miss).max() < _NEWTON_MISS:
            _, density = x_of(y)
            return y, spacing / density
    raise ArithmeticError(
        f"gate_nodes: Newton's method for the nodes misses by {np.abs(miss).max():g} after "
        f"{_MOST_NEWTON_STEPS} steps"
    )


# Newton's method squares the miss at each step: after one below this, it is at rounding.
_NEWTON_MISS = 1e-6
_MOST_NEWTON_STEPS = 20


def _first_guess(
    lower: float,
    upper: float,
    places: FloatArray,
    widths: FloatArray,
    targets: FloatArray,
    x_of: Callable[[FloatArray], tuple[FloatArray, FloatArray]],
) -> FloatArray:
    """Solve x(y) = targets by linear interpolation in a table that is fine where x bends."""
    reach = np.arcsinh((upper - lower) / widths.min(initial=upper - lower))
    bends = np.sinh(np.linspace(-reach, reach, 2 * int(np.ceil(2.0 * reach)) + 1))
    around = (places[:, :, None] + widths[:, None] * bends).reshape(len(places), -1)
    ends = np.broadcast_to([lower, upper], (len(places), 2))
    table = np.sort(np.clip(np.concatenate([ends, around], axis=1), lower, upper), axis=1)
    return np.clip(interpolate_rows(targets, x_of(table)[0], table), lower, upper)


def interpolate_rows(x: FloatArray, x_table: FloatArray, y_table: FloatArray) -> FloatArray:
    """Linear interpolation of each row of `x` in its own table, as `numpy.interp` row by row.

    Parameters
    ----------
    x : ndarray, shape (n, k)
        Within its row's table.
    x_table, y_table : ndarray, shape (n, m)
        Each row of `x_table` ascending.

    Returns
    -------
    ndarray, shape (n, k)
    """
    # Rows are moved apart, so that together they are one ascending table: one call serves all.
    apart = 1.0 + np.ptp(x_table, axis=1).max()
    moved = apart * np.arange(len(x))[:, None] - x_table[:, :1]
    return np.interp(x + moved, (x_table + moved).ravel(), y_table.ravel())
