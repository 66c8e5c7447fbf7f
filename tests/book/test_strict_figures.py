"""The strict comparison of chapters takes a figure for the stored one only if it shows the same."""

import base64
import importlib.util
import io

import pytest
from notebooks import ROOT
from PIL import Image, ImageDraw

spec = importlib.util.spec_from_file_location("strict", ROOT / "book" / "conftest.py")
strict = importlib.util.module_from_spec(spec)
spec.loader.exec_module(strict)


def picture(slope=0.5, moved=0, size=(640, 400), dot=0):
    """Draw a dashed line over a frame, and a dot; return the picture as a notebook stores it."""
    image = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(image)
    draw.rectangle((40 + moved, 20, 600 + moved, 360), outline="black")
    for x in range(40, 600, 20):
        ends = [(t + moved, 360 - slope * (t - 40)) for t in (x, x + 10)]
        draw.line(ends, fill="blue", width=3)
    draw.ellipse((300, 100, 300 + dot, 100 + dot), fill="black")
    buffer = io.BytesIO()
    image.save(buffer, format="webp", quality=80)
    return base64.b64encode(buffer.getvalue()).decode()


@pytest.mark.parametrize("change", [{}, {"moved": 1}, {"moved": 2}])
def test_a_figure_moved_by_rounding_is_the_same(change):
    assert strict.alike(picture(), picture(**change))


@pytest.mark.parametrize(
    "change",
    [{"slope": 0.45}, {"slope": 0.55}, {"moved": 8}, {"size": (640, 401)}, {"dot": 24}],
)
def test_another_figure_is_seen_from_either_side(change):
    assert not strict.alike(picture(), picture(**change))
    assert not strict.alike(picture(**change), picture())


def outputs(image):
    html = f'<figure><img alt="A line." src="data:image/webp;base64,{image}"></figure>'
    return [
        {"output_type": "stream", "text": "1\n"},
        {"output_type": "display_data", "data": {"text/html": html, "image/webp": image}},
    ]


def test_outputs_equal_the_stored_ones_where_their_figures_do():
    stored = outputs(picture())
    assert outputs(picture(moved=1)) != stored
    assert strict.with_stored_figures(outputs(picture(moved=1)), stored) == stored
    wrong = outputs(picture(slope=0.2))
    assert strict.with_stored_figures(wrong, stored) == wrong
    assert strict.with_stored_figures(wrong, stored[:1]) == wrong
