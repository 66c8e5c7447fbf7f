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
from PIL import Image, ImageFilter

sys.path.insert(0, str(Path(__file__).parent / "_ext"))
from notebooks import kernel_environment

#: Pixels are alike up to this many of 255 levels, and this share of them may differ: under an older
#: processor's rounding an axis moves by a pixel or two, and the compression makes a few others.
LEVELS = 16
SHARE = 0.0005
_EMBEDDED = re.compile(r"(?<=;base64,)[A-Za-z0-9+/=]+")


def pytest_configure(config: Any) -> None:
    """Give the kernels, which inherit this process's environment, the one of every chapter."""
    if not config.getoption("nbval", False):
        return
    own = kernel_environment()
    os.environ.clear()
    os.environ.update(own)
    if not hasattr(config, "workerinput"):  # xdist's workers inherit what is set here
        found = np.show_config(mode="dicts")["SIMD Extensions"].get("found", [])
        os.environ["NPY_DISABLE_CPU_FEATURES"] = " ".join(found)
        if platform.machine() in ("x86_64", "AMD64"):
            os.environ["OPENBLAS_CORETYPE"] = "Nehalem"
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
    """Whether two pictures show the same: but for few pixels, each has its like beside it."""
    if first == second:
        return True
    if not first or not second:
        return False
    one, other = (Image.open(BytesIO(b64decode(data))).convert("RGB") for data in (first, second))
    if one.size != other.size:
        return False
    return max(share_outside(one, other), share_outside(other, one)) <= SHARE


def share_outside(image: Image.Image, other: Image.Image) -> float:
    """Share of an image's pixels that the other has nowhere near, not even two pixels away."""
    low, high = other.filter(ImageFilter.MinFilter(5)), other.filter(ImageFilter.MaxFilter(5))
    levels, least, most = (np.asarray(each, dtype=int) for each in (image, low, high))
    outside = (levels < least - LEVELS) | (levels > most + LEVELS)
    return float(outside.any(axis=-1).mean())
