"""The look of the figures, and what one shown figure leaves in a notebook."""

import base64
import io
import itertools
from html.parser import HTMLParser
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient
from PIL import Image

from companion import show_figure, style, use_style
from companion.style import BACKGROUND, COLORS, DIVERGING, SEQUENTIAL, webp_bytes

SOURCE = Path(__file__).parents[2] / "src"
ALT = "A straight line from the origin up to one."


@pytest.fixture(autouse=True)
def _matplotlib_state():
    backend = mpl.get_backend()
    mpl.use("Agg")
    use_style()
    yield
    plt.close("all")
    mpl.rcdefaults()
    mpl.use(backend)


def relative_luminance(color):
    """WCAG's definition."""
    c = np.array(mpl.colors.to_rgb(color))
    linear = np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def contrast(one, other):
    high, low = sorted((relative_luminance(one), relative_luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def line_figure():
    fig, ax = plt.subplots()
    ax.plot([0, 1], [0, 1], label="f")
    ax.legend()
    return fig


def test_cycle_never_relies_on_color_alone():
    cycle = list(mpl.rcParams["axes.prop_cycle"])
    for one, other in itertools.combinations(cycle, 2):
        assert one["color"] != other["color"]
        assert one["linestyle"] != other["linestyle"]


def test_first_curves_stand_out_from_the_background():
    cycle = [entry["color"] for entry in mpl.rcParams["axes.prop_cycle"]]
    assert all(contrast(color, BACKGROUND) > 2.8 for color in cycle[:5])
    assert contrast(COLORS["grey"], BACKGROUND) > 4.5
    assert relative_luminance(BACKGROUND) > 0.95


def test_first_colors_differ_for_a_deuteranope():
    # the confusion matrix of Machado, Oliveira and Fernandes (2009) at full severity
    machado = np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    )
    seen = [machado @ mpl.colors.to_rgb(COLORS[n]) for n in ("blue", "vermillion", "green")]
    assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(seen, 2)) > 0.2


def test_sequential_map_is_monotone_in_grey():
    lightness = [relative_luminance(SEQUENTIAL(t)) for t in np.linspace(0, 1, 64)]
    assert np.all(np.diff(lightness) > 0)


def test_diverging_map_is_palest_in_the_middle():
    lightness = np.array([relative_luminance(DIVERGING(t)) for t in np.linspace(0, 1, 65)])
    assert lightness.argmax() == 32
    assert mpl.colors.to_hex(DIVERGING(0.0)).upper() == COLORS["vermillion"]
    assert mpl.colors.to_hex(DIVERGING(1.0)).upper() == COLORS["blue"]


def test_image_is_deterministic_small_and_opaque():
    first, second = webp_bytes(line_figure()), webp_bytes(line_figure())
    assert first == second
    assert len(first) < 30_000
    image = Image.open(io.BytesIO(first)).convert("RGBA")
    assert np.asarray(image)[..., 3].min() == 255
    corner = np.asarray(image)[0, 0, :3]
    assert corner.min() > 245


def test_layout_gives_a_label_its_room():
    fig = line_figure()
    fig.axes[0].set_ylabel("a label that needs room", fontsize=30)
    crowded = np.asarray(Image.open(io.BytesIO(webp_bytes(fig))).convert("L"))
    assert crowded[:, :3].min() > 200
    assert crowded[:, 3:80].min() < 100


def test_long_log_axes_have_no_minor_ticks():
    fig, ax = plt.subplots()
    ax.loglog([1.0, 1e3], [1e-9, 1.0])
    webp_bytes(fig)
    assert len(ax.xaxis.get_minorticklocs()) > 10
    assert len(ax.yaxis.get_minorticklocs()) == 0
    assert len(ax.yaxis.get_majorticklocs()) > 3


def test_text_is_legible_on_a_phone():
    shown = 360 / (mpl.rcParams["figure.figsize"][0] * 72)
    for size in ("font.size", "axes.labelsize", "xtick.labelsize", "legend.fontsize"):
        assert mpl.rcParams[size] * shown >= 8.9


def test_figure_is_closed():
    fig = line_figure()
    show_figure(fig, ALT)
    assert not plt.fignum_exists(fig.number)


@pytest.mark.parametrize("alt", ["", "   ", "a line", None, 3])
def test_poor_alternative_text_is_refused(alt):
    with pytest.raises(ValueError, match="alt"):
        show_figure(line_figure(), alt)


