"""Settings of `pytest --nbval` on the chapters."""

from typing import Any


def pytest_collectstart(collector: Any) -> None:
    """Leave the pixels of figures uncompared.

    They change with the versions of matplotlib and FreeType while what is drawn does not. A
    figure's numbers are compared where the chapter prints or checks them, its alt text and caption
    in the text form of the same output.
    """
    if hasattr(collector, "skip_compare"):
        collector.skip_compare += ("image/webp",)
        # A live figure's still is a picture inside its HTML.
        collector.sanitize_patterns[r"data:image/webp;base64,[^\"]*"] = "PIXELS"
