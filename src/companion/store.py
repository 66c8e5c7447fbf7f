"""Stored data: results too heavy for a chapter, committed under ``book/data`` as JSON.

A set holds its parameters, seeds and the versions that made it, and neither times nor paths, so
that making it again gives the same file.
"""

from __future__ import annotations

import json
import math
import platform
import re
from collections.abc import Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np


def read_data(name: str, folder: str | Path = "data") -> Any:
    """Read a stored set; a chapter runs in ``book``, where the sets lie in ``data``.

    Parameters
    ----------
    name : str
        For instance ``"ch08_training"``.
    folder : str or Path, optional
        Where the sets lie.

    Raises
    ------
    ValueError
        If there is no such set; the message names those that there are.
    """
    path = Path(folder) / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(file.stem for file in Path(folder).glob("*.json"))) or "none"
        raise ValueError(f"name: no stored set {name!r} in {folder}; there are: {known}")
    return json.loads(path.read_text("utf-8"))


def write_data(name: str, content: Mapping[str, Any], folder: str | Path) -> Path:
    """Write a set whole or not at all, and return its path.

    A list of numbers, and a run that holds nothing deeper, stand on one line.

    Raises
    ------
    ValueError
        If the content holds a number that is not finite.
    """
    path = Path(folder) / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    partial.write_text(as_text(content), "utf-8")
    partial.replace(path)
    return path


def as_text(content: Mapping[str, Any]) -> str:
    """Return a set as it is written."""
    text = json.dumps(content, indent=1, allow_nan=False, ensure_ascii=False)
    flat_list = r"\[[-+.,\s\deE]*\]"
    flat_mapping = r"\{[^{}\[\]]*(\[[^{}\[\]]*\][^{}\[\]]*)*\}"
    for pattern in (flat_list, flat_mapping):
        text = re.sub(pattern, lambda found: " ".join(found[0].split()), text)
    return text + "\n"


def rounded(value: Any, digits: int = 8) -> Any:
    """Return a number, or nested lists of numbers, rounded to significant digits.

    Examples
    --------
    >>> rounded([1 / 3, [2e-20 / 3]], 3)
    [0.333, [6.67e-21]]
    """
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, list | tuple):
        return [rounded(entry, digits) for entry in value]
    if not math.isfinite(value):
        raise ValueError(f"value: expected finite numbers, got {value!r}")
    return value if isinstance(value, int) else float(f"{value:.{digits}g}")


def stamp(made_by: str, **parameters: Any) -> dict[str, Any]:
    """Return what a set begins with: the command, the versions, the parameters with their seeds."""
    versions = {name: version(name) for name in ("numpy", "scipy", "mixattn")}
    return {
        "made_by": made_by,
        "versions": {"python": platform.python_version(), **versions},
        "parameters": parameters,
    }


def differences(made: Any, stored: Any, rtol: float, place: str = "") -> Iterator[str]:
    """Yield the places where two contents differ by more than rounding.

    Parameters
    ----------
    made, stored : object
        Contents as JSON holds them.
    rtol : float
        How far numbers may be apart, relative to the stored one.
    place : str
        Where the contents stand in a larger one.
    """
    if isinstance(made, dict) and isinstance(stored, dict) and list(made) == list(stored):
        for key in made:
            yield from differences(made[key], stored[key], rtol, f"{place}/{key}")
    elif isinstance(made, list) and isinstance(stored, list) and len(made) == len(stored):
        for i, pair in enumerate(zip(made, stored, strict=True)):
            yield from differences(*pair, rtol, f"{place}/{i}")
    elif isinstance(made, float) and isinstance(stored, float):
        if abs(made - stored) > rtol * abs(stored):
            yield f"{place}: made {made}, stored {stored}"
    elif made != stored:
        yield f"{place}: made {made!r}, stored {stored!r}"
