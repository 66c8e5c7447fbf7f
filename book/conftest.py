"""Settings of `pytest --nbval` on the chapters.

The kernels round as on an older processor, so that digits that survive are not round-off, and the
figures that they draw are compared with the stored ones.
"""

import copy
import os
import platform
import re
import sys
from base64 import b64decode
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
from notebooks import kernel_environment

#: Pixels are alike up to this many of 255 levels; an older processor may draw a few others.
LEVELS = 16
SHARE = 0.002
_EMBEDDED = re.compile(r"(?<=;base64,)[A-Za-z0-9+/=]+")


def pytest_configure(config: Any) -> None:
    """Give the kernels, which inherit this process's environment, the one of every chapter."""
    if not config.getoption("nbval", False):
        return
    newer = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
    core = {"OPENBLAS_CORETYPE": "Nehalem"} if platform.machine() in ("x86_64", "AMD64") else {}
    own = kernel_environment()
    os.environ.clear()
    os.environ.update(own, NPY_DISABLE_CPU_FEATURES=" ".join(newer), **core)
    compare_figures()


def pytest_collectstart(collector: Any) -> None:
    """Compare pictures as well: nbval leaves png out."""
    if hasattr(collector, "skip_compare"):
        collector.skip_compare = tuple(
            kind for kind in collector.skip_compare if not kind.startswith("image/")
        )


def compare_figures() -> None:
    """Let nbval take a drawn figure for the stored one where their pixels are alike."""
    from nbval.plugin import IPyNbCell

    exact = IPyNbCell.compare_outputs

    def compare_outputs(self: Any, test: Any, ref: Any, skip_compare: Any = None) -> bool:
        return exact(self, with_stored_figures(test, ref), ref, skip_compare)

    IPyNbCell.compare_outputs = compare_outputs


def with_stored_figures(drawn: list[Any], stored: list[Any]) -> list[Any]:
    """Copy outputs, with the stored figure in place of each that looks like it."""
    drawn = copy.deepcopy(drawn)
    for output, reference in zip(drawn, stored, strict=False):
        bundle, kept = output.get("data", {}), reference.get("data", {})
        for kind in bundle.keys() & kept.keys():
            if kind in {"image/webp", "image/png"}:
                bundle[kind] = nearest(bundle[kind], kept[kind])
            elif kind == "text/html":
                originals = iter(_EMBEDDED.findall(kept[kind]))
                bundle[kind] = _EMBEDDED.sub(
                    lambda found, originals=originals: nearest(found.group(), next(originals, "")),
                    bundle[kind],
                )
    return drawn


def nearest(drawn: str, stored: str) -> str:
    """Return the stored picture where the drawn one looks like it, and else the drawn one."""
    return stored if alike(drawn, stored) else drawn


def alike(first: str, second: str) -> bool:
    """Whether two pictures show the same, up to few pixels."""
    if first == second:
        return True
    if not first or not second:
        return False
    one, other = (
        np.asarray(Image.open(BytesIO(b64decode(data))).convert("RGB"), dtype=int)
        for data in (first, second)
    )
    if one.shape != other.shape:
        return False
    return bool((abs(one - other).max(axis=-1) > LEVELS).mean() <= SHARE)