def test_bad_figure_and_caption_are_refused():
    with pytest.raises(ValueError, match="fig: expected a matplotlib Figure, got Axes"):
        show_figure(line_figure().axes[0], ALT)
    with pytest.raises(ValueError, match="caption"):
        show_figure(line_figure(), ALT, caption=" ")


def test_heavy_figure_is_refused():
    fig, ax = plt.subplots(figsize=(10, 10))
    ax.imshow(np.random.default_rng(0).random((900, 900, 3)), aspect="auto")
    with pytest.raises(ValueError, match="at most 60000 bytes"):
        show_figure(fig, ALT)


class Figure(HTMLParser):
    """Reads the element that a figure leaves in a notebook."""

    def __init__(self, text):
        super().__init__()
        self.attributes, self.caption, self._inside = {}, "", None
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.attributes[tag], self._inside = dict(attrs), tag

    def handle_data(self, data):
        if self._inside == "figcaption":
            self.caption += data


def drawn(html):
    """The image in a figure element."""
    kind, data = Figure(html).attributes["img"]["src"].split(",")
    assert kind == "data:image/webp;base64"
    return Image.open(io.BytesIO(base64.b64decode(data)))


@pytest.fixture
def shown(monkeypatch):
    """The HTML of the figures that are shown."""
    listed = []
    monkeypatch.setattr(style, "display", lambda bundle, raw: listed.append(bundle["text/html"]))
    return listed


def test_figure_says_its_words_and_its_size(shown):
    alt, caption = 'A "line" that rises from < 0 to > 1.', 'It "rises" & ends.'
    show_figure(line_figure(), alt, caption)
    figure = Figure(shown[0])
    assert figure.attributes["img"]["alt"] == alt
    assert figure.caption == caption
    # the layout knows the size; the image is denser than the layout
    assert (figure.attributes["img"]["width"], figure.attributes["img"]["height"]) == ("614", "384")
    assert drawn(shown[0]).size == (921, 576)  # 1.5 times as dense


def test_id_of_a_figure_follows_from_its_words(shown):
    other = line_figure()
    other.axes[0].plot([1, 0], [0, 1])
    show_figure(line_figure(), ALT, "One.")
    show_figure(other, ALT, "One.")
    show_figure(line_figure(), ALT, "Two.")
    show_figure(line_figure(), ALT + " Again.", "One.")
    ids = [Figure(html).attributes["figure"]["id"] for html in shown]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3
    assert shown[0] != shown[1]


@pytest.mark.parametrize("exporter", ["HTMLExporter", "SlidesExporter", "MarkdownExporter"])
def test_exporters_keep_the_figure_and_its_words(shown, exporter):
    nbconvert = pytest.importorskip("nbconvert")
    show_figure(line_figure(), ALT, "It rises.")
    output = nbformat.v4.new_output("display_data", data={"text/html": shown[0]})
    cell = nbformat.v4.new_code_cell("show_figure(...)", outputs=[output], execution_count=1)
    notebook = nbformat.v4.new_notebook(cells=[cell])
    page, _ = getattr(nbconvert, exporter)().from_notebook_node(notebook)
    assert f'alt="{ALT}"' in page
    assert "data:image/webp;base64," in page
    assert "<figcaption>It rises.</figcaption>" in page


def test_notebook_holds_one_output(monkeypatch):
    source = f"""\
import matplotlib.pyplot as plt
from companion import show_figure, use_style
use_style()
fig, ax = plt.subplots()
ax.plot([0, 1], [0, 1])
show_figure(fig, {ALT!r}, caption="It rises & > it ends.")"""
    notebook = nbformat.v4.new_notebook(
        cells=[nbformat.v4.new_code_cell(source), nbformat.v4.new_code_cell("plt.get_fignums()")]
    )
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    [output] = notebook.cells[0].outputs
    assert output.output_type == "display_data"
    assert set(output.data) == {"text/html", "text/plain"}
    assert output.data["text/plain"] == f"<Figure: {ALT}>\nIt rises & > it ends."
    image = drawn(output.data["text/html"])
    assert image.format == "WEBP"
    assert image.size == (921, 576)
    assert notebook.cells[1].outputs[0].data["text/plain"] == "[]"
