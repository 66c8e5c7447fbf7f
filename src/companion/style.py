"""The look of the book's figures, and the one way in which a chapter shows them.

Colors are those of Okabe and Ito, which readers with the common color deficiencies tell apart.
Printed in grey some of them look alike, so no figure relies on color alone: each color of the cycle
comes with its own line style, and each component of a mixture with its own marker.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from hashlib import sha256
from html import escape
from types import MappingProxyType
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
from cycler import cycler
from IPython.display import display
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from PIL import Image

COLORS = MappingProxyType(
    {
        "blue": "#0072B2",
        "vermillion": "#D55E00",
        "green": "#009E73",
        "purple": "#CC79A7",
        "black": "#000000",
        "orange": "#E69F00",
        "sky": "#56B4E9",
        "grey": "#6B6B6B",
    }
)
"""Named colors: Okabe and Ito's without the yellow, too pale for a line, and a neutral grey."""

COMPONENT_COLORS = tuple(COLORS[name] for name in ("blue", "vermillion", "green", "purple"))
"""Colors of the components of a mixture, in their order."""

COMPONENT_MARKERS = ("o", "s", "^", "D")
"""Markers of the components of a mixture, in their order."""

CLASS_COLORS = MappingProxyType({1: COLORS["blue"], -1: COLORS["vermillion"]})
"""Colors of the two classes, by label."""

CLASS_MARKERS = MappingProxyType({1: "o", -1: "s"})
"""Markers of the two classes, by label."""

SEQUENTIAL = mpl.colormaps["cividis"]
"""Color map of a nonnegative quantity: its lightness is monotone, so it reads in grey."""

DIVERGING = LinearSegmentedColormap.from_list(
    "vermillion_blue", [COLORS["vermillion"], "#F6F4F0", COLORS["blue"]]
)
"""Color map of a signed quantity or a posterior: vermillion low, pale in the middle, blue high."""

BACKGROUND = "#FCFCFA"
"""An opaque near-white card: a figure stays legible on a dark page."""

CSS_DPI = 96
DENSITY = 1.5
"""Pixels of an image for each pixel of the layout, so that it is sharp on a dense screen."""

DPI = 120
COLORS_OF_A_DRAWING = 128
FIGURE_BYTES = 60_000
MIN_ALT_CHARACTERS = 20
# decades beyond which minor ticks are closer than the eye tells apart on a phone
LONG_LOG_AXIS = 4

_LINE_STYLES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1, 1, 1)), (0, (1, 2)))

# A figure 6.4 in wide is shown 360 px wide on a phone: 12 points are 9 px there.
_STYLE = {
    "figure.figsize": (6.4, 4.0),
    "figure.dpi": DPI,
    "figure.facecolor": BACKGROUND,
    "figure.constrained_layout.use": True,
    "savefig.facecolor": BACKGROUND,
    "axes.facecolor": BACKGROUND,
    "axes.prop_cycle": cycler(
        color=[COLORS[n] for n in COLORS if n != "grey"],
        linestyle=_LINE_STYLES,
    ),
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#333333",
    "axes.titlesize": 13,
    "axes.titlelocation": "left",
    "axes.labelsize": 13,
    "font.size": 12,
    "grid.color": "#DDDDDD",
    "grid.linewidth": 0.6,
    "image.cmap": SEQUENTIAL.name,
    "legend.fontsize": 11.5,
    "legend.framealpha": 0.9,
    "legend.facecolor": BACKGROUND,
    "lines.linewidth": 2.0,
    "lines.markersize": 5.5,
    "scatter.edgecolors": "none",
    "xtick.labelsize": 11.5,
    "ytick.labelsize": 11.5,
}


def use_style() -> None:
    """Give every later figure the book's look; call it once, in a chapter's first cell."""
    mpl.rcdefaults()
    mpl.rcParams.update(_STYLE)


