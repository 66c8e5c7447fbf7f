"""Checks shared by the public constructors and functions.

Every check raises `ValueError` (never an assertion, so that ``python -O`` keeps it) with a message
that names the argument, what was expected and what came.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

WEIGHT_SUM_TOLERANCE = 1e-8
# Hypotheses that are equalities (equal norms, opposite means, equal priors) hold within this
# relative error.
EQUALITY_RTOL = 1e-9
# A covariance assembled in floating point is symmetric and positive semidefinite only up to
# rounding: both checks allow this fraction of its largest entry.
COVARIANCE_TOLERANCE = 1e-10
# Arrays of up to this many entries are checked the fast way, which needs a temporary.
SMALL = 4096
LARGEST_INTEGER = 2**63 - 1


class Frozen:
    """Base of every value class: its fields are set once, and its arrays are read-only.

    So they are after copy, deepcopy and pickle too. A subclass is a frozen dataclass and fills its
    fields with `_set`.
    """

    def _set(self, **fields: Any) -> None:
        for name, value in fields.items():
            object.__setattr__(self, name, frozen(value))

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the fields, cached ones too, arrays read-only."""
        self._set(**state)


def frozen(value: Any) -> Any:
    """Mark the arrays in a value, or in a tuple of values, as read-only; return it."""
    if isinstance(value, np.ndarray):
        value.flags.writeable = False
    elif isinstance(value, tuple):
        for item in value:
            frozen(item)
    return value


def as_array(
    name: str, value: Any, shape: Sequence[int | str | None], *, copy: bool = True
) -> FloatArray:
    """Return `value` as a finite float64 array of the given shape.

    Parameters
    ----------
    name : str
        The argument's name, for messages.
    value : array_like
        What the caller gave.
    shape : sequence of int, str or None
        One entry an axis: an int is the required length, a str is the name of a free length of
        at least 1 shown in messages, None as the first entry allows any leading axes.
    copy : bool
        Whether the result must be the callee's own. If not, a float64 array comes back as it is,
        to be read only: a long prompt then costs no memory.

    Returns
    -------
    ndarray of float64

    Raises
    ------
    ValueError
        If `value` is not numeric, has another shape, or has NaN or infinite entries.
    """
    leading = len(shape) > 0 and shape[0] is None
    axes = shape[1:] if leading else shape
    try:
        array = _as_float64(_as_real(value), copy=copy)
    except TypeError as error:
        raise ValueError(
            f"{name}: expected real numbers of shape {_describe(axes, leading=leading)}, "
            f"got {type(value).__name__} ({error})"
        ) from error
    ndim_ok = array.ndim >= len(axes) if leading else array.ndim == len(axes)
    trailing = array.shape[array.ndim - len(axes) :] if ndim_ok else ()
    if not ndim_ok or not all(map(_fits, axes, trailing)):
        raise ValueError(
            f"{name}: expected shape {_describe(axes, leading=leading)}, got {array.shape}"
        )
    if 0 in trailing and any(
        isinstance(want, str) and not have for want, have in zip(axes, trailing, strict=True)
    ):
        raise ValueError(
            f"{name}: expected shape {_describe(axes, leading=leading)} with no empty axis, "
            f"got {array.shape}"
        )
    if not is_finite(array):
        count = int(np.size(array) - np.isfinite(array).sum())
        raise ValueError(
            f"{name}: expected finite entries, got {count} NaN or infinite of {array.size}"
        )
    return array


def _fits(want: int | str | None, have: int) -> bool:
    return want == have or not isinstance(want, int)


def _as_real(value: Any) -> NDArray[Any]:
    if np.ma.is_masked(value):
        raise TypeError("masked entries")
    try:
        raw = np.asarray(value)
    except ValueError as error:
        raise TypeError("rows of different lengths") from error
    if raw.dtype == object and all(isinstance(entry, int) for entry in raw.flat):
        raise TypeError("integers beyond 64 bits")
    if raw.dtype.kind not in "uif":
        raise TypeError(f"dtype {raw.dtype}")
    return raw


def _as_float64(raw: NDArray[Any], *, copy: bool) -> FloatArray:
    if raw.dtype == np.float64:
        return np.array(raw) if copy else raw
    # An extended-precision number may exceed float64: found later, as an infinity.
    with np.errstate(over="ignore"):
        return np.array(raw, dtype=np.float64)


