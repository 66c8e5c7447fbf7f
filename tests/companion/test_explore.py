"""Explorers as a kernel leaves them in a notebook, and what they refuse."""

import re
from html import unescape
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

from companion import explorer
from companion.explore import LIVE_CLASS

SOURCE = Path(__file__).parents[2] / "src"
WIDGET_MIME = "application/vnd.jupyter.widget-view+json"
STATE_MIME = "application/vnd.jupyter.widget-state+json"


@pytest.fixture(autouse=True)
def _agg():
    backend = mpl.get_backend()
    mpl.use("Agg")
    yield
    plt.close("all")
    mpl.use(backend)


def draw(slope, shift=0.0):
    if slope > 3:
        raise ValueError("slope: expected at most 3 & no more")
    fig, ax = plt.subplots(figsize=(3, 2))
    ax.plot([0, 1], [shift, shift + slope])
    ax.set_ylim(0, 5)
    return fig


def describe(slope, shift=0.0):
    return f"A line of slope {slope:g} that starts at {shift:g}."


def alt_of(html):
    return unescape(re.search(r'alt="([^"]*)"', html.value)[1])


def two():
    return explorer(
        draw,
        {"slope": [1, 2.5], "shift": [0.0, 0.5, 1.0]},
        labels={"slope": "Slope"},
        alt=describe,
        start={"slope": 2.5, "shift": 0.5},
    )


def test_one_control():
    widget = explorer(draw, {"slope": [1.0, 2.0, 3.0]}, alt=describe)
    slider, stack, live = widget.children
    assert [alt_of(frame) for frame in stack.children] == [describe(s) for s in (1, 2, 3)]
    assert slider.index == stack.selected_index == 0
    assert slider.description == "slope"
    assert LIVE_CLASS in live._dom_classes
    assert repr(widget) == "<Explorer: slope from 1 to 3, 3 values>"
    assert plt.get_fignums() == []


def test_two_controls_are_nested():
    slope, shift, outer, _live = two().children
    assert (slope.index, shift.index, outer.selected_index) == (1, 1, 1)
    for row, value in zip(outer.children, (1, 2.5), strict=True):
        assert row.selected_index == 1
        assert [alt_of(frame) for frame in row.children] == [
            describe(value, s) for s in (0, 0.5, 1)
        ]
    assert "Slope = 2.5, shift = 0.5</figcaption>" in outer.children[1].children[1].value


def test_live_panel_redraws_between_the_values():
    *_, live = two().children
    _note, slope, shift, picture = live.children
    assert picture.value == ""
    assert (slope.value, shift.value) == (2.5, 0.5)
    slope.value = 1.75
    assert alt_of(picture) == describe(slope.value, 0.5)
    assert abs(slope.value - 1.75) < 0.01
    shift.value = 0.25
    assert "shift = 0.25</figcaption>" in picture.value
    assert plt.get_fignums() == []


def test_live_panel_says_why_it_cannot_draw():
    widget = explorer(draw, {"slope": [1.0, 2.0]}, alt=describe, live={"slope": (0.0, 4.0)})
    _note, slope, picture = widget.children[-1].children
    slope.value = 4.0
    assert picture.value == '<p role="alert">slope: expected at most 3 &amp; no more</p>'


def test_whole_numbers_stay_whole_and_texts_get_a_list():
    seen = []

    def spy(count, law):
        seen.append((count, law))
        return draw(1.0)

    widget = explorer(
        spy,
        {"count": np.array([1, 10]), "law": ["Gaussian", "Rademacher"]},
        alt=lambda count, law: f"{count} tokens drawn from the {law} law",
    )
    _note, count, law, _picture = widget.children[-1].children
    count.value = 7
    law.value = "Rademacher"
    assert seen[-1] == (7, "Rademacher")
    assert all(isinstance(number, int) for number, _ in seen)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"controls": {}}, "one or two"),
        ({"controls": {"a": [1, 2], "b": [1, 2], "c": [1, 2]}}, "one or two"),
        ({"controls": ["slope"]}, "one or two"),
        ({"controls": {"the slope": [1, 2]}}, "argument names"),
        ({"controls": {"slope": [1]}}, "at least two"),
        ({"controls": {"slope": [1, 1.0]}}, "differ"),
        ({"controls": {"slope": [1, None]}}, "at least two values"),
        ({"controls": {"slope": [1, float("nan")]}}, "finite"),
        ({"labels": {"slop": "Slope"}}, "labels"),
        ({"labels": {"slope": " "}}, "labels"),
        ({"start": {"slope": 1.5}}, "start"),
        ({"start": {"slop": 1}}, "start"),
        ({"live": {"slop": (0, 1)}}, "live"),
        ({"live": {"slope": (1, 0)}}, "low < high"),
        ({"live": {"slope": 3}}, r"\(low, high\)"),
        ({"controls": {"slope": ["a", "b"]}, "live": {"slope": (0, 1)}}, "texts"),
        ({"draw": lambda slope: slope}, "draw: expected a matplotlib Figure, got int"),
        ({"alt": lambda slope: "a line"}, "alt"),
    ],
)
def test_bad_use_is_refused(changes, message):
    arguments = {"draw": draw, "controls": {"slope": [1, 2]}, "alt": describe} | changes
    with pytest.raises(ValueError, match=message):
        explorer(arguments.pop("draw"), arguments.pop("controls"), **arguments)


def test_heavy_frames_are_refused():
    def noise(seed):
        fig, ax = plt.subplots(figsize=(6, 4))
        ax.imshow(np.random.default_rng(seed).random((400, 600, 3)))
        return fig

    with pytest.raises(ValueError, match=r"at most 30000 bytes each .* at seed = 1"):
        explorer(noise, {"seed": [1, 2]}, alt=lambda seed: f"noise drawn from the seed {seed}")


def test_notebook_holds_the_links_and_a_stable_text(monkeypatch):
    source = """\
import matplotlib.pyplot as plt
from companion import explorer

def draw(slope, shift):
    fig, ax = plt.subplots(figsize=(3, 2))
    ax.plot([0, 1], [shift, shift + slope])
    return fig

explorer(draw, {"slope": [1, 2], "shift": [0.0, 0.5, 1.0]},
         alt=lambda slope, shift: f"A line of slope {slope} that starts at {shift}.")"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    [output] = notebook.cells[0].outputs
    assert output.data["text/plain"] == (
        "<Explorer: slope from 1 to 2, 2 values; shift from 0 to 1, 3 values>"
    )
    state = notebook.metadata.widgets[STATE_MIME]["state"]
    assert output.data[WIDGET_MIME]["model_id"] in state
    names = [model["model_name"] for model in state.values()]
    assert names.count("LinkModel") == 3  # the outer stack, and one inner stack a slope
    assert names.count("StackModel") == 3
    for model in state.values():
        if model["model_name"] == "LinkModel":
            (source_id, attribute), (target_id, selected) = (
                model["state"]["source"],
                model["state"]["target"],
            )
            assert (attribute, selected) == ("index", "selected_index")
            slider = state[source_id.removeprefix("IPY_MODEL_")]
            stack = state[target_id.removeprefix("IPY_MODEL_")]
            assert slider["model_name"] == "SelectionSliderModel"
            assert len(slider["state"]["_options_labels"]) == len(stack["state"]["children"])
