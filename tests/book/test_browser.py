"""The built site in Chromium, with every other machine out of reach.

Needs Chromium: at /usr/bin/chromium, or where the environment variable CHROMIUM says.
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
import pytest
from notebooks import ROOT

SITE = ROOT / "_build" / "html"
PAGES = sorted(
    path.relative_to(SITE).as_posix()
    for path in [*SITE.glob("*.html"), *SITE.glob("book/*.html")]
    if path.name != "index.html"  # the front address only leads to the first page
)
CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or "/usr/bin/chromium"
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"width": 390, "height": 844}
WIDE = {"width": 1280, "height": 900}
#: Complaints of third-party code about itself that no reader meets.
HARMLESS = ("strictTypes",)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        not Path(CHROMIUM).exists(), reason=f"no Chromium at {CHROMIUM}: install it or set CHROMIUM"
    ),
]


class QuietHandler(SimpleHTTPRequestHandler):
    """Serves without a log."""

    def log_message(self, *args):
        pass


@pytest.fixture(scope="module")
def address(site):
    """Loopback address at which the site is served."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=site))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
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


COUNT_SHIFTS = """
window.layoutShift = 0;
new PerformanceObserver(list => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.layoutShift += entry.value;
}).observe({type: "layout-shift", buffered: true});
"""