def is_finite(array: FloatArray) -> bool:
    """Whether all entries are finite, found without a temporary of the size of a large array."""
    if array.size <= SMALL:
        return int(np.count_nonzero(np.isfinite(array))) == array.size
    with np.errstate(invalid="ignore"):
        return bool(np.isfinite(array.min()) and np.isfinite(array.max()))


def _describe(axes: Sequence[int | str | None], *, leading: bool) -> str:
    names = ["..."] * leading + [str(axis) for axis in axes]
    return f"({names[0]},)" if len(names) == 1 else f"({', '.join(names)})"


def as_scalar(
    name: str,
    value: Any,
    *,
    above: float | None = None,
    at_least: float | None = None,
    below: float | None = None,
) -> float:
    """Return `value` as a finite float inside the stated bounds, or raise `ValueError`."""
    # the common case, about ten times as fast as the general one
    plain = isinstance(value, float) and math.isfinite(value)
    number = float(value) if plain else float(as_array(name, value, ()))
    bounds = []
    if above is not None:
        bounds.append((number > above, f"> {above:g}"))
    if at_least is not None:
        bounds.append((number >= at_least, f">= {at_least:g}"))
    if below is not None:
        bounds.append((number < below, f"< {below:g}"))
    if not all(ok for ok, _ in bounds):
        raise ValueError(
            f"{name}: expected a number {' and '.join(b for _, b in bounds)}, got {number!r}"
        )
    return number


def as_integer(name: str, value: Any, *, at_least: int = 0) -> int:
    """Return `value` as an int of at least `at_least`, or raise `ValueError`."""
    if isinstance(value, bool | np.bool_) or not isinstance(value, int | np.integer):
        raise ValueError(f"{name}: expected an integer, got {value!r}")
    if not at_least <= value <= LARGEST_INTEGER:
        bound = f">= {at_least}" if value < at_least else f"<= {LARGEST_INTEGER}"
        raise ValueError(f"{name}: expected an integer {bound}, got {value}")
    return int(value)


def as_weights(name: str, value: Any) -> FloatArray:
    """Return mixture weights, renormalized to sum to 1: nonnegative, zero allowed."""
    weights = as_array(name, value, ("M",))
    if (weights < 0).any():
        raise ValueError(
            f"{name}: expected nonnegative weights, got a minimum of {weights.min():g}"
        )
    with np.errstate(over="ignore"):
        total = float(weights.sum())
    if abs(total - 1.0) > WEIGHT_SUM_TOLERANCE:
        raise ValueError(f"{name}: expected weights that sum to 1, got a sum of {total!r}")
    return weights / total


def as_covariance(name: str, value: Any, dim: int, *, definite: bool = False) -> FloatArray:
    """Return one symmetric positive semidefinite (or definite) matrix of shape (dim, dim).

    The result is exactly symmetric. A negative eigenvalue of the size of rounding is admitted, so
    that degenerate covariances are.
    """
    matrix = as_array(name, value, (dim, dim))
    scale = float(np.abs(matrix).max())
    # Entries of at most 1 in what follows: sums of the largest floats would overflow.
    unit = matrix / scale if scale > 0 else matrix
    asymmetry = float(np.abs(unit - unit.T).max())
    if asymmetry > COVARIANCE_TOLERANCE:
        raise ValueError(
            f"{name}: expected a symmetric matrix, got an asymmetry of {asymmetry * scale:g}"
        )
    unit = (unit + unit.T) / 2
    smallest = float(np.linalg.eigvalsh(unit)[0])
    if smallest < -COVARIANCE_TOLERANCE:
        raise ValueError(
            f"{name}: expected a positive semidefinite matrix, "
            f"got an eigenvalue of {smallest * scale:g}"
        )
    if definite and smallest <= dim * np.finfo(float).eps:
        raise ValueError(
            f"{name}: expected a positive definite matrix, "
            f"got a smallest eigenvalue of {smallest * scale:g}"
        )
    return 0.5 * matrix + 0.5 * matrix.T


def as_generator(rng: Any) -> np.random.Generator:
    """Return `rng` if it is a NumPy generator; anything else is refused by name."""
    if not isinstance(rng, np.random.Generator):
        raise ValueError(f"rng: expected a numpy.random.Generator, got {type(rng).__name__}")
    return rng


def freeze(array: FloatArray) -> FloatArray:
    """Mark an array as read-only: it is part of a frozen object."""
    array.flags.writeable = False
    return array
