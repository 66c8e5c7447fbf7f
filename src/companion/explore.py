"""Explorers: figures that a reader moves, with a kernel or with none.

The frames are drawn once, when the cell runs, and the sliders are linked to them in the browser: on
the static site, offline too, the reader moves through the drawn values. Where a kernel runs, a
second panel redraws the figure for any value in between.
"""

from __future__ import annotations

import base64
import itertools
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any

import ipywidgets as widgets
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from companion.style import check_alt, figure_html, webp_bytes

FRAME_BYTES = 30_000
TOTAL_BYTES = 600_000

# The site's style sheet hides this class: without a kernel its controls would do nothing.
LIVE_CLASS = "live-only"
_LIVE_STEPS = 200

Draw = Callable[..., Figure]
Describe = Callable[..., str]


class Explorer(widgets.VBox):
    """The widget that `explorer` returns; shown when it is the last value of a cell."""

    def __init__(self, children: Sequence[widgets.Widget], summary: str) -> None:
        super().__init__(children)
        self.add_class("explorer")
        self._summary = summary

    def __repr__(self) -> str:
        """Return the controls and their values: the same text in every run."""
        return f"<Explorer: {self._summary}>"


def explorer(
    draw: Draw,
    controls: Mapping[str, Sequence[Any]],
    *,
    labels: Mapping[str, str] | None = None,
    alt: Describe,
    start: Mapping[str, Any] | None = None,
    live: Mapping[str, tuple[float, float]] | None = None,
) -> Explorer:
    """Return a figure that moves with one or two sliders.

    Parameters
    ----------
    draw : callable
        ``draw(**values) -> Figure``, where `values` has one entry for each control. The same
        values must draw the same figure: seed what is random.
    controls : mapping of str to sequence
        One or two controls, each with at least two different values (numbers or texts) in the
        order of its slider.
    labels : mapping of str to str, optional
        The name shown beside each slider, the control's own name unless given.
    alt : callable
        ``alt(**values) -> str``: what the figure shows at these values, for a reader who does not
        see it.
    start : mapping of str to value, optional
        The values shown first, the first of each control unless given.
    live : mapping of str to (float, float), optional
        The range of a numeric control where a kernel redraws the figure, from its smallest to its
        largest value unless given.

    Returns
    -------
    Explorer
        Make it the last value of its cell.

    Raises
    ------
    ValueError
        If the controls are not one or two, an argument names another control, a value is missing
        or repeated, `draw` does not return a figure, a text is too short, or the frames are too
        large (30 kB each, 600 kB together).
    """
    options = _checked_controls(controls)
    names = _checked_labels(options, labels)
    first = _checked_start(options, start)
    ranges = _checked_ranges(options, live)

    frames = _draw_frames(draw, options, names, alt)
    sliders = {
        name: widgets.SelectionSlider(
            options=[(_value_text(value), value) for value in values],
            index=first[name],
            description=names[name],
            style={"description_width": "initial"},
            layout={"width": "min(100%, 28rem)"},
        )
        for name, values in options.items()
    }
    stack = _linked_stack(list(sliders.values()), frames)
    children = [*sliders.values(), stack, _live_panel(draw, options, names, alt, first, ranges)]
    summary = "; ".join(
        f"{names[name]} from {_value_text(values[0])} to {_value_text(values[-1])}, "
        f"{len(values)} values"
        for name, values in options.items()
    )
    return Explorer(children, summary)


def _checked_controls(controls: Any) -> dict[str, list[Any]]:
    if not isinstance(controls, Mapping) or len(controls) not in (1, 2):
        raise ValueError(f"controls: expected one or two named lists of values, got {controls!r}")
    options = {}
    for name, values in controls.items():
        if not isinstance(name, str) or not name.isidentifier():
            raise ValueError(f"controls: expected argument names of draw, got {name!r}")
        plain = [v.item() if isinstance(v, np.generic) else v for v in values]
        texts = [_value_text(v) for v in plain if _is_choice(v)]
        if len(plain) < 2 or len(texts) != len(plain) or len(set(texts)) != len(texts):
            raise ValueError(
                f"controls[{name!r}]: expected at least two values, finite numbers or texts, that "
                f"differ in their first four digits, got {values!r}"
            )
        options[name] = plain
    return options


def _is_choice(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, numbers.Real) and math.isfinite(value))


