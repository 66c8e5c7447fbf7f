"""Every live figure in Chromium with no kernel: moved by mouse, finger and keys, and compared.

The pages hold one figure each, or those of a chapter, with the site's own script and style sheet. Needs
Chromium: at /usr/bin/chromium, or where the environment variable CHROMIUM says.
"""

import gzip
import os
import re
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import assets
import live_figures
import notebooks
import numpy as np
import pytest
from live_kinds import KINDS, assert_equal_to_package

from companion.live import EXPLORABLES, link, site_script, style_sheet, widget_module
from companion.style import use_style

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
FLAGS += ["--disable-background-networking", "--disable-component-update"]
WIDE = {"viewport": {"width": 1280, "height": 900}, "color_scheme": "light"}
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "color_scheme": "dark",
    "has_touch": True,
    "is_mobile": True,
}
STILL = {"reduced_motion": "reduce"}
PROSE = {
    "selection_map": '<p>Gate <span class="live-map-gate1">96 %</span>, weight '
    '<span class="scrub-map-weight1">0.50</span>, <span class="ref-map-output">output</span>.</p>',
}

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not Path(CHROMIUM).exists(), reason=f"no Chromium at {CHROMIUM}: install it or set CHROMIUM"
    ),
]


def document(*parts):
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>A figure</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="icon" href="data:,"><link rel="stylesheet" href="live.css">'
        "<style>body{background:#fff;color:#222;max-width:700px;margin:1rem auto;padding:0 1rem}"
        "@media(prefers-color-scheme:dark){body{background:#121212;color:#ddd}}</style>"
        '<script src="live.js" defer></script></head><body><main><h1>A figure</h1>'
        + "".join(parts)
        + '<p style="height:100vh">After it.</p></main></body></html>'
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of a small site: a page for each kind of figure."""
    use_style()
    path = tmp_path_factory.mktemp("figures")
    live_figures.write(path)
    for kind, entry in KINDS.items():
        html = entry.example().html()
        (path / f"{kind}.html").write_text(document(html, PROSE.get(kind, "")), "utf-8")
    modules = path / "modules"
    shutil.copytree(EXPLORABLES, modules)
    shutil.copy(Path(__file__).with_name("live_demo.js"), modules)
    tail = "page.start({ live_demo: demo._default });"
    demo = f"(() => {{ {link({'live_demo': 'demo', 'page': 'page'}, tail, modules)} }})();"
    (path / "demo.js").write_text(demo, "utf-8")
    state = '{"name":"demo","title":"Demo","a":0.5,"b":10,"time":0}'
    html = (
        '<div class="explorable" data-kind="live_demo">'
        f'<script type="application/json">{state}</script></div>'
    )
    (path / "demo.html").write_text(document(html).replace("live.js", "demo.js"), "utf-8")
    html = KINDS["selection_map"].example().html()
    (path / "twice.html").write_text(document(html, html, PROSE["selection_map"]), "utf-8")
    return path


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves without a log."""

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def address(folder):
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=folder))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def chromium():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium):
    """Open a page; at the end nothing may have gone wrong on it."""
    pages = []

    def opened(url, **options):
        page = chromium.new_context(**options).new_page()
        page.trouble = []
        base = url.rpartition("/")[0]
        page.on("console", lambda message: page.trouble.append(message.text))
        page.on("pageerror", lambda error: page.trouble.append(str(error)))
        page.on(
            "request",
            lambda r: None if r.url.startswith((base, "data:")) else page.trouble.append(r.url),
        )
        page.goto(url)
        pages.append(page)
        if options.get("java_script_enabled", True):
            page.wait_for_selector(".explorable[data-ready]")
            page.wait_for_function("document.querySelector('.mx-sentence').textContent")
        return page

    yield opened
    for page in pages:
        page.context.close()
    assert [page.trouble for page in pages] == [[] for _ in pages]


def settle(page):
    """Wait until the last change has been drawn and told to the model."""
    page.wait_for_timeout(150)


def model(page, figure=0):
    """Return state and derived of a figure, as a kernel would hold them."""
    return page.evaluate(
        "i => { const m = document.querySelectorAll('.explorable')[i].model;"
        " return [m.get('state'), m.get('derived')]; }",
        figure,
    )


def seen(page):
    """Return the sentence and what a screen reader hears of the picture."""
    return (
        page.locator(".mx-sentence").first.inner_text(),
        page.locator(".mx-view > svg").first.get_attribute("aria-label"),
    )


def check(page, kind):
    settle(page)
    state, derived = model(page)
    assert_equal_to_package(kind, state, derived)
    return state


def center(locator):
    locator.scroll_into_view_if_needed()
    box = locator.bounding_box()
    return box["x"] + box["width"] / 2, box["y"] + box["height"] / 2