def open_page(chromium, base, path, viewport=WIDE, scheme="light"):
    """Open a page and wait until it stands; what went wrong is kept in `page.trouble`."""
    context = chromium.new_context(viewport=viewport, color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    page.trouble = []

    def keep(kind, text):
        if not any(harmless in text for harmless in HARMLESS):
            page.trouble.append(f"{kind}: {text}")

    def request(route):
        url = route.request.url
        if url.startswith(("data:", "blob:", base)):
            route.continue_()
        else:
            keep("request", url)
            route.abort()

    page.route("**/*", request)
    page.add_init_script(COUNT_SHIFTS)
    page.loaded = set()
    page.on("requestfinished", lambda r: page.loaded.add(r.url.removeprefix(f"{base}/")))
    page.on("console", lambda m: keep(m.type, m.text) if m.type in {"error", "warning"} else None)
    page.on("pageerror", lambda error: keep("exception", str(error)))
    page.on(
        "response", lambda r: keep("status", f"{r.status} {r.url}") if r.status >= 400 else None
    )
    page.goto(f"{base}/{path}")
    views = page.locator('script[type="application/vnd.jupyter.widget-view+json"]').count()
    if views:
        page.wait_for_function(f"document.querySelectorAll('.widget-subarea').length >= {views}")
        page.wait_for_selector(".jupyter-widgets")
    return page


@pytest.fixture(scope="module", params=PAGES)
def wide(request, chromium, address):
    """Each page of the site, on a wide light screen."""
    page = open_page(chromium, address, request.param)
    yield page
    page.context.close()


@pytest.fixture(scope="module", params=PAGES)
def phone(request, chromium, address):
    """Each page of the site, on a dark phone."""
    page = open_page(chromium, address, request.param, PHONE, "dark")
    yield page
    page.context.close()


def serious_violations(page):
    """Return what axe-core finds on a page by the rules of WCAG 2.2, levels A and AA."""
    page.evaluate(assets.member("axe-core", "axe.min.js").decode("utf-8"))
    result = page.evaluate(
        "axe.run(document, {resultTypes: ['violations'], runOnly: "
        "['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']})"
    )
    return [
        f"{found['id']}: {node['html'][:200]} {node['any'][0]['message'] if node['any'] else ''}"
        for found in result["violations"]
        for node in found["nodes"]
    ]


def shift(page):
    """Return the cumulative layout shift since the page was opened."""
    page.wait_for_timeout(300)
    return page.evaluate("window.layoutShift")


def weight(names):
    """Return the bytes of files of the site as a server sends them, compressed."""
    files = {name.partition("?")[0].partition("#")[0] for name in names}
    return sum(len(gzip.compress((SITE / name).read_bytes())) for name in files if name)


def test_page_asks_no_other_machine_and_raises_no_error(wide):
    assert wide.trouble == []


def test_formulas_stand_in_the_page_and_are_spoken(wide):
    assert wide.locator(".katex-error").count() == 0
    formulas = wide.locator("article .math").count()
    assert wide.locator("article .math .katex-html").count() >= formulas
    assert wide.locator("article .math .katex-mathml math").count() >= formulas


def test_nothing_moves_while_a_wide_page_loads(wide):
    assert shift(wide) < 0.02


def test_nothing_moves_while_a_page_loads_on_a_phone(phone):
    assert shift(phone) < 0.02


@pytest.fixture(scope="module")
def first_visit(chromium, address):
    """Files that the landing page loads."""
    page = open_page(chromium, address, "book/intro.html")
    loaded = set(page.loaded)
    page.context.close()
    return loaded


def test_the_first_page_is_light(first_visit):
    assert weight(first_visit) < 900_000


def test_a_further_page_is_lighter(wide, first_visit):
    if wide.locator(".explorer").count():
        return  # frames and their widget manager, until the chapter has its live figure
    assert weight(wide.loaded - first_visit) < 250_000


def test_page_is_accessible_on_a_wide_light_screen(wide):
    assert serious_violations(wide) == []


def test_nothing_but_boxes_scrolls_sideways_on_a_phone(phone):
    width = phone.evaluate("document.documentElement.scrollWidth")
    assert width <= PHONE["width"], phone.evaluate(
        """() => [...document.querySelectorAll("article *")]
        .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
        .filter(e => !e.closest("pre, .table-scroll, .math-scroll"))
        .slice(0, 5).map(e => e.outerHTML.slice(0, 120))"""
    )
    # What scrolls sideways can be reached and moved with the keyboard.
    unreachable = phone.evaluate(
        """() => [...document.querySelectorAll("article *")].filter(e => {
            const style = getComputedStyle(e);
            return ["auto", "scroll"].includes(style.overflowX) && e.scrollWidth > e.clientWidth + 1
                && e.tabIndex < 0 && !e.querySelector("a, button, [tabindex]");
        }).map(e => e.outerHTML.slice(0, 120))"""
    )
    assert unreachable == []


def test_page_is_accessible_on_a_dark_phone(phone):
    assert phone.evaluate("document.documentElement.dataset.theme") == "dark"
    assert serious_violations(phone) == []


def lightness(page, selector):
    """Return the mean of the red, green and blue of an element's background, from 0 to 255."""
    color = page.evaluate(
        "selector => getComputedStyle(document.querySelector(selector)).backgroundColor", selector
    )
    channels = [float(part) for part in re.findall(r"[\d.]+", color)[:3]]
    return sum(channels) / 3


def test_figures_keep_a_light_card_on_a_dark_page(phone):
    if not phone.locator("article figure img").count():
        return
    assert lightness(phone, "body") < 60
    assert lightness(phone, "article figure img") > 240


def test_dark_mode_switches(chromium, address):
    page = open_page(chromium, address, "book/intro.html")
    theme = "document.documentElement.dataset.theme"
    assert page.evaluate(theme) == "light"
    button = page.locator("button.theme-switch-button").first
    for _ in range(3):
        button.click()
        if page.evaluate(theme) == "dark":
            break
    assert page.evaluate(theme) == "dark"
    assert lightness(page, "body") < 60
    page.context.close()


def explorer_pages():
    """Pages with at least one explorer."""
    mark = "application/vnd.jupyter.widget-view+json"
    return [path for path in PAGES if mark in (SITE / path).read_text("utf-8")]


@pytest.mark.parametrize("way", ["http", "file"])
@pytest.mark.parametrize("path", explorer_pages())
def test_every_explorer_moves_by_keyboard_with_no_kernel(chromium, address, path, way):
    page = open_page(chromium, address if way == "http" else SITE.as_uri(), path)
    explorers = page.locator(".explorer")
    assert explorers.count() > 0
    for number in range(explorers.count()):
        explorer = explorers.nth(number)
        for slider in explorer.locator(".noUi-handle:visible").all():
            frame = explorer.locator("img:visible")
            before = frame.get_attribute("src"), frame.get_attribute("alt")
            slider.focus()
            at_end = slider.get_attribute("aria-valuenow") == slider.get_attribute("aria-valuemax")
            page.keyboard.press("ArrowLeft" if at_end else "ArrowRight")
            page.wait_for_function(
                "([image, old]) => image.getAttribute('src') !== old || !image.checkVisibility()",
                arg=[frame.element_handle(), before[0]],
            )
            after = frame.get_attribute("src"), frame.get_attribute("alt")
            assert after[0] != before[0]
            assert after[1]
            assert after[1] != before[1]
            assert slider.get_attribute("aria-label")
    assert page.trouble == []
    page.context.close()