def webp_bytes(fig: Figure, dpi: float = DPI) -> bytes:
    """Draw the figure as webp: the same bytes for the same figure."""
    _clear_long_log_axes(fig)
    fig.set_dpi(dpi)
    # savefig would draw everything once more for the layout alone
    canvas = FigureCanvasAgg(fig)
    canvas.draw()
    image = Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")
    # Lines and labels are sharper and smaller with few colors and no loss; shaded areas are not.
    drawing = image.quantize(COLORS_OF_A_DRAWING, dither=Image.Dither.NONE).convert("RGB")
    return min(_encoded(drawing, lossless=True), _encoded(image, quality=75), key=len)


def _encoded(image: Image.Image, **options: Any) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format="webp", method=6, **options)
    return buffer.getvalue()


def _clear_long_log_axes(fig: Figure) -> None:
    """Leave out the minor ticks of logarithmic axes where they would run into a grey band."""
    for ax in fig.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = axis.get_view_interval()
            if axis.get_scale() == "log" and abs(np.log10(high / low)) > LONG_LOG_AXIS:
                axis.set_minor_locator(NullLocator())


def show_figure(fig: Figure, alt: str, caption: str | None = None) -> None:
    """Display a figure once, with its alternative text, and close it.

    Parameters
    ----------
    fig : matplotlib.figure.Figure
        The figure; it is closed, so that the notebook does not show it a second time.
    alt : str
        What is seen, for a reader who does not see it: at least 20 characters.
    caption : str, optional
        What to see in it.

    Raises
    ------
    ValueError
        If `fig` is not a figure, `alt` or `caption` is too short or not text, or the image is
        larger than 60 kB.
    """
    if not isinstance(fig, Figure):
        raise ValueError(f"fig: expected a matplotlib Figure, got {type(fig).__name__}")
    check_alt(alt)
    if caption is not None and (not isinstance(caption, str) or not caption.strip()):
        raise ValueError(f"caption: expected text or None, got {caption!r}")
    size = [round(CSS_DPI * length) for length in fig.get_size_inches()]
    image = webp_bytes(fig, DENSITY * CSS_DPI)
    plt.close(fig)
    if len(image) > FIGURE_BYTES:
        raise ValueError(
            f"fig: expected at most {FIGURE_BYTES} bytes as webp, got {len(image)}: draw fewer "
            "points or levels, or a smaller figure"
        )
    # HTML alone: exporters leave out what exists as webp only, and JupyterLab shows it without alt
    data = base64.b64encode(image).decode("ascii")
    text = f"<Figure: {alt}>" if caption is None else f"<Figure: {alt}>\n{caption}"
    bundle = {"text/html": figure_html(data, alt, caption, size), "text/plain": text}
    display(bundle, raw=True)


def figure_html(
    webp_base64: str, alt: str, caption: str | None, size: Sequence[int] | None = None
) -> str:
    """Return a figure element with the image inside it, its alternative text and its caption.

    The element's id follows from its words, so that it stays when the drawing changes.
    """
    name = sha256(f"{alt}\n{caption}".encode()).hexdigest()[:10]
    extent = "" if size is None else f'width="{size[0]}" height="{size[1]}" '
    image = (
        f'<img alt="{escape(alt)}" {extent}style="max-width:100%;height:auto" '
        f'src="data:image/webp;base64,{webp_base64}">'
    )
    below = "" if caption is None else f"<figcaption>{escape(caption)}</figcaption>"
    return f'<figure id="figure-{name}" style="margin:0">{image}{below}</figure>'


def check_alt(alt: Any) -> None:
    """Raise `ValueError` unless `alt` is a text long enough to say what a figure shows."""
    if not isinstance(alt, str) or len(alt.strip()) < MIN_ALT_CHARACTERS:
        raise ValueError(
            f"alt: expected at least {MIN_ALT_CHARACTERS} characters that say what is seen, "
            f"got {alt!r}"
        )