def room(page, handle, x, y, length=60):
    """Return a point `length` away from (x, y), towards the middle of the handle's view."""
    box = handle.evaluate("h => { const b = h.closest('.mx-view').getBoundingClientRect();"
                          " return [b.x + b.width / 2, b.y + b.height / 2]; }")  # fmt: skip
    axes = handle.get_attribute("data-axes")
    to = [
        length if box[0] >= x else -length,
        (length if box[1] >= y else -length) * 0.7,
    ]
    return x + to[0] * ("x" in axes), y + to[1] * ("y" in axes)


@pytest.fixture(params=["http", "file"])
def base(request, address, folder):
    return address if request.param == "http" else folder.as_uri()


@pytest.mark.parametrize("kind", KINDS)
def test_mouse_moves_every_handle(visit, base, kind):
    page = visit(f"{base}/{kind}.html", **WIDE)
    first = seen(page)
    for handle in page.locator(".mx-handle").all():
        before = check(page, kind)
        words = seen(page)
        x, y = center(handle)
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(*room(page, handle, x, y), steps=5)
        page.mouse.up()
        assert check(page, kind) != before
        assert seen(page)[1] != words[1]
        if handle.get_attribute("data-axes") == "xy":
            # The handle stays under the pointer.
            np.testing.assert_allclose(center(handle), room(page, handle, x, y), atol=1.5)
    assert seen(page)[0] != first[0]
    # once it is still, a screen reader hears the sentence
    page.wait_for_function(
        "() => { const [said, shown] = ['.mx-quiet', '.mx-sentence'].map(c =>"
        " document.querySelector(c).textContent); return said && said === shown; }"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_finger_moves_every_handle_and_the_page_stays(visit, base, kind):
    page = visit(f"{base}/{kind}.html", **PHONE, **STILL)
    session = page.context.new_cdp_session(page)

    def touch(type_, *point):
        points = [{"x": point[0], "y": point[1]}] if point else []
        session.send("Input.dispatchTouchEvent", {"type": type_, "touchPoints": points})

    for handle in page.locator(".mx-handle").all():
        assert handle.evaluate("h => Math.min(h.offsetWidth, h.offsetHeight)") >= 44
        before = check(page, kind)
        words = seen(page)
        x, y = center(handle)
        scrolled = page.evaluate("scrollY")
        end = room(page, handle, x, y)
        touch("touchStart", x, y)
        for s in np.linspace(0.2, 1, 5):
            touch("touchMove", x + s * (end[0] - x), y + s * (end[1] - y))
        touch("touchEnd")
        assert check(page, kind) != before
        assert seen(page) != words
        assert page.evaluate("scrollY") == scrolled
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("kind", KINDS)
def test_keys_move_every_handle_and_control(visit, base, kind):
    page = visit(f"{base}/{kind}.html", **WIDE, **STILL)
    start = check(page, kind)
    for handle in page.locator(".mx-handle").all():
        steps = []
        control = handle.locator("input").first
        for key in ("ArrowLeft", "Shift+ArrowLeft"):
            control.focus()
            page.keyboard.press("Home")
            settle(page)
            home, spoken = center(handle), control.get_attribute("aria-valuetext")
            page.keyboard.press(key)
            check(page, kind)
            steps.append(np.subtract(center(handle), home))
            assert control.get_attribute("aria-valuetext") != spoken
        assert np.hypot(*steps[1]) > 2 * np.hypot(*steps[0]) > 0
        page.keyboard.press("Home")
        assert check(page, kind) == start
    for slider in page.locator(".mx-slider input").all():
        before = check(page, kind)
        slider.focus()
        page.keyboard.press("ArrowLeft")
        assert check(page, kind) != before
    for choice in page.locator(".mx-choice").all():
        before = check(page, kind)
        choice.locator(":checked").focus()
        page.keyboard.press("ArrowRight")
        assert check(page, kind) != before
    page.get_by_role("button", name="Start again").focus()
    page.keyboard.press("Enter")
    assert check(page, kind) == start


@pytest.mark.parametrize("kind", KINDS)
def test_buttons_lead_to_states_and_back(visit, base, kind):
    page = visit(f"{base}/{kind}.html", **WIDE, **STILL)
    start = check(page, kind)
    for button in page.locator(".mx-places button").all():
        if button.inner_text() == "Start again":
            continue
        button.click()
        assert check(page, kind) != start, button.inner_text()
        page.get_by_role("button", name="Start again").click()
        assert check(page, kind) == start


@pytest.mark.parametrize("kind", KINDS)
def test_states_from_outside_are_drawn_and_agree_with_the_package(visit, base, kind, rng):
    page = visit(f"{base}/{kind}.html", **WIDE, **STILL)
    start, _ = model(page)
    for _ in range(10):
        state = start | KINDS[kind].random_state(rng)
        page.evaluate("s => document.querySelector('.explorable').model.set('state', s)", state)
        settle(page)
        got, derived = model(page)
        assert got == state
        assert_equal_to_package(kind, got, derived)


@pytest.mark.parametrize("kind", KINDS)
def test_without_scripts_the_still_and_its_text_stand(visit, base, kind):
    page = visit(f"{base}/{kind}.html", **WIDE, java_script_enabled=False)
    image = page.locator(".explorable img")
    assert image.is_visible()
    assert len(image.get_attribute("alt")) > 60
    assert image.evaluate("i => i.complete && i.naturalWidth > 300")
    assert page.locator(".mx-figure").count() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_print_shows_the_still(visit, folder, kind):
    page = visit(f"{folder.as_uri()}/{kind}.html", **WIDE)
    assert not page.locator(".explorable img").is_visible()
    page.emulate_media(media="print")
    assert page.locator(".explorable img").is_visible()
    assert not page.locator(".mx-figure").is_visible()


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_a_preset_glides_unless_motion_is_unwelcome(visit, folder, motion):
    page = visit(f"{folder.as_uri()}/selection_map.html", **WIDE, reduced_motion=motion)
    values = page.evaluate(
        """async () => {
            const shown = () => document.querySelectorAll(".mx-slider output")[1].textContent;
            const seen = new Set([shown()]);
            [...document.querySelectorAll("button")].find(b => b.textContent === "Equal variances").click();
            for (let i = 0; i < 60; i++) {
                await new Promise(requestAnimationFrame);
                seen.add(shown());
            }
            return [...seen];
        }"""
    )
    assert values[0] == "1.00"
    assert values[-1] == "0.50"
    assert (len(values) == 2) == (motion == "reduce")


def test_a_handle_on_a_line_moves_along_it(visit, base):
    page = visit(f"{base}/demo.html", **WIDE, **STILL)
    for part, keys, moved in (
        ("a", ("ArrowRight", "ArrowUp"), 0.55),
        ("b", ("ArrowUp", "ArrowRight"), 11),
    ):
        handle = page.locator(f".mx-handle[data-part={part}]")
        assert handle.locator("input").count() == 1
        for key in keys:
            handle.locator("input").focus()
            page.keyboard.press("Home")
            page.keyboard.press(key)
            settle(page)
            assert model(page)[0][part] == pytest.approx(moved)
        x, y = center(handle)
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x + 50, y - 50, steps=5)
        page.mouse.up()
        settle(page)
        across = np.abs(np.subtract(center(handle), (x, y)))
        np.testing.assert_allclose(np.sort(across), [0, 50], atol=1)
    state, derived = model(page)
    assert derived == {"product": state["a"] * state["b"]}
    # Between the ticks of the chart, at the edges of the box.
    texts = page.locator(".mx-axes text").evaluate_all("nodes => nodes.map(n => n.textContent)")
    assert texts == ["0.0", "0.5", "1.0", "1.5", "2.0", "\u221210", "0", "10", "20", "30", "a", "b"]