def _known(argument: str, given: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the mapping given, or raise if it names something other than a control."""
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not set(given) <= set(options):
        raise ValueError(
            f"{argument}: expected a mapping with keys among {list(options)}, got {given!r}"
        )
    return dict(given)


def _checked_labels(options: Mapping[str, list[Any]], labels: Any) -> dict[str, str]:
    names = {name: name for name in options} | _known("labels", labels, options)
    for name, text in names.items():
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"labels[{name!r}]: expected text, got {text!r}")
    return names


def _checked_start(options: Mapping[str, list[Any]], start: Any) -> dict[str, int]:
    given = _known("start", start, options)
    for name, value in given.items():
        if value not in options[name]:
            raise ValueError(f"start[{name!r}]: expected one of {options[name]}, got {value!r}")
    return {
        name: values.index(given[name]) if name in given else 0 for name, values in options.items()
    }


def _checked_ranges(options: Mapping[str, list[Any]], live: Any) -> dict[str, tuple[float, float]]:
    """Return the continuous range of each control that has only numbers."""
    ranges = {
        name: (float(min(values)), float(max(values)))
        for name, values in options.items()
        if all(isinstance(v, numbers.Real) for v in values)
    }
    for name, ends in _known("live", live, options).items():
        if name not in ranges:
            raise ValueError(f"live[{name!r}]: expected a control of numbers, got one of texts")
        try:
            low, high = map(float, ends)
        except (TypeError, ValueError) as error:
            raise ValueError(f"live[{name!r}]: expected (low, high), got {ends!r}") from error
        if not low < high:
            raise ValueError(f"live[{name!r}]: expected low < high, got {ends!r}")
        ranges[name] = (low, high)
    return ranges


def _value_text(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _settings_text(names: Mapping[str, str], values: Mapping[str, Any]) -> str:
    return ", ".join(f"{names[name]} = {_value_text(value)}" for name, value in values.items())


def _frame(
    draw: Draw, names: Mapping[str, str], alt: Describe, values: Mapping[str, Any]
) -> tuple[str, int]:
    """Draw one frame: its HTML and the bytes of its image."""
    fig = draw(**values)
    if not isinstance(fig, Figure):
        raise ValueError(f"draw: expected a matplotlib Figure, got {type(fig).__name__}")
    image = webp_bytes(fig)
    plt.close(fig)
    text = alt(**values)
    check_alt(text)
    data = base64.b64encode(image).decode("ascii")
    return figure_html(data, text, _settings_text(names, values)), len(image)


def _draw_frames(
    draw: Draw, options: Mapping[str, list[Any]], names: Mapping[str, str], alt: Describe
) -> list[str]:
    """Draw a frame for every combination of values, the last control moving fastest."""
    frames, total = [], 0
    for values in itertools.product(*options.values()):
        settings = dict(zip(options, values, strict=True))
        frame, size = _frame(draw, names, alt, settings)
        total += size
        if size > FRAME_BYTES or total > TOTAL_BYTES:
            raise ValueError(
                f"draw: expected frames of at most {FRAME_BYTES} bytes each and {TOTAL_BYTES} "
                f"together, got {size} and {total} at {_settings_text(names, settings)}: draw less "
                "in a frame, or fewer values"
            )
        frames.append(frame)
    return frames


def _linked_stack(sliders: list[widgets.SelectionSlider], frames: list[str]) -> widgets.Stack:
    """Return nested stacks of the frames, moved by the sliders in the browser."""
    slider, *inner = sliders
    per_value = len(frames) // len(slider.options)
    children = [
        _linked_stack(inner, frames[at : at + per_value]) if inner else widgets.HTML(frames[at])
        for at in range(0, len(frames), per_value)
    ]
    stack = widgets.Stack(children, selected_index=slider.index)
    widgets.jslink((slider, "index"), (stack, "selected_index"))
    return stack


def _live_panel(
    draw: Draw,
    options: Mapping[str, list[Any]],
    names: Mapping[str, str],
    alt: Describe,
    first: Mapping[str, int],
    ranges: Mapping[str, tuple[float, float]],
) -> widgets.VBox:
    """Return the panel that a kernel redraws; it holds no image until a control moves."""
    controls: dict[str, widgets.Widget] = {}
    for name, values in options.items():
        shared = {
            "description": names[name],
            "style": {"description_width": "initial"},
            "layout": {"width": "min(100%, 28rem)"},
        }
        if name in ranges:
            low, high = ranges[name]
            start = min(max(values[first[name]], low), high)
            whole = all(isinstance(v, numbers.Integral) for v in values)
            step = 1 if whole else (high - low) / _LIVE_STEPS
            slider = widgets.IntSlider if whole else widgets.FloatSlider
            limits = {"value": start, "min": low, "max": high, "step": step}
            controls[name] = slider(**limits, continuous_update=False, **shared)
        else:
            controls[name] = widgets.Dropdown(
                options=[(_value_text(v), v) for v in values], index=first[name], **shared
            )
    picture = widgets.HTML()

    def redraw(_change: Any) -> None:
        values = {name: control.value for name, control in controls.items()}
        try:
            picture.value, _ = _frame(draw, names, alt, values)
        except ValueError as error:
            # a value between the drawn ones may be outside the hypotheses: say so where it is seen
            picture.value = f'<p role="alert">{escape(str(error))}</p>'

    for control in controls.values():
        control.observe(redraw, names="value")
    note = widgets.HTML(
        "<p>With a running kernel: any value in the range, redrawn when you let go of a slider.</p>"
    )
    panel = widgets.VBox([note, *controls.values(), picture])
    panel.add_class(LIVE_CLASS)
    return panel
