"""The live figure in a cell: what a notebook holds of it, and what is refused."""

import io
import json
import re
from html import unescape

import matplotlib.pyplot as plt
import numpy as np
import pytest
from PIL import Image

from companion import live
from companion.explorables.selection_map import selection_map
from companion.explorables.token_cloud import token_cloud
from companion.live import LiveFigure, kinds, link, site_script, widget_module
from mixattn import GaussianMixture

PAIR = GaussianMixture([0.5, 0.5], [[1.6, 0.4], [-1.4, -0.6]], np.eye(2))
ALT = "A grey square, which stands for a picture."


def webp(size=(40, 30)):
    buffer = io.BytesIO()
    Image.new("RGB", size, "grey").save(buffer, format="webp")
    return buffer.getvalue()


def figure(**changes):
    arguments = {"state": {"query": [0, 1]}, "name": "map", "title": "A map", "alt": ALT}
    arguments |= {"kind": "selection_map", "still": webp()} | changes
    return LiveFigure(arguments.pop("kind"), arguments.pop("state"), **arguments)


def test_a_cell_holds_a_widget_and_the_same_figure_as_html():
    shown = figure(alt='Tokens "a" < b & others, drawn.')
    data, _ = shown._repr_mimebundle_()
    assert data["application/vnd.jupyter.widget-view+json"]["model_id"] == shown.model_id
    html = data["text/html"]
    state = re.search(r'<script type="application/json">(.*?)</script>', html).group(1)
    assert json.loads(state) == shown.state == {"name": "map", "title": "A map", "query": [0, 1]}
    assert unescape(re.search(r'alt="([^"]*)"', html).group(1)) == 'Tokens "a" < b & others, drawn.'
    assert 'data-kind="selection_map"' in html
    assert "0x" not in repr(shown)


def test_html_keeps_the_first_state_and_cannot_end_its_script():
    shown = figure(state={"text": "</script><b>"})
    before = shown.html()
    assert "</script><b>" not in before
    shown.state = shown.state | {"text": "moved"}
    assert shown.html() == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "nothing"}, "kind: expected one of .*got 'nothing'"),
        ({"name": "My map"}, "name: expected .*got 'My map'"),
        ({"title": " "}, "title: expected text"),
        ({"alt": "short"}, "alt: expected at least"),
        ({"state": {"x": float("nan")}}, "state: expected finite"),
        ({"state": {"x": np.eye(2)}}, "state: expected finite"),
        ({"state": {"x": "a" * 20_000}}, "state: expected at most 10000 bytes"),
        ({"still": b"GIF89a"}, "still: expected a matplotlib Figure or webp, got bytes"),
        ({"still": webp() + bytes(30_000)}, "still: expected at most 20000 bytes"),
    ],
)
def test_refusals_name_the_argument(change, message):
    with pytest.raises(ValueError, match=message):
        figure(**change)


def test_a_still_that_is_a_figure_is_closed():
    fig = plt.figure()
    figure(still=fig)
    assert not plt.fignum_exists(fig.number)


def test_figures_of_the_chapters_refuse_what_they_cannot_draw():
    line = GaussianMixture([1.0], [[0.0]], [[1.0]])
    plane = GaussianMixture([1.0], [[0.0, 0.0]], np.eye(2))
    with pytest.raises(ValueError, match="mixture: expected 2 components in dimension 2, got 1 in"):
        selection_map(plane, [0, 0])
    with pytest.raises(ValueError, match=r"query: expected shape \(2,\)"):
        selection_map(PAIR, [0, 0, 0])
    with pytest.raises(ValueError, match="mixture: expected dimension 2, got 1"):
        token_cloud(line, [0, 0])
    with pytest.raises(ValueError, match=r"query: expected shape \(2,\)"):
        token_cloud(plane, 0)
    with pytest.raises(ValueError, match="length: expected an integer from 1 to 1000, got 2000"):
        token_cloud(plane, [0, 0], length=2000)
    with pytest.raises(ValueError, match="seed: expected an integer from 1 to 1000000, got 0"):
        token_cloud(plane, [0, 0], seed=0)


@pytest.mark.parametrize(
    "make", [lambda: selection_map(PAIR, [1, 1]), lambda: token_cloud(PAIR, [1, 1])]
)
def test_stills_are_small_and_the_same_each_time(make):
    first = make().html()
    assert first == make().html()
    assert len(first) < 4 / 3 * live.STILL_BYTES + live.STATE_BYTES


def modules(folder, **sources):
    for name, source in sources.items():
        (folder / f"{name}.js").write_text(source, "utf-8")
    return folder


def test_link_puts_a_module_after_what_it_needs_and_once(tmp_path):
    folder = modules(
        tmp_path,
        a='// why\nimport { two as b } from "./b.js";\nimport { one } from "./c.js";\nexport const sum = b() + one;\n',
        b='import { one } from "./c.js";\n/** doc */\nexport function two() {\n  return 2 * one; // kept\n}\n',
        c="export const one = 1;\n",
    )
    text = link({"a": "entry"}, "entry.sum;", folder)
    order = [text.index(f"const ${name} =") for name in "cba"]
    assert order == sorted(order)
    assert text.count("const one = 1") == 1
    assert "why" not in text
    assert "doc" not in text
    assert "// kept" in text


@pytest.mark.parametrize(
    "source",
    [
        'import x from "./b.js";\n',
        'import * as x from "./b.js";\n',
        'import { x } from "elsewhere";\n',
        "export { x };\n",
        'export * from "./b.js";\n',
        "export let x = 1;\n",
    ],
)
def test_link_refuses_what_it_cannot_join(tmp_path, source):
    with pytest.raises(ValueError, match=re.escape(f"a.js: cannot join {source.strip()!r}")):
        link({"a": "entry"}, "", modules(tmp_path, a=source, b=""))


def test_site_gets_one_classic_script_and_a_widget_one_module():
    script = site_script()
    assert not re.search(r"^(import|export)\b", script, re.M)
    for kind in kinds():
        assert f"{kind}: ${kind}._default" in script
        module = widget_module(kind)
        assert re.findall(r"^export\b.*", module, re.M) == ["export default entry._default;"]
        assert not re.search(r"^import\b", module, re.M)