@pytest.mark.parametrize("motion", ["reduce", "no-preference"])
def test_an_animation_pauses_goes_on_and_ends(visit, folder, motion):
    page = visit(f"{folder.as_uri()}/demo.html", **WIDE, reduced_motion=motion)
    buttons = page.locator(".mx-places button")
    buttons.first.click()
    if motion == "no-preference":
        page.wait_for_function("document.querySelector('.explorable').model.get('state').time > 0")
        assert buttons.first.inner_text() == "Pause"
        buttons.first.click()
        settle(page)
        time = model(page)[0]["time"]
        assert 0 < time < 1
        settle(page)
        assert model(page)[0]["time"] == time
        assert buttons.first.inner_text() == "Go on"
        buttons.first.click()
        page.wait_for_function("document.querySelector('.explorable').model.get('state').time == 1")
    settle(page)
    assert model(page)[0]["time"] == 1
    assert buttons.first.inner_text() == "Play"
    settle(page)
    assert model(page)[0]["time"] == 1  # no loop
    page.get_by_role("button", name="Start again").click()
    page.wait_for_function("document.querySelector('.explorable').model.get('state').time == 0")
    page.wait_for_timeout(600)
    assert model(page)[0]["time"] == 0


def test_text_follows_the_figure_and_leads_it(visit, base):
    page = visit(f"{base}/selection_map.html", **WIDE, **STILL)
    gate = page.locator(".live-map-gate1")
    before = gate.inner_text()
    number = page.locator(".scrub-map-weight1")
    number.focus()
    page.keyboard.press("PageUp")
    page.keyboard.press("ArrowLeft")
    state = check(page, "selection_map")
    assert number.inner_text() == "0.59"
    assert state["weights"] == pytest.approx([0.59, 0.41])
    assert gate.inner_text() != before
    word = page.locator(".ref-map-output")
    word.click()
    assert word.get_attribute("aria-pressed") == "true"
    assert page.locator(".mx-label.mx-lit").text_content() == "output"


def test_of_two_figures_with_one_name_the_text_follows_the_last_moved(visit, base):
    page = visit(f"{base}/twice.html", **WIDE, **STILL)
    gate = page.locator(".live-map-gate1")

    def gates():
        settle(page)
        return [f"{round(100 * model(page, i)[1]['gates'][0])}\u00a0%" for i in (0, 1)]

    for moved in (1, 0):
        page.locator(".mx-handle[data-part=query] input").nth(2 * moved).focus()
        for _ in range(2 + moved):
            page.keyboard.press("Shift+ArrowLeft")
        shown = gates()
        assert shown[0] != shown[1]
        assert gate.inner_text() == shown[moved]


def texts_and_figures(notebook):
    """Return what the text of a notebook shows of its figures, {class: text}, and their HTML."""
    cells = notebooks.read(notebook).cells
    prose = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    outputs = (output for cell in cells for output in cell.get("outputs", []))
    bundles = ("".join(output.get("data", {}).get("text/html", "")) for output in outputs)
    html = [bundle for bundle in bundles if live_figures.MARK in bundle]
    return re.findall(r'class="((?:live|scrub)-[^"]+)">([^<]*)</span>', prose), html


WITH_FIGURES = [
    path for path in sorted((notebooks.ROOT / "book").glob("*.ipynb")) if texts_and_figures(path)[1]
]


@pytest.mark.parametrize("notebook", WITH_FIGURES, ids=lambda path: path.stem)
def test_numbers_of_the_text_are_those_of_the_figure_as_it_opens(visit, folder, notebook):
    written, html = texts_and_figures(notebook)
    # The figure has to write every number itself: one that it does not know would stay as it is.
    spans = [f'<p><span class="{name}">not written</span></p>' for name, _ in written]
    (folder / "text.html").write_text(document(*html, *spans), "utf-8")
    page = visit(f"{folder.as_uri()}/text.html", **WIDE, **STILL)
    page.wait_for_function(
        "[...document.querySelectorAll('.mx-sentence')].every(s => s.textContent)"
    )
    shown = page.locator("main > p > span").evaluate_all(
        "spans => spans.map(s => [s.className, s.textContent])"
    )
    assert [tuple(pair) for pair in shown] == written


def test_a_region_inside_the_other_has_its_name_in_it(visit, base):
    page = visit(f"{base}/selection_map.html", **WIDE, **STILL)
    page.get_by_role("button", name="Wide around narrow").click()
    check(page, "selection_map")
    for k, name in enumerate(("1 selected", "2 selected")):
        label = page.locator(".mx-region", has_text=name)
        assert label.is_visible()
        x, y = center(label)
        page.mouse.click(x, y)  # a click brings the query there
        settle(page)
        assert int(np.argmax(model(page)[1]["gates"])) == k


@pytest.mark.parametrize("view", [WIDE, PHONE], ids=["wide-light", "phone-dark"])
@pytest.mark.parametrize("kind", KINDS)
def test_axe_finds_nothing_at_a_and_aa(visit, folder, kind, view):
    page = visit(f"{folder.as_uri()}/{kind}.html", **view, **STILL)
    page.evaluate(assets.member("axe-core", "axe.min.js").decode("utf-8"))
    tags = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"]
    found = page.evaluate(
        "tags => axe.run(document, {runOnly: tags, resultTypes: ['violations'], preload: false})",
        tags,
    )
    assert [(v["id"], [n["html"][:120] for n in v["nodes"]]) for v in found["violations"]] == []
    assert found["passes"]


def test_forced_colors_keep_every_part_visible(visit, folder):
    page = visit(f"{folder.as_uri()}/selection_map.html", **WIDE, forced_colors="active")
    background = page.locator(".mx-view").evaluate("e => getComputedStyle(e).backgroundColor")
    strokes = page.locator(".mx-line:not(.mx-soft)").evaluate_all(
        "lines => lines.map(l => getComputedStyle(l).stroke)"
    )
    assert strokes
    assert background not in strokes


def test_budgets_in_bytes_over_the_wire():
    def size(text):
        return len(gzip.compress(text.encode("utf-8"), mtime=0))

    figures = {kind: size(widget_module(kind)) for kind in KINDS}
    assert size(style_sheet()) <= 3_000
    assert size(site_script()) + size(style_sheet()) <= 30_000
    assert max(figures.values()) <= 15_000
